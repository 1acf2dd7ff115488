"""The largest trade-off function below several others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from keras_gdp.tradeoff._arrays import Array
from keras_gdp.tradeoff._solve import Point
from keras_gdp.tradeoff.base import TradeOff, checked_list

__all__ = ["LowerEnvelope", "lower_envelope"]


def lower_envelope(tradeoffs: Iterable[TradeOff]) -> TradeOff:
    """`min{f_1, f_2, ...}**`: the lower convex envelope of all graphs together.

    It is the guarantee of a mechanism of which only one of the `f_i` is known to hold;
    its profile is `max_i delta_i(epsilon)` at every real epsilon.

    Args:
        tradeoffs: at least one trade-off function.

    Returns:
        The envelope.

    Raises:
        ValueError: if there is none.

    Example:
        >>> from keras_gdp.tradeoff import from_pmfs
        >>> f = from_pmfs([0.5, 0.5, 0.0], [0.0, 0.5, 0.5])
        >>> lower_envelope([f, f.inverse()])(0.1)
        0.4
    """
    parts: list[TradeOff] = []
    for f in checked_list("tradeoffs", tradeoffs):
        for g in f.parts if isinstance(f, LowerEnvelope) else (f,):
            if g not in parts:
                parts.append(g)
    if not parts:
        raise ValueError(
            "Argument `tradeoffs` must hold at least one trade-off function. "
            "Received: none. Pass `[f]` for a single one."
        )
    return parts[0] if len(parts) == 1 else LowerEnvelope(tuple(parts))


@dataclass(frozen=True, repr=False)
class LowerEnvelope(TradeOff):
    """The lower convex envelope of at least two functions; see `lower_envelope`."""

    parts: tuple[TradeOff, ...]

    def __repr__(self) -> str:
        if self.is_symmetric and len(self.parts) == 2:
            return f"{self.parts[0]!r}.symmetrize()"
        return f"lower_envelope({list(self.parts)!r})"

    @property
    def accuracy(self) -> float:
        """The worst of the parts'."""
        return max(f.accuracy for f in self.parts)

    @property
    def is_symmetric(self) -> bool:
        """Whether every part comes with its inverse."""
        return all(f.inverse() in self.parts for f in self.parts)

    def _point(self, t: Array) -> Point:
        # The lowest line of slope -exp(t) supports the envelope. For t < 0 it is found
        # from the other side, where the profiles are not within 1e-16 of each other.
        height = np.array(
            [
                np.where(t >= 0, f._delta(np.abs(t)), f._reverse_delta(np.abs(t)))
                for f in self.parts
            ]
        )
        best = np.argmax(height, axis=0)
        rates = [f._point(t) for f in self.parts]
        column = np.arange(t.size)
        return Point(
            *(np.array(part)[best, column] for part in zip(*rates, strict=True))
        )

    def _delta(self, epsilon: Array) -> Array:
        return np.asarray(np.max([f._delta(epsilon) for f in self.parts], axis=0))

    def _reverse_delta(self, epsilon: Array) -> Array:
        parts = [f._reverse_delta(epsilon) for f in self.parts]
        return np.asarray(np.max(parts, axis=0))

    @property
    def _most_thresholds(self) -> int:
        return min(f._most_thresholds for f in self.parts)

    def _loss_range(self) -> tuple[float, float]:
        ranges = [f._loss_range() for f in self.parts]
        return min(low for low, _ in ranges), max(high for _, high in ranges)

    def inverse(self) -> TradeOff:
        """The envelope of the inverses."""
        if self.is_symmetric:
            return self
        return lower_envelope([f.inverse() for f in self.parts])
