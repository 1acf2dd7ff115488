"""Bounds on delta and epsilon of one direction: which path answers.

The rule: a single release has a closed form; otherwise a contour answers if its
integrand decays within 32000 nodes (a few steps, or any Gaussian part, suffice), with
rare far jumps apart from the rest if they spoil it; else the grid does.
"""

import contextlib
import math
from collections.abc import Callable

import numpy as np

from keras_gdp.accounting.exact.composition import Composition
from keras_gdp.accounting.exact.contour import (
    FEW_NODES,
    GOOD_ERROR,
    MOST_NODES,
    ContourDoesNotConverge,
    refined_contour,
)
from keras_gdp.accounting.exact.estimates import rough_epsilon
from keras_gdp.accounting.exact.moments import Array, QuadratureTooLargeError
from keras_gdp.accounting.exact.readings import (
    Grids,
    Reading,
    contour_at,
    jumps_at,
)
from keras_gdp.accounting.exact.release import log_delta_of_one
from keras_gdp.accounting.exact.saddle import (
    chernoff,
    saddle_for_delta,
    saddle_for_epsilon,
)

__all__ = ["Bounds", "delta_bounds", "delta_curve", "epsilon_bounds"]

Bounds = tuple[float, float]

_TINY, _LOG_LEAST = 1e-300, -744.0  # so that a bound on delta > 0 is not 0
_TRIES = 25  # readings that an inversion may take
_AWAY = 0.01  # in log delta: there a reading may not be as good as another
_NEAR = 12.0  # in log delta: an error there will not be better at the target
_OUT_OF_REACH = (QuadratureTooLargeError, OverflowError)
_MOST_GRID_STEPS = 10**7  # beyond, a grid's rounding says nothing
_CURVE_ERROR = 1e-6  # relative, of delta: good enough to draw a curve with
_CONTOUR_ERROR = 1e-8  # a contour whose own error bound is larger is refused,
_HUGE_CONTOUR_ERROR = 1e-2  # unless there are so many steps that a grid is useless


def delta_bounds(
    composition: Composition, epsilon: float, known: float, both: bool
) -> Bounds:
    """Bounds on one direction's delta; (0, 0) if it is surely at most `known`.

    Without `both` the lower bound may be 0.
    """
    infinite = composition.infinite_mass
    if infinite >= 1.0 or epsilon == math.inf or epsilon >= composition.max_loss:
        return infinite, infinite
    try:
        low, high = _log_delta_bounds(composition, epsilon, known, both)
    except _OUT_OF_REACH:
        low, high = -math.inf, 0.0
    low, high = math.exp(min(low, 0.0)), math.exp(min(high, 0.0))
    return min(1.0, infinite + low), min(1.0, (infinite + high) * (1.0 + 1e-15))


def _log_delta_bounds(
    composition: Composition, epsilon: float, known: float, both: bool
) -> Bounds:
    """Bounds on log delta of the finite losses."""
    if composition.steps == 1:
        value, error = log_delta_of_one(composition.phases[0][0], epsilon)
        return value - error, value + error
    saddle = saddle_for_epsilon(composition, epsilon)
    most = chernoff(composition, saddle.c, epsilon)
    if most < math.log(max(known, _TINY)) - 1e-9:
        return -math.inf, -math.inf if known > _TINY else max(most, _LOG_LEAST)
    reading = contour_at(composition, epsilon)
    found = (-math.inf, 0.0)
    if reading is not None:
        value, _, error = reading.value(epsilon)
        low = value + math.log1p(-error) if error < 1.0 else -math.inf
        found = low, value + math.log1p(error)
        if error <= _tolerated(composition):
            return found
        if found[1] < math.log(max(known, _TINY)):
            return -math.inf, -math.inf
    if composition.steps > _MOST_GRID_STEPS:
        return found
    grids = Grids(composition, epsilon)
    if grids.coarse.log_delta(epsilon) < math.log(max(known, _TINY)):
        return -math.inf, -math.inf
    low = grids.lower.log_delta(epsilon) if both else -math.inf
    return max(low, found[0]), min(grids.upper.log_delta(epsilon), found[1])


def _tolerated(composition: Composition) -> float:
    """The largest relative error of delta that a contour may report."""
    many = composition.steps > _MOST_GRID_STEPS
    return _HUGE_CONTOUR_ERROR if many else _CONTOUR_ERROR


