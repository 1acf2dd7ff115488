"""The trade-off function of two shifted Laplace distributions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keras_gdp import _validate
from keras_gdp.tradeoff._arrays import Array
from keras_gdp.tradeoff._solve import Point
from keras_gdp.tradeoff.base import TradeOff
from keras_gdp.tradeoff.piecewise import identity, no_privacy

__all__ = ["Laplace", "laplace"]


def laplace(mu: float) -> TradeOff:
    """`T(Lap(0, 1), Lap(mu, 1))`: the Laplace mechanism at scale `sensitivity / mu`.

    Args:
        mu: distance of the two locations in units of the scale, >= 0.

    Returns:
        The trade-off function; `Id` for `mu = 0`.

    Raises:
        ValueError: if `mu` is negative or NaN.

    Example:
        >>> round(laplace(1.0)(0.3), 6)
        0.306566
    """
    mu = _validate.non_negative("mu", mu, infinite=True)
    if mu == 0:
        return identity()
    if mu == np.inf:
        return no_privacy()
    return Laplace(mu)


@dataclass(frozen=True, repr=False)
class Laplace(TradeOff):
    """Two Laplace distributions at distance `0 < mu < inf`; see `laplace`."""

    mu: float

    def __repr__(self) -> str:
        return f"laplace(mu={self.mu!r})"

    @property
    def is_symmetric(self) -> bool:
        """Always true."""
        return True

    def _point(self, t: Array) -> Point:
        # The loss 2x - mu of an x between the locations, cut off at -mu and mu.
        mu = self.mu
        inside = np.exp(-(np.clip(t, -mu, mu) + mu) / 2) / 2  # P(x > (t + mu) / 2)
        mirrored = np.exp((np.clip(t, -mu, mu) - mu) / 2) / 2
        below, above = t < -mu, t >= mu
        alpha = np.where(below, 1.0, np.where(above, 0.0, inside))
        accept = np.where(below, 0.0, np.where(above, 1.0, 1 - inside))
        beta = np.where(below, 0.0, np.where(above, 1.0, mirrored))
        power = np.where(below, 1.0, np.where(above, 0.0, 1 - mirrored))
        return Point(alpha, beta, accept, power)

    def _values(self, alpha: Array) -> Array:
        mu = self.mu
        edge = np.exp(-mu) / 2
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            steep = 1 - np.exp(mu + np.log(alpha))
            middle = np.exp(-mu) / (4 * alpha)
        flat = np.exp(-mu) * (1 - alpha)
        return np.where(alpha <= edge, steep, np.where(alpha <= 0.5, middle, flat))

    def _delta(self, epsilon: Array) -> Array:
        inner = -np.expm1(np.minimum((epsilon - self.mu) / 2, 0.0))
        with np.errstate(over="ignore"):
            return np.where(epsilon < -self.mu, -np.expm1(epsilon), inner)

    def _loss_range(self) -> tuple[float, float]:
        return -self.mu, self.mu

    def _reverse_delta(self, epsilon: Array) -> Array:
        return self._delta(epsilon)
