"""Composition on a lattice of privacy losses, always from below.

A trade-off function is replaced by the highest function below it that consists of
lines with log-slopes `k h`: the loss then only takes the values `k h`. Composition is
monotone, so composing these gives a function below the true composition. Replacing
leaves the mean of the loss as it is and adds at most `h^2 / 4` to its variance.
"""

from __future__ import annotations

import numpy as np

from keras_gdp.tradeoff._arrays import Array
from keras_gdp.tradeoff._solve import crossing
from keras_gdp.tradeoff.base import TradeOff
from keras_gdp.tradeoff.piecewise import PiecewiseLinear, below

__all__ = ["lattice_composition", "loss_reach"]

Factors = tuple[tuple[TradeOff, int], ...]

# Probability that may be cut off at each end, and bound on the round-off of the
# transforms: it is counted as outcomes that give the data set away.
_CUT = 1e-15
_ROUND_OFF = 1e-13


def lattice_composition(factors: Factors, coarsening: int = 1) -> PiecewiseLinear:
    """A piecewise linear function below the composition of `factors`.

    Args:
        factors: pairs of a trade-off function and how often it occurs.
        coarsening: factor by which to widen the lattice.

    Returns:
        The lower bound; its distance from the truth is of second order in the step.
    """
    total = sum(n for _, n in factors)
    size = 2**18 if total <= 64 else 2**20
    reach = [loss_reach(f, total) for f, _ in factors]
    low, high = _window(factors, reach)
    step = coarsening * (high - low) / (size - 4)
    while True:
        points = [
            _points(f, *ends, step, coarsening)
            for (f, _), ends in zip(factors, reach, strict=True)
        ]
        # Rounding to the lattice widens bounded losses; nothing may wrap around.
        least = sum(n * k[0] for (_, n), k in zip(factors, points, strict=True))
        most = sum(n * k[-1] for (_, n), k in zip(factors, points, strict=True))
        start = int(max(np.floor(low / step) - 1, least))
        stop = int(min(np.ceil(high / step) + 1, most))
        if stop - start < size:
            break
        step *= 1.001 * (stop - start + 1) / size
    transform_p = np.ones(size // 2 + 1, dtype=np.complex128)
    transform_q = np.ones_like(transform_p)
    for (f, n), k in zip(factors, points, strict=True):
        on_lattice = below(f, step * k)
        index = np.rint(on_lattice._t / step).astype(np.int64) % size
        for transform, mass in (
            (transform_p, on_lattice._p),
            (transform_q, on_lattice._q),
        ):
            pmf = np.bincount(index, weights=mass, minlength=size)
            transform *= np.fft.rfft(pmf) ** n
    k = np.arange(start, stop + 1)
    p = np.fft.irfft(transform_p, size)[k % size]
    q = np.fft.irfft(transform_q, size)[k % size]
    t = step * k
    # Each transform is exact relative to the larger of the two masses only.
    positive = t > 0
    with np.errstate(over="ignore"):
        p = np.where(positive, q * np.exp(-np.abs(t)), p)
        q = np.where(positive, q, p * np.exp(-np.abs(t)))
    p, q = np.maximum(p, 0.0), np.maximum(q, 0.0)
    keep = (1.0 - _ROUND_OFF) / max(1.0, p.sum(), q.sum())
    p, q = keep * p, keep * q
    return PiecewiseLinear(p, q, 1.0 - float(p.sum()), 1.0 - float(q.sum()), t)


def _points(
    f: TradeOff, first: float, last: float, step: float, coarsening: int
) -> Array:
    """Indices of the lattice points from `first` to `last`.

    Where supporting lines are expensive only every m-th point is taken.
    """
    most = max(64, f._most_thresholds // coarsening)
    m = max(1, int(np.ceil((last - first) / step / most)))
    k = m * np.arange(np.floor(first / step / m), np.ceil(last / step / m) + 1)
    return k if k.size > 1 else np.array([k[0] - 1, k[0], k[0] + 1])


def loss_reach(f: TradeOff, total: int) -> tuple[float, float]:
    """Losses beyond which `f` has nothing worth a place on the lattice."""
    ends = np.array([np.inf])
    lost_q, lost_p = f._delta(ends), f._reverse_delta(ends)
    # Below this the difference of two profiles is rounding.
    target = np.array([max(_CUT / total, 3e-17)])
    high = crossing(lambda t: f._delta(t) - lost_q, target)[0]
    low = -crossing(lambda t: f._reverse_delta(t) - lost_p, target)[0]
    least, most = f._loss_range()
    return max(float(low), least), min(float(high), most)


def _window(factors: Factors, reach: list[tuple[float, float]]) -> tuple[float, float]:
    """Range of the total loss, by Chernoff's bound on a coarse lattice."""
    exponents = np.geomspace(1e-3, 1e4, 141)
    upper = np.zeros_like(exponents)
    lower = np.zeros_like(exponents)
    for (f, n), (first, last) in zip(factors, reach, strict=True):
        width = max(last - first, 1e-6)
        ends = first - 1e-3 * width, last + 1e-3 * width
        coarse = below(f, np.linspace(*ends, 1025))
        upper += n * _log_moment(coarse._t, coarse._q, exponents)
        lower += n * _log_moment(-coarse._t, coarse._p, exponents)
    slack = -np.log(_CUT)
    high = float(((upper + slack) / exponents).min())
    low = -float(((lower + slack) / exponents).min())
    return low, high


def _log_moment(loss: Array, mass: Array, exponents: Array) -> Array:
    with np.errstate(divide="ignore"):
        exponent = np.multiply.outer(exponents, loss) + np.log(mass)
    peak = exponent.max(axis=1)
    total = np.exp(exponent - peak[:, None]).sum(axis=1)
    return np.asarray(peak + np.log(total))
