"""Sums of waves at equidistant frequencies, and complex functions near zero."""

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "ComplexArray", "expm1", "log1p", "wave_sums"]

Array = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]

_LEAST = 1e-300  # logarithms stay finite, and multiples of them
_AT_ONCE = 1024  # nodes whose waves fit into a cache
_NOTHING = 1e-22  # a million such weights are 1e-16 of one


def wave_sums(
    weight: Array, loss: Array, step: float, start: int, count: int
) -> ComplexArray:
    """Sums of weight exp(i step k L) over the nodes, k = start, start + 1, ...

    For all pairs of a coarse and a fine frequency that is one matrix product, and
    each of these waves is a product of two, so exponentials are few. Nodes whose
    weights, >= 0, are far below the rounding of the largest are left out.
    """
    matters = weight > _NOTHING * weight.max(initial=0.0)
    weight, loss = weight[matters], loss[matters]
    fine = math.isqrt(count - 1) + 1
    coarse = -(-count // fine)
    total = np.zeros((coarse, fine), dtype=np.complex128)
    for k in range(0, loss.size, _AT_ONCE):
        part = loss[k : k + _AT_ONCE]
        left = _waves(fine * step * part, coarse)
        left *= weight[k : k + _AT_ONCE] * np.exp(1j * (start * step) * part)
        total += left @ _waves(step * part, fine).T
    return total.ravel()[:count]


def _waves(phase: Array, count: int) -> ComplexArray:
    """exp(i k phase) in rows k = 0, ..., count - 1."""
    few = math.isqrt(count - 1) + 1
    many = -(-count // few)
    small, large = _powers(phase, few), _powers(few * phase, many)
    waves = large[:, None, :] * small
    return np.asarray(waves.reshape(few * many, phase.size)[:count])


def _powers(phase: Array, count: int) -> ComplexArray:
    """The same for a few, from one exponential: products take a tenth of its time."""
    waves = np.ones((count, phase.size), dtype=np.complex128)
    np.exp(1j * phase, out=waves[1:2])
    for k in range(2, count):
        np.multiply(waves[k // 2], waves[k - k // 2], out=waves[k])
    return waves


def log1p(z: ComplexArray) -> ComplexArray:
    """log(1 + z) accurate for small |z| (NumPy's is not), finite at z = -1."""
    x, y = z.real, z.imag
    with np.errstate(divide="ignore", invalid="ignore"):
        modulus = np.where(
            np.abs(z) < 0.5,
            0.5 * np.log1p(x * (2.0 + x) + y * y),
            np.log(np.maximum(np.abs(1.0 + z), _LEAST)),
        )
    return modulus + 1j * np.arctan2(y, 1.0 + x)


def expm1(z: ComplexArray) -> ComplexArray:
    """exp(z) - 1 accurate for small |z|."""
    x, y = z.real, z.imag
    half = np.sin(y / 2.0)
    real = np.expm1(x) * np.cos(y) - 2.0 * half * half
    return np.asarray(real + 1j * np.exp(x) * np.sin(y))
