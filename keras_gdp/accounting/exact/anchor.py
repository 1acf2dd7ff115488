"""One reading for all deltas around a power of the root of ten.

A reading says with every value by how much it may be off, so one made for a nearby
delta has the answer where that is little. As the nearest such power picks it, answers
do not depend on what was asked before; and as epsilon and delta read the same one,
delta at the upper end of epsilon is not above the delta that epsilon is for.
"""

import contextlib
import functools
import math

from keras_gdp.accounting.exact.composition import Composition
from keras_gdp.accounting.exact.contour import (
    GOOD_ERROR,
    ContourDoesNotConverge,
    Value,
)
from keras_gdp.accounting.exact.inversion import (
    NOTHING,
    Found,
    by_contours,
    read_off,
    settle,
)
from keras_gdp.accounting.exact.readings import CONTOUR_ERROR, OUT_OF_REACH

__all__ = ["delta_from_anchor", "epsilon_from_anchor"]

_POWER = math.log(10.0) / 2.0
_ASIDE = 0.0137  # no delta that one asks for is between two anchors
_MOST_KEPT = 40_000  # nodes of a reading, one MB
_TRIES = 3  # anchors for an epsilon


def epsilon_from_anchor(composition: Composition, target: float) -> Found | None:
    """Epsilon at a log delta, if the anchor's reading is good there."""
    found = _at_anchor(composition, _nearest(target))
    reading = found.reading
    if reading is None:
        return None
    with contextlib.suppress(ContourDoesNotConverge):
        enough = _enough(found)
        at = settle(reading, found.epsilon, found.value, target, enough)
        return read_off(reading, *at, target, enough)
    return None


def delta_from_anchor(
    composition: Composition, epsilon: float, rough: float
) -> Value | None:
    """Delta at an epsilon, if the reading of its own anchor is good there.

    Args:
        composition: One direction of a composition.
        epsilon: Number >= 0.
        rough: About the log of delta.
    """
    value = Value(rough, 0.0, 0.0)
    for _ in range(_TRIES):
        power = _nearest(value.log_value)
        found = _at_anchor(composition, power)
        if found.reading is None:
            return None
        try:
            value = found.reading.value(epsilon)
        except ContourDoesNotConverge:
            return None
        if value.error <= _enough(found) and _nearest(value.log_value) == power:
            return value
        if value.error > 0.5:
            return None
    return None


def _nearest(log_delta: float) -> int:
    """The nearest power of the root of ten, below a third."""
    return min(round(log_delta / _POWER + _ASIDE), -1)


def _enough(found: Found) -> float:
    """The error that is accepted around an anchor."""
    return max(GOOD_ERROR, min(1.5 * found.error, CONTOUR_ERROR))


@functools.lru_cache(maxsize=32)
def _at_anchor(composition: Composition, power: int) -> Found:
    """What is found for a power; the last ones stay, if good and not huge."""
    with contextlib.suppress(ContourDoesNotConverge, *OUT_OF_REACH):
        found, _ = by_contours(composition, power * _POWER)
        small = found.reading is not None and found.reading.size <= _MOST_KEPT
        if small and found.error <= CONTOUR_ERROR:
            return found
    return NOTHING
