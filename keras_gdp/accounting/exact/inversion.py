"""epsilon for a delta by contours: Newton's iteration on readings.

One contour, or sum of contours, serves all epsilons at which its own error bound is
small; it is renewed where it does not.
"""

import contextlib
import math
from collections.abc import Callable
from typing import NamedTuple

from keras_gdp.accounting.exact.composition import Composition
from keras_gdp.accounting.exact.contour import (
    FEW_NODES,
    GOOD_ERROR,
    MOST_NODES,
    ContourDoesNotConverge,
    Value,
    refined_contour,
)
from keras_gdp.accounting.exact.estimates import rough_epsilon
from keras_gdp.accounting.exact.readings import (
    CONTOUR_ERROR,
    HUGE_CONTOUR_ERROR,
    OUT_OF_REACH,
    Bounds,
    Reading,
    jumps_at,
    tolerated,
)
from keras_gdp.accounting.exact.saddle import saddle_for_delta, saddle_for_epsilon

__all__ = ["NOTHING", "Found", "by_contours", "read_off", "settle"]

_TRIES = 25  # readings that an inversion may take
_AWAY = 0.01  # in log delta: there a reading may not be as good as another
_SKEWED = 2000.0  # times the variance: then jumps rule the saddle of the contour
_RETREATS = 4  # halfway back to the last good reading
_UNITS = 2.0**-52
_NEWTON = 50
_STRAIGHT = 0.02  # what the slope may be read off for
_NEAR = 12.0  # in log delta: an error there will not be better at the target


class Found(NamedTuple):
    """Bounds on epsilon, and by what value of which reading."""

    bounds: Bounds
    epsilon: float = 0.0
    value: Value = Value(0.0, 0.0, math.inf)
    reading: Reading | None = None

    @property
    def error(self) -> float:
        """Relative error of delta."""
        return self.value.error


NOTHING = Found((0.0, math.inf))


def by_contours(composition: Composition, target: float) -> tuple[Found, float]:
    """What the best reading says, and the least epsilon that one has shown."""
    _, rough, _, _ = nearby = saddle_for_delta(composition, target)

    def plain(epsilon: float, most: int = FEW_NODES) -> Reading:
        saddle = saddle_for_epsilon(composition, epsilon, nearby.c)
        return refined_contour(composition, saddle._replace(log_delta=target), most)

    def by_contour() -> Found:
        return _invert(plain, target, rough, GOOD_ERROR)

    def by_jumps() -> Found:
        start = rough_epsilon(composition, target)
        finite = composition.total_variation - composition.infinite_mass
        return _invert(
            lambda epsilon: jumps_at(composition, epsilon),
            target,
            start,
            HUGE_CONTOUR_ERROR,
            math.log(max(finite, 5e-324)),
        )

    def by_long_contour() -> Found:
        return _invert(
            lambda epsilon: plain(epsilon, MOST_NODES),
            target,
            rough,
            HUGE_CONTOUR_ERROR,
        )

    attempts = [(by_contour, GOOD_ERROR), (by_jumps, GOOD_ERROR)]
    if nearby.curvature > _SKEWED * composition.real(0.5)[2]:
        attempts.reverse()
    attempts.append((by_long_contour, tolerated(composition)))
    best, most = NOTHING, math.inf
    for attempt, enough in attempts:
        if best.error > enough:
            with contextlib.suppress(ContourDoesNotConverge):
                found = attempt()
                most = min(most, found.bounds[1])
                if found.error < best.error:
                    best = found
    return best, most


