"""Whether a budget lets a model memorise labels that carry no information.

A model that fits random labels has memorised single examples. Under differential
privacy this should not be possible; a budget under which it is, is too large (van der
Veen, Seggers, Bloem, Patrini 2018, "Three tools for practical differential privacy").
"""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from keras_gdp import _validate, accounting, tradeoff
from keras_gdp.audit.intervals import checked_confidence, clopper_pearson

__all__ = ["LabelMemorization", "MemorizationRun", "label_memorization"]

_INPUTS = ("data", "noise")


@dataclass(frozen=True)
class MemorizationRun:
    """Training on random labels at one budget.

    Attributes:
        epsilon: The budget; infinite for a run without privacy.
        inputs: `"data"` (the given inputs) or `"noise"` (inputs that are noise too).
        noise_multiplier: Of one step as a single Gaussian release; 0 without privacy.
        accuracy: Share of the training examples whose random label the model gives.
        interval: Exact confidence interval of the accuracy.
        allowed: Largest expected accuracy that (epsilon, delta)-DP allows: without
            an example, its label is met with the probability of chance. An accuracy
            above it is a bug; one between chance and this bound is not.
        p_value: Probability of so many right labels by chance.
        memorized: Whether the interval lies above chance.
    """

    epsilon: float
    inputs: str
    noise_multiplier: float
    accuracy: float
    interval: tuple[float, float]
    allowed: float
    p_value: float
    memorized: bool


@dataclass(frozen=True)
class LabelMemorization:
    """The runs of `label_memorization`, and what follows.

    Attributes:
        runs: All runs, by increasing budget.
        chance: Accuracy of a model that knows nothing of the labels.
        examples: Number of training examples.
        confidence: Level of each run's interval.
    """

    runs: tuple[MemorizationRun, ...]
    chance: float
    examples: int
    confidence: float

    @property
    def largest_safe_budget(self) -> float | None:
        """The largest budget up to which no run memorised anything, or `None`.

        The absence of memorisation in these runs, at this number of examples, does
        not prove that there is none.
        """
        safe = None
        for epsilon in sorted({run.epsilon for run in self.runs}):
            if any(run.memorized for run in self.runs if run.epsilon == epsilon):
                break
            safe = epsilon
        return safe

    def __str__(self):
        lines = [
            f"{'epsilon':>9} {'inputs':>7} {'noise':>8} {'accuracy':>9}  interval"
            f"          allowed  memorized (chance {self.chance:.4g})"
        ]
        lines += [
            f"{run.epsilon:>9.4g} {run.inputs:>7} {run.noise_multiplier:>8.4f} "
            f"{run.accuracy:>9.4f}  [{run.interval[0]:.4f}, {run.interval[1]:.4f}]  "
            f"{run.allowed:>7.4f}  {'yes' if run.memorized else 'no'}"
            for run in self.runs
        ]
        safe = self.largest_safe_budget
        lines.append(
            "nothing is safe among these budgets"
            if safe is None
            else f"nothing was memorised up to epsilon = {safe:g}"
        )
        return "\n".join(lines)

    def plot(self, ax=None):
        """Draws accuracy over epsilon; needs matplotlib. Returns the axes."""
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        finite = [r.epsilon for r in self.runs if math.isfinite(r.epsilon)]
        last = 4.0 * max(finite, default=1.0)  # Where "no privacy" is drawn.
        for inputs in _INPUTS:
            runs = [run for run in self.runs if run.inputs == inputs]
            if runs:
                accuracy = np.array([run.accuracy for run in runs])
                low, high = np.array([run.interval for run in runs]).T
                ax.errorbar(
                    [min(run.epsilon, last) for run in runs],
                    accuracy,
                    [np.maximum(accuracy - low, 0), np.maximum(high - accuracy, 0)],
                    marker="o",
                    capsize=3,
                    label=f"random labels, {inputs}",
                )
        ax.axhline(self.chance, color="0.5", linestyle="--", label="chance")
        ax.set(xscale="log", ylim=(0, 1.02))
        ax.set_xlabel("epsilon (right: no privacy)")
        ax.set_ylabel("training accuracy")
        ax.legend(frameon=False)
        return ax


