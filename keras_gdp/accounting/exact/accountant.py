"""ExactAccountant: which path answers, and on which side it rounds.

The rule: nothing costs nothing; a single release, and any number of plain Gaussian
ones, have closed forms; otherwise the contour answers if its integrand decays within
3000 nodes (some tens of steps, or any Gaussian part, suffice); else the grid does.
"""

import math
from collections.abc import Callable

import numpy as np

from keras_gdp.accounting.accountant import Accountant, make_accountant
from keras_gdp.accounting.events import Event
from keras_gdp.accounting.exact.composition import Composition, directions
from keras_gdp.accounting.exact.contour import Contour, ContourDoesNotConverge
from keras_gdp.accounting.exact.grid import GridSum
from keras_gdp.accounting.exact.moments import Array, QuadratureTooLargeError
from keras_gdp.accounting.exact.pairs import dominating_pair
from keras_gdp.accounting.exact.release import log_delta_of_one
from keras_gdp.accounting.exact.saddle import (
    Saddle,
    chernoff,
    saddle_at,
    saddle_for_delta,
    saddle_for_epsilon,
)

__all__ = ["ExactAccountant"]

Bounds = tuple[float, float]

_TINY = 1e-300
_MOST_GRID_STEPS = 10**7  # beyond, a grid's rounding says nothing
_LOOSE = 1e-3  # wider bounds are intersected with the Renyi accountant's
_OUT_OF_REACH = (QuadratureTooLargeError, OverflowError)
_GOOD_ERROR = 1e-10
_CONTOUR_ERROR = 1e-8  # a contour whose own error bound is larger is refused,
_HUGE_CONTOUR_ERROR = 1e-2  # unless there are so many steps that a grid is useless


class ExactAccountant(Accountant):
    """The privacy cost itself: numerical composition of privacy losses.

    `epsilon` and `delta` return the upper end of bounds that contain the truth.
    Where the contour path applies the two ends agree to ten digits or more, at
    delta = 1e-5 as at 1e-50; the grid path gives about six digits.

    Example:
        >>> from keras_gdp.accounting import SampledGaussian
        >>> run = ExactAccountant().compose(SampledGaussian(1.3, 256 / 60000), 3516)
        >>> round(run.epsilon(1e-5), 8)
        0.86454019
        >>> low, high = run.delta_bounds(1.2)
        >>> low <= high and high - low < 1e-9 * high
        True
    """

    name = "exact"

    @property
    def _method(self) -> str:
        return (
            "Upper bound, tight to numerical precision: exact composition of the "
            "privacy loss distributions of the dominating pairs."
        )

    def _check(self, event: Event) -> None:
        dominating_pair(event, self.relation, self.group_size)

    def _changed(self) -> None:
        self._cached: list[Composition] | None = None

    def _directions(self) -> list[Composition]:
        if self._cached is None:
            self._cached = directions(self.events, self.relation, self.group_size)
        return self._cached

    def _delta_curve(self, epsilons: Array) -> Array:
        curve = np.zeros(epsilons.size)
        for composition in self._directions():
            curve = np.maximum(curve, delta_curve(composition, epsilons))
        return curve

    def _delta_bounds(self, epsilon: float, both: bool = True) -> Bounds:
        low, high = 0.0, 0.0
        try:
            for composition in self._directions():
                bounds = delta_bounds(composition, epsilon, high, both)
                low, high = max(low, bounds[0]), max(high, bounds[1])
        except _OUT_OF_REACH:
            low, high = 0.0, 1.0
        if not high - low <= _LOOSE * high and self._directions()[0].steps > 1:
            high = min(high, self._directions()[0].total_variation())
            high = max(low, min(high, self._renyi().delta(epsilon)))
        return low, high

    def _epsilon_upper(self, delta: float) -> float:
        return self._epsilon_bounds(delta, both=False)[1]

    def _delta_upper(self, epsilon: float) -> float:
        return self._delta_bounds(epsilon, both=False)[1]

    def _epsilon_bounds(self, delta: float, both: bool = True) -> Bounds:
        low, high = 0.0, 0.0
        compositions = self._directions()
        # Total variation is the same in both directions and adds up over steps.
        if compositions and compositions[0].total_variation() <= delta:
            return 0.0, 0.0
        try:
            for composition in compositions:
                bounds = epsilon_bounds(composition, delta, (low, high), both)
                low, high = max(low, bounds[0]), max(high, bounds[1])
        except _OUT_OF_REACH:
            low, high = 0.0, math.inf
        if not high - low <= _LOOSE * high and compositions[0].steps > 1:
            high = max(low, min(high, self._renyi().epsilon(delta)))
        return low, high

    def _renyi(self) -> Accountant:
        """The same composition for the Renyi bound, which is sound at any scale."""
        other = make_accountant("rdp", self.relation, group_size=self.group_size)
        for event, count in self.events:
            other.compose(event, count)
        return other


