"""delta by the size of the largest jump: a sum of contours, each with its own saddle.

A sampled release has, rarely, a privacy loss far above all others: a jump. Jumps can
weigh nothing in delta and yet rule the cumulant at the order that suits epsilon; one
jump, two, or none with many small losses can be equally likely ways to epsilon; and
after few releases the outcomes without jumps are nearly an atom, whose transform
hardly decays. No single line suits them all. So let w_0 <= w_1 <= ... <= w_m = 1 be
smooth weights of the outcomes that are no jumps beyond thresholds l_0 < ... < l_m =
infinity (see `jumps`), and exp M_k = E_P[w_k exp(s L)] for each release. Then

    prod exp M_m = prod exp M_0 + sum over k of (prod exp M_(k+1) - prod exp M_k)

holds exactly, whatever the number of jumps: the first part has none beyond l_0, the
others have their largest jump between l_k and l_(k+1) (their cumulants: see `band`).
As the near-atom is subtracted they decay like the jumps alone, at frequencies of about
100/l_k. Losses below a threshold of about epsilon/n cannot add up to epsilon: with a
suitable l_0 the first part is negligible, and bounded by Chernoff's inequality. Where
no threshold is low enough it has a contour too, and where that is a short one above all
jumps that happen there need be no bands. Jumps beyond the last finite threshold add at
most their probability.

Thresholds are counted from the loss of a release in which no record is drawn, in
powers of two, so that neighbouring queries share them.
"""

import contextlib
import math

import numpy as np

from keras_gdp.accounting.exact.band import Band
from keras_gdp.accounting.exact.composition import Composition, Cumulant
from keras_gdp.accounting.exact.contour import (
    FEW_NODES,
    GOOD_ERROR,
    Contour,
    ContourDoesNotConverge,
    Value,
    refined_contour,
)
from keras_gdp.accounting.exact.far_jumps import deviation
from keras_gdp.accounting.exact.privacy_loss import Jump
from keras_gdp.accounting.exact.saddle import (
    Saddle,
    chernoff,
    saddle_for_epsilon,
    saddle_from,
)

__all__ = ["LargestJump"]

_SKIPPED = -30.0  # log of the share of delta that is not computed but bounded
_LOWEST, _HIGHEST = -60, 12  # binary logarithms of thresholds
_BANDS = (2, 1)  # octaves of a band, and if the first is not accurate enough
_RARE = -800.0  # log of how many jumps are first taken for none
_WORTH = 4  # octaves around epsilon/n in which the first threshold is looked for
_LEFT = (1.0, 0.7, 0.5, 0.35, 0.25)
_STEADY = 30.0  # by what the variance may grow up to a saddle that small losses rule
_SLACK = 3.0  # in Chernoff's bound: a cut fade may make a cumulant as inaccurate


