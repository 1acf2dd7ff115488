"""Mixtures of mechanisms: joint concavity of trade-off functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from keras_gdp import _gdp
from keras_gdp.tradeoff._arrays import Array, probabilities
from keras_gdp.tradeoff._solve import Point
from keras_gdp.tradeoff.base import TradeOff, checked_list
from keras_gdp.tradeoff.gaussian import Gaussian, gaussian
from keras_gdp.tradeoff.piecewise import PiecewiseLinear, identity

__all__ = ["GaussianMixture", "Mixture", "mixture"]


def mixture(tradeoffs: Sequence[TradeOff], weights: ArrayLike) -> TradeOff:
    r"""The joint-concavity bound for mixtures of output distributions.

    For `P_w = sum_i w_i P_i` and `Q_w = sum_i w_i Q_i` with `f_i = T(P_i, Q_i)`,

        T(P_w, Q_w)(alpha) >= f_w(alpha) = inf { sum_i w_i f_i(a_i) : sum_i w_i a_i =
        alpha },

    where the infimum is reached at levels `a_i` of equal slope. It is what releasing
    the index `i` as well would give; it is tight if the likelihood ratios that the
    components give to an outcome agree (for instance on disjoint supports). Its profile
    is `sum_i w_i delta_i(epsilon)`.

    Args:
        tradeoffs: the trade-off functions `f_i`.
        weights: probabilities of the components, summing to 1.

    Returns:
        `f_w`; symmetric if every `f_i` is.

    Raises:
        ValueError: if the weights do not match or do not sum to 1.

    References:
        Wang, Su, Ye, Shokri and Su, "Unified Enhancement of Privacy Bounds for Mixture
        Mechanisms via f-Differential Privacy", NeurIPS 2023, Lemma 3.1.

    Example:
        >>> from keras_gdp.tradeoff import gaussian
        >>> f = mixture([gaussian(0.5), gaussian(2.0)], [0.3, 0.7])
        >>> round(f(0.1), 6)
        0.400122
    """
    parts = checked_list("tradeoffs", tradeoffs)
    w = probabilities("weights", weights).ravel()
    if len(parts) != w.size or w.size == 0:
        raise ValueError(
            "Argument `weights` must hold one probability for each trade-off function. "
            f"Received: {w.size} weights for {len(parts)} functions. Pass lists of one "
            "length."
        )
    if abs(w.sum() - 1) > 1e-9:
        raise ValueError(
            f"Argument `weights` must sum to 1. Received a sum of {w.sum()!r}. Divide "
            "them by it."
        )
    w = w / w.sum()
    chosen = [(f, float(v)) for f, v in zip(parts, w, strict=True) if v > 0]
    if len(chosen) == 1:
        return chosen[0][0]
    linear = [f for f, _ in chosen if isinstance(f, PiecewiseLinear)]
    if len(linear) == len(chosen):
        return PiecewiseLinear(
            np.concatenate(
                [v * f._p for f, (_, v) in zip(linear, chosen, strict=True)]
            ),
            np.concatenate(
                [v * f._q for f, (_, v) in zip(linear, chosen, strict=True)]
            ),
            sum(v * f._p_only for f, (_, v) in zip(linear, chosen, strict=True)),
            sum(v * f._q_only for f, (_, v) in zip(linear, chosen, strict=True)),
            np.concatenate([f._t for f in linear]),
        )
    if all(isinstance(f, Gaussian) or f == identity() for f, _ in chosen):
        mus = [f.mu if isinstance(f, Gaussian) else 0.0 for f, _ in chosen]
        return GaussianMixture(np.array(mus), np.array([v for _, v in chosen]))
    return ComponentMixture(tuple(chosen))


class Mixture(TradeOff):
    """What all joint-concavity bounds share: F-divergences are averages."""

    def mean(self, functional: Callable[[TradeOff], float]) -> float:
        """Average of a functional over the components."""
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class ComponentMixture(Mixture):
    """A mixture of different kinds of components; see `mixture`."""

    components: tuple[tuple[TradeOff, float], ...]

    def __repr__(self) -> str:
        parts = [f for f, _ in self.components]
        return f"mixture({parts!r}, {[w for _, w in self.components]!r})"

    @property
    def accuracy(self) -> float:
        """The components' on average."""
        return sum(w * f.accuracy for f, w in self.components)

    @property
    def is_symmetric(self) -> bool:
        """Whether every component is."""
        return all(f.is_symmetric for f, _ in self.components)

    def mean(self, functional: Callable[[TradeOff], float]) -> float:
        """Average of a functional over the components."""
        return float(sum(w * functional(f) for f, w in self.components))

    def _point(self, t: Array) -> Point:
        rates = [Point(*(w * x for x in f._point(t))) for f, w in self.components]
        return Point(*(np.sum(part, axis=0) for part in zip(*rates, strict=True)))

    def _delta(self, epsilon: Array) -> Array:
        parts = [w * f._delta(epsilon) for f, w in self.components]
        return np.asarray(np.sum(parts, axis=0))

    def _reverse_delta(self, epsilon: Array) -> Array:
        parts = [w * f._reverse_delta(epsilon) for f, w in self.components]
        return np.asarray(np.sum(parts, axis=0))

    def _loss_range(self) -> tuple[float, float]:
        ranges = [f._loss_range() for f, _ in self.components]
        return min(low for low, _ in ranges), max(high for _, high in ranges)

    @property
    def _most_thresholds(self) -> int:
        return min(f._most_thresholds for f, _ in self.components)

    def inverse(self) -> TradeOff:
        """The mixture of the inverses."""
        if self.is_symmetric:
            return self
        return ComponentMixture(tuple((f.inverse(), w) for f, w in self.components))


