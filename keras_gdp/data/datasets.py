"""Datasets that draw their batches at random and say how."""

import threading

import keras
import numpy as np

from keras_gdp import _validate
from keras_gdp.data.source import Source
from keras_gdp.sampling import (
    Sampling,
    poisson_capacity,
    poisson_draw,
    uniform_draw,
)

__all__ = ["PoissonDataset", "SampledDataset", "UniformDataset", "verified_sampling"]


class SampledDataset(keras.utils.PyDataset):
    """Base of the datasets whose every step is an independent random draw.

    Attributes:
        num_examples: Number of examples of the source.
        batch_size: Expected batch size.
        sampling_probability: `batch_size / num_examples`.
        steps_per_epoch: Steps that `fit` calls an epoch. An epoch is nominal: it
            visits each example once on average, not exactly once.
        sampling: The `keras_gdp.sampling.Sampling` that the accounting uses.
        draws: How many batches were drawn so far.
    """

    kind = ""

    def __init__(
        self,
        x,
        y=None,
        sample_weight=None,
        *,
        batch_size,
        steps_per_epoch=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self._source = Source(x, y, sample_weight)
        self._seed = None if seed is None else _validate.count("seed", seed)
        self._sampling = Sampling(
            self.kind, batch_size, len(self._source), seeded=seed is not None
        )
        if steps_per_epoch is None:
            steps_per_epoch = max(1, round(self.num_examples / batch_size))
        self.steps_per_epoch = _validate.count(
            "steps_per_epoch",
            steps_per_epoch,
            "Leave it out for the steps that see as many examples as there are.",
            minimum=1,
        )
        self._draws = 0
        self._epoch = 0
        self._lock = threading.Lock()

    def __getstate__(self):
        # Worker processes receive a pickled copy; locks cannot be pickled.
        return {k: v for k, v in self.__dict__.items() if k != "_lock"}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._lock = threading.Lock()

    # What the accounting rests on can be read, not changed.

    @property
    def sampling(self) -> Sampling:
        """How the batches are drawn."""
        return self._sampling

    @property
    def num_examples(self) -> int:
        """Number of examples of the source."""
        return self._sampling.num_examples

    @property
    def batch_size(self):
        """Expected batch size."""
        return self._sampling.batch_size

    @property
    def sampling_probability(self) -> float:
        """Probability with which a given example is in a given batch."""
        return self._sampling.sampling_probability

    @property
    def seed(self):
        """The seed of the sampling, or `None`."""
        return self._seed

    @property
    def draws(self) -> int:
        """How many batches were drawn so far."""
        return self._draws

    @property
    def num_batches(self) -> int:
        """Steps per epoch."""
        return self.steps_per_epoch

    def __len__(self):
        return self.steps_per_epoch

    def on_epoch_begin(self):
        self._epoch += 1

    def __getitem__(self, index):
        if not 0 <= index < self.steps_per_epoch:
            raise IndexError(
                f"Batch index must be in [0, {self.steps_per_epoch}). Received: "
                f"{index}. Pass a larger `steps_per_epoch=` for longer epochs."
            )
        with self._lock:
            self._draws += 1
        # Fresh entropy for every draw: batches stay independent across repeated
        # fits, threads and forked workers. A seed makes them a function of
        # (seed, epoch, index) instead.
        entropy = None if self._seed is None else (self._seed, self._epoch, index)
        return self._batch(np.random.default_rng(entropy))

    def _batch(self, rng):
        raise NotImplementedError


class PoissonDataset(SampledDataset):
    """Batches that include each example independently (Poisson sampling).

    This is the sampling that `SampledGaussian` accounts for. Batch sizes vary, also
    down to zero; each batch is padded to `padded_batch_size` rows, and padding rows
    carry sample weight 0, by which private training recognises and leaves them out.
    No example is ever dropped: a draw beyond the padded size (probability 1e-5 per
    step) is padded to a multiple of it.

    Args:
        x: Inputs: arrays with a leading axis of examples, nested in dicts, lists or
            tuples; or any object with `__len__` and `__getitem__` that returns one
            example (`x`, or `(x, y)`, or `(x, y, sample_weight)`) per index.
        y: Targets, nested or not. `None` for losses that need no targets: batches
            then carry zeros, as Keras' `PyDataset` cannot carry weights without them.
        sample_weight: Weights of the examples, nested or not, or `None`. An example
            of weight 0 is treated as absent.
        batch_size: Expected batch size, > 0 and at most the number of examples.
        steps_per_epoch: Steps that `fit` calls an epoch; by default the number of
            steps closest to one nominal pass, `num_examples / batch_size`.
        seed: `None` to sample with the operating system's entropy (the guarantee
            needs sampling that nobody can predict), or an int for tests.
        **kwargs: Passed to `keras.utils.PyDataset` (`workers`,
            `use_multiprocessing`, `max_queue_size`).

    Raises:
        ValueError: If `batch_size` exceeds the number of examples, or the arrays'
            lengths differ.
    """

    kind = "poisson"

    def __init__(
        self,
        x,
        y=None,
        sample_weight=None,
        *,
        batch_size,
        steps_per_epoch=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(
            x,
            y,
            sample_weight,
            batch_size=batch_size,
            steps_per_epoch=steps_per_epoch,
            seed=seed,
            **kwargs,
        )
        self.padded_batch_size = poisson_capacity(
            self.num_examples, self.sampling_probability
        )

    def _batch(self, rng):
        indices = poisson_draw(rng, self.num_examples, self.sampling_probability)
        x, y, sample_weight = self._source.fetch(indices)
        if sample_weight is None:
            sample_weight = np.ones(len(indices), "float32")
        if y is None:
            y = np.zeros(len(indices), "float32")
        chunks = max(1, -(-len(indices) // self.padded_batch_size))
        missing = chunks * self.padded_batch_size - len(indices)
        return keras.tree.map_structure(
            lambda leaf: None if leaf is None else _pad(leaf, missing),
            (x, y, sample_weight),
        )


class UniformDataset(SampledDataset):
    """Batches of fixed size, drawn without replacement, independently per step.

    Accounted as `UniformSampledGaussian` under the replace-one relation, where a
    clipped sum moves by up to twice the clip norm. For the same noise multiplier the
    guarantee is weaker than with `PoissonDataset`; use it where fixed batches matter.

    Args:
        x: As for `PoissonDataset`.
        y: As for `PoissonDataset`.
        sample_weight: As for `PoissonDataset`.
        batch_size: Whole number of examples per batch, at most the number of examples.
        steps_per_epoch: As for `PoissonDataset`.
        seed: As for `PoissonDataset`.
        **kwargs: Passed to `keras.utils.PyDataset`.

    Raises:
        ValueError: If `batch_size` exceeds the number of examples, or the arrays'
            lengths differ.
    """

    kind = "uniform"

    def _batch(self, rng):
        indices = uniform_draw(rng, self.num_examples, int(self.batch_size))
        x, y, sample_weight = self._source.fetch(indices)
        if sample_weight is not None:
            return x, y, sample_weight
        return (x,) if y is None else (x, y)


def verified_sampling(dataset):
    """Returns the sampling of a dataset, or `None` if its drawing was overridden."""
    base = next(
        (c for c in (PoissonDataset, UniformDataset) if isinstance(dataset, c)), None
    )
    if base is None:
        return None
    for name in _DRAWING:
        if name in vars(dataset):
            return None
        if getattr(type(dataset), name) is not getattr(base, name):
            return None
    return dataset.sampling


_DRAWING = (
    "__getitem__",
    "__getattribute__",
    "_batch",
    "kind",
    "sampling",
    "draws",
    "seed",
    "num_examples",
    "batch_size",
    "sampling_probability",
)


def _pad(leaf, missing):
    filler = np.zeros((missing, *leaf.shape[1:]), leaf.dtype)
    return np.concatenate([leaf, filler])