def delta_curve(composition: Composition, epsilons: Array) -> Array:
    """Upper bounds on one direction's delta at many increasing epsilons.

    One contour or grid serves neighbouring epsilons.
    """
    values, infinite, reading = [], composition.infinite_mass, None
    for epsilon in epsilons.tolist():
        bound = math.inf
        if 1 < composition.steps <= _MOST_GRID_STEPS and infinite < 1.0:
            if epsilon < composition.max_loss:
                bound, reading = _curve_point(composition, epsilon, reading)
        if bound == math.inf:
            values.append(delta_bounds(composition, epsilon, 0.0, False)[1])
        else:
            values.append(min(1.0, infinite + math.exp(min(bound, 0.0))))
    return np.asarray(values)


def _curve_point(
    composition: Composition, epsilon: float, reading: Reading | None
) -> tuple[float, Reading | None]:
    """Upper bound on log delta by the last reading if it reaches, or a new one."""
    for _ in range(2):
        if reading is not None:
            try:
                value, _, error = reading.value(epsilon)
                if error <= _CURVE_ERROR:
                    return value + math.log1p(error), reading
            except ContourDoesNotConverge:
                pass
        try:
            reading = contour_at(composition, epsilon)
            if reading is None or reading.value(epsilon).error > _CONTOUR_ERROR:
                reading = Grids(composition, epsilon, 2.0 * epsilon).upper
        except _OUT_OF_REACH:
            return math.inf, None
    return math.inf, None


def epsilon_bounds(
    composition: Composition, delta: float, known: Bounds, both: bool
) -> Bounds:
    """Bounds on one direction's epsilon; (0, 0) if it is surely below `known`.

    Without `both` the lower bound may be 0.
    """
    try:
        low, high = _epsilon_bounds(composition, delta, known, both)
    except _OUT_OF_REACH:
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
    rough = saddle_for_delta(composition, target).epsilon

    def plain(epsilon: float, most: int = FEW_NODES) -> Reading:
        saddle = saddle_for_epsilon(composition, epsilon)
        return refined_contour(composition, saddle._replace(log_delta=target), most)

    def by_jumps(epsilon: float) -> Reading:
        return jumps_at(composition, epsilon)

    found, error = _invert(plain, target, rough, GOOD_ERROR)
    if error > GOOD_ERROR:
        with contextlib.suppress(ContourDoesNotConverge):
            start = rough_epsilon(composition, target)
            better, other = _invert(by_jumps, target, start, _HUGE_CONTOUR_ERROR)
            if other < error:
                found, error = better, other
    if error > _tolerated(composition):
        found, error = _invert(
            lambda epsilon: plain(epsilon, MOST_NODES),
            target,
            rough,
            _HUGE_CONTOUR_ERROR,
        )
    if error <= _tolerated(composition):
        return found
    if composition.steps > _MOST_GRID_STEPS:
        return 0.0, math.inf
    return _invert_grids(composition, target, max(rough, 0.0), both)


def _invert(
    read: Callable[[float], Reading], target: float, start: float, tolerated: float
) -> tuple[Bounds, float]:
    """Newton's iteration on readings, renewed if epsilon leaves their range.

    Returns:
        Bounds on epsilon, and the relative error of delta there.
    """
    epsilon, left, right = max(start, 0.0), 0.0, math.inf
    nothing = (0.0, math.inf), math.inf
    for _ in range(_TRIES):
        try:
            reading, origin = read(epsilon), epsilon
        except ContourDoesNotConverge:
            return nothing
        try:
            for trial in range(12):
                value, slope, error = reading.value(epsilon)
                if error > tolerated and trial > 0:
                    break
                hopeless = error > 1.0 or abs(target - value) < _NEAR
                if error > tolerated and hopeless:
                    return nothing
                if trial == 0 and error < 0.5:
                    left, right = (
                        (epsilon, right) if value > target else (left, epsilon)
                    )
                move = (target - value) / slope
                if not abs(move) < 1e12:
                    return nothing
                epsilon = _moved(epsilon, move)
                settled = abs(move) <= 1e-14 * max(epsilon, 1e-3)
                if settled or error > _CONTOUR_ERROR:
                    break
            value, slope, error = reading.value(epsilon)
            away = abs(slope * (epsilon - origin)) > _AWAY
            good = error <= (GOOD_ERROR if away else tolerated)
            if good and abs(target - value) < 1e-7 + 0.1 * error:
                margin = (1.01 * error + (target - value) ** 2) / -slope
                centre = epsilon + (target - value) / slope
                return (max(0.0, centre - margin), max(0.0, centre + margin)), error
            if epsilon == 0.0 and error <= tolerated and value < target:
                return (0.0, 0.0), error
        except ContourDoesNotConverge:
            pass
        if not left < epsilon < right:
            epsilon = 0.5 * (left + right) if right < math.inf else 2.0 * left
    return nothing


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
    return _root(lower, target, top, False), _root(upper, target, top, True)


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
