"""delta without far jumps, plus what far jumps add.

A sampled release has, rarely, a privacy loss far above all others. Such outcomes may
weigh nothing in delta(epsilon) and yet rule the cumulant K(s) at the s that suits
epsilon, which then suits nothing. So they are taken out: each outcome of a release is
a far jump with probability 1 - w(x), which is 1 far beyond a threshold above epsilon.
With J for at least one jump anywhere,

    delta = E_P[prod w (1 - exp(epsilon - sum L))_+]
            + E_P[J (1 - exp(epsilon - sum L))_+].

The first is a composition of losses of less mass, for contour or grid. In the second
a jump alone takes the sum beyond epsilon, so the positive part hardly matters:

    E_P[J (1 - exp(epsilon - sum L))_+] = P(J) - exp(epsilon) Q(J) + rest,

where 0 <= rest <= sum over i of E_P[J_i (exp(epsilon - sum L) - 1)_+]: the other
releases would have to undo the jump. The expectation over them is that of the
opposite direction, exp(e) delta_reverse(-e) at e = epsilon - L_i, which Chernoff's
inequality bounds.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from keras_gdp.accounting.exact.composition import Composition
from keras_gdp.accounting.exact.privacy_loss import LEAST_MASS
from keras_gdp.accounting.exact.saddle import log_kappa

__all__ = ["Bounds", "Far", "FarJumps", "WithoutFar", "without_far"]

Bounds = tuple[float, float]

_ORDERS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_LADDER = 20


class Far(NamedTuple):
    """Far outcomes of one release, of which there are `releases`.

    `p`, `q` are their masses under P and Q; `log_moment(s)` is the logarithm of
    E_P[exp(-s L)] over them.
    """

    releases: int
    p: float
    q: float
    log_moment: Callable[[float], float]


def deviation(composition: Composition) -> float:
    """Standard deviation of the composed loss, as far as jumps do not make it."""
    return math.sqrt(max(composition.real(-0.5)[2], 0.0))


def without_far(composition: Composition, epsilon: float) -> Iterator["WithoutFar"]:
    """The composition without jumps that are far, from close to epsilon on upwards.

    Thresholds are from one geometric ladder, so that neighbouring queries share them.
    The last has all jumps in it.
    """
    start = epsilon + 2.0 * deviation(composition)
    rung = math.ceil(4.0 * math.log2(max(start, 1e-12)))
    for k in range(rung, rung + _LADDER):
        found = WithoutFar(composition, 2.0 ** (k / 4.0))
        if not found.changes:
            break
        if found.rare:
            yield found
    yield WithoutFar(composition, math.inf)


class WithoutFar:
    """A composition without the jumps beyond a threshold, and what they add.

    Args:
        composition: One direction of a composition.
        threshold: Single losses above about this one are left out.
    """

    def __init__(self, composition: Composition, threshold: float) -> None:
        self.composition, self.threshold = composition, threshold
        self.body = _without(composition, threshold)
        jumps = math.fsum(n * loss.lost[0] for loss, n in self.body.phases)
        self.changes = jumps > 0.0
        self.rare = all(loss.lost[0] < 0.5 for loss, _ in self.body.phases)
        self.log_jumps = math.log(jumps) if self.changes else -math.inf
        self.reverse = _without(composition.reverse, threshold)
        self.reverse_jumps = math.fsum(n * x.lost[0] for x, n in self.reverse.phases)
        self.reverse_infinite = composition.reverse.infinite_mass


class FarJumps:
    """Bounds on what far outcomes of single releases add to delta.

    Args:
        without: The composition without its far jumps.
        fars: The far outcomes of its releases, phase by phase.
    """

    def __init__(self, without: WithoutFar, fars: list[Far]) -> None:
        composition, reverse = without.composition, without.reverse
        self._p = _any([(far.releases, far.p) for far in fars], composition)
        self._q = _any([(far.releases, far.q) for far in fars], composition.reverse)
        self._reverse_jumps = without.reverse_jumps
        self._undone: list[tuple[float, float]] = []
        if self._p == 0.0:
            return
        # Q(J) may have underflown, and is then between 0 and E_P[J exp(-L)].
        logs = [math.log(f.releases) + f.log_moment(1.0) for f in fars if f.p > 0.0]
        known = self._q >= LEAST_MASS
        self._log_q = math.log(self._q) if known else float(np.logaddexp.reduce(logs))
        unit = 1.0 / max(deviation(composition), 1e-12)
        for factor in _ORDERS:
            c = factor * unit
            if c >= reverse.largest_order:
                break
            logs = [
                far.log_moment(c + 1.0) + math.log(far.releases)
                for far in fars
                if far.p > 0.0
            ]
            value = reverse.real(c)[0] + log_kappa(c)
            self._undone.append((c + 1.0, value + float(np.logaddexp.reduce(logs))))

    def __call__(self, epsilon: float) -> Bounds:
        """Bounds on what is added to delta(epsilon), epsilon >= 0."""
        if self._p == 0.0:
            return 0.0, 0.0
        # exp(epsilon) Q(J), where it is below 1: else it says no more than 1 does.
        most = math.exp(min(epsilon + self._log_q, 0.0))
        least = most if self._q >= LEAST_MASS else 0.0
        rounding = 1e-14 * (self._p + most)
        rest = min((order * epsilon + log for order, log in self._undone), default=0.0)
        high = self._p - least + math.exp(min(rest, 0.0)) + most * self._reverse_jumps
        high = min(high + rounding, self._p * (1.0 + 1e-14))
        return max(0.0, self._p - most - rounding), max(0.0, high)


def _without(composition: Composition, threshold: float) -> Composition:
    return Composition(
        [(loss.without_far(threshold), n) for loss, n in composition.phases]
    )


def _any(masses: list[tuple[int, float]], composition: Composition) -> float:
    """Probability that all losses are finite and one is a far jump at least."""
    log_none = math.fsum(
        n * math.log1p(-min(mass / (1.0 - loss.infinite_mass), 1.0 - 1e-16))
        for (n, mass), (loss, _) in zip(masses, composition.phases, strict=True)
        if loss.infinite_mass < 1.0
    )
    return -math.expm1(log_none) * (1.0 - composition.infinite_mass)