class LargestJump:
    """delta near an epsilon as the sum over bands of the largest jump.

    Args:
        composition: One direction of a composition.
        epsilon: Where delta will be read, any real number.

    Raises:
        ContourDoesNotConverge: If no release can jump, or a part has no contour.
    """

    def __init__(self, composition: Composition, epsilon: float) -> None:
        kinds = [(loss, n) for loss, n in composition.phases if loss.jumps]
        room = epsilon - math.fsum(n * loss.rest for loss, n in kinds)
        if epsilon >= 0.0:  # no jump worth the name is smaller than usual losses
            room = max(room, deviation(composition))
        if not kinds or not 2.0**_LOWEST < room < 2.0**_HIGHEST:
            raise ContourDoesNotConverge
        self._composition, self._epsilon = composition, epsilon
        self._bodies: dict[int, Composition] = {}
        self._steps = sum(n for _, n in kinds)
        for octaves in _BANDS:
            self._read(math.floor(math.log2(room)), octaves)
            if self.value(epsilon).error <= GOOD_ERROR:
                break

    def _body(self, k: int) -> Composition:
        """The composition without jumps beyond 2^k."""
        if k not in self._bodies:
            self._bodies[k] = without_jumps(self._composition, 2.0**k)
        return self._bodies[k]

    def _cuts(self, k: int) -> bool:
        """Whether all losses that jump take values on both sides of 2^k."""
        return all(loss.far for loss, _ in self._body(k).phases if loss.jumps)

    def _band(self, low: int, high: int) -> Band | None:
        """The compositions whose largest jump is from 2^low to 2^high."""
        jumps: list[Jump | None] = []
        phases = zip(self._composition.phases, self._body(low).phases, strict=True)
        for (whole, _), (loss, _) in phases:
            far = loss.far
            jumps.append(far and far.below(whole.rest + 2.0**high))
        return Band(self._body(low), jumps) if any(jumps) else None

    def _read(self, middle: int, octaves: int) -> None:
        """Contours for all parts that matter."""
        self._parts: list[tuple[Cumulant, Saddle]] = []
        self._largest = -math.inf
        start = octaves * (middle // octaves)
        while start < _HIGHEST and not self._cuts(start):
            start += 1
        while self._cuts(start - octaves) and self._rare(start - octaves, _RARE):
            start -= octaves
        first = self._steady(self._body(start))
        self._contours: list[Contour] = [first] if first else []
        self._first: list[tuple[Cumulant, float]] = [
            (self._body(start), contour.saddle.c) for contour in self._contours
        ]
        high = self._ascend(start, octaves, _RARE)
        if not first:
            self._descend(middle, start, octaves)
        high = self._ascend(high, octaves)
        self._log_beyond = _log_jumps(self._body(high))
        self._skipped: list[tuple[Cumulant, float]] = []
        for part, saddle in self._parts:
            most = _log_most(part, saddle.c, self._epsilon)
            if most < self._largest + _SKIPPED:
                self._skipped.append((part, saddle.c))
            else:
                self._contours.append(self._contour(part, saddle))

    def _add(self, low: int, high: int) -> None:
        """Adds a band to the parts."""
        band = self._band(low, high)
        if band is not None:
            saddle = self._saddle(band)
            self._parts.append((band, saddle))
            self._largest = max(self._largest, saddle.log_delta)

    def _steady(self, body: Composition) -> Contour | None:
        """The contour of a body that many small losses rule rather than rare ones."""
        saddle = saddle_for_epsilon(body, self._epsilon)
        if saddle.curvature > _STEADY * body.real(0.0)[2]:
            return None
        with contextlib.suppress(ContourDoesNotConverge):
            contour = refined_contour(body, saddle, FEW_NODES)
            log_value, _, error = contour.value(self._epsilon)
            if error <= GOOD_ERROR:
                self._largest = log_value
                return contour
        return None

    def _rare(self, k: int, least: float = -math.inf) -> bool:
        """Whether jumps beyond 2^k hardly matter in all parts so far."""
        return _log_jumps(self._body(k)) < max(self._largest + _SKIPPED, least)

    def _ascend(self, high: int, octaves: int, least: float = -math.inf) -> int:
        """Adds bands up to where jumps are too rare to matter, and says where."""
        while high < _HIGHEST and not self._rare(high, least):
            self._add(high, high + octaves)
            high += octaves
        self._parts.reverse()
        return high

    def _descend(self, middle: int, start: int, octaves: int) -> None:
        """Adds bands down to where losses cannot add up to epsilon; a first part."""
        least = middle - math.log2(self._steps)
        low = k = start
        while True:
            last = k < least - _WORTH or not self._cuts(k - 1)
            if last or k < least + _WORTH:
                body = self._body(k)
                saddle = self._saddle(body)
                most = _log_most(body, saddle.c, self._epsilon)
                if last or most < self._largest + _SKIPPED:
                    break
            k -= 1
            if k == low - octaves:
                low = k
                self._add(low, low + octaves)
        if k < low:
            self._add(k, low)
        self._parts.append((body, saddle))

    def _contour(self, part: Cumulant, saddle: Saddle) -> Contour:
        """The contour of a part, left of the saddle where the whole allows for it.

        There a cut fade does not show.
        """
        point = saddle
        for factor in _LEFT:
            if factor < 1.0:
                point = saddle_from(part, factor * saddle.c, self._epsilon)
            if point.log_delta > max(self._largest, saddle.log_delta + 1.0):
                break
            with contextlib.suppress(ContourDoesNotConverge):
                return Contour(part, point, self._largest)
        raise ContourDoesNotConverge

    def _saddle(self, part: Cumulant) -> Saddle:
        """The saddle of a part, looked for near that of its neighbour."""
        start = self._parts[-1][1].c if self._parts else 0.0
        return saddle_for_epsilon(part, self._epsilon, start)

    @property
    def size(self) -> int:
        """Number of nodes."""
        return sum(contour.size for contour in self._contours)

    def value(self, epsilon: float) -> Value:
        """Log delta, its slope, and its relative error."""
        values = [contour.value(epsilon) for contour in self._contours]
        log_value = float(np.logaddexp.reduce([value.log_value for value in values]))
        slope = error = 0.0
        for value in values:
            share = math.exp(value.log_value - log_value)
            slope, error = slope + share * value.slope, error + share * value.error
        error += math.exp(min(self._bound(self._skipped, epsilon) - log_value, 700.0))
        return Value(log_value, slope, error)

    def most(self, epsilon: float) -> float:
        """Log of the sum of the parts' bounds."""
        lines = [(part, saddle.c) for part, saddle in self._parts]
        return self._bound([*lines, *self._first], epsilon)

    def _bound(self, parts: list[tuple[Cumulant, float]], epsilon: float) -> float:
        """Log of a bound on delta by these parts and what is beyond them."""
        bounds = [_log_most(part, c, epsilon) for part, c in parts]
        return float(np.logaddexp.reduce([self._log_beyond, *bounds]))


def without_jumps(composition: Composition, threshold: float) -> Composition:
    """The composition without outcomes that lose so much more than no record drawn."""
    phases = [
        (loss.without_far(loss.rest + threshold) if loss.jumps else loss, n)
        for loss, n in composition.phases
    ]
    return Composition(phases)


def _log_most(part: Cumulant, c: float, epsilon: float) -> float:
    """Log of a bound on the delta of a part: its mass, or Chernoff's at an order."""
    return min(part.log_mass, chernoff(part, c, epsilon)) + _SLACK


def _log_jumps(body: Composition) -> float:
    """Log of the expected number of jumps that a composition is without."""
    logs = [math.log(n) + loss.log_lost for loss, n in body.phases]
    return float(np.logaddexp.reduce(logs))
