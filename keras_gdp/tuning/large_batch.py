"""Batch size, learning rate and noise that belong together for one budget.

With a budget and a number of epochs fixed, a larger batch needs a larger noise
multiplier, but more examples share the noise: the noise per example falls (van der
Veen, Seggers, Bloem, Patrini 2018, "Three tools for practical differential privacy").
The learning rate is scaled along (Goyal et al. 2017), which is what makes large
batches worth their noise.
"""

import math
from dataclasses import dataclass
from typing import Any

from keras_gdp import _validate, accounting

__all__ = ["LargeBatchRow", "LargeBatchTable", "large_batch"]


@dataclass(frozen=True)
class LargeBatchRow:
    """One setting that spends the whole budget.

    Attributes:
        batch_size: Expected batch size of Poisson sampling.
        steps_per_epoch: Steps that make a nominal epoch.
        epochs: Number of epochs.
        learning_rate: Scaled along with the batch size.
        warmup_steps: Steps over which the learning rate rises linearly to its value.
        noise_multiplier: Of one step as a single Gaussian release.
        epsilon: Budget, which `steps` steps spend.
        delta: Its failure probability.
        num_examples: Size of the data set.
        accountant: Whose epsilon is meant.
    """

    batch_size: float
    steps_per_epoch: int
    epochs: int
    learning_rate: float
    warmup_steps: int
    noise_multiplier: float
    epsilon: float
    delta: float
    num_examples: int
    accountant: str

    @property
    def steps(self) -> int:
        """Number of noised updates."""
        return self.steps_per_epoch * self.epochs

    @property
    def noise_per_example(self) -> float:
        """Standard deviation of the noise on the mean gradient, in clip norms."""
        return self.noise_multiplier / self.batch_size

    def optimizer(self, optimizer_class=None, *, l2_norm_clip, **options) -> Any:
        """Returns a DP optimizer with this row's learning rate and noise.

        Where the clipping strategy releases something beside the sum, the noise on the
        sum is raised so that a step costs what the row says.

        Args:
            optimizer_class: A DP optimizer class; by default `keras_gdp.DPSGD`.
            l2_norm_clip: The clip norm, or a clipping strategy.
            **options: Passed to the optimizer, such as `physical_batch_size`.

        Raises:
            ValueError: If `optimizer_class` is no DP optimizer class.
        """
        import keras_gdp as gdp
        from keras_gdp.optimizers import PrivateOptimizer
        from keras_gdp.tuning.warm_up import LinearWarmUp

        if optimizer_class is None:
            optimizer_class = gdp.DPSGD
        if not (
            isinstance(optimizer_class, type)
            and issubclass(optimizer_class, PrivateOptimizer)
        ):
            raise ValueError(
                "Argument `optimizer_class` must be a DP optimizer class, such as "
                f"keras_gdp.DPSGD. Received: optimizer_class={optimizer_class!r}. "
                "`keras_gdp.make_private` makes one of any Keras optimizer class."
            )
        noise = self.noise_multiplier
        if isinstance(l2_norm_clip, gdp.clipping.ClippingStrategy):
            noise = l2_norm_clip.noise_multiplier_for(noise)
        rate = self.learning_rate
        if self.warmup_steps:
            rate = LinearWarmUp(rate, self.warmup_steps)
        return optimizer_class(
            learning_rate=rate,
            l2_norm_clip=l2_norm_clip,
            noise_multiplier=noise,
            batch_size=self.batch_size,
            **options,
        )

    def dataset(self, x, y=None, sample_weight=None, **options) -> Any:
        """Returns the `PoissonDataset` that this row accounts for.

        Raises:
            ValueError: If the data has another size than the row assumes.
        """
        import keras_gdp as gdp

        dataset = gdp.PoissonDataset(
            x,
            y,
            sample_weight,
            batch_size=self.batch_size,
            steps_per_epoch=self.steps_per_epoch,
            **options,
        )
        if dataset.num_examples != self.num_examples:
            raise ValueError(
                f"The row was made for num_examples={self.num_examples}. Received data "
                f"with {dataset.num_examples} examples. Call `large_batch` with the "
                "size of this data set."
            )
        return dataset

    def budget(self, dataset=None, **options) -> Any:
        """Returns the `PrivacyBudget` callback that keeps the row's promise."""
        import keras_gdp as gdp

        return gdp.PrivacyBudget(
            epsilon=self.epsilon,
            delta=self.delta,
            dataset=dataset,
            accountant=self.accountant,
            **options,
        )


class LargeBatchTable(tuple):
    """Rows by increasing batch size; prints as a table."""

    __slots__ = ()

    def __str__(self):
        lines = [
            f"{'batch size':>10} {'steps':>8} {'learning rate':>13} "
            f"{'noise multiplier':>16} {'noise per example':>17}"
        ]
        lines += [
            f"{row.batch_size:>10g} {row.steps:>8} {row.learning_rate:>13.4g} "
            f"{row.noise_multiplier:>16.4f} {row.noise_per_example:>17.3e}"
            for row in self
        ]
        return "\n".join(lines)

    def row(self, batch_size) -> LargeBatchRow:
        """Returns the row of a batch size.

        Raises:
            ValueError: If there is none.
        """
        for row in self:
            if row.batch_size == batch_size:
                return row
        raise ValueError(
            f"The table has no row for batch_size={batch_size!r}, only for "
            f"{[row.batch_size for row in self]}. Take one of these, or make the table "
            "with `batch_sizes=[...]`."
        )

    def plot(self, ax=None):
        """Draws the noise per example over the batch size; needs matplotlib.

        Returns:
            The axes.
        """
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        ax.plot(
            [row.batch_size for row in self],
            [row.noise_per_example for row in self],
            marker="o",
        )
        ax.set(xscale="log", yscale="log")
        ax.set_xlabel("expected batch size")
        ax.set_ylabel("noise per example (clip norms)")
        return ax