def _invert(
    read: Callable[[float], Reading],
    target: float,
    start: float,
    accepted: float,
    at_zero: float = math.inf,
) -> Found:
    """Newton's iteration on readings, renewed if epsilon leaves their range.

    Args:
        read: Makes a reading for an epsilon.
        target: Log of the finite losses' delta whose epsilon is looked for.
        start: Where to begin.
        accepted: Largest relative error of a reading.
        at_zero: Log of a bound on that delta at epsilon 0.

    Returns:
        What the last reading says; bounds that the readings have shown, and no reading,
        if none is good at the target.
    """
    epsilon, left, right = max(start, 0.0), 0.0, math.inf
    good, most, retreats = -1.0, math.inf, _RETREATS

    def shown(epsilon: float, bound: float) -> float:
        """The least of what readings have shown epsilon to be at most."""
        if bound >= target:
            return most
        if epsilon < 700.0:
            share = _share(at_zero, target, bound)
            epsilon = min(epsilon, math.log1p(share * math.expm1(epsilon)))
        return min(most, epsilon)

    for _ in range(_TRIES):
        try:
            reading, origin = read(epsilon), epsilon
            value, _, error = here = reading.value(epsilon)
            near = error >= 1.0 or abs(target - value) < _NEAR
            hopeless = error > accepted and near
            if hopeless:
                most = min(most, _beyond(reading.most, target, epsilon))
        except (ContourDoesNotConverge, *OUT_OF_REACH):
            hopeless = True
        if hopeless:
            if good < 0.0 or retreats == 0:
                return Found((0.0, most))
            epsilon, retreats = 0.5 * (epsilon + good), retreats - 1
            continue
        if error <= accepted:
            good = epsilon
            most = shown(epsilon, value + math.log1p(error))
        if error < 0.5:
            left, right = (epsilon, right) if value > target else (left, epsilon)
        try:
            worst = min(accepted, CONTOUR_ERROR)
            epsilon, here = settle(reading, epsilon, here, target, worst)
            away = abs(here.slope * (epsilon - origin)) > _AWAY
            enough = GOOD_ERROR if away else accepted
            if found := read_off(reading, epsilon, here, target, enough):
                return found
        except ContourDoesNotConverge:
            pass
        if not left < epsilon < right:
            epsilon = 0.5 * (left + right) if right < math.inf else 2.0 * left
    return Found((0.0, most))


def settle(
    reading: Reading, epsilon: float, value: Value, target: float, worst: float
) -> tuple[float, Value]:
    """Newton's iteration on one reading, as long as its error is small."""
    for _ in range(_NEWTON):
        before = epsilon
        move = (target - value.log_value) / value.slope
        if not abs(move) < 1e12:
            raise ContourDoesNotConverge
        epsilon = _moved(epsilon, move)
        if epsilon == before:
            break
        value = reading.value(epsilon)
        left = abs(target - value.log_value)
        if value.error > worst or left <= 1e-11 + 0.1 * value.error:
            break
    return epsilon, value


def read_off(
    reading: Reading,
    epsilon: float,
    value: Value,
    target: float,
    accepted: float,
) -> Found | None:
    """Bounds on epsilon by a value near the target, if its error is accepted.

    Even the upper end of what the reading says of delta at the upper end is below it.
    """
    log_value, slope, error = value
    left = target - log_value
    if error > accepted:
        return None
    # Near log delta = 0 that bends on the scale of its own size.
    straight = abs(left) + error <= _STRAIGHT * min(1.0, -target)
    if straight and abs(left) < 1e-7 + 0.1 * error:
        rounding = _UNITS * (8.0 + abs(target) - slope * epsilon)
        margin = (1.01 * error + left**2 + rounding) / -slope
        above = (2.05 * error + left**2 + 2.0 * rounding) / -slope
        centre = epsilon + left / slope
        bounds = max(0.0, centre - margin), max(0.0, centre + above)
        return Found(bounds, epsilon, value, reading)
    if epsilon == 0.0 and left > 1.01 * error:
        return Found((0.0, 0.0), epsilon, value, reading)
    return None


def _beyond(bound: Callable[[float], float], target: float, start: float) -> float:
    """An epsilon from which on a falling bound is below a target, or infinity."""
    right = start
    for _ in range(_TRIES):
        if bound(right) < target:
            break
        right *= 1.5
    else:
        return math.inf
    left = right / 1.5
    while right - left > 0.01 * right and right > start:
        middle = 0.5 * (left + right)
        if bound(middle) < target:
            right = middle
        else:
            left = middle
    return right


def _share(at_zero: float, target: float, value: float) -> float:
    """How far from 0 to an epsilon delta falls to a target at the latest.

    In exp(epsilon), in which delta is convex; all deltas as logarithms.
    """
    if at_zero == math.inf:
        return 1.0
    if at_zero <= target:
        return 0.0
    fallen = math.expm1(target - at_zero) / math.expm1(value - at_zero)
    return min(fallen, 1.0)


def _moved(epsilon: float, move: float) -> float:
    """Newton's step, in log epsilon where it leads far down: log delta is convex."""
    if epsilon == 0.0 or move > -0.3 * epsilon:
        return epsilon + max(move, -epsilon)
    return epsilon * math.exp(move / epsilon) if move > -20.0 * epsilon else 0.0
