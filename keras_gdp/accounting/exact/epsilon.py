"""Bounds on epsilon of one direction: which path answers.

The rule is that for delta (see `delta`).
"""

import contextlib
import math
from collections.abc import Callable

from keras_gdp.accounting.exact.anchor import epsilon_from_anchor
from keras_gdp.accounting.exact.composition import Composition
from keras_gdp.accounting.exact.delta import delta_bounds
from keras_gdp.accounting.exact.inversion import by_contours
from keras_gdp.accounting.exact.privacy_loss import GaussianLoss
from keras_gdp.accounting.exact.readings import (
    MOST_GRID_STEPS,
    OUT_OF_REACH,
    Bounds,
    Grids,
    tolerated,
)
from keras_gdp.accounting.exact.release import log_delta_of_one
from keras_gdp.accounting.exact.saddle import (
    chernoff,
    saddle_for_delta,
    saddle_for_epsilon,
)

__all__ = ["epsilon_bounds"]

_TIGHT = 1e-9  # relative, of epsilon: better is not looked for
_NUDGES = 24
_NOT_THE_SAME = 1.001  # what is said of delta is then loose, and epsilon is not


def epsilon_bounds(composition: Composition, delta: float, known: float) -> Bounds:
    """Bounds on one direction's epsilon; (0, 0) if it is surely below `known`."""
    try:
        low, high = _epsilon_bounds(composition, delta, known)
    except OUT_OF_REACH:
        low, high = 0.0, math.inf
    if composition.infinite_mass < delta:
        # Beyond the largest loss only the infinite mass is left.
        high = min(high, composition.max_loss * (1.0 + 1e-15))
    return min(low, high), high


def _epsilon_bounds(composition: Composition, delta: float, known: float) -> Bounds:
    infinite = composition.infinite_mass
    if infinite >= delta:
        return math.inf, math.inf
    target = math.log(delta - infinite)
    if known > 0.0 and _surely(composition, known, target):
        return 0.0, 0.0
    if composition.steps == 1:
        low, high = _invert_closed_form(composition, target)
    elif found := epsilon_from_anchor(composition, target):
        return found.bounds
    elif known > 0.0 and delta_bounds(composition, known, delta)[1] <= delta:
        return 0.0, 0.0
    else:
        low, high = _without_anchor(composition, target)
    return low, _confirmed(composition, high, delta)


def _without_anchor(composition: Composition, target: float) -> Bounds:
    """Bounds on epsilon by a reading for the target itself, or by grids."""
    best, most = by_contours(composition, target)
    low, high = best.bounds
    tight = high - low <= _TIGHT * high < math.inf
    if best.error <= tolerated(composition) or tight:
        return low, high
    if composition.steps > MOST_GRID_STEPS:
        return 0.0, most
    with contextlib.suppress(*OUT_OF_REACH):
        below, above = _invert_grids(composition, target)
        low, high = max(low, below), min(high, above)
    return low, min(high, most)


def _confirmed(composition: Composition, epsilon: float, delta: float) -> float:
    """An upper end at which what is said of delta is at most delta.

    Readings for delta and for epsilon need not be the same to the last digit.
    """
    if not 0.0 < epsilon < composition.max_loss:
        return epsilon
    fall = saddle_for_epsilon(composition, epsilon).c  # about, of log delta
    for trial in range(_NUDGES):
        said = delta_bounds(composition, epsilon)[1]
        if not delta < said < _NOT_THE_SAME * delta:
            break
        move = 1.5 * 4.0**trial * math.log(said / delta) / fall
        epsilon += max(move, 2.0**trial * math.ulp(epsilon))
    return epsilon


def _surely(composition: Composition, epsilon: float, target: float) -> bool:
    """Whether Chernoff's bound alone says that delta is below a target there."""
    enough = target - 1e-9
    saddle = saddle_for_epsilon(composition, epsilon, enough=enough)
    return chernoff(composition, saddle.c, epsilon) < enough


def _invert_grids(composition: Composition, target: float) -> Bounds:
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
    low = _root(grids.lower.log_delta, target, epsilon, False)
    return low, _root(grids.upper.log_delta, target, epsilon, True)


def _invert_closed_form(composition: Composition, target: float) -> Bounds:
    loss = composition.phases[0][0]
    if isinstance(loss, GaussianLoss):
        from keras_gdp._gdp import epsilon_from_mu

        value = float(epsilon_from_mu(math.exp(target), loss.mu))
        return value * (1 - 1e-14), value * (1 + 1e-14)

    def lower(epsilon: float) -> float:
        return log_delta_of_one(loss, epsilon)[0]

    def upper(epsilon: float) -> float:
        return log_delta_of_one(loss, epsilon)[1]

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
    root = float(brentq(gap, left, right, xtol=1e-17, rtol=1e-15, maxiter=10_000))
    step = 1e-13 * root + 1e-300
    while (gap(root) > 0.0) if above else (root > 0.0 and gap(root) < 0.0):
        root = max(0.0, root + step if above else root - step)
        step *= 2.0
    return root
