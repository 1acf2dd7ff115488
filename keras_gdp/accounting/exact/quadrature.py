"""Where to put quadrature nodes on the line of a mixture's outcomes.

Integrands are the noise's density times a fade times exp((1 + s) L). They are
analytic in the strip |Im x| < pi/width of the mixtures' shifts and, for Gaussian
noise, trapezoid sums with step h are off by exp(-2 pi y/h) times what the integrand
grows to at a distance y from the line. High frequencies tau of s make it grow like
exp(tau |Im L(x + iy)|), which matters only where there is any mass, and so do fades:
where the loss hardly moves, a coarse step does at any frequency. A bound on the growth
gives a first step; if that takes many nodes the growth itself is looked at.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from keras_gdp.accounting.exact.moments import QuadratureTooLargeError
from keras_gdp.accounting.exact.waves import Array, ComplexArray

__all__ = [
    "Fading",
    "Integrand",
    "alive",
    "divided",
    "equidistant",
    "looks",
    "panels",
    "trapezoid",
]

_PANEL, _PANEL_WEIGHT = np.polynomial.legendre.leggauss(20)
_LOG_TINY = -60.0
_DIGITS = 50.0  # exp(-50): a tiny K keeps its relative accuracy
_FLAT = 10.0  # widths from a fade's centre to where it is exp(-50)
_FEW = 3000  # nodes that cost less than looking closer
_MOST = (3e6, 3e5)  # nodes at low frequencies, and at higher ones
_LOOKS = 250
_EXPONENTS = 17


class Fading(NamedTuple):
    """A factor Phi(side (x - centre)/width), side = -1 or 1."""

    centre: float
    width: float
    side: float


class Integrand(Protocol):
    """A mixture's weight under Q as far as the step depends on it."""

    width: float  # between the outermost shifts

    def log_size(self, x: Array) -> tuple[Array, Array]:
        """Log of the weight at x, and the loss there."""

    def slope(self, x: Array) -> Array:
        """Derivative of the loss."""

    def continued(self, x: Array, y: float) -> tuple[ComplexArray, ComplexArray]:
        """Log P and log Q over the noise at x + iy, less what they are at x."""


def _least(t: float) -> float:
    """The least of the exponents that quadratures up to t are used for."""
    return t / 4.0 if t > 1.0 else 0.0


def alive(log_size: Array, loss: Array, t: float) -> Array:
    """Log of the weight over its largest, at the exponent where that is most.

    Of those between t/4 and t: there quadratures for exponents up to t are used (see
    `Quadrature`). What matters in between need not matter at the ends.
    """
    s = np.linspace(_least(t), t, _EXPONENTS)
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


def trapezoid(
    integrand: Integrand,
    low: float,
    high: float,
    t: float,
    frequency: float,
    fades: Sequence[Fading] = (),
    trim: bool = False,
) -> tuple[Array, float]:
    """Nodes and step of a trapezoid sum under Gaussian noise that is exact to rounding.

    Args:
        integrand: What is summed.
        low: Where it begins to matter.
        high: Where it ends to matter.
        t: Exponents are at most t and, beyond 1, at least t/4.
        frequency: Largest imaginary part of an exponent.
        fades: What the integrand fades by.
        trim: Whether to leave out ends that matter at none of the exponents.

    Raises:
        QuadratureTooLargeError: If that takes too many nodes.
    """
    # Noise, fade and exp(t L) grow at most like exp(curvature y^2/2).
    width = integrand.width
    reach = math.sqrt(2.0 * _DIGITS)
    narrow = [
        fade**-2.0
        for centre, fade, side in fades
        if side * ((low if side > 0.0 else high) - centre) < reach + _FLAT * fade
    ]
    curvature = 1.0 + t * width**2 / 4.0 + max(narrow, default=0.0)
    most = min(0.85 * math.pi / width, reach)
    y = min(most, math.sqrt(2.0 * _DIGITS / curvature))
    rate = _DIGITS / y + curvature * y / 2.0 + frequency * width
    if (high - low) * rate > 2.0 * math.pi * _FEW:
        x = looks(low, high, fades)
        size = alive(*integrand.log_size(x), t)

        def needed(y: float) -> float:
            return (_DIGITS + _growth(integrand, x, y, t, frequency, fades, size)) / y

        start = y
        for factor in (2.0, 0.5):
            y = factor * start
            while y <= most and (better := needed(y)) < rate:
                y, rate = factor * y, better
        if trim:
            matters = np.flatnonzero(size > _LOG_TINY)
            low, high = x[max(matters[0] - 1, 0)], x[min(matters[-1] + 1, x.size - 1)]
    step = 2.0 * math.pi / rate
    if (high - low) / step > _MOST[frequency > 1.0]:
        raise QuadratureTooLargeError
    return equidistant(low, high, step), step


def _growth(
    integrand: Integrand,
    x: Array,
    y: float,
    t: float,
    frequency: float,
    fades: Sequence[Fading],
    size: Array,
) -> float:
    """Log of the integrand's size at x + iy over its largest on the line, or 0."""
    log_p, log_q = integrand.continued(x, y)
    loss = log_p - log_q
    # Not only at y but all the way there, where the mass ends.
    turn = np.maximum(np.abs(loss.imag), y * np.abs(integrand.slope(x)))
    grown = size + log_q.real + y * y / 2.0 + frequency * turn
    grown += np.maximum(t * loss.real, _least(t) * loss.real)
    for centre, width, side in fades:
        # To one side of its centre it is constant but for exp(-z^2/2).
        near = side * (x - centre) < y + _FLAT * width
        grown += np.where(near, 0.5 * (y / width) ** 2, 0.0)
    return max(float(grown.max()), 0.0)


def looks(low: float, high: float, fades: Sequence[Fading], more: int = 0) -> Array:
    """Points that show where a faded weight has its mass."""
    x = [np.linspace(low, high, _LOOKS + more)]
    for centre, width, _ in fades:
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
