"""Two normal distributions of different variance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from keras_gdp.tradeoff._arrays import Array
from keras_gdp.tradeoff._solve import Point
from keras_gdp.tradeoff.base import TradeOff
from keras_gdp.tradeoff.gaussian import gaussian

__all__ = ["gaussian_pair"]


def gaussian_pair(m0: float, s0: float, m1: float, s1: float) -> TradeOff:
    """`T(N(m0, s0^2), N(m1, s1^2))`."""
    if abs(s1 / s0 - 1) < 1e-9:
        return gaussian(abs(m1 - m0) / s0)
    return GaussianPair((m1 - m0) / s0, s1 / s0)


@dataclass(frozen=True, repr=False)
class GaussianPair(TradeOff):
    """`T(N(0, 1), N(shift, scale^2))`: the loss is a parabola around `center`."""

    shift: float
    scale: float

    def __repr__(self) -> str:
        return f"T(N(0, 1), N({self.shift!r}, {self.scale!r}^2))"

    def _point(self, t: Array) -> Point:
        m, s = self.shift, self.scale
        center = -m / (s**2 - 1)
        # log(q / p) = top + curve (x - center)^2, with its extremum at the center.
        curve = (1 - 1 / s**2) / 2
        top = -np.log(s) - m**2 / (2 * (s**2 - 1))
        radius = np.sqrt(np.maximum((t - top) / curve, 0.0))
        inside_p, outside_p = _inside(center, radius, 0.0, 1.0)
        inside_q, outside_q = _inside(center, radius, m, s)
        if s > 1:
            return Point(outside_p, inside_q, inside_p, outside_q)
        return Point(inside_p, outside_q, outside_p, inside_q)

    def inverse(self) -> TradeOff:
        """The pair with the roles exchanged."""
        return GaussianPair(-self.shift / self.scale, 1 / self.scale)


def _inside(
    center: float, radius: Array, mean: float, stddev: float
) -> tuple[Array, Array]:
    """Probabilities of `|x - center| < radius` and of the complement."""
    low = (center - radius - mean) / stddev
    high = (center + radius - mean) / stddev
    mirrored = low > 0
    inside = np.where(mirrored, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
    return inside, ndtr(low) + ndtr(-high)
