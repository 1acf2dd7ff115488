"""Bounds on delta of one direction: which path answers.

The rule: a single release has a closed form. Otherwise a contour answers if its
integrand decays within 600 nodes and its error bound is below 5e-10, relative; else
the sum over the size of the largest jump; else a contour with up to 32000 nodes. The
best of them is taken if its error bound is below 1e-8. The grid is left for
compositions of which atoms are a large part: randomized response, whose losses lie on
a lattice that the grid meets, and few releases with Laplace noise.
"""

import math

import numpy as np

from keras_gdp.accounting.exact.anchor import delta_from_anchor
from keras_gdp.accounting.exact.composition import Composition
from keras_gdp.accounting.exact.contour import ContourDoesNotConverge, Value
from keras_gdp.accounting.exact.readings import (
    CONTOUR_ERROR,
    HUGE_CONTOUR_ERROR,
    MOST_GRID_STEPS,
    OUT_OF_REACH,
    Bounds,
    Grids,
    Reading,
    contour_at,
    tolerated,
)
from keras_gdp.accounting.exact.release import log_delta_of_one
from keras_gdp.accounting.exact.saddle import chernoff, saddle_for_epsilon
from keras_gdp.accounting.exact.waves import Array

__all__ = ["delta_bounds", "delta_curve"]

_TINY, _LOG_LEAST = 1e-300, -744.0  # so that a bound on delta > 0 is not 0
_CURVE_ERROR = 1e-6  # relative, of delta: good enough to draw a curve with


def delta_bounds(
    composition: Composition, epsilon: float, known: float = 0.0
) -> Bounds:
    """Bounds on one direction's delta, loose ones if it is surely at most `known`."""
    infinite = composition.infinite_mass
    if infinite >= 1.0 or epsilon == math.inf or epsilon >= composition.max_loss:
        return infinite, infinite
    try:
        rest = max(0.0, known - infinite)  # of it for the finite losses
        low, high = _log_delta_bounds(composition, epsilon, rest)
    except OUT_OF_REACH:
        low, high = -math.inf, 0.0
    low, high = math.exp(min(low, 0.0)), math.exp(min(high, 0.0))
    return min(1.0, infinite + low), min(1.0, (infinite + high) * (1.0 + 1e-15))


def _log_delta_bounds(composition: Composition, epsilon: float, known: float) -> Bounds:
    """Bounds on log delta of the finite losses."""
    if composition.steps == 1:
        return log_delta_of_one(composition.phases[0][0], epsilon)
    surely = math.log(max(known, _TINY))
    enough = surely - 1e-9
    saddle = saddle_for_epsilon(composition, epsilon, enough=enough)
    most = chernoff(composition, saddle.c, epsilon)
    if most < enough:
        return -math.inf, max(most, _LOG_LEAST)
    if anchored := delta_from_anchor(composition, epsilon, saddle.log_delta):
        return anchored.interval
    reading = contour_at(composition, epsilon)
    found = (-math.inf, 0.0)
    read = reading.value(epsilon) if reading else Value(0.0, 0.0, 1.0)
    if read.error <= HUGE_CONTOUR_ERROR:  # a worse one may be off by more than it says
        found = read.interval
        if read.error <= tolerated(composition):
            # Rare jumps may have led the saddle astray, and it the anchor.
            own = delta_from_anchor(composition, epsilon, read.log_value)
            return own.interval if own else found
    elif reading:
        found = (-math.inf, min(reading.most(epsilon), 0.0))
    if found[1] < surely:
        return -math.inf, found[1]
    if composition.steps > MOST_GRID_STEPS:
        return found
    grids = Grids(composition, epsilon)
    if (most := grids.coarse.log_delta(epsilon)) < surely:
        return -math.inf, most
    low, high = grids.lower.log_delta(epsilon), grids.upper.log_delta(epsilon)
    return max(low, found[0]), min(high, found[1])


def delta_curve(composition: Composition, epsilons: Array) -> Array:
    """Upper bounds on one direction's delta at many increasing epsilons.

    One contour or grid serves neighbouring epsilons.
    """
    values, infinite, reading = [], composition.infinite_mass, None
    for epsilon in epsilons.tolist():
        bound = math.inf
        if 1 < composition.steps <= MOST_GRID_STEPS and infinite < 1.0:
            if epsilon < composition.max_loss:
                bound, reading = _curve_point(composition, epsilon, reading)
        if bound == math.inf:
            values.append(delta_bounds(composition, epsilon)[1])
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
            if reading is None or reading.value(epsilon).error > CONTOUR_ERROR:
                reading = Grids(composition, epsilon, 2.0 * epsilon).upper
        except OUT_OF_REACH:
            return math.inf, None
    return math.inf, None
