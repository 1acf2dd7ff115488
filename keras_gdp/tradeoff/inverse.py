"""The inverse of a trade-off function: the two hypotheses swapped."""

from dataclasses import dataclass

from keras_gdp.tradeoff._arrays import Array
from keras_gdp.tradeoff._solve import Point
from keras_gdp.tradeoff.base import TradeOff

__all__ = ["Inverse"]


@dataclass(frozen=True, repr=False)
class Inverse(TradeOff):
    """`f^-1 = T(Q, P)` of a function without a closed inverse."""

    f: TradeOff

    def __repr__(self) -> str:
        return f"{self.f!r}.inverse()"

    @property
    def accuracy(self) -> float:
        """That of the original."""
        return self.f.accuracy

    def _point(self, t: Array) -> Point:
        # log(p / q) > t where log(q / p) < -t: the accepted outcomes are rejected.
        rates = self.f._point(-t)
        return Point(rates.beta, rates.alpha, rates.power, rates.accept)

    def _delta(self, epsilon: Array) -> Array:
        return self.f._reverse_delta(epsilon)

    def _reverse_delta(self, epsilon: Array) -> Array:
        return self.f._delta(epsilon)

    @property
    def _most_thresholds(self) -> int:
        return self.f._most_thresholds

    def _loss_range(self) -> tuple[float, float]:
        low, high = self.f._loss_range()
        return -high, -low

    def inverse(self) -> TradeOff:
        """The original."""
        return self.f

    def symmetrize(self) -> TradeOff:
        """The same as that of the original."""
        return self.f.symmetrize()

    def _compose_closed(self, other: TradeOff) -> TradeOff | None:
        if isinstance(other, Inverse):
            closed = self.f._compose_closed(other.f)
            return None if closed is None else closed.inverse()
        return None

    def _self_compose_closed(self, n: int) -> TradeOff | None:
        closed = self.f._self_compose_closed(n)
        return None if closed is None else closed.inverse()
