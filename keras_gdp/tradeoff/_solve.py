"""Evaluation of a trade-off function from its supporting lines.

A trade-off function is convex, so the lines that support it lie below it and the
chords between its points lie above. Both are at hand for every threshold of the
likelihood ratio. Closing in on an error level from both sides therefore encloses the
value; the lower end of the enclosure is what is reported.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_gdp.tradeoff._arrays import Array

__all__ = ["Point", "crossing", "lower_values", "supporting_line"]

# Thresholds beyond exp(2 ** 40) separate no distributions that doubles can hold.
_LARGEST_THRESHOLD = 2.0**40


class Point(NamedTuple):
    """Error rates of the test that rejects where `log(q / p)` exceeds a threshold.

    Complements are kept beside the error rates because `1 - x` has no correct digits
    when `x` is within 1e-16 of 1.
    """

    alpha: Array  # P(reject)
    beta: Array  # Q(accept)
    accept: Array  # P(accept) = 1 - alpha
    power: Array  # Q(reject) = 1 - beta


def supporting_line(t: Array, point: Point, alpha: Array) -> Array:
    """Height at `alpha` of the line of slope `-exp(t)` through `point`."""
    offset = np.where(alpha > 0.5, (1 - alpha) - point.accept, point.alpha - alpha)
    with np.errstate(divide="ignore"):
        size = np.log(np.abs(offset))
    with np.errstate(invalid="ignore"):
        exponent = np.where(offset == 0, -np.inf, t + size)
    height = np.sign(offset) * np.exp(np.minimum(exponent, 700.0))
    return np.asarray(point.beta + height)


def _chord_threshold(lower: Point, upper: Point) -> Array:
    """Logarithm of the steepness of the chord between two points."""
    fall = np.where(
        upper.beta < 0.5, upper.beta - lower.beta, lower.power - upper.power
    )
    run = np.where(
        lower.alpha < 0.5, lower.alpha - upper.alpha, upper.accept - lower.accept
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(fall) - np.log(run)


def _pick(point: Point, index: Array) -> Point:
    return Point(*(part[index] for part in point))


def _store(target: Point, index: Array, source: Point) -> None:
    for old, new in zip(target, source, strict=True):
        old[index] = new


def lower_values(
    point: Callable[[Array], Point], alpha: Array, *, tolerance: float = 1e-14
) -> Array:
    """Evaluates a trade-off function from below.

    Args:
        point: maps log-thresholds (infinities included) to points of the graph at
            which a line of slope `-exp(threshold)` supports it.
        alpha: type I errors, flat.
        tolerance: width of the enclosure, relative to the value, at which to stop.

    Returns:
        For each error level the highest supporting line found: never above the true
        value but for rounding.
    """
    ends = point(np.array([-np.inf, np.inf]))
    best = np.where(alpha <= 0, ends.beta[1], 0.0)
    todo = np.flatnonzero((alpha > 0) & (alpha < ends.alpha[0]))
    if todo.size == 0:
        return best
    level = alpha[todo]
    low, high = np.full(todo.size, -1.0), np.full(todo.size, 1.0)
    at_low = Point(*(np.array(part) for part in point(low)))
    at_high = Point(*(np.array(part) for part in point(high)))
    for side, rates, sign in ((low, at_low, 1.0), (high, at_high, -1.0)):
        while True:
            beyond = sign * (level - rates.alpha) > 0
            index = np.flatnonzero(beyond & (np.abs(side) < _LARGEST_THRESHOLD))
            if index.size == 0:
                break
            side[index] *= 2
            _store(rates, index, point(side[index]))

    value = np.zeros(todo.size)
    active = np.arange(todo.size)
    for iteration in range(200):
        lo, hi, a = low[active], high[active], level[active]
        p_lo, p_hi = _pick(at_low, active), _pick(at_high, active)
        value[active] = np.maximum(
            value[active],
            np.maximum(supporting_line(lo, p_lo, a), supporting_line(hi, p_hi, a)),
        )
        chord = _chord_threshold(p_lo, p_hi)
        with np.errstate(invalid="ignore"):
            ceiling = np.where(
                np.isfinite(chord), supporting_line(chord, p_lo, a), p_lo.beta
            )
        # On a kink both ends of the bracket are the vertex itself.
        ceiling = np.where(p_lo.alpha == p_hi.alpha, value[active], ceiling)
        middle = 0.5 * (lo + hi)
        running = (
            (ceiling - value[active] > tolerance * value[active])
            & (middle > lo)
            & (middle < hi)
        )
        if not running.any():
            break
        keep = np.flatnonzero(running)
        active, lo, hi, a = active[keep], lo[keep], hi[keep], a[keep]
        p_lo, p_hi = _pick(p_lo, keep), _pick(p_hi, keep)
        middle = middle[keep]
        if iteration % 3 == 0:
            trial = chord[keep]
        elif iteration % 3 == 1:
            with np.errstate(divide="ignore", invalid="ignore"):
                over, under = np.log(p_lo.alpha / a), np.log(p_hi.alpha / a)
                trial = lo + (hi - lo) * (over / (over - under))
        else:
            trial = middle
        with np.errstate(invalid="ignore"):
            trial = np.where((trial > lo) & (trial < hi), trial, middle)
        rates = point(trial)
        above = rates.alpha >= a
        low[active] = np.where(above, trial, lo)
        high[active] = np.where(above, hi, trial)
        _store(at_low, active[above], _pick(rates, above))
        _store(at_high, active[~above], _pick(rates, ~above))
    best[todo] = value
    return best


def crossing(function: Callable[[Array], Array], target: Array) -> Array:
    """Smallest `x >= 0` with `function(x) <= target`, for a decreasing function.

    Args:
        function: decreasing on `[0, inf)`, vectorised.
        target: positive levels, flat.

    Returns:
        The upper end of the last bracket (2e-13 wide, relative), so that `function` is
        at most `target` there; 0 where `function(0) <= target`; `inf` where the level
        is not reached.
    """
    low = np.zeros_like(target)
    at_low = function(low)
    found = at_low <= target
    high = np.ones_like(target)
    at_high = function(high)
    while True:
        index = np.flatnonzero(~found & (at_high > target) & (high < 2.0**40))
        if index.size == 0:
            break
        low[index], at_low[index] = high[index], at_high[index]
        high[index] *= 2
        at_high[index] = function(high[index])
    never = ~found & (at_high > target)
    active = np.flatnonzero(~found & ~never)
    for iteration in range(200):
        if active.size == 0:
            break
        lo, hi = low[active], high[active]
        middle = 0.5 * (lo + hi)
        trial = middle
        if iteration % 3:
            with np.errstate(divide="ignore", invalid="ignore"):
                over = np.log(at_low[active] / target[active])
                under = np.log(at_high[active] / target[active])
                trial = lo + (hi - lo) * (over / (over - under))
            # A little beyond the secant's root, so that the upper end moves as well.
            trial = trial + (1e-13 if iteration % 3 == 2 else 0.0) * hi
            trial = np.where((trial > lo) & (trial < hi), trial, middle)
        values = function(trial)
        above = values > target[active]
        low[active] = np.where(above, trial, lo)
        at_low[active] = np.where(above, values, at_low[active])
        high[active] = np.where(above, hi, trial)
        at_high[active] = np.where(above, at_high[active], values)
        width = high[active] - low[active]
        active = active[(width > 2e-13 * high[active]) & (trial != lo)]
    return np.where(found, 0.0, np.where(never, np.inf, high))
