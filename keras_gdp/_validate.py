"""Checks of argument values, with messages that say what to do.

Every checker takes the argument's name first, returns the value in the type that
the caller computes with, and raises `TypeError` or `ValueError` naming the
argument, the value received and the range expected.
"""

import math
import numbers
from collections.abc import Iterable

import numpy as np

__all__ = [
    "count",
    "delta",
    "non_negative",
    "one_of",
    "positive",
    "probability",
    "real",
]


def _message(name: str, value: object, expected: str, advice: str) -> str:
    text = f"Argument `{name}` must be {expected}. Received: {name}={value!r}."
    return f"{text} {advice}" if advice else text


def real(name: str, value: object, advice: str = "") -> float:
    """Returns `value` as a float; refuses NaN, booleans and non-numbers."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(_message(name, value, "a real number", advice))
    if math.isnan(value):
        raise ValueError(_message(name, value, "a number, not NaN", advice))
    return float(value)


def positive(
    name: str, value: object, advice: str = "", *, infinite: bool = False
) -> float:
    """Returns `value` as a float if it is > 0 (and finite unless `infinite`)."""
    number = real(name, value, advice)
    if not number > 0 or (number == math.inf and not infinite):
        expected = "a number > 0" if infinite else "a finite number > 0"
        raise ValueError(_message(name, value, expected, advice))
    return number


def non_negative(
    name: str, value: object, advice: str = "", *, infinite: bool = False
) -> float:
    """Returns `value` as a float if it is >= 0 (and finite unless `infinite`)."""
    number = real(name, value, advice)
    if not number >= 0 or (number == math.inf and not infinite):
        expected = "a number >= 0" if infinite else "a finite number >= 0"
        raise ValueError(_message(name, value, expected, advice))
    return number


def probability(name: str, value: object, advice: str = "") -> float:
    """Returns `value` as a float if it lies in [0, 1]."""
    number = real(name, value, advice)
    if not 0 <= number <= 1:
        raise ValueError(_message(name, value, "a number in [0, 1]", advice))
    return number


def delta(name: str, value: object) -> float:
    """Returns `value` as a float if it lies strictly between 0 and 1."""
    advice = "It is the probability with which the guarantee may fail; 1e-5 is common."
    number = real(name, value, advice)
    if not 0 < number < 1:
        raise ValueError(_message(name, value, "a number in (0, 1)", advice))
    return number


def count(name: str, value: object, advice: str = "", *, minimum: int = 0) -> int:
    """Returns `value` as an int if it is a whole number >= `minimum`."""
    if isinstance(value, bool | np.bool_):
        raise TypeError(_message(name, value, "a whole number", advice))
    if isinstance(value, numbers.Real) and float(value).is_integer():
        value = int(value)
    if not isinstance(value, int):
        raise TypeError(_message(name, value, "a whole number", advice))
    if value < minimum:
        raise ValueError(_message(name, value, f"a whole number >= {minimum}", advice))
    return value


def one_of(name: str, value: object, choices: Iterable[str], advice: str = "") -> str:
    """Returns `value` if it is one of the strings in `choices`."""
    allowed = list(choices)
    if not isinstance(value, str) or value not in allowed:
        listed = " or ".join(repr(choice) for choice in allowed)
        raise ValueError(_message(name, value, listed, advice))
    return value
