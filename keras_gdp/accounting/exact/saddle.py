"""Saddle points: where on the real axis the inversion integrand is smallest.

For c > 0 the integrand exp(K(s) - s epsilon) / (s (s + 1)) on Re s = c is dominated
by its real point. With c at the minimum of

    psi(c) = K(c) - c epsilon - log c - log(1 + c)

it falls off at once in both directions, and exp(psi)/sqrt(2 pi psi'') is already a
few-per-cent estimate of delta.
"""

import math
from typing import NamedTuple

from keras_gdp.accounting.exact.composition import Composition

__all__ = ["Saddle", "chernoff", "saddle_for_delta", "saddle_for_epsilon"]

_LARGEST = 1e7


class Saddle(NamedTuple):
    """Abscissa, its epsilon, a rough log delta, and psi''."""

    c: float
    epsilon: float
    log_delta: float
    curvature: float


def _at(composition: Composition, c: float) -> Saddle:
    """The saddle at abscissa c, with the epsilon that it belongs to."""
    k0, k1, k2 = composition.real(c)
    epsilon = k1 - 1.0 / c - 1.0 / (1.0 + c)
    curvature = k2 + c**-2.0 + (1.0 + c) ** -2.0
    log_delta = k0 - c * epsilon - math.log(c) - math.log1p(c)
    log_delta -= 0.5 * math.log(2.0 * math.pi * curvature)
    return Saddle(c, epsilon, log_delta, curvature)


def _scale(composition: Composition) -> float:
    """A first abscissa: one over the loss's standard deviation, roughly."""
    variance = composition.real(0.5)[2]
    return min(max(1.0 / math.sqrt(max(variance, 1e-20)), 1e-6), 1e6)


def saddle_for_epsilon(composition: Composition, epsilon: float) -> Saddle:
    """Saddle at a given epsilon; c is capped where delta is 0 for all purposes."""
    low = high = math.log(_scale(composition))
    while _at(composition, math.exp(high)).epsilon < epsilon:
        low, high = high, high + 1.0
        if math.exp(high) > _LARGEST:
            return _at(composition, _LARGEST)._replace(epsilon=epsilon)
    while low > -40.0 and _at(composition, math.exp(low)).epsilon > epsilon:
        low, high = low - 1.0, low
    best = _bisect(composition, low, high, lambda point: point.epsilon < epsilon)
    k0 = composition.real(best.c)[0]
    log_delta = k0 - best.c * epsilon - math.log(best.c) - math.log1p(best.c)
    log_delta -= 0.5 * math.log(2.0 * math.pi * best.curvature)
    return best._replace(epsilon=epsilon, log_delta=log_delta)


def saddle_for_delta(composition: Composition, log_delta: float) -> Saddle:
    """Saddle whose rough delta is the given one."""
    low = high = math.log(_scale(composition))
    while _at(composition, math.exp(high)).log_delta > log_delta:
        low, high = high, high + 1.0
        if math.exp(high) > _LARGEST:
            return _at(composition, _LARGEST)
    while low > -40.0 and _at(composition, math.exp(low)).log_delta < log_delta:
        low, high = low - 1.0, low
    return _bisect(composition, low, high, lambda point: point.log_delta > log_delta)


def _bisect(composition, low, high, is_left):  # type: ignore[no-untyped-def]
    """Halves [low, high] (log c); a per cent is plenty, the saddle is flat."""
    while high - low > 0.03:
        middle = 0.5 * (low + high)
        if is_left(_at(composition, math.exp(middle))):
            low = middle
        else:
            high = middle
    return _at(composition, math.exp(0.5 * (low + high)))


def chernoff(composition: Composition, c: float, epsilon: float) -> float:
    """Logarithm of an upper bound on delta(epsilon) - delta(inf), for any c > 0.

    (1 - exp(-x))_+ <= kappa exp(c x) with kappa = c^c / (1 + c)^(1 + c).
    """
    return composition.real(c)[0] - c * epsilon + log_kappa(c)


def log_kappa(c: float) -> float:
    """Log of c^c / (1 + c)^(1 + c)."""
    return -c * math.log1p(1.0 / c) - math.log1p(c)
