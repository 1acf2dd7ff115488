"""Advanced joint concavity: mixtures that share a component."""

from __future__ import annotations

import numpy as np

from keras_gdp import _validate
from keras_gdp.tradeoff._arrays import Array
from keras_gdp.tradeoff._solve import Point
from keras_gdp.tradeoff.base import TradeOff, checked_tradeoff
from keras_gdp.tradeoff.duality import from_delta

__all__ = ["advanced_mixture"]


def advanced_mixture(
    f: TradeOff,
    common_p: TradeOff,
    common_q: TradeOff,
    weight: float,
    *,
    plain: bool = True,
) -> TradeOff:
    r"""Bounds `T((1-w) R + w P, (1-w) R + w Q)` using how close R is to both.

    With `gamma' = 1 + w (gamma - 1)`, `gamma >= 1` and `b = gamma' / gamma`,

        H_{gamma'}(Q_w || P_w) = w H_gamma(Q || (1-b) R + b P)
                              <= w [ (1-b) H_gamma(Q || R) + b H_gamma(Q || P) ],

    and the same with P and Q exchanged. It is better than joint concavity where R lies
    between P and Q, and worse where R is far from both; the smaller one counts.

    Args:
        f: `T(P, Q)`.
        common_p: `T(R, P)`.
        common_q: `T(R, Q)`.
        weight: `w` in [0, 1].
        plain: also use joint concavity, `w H_{gamma'}(Q || P)`.

    Returns:
        A trade-off function below the mixtures' own. Its `delta(epsilon)` is the bound
        above for `epsilon >= 0`.

    Raises:
        ValueError: if `weight` is no probability.

    References:
        Wang et al., NeurIPS 2023, Section 3 (advanced joint concavity); Balle, Barthe
        and Gaboardi, "Privacy Amplification by Subsampling", Theorem 2.

    Example:
        >>> from keras_gdp.tradeoff import gaussian
        >>> f = advanced_mixture(gaussian(2.0), gaussian(1.0), gaussian(1.0), 0.2)
        >>> round(f.delta(0.1), 6)
        0.103027
    """
    weight = _validate.probability(
        "weight", weight, "It is the share w of the two distributions in the mixtures."
    )
    for name, function in (("f", f), ("common_p", common_p), ("common_q", common_q)):
        checked_tradeoff(name, function)
    return AdvancedMixture(f, common_p, common_q, weight, plain)


class AdvancedMixture(TradeOff):
    """The bound of `advanced_mixture`: a profile for `epsilon >= 0`, and its dual."""

    def __init__(
        self,
        f: TradeOff,
        common_p: TradeOff,
        common_q: TradeOff,
        weight: float,
        plain: bool,
    ) -> None:
        self._inputs = (f, common_p, common_q, weight, plain)
        scale = 1.0
        for side in (f, f.inverse(), common_p, common_q):
            reach = side._epsilon(np.array([1e-14 + float(side.delta(np.inf))]))[0]
            scale = max(scale, float(reach) if np.isfinite(reach) else 50.0)
        epsilons = np.concatenate([np.zeros(1), np.geomspace(1e-7, scale, 4000)])
        epsilons = np.log1p(weight * np.expm1(np.minimum(epsilons, 700.0)))
        epsilons = np.unique(np.concatenate([epsilons, np.linspace(0, scale, 2000)]))
        self._curve = from_delta(
            epsilons,
            self._delta(epsilons),
            reverse_deltas=self._reverse_delta(epsilons),
        )

    def __repr__(self) -> str:
        f, common_p, common_q, weight, _ = self._inputs
        return f"advanced_mixture({f!r}, {common_p!r}, {common_q!r}, {weight!r})"

    @property
    def accuracy(self) -> float:
        """Distance of the grid's lower bound from the supremum over all epsilons."""
        return 1e-6

    @property
    def is_symmetric(self) -> bool:
        """Whether the setting is the same after exchanging P and Q."""
        f, common_p, common_q, _, _ = self._inputs
        return f.is_symmetric and common_p == common_q

    def _one_side(
        self, epsilon: Array, from_common: TradeOff, from_other: TradeOff
    ) -> Array:
        _, _, _, weight, plain = self._inputs
        with np.errstate(over="ignore", divide="ignore"):
            inner = np.log1p(np.expm1(epsilon) / weight) if weight > 0 else np.inf
        inner = np.where(np.isfinite(epsilon), inner, np.inf)
        with np.errstate(invalid="ignore"):
            share = np.where(np.isfinite(inner), np.exp(epsilon - inner), weight)
        bound = (1 - share) * from_common._delta(inner)
        bound = weight * (bound + share * from_other._delta(inner))
        if plain:
            bound = np.minimum(bound, weight * from_other._delta(epsilon))
        return np.asarray(bound)

    def _delta(self, epsilon: Array) -> Array:
        f, _, common_q, _, _ = self._inputs
        upper = self._one_side(np.maximum(epsilon, 0.0), common_q, f)
        if (epsilon >= 0).all():
            return upper
        return np.where(epsilon >= 0, upper, self._mirrored(epsilon, reverse=True))

    def _reverse_delta(self, epsilon: Array) -> Array:
        f, common_p, _, _, _ = self._inputs
        upper = self._one_side(np.maximum(epsilon, 0.0), common_p, f.inverse())
        if (epsilon >= 0).all():
            return upper
        return np.where(epsilon >= 0, upper, self._mirrored(epsilon, reverse=False))

    def _mirrored(self, epsilon: Array, *, reverse: bool) -> Array:
        side = self._reverse_delta if reverse else self._delta
        size = np.abs(epsilon)
        return np.asarray(-np.expm1(-size) + np.exp(-size) * side(size))

    def _point(self, t: Array) -> Point:
        return self._curve._point(t)

    def _values(self, alpha: Array) -> Array:
        return self._curve._values(alpha)
