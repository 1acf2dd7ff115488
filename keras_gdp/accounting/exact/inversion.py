"""Bounds on epsilon of one direction: delta's paths, inverted by Newton's iteration.

The rule is that for delta (see `bounds`). One contour, or sum of contours, serves all
epsilons at which its own error bound is small; it is renewed where it does not.
"""

import contextlib
import math
from collections.abc import Callable

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
from keras_gdp.accounting.exact.saddle import saddle_for_delta, saddle_for_epsilon

__all__ = ["epsilon_bounds"]

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
    if nearest > 0.0:
        here = delta_bounds(composition, nearest, delta, False)
        if here[1] <= delta:
            return 0.0, 0.0
    if composition.steps == 1:
        return _invert_closed_form(composition, target)
    _, rough, _, _ = nearby = saddle_for_delta(composition, target)

    def plain(epsilon: float, most: int = FEW_NODES) -> Reading:
        saddle = saddle_for_epsilon(composition, epsilon, nearby.c)
        return refined_contour(composition, saddle._replace(log_delta=target), most)

    def by_contour() -> tuple[Bounds, float]:
        return _invert(plain, target, rough, GOOD_ERROR)

    def by_jumps() -> tuple[Bounds, float]:
        start = rough_epsilon(composition, target)
        at_zero = math.log(max(composition.total_variation() - infinite, 5e-324))
        return _invert(
            lambda epsilon: jumps_at(composition, epsilon),
            target,
            start,
            HUGE_CONTOUR_ERROR,
            at_zero,
        )

    def by_long_contour() -> tuple[Bounds, float]:
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
    found, error, most = (0.0, math.inf), math.inf, math.inf
    for attempt, enough in attempts:
        if error > enough:
            with contextlib.suppress(ContourDoesNotConverge):
                better, other = attempt()
                most = min(most, better[1])
                if other < error:
                    found, error = better, other
    tight = found[1] - found[0] <= _TIGHT * found[1] < math.inf
    if error <= tolerated(composition) or tight:
        return found
    if composition.steps > MOST_GRID_STEPS:
        return 0.0, most
    low, high = 0.0, math.inf
    with contextlib.suppress(*OUT_OF_REACH):
        low, high = _invert_grids(composition, target, max(rough, 0.0), both)
    return max(low, found[0]), min(high, found[1], most)


def _invert(
    read: Callable[[float], Reading],
    target: float,
    start: float,
    accepted: float,
    at_zero: float = math.inf,
) -> tuple[Bounds, float]:
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
            value, slope, error = reading.value(epsilon)
            near = error >= 1.0 or abs(target - value) < _NEAR
            hopeless = error > accepted and near
            if hopeless:
                most = min(most, _beyond(reading.most, target, epsilon))
        except (ContourDoesNotConverge, *OUT_OF_REACH):
            hopeless = True
        if hopeless:
            if good < 0.0 or retreats == 0:
                return (0.0, most), math.inf
            epsilon, retreats = 0.5 * (epsilon + good), retreats - 1
            continue
        if error <= accepted:
            good = epsilon
            most = shown(epsilon, value + math.log1p(error))
        if error < 0.5:
            left, right = (epsilon, right) if value > target else (left, epsilon)
        try:
            for _ in range(12):
                move = (target - value) / slope
                if not abs(move) < 1e12:
                    return (0.0, most), math.inf
                epsilon = _moved(epsilon, move)
                value, slope, error = reading.value(epsilon)
                settled = abs(move) <= 1e-14 * max(epsilon, 1e-3)
                if settled or error > min(accepted, CONTOUR_ERROR):
                    break
            away = abs(slope * (epsilon - origin)) > _AWAY
            fine = error <= (GOOD_ERROR if away else accepted)
            if fine and abs(target - value) < 1e-7 + 0.1 * error:
                margin = (1.01 * error + (target - value) ** 2) / -slope
                centre = epsilon + (target - value) / slope
                return (max(0.0, centre - margin), max(0.0, centre + margin)), error
            if epsilon == 0.0 and error <= accepted and value < target:
                return (0.0, 0.0), error
        except ContourDoesNotConverge:
            pass
        if not left < epsilon < right:
            epsilon = 0.5 * (left + right) if right < math.inf else 2.0 * left
    return (0.0, most), math.inf


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


def _invert_grids(
    composition: Composition, target: float, start: float, both: bool
) -> Bounds:
    """Bounds on epsilon from grids around it."""
    epsilon, left, right = start, 0.0, composition.max_loss
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
