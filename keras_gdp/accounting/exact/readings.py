"""Ways to read delta near an epsilon: contours, and grids where none will do."""

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Protocol

from keras_gdp.accounting.exact.composition import Composition
from keras_gdp.accounting.exact.contour import (
    FEW_NODES,
    GOOD_ERROR,
    ContourDoesNotConverge,
    Value,
    refined_contour,
)
from keras_gdp.accounting.exact.far_jumps import without_far
from keras_gdp.accounting.exact.grid import GridSum
from keras_gdp.accounting.exact.largest_jump import LargestJump
from keras_gdp.accounting.exact.moments import QuadratureTooLargeError
from keras_gdp.accounting.exact.saddle import saddle_for_epsilon

__all__ = [
    "CONTOUR_ERROR",
    "HUGE_CONTOUR_ERROR",
    "MOST_GRID_STEPS",
    "OUT_OF_REACH",
    "Bounds",
    "Grids",
    "Reading",
    "contour_at",
    "jumps_at",
    "tolerated",
]

Bounds = tuple[float, float]

OUT_OF_REACH = (QuadratureTooLargeError, OverflowError)

MOST_GRID_STEPS = 10**7  # beyond, a grid's rounding says nothing
CONTOUR_ERROR = 1e-8  # a contour whose own error bound is larger is refused,
HUGE_CONTOUR_ERROR = 1e-2  # unless there are so many steps that a grid is useless

_GRID_ERROR = 1e-8  # of delta: better is not looked for where losses are rounded


class Reading(Protocol):
    """Something that gives delta for epsilons around one."""

    @property
    def size(self) -> int:
        """Number of nodes."""

    def value(self, epsilon: float) -> Value:
        """Log delta of the finite losses, its slope, the relative error of delta.

        Raises:
            ContourDoesNotConverge: If epsilon is too far from where it is meant for.
        """

    def most(self, epsilon: float) -> float:
        """Log of a bound on that delta that needs no contour; infinity for none."""


class Mirrored:
    """The opposite direction's delta at minus epsilon, turned into this one's.

    With r = dP/dQ, (1 - x)_+ = 1 - x + (x - 1)_+ gives

        E_P[(1 - exp(epsilon)/r)_+] = 1 - exp(epsilon)
            + exp(epsilon) E_Q[(1 - exp(-epsilon) r)_+].

    That serves the direction whose losses have an atom as their largest value.
    Digits are lost where delta is small.
    """

    def __init__(self, composition: Composition, epsilon: float) -> None:
        if composition.infinite_mass > 0.0 or composition.reverse.infinite_mass > 0.0:
            raise ContourDoesNotConverge
        if epsilon > 30.0:
            raise ContourDoesNotConverge
        self._other = LargestJump(composition.reverse, -epsilon)

    @property
    def size(self) -> int:
        """Number of nodes."""
        return self._other.size

    def value(self, epsilon: float) -> Value:
        """Log delta, its slope, and its relative error."""
        other = self._other.value(-epsilon)
        scaled = math.exp(epsilon + other.log_value)
        error = scaled * (other.error + 1e-15) + 4e-16 * math.expm1(epsilon)
        value = scaled - math.expm1(epsilon)
        slope = scaled * (1.0 - other.slope) - math.exp(epsilon)
        if value <= error:  # between 0 and twice the error
            return Value(math.log(error), -1.0, 1.0)
        return Value(math.log(value), slope / value, error / value)

    def most(self, epsilon: float) -> float:
        """No bound."""
        return math.inf


def tolerated(composition: Composition) -> float:
    """The largest relative error of delta that a contour may report."""
    many = composition.steps > MOST_GRID_STEPS
    return HUGE_CONTOUR_ERROR if many else CONTOUR_ERROR


def jumps_at(composition: Composition, epsilon: float) -> Reading:
    """Sum over the size of the largest jump, in the direction that has jumps.

    Raises:
        ContourDoesNotConverge: If neither direction's contours converge.
    """
    try:
        if any(loss.jumps for loss, _ in composition.phases):
            return LargestJump(composition, epsilon)
        return Mirrored(composition, epsilon)
    except QuadratureTooLargeError:
        raise ContourDoesNotConverge from None


def contour_at(composition: Composition, epsilon: float) -> Reading | None:
    """The contour, or sum of contours, with the smallest error; None if none is."""
    best: Reading | None = None
    saddle, least = saddle_for_epsilon(composition, epsilon), math.inf
    attempts: list[Callable[[], Reading]] = [
        lambda: refined_contour(composition, saddle, FEW_NODES),
        lambda: jumps_at(composition, epsilon),
        lambda: refined_contour(composition, saddle),
    ]
    for attempt in attempts:
        with contextlib.suppress(ContourDoesNotConverge, *OUT_OF_REACH):
            found = attempt()
            error = found.value(epsilon).error
            if error < least:
                best, least = found, error
        if least <= GOOD_ERROR:
            break
    return best


class Grids:
    """Grid sums from above and from below, cut where that leaves the least error.

    Args:
        composition: One direction of a composition.
        epsilon: Where delta will be read.
        largest: The largest epsilon at which it will be read from the same grids.
    """

    def __init__(
        self, composition: Composition, epsilon: float, largest: float = 0.0
    ) -> None:
        self._composition, self._epsilon = composition, epsilon
        least = math.inf
        for without in without_far(composition, max(epsilon, largest)):
            coarse = GridSum(composition, without, epsilon, upper=True)
            error = coarse.value(epsilon).error
            if error < least:
                self._without, self.coarse, least = without, coarse, error
            if least <= _GRID_ERROR or error > 2.0 * least:
                break

    @functools.cached_property
    def upper(self) -> GridSum:
        """The losses rounded up."""
        return self._fine(True)

    @functools.cached_property
    def lower(self) -> GridSum:
        """The losses rounded down."""
        return self._fine(False)

    def _fine(self, upper: bool) -> GridSum:
        where = self._composition, self._without, self._epsilon
        return GridSum(*where, upper=upper, coarse=self.coarse)
