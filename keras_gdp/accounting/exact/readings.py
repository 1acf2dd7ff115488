"""Ways to read delta near an epsilon: contours, and grids where none will do."""

import contextlib
import functools
import math
from typing import Protocol

from keras_gdp.accounting.exact.composition import Composition
from keras_gdp.accounting.exact.contour import (
    GOOD_ERROR,
    ContourDoesNotConverge,
    Value,
    refined_contour,
)
from keras_gdp.accounting.exact.far_jumps import without_far
from keras_gdp.accounting.exact.grid import GridSum
from keras_gdp.accounting.exact.moments import QuadratureTooLargeError
from keras_gdp.accounting.exact.one_jump import OneJump, one_jump_log_delta
from keras_gdp.accounting.exact.saddle import saddle_for_epsilon

__all__ = ["Grids", "Reading", "contour_at"]

_LOOKS = 3  # thresholds that may be tried, each from a better delta
_GRID_ERROR = 1e-8  # of delta: better is not looked for where losses are rounded


class Reading(Protocol):
    """Something that gives delta for epsilons around one."""

    def value(self, epsilon: float) -> Value:
        """Log delta of the finite losses, its slope, the relative error of delta.

        Raises:
            ContourDoesNotConverge: If epsilon is too far from where it is meant for.
        """


def contour_at(composition: Composition, epsilon: float) -> Reading | None:
    """The contour, or sum of contours, with the smallest error; None if none is."""
    best: Reading | None = None
    saddle = saddle_for_epsilon(composition, epsilon)
    log_delta, least = -math.inf, math.inf
    with contextlib.suppress(ContourDoesNotConverge):
        best = refined_contour(composition, saddle)
        log_delta, _, least = best.value(epsilon)
    with contextlib.suppress(ContourDoesNotConverge, QuadratureTooLargeError):
        if least > 0.1:  # far jumps lead the saddle point astray
            log_delta = one_jump_log_delta(composition, epsilon)
        for _ in range(_LOOKS):
            if least <= GOOD_ERROR:
                break
            found = OneJump(composition, log_delta, epsilon)
            value, _, error = found.value(epsilon)
            if error < least:
                best, least = found, error
            if abs(value - log_delta) < 1.0:
                break
            log_delta = value
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
