"""Amplification by Poisson sampling: `f_p = p f + (1 - p) Id`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keras_gdp.tradeoff._arrays import Array
from keras_gdp.tradeoff._solve import Point
from keras_gdp.tradeoff.base import TradeOff
from keras_gdp.tradeoff.piecewise import PiecewiseLinear, identity

__all__ = ["PoissonSubsampled", "poisson_subsample"]


def poisson_subsample(f: TradeOff, p: float) -> TradeOff:
    """`T(P, (1 - p) P + p Q)` for `f = T(P, Q)`, with `0 <= p <= 1`."""
    if p == 0:
        return identity()
    if p == 1:
        return f
    if isinstance(f, PoissonSubsampled):
        return PoissonSubsampled(f.f, f.p * p)
    if isinstance(f, PiecewiseLinear):
        return _piecewise(f, p)
    return PoissonSubsampled(f, p)


def _piecewise(f: PiecewiseLinear, p: float) -> PiecewiseLinear:
    # Outcomes that ruled Q out now only have the likelihood ratio 1 - p.
    mass_p = np.append(f._p, f._p_only)
    mass_q = np.append(p * f._q + (1 - p) * f._p, (1 - p) * f._p_only)
    with np.errstate(over="ignore"):
        slopes = np.logaddexp(np.log1p(-p), np.log(p) + f._t)
    slopes = np.where(f._t == 0, 0.0, slopes)
    log_slopes = np.append(slopes, np.log1p(-p))
    sampled = PiecewiseLinear(mass_p, mass_q, 0.0, p * f._q_only, log_slopes)
    return sampled._renamed(f"{f!r}.subsample(p={p!r})")


@dataclass(frozen=True, repr=False)
class PoissonSubsampled(TradeOff):
    """`p f + (1 - p) Id` with `0 < p < 1`; see `TradeOff.subsample`."""

    f: TradeOff
    p: float

    def __repr__(self) -> str:
        return f"{self.f!r}.subsample(p={self.p!r})"

    @property
    def accuracy(self) -> float:
        """The original's, times p."""
        return self.p * self.f.accuracy

    def _original(self, t: Array) -> Array:
        """Threshold `log(1 + (exp(t) - 1) / p)` of the unsampled mechanism."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            small = np.log1p(np.maximum(np.expm1(np.minimum(t, 1.0)) / self.p, -1.0))
            # exp(t) - (1 - p) without overflow.
            large = t - np.log(self.p) + np.log1p(-(1 - self.p) * np.exp(-t))
        return np.where(t < 1, small, large)

    def _point(self, t: Array) -> Point:
        p = self.p
        rates = self.f._point(self._original(t))
        reject = rates.alpha
        accept = rates.accept
        # Below log(1 - p) there are no likelihood ratios: everything is rejected.
        none = t < np.log1p(-p)
        return Point(
            np.where(none, 1.0, reject),
            np.where(none, 0.0, p * rates.beta + (1 - p) * accept),
            np.where(none, 0.0, accept),
            np.where(none, 1.0, p * rates.power + (1 - p) * reject),
        )

    def _values(self, alpha: Array) -> Array:
        return self.p * self.f._values(alpha) + (1 - self.p) * (1 - alpha)

    @property
    def _most_thresholds(self) -> int:
        return self.f._most_thresholds

    def _loss_range(self) -> tuple[float, float]:
        low, high = np.logaddexp(
            np.log1p(-self.p), np.log(self.p) + np.array(self.f._loss_range())
        )
        return float(low), float(high)

    def _delta(self, epsilon: Array) -> Array:
        with np.errstate(over="ignore"):
            below = -np.expm1(epsilon)
        inside = epsilon > np.log1p(-self.p)
        amplified = self.p * self.f._delta(self._original(epsilon))
        return np.where(inside, amplified, below)

    def _reverse_delta(self, epsilon: Array) -> Array:
        # weight = 1 - exp(epsilon) (1 - p), what P has left over; epsilon' =
        # log(exp(epsilon) p / weight) is the threshold of the unsampled mechanism.
        edge = -np.log1p(-self.p)
        weight = -np.expm1(np.minimum(epsilon - edge, 0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            inner = epsilon + np.log(self.p) - np.log(weight)
        inner = np.where(weight > 0, inner, np.inf)
        return np.where(weight > 0, weight * self.f._reverse_delta(inner), 0.0)
