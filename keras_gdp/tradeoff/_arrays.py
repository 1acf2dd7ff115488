"""Checks of array arguments and the array type that the package computes with."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_gdp import _validate

__all__ = ["Array", "finite_or_infinite", "like_input", "probabilities"]

# Floats almost everywhere; the element type of NumPy's results is hard to follow.
Array: TypeAlias = NDArray[Any]


def finite_or_infinite(name: str, value: ArrayLike) -> Array:
    """Returns `value` as a float array; infinities pass, NaN does not."""
    array = _validate.array(name, value)
    if np.isnan(array).any():
        advice = "Check what it was computed from."
        raise ValueError(_validate.message(name, value, "numbers, not NaN", advice))
    return array


def probabilities(name: str, value: ArrayLike) -> Array:
    """Returns `value` as a float array with all entries in [0, 1]."""
    array = finite_or_infinite(name, value)
    if ((array < 0) | (array > 1)).any():
        advice = "They are probabilities or error rates."
        raise ValueError(_validate.message(name, value, "numbers in [0, 1]", advice))
    return array


def like_input(values: Array, like: Array) -> float | Array:
    """Gives flat `values` the shape of `like`; a float where that is a scalar."""
    return float(values[0]) if like.ndim == 0 else values.reshape(like.shape)
