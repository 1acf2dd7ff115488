"""delta where one far jump and many small losses reach epsilon together.

In far tails neither a jump alone nor the sum of small losses is the likeliest way to
epsilon, and no single saddle point suits both. With jumps beyond a threshold *below*
epsilon taken out (see `far_jumps`, whose notation is used here),

    delta = E_P[prod w (1 - exp(epsilon - sum L))_+]
          + sum_i int (1 - w_i) dP_i delta_i(epsilon - L_i)  + (two jumps or more),

where delta_i belongs to the other releases without their jumps. Each of these is a
contour of its own, with a saddle point that suits it; the integral is summed over
Gauss-Legendre panels. Two jumps or more are at most half the square of the expected
number of jumps, which is how low the threshold may be.
"""

import bisect
import math

import numpy as np

from keras_gdp.accounting.exact.composition import Composition
from keras_gdp.accounting.exact.contour import Contour, ContourDoesNotConverge, Value
from keras_gdp.accounting.exact.far_jumps import WithoutFar, deviation
from keras_gdp.accounting.exact.moments import Array
from keras_gdp.accounting.exact.saddle import log_kappa, saddle_for_epsilon

__all__ = ["OneJump", "one_jump_threshold"]

_MOST_NODES = 20000  # of all contours together: beyond, a grid is faster
_SKIPPED = 1e-13  # panels that are left out
_POINTS = np.polynomial.legendre.leggauss(20)[0]
_LAST = np.array(
    [(2 * k + 1) * np.polynomial.legendre.Legendre.basis(k)(_POINTS) for k in (18, 19)]
)
_NODE_ERROR = 1e-9  # of a contour that serves its neighbours too
_FAR = 9.0  # standard deviations beyond which delta is that of a certainty
_RUNGS = 96
_TWO_JUMPS = 24.0  # their probability is exp(-24) of delta


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
        self._body = Contour(without.body, saddle_for_epsilon(without.body, epsilon))
        self._log_two = 2.0 * without.log_jumps - math.log(2.0)
        self._panels: list[tuple[Array, Array, _Rest]] = []
        total = self._body.value(epsilon).log_value
        scale = deviation(composition)
        for i, (loss, n) in enumerate(without.body.phases):
            rest = _Rest(without, i)
            for log_weights, losses in loss.lost_nodes(epsilon, scale):
                log_mass = log_weights + math.log(n)
                if float(log_mass.max()) < total - 35.0:
                    continue
                self._panels.append((log_mass, losses, rest))
                parts = rest.values(epsilon - losses)[0] + log_mass
                total = float(np.logaddexp(total, np.logaddexp.reduce(parts)))

    def value(self, epsilon: float) -> Value:
        """Log delta, its slope, and its relative error."""
        log_value, slope, error = self._body.value(epsilon)
        panels = [
            (log_mass + parts[0], parts[1], parts[2])
            for log_mass, losses, rest in self._panels
            for parts in (rest.values(epsilon - losses),)
        ]
        total = float(np.logaddexp.reduce([log_value, *(p[0].max() for p in panels)]))
        share = math.exp(log_value - total)
        mass, fall, error = share, slope * share, error * share
        for logs, slopes, errors in panels:
            shares = np.exp(logs - total)
            mass += float(shares.sum())
            fall += float(shares @ slopes)
            # The last Legendre coefficients bound what the panel does not resolve.
            error += float(shares @ errors) + float(np.abs(_LAST @ shares).sum())
        log_value = total + math.log(mass)
        two = math.exp(min(self._log_two - log_value, 700.0))
        return Value(log_value, fall / mass, error / mass + two + _SKIPPED)


class _Rest:
    """delta of all releases but one of phase i, by contours that are kept."""

    def __init__(self, without: WithoutFar, i: int) -> None:
        phases = [
            (loss, n - (j == i)) for j, (loss, n) in enumerate(without.body.phases)
        ]
        self._rest = Composition([(loss, n) for loss, n in phases if n > 0])
        if not self._rest.phases:
            raise ContourDoesNotConverge
        self._deviation = deviation(self._rest)
        self._mass = self._rest.real(0.0)[0]
        self._order = 0.5 * _FAR / self._deviation
        undone = max(without.reverse.real(self._order)[0], 0.0)
        self._log_undone = undone + log_kappa(self._order)
        # Left out of the cumulant, or impossible under P.
        self._aside = without.reverse_jumps + without.reverse_infinite
        self._contours: list[Contour] = []
        self._centres: list[float] = []  # the epsilons they were made for, increasing
        self._size = 0

    def values(self, epsilons: Array) -> tuple[Array, Array, Array]:
        """Log delta, slope and error at each epsilon."""
        found = np.array([self.value(float(epsilon)) for epsilon in epsilons])
        return found[:, 0], found[:, 1], found[:, 2]

    def value(self, epsilon: float) -> Value:
        if epsilon < -_FAR * self._deviation:
            return self._certain(epsilon)
        near = bisect.bisect(self._centres, epsilon)
        for i in range(max(near - 1, 0), min(near + 1, len(self._contours))):
            try:
                value = self._contours[i].value(epsilon)
            except ContourDoesNotConverge:
                continue
            own = abs(self._centres[i] - epsilon) < 1e-3 * self._deviation
            if value.error < _NODE_ERROR or own:
                return value
        saddle = saddle_for_epsilon(self._rest, epsilon)
        contour = Contour(self._rest, saddle)
        self._size += contour.size
        if self._size > _MOST_NODES:
            raise ContourDoesNotConverge
        value = contour.value(epsilon)
        if value.error > _NODE_ERROR:
            contour = Contour(self._rest, saddle._replace(log_delta=value.log_value))
            value = contour.value(epsilon)
        self._centres.insert(near, epsilon)
        self._contours.insert(near, contour)
        return value

    def _certain(self, epsilon: float) -> Value:
        """Where the sum is above epsilon but for a negligible probability.

        The mass under P less exp(epsilon) times that under Q, which is at most 1;
        how much the positive part adds is E_P[(exp(epsilon - sum L) - 1)_+].
        """
        scale = math.exp(epsilon)
        low = math.exp(self._mass) - scale
        undone = math.exp(min(0.0, (self._order + 1.0) * epsilon + self._log_undone))
        width = undone + scale * self._aside - math.expm1(self._mass)
        return Value(math.log(low), -scale / low, width / low)