def label_memorization(
    model_fn,
    optimizer_fn,
    x,
    num_classes: int,
    budgets,
    *,
    delta: float,
    epochs: int,
    batch_size: int,
    inputs=("data", "noise"),
    loss="sparse_categorical_crossentropy",
    confidence: float = 0.99,
    accountant: str = "exact",
    path=None,
    seed: int = 0,
    verbose: int = 1,
) -> LabelMemorization:
    """Trains on random labels at each candidate budget.

    Args:
        model_fn: Called without arguments, returns a new uncompiled Keras model with
            one score per class. Give it the capacity of the model you mean to train.
        optimizer_fn: Called with a noise multiplier, returns the optimizer. For the
            budget `math.inf` it is called with 0 and should return a plain Keras
            optimizer, which shows what the model can memorise without privacy.
        x: Array of inputs with a leading axis of examples. Only their labels are made
            up; `"noise"` replaces the inputs as well, by normal noise of the same mean
            and deviation.
        num_classes: Number of classes, >= 2; every label is equally likely.
        budgets: Candidate epsilons, > 0, `math.inf` for no privacy.
        delta: The delta of the budgets.
        epochs: Nominal epochs of each run; as many as you mean to train.
        batch_size: Expected batch size, of Poisson sampling.
        inputs: Which of `"data"` and `"noise"` to run.
        loss: A Keras loss for integer labels that fits the model's scores.
        confidence: Level of each run's interval, in (0, 1). With k runs, expect
            `k (1 - confidence) / 2` false alarms.
        accountant: Whose epsilon the budgets are.
        path: JSON file that results are written to after every run. Runs that it
            holds already are not repeated.
        seed: Of the labels and the noise inputs.
        verbose: 0 for silence, 1 for a progress bar over the runs, 2 for Keras' own
            output of each run as well.

    Returns:
        A `LabelMemorization`. Its accuracies are of training data, without noise: do
        not publish them if the inputs are sensitive.

    Raises:
        ValueError: For values out of range, or if `path` holds results of other
            settings.
    """
    x = np.asarray(x)
    for name, function, call in (
        ("model_fn", model_fn, "It returns a new model: `model_fn()`."),
        (
            "optimizer_fn",
            optimizer_fn,
            "It returns an optimizer: `optimizer_fn(noise_multiplier)`.",
        ),
    ):
        if not callable(function):
            raise ValueError(
                f"Argument `{name}` must be a function, which is called for every run. "
                f"Received: {name}={function!r}. {call}"
            )
    if x.ndim == 0 or len(x) == 0:
        raise ValueError(
            "Argument `x` must be an array with a leading axis of examples, at least "
            f"one. Received shape {x.shape}. Check how the data was loaded."
        )
    num_classes = _validate.count(
        "num_classes",
        num_classes,
        "Random labels are drawn from so many classes; try 10.",
        minimum=2,
    )
    epochs = _validate.count("epochs", epochs, minimum=1)
    delta = _validate.delta("delta", delta)
    confidence = checked_confidence(confidence)
    if isinstance(budgets, str) or np.ndim(budgets) != 1 or not len(budgets):
        raise ValueError(
            "Argument `budgets` must be a list of epsilons, at least one. Received: "
            f"budgets={budgets!r}. For a single one pass `budgets=[1.0]`."
        )
    advice = "It is the expected batch size, a part of the examples of `x`."
    if _validate.positive("batch_size", batch_size, advice) > len(x):
        raise ValueError(
            "Argument `batch_size` must not exceed the number of examples. Received: "
            f"batch_size={batch_size!r} with {len(x)} examples. {advice}"
        )
    budgets = sorted(
        _validate.positive(
            "budgets",
            epsilon,
            "They are epsilons; math.inf trains without privacy.",
            infinite=True,
        )
        for epsilon in budgets
    )
    inputs = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    for kind in inputs:
        _validate.one_of(
            "inputs", kind, _INPUTS, "Pass one of them, or a tuple of several."
        )
    steps = epochs * max(1, round(len(x) / batch_size))
    settings = {
        "examples": len(x),
        "num_classes": num_classes,
        "delta": delta,
        "epochs": epochs,
        "batch_size": batch_size,
        "accountant": accountant,
        "seed": seed,
    }
    record = _Record(path, settings)
    todo = [(epsilon, kind) for epsilon in budgets for kind in inputs]
    bar = _progress(len(todo)) if verbose else None
    runs = []
    for done, (epsilon, kind) in enumerate(todo):
        result = record.get(epsilon, kind)
        if result is None:
            noise = 0.0
            if math.isfinite(epsilon):
                noise = accounting.noise_multiplier_for(
                    epsilon,
                    delta,
                    sampling_probability=batch_size / len(x),
                    steps=steps,
                    accountant=accountant,
                )
            correct = _train(
                model_fn(),
                optimizer_fn(noise),
                *_made_up(x, num_classes, kind, seed),
                loss=loss,
                batch_size=batch_size,
                epochs=epochs,
                budget=(epsilon, delta, accountant),
                verbose=max(0, verbose - 1),
            )
            result = {"noise_multiplier": noise, "correct": correct}
            record.put(epsilon, kind, result)
        runs.append(_run(epsilon, kind, result, settings, confidence))
        if bar is not None:
            bar.update(done + 1, [(f"accuracy_{kind}", runs[-1].accuracy)])
    return LabelMemorization(tuple(runs), 1.0 / num_classes, len(x), confidence)


