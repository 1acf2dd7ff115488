"""A composition seen from one direction: phases of losses with their counts."""

import functools
import math
from typing import Protocol

import numpy as np

from keras_gdp.accounting.events import Event
from keras_gdp.accounting.exact.pairs import dominating_pair
from keras_gdp.accounting.exact.privacy_loss import (
    GaussianLoss,
    Loss,
    are_multiples,
)
from keras_gdp.accounting.exact.release import log_delta_of_one
from keras_gdp.accounting.exact.waves import Array, ComplexArray

__all__ = ["Composition", "Cumulant", "directions"]


_ORDER = 1e12  # five times the largest order of a saddle,
_ORDER_OF_ATOMS = 1e7  # and what quadratures of losses with atoms reach


class Cumulant(Protocol):
    """K(s), log of the integral of exp(s L) over a measure of mass 1 at most."""

    largest_order: float
    settled: float  # frequency from which on |exp K| is below exp(-SETTLED)

    @property
    def smooth(self) -> bool:
        """Whether the transform decays along vertical lines."""

    def line(
        self, c: float, step: float, start: int, count: int
    ) -> tuple[ComplexArray, Array]:
        """K on a vertical line, and a bound on |exp K| / exp K(c)."""

    def real(self, s: float) -> tuple[float, float, float]:
        """K, K', K'' at real s."""

    @property
    def log_mass(self) -> float:
        """K(0), or a little more, and at most 0."""

    def lasting(self, c: float) -> float:
        """What |exp K| / exp K(c) stays above however far the line goes."""

    def rounding(self, s: float, frequency: float = 1.0) -> float:
        """Rough size of the rounding error of K at s and up to a frequency."""


class Composition:
    """Sum of independent privacy losses, count_i copies of loss i.

    Args:
        phases: The losses with their counts >= 1.
    """

    def __init__(self, phases: list[tuple[Loss, int]]) -> None:
        self.phases = phases
        self.max_loss = sum(n * loss.max_loss for loss, n in phases)
        # Losses far below 1 need large orders to show that they cannot add up to an
        # epsilon.
        order = _ORDER if all(loss.smooth for loss, _ in phases) else _ORDER_OF_ATOMS
        orders = [loss.largest_order for loss, _ in phases]
        self.largest_order = min([order, *orders]) / 5.0
        self.settled = max(loss.settled for loss, _ in phases)
        # 1 - prod (1 - P(L_i = inf)): this delta remains at every epsilon.
        log_finite = math.fsum(
            n * math.log1p(-loss.infinite_mass) if loss.infinite_mass < 1 else -math.inf
            for loss, n in phases
        )
        self.infinite_mass = -math.expm1(log_finite)
        self.reverse = self  # the other direction, set by `directions`

    @property
    def smooth(self) -> bool:
        """Whether any loss is without atoms, so that the transform decays."""
        return any(loss.smooth for loss, _ in self.phases)

    @property
    def lattice(self) -> float:
        """Sums of finite losses differ by multiples of it; 0 if by anything."""
        spacings = np.array([loss.lattice for loss, _ in self.phases])
        least = float(spacings.min())
        return least if least > 0.0 and are_multiples(spacings, least) else 0.0

    @property
    def steps(self) -> int:
        """Number of releases."""
        return sum(n for _, n in self.phases)

    @functools.cached_property
    def total_variation(self) -> float:
        """Upper bound on delta(0): single steps' deltas add."""
        total = self.infinite_mass
        for loss, n in self.phases:
            total += n * math.exp(log_delta_of_one(loss, 0.0)[1])
        return total * (1.0 + 1e-14)

    def line(
        self, c: float, step: float, start: int, count: int
    ) -> tuple[ComplexArray, Array]:
        """K on a vertical line, and what |exp K| / exp K(c) may come back to."""
        total = np.zeros(count, dtype=np.complex128)
        decay = np.zeros(count)
        tau = step * np.arange(start, start + count, dtype=np.float64)
        for loss, n in self.phases:
            values = loss.line(c, step, start, count)
            total += n * values
            decay += n * loss.decay(c, tau, values)
        return total, np.exp(np.minimum(decay, 0.0))

    def lasting(self, c: float) -> float:
        """What the decay along a line stays above: the share of atoms."""
        share = 1.0
        for loss, n in self.phases:
            share *= loss.lasting(c) ** n
        return share

    def rounding(self, s: float, frequency: float = 1.0) -> float:
        """Rough size of the rounding error of K at s and up to a frequency."""
        return math.fsum(n * loss.rounding(s, frequency) for loss, n in self.phases)

    def real(self, s: float) -> tuple[float, float, float]:
        """K, K', K'' of the composition at real s."""
        rows = [(n, loss.real(s)) for loss, n in self.phases]
        k0, k1, k2 = (math.fsum(n * row[i] for n, row in rows) for i in range(3))
        return k0, k1, k2

    @functools.cached_property
    def log_mass(self) -> float:
        """K(0), or a little more: log of the mass under P."""
        return math.fsum(n * loss.log_mass for loss, n in self.phases)


@functools.lru_cache(maxsize=32)
def directions(
    events: tuple[tuple[Event, int], ...], relation: str, group_size: int
) -> tuple[Composition, ...]:
    """The compositions whose larger delta counts: one if symmetric, else two.

    All plain Gaussian releases are merged into one (mu adds up in squares).

    Args:
        events: Elementary events with counts.
        relation: `"add_remove"` or `"replace_one"`.
        group_size: In how many records neighbouring data sets differ.

    Returns:
        No composition if nothing costs anything.
    """
    sides: tuple[list[tuple[Loss, int]], list[tuple[Loss, int]]] = ([], [])
    square, symmetric = 0.0, True
    for event, count in events:
        pair = dominating_pair(event, relation, group_size)
        if pair is None or count == 0:
            continue
        if isinstance(pair.forward, GaussianLoss):
            square += count * pair.times * pair.forward.mu**2
            continue
        symmetric = symmetric and pair.forward is pair.reverse
        sides[0].append((pair.forward, count * pair.times))
        sides[1].append((pair.reverse, count * pair.times))
    if square > 0.0:
        merged = GaussianLoss(math.sqrt(square))
        for side in sides:
            side.append((merged, 1))
    if not sides[0]:
        return ()
    if symmetric:
        return (Composition(sides[0]),)
    forward, reverse = Composition(sides[0]), Composition(sides[1])
    forward.reverse, reverse.reverse = reverse, forward
    return forward, reverse
