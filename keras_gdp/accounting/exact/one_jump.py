"""delta as a contour without far jumps plus a contour with exactly one.

One release may, rarely, lose far more than all others together. Such jumps can weigh
nothing in delta and yet rule the cumulant at the order that suits epsilon, or be the
likeliest way to epsilon together with many small losses: then no single saddle point
suits both. Let w be the weight of the outcomes that are no jumps (see `far_jumps`).
Multiplying out prod (w + (1 - w)) over the releases,

    delta = delta without jumps + delta with one jump + (two jumps or more),

where the first two are inversions with the cumulants

    K_0(s) = sum_i n_i M_i(s),
    K_1(s) = K_0(s) + log sum_i n_i exp(J_i(s) - M_i(s)),

exp M_i = E_P[w exp(s L_i)] and exp J_i = E_P[(1 - w) exp(s L_i)]. Each has a saddle
point of its own. Two jumps or more are at most half the square of the expected number
of jumps, which is how low the threshold between the two may be.
"""

import math

import numpy as np

from keras_gdp.accounting.exact.composition import Composition, Cumulant
from keras_gdp.accounting.exact.contour import (
    Contour,
    ContourDoesNotConverge,
    Value,
    refined_contour,
)
from keras_gdp.accounting.exact.far_jumps import WithoutFar, deviation
from keras_gdp.accounting.exact.moments import Array, ComplexArray
from keras_gdp.accounting.exact.saddle import (
    Saddle,
    chernoff,
    saddle_for_delta,
    saddle_for_epsilon,
)

__all__ = ["OneJump", "one_jump_epsilon", "one_jump_threshold"]

_RUNGS = 96
_TWO_JUMPS = 24.0  # their probability is exp(-24) of delta
_SKIPPED = -27.0  # log of the share of delta that is not computed but bounded


def one_jump_threshold(composition: Composition, log_delta: float) -> float | None:
    """The lowest threshold at which two jumps do not matter, None if there is none.

    Thresholds are from one geometric ladder, so that neighbouring queries share them.
    """
    target = math.exp(max(0.5 * (log_delta + math.log(2.0) - _TWO_JUMPS), -700.0))
    rung = math.floor(8.0 * math.log2(max(deviation(composition), 1e-12)))
    ladder = 2.0 ** (np.arange(rung, rung + _RUNGS) / 8.0)
    jumps = np.zeros(_RUNGS)
    for loss, n in composition.phases:
        if loss.without_far(float(ladder[-1])) is not loss or loss.max_loss == math.inf:
            masses = loss.masses(ladder)[0][1:]
            jumps += n * np.cumsum(masses[::-1])[::-1]
    rare = np.flatnonzero((jumps < target) & (jumps > 0.0))
    return float(ladder[rare[0]]) if rare.size else None


class WithOneJump:
    """The cumulant K_1 of the compositions in which one release is a far jump.

    Args:
        body: The composition without far jumps.
    """

    smooth = True

    def __init__(self, body: Composition) -> None:
        self._body = body
        self._jumps = [
            (math.log(n), loss, loss.far)
            for loss, n in body.phases
            if loss.far is not None
        ]
        self.largest_order = body.largest_order

    def real(self, s: float) -> tuple[float, float, float]:
        """K_1, K_1', K_1'' at real s."""
        rows = np.array(
            [np.subtract(far.real(s), loss.real(s)) for _, loss, far in self._jumps]
        )
        logs = rows[:, 0] + [log_n for log_n, _, _ in self._jumps]
        log_odds = float(np.logaddexp.reduce(logs))
        share = np.exp(logs - log_odds)
        mean = float(share @ rows[:, 1])
        spread = float(share @ (rows[:, 2] + (rows[:, 1] - mean) ** 2))
        k0, k1, k2 = self._body.real(s)
        return k0 + log_odds, k1 + mean, k2 + spread

    def line(
        self, c: float, step: float, start: int, count: int
    ) -> tuple[ComplexArray, Array]:
        """K_1 on a vertical line, and |exp K_1| / exp K_1(c) without the atoms."""
        total, decay = self._body.line(c, step, start, count)
        log_odds = self.real(c)[0] - self._body.real(c)[0]
        odds = np.zeros(count, dtype=np.complex128)
        for log_n, loss, far in self._jumps:
            change = far.line(c, step, start, count)
            change -= loss.line(c, step, start, count)
            odds += np.exp(change + (log_n - log_odds))
        decay = np.minimum(decay * np.abs(odds), 1.0)
        return total + log_odds + np.log(odds + 1e-300), decay

    def rounding(self, s: float) -> float:
        """Rough size of the rounding error of K_1 at real s."""
        changes = [loss.rounding(s) + far.rounding(s) for _, loss, far in self._jumps]
        return self._body.rounding(s) + max(changes)


class OneJump:
    """delta near an epsilon as the sum of its parts without and with one jump.

    Args:
        composition: One direction of a composition.
        threshold: Losses above it are jumps.
        epsilon: Where delta will be read.

    Raises:
        ContourDoesNotConverge: If a part has no contour.
    """

    def __init__(
        self, composition: Composition, threshold: float, epsilon: float
    ) -> None:
        without = WithoutFar(composition, threshold)
        if not without.changes:
            raise ContourDoesNotConverge
        self._log_two = 2.0 * without.log_jumps - math.log(2.0)
        self._contours: list[Contour] = []
        self._skipped: list[tuple[Cumulant, float]] = []
        parts: list[tuple[float, Cumulant, Saddle]] = []
        both: tuple[Cumulant, ...] = (without.body, WithOneJump(without.body))
        for part in both:
            saddle = saddle_for_epsilon(part, epsilon)
            parts.append((chernoff(part, saddle.c, epsilon), part, saddle))
        largest = -math.inf
        for bound, part, saddle in sorted(parts, key=lambda row: -row[0]):
            if bound < largest + _SKIPPED:
                self._skipped.append((part, saddle.c))
                continue
            contour = refined_contour(part, saddle)
            if contour is None:
                raise ContourDoesNotConverge
            self._contours.append(contour)
            largest = max(largest, contour.value(epsilon).log_value)

    def value(self, epsilon: float) -> Value:
        """Log delta, its slope, and its relative error."""
        values = [contour.value(epsilon) for contour in self._contours]
        log_value = float(np.logaddexp.reduce([value.log_value for value in values]))
        bounds = [chernoff(part, c, epsilon) for part, c in self._skipped]
        slope = error = 0.0
        for value in values:
            share = math.exp(value.log_value - log_value)
            slope, error = slope + share * value.slope, error + share * value.error
        for bound in (self._log_two, *bounds):
            error += math.exp(min(bound - log_value, 700.0))
        return Value(log_value, slope, error)


def one_jump_epsilon(
    composition: Composition, threshold: float, log_delta: float
) -> float:
    """A rough epsilon at which delta is the given one."""
    body = WithoutFar(composition, threshold).body
    parts: tuple[Cumulant, ...] = (body, WithOneJump(body))
    return max(saddle_for_delta(part, log_delta).epsilon for part in parts)
