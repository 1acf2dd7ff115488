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

import contextlib
import itertools
import math

import numpy as np

from keras_gdp.accounting.exact.composition import Composition, Cumulant
from keras_gdp.accounting.exact.contour import (
    GOOD_ERROR,
    Contour,
    ContourDoesNotConverge,
    Value,
    refined_contour,
)
from keras_gdp.accounting.exact.far_jumps import WithoutFar, deviation
from keras_gdp.accounting.exact.moments import Array, ComplexArray
from keras_gdp.accounting.exact.privacy_loss import Jump, Loss
from keras_gdp.accounting.exact.saddle import (
    chernoff,
    saddle_for_delta,
    saddle_for_epsilon,
)

__all__ = ["OneJump", "one_jump_epsilon", "one_jump_log_delta"]

_RUNGS, _OCTAVE = 192, 16
_TWO_JUMPS = 24.0  # their probability is exp(-24) of delta
_SKIPPED = -27.0  # log of the share of delta that is not computed but bounded
_MISLED = 4.0  # logarithm of an estimate over a better one
_BAND = 4.0  # over which log of the probability of a jump falls

_Jumps = list[tuple[int, Loss, Jump]]  # releases, without and with the jump


def _ladder(composition: Composition) -> tuple[Array, Array]:
    """Thresholds, and the expected number of jumps beyond each.

    They are from one geometric ladder, so that neighbouring queries share them.
    """
    rung = math.floor(_OCTAVE * math.log2(max(deviation(composition), 1e-12)))
    ladder = 2.0 ** (np.arange(rung, rung + _RUNGS) / _OCTAVE)
    jumps = np.zeros(_RUNGS)
    for loss, n in composition.phases:
        if loss.without_far(float(ladder[-1])) is not loss or loss.max_loss == math.inf:
            masses = loss.masses(ladder)[0][1:]
            jumps += n * np.cumsum(masses[::-1])[::-1]
    return ladder, jumps


def _without_jumps(composition: Composition, log_delta: float) -> WithoutFar:
    """Split at the lowest threshold at which two jumps do not matter."""
    ladder, jumps = _ladder(composition)
    target = math.exp(max(0.5 * (log_delta + math.log(2.0) - _TWO_JUMPS), -700.0))
    for i in np.flatnonzero((jumps < target) & (jumps > 0.0))[:1].tolist():
        without = WithoutFar(composition, float(ladder[i]))
        if without.changes and without.rare:
            return without
    raise ContourDoesNotConverge


def _jumps(without: WithoutFar) -> _Jumps:
    phases = without.body.phases
    return [(n, loss, loss.far) for loss, n in phases if loss.far is not None]


def _bands(without: WithoutFar, log_delta: float) -> list[_Jumps]:
    """Jumps by size, those of a band about equally likely; negligible ones last."""
    ladder, jumps = _ladder(without.composition)
    cuts, log_jumps = [without.threshold], without.log_jumps
    for threshold, mass in zip(ladder.tolist(), jumps.tolist(), strict=True):
        if not mass > 0.0 or log_jumps < log_delta + _SKIPPED:
            break
        if threshold > cuts[-1] and math.log(mass) < log_jumps - _BAND:
            cuts.append(threshold)
            log_jumps = math.log(mass)
    bands = []
    for low, high in itertools.pairwise([*cuts, math.inf]):
        band = []
        for (whole, n), (loss, _) in zip(
            without.composition.phases, without.body.phases, strict=True
        ):
            jump = whole.without_far(low).far
            if jump is not None:
                band.append((n, loss, jump.below(high) if high < math.inf else jump))
        bands.append(band)
    return bands


