"""Bounds on epsilon of one direction: delta's paths, inverted by Newton's iteration.

The rule is that for delta (see `bounds`). One contour, or sum of contours, serves all
epsilons at which its own error bound is small; it is renewed where it does not. So one
for a power of ten serves all deltas near that, and answers do not depend on what was
asked before.
"""

import contextlib
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

from keras_gdp.accounting.exact.bounds import (
    CONTOUR_ERROR,
    HUGE_CONTOUR_ERROR,
    MOST_GRID_STEPS,
    Bounds,
    delta_bounds,
    tolerated,
)
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
    OUT_OF_REACH,
    Grids,
    Reading,
    jumps_at,
)
from keras_gdp.accounting.exact.release import log_delta_of_one
from keras_gdp.accounting.exact.saddle import (
    chernoff,
    saddle_for_delta,
    saddle_for_epsilon,
)

__all__ = ["epsilon_bounds"]

_POWER = math.log(10.0)
_MOST_KEPT = 40_000  # nodes of a reading, one MB
_TRIES = 25  # readings that an inversion may take
_AWAY = 0.01  # in log delta: there a reading may not be as good as another
_SKEWED = 2000.0  # times the variance: then jumps rule the saddle of the contour
_RETREATS = 4  # halfway back to the last good reading
_TIGHT = 1e-9  # relative, of epsilon: better is not looked for
_NEAR = 12.0  # in log delta: an error there will not be better at the target


def epsilon_bounds(
    composition: Composition, delta: float, known: Bounds, both: bool
) -> Bounds:
    """Bounds on one direction's epsilon; (0, 0) if it is surely below `known`.

    Without `both` the lower bound may be 0.
    """
    try:
        low, high = _epsilon_bounds(composition, delta, known, both)
    except OUT_OF_REACH:
        low, high = 0.0, math.inf
    if composition.infinite_mass < delta:
        # Beyond the largest loss only the infinite mass is left.
        high = min(high, composition.max_loss * (1.0 + 1e-15))
    return min(low, high), high


def _epsilon_bounds(
    composition: Composition, delta: float, known: Bounds, both: bool
) -> Bounds:
    infinite = composition.infinite_mass
    if infinite >= delta:
        return math.inf, math.inf
    target = math.log(delta - infinite)
    nearest = known[0] if both else known[1]
    if nearest > 0.0 and _surely(composition, nearest, target):
        return 0.0, 0.0
    if composition.steps == 1:
        return _invert_closed_form(composition, target)
    if found := _from_anchor(composition, target):
        return found.bounds
    if nearest > 0.0 and delta_bounds(composition, nearest, delta, False)[1] <= delta:
        return 0.0, 0.0
    best, most = _by_contours(composition, target)
    low, high = best.bounds
    tight = high - low <= _TIGHT * high < math.inf
    if best.error <= tolerated(composition) or tight:
        return low, high
    if composition.steps > MOST_GRID_STEPS:
        return 0.0, most
    with contextlib.suppress(*OUT_OF_REACH):
        below, above = _invert_grids(composition, target, both)
        low, high = max(low, below), min(high, above)
    return low, min(high, most)


def _surely(composition: Composition, epsilon: float, target: float) -> bool:
    """Whether Chernoff's bound alone says that delta is below a target there."""
    enough = target - 1e-9
    saddle = saddle_for_epsilon(composition, epsilon, enough=enough)
    return chernoff(composition, saddle.c, epsilon) < enough


class _Found(NamedTuple):
    """Bounds on epsilon, and by what value of which reading."""

    bounds: Bounds
    epsilon: float = 0.0
    value: Value = Value(0.0, 0.0, math.inf)
    reading: Reading | None = None

    @property
    def error(self) -> float:
        """Relative error of delta."""
        return self.value.error


_NOTHING = _Found((0.0, math.inf))


def _from_anchor(composition: Composition, target: float) -> _Found | None:
    """What the reading for the nearest power of ten says, if it is good."""
    found = _at_anchor(composition, min(round(target / _POWER), -1))
    reading = found.reading
    if reading is None:
        return None
    with contextlib.suppress(ContourDoesNotConverge):
        at = _settle(reading, found.epsilon, found.value, target, GOOD_ERROR)
        return _read_off(reading, *at, target, GOOD_ERROR)
    return None


@functools.lru_cache(maxsize=32)
def _at_anchor(composition: Composition, power: int) -> _Found:
    """What is found for a power of ten; the last ones stay, if good and not huge."""
    with contextlib.suppress(ContourDoesNotConverge, *OUT_OF_REACH):
        found, _ = _by_contours(composition, power * _POWER)
        small = found.reading is not None and found.reading.size <= _MOST_KEPT
        if small and found.error <= GOOD_ERROR:
            return found
    return _NOTHING