def large_batch(
    epsilon: float,
    delta: float,
    *,
    num_examples: int,
    epochs: int,
    base_learning_rate: float,
    base_batch_size: float = 128,
    batch_sizes=None,
    scaling: str = "linear",
    warmup_epochs: float = 0,
    accountant: str = "exact",
) -> LargeBatchTable:
    """Tabulates batch sizes with the learning rate and the noise that fit each.

    Args:
        epsilon: The budget of the whole run, > 0.
        delta: Its failure probability, in (0, 1).
        num_examples: Size of the data set.
        epochs: Number of nominal epochs, the same for every row. An epoch has a whole
            number of steps, the nearest to `num_examples / batch_size`: a row with 2
            steps for 2.5 sees each example 0.8 times per epoch on average.
        base_learning_rate: A learning rate that works at `base_batch_size`, > 0.
        base_batch_size: The batch size that the learning rates are scaled from.
        batch_sizes: Expected batch sizes, each at most `num_examples`; by default
            `base_batch_size` doubled as often as fits.
        scaling: `"linear"` multiplies the learning rate by k where the batch size is
            (Goyal et al. 2017, for SGD); `"sqrt"` by the root of k (for adaptive
            methods such as Adam); `"none"` leaves it.
        warmup_epochs: Epochs over which the learning rate rises linearly, >= 0 and at
            most `epochs`; linear scaling by large factors needs it.
        accountant: Whose epsilon the budget limits.

    Returns:
        One row per batch size. The noise multiplier of a row is the smallest with
        which `row.steps` steps stay within the budget.

    Example:
        >>> table = large_batch(2.0, 1e-5, num_examples=60_000, epochs=10,
        ...     base_learning_rate=0.1, batch_sizes=[128, 1024])
        >>> print(table)
        batch size    steps learning rate noise multiplier noise per example
               128     4690           0.1           0.6969         5.445e-03
              1024      590           0.8           1.1269         1.100e-03
    """
    total = _validate.count("num_examples", num_examples, minimum=1)
    epochs = _validate.count("epochs", epochs, minimum=1)
    base_rate = _validate.positive(
        "base_learning_rate",
        base_learning_rate,
        "It is a learning rate that works at `base_batch_size`, such as 0.1.",
    )
    base_size = _validate.positive(
        "base_batch_size",
        base_batch_size,
        "It is the batch size that `base_learning_rate` is for, such as 128.",
    )
    _validate.one_of(
        "scaling",
        scaling,
        ("linear", "sqrt", "none"),
        "'linear' suits SGD, 'sqrt' Adam.",
    )
    warmup_epochs = _validate.non_negative(
        "warmup_epochs", warmup_epochs, "Pass 0 for no warm-up."
    )
    if warmup_epochs > epochs:
        raise ValueError(
            "Argument `warmup_epochs` must not exceed `epochs`. Received: "
            f"warmup_epochs={warmup_epochs:g}, epochs={epochs}. Warm up for less, such "
            "as 1."
        )
    if batch_sizes is None:
        if base_size > total:
            raise ValueError(
                "Argument `base_batch_size` must not exceed `num_examples` where no "
                "`batch_sizes` are given. Received: "
                f"base_batch_size={base_size:g} (128 by default) with "
                f"num_examples={total}. Pass `batch_sizes=[...]`, or a smaller base "
                "with the learning rate that fits it."
            )
        doublings = math.floor(math.log2(total / base_size))
        batch_sizes = [base_batch_size * 2**k for k in range(doublings + 1)]
    try:
        sizes = [] if isinstance(batch_sizes, str) else list(batch_sizes)
    except TypeError:
        sizes = []
    if not sizes:
        raise ValueError(
            "Argument `batch_sizes` must be a list of numbers in (0, num_examples], at "
            f"least one. Received: batch_sizes={batch_sizes!r}. For a single one pass "
            "`batch_sizes=[128]`."
        )
    for size in sizes:
        if (
            not 0
            < _validate.real(
                "batch_sizes", size, "Pass a list of numbers such as [128, 1024]."
            )
            <= total
        ):
            raise ValueError(
                "Argument `batch_sizes` must hold numbers in (0, num_examples]. "
                f"Received: {size!r} with num_examples={total}. Leave it out, or check "
                "`num_examples`."
            )
    rows = []
    for size in sorted(sizes):
        steps_per_epoch = max(1, round(total / size))
        k = size / base_size
        factor = {"linear": k, "sqrt": math.sqrt(k), "none": 1.0}[scaling]
        rows.append(
            LargeBatchRow(
                batch_size=size,
                steps_per_epoch=steps_per_epoch,
                epochs=epochs,
                learning_rate=base_rate * factor,
                warmup_steps=round(warmup_epochs * steps_per_epoch),
                noise_multiplier=accounting.noise_multiplier_for(
                    epsilon,
                    delta,
                    sampling_probability=size / total,
                    steps=steps_per_epoch * epochs,
                    accountant=accountant,
                ),
                epsilon=float(epsilon),
                delta=float(delta),
                num_examples=total,
                accountant=accountant,
            )
        )
    return LargeBatchTable(rows)
