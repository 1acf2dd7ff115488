"""Where to put quadrature nodes on the line of a mixture's outcomes.

Integrands are the noise's density times a fade times exp((1 + s) L). They are
analytic in the strip |Im x| < pi/width of the mixtures' shifts and, for Gaussian
noise, trapezoid sums with step h are off by exp(-2 pi y/h) times what the integrand
grows to at a distance y from the line. High frequencies tau of s make it grow like
exp(tau |Im L(x + iy)|), which matters only where there is any mass: where the loss
hardly moves, a coarse step does at any frequency.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from keras_gdp.accounting.exact.waves import Array

__all__ = [
    "Integrand",
    "alive",
    "divided",
    "equidistant",
    "looks",
    "panels",
    "trapezoid_step",
]

_PANEL, _PANEL_WEIGHT = np.polynomial.legendre.leggauss(20)
_DIGITS = 50.0  # exp(-50): a tiny K keeps its relative accuracy
_STRIPS = (1.0, 0.5, 0.25, 0.12, 0.06)
_LOOKS = 250
_EXPONENTS = 17


class Integrand(Protocol):
    """A mixture's weight under Q as far as the step depends on it."""

    width: float  # between the outermost shifts

    def log_size(self, x: Array) -> tuple[Array, Array]:
        """Log of the weight at x, and the loss there."""

    def turn(self, x: Array, y: float) -> Array:
        """The imaginary part of the loss at x + iy."""


def alive(log_size: Array, loss: Array, t: float) -> Array:
    """Log of the weight over its largest, at the exponent where that is most.

    Of those between t/2 and t: there quadratures for exponents up to t are used (see
    `Quadrature`). What matters in between need not matter at the ends.
    """
    s = np.linspace(t / 2.0 if t > 1.0 else 0.0, t, _EXPONENTS)
    tilted = log_size + s[:, None] * loss
    largest, slope = tilted.max(axis=1), loss[tilted.argmax(axis=1)]
    # The largest is convex in s: between two exponents it is above both tangents.
    rise = np.diff(slope)
    origin = largest - slope * s
    meet = np.divide(-np.diff(origin), rise, out=s[1:].copy(), where=rise > 0.0)
    least = origin[:-1] + slope[:-1] * meet
    tilted = log_size + np.append(s, meet)[:, None] * loss
    tilted -= np.append(largest, least)[:, None]
    return np.asarray(np.minimum(tilted.max(axis=0), 0.0))


def trapezoid_step(
    integrand: Integrand,
    x: Array,
    t: float,
    frequency: float,
    fade_width: float = math.inf,
) -> float:
    """Step of a trapezoid sum under Gaussian noise that is exact to rounding.

    Args:
        integrand: What is summed.
        x: Points that show where its mass is.
        t: Exponents are at most t and, beyond 1, at least t/2.
        frequency: Largest imaginary part of an exponent.
        fade_width: Width of the narrowest fade.
    """
    # Noise, fade and exp(t L) grow at most like exp(curvature y^2/2).
    width = integrand.width
    curvature = 1.0 + t * width**2 / 4.0 + fade_width**-2.0
    strip = min(0.85 * math.pi / width, math.sqrt(2.0 * _DIGITS / curvature))
    rate: float = _DIGITS / strip + curvature * strip / 2.0 + frequency * width
    if frequency > 1.0:
        size = alive(*integrand.log_size(x), t)
        near = size > -frequency * width * strip
        x, size = x[near], size[near]
        for share in _STRIPS:
            y = share * strip
            turn = frequency * np.abs(integrand.turn(x, y)) + size
            grown = max(float(turn.max()), 0.0) + curvature * y * y / 2.0
            if (_DIGITS + grown) / y > rate:
                break
            rate = (_DIGITS + grown) / y
    return float(2.0 * math.pi / rate)


def looks(low: float, high: float, fades: Sequence[tuple[float, float]]) -> Array:
    """Points that show where a faded weight has its mass."""
    x = [np.linspace(low, high, _LOOKS)]
    for centre, width in fades:
        near = centre + width * np.linspace(-14.0, 14.0, 71)
        x.append(near[(near > low) & (near < high)])
    return np.sort(np.concatenate(x))


def equidistant(low: float, high: float, step: float) -> Array:
    """Points whose distance is the step itself, not the rounded one of np.arange."""
    return np.asarray(low + step * np.arange(math.ceil((high - low) / step)))


def panels(cuts: Array) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and log weights on consecutive panels."""
    half = np.diff(cuts) / 2.0
    x = (cuts[:-1] + half)[:, None] + half[:, None] * _PANEL
    weight = half[:, None] * _PANEL_WEIGHT
    return x.ravel(), np.log(weight).ravel()


def divided(cuts: Array, parts: NDArray[np.int64]) -> Array:
    """Each panel cut into so many equal parts."""
    index = np.repeat(np.arange(parts.size), parts)
    first = np.concatenate([[0], np.cumsum(parts)[:-1]])
    share = (np.arange(index.size) - first[index]) / parts[index]
    inner = cuts[index] + share * np.diff(cuts)[index]
    return np.append(inner, cuts[-1])
