"""Privacy of groups: data sets that differ in several records."""

from __future__ import annotations

import numpy as np

from keras_gdp.tradeoff._arrays import Array
from keras_gdp.tradeoff.base import TradeOff
from keras_gdp.tradeoff.lattice import loss_reach
from keras_gdp.tradeoff.piecewise import PiecewiseLinear, below, from_points

__all__ = ["group"]


def group(f: TradeOff, k: int) -> TradeOff:
    """`1 - (1 - f)` iterated `k` times.

    Args:
        f: trade-off function for one record.
        k: number of records, >= 1.

    Returns:
        For piecewise linear `f` the exact function; otherwise that of a piecewise
        linear function below `f`, with its distance from the truth in `accuracy`.

    References:
        Dong, Roth and Su, "Gaussian Differential Privacy", Theorem 2.14.
    """
    if k == 1:
        return f
    if isinstance(f, PiecewiseLinear):
        return _piecewise(f, k)
    low, high = loss_reach(f, 1)
    result = _piecewise(below(f, np.linspace(low, high, 4097)), k)
    alpha = np.linspace(0.0, 1.0, 1001)
    gap = _iterate(f, k, alpha) - result(alpha)
    result._accuracy = float(2 * np.abs(gap).max()) + f.accuracy * k
    return result


def _iterate(f: TradeOff, k: int, alpha: Array) -> Array:
    for _ in range(k):
        alpha = 1.0 - np.asarray(f(np.clip(alpha, 0.0, 1.0)))
    return 1.0 - alpha


def _piecewise(f: PiecewiseLinear, k: int) -> PiecewiseLinear:
    alpha, beta = f.vertices
    power = 1.0 - beta
    # A kink of the iterate is a level that some number of iterations maps to a kink.
    kinks = alpha
    current = alpha
    for _ in range(k - 1):
        current = current[current >= power[0]]
        current = np.interp(current, power, alpha)
        kinks = np.concatenate([kinks, current])
    kinks = np.unique(kinks)
    result = from_points(kinks, np.clip(_iterate(f, k, kinks), 0.0, 1.0))
    return result._renamed(f"{f!r}.group({k})")