def delta_bounds(
    composition: Composition, epsilon: float, known: float, both: bool
) -> Bounds:
    """Bounds on one direction's delta; (0, 0) if it is surely at most `known`.

    Without `both` the lower bound may be 0.
    """
    infinite = composition.infinite_mass
    if infinite >= 1.0 or epsilon == math.inf or epsilon >= composition.max_loss:
        return infinite, infinite
    low, high, at_infinity = _log_delta_bounds(composition, epsilon, known, both)
    rest = 1.0 + 1e-15
    low, high = math.exp(min(low, 0.0)), math.exp(min(high, 0.0))
    return min(1.0, infinite + low), min(1.0, (at_infinity + high) * rest)


def _log_delta_bounds(
    composition: Composition, epsilon: float, known: float, both: bool
) -> tuple[float, float, float]:
    """Bounds on log delta of the finite losses, and the mass at infinity."""
    infinite = composition.infinite_mass
    if composition.steps == 1:
        value, error = log_delta_of_one(composition.phases[0][0], epsilon)
        return value - error, value + error, infinite
    saddle = saddle_for_epsilon(composition, epsilon)
    if chernoff(composition, saddle.c, epsilon) < math.log(max(known, _TINY)) - 1e-9:
        return -math.inf, -math.inf, infinite
    found = _contour_log_delta(composition, saddle, epsilon)
    if found is None:
        coarse = GridSum(composition, 0.5 * saddle.c, upper=True)
        log_delta, rate = coarse.log_delta(epsilon), coarse.rate(epsilon)
        near = saddle_at(composition, rate, saddle._replace(log_delta=log_delta))
        found = _contour_log_delta(composition, near, epsilon)
    if found is not None:
        return *found, infinite
    if composition.steps > _MOST_GRID_STEPS:
        return -math.inf, 0.0, infinite
    upper = _grid(composition, saddle.c, epsilon, log_delta, rate, True)
    low = -math.inf
    if both:
        lower = _grid(composition, saddle.c, epsilon, log_delta, rate, False)
        low = lower.log_delta(epsilon)
    return low, upper.log_delta(epsilon), upper.infinite_mass


