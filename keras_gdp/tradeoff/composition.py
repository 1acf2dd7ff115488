"""Composition: the tensor product of trade-off functions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from keras_gdp.tradeoff._arrays import Array
from keras_gdp.tradeoff._solve import Point
from keras_gdp.tradeoff.base import TradeOff
from keras_gdp.tradeoff.inverse import Inverse
from keras_gdp.tradeoff.inversion import LossInversion, invertible
from keras_gdp.tradeoff.lattice import lattice_composition
from keras_gdp.tradeoff.piecewise import PiecewiseLinear, identity, no_privacy

__all__ = ["Composed", "compose"]

_MOST_EXACT_SEGMENTS = 2**16


def compose(factors: Iterable[tuple[TradeOff, int]]) -> TradeOff:
    """The tensor product of the given trade-off functions.

    Args:
        factors: pairs of a trade-off function and how often it occurs.

    Returns:
        A closed form where there is one, else an object that remembers its factors
        and composes them all at once when it is first evaluated.
    """
    counts: dict[TradeOff, int] = {}
    for f, n in factors:
        for g, m in f.factors if isinstance(f, Composed) else ((f, 1),):
            if n * m and g != identity():
                counts[g] = counts.get(g, 0) + n * m
    if no_privacy() in counts:
        return no_privacy()
    parts: list[tuple[TradeOff, int]] = []
    for f, n in counts.items():
        closed = f if n == 1 else f._self_compose_closed(n) or _power(f, n)
        parts.append((f, n) if closed is None else (closed, 1))
    parts = _merge_pairs(parts)
    if not parts:
        return identity()
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    return Composed(tuple(sorted(parts, key=lambda part: (repr(part[0]), part[1]))))


def _merge_pairs(parts: list[tuple[TradeOff, int]]) -> list[tuple[TradeOff, int]]:
    """Replaces pairs of single factors by their closed form, while there is one."""
    for i, (f, n) in enumerate(parts):
        for j in range(i + 1, len(parts)):
            g, m = parts[j]
            if n != 1 or m != 1:
                continue
            closed = f._compose_closed(g) or g._compose_closed(f) or _product(f, g)
            if closed is not None:
                rest = [part for k, part in enumerate(parts) if k not in (i, j)]
                return _merge_pairs([*rest, (closed, 1)])
    return parts


def _product(f: TradeOff, g: TradeOff) -> TradeOff | None:
    """The exact composition of two piecewise linear functions with few segments."""
    if not isinstance(f, PiecewiseLinear) or not isinstance(g, PiecewiseLinear):
        return None
    if f._t.size * g._t.size > _MOST_EXACT_SEGMENTS:
        return None
    p_only = f._p_only + g._p_only - f._p_only * g._p_only
    q_only = f._q_only + g._q_only - f._q_only * g._q_only
    return PiecewiseLinear(
        np.multiply.outer(f._p, g._p).ravel(),
        np.multiply.outer(f._q, g._q).ravel(),
        p_only,
        q_only,
        np.add.outer(f._t, g._t).ravel(),
    )


def _power(f: TradeOff, n: int) -> TradeOff | None:
    if not isinstance(f, PiecewiseLinear) or f._t.size == 0:
        return None
    if n * np.log(max(f._t.size, 2)) > np.log(_MOST_EXACT_SEGMENTS):
        return None
    result: TradeOff = f
    for _ in range(n - 1):
        product = _product(result, f)
        if product is None:
            return None
        result = product
    return result


class Composed(TradeOff):
    """A composition without a closed form.

    Where the loss has a density that is smooth enough, its distribution is recovered
    from its moment generating function (`inversion`), to about 1e-10. Otherwise every
    factor is replaced by a piecewise linear function below it whose log-slopes lie on
    a common lattice, and these are composed by the fast Fourier transform (`lattice`).

    Args:
        factors: pairs of a trade-off function and how often it occurs.
    """

    def __init__(self, factors: tuple[tuple[TradeOff, int], ...]) -> None:
        self.factors = factors

    def __repr__(self) -> str:
        names = [
            f"{f!r}.self_compose({n})" if n > 1 else repr(f) for f, n in self.factors
        ]
        return names[0] + "".join(f".compose({name})" for name in names[1:])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Composed):
            return NotImplemented
        return self.factors == other.factors

    def __hash__(self) -> int:
        return hash(self.factors)

    @property
    def is_symmetric(self) -> bool:
        """Whether every factor is."""
        return all(f.is_symmetric for f, _ in self.factors)

    @cached_property
    def _numeric(self) -> TradeOff:
        if invertible(self.factors):
            return LossInversion(self.factors)
        return lattice_composition(self.factors)

    @cached_property
    def accuracy(self) -> float:
        """How far a value may lie below the true function.

        Either the margin by which inverted values are lowered, or, on a lattice, twice
        the change that halving the lattice step makes (the error is of second order).
        """
        if isinstance(self._numeric, LossInversion):
            return self._numeric.accuracy
        coarse = lattice_composition(self.factors, coarsening=2)
        alpha = np.linspace(0.0, 1.0, 201)
        change = np.abs(self._numeric._values(alpha) - coarse._values(alpha))
        return float(2 * change.max()) + 1e-13

    def inverse(self) -> TradeOff:
        """The composition of the inverses."""
        return self if self.is_symmetric else Inverse(self)

    def _point(self, t: Array) -> Point:
        return self._numeric._point(t)

    def _values(self, alpha: Array) -> Array:
        return self._numeric._values(alpha)

    def _delta(self, epsilon: Array) -> Array:
        return self._numeric._delta(epsilon)

    def _reverse_delta(self, epsilon: Array) -> Array:
        if self.is_symmetric:
            return self._numeric._delta(epsilon)
        return self._numeric._reverse_delta(epsilon)

    def _loss_range(self) -> tuple[float, float]:
        ranges = [f._loss_range() for f, _ in self.factors]
        counts = [n for _, n in self.factors]
        return (
            sum(n * low for n, (low, _) in zip(counts, ranges, strict=True)),
            sum(n * high for n, (_, high) in zip(counts, ranges, strict=True)),
        )
