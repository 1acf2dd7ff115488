"""Checks of array arguments and the array type that the package computes with."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Array", "finite_or_infinite", "like_input", "probabilities"]

# Floats almost everywhere; the element type of NumPy's results is hard to follow.
Array: TypeAlias = NDArray[Any]


def finite_or_infinite(name: str, value: ArrayLike) -> Array:
    """Returns `value` as a float array; infinities pass, NaN does not."""
    array = np.asarray(value, dtype=np.float64)
    if np.isnan(array).any():
        raise ValueError(
            f"Argument `{name}` must hold numbers, not NaN. Received: {name}={value!r}."
        )
    return array


def probabilities(name: str, value: ArrayLike) -> Array:
    """Returns `value` as a float array with all entries in [0, 1]."""
    array = finite_or_infinite(name, value)
    if ((array < 0) | (array > 1)).any():
        raise ValueError(
            f"Argument `{name}` must hold numbers in [0, 1]. "
            f"Received: {name}={value!r}."
        )
    return array


def like_input(values: Array, like: Array) -> float | Array:
    """Gives flat `values` the shape of `like`; a float where that is a scalar."""
    return float(values[0]) if like.ndim == 0 else values.reshape(like.shape)