def delta_curve(composition: Composition, epsilons: Array) -> Array:
    """Upper bounds on one direction's delta at many epsilons.

    Where the contour does not apply, one grid serves all of them.
    """
    middle = float(epsilons[epsilons.size // 2])
    if composition.steps > 1 and 0.0 < middle < composition.max_loss:
        saddle = saddle_for_epsilon(composition, middle)
        if _contour_log_delta(composition, saddle, middle) is None:
            theta = 0.5 * saddle.c
            grid = GridSum(composition, theta, upper=True, rate=theta)
            rest = [math.exp(min(grid.log_delta(float(e)), 0.0)) for e in epsilons]
            return np.minimum(np.asarray(rest) + grid.infinite_mass, 1.0)
    values = [delta_bounds(composition, float(e), 0.0, False)[1] for e in epsilons]
    return np.asarray(values)


def _tolerated(composition: Composition) -> float:
    """The largest relative error of delta that a contour may report."""
    many = composition.steps > _MOST_GRID_STEPS
    return _HUGE_CONTOUR_ERROR if many else _CONTOUR_ERROR


def _contour_log_delta(
    composition: Composition, saddle: Saddle, epsilon: float
) -> Bounds | None:
    """Bounds on log delta from one contour, None if it is no good there."""
    try:
        value, _, error = Contour(composition, saddle).value(epsilon)
        if _GOOD_ERROR < error < 1e-2:  # the saddle's rough delta was too rough
            better = Contour(composition, saddle._replace(log_delta=value))
            value, _, error = better.value(epsilon)
    except ContourDoesNotConverge:
        return None
    if error > _tolerated(composition):
        return None
    return value + math.log1p(-error), value + math.log1p(error)


def _grid(
    composition: Composition,
    c: float,
    epsilon: float,
    log_delta: float,
    rate: float,
    upper: bool,
) -> GridSum:
    """The composition on a fine grid, rounded up or down.

    The tilt is the local rate of delta, moved towards the saddle point until rounding
    errors are well below delta.
    """
    theta = min(rate, c)
    while theta < c and _excess(composition, theta, epsilon, log_delta) > 14.0:
        theta = min(c, theta * 1.2)
    cut = min(-_excess(composition, theta, epsilon, log_delta) - 23.0, -23.0)
    return GridSum(composition, theta, upper=upper, rate=rate, log_cut=cut)


def _excess(
    composition: Composition, theta: float, epsilon: float, log_delta: float
) -> float:
    """How far exp(K(theta) - theta epsilon) lies above delta, in logarithms."""
    return composition.real(theta)[0] - theta * epsilon - log_delta


def epsilon_bounds(
    composition: Composition, delta: float, known: Bounds, both: bool
) -> Bounds:
    """Bounds on one direction's epsilon; (0, 0) if it is surely below `known`.

    Without `both` the lower bound may be 0.
    """
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
    saddle = saddle_for_delta(composition, target)
    found = _invert_contour(composition, target, saddle.epsilon)
    if found is not None:
        return found
    coarse = GridSum(composition, 0.5 * saddle.c, upper=True)
    epsilon = _root(coarse.log_delta, target, max(2.0 * abs(saddle.epsilon), 1.0), True)
    if epsilon == math.inf:
        return 0.0, math.inf
    rate = coarse.rate(epsilon)
    found = _invert_contour(composition, target, epsilon, rate)
    if found is not None:
        return found
    if composition.steps > _MOST_GRID_STEPS:
        return 0.0, math.inf
    upper = _grid(composition, saddle.c, epsilon, target, rate, True)
    top, low = 1.1 * epsilon + 1e-9, 0.0
    if both:
        lower = _grid(composition, saddle.c, epsilon, target, rate, False)
        low = _root(lower.log_delta, target, top, False)
    right = delta - upper.infinite_mass
    if right <= 0.0:
        return low, math.inf
    return low, _root(upper.log_delta, math.log(right), top, True)


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


def _invert_contour(
    composition: Composition, target: float, start: float, rate: float | None = None
) -> Bounds | None:
    """Newton's iteration on one contour, moved if epsilon leaves its range."""
    epsilon = max(start, 0.0)
    for _ in range(8):
        saddle = saddle_for_epsilon(composition, epsilon)
        if rate is not None:
            saddle = saddle_at(composition, rate, saddle)
        try:
            contour = Contour(composition, saddle._replace(log_delta=target))
            for _ in range(12):
                value, slope, error = contour.value(epsilon)
                move = (target - value) / slope
                if not abs(move) < 1e12:
                    return None
                epsilon = max(epsilon + move, 0.0)
                settled = abs(move) <= 1e-14 * max(epsilon, 1e-3)
                if settled or error > _tolerated(composition):
                    break
            value, slope, error = contour.value(epsilon)
        except ContourDoesNotConverge:
            return None
        if error < _tolerated(composition) and abs(target - value) < 1e-7:
            margin = (1.01 * error + (target - value) ** 2) / -slope
            centre = epsilon + (target - value) / slope
            return max(0.0, centre - margin), max(0.0, centre + margin)
    return None


def _root(
    function: Callable[[float], float], target: float, top: float, above: bool
) -> float:
    """Root of a decreasing function on [0, inf), on the stated side of it."""
    from scipy.optimize import brentq

    def gap(epsilon: float) -> float:
        return max(function(epsilon) - target, -1e3)

    if gap(0.0) <= 0.0:
        return 0.0
    while gap(top) > 0.0:
        top *= 2.0
        if top > 1e6:
            return math.inf if above else 0.0
    root = float(brentq(gap, 0.0, top, xtol=1e-17, rtol=1e-15))
    step = 1e-13 * root + 1e-300
    while (gap(root) > 0.0) if above else (root > 0.0 and gap(root) < 0.0):
        root = max(0.0, root + step if above else root - step)
        step *= 2.0
    return root