class GaussianMixture(Mixture):
    """A mixture of `G_mu` over many values of `mu`, 0 included.

    Args:
        mus: the components' parameters.
        weights: their probabilities; what is missing from 1 counts as no privacy.
    """

    def __init__(self, mus: Array, weights: Array) -> None:
        self._mus, self._weights = mus, weights

    def __repr__(self) -> str:
        if self._mus.size > 4:
            return f"mixture({self._mus.size} Gaussian components)"
        return (
            f"mixture({[gaussian(mu) for mu in self._mus]!r}, "
            f"{self._weights.tolist()!r})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GaussianMixture):
            return NotImplemented
        return np.array_equal(self._mus, other._mus) and np.array_equal(
            self._weights, other._weights
        )

    def __hash__(self) -> int:
        return hash((self._mus.tobytes(), self._weights.tobytes()))

    @property
    def is_symmetric(self) -> bool:
        """Always true."""
        return True

    def mean(self, functional: Callable[[TradeOff], float]) -> float:
        """Average of a functional over the components."""
        values = [functional(gaussian(mu)) for mu in self._mus]
        return float(self._weights @ np.array(values))

    @property
    def _lost(self) -> float:
        lost = 1.0 - float(self._weights.sum())
        return lost if lost > 1e-14 else 0.0

    @property
    def _most_thresholds(self) -> int:
        return int(np.clip(2**25 // self._mus.size, 2**12, 2**18))

    def _chunks(self, size: int) -> list[slice]:
        """Slices of the thresholds that keep the matrices below some 30 MB."""
        step = max(1, 2**22 // self._mus.size)
        return [slice(start, start + step) for start in range(0, max(size, 1), step)]

    def _point(self, t: Array) -> Point:
        parts = [self._chunk_point(t[chunk]) for chunk in self._chunks(t.size)]
        return Point(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _chunk_point(self, t: Array) -> Point:
        mus = self._mus
        with np.errstate(divide="ignore", invalid="ignore"):
            score = np.divide.outer(t, mus)
        # A component with mu = 0 always has loss 0.
        score = np.where(np.isnan(score), np.inf, score)
        parts = (
            ndtr(-score - mus / 2),
            ndtr(score - mus / 2),
            ndtr(score + mus / 2),
            ndtr(mus / 2 - score),
        )
        alpha, beta, accept, power = (part @ self._weights for part in parts)
        return Point(alpha, beta, accept + self._lost, power + self._lost)

    def _delta(self, epsilon: Array) -> Array:
        parts = [
            np.asarray(_gdp.delta_from_mu(epsilon[chunk, None], self._mus))
            @ self._weights
            for chunk in self._chunks(epsilon.size)
        ]
        return np.asarray(np.concatenate(parts) + self._lost)

    def _reverse_delta(self, epsilon: Array) -> Array:
        return self._delta(epsilon)

    def _loss_range(self) -> tuple[float, float]:
        reach = 0.0 if (self._mus == 0).all() else np.inf
        return -reach, reach
