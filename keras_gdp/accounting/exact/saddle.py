"""Saddle points: where on the real axis the inversion integrand is smallest.

For c > 0 the integrand exp(K(s) - s epsilon) / (s (s + 1)) on Re s = c is dominated
by its real point. With c at the minimum of

    psi(c) = K(c) - c epsilon - log c - log(1 + c)

it falls off at once in both directions, and exp(psi)/sqrt(2 pi psi'') is already a
few-per-cent estimate of delta.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from keras_gdp.accounting.exact.composition import Cumulant

__all__ = [
    "Saddle",
    "chernoff",
    "log_kappa",
    "saddle_at",
    "saddle_for_delta",
    "saddle_for_epsilon",
    "saddle_from",
]


class Saddle(NamedTuple):
    """Abscissa, its epsilon, a rough log delta, and psi''."""

    c: float
    epsilon: float
    log_delta: float
    curvature: float


def _at(composition: Cumulant, c: float) -> Saddle:
    """The saddle at abscissa c, with the epsilon that it belongs to."""
    k0, k1, k2 = composition.real(c)
    epsilon = k1 - 1.0 / c - 1.0 / (1.0 + c)
    curvature = k2 + c**-2.0 + (1.0 + c) ** -2.0
    log_delta = k0 - c * epsilon - math.log(c) - math.log1p(c)
    log_delta -= 0.5 * math.log(2.0 * math.pi * curvature)
    return Saddle(c, epsilon, log_delta, curvature)


def _scale(composition: Cumulant) -> float:
    """A first abscissa: one over the loss's standard deviation, roughly."""
    variance = composition.real(0.5)[2]
    scale = 1.0 / math.sqrt(max(variance, 1e-20))
    return min(max(scale, 1e-6), composition.largest_order / 3.0)


def saddle_for_epsilon(
    composition: Cumulant, epsilon: float, start: float = 0.0, enough: float = -math.inf
) -> Saddle:
    """Saddle at a given epsilon; c is capped where delta is 0 for all purposes.

    Args:
        composition: One direction of a composition, or a part of it.
        epsilon: Any real number.
        start: A first guess of c, 0 for none.
        enough: An abscissa with Chernoff's bound below it will do as well.
    """

    def gap(point: Saddle) -> tuple[float, float, float]:
        if chernoff(composition, point.c, epsilon) < enough:
            return 0.0, 1.0, 0.0
        tolerance = 0.1 * math.sqrt(point.curvature)  # 0.005 in psi
        return point.epsilon - epsilon, point.c * point.curvature, tolerance

    point = _newton(composition, start or _scale(composition), gap)
    return _at_epsilon(point, epsilon)


def saddle_for_delta(composition: Cumulant, log_delta: float) -> Saddle:
    """Saddle whose rough delta is the given one."""

    def gap(point: Saddle) -> tuple[float, float, float]:
        slope = point.c * point.c * point.curvature
        return log_delta - point.log_delta, slope + 0.5, 0.05

    return _newton(composition, 3.0 * _scale(composition), gap)


def _newton(
    composition: Cumulant,
    start: float,
    gap: Callable[[Saddle], tuple[float, float, float]],
) -> Saddle:
    """Root of an increasing gap in log c, roughly: the saddle is flat.

    `gap` returns its value, its slope in log c, and the tolerance.
    """
    low, high = math.log(1e-12), math.log(composition.largest_order)
    y = min(math.log(start), high)
    for trial in range(100):
        point = _at(composition, math.exp(y))
        value, slope, tolerance = gap(point)
        if value < 0.0:
            low = y
        else:
            high = y
        if abs(value) <= tolerance or high - low < 1e-13:
            break
        y = y + min(max(-value / slope, -2.0), 2.0)
        if not low < y < high or trial > 12:
            y = 0.5 * (low + high)
    return point


def _at_epsilon(point: Saddle, epsilon: float) -> Saddle:
    """The point used for an epsilon that is only nearly its own."""
    log_delta = point.log_delta + point.c * (point.epsilon - epsilon)
    return point._replace(epsilon=epsilon, log_delta=log_delta)


def saddle_at(composition: Cumulant, c: float, near: Saddle) -> Saddle:
    """Another abscissa for the epsilon and log delta of a saddle."""
    point = _at(composition, c)
    return point._replace(epsilon=near.epsilon, log_delta=near.log_delta)


def saddle_from(composition: Cumulant, c: float, epsilon: float) -> Saddle:
    """Another abscissa for an epsilon, with the log of how large the integral gets."""
    return _at_epsilon(_at(composition, c), epsilon)


def chernoff(composition: Cumulant, c: float, epsilon: float) -> float:
    """Logarithm of an upper bound on delta(epsilon) - delta(inf), for any c > 0.

    (1 - exp(-x))_+ <= kappa exp(c x) with kappa = c^c / (1 + c)^(1 + c).
    """
    return composition.real(c)[0] - c * epsilon + log_kappa(c)


def log_kappa(c: float) -> float:
    """Log of c^c / (1 + c)^(1 + c)."""
    return -c * math.log1p(1.0 / c) - math.log1p(c)