def _by_contours(composition: Composition, target: float) -> tuple[_Found, float]:
    """What the best reading says, and the least epsilon that one has shown."""
    _, rough, _, _ = nearby = saddle_for_delta(composition, target)

    def plain(epsilon: float, most: int = FEW_NODES) -> Reading:
        saddle = saddle_for_epsilon(composition, epsilon, nearby.c)
        return refined_contour(composition, saddle._replace(log_delta=target), most)

    def by_contour() -> _Found:
        return _invert(plain, target, rough, GOOD_ERROR)

    def by_jumps() -> _Found:
        start = rough_epsilon(composition, target)
        finite = composition.total_variation - composition.infinite_mass
        return _invert(
            lambda epsilon: jumps_at(composition, epsilon),
            target,
            start,
            HUGE_CONTOUR_ERROR,
            math.log(max(finite, 5e-324)),
        )

    def by_long_contour() -> _Found:
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
    best, most = _NOTHING, math.inf
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
) -> _Found:
    """Newton's iteration on readings, renewed if epsilon leaves their range.

    Args:
        read: Makes a reading for an epsilon.
        target: Log of the finite losses' delta whose epsilon is looked for.
        start: Where to begin.
        accepted: Largest relative error of a reading.
        at_zero: Log of a bound on that delta at epsilon 0.

    Returns:
        Bounds on epsilon, and the relative error of delta there; infinity and what the
        readings have shown if none is good at the target.
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
                return _Found((0.0, most))
            epsilon, retreats = 0.5 * (epsilon + good), retreats - 1
            continue
        if error <= accepted:
            good = epsilon
            most = shown(epsilon, value + math.log1p(error))
        if error < 0.5:
            left, right = (epsilon, right) if value > target else (left, epsilon)
        try:
            worst = min(accepted, CONTOUR_ERROR)
            epsilon, here = _settle(reading, epsilon, here, target, worst)
            away = abs(here.slope * (epsilon - origin)) > _AWAY
            enough = GOOD_ERROR if away else accepted
            if found := _read_off(reading, epsilon, here, target, enough):
                return found
        except ContourDoesNotConverge:
            pass
        if not left < epsilon < right:
            epsilon = 0.5 * (left + right) if right < math.inf else 2.0 * left
    return _Found((0.0, most))


def _settle(
    reading: Reading, epsilon: float, value: Value, target: float, worst: float
) -> tuple[float, Value]:
    """Newton's iteration on one reading, as long as its error is small."""
    for _ in range(12):
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


def _read_off(
    reading: Reading,
    epsilon: float,
    value: Value,
    target: float,
    accepted: float,
) -> _Found | None:
    """Bounds on epsilon by a value near the target, if its error is accepted."""
    log_value, slope, error = value
    left = target - log_value
    if error > accepted:
        return None
    if abs(left) < 1e-7 + 0.1 * error:
        margin = (1.01 * error + left**2) / -slope
        centre = epsilon + left / slope
        bounds = max(0.0, centre - margin), max(0.0, centre + margin)
        return _Found(bounds, epsilon, value, reading)
    if epsilon == 0.0 and left > 0.0:
        return _Found((0.0, 0.0), epsilon, value, reading)
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


def _invert_grids(composition: Composition, target: float, both: bool) -> Bounds:
    """Bounds on epsilon from grids around it."""
    epsilon = max(saddle_for_delta(composition, target).epsilon, 0.0)
    left, right = 0.0, composition.max_loss
    for _ in range(20):
        grids = Grids(composition, epsilon)
        value, slope, _ = grids.coarse.value(epsilon)
        if abs(target - value) < 0.1 or (epsilon == 0.0 and value < target):
            break
        left, right = (epsilon, right) if value > target else (left, epsilon)
        epsilon = epsilon + (target - value) / slope if value > -math.inf else left
        if not left < epsilon < right:
            epsilon = 0.5 * (left + right) if right < math.inf else 2.0 * left
        if right - left <= 1e-6 * right:
            break
    grids = Grids(composition, epsilon)
    low = 0.0
    if both:
        low = _root(grids.lower.log_delta, target, epsilon, False)
    return low, _root(grids.upper.log_delta, target, epsilon, True)


def _invert_closed_form(composition: Composition, target: float) -> Bounds:
    loss = composition.phases[0][0]
    if hasattr(loss, "mu"):
        from keras_gdp._gdp import epsilon_from_mu

        value = float(epsilon_from_mu(math.exp(target), loss.mu))
        return value * (1 - 1e-14), value * (1 + 1e-14)

    def upper(epsilon: float) -> float:
        value, error = log_delta_of_one(loss, epsilon)
        return value + error

    def lower(epsilon: float) -> float:
        value, error = log_delta_of_one(loss, epsilon)
        return value - error

    top = min(composition.max_loss, max(loss.largest(0.0), 1e-9))
    low, high = _root(lower, target, top, False), _root(upper, target, top, True)
    return low * (1 - 4e-14), high * (1 + 4e-14)


def _root(
    function: Callable[[float], float], target: float, guess: float, above: bool
) -> float:
    """Root of a decreasing function on [0, inf) near a guess, on the stated side."""
    from scipy.optimize import brentq

    def gap(epsilon: float) -> float:
        return max(function(epsilon) - target, -1e3)

    width = 1e-7 * guess + 1e-9
    left, right = max(guess - width, 0.0), guess + width
    while gap(left) <= 0.0:
        if left == 0.0:
            return 0.0
        width *= 4.0
        left, right = max(left - width, 0.0), left
    while gap(right) > 0.0:
        width *= 4.0
        left, right = right, right + width
        if right > 1e6:
            return math.inf if above else 0.0
    root = float(brentq(gap, left, right, xtol=1e-17, rtol=1e-15))
    step = 1e-13 * root + 1e-300
    while (gap(root) > 0.0) if above else (root > 0.0 and gap(root) < 0.0):
        root = max(0.0, root + step if above else root - step)
        step *= 2.0
    return root