def _made_up(x, num_classes, kind, seed):
    rng = np.random.default_rng([seed, _INPUTS.index(kind)])
    y = rng.integers(0, num_classes, len(x))
    if kind == "noise":
        x = rng.normal(np.mean(x), np.std(x), x.shape).astype("float32")
    return x, y


def _train(model, optimizer, x, y, *, loss, batch_size, epochs, budget, verbose):
    """Returns the number of training examples whose label the model then gives."""
    import keras_gdp as gdp
    from keras_gdp.training._keras import private_optimizer

    epsilon, delta, accountant = budget
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    private = private_optimizer(model) is not None
    if private != math.isfinite(epsilon):
        raise ValueError(
            f"`optimizer_fn` must return {'a DP' if not private else 'a plain Keras'} "
            f"optimizer for the budget {epsilon:g}. Received: "
            f"{type(optimizer).__name__}. "
            "It is called with the noise multiplier, which is 0 without a budget: "
            "return keras_gdp.DPSGD, say, where it is not, else keras.optimizers.SGD."
        )
    if private:
        dataset = gdp.PoissonDataset(x, y, batch_size=batch_size)
        callback = gdp.PrivacyBudget(
            epsilon=epsilon, delta=delta, dataset=dataset, accountant=accountant
        )
        model.fit(dataset, epochs=epochs, callbacks=[callback], verbose=verbose)
    else:
        model.fit(x, y, batch_size=int(batch_size), epochs=epochs, verbose=verbose)
    scores = model.predict(x, batch_size=512, verbose=0)
    return int(np.sum(np.argmax(scores, axis=-1) == y))


def _run(epsilon, kind, result, settings, confidence):
    correct, examples = result["correct"], settings["examples"]
    chance = 1.0 / settings["num_classes"]
    f = tradeoff.approximate_dp(epsilon, settings["delta"])
    interval = clopper_pearson(correct, examples, confidence)
    return MemorizationRun(
        epsilon=epsilon,
        inputs=kind,
        noise_multiplier=result["noise_multiplier"],
        accuracy=correct / examples,
        interval=interval,
        allowed=1.0 - float(f(chance)),
        p_value=float(stats.binom.sf(correct - 1, examples, chance)),
        memorized=interval[0] > chance,
    )


def _progress(total):
    import keras

    return keras.utils.Progbar(total, unit_name="run")


class _Record:
    """Results on disk, replaced as a whole after each run."""

    def __init__(self, path, settings):
        self._path = None if path is None else Path(path)
        self._content = {"settings": settings, "runs": {}}
        if self._path is None or not self._path.exists():
            return
        try:
            content = json.loads(self._path.read_text())
            found = content["settings"]
            self._content["runs"] = dict(content["runs"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"Argument `path` must name a file that `label_memorization` wrote, or "
                f"a new one. Received: path={str(path)!r}, which cannot be read."
            ) from error
        if found != settings:
            different = sorted(k for k in settings if found.get(k) != settings[k])
            raise ValueError(
                f"Argument `path` names results of other settings ({different}). "
                f"Received: path={str(path)!r}. Give another path."
            )

    def get(self, epsilon, kind):
        return self._content["runs"].get(f"{epsilon!r} {kind}")

    def put(self, epsilon, kind, result):
        self._content["runs"][f"{epsilon!r} {kind}"] = result
        if self._path is not None:
            temporary = self._path.with_name(self._path.name + ".part")
            temporary.write_text(json.dumps(self._content, indent=1))
            os.replace(temporary, self._path)
