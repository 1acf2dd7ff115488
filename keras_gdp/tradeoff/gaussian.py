"""The Gaussian trade-off function `G_mu = T(N(0, 1), N(mu, 1))`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri, ndtri_exp

from keras_gdp import _gdp, _validate
from keras_gdp.tradeoff._arrays import Array
from keras_gdp.tradeoff._solve import Point
from keras_gdp.tradeoff.base import TradeOff
from keras_gdp.tradeoff.piecewise import PiecewiseLinear, identity, no_privacy

__all__ = ["Gaussian", "gaussian", "smallest_mu"]


def gaussian(mu: float) -> TradeOff:
    """`G_mu(alpha) = Phi(Phi^-1(1 - alpha) - mu)`, the curve of mu-GDP.

    Args:
        mu: distance of the two means in standard deviations, >= 0; `inf` is allowed.

    Returns:
        The trade-off function; `Id` for `mu = 0`.

    Raises:
        ValueError: if `mu` is negative or NaN.

    Example:
        >>> f = gaussian(1.0)
        >>> round(f(0.05), 6)
        0.740489
        >>> gaussian(3.0).compose(gaussian(4.0))
        gaussian(mu=5.0)
    """
    mu = _validate.non_negative("mu", mu, infinite=True)
    if mu == 0:
        return identity()
    if mu == np.inf:
        return no_privacy()
    return Gaussian(mu)


@dataclass(frozen=True, repr=False)
class Gaussian(TradeOff):
    """`G_mu` for `0 < mu < inf`; see `gaussian`."""

    mu: float

    def __repr__(self) -> str:
        return f"gaussian(mu={self.mu!r})"

    @property
    def is_symmetric(self) -> bool:
        """Always true."""
        return True

    def _point(self, t: Array) -> Point:
        # The loss log(q / p) is N(-mu^2/2, mu^2) under P and N(mu^2/2, mu^2) under Q.
        score, half = t / self.mu, self.mu / 2
        return Point(
            ndtr(-score - half),
            ndtr(score - half),
            ndtr(score + half),
            ndtr(half - score),
        )

    def _values(self, alpha: Array) -> Array:
        return np.asarray(ndtr(-ndtri(alpha) - self.mu))

    def _log_values(self, log_alpha: Array) -> Array:
        return np.asarray(log_ndtr(-ndtri_exp(log_alpha) - self.mu))

    def _delta(self, epsilon: Array) -> Array:
        return np.asarray(_gdp.delta_from_mu(epsilon, self.mu))

    def _epsilon(self, delta: Array) -> Array:
        return np.asarray(_gdp.epsilon_from_mu(delta, self.mu))

    def _reverse_delta(self, epsilon: Array) -> Array:
        return self._delta(epsilon)

    def _compose_closed(self, other: TradeOff) -> TradeOff | None:
        if isinstance(other, Gaussian):
            return Gaussian(float(np.hypot(self.mu, other.mu)))
        return None

    def _self_compose_closed(self, n: int) -> TradeOff | None:
        return Gaussian(float(self.mu * np.sqrt(n)))

    def group(self, k: int) -> TradeOff:
        """`G_{k mu}`."""
        return Gaussian(self.mu * _validate.count("k", k, minimum=1))

    def _renyi_closed(self, order: float) -> float | None:
        return order * self.mu**2 / 2


def smallest_mu(f: TradeOff) -> float:
    """Smallest `mu` with `G_mu <= f`; see `TradeOff.gaussian_mu`."""
    if isinstance(f, Gaussian):
        return f.mu
    end = np.array([np.inf])
    if f._delta(end)[0] > 0 or f._reverse_delta(end)[0] > 0:
        return np.inf
    if f == identity():
        return 0.0

    def mu_at(t: Array) -> Array:
        rates = f._point(t)
        # Scores from the smaller of each error and its complement.
        levels = zip(
            (rates.accept, rates.beta), (rates.alpha, rates.power), strict=True
        )
        scores = [np.where(low < 0.5, ndtri(low), -ndtri(high)) for low, high in levels]
        with np.errstate(invalid="ignore"):
            value = scores[0] - scores[1]
        return np.where(np.isfinite(value), value, -np.inf)

    if isinstance(f, PiecewiseLinear):
        between = (f._t[1:] + f._t[:-1]) / 2
        return max(0.0, float(mu_at(between).max(initial=-np.inf)))
    # An outermost loss is an atom or the end of the curve; stay on its inner side.
    least, most = f._loss_range()
    bounded = np.isfinite(least) and np.isfinite(most)
    inner = 1 - 4e-16
    low, high = (least * inner, most * inner) if bounded else (-60.0, 60.0)
    best = 0.0
    for _ in range(12):
        t = np.linspace(low, high, 241)
        values = mu_at(t)
        i = int(values.argmax())
        finite = np.flatnonzero(np.isfinite(values))
        if not bounded and i in (finite[0], finite[-1]):
            return np.inf  # still rising where doubles end: no bound was found
        best = max(best, float(values[i]))
        low, high = float(t[max(i - 2, 0)]), float(t[min(i + 2, 240)])
    return best * (1 + 1e-9)
