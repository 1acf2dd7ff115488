"""Checks of argument values, with messages that say what to do.

Every checker takes the argument's name first, returns the value in the type that
the caller computes with, and raises `TypeError` or `ValueError` naming the
argument, the value received, the range expected, and what to do: the caller's
advice, or else the advice for arguments that mean the same everywhere.
"""

import difflib
import math
import numbers
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "array",
    "count",
    "delta",
    "message",
    "non_negative",
    "one_of",
    "positive",
    "probability",
    "real",
]


_ADVICE = {
    "accountant": "'exact' is the tightest upper bound.",
    "alpha": "It is the probability of a false alarm, such as 0.05.",
    "batch_size": "It is the expected number of examples of a step, such as 256.",
    "count": "It says how often the event happens; pass 1 for once.",
    "delta": "It is the probability with which the guarantee may fail; 1e-5 is common.",
    "epochs": "It is the number of passes over the data, such as 10.",
    "epsilon": "It bounds the privacy loss; 1.0 is strong, 8.0 weak.",
    "k": "It is the number of records of one person; pass 1 for one.",
    "mu": "It is the parameter of Gaussian differential privacy, such as 1.0.",
    "n": "It says how often the mechanism runs; pass 1 for once.",
    "noise_multiplier": "It is the noise's standard deviation over the sensitivity "
    "(in training `l2_norm_clip`); start with 1.0.",
    "num_examples": "It is the size of the training data, `len(x)`.",
    "relation": "'add_remove' compares data with and without one example, "
    "'replace_one' data that differ in the values of one.",
    "sampling": "Say how batches are really drawn: a `PoissonDataset` is 'poisson', a "
    "`UniformDataset` 'uniform'.",
    "sampling_probability": "It is `batch_size / num_examples`, such as 256 / 60000.",
    "seed": "Pass None for draws that nobody can predict; 0, say, is for tests.",
    "sensitivity": "It is 1 clip norm under add_remove, 2 under replace_one.",
    "steps": "It is the number of noised updates, `epochs * steps_per_epoch`.",
}


def message(name: str, value: object, expected: str, advice: str = "") -> str:
    """Says what is wrong with an argument, and what to do."""
    text = f"Argument `{name}` must be {expected}. Received: {name}={value!r}."
    advice = advice or _ADVICE.get(name, "")
    return f"{text} {advice}" if advice else text


def real(name: str, value: object, advice: str = "") -> float:
    """Returns `value` as a float; refuses NaN, booleans and non-numbers."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(message(name, value, "a real number", advice))
    if math.isnan(value):
        raise ValueError(message(name, value, "a number, not NaN", advice))
    return float(value)


def array(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """Returns `value` as a float array of any shape; refuses what are no numbers."""
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        advice = _ADVICE.get(name, "Convert it with `float` first.")
        expected = "a number or an array of numbers"
        raise TypeError(message(name, value, expected, advice)) from None


def positive(
    name: str, value: object, advice: str = "", *, infinite: bool = False
) -> float:
    """Returns `value` as a float if it is > 0 (and finite unless `infinite`)."""
    number = real(name, value, advice)
    if not number > 0 or (number == math.inf and not infinite):
        expected = "a number > 0" if infinite else "a finite number > 0"
        raise ValueError(message(name, value, expected, advice))
    return number


def non_negative(
    name: str, value: object, advice: str = "", *, infinite: bool = False
) -> float:
    """Returns `value` as a float if it is >= 0 (and finite unless `infinite`)."""
    number = real(name, value, advice)
    if not number >= 0 or (number == math.inf and not infinite):
        expected = "a number >= 0" if infinite else "a finite number >= 0"
        raise ValueError(message(name, value, expected, advice))
    return number


def probability(name: str, value: object, advice: str = "") -> float:
    """Returns `value` as a float if it lies in [0, 1]."""
    number = real(name, value, advice)
    if not 0 <= number <= 1:
        raise ValueError(message(name, value, "a number in [0, 1]", advice))
    return number


def delta(name: str, value: object) -> float:
    """Returns `value` as a float if it lies strictly between 0 and 1."""
    number = real(name, value)
    if not 0 < number < 1:
        raise ValueError(message(name, value, "a number in (0, 1)"))
    return number


def count(name: str, value: object, advice: str = "", *, minimum: int = 0) -> int:
    """Returns `value` as an int if it is a whole number >= `minimum`."""
    if isinstance(value, bool | np.bool_):
        raise TypeError(message(name, value, "a whole number", advice))
    if isinstance(value, numbers.Real) and float(value).is_integer():
        value = int(value)
    if not isinstance(value, int):
        raise TypeError(message(name, value, "a whole number", advice))
    if value < minimum:
        raise ValueError(message(name, value, f"a whole number >= {minimum}", advice))
    return value


def one_of(name: str, value: object, choices: Iterable[str], advice: str = "") -> str:
    """Returns `value` if it is one of the strings in `choices`."""
    allowed = list(choices)
    if not isinstance(value, str) or value not in allowed:
        listed = " or ".join(repr(choice) for choice in allowed)
        near = difflib.get_close_matches(str(value).lower(), allowed, n=1)
        if isinstance(value, str) and near:
            advice = f"Did you mean {near[0]!r}?"
        raise ValueError(message(name, value, listed, advice))
    return value