class WithOneJump:
    """The cumulant K_1 of the compositions in which one release is a far jump.

    Args:
        body: The composition without far jumps.
        jumps: The jumps that count.
    """

    smooth = True

    def __init__(self, body: Composition, jumps: _Jumps) -> None:
        self._body, self._jumps = body, jumps
        self._log_counts = np.log([n for n, _, _ in jumps])
        self.largest_order = body.largest_order

    def real(self, s: float) -> tuple[float, float, float]:
        """K_1, K_1', K_1'' at real s."""
        rows = np.array(
            [np.subtract(jump.real(s), loss.real(s)) for _, loss, jump in self._jumps]
        )
        logs = rows[:, 0] + self._log_counts
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
        for n, loss, jump in self._jumps:
            change = jump.line(c, step, start, count)
            change -= loss.line(c, step, start, count)
            odds += n * np.exp(change - log_odds)
        decay = np.minimum(decay * np.abs(odds), 1.0)
        return total + log_odds + np.log(odds + 1e-300), decay

    def lasting(self, c: float) -> float:
        """A jump has no atoms."""
        return 0.0

    def rounding(self, s: float) -> float:
        """Rough size of the rounding error of K_1 at real s."""
        changes = [loss.rounding(s) + jump.rounding(s) for _, loss, jump in self._jumps]
        return self._body.rounding(s) + max(changes)


class OneJump:
    """delta near an epsilon as the sum of its parts without and with one jump.

    Args:
        composition: One direction of a composition.
        log_delta: A rough log of delta there.
        epsilon: Where delta will be read.

    Raises:
        ContourDoesNotConverge: If a part has no contour, or two jumps always matter.
    """

    def __init__(
        self, composition: Composition, log_delta: float, epsilon: float
    ) -> None:
        without = _without_jumps(composition, log_delta)
        self._log_two = 2.0 * without.log_jumps - math.log(2.0)
        body, made = without.body, dict[Cumulant, Contour]()
        whole: list[Cumulant] = [body, WithOneJump(body, _jumps(without))]
        # One saddle point suits jumps of all sizes if they get rarer fast enough;
        # else it lies where exp(K_1 - s epsilon) is far above delta.
        rough = saddle_for_epsilon(whole[1], epsilon).log_delta
        if rough < one_jump_log_delta(composition, epsilon) + _MISLED:
            with contextlib.suppress(ContourDoesNotConverge):
                self._read(whole, epsilon, made)
                if self.value(epsilon).error <= GOOD_ERROR:
                    return
        bands = _bands(without, log_delta)
        self._read([body, *(WithOneJump(body, band) for band in bands)], epsilon, made)

    def _read(
        self, parts: list[Cumulant], epsilon: float, made: dict[Cumulant, Contour]
    ) -> None:
        """Contours for all parts that can matter, the likely largest first."""
        saddles = [saddle_for_epsilon(part, epsilon) for part in parts]
        bounds = [
            chernoff(part, saddle.c, epsilon)
            for part, saddle in zip(parts, saddles, strict=True)
        ]
        self._contours: list[Contour] = []
        self._skipped: list[tuple[Cumulant, float]] = []
        largest = -math.inf
        for i in np.argsort(bounds)[::-1].tolist():
            part = parts[i]
            if bounds[i] < largest + _SKIPPED:
                self._skipped.append((part, saddles[i].c))
                continue
            if part not in made:
                saddle = saddles[i]
                if saddle.log_delta > largest - 5.0:
                    made[part] = refined_contour(part, saddle)
                else:  # it need not be more accurate than the sum
                    made[part] = Contour(part, saddle._replace(log_delta=largest))
            self._contours.append(made[part])
            largest = max(largest, made[part].value(epsilon).log_value)

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


def one_jump_epsilon(composition: Composition, log_delta: float) -> float:
    """A rough epsilon for a delta, where far jumps lead saddle points astray."""
    ladder, jumps = _ladder(composition)
    body = _without_jumps(composition, log_delta).body
    likelier = int(np.count_nonzero(jumps > math.exp(log_delta)))
    alone = float(ladder[likelier - 1]) if likelier else 0.0
    return max(alone, saddle_for_delta(body, log_delta).epsilon)


def one_jump_log_delta(composition: Composition, epsilon: float) -> float:
    """A rough log delta, where far jumps lead saddle points astray."""
    ladder, jumps = _ladder(composition)
    i = min(int(np.searchsorted(ladder, epsilon)), _RUNGS - 1)
    alone = math.log(jumps[i]) if jumps[i] > 0.0 else -math.inf
    without = WithoutFar(composition, float(ladder[i]))
    if not without.rare:
        return alone
    return max(alone, saddle_for_epsilon(without.body, epsilon).log_delta)
