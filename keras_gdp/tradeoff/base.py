"""The trade-off function as an object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from keras_gdp import _validate
from keras_gdp.tradeoff._arrays import (
    Array,
    finite_or_infinite,
    like_input,
    probabilities,
)
from keras_gdp.tradeoff._solve import Point, crossing, lower_values

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["TradeOff", "checked_list", "checked_tradeoff"]


class TradeOff(ABC):
    r"""How hard it is to tell two output distributions of a mechanism apart.

    `f = T(P, Q)` maps a type I error `alpha` to the smallest type II error of any test
    of `P` against `Q` at that level:

        f(alpha) = inf { 1 - E_Q[test] : E_P[test] <= alpha }.

    It is convex, non-increasing and at most `1 - alpha`; the larger, the more private.
    A mechanism is f-DP if `T(M(S), M(S')) >= f` for every ordered pair of neighbouring
    data sets. Objects are immutable and every operation returns a new one.

    A class describes a trade-off function by its supporting lines: for a log-threshold
    `t`, the error rates of the test that rejects where `log(q / p) > t`. Values, the
    profile `delta(epsilon)` and divergences follow; classes with closed forms use them.

    Guarantees:
        Reported values are never above the true function (and reported deltas and
        epsilons never below the true ones) but for rounding of about 1e-14, relative.
        Objects built by numerical composition or quadrature say in `accuracy` how far
        below the truth they may lie.

    References:
        Dong, Roth and Su, "Gaussian Differential Privacy", JRSS B 2022.
    """

    @property
    def accuracy(self) -> float:
        """How far a value may lie below the true function; 0 up to rounding."""
        return 0.0

    @property
    def is_symmetric(self) -> bool:
        """Whether `f` is known to equal its inverse."""
        return False

    # What a class has to say about itself: everything else has a default.

    @abstractmethod
    def _point(self, t: Array) -> Point:
        """A point where a line of slope `-exp(t)` supports the graph."""

    def _values(self, alpha: Array) -> Array:
        return lower_values(self._point, alpha)

    def _log_values(self, log_alpha: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(self._values(np.exp(log_alpha)))

    def _delta(self, epsilon: Array) -> Array:
        """`H_{exp(epsilon)}(Q || P)` for real epsilon."""
        rates = self._point(epsilon)
        return _excess(epsilon, rates.power, rates.alpha)

    def _reverse_delta(self, epsilon: Array) -> Array:
        """`H_{exp(epsilon)}(P || Q)`: the profile of the inverse."""
        rates = self._point(-epsilon)
        return _excess(epsilon, rates.accept, rates.beta)

    def _loss_range(self) -> tuple[float, float]:
        """Bounds of `log(q / p)` where both are positive; infinite if not known."""
        return -np.inf, np.inf

    @property
    def _most_thresholds(self) -> int:
        """How many supporting lines a numerical composition should ask for."""
        return 2**18

    def _compose_closed(self, other: TradeOff) -> TradeOff | None:
        """The composition with `other` where it has a closed form."""
        return None

    def _self_compose_closed(self, n: int) -> TradeOff | None:
        return None

    def _renyi_closed(self, order: float) -> float | None:
        """Renyi divergence of P from Q where it has a closed form."""
        return None

    # Values.

    def __call__(self, alpha: ArrayLike) -> Any:
        """Smallest type II error at type I error `alpha`.

        Args:
            alpha: number or array in [0, 1].

        Returns:
            A float, or an array of the shape of `alpha`.

        Raises:
            ValueError: if an entry is outside [0, 1] or NaN.
        """
        array = probabilities("alpha", alpha)
        flat = array.ravel()
        values = np.clip(self._values(flat), 0.0, 1.0 - flat)
        return like_input(values, array)

    def log(self, log_alpha: ArrayLike) -> Any:
        """`log f(exp(log_alpha))`, for errors too small or too close for doubles.

        Args:
            log_alpha: number or array in [-inf, 0].

        Returns:
            A float, or an array of the shape of `log_alpha`.

        Raises:
            ValueError: if an entry is positive or NaN.
        """
        array = finite_or_infinite("log_alpha", log_alpha)
        if (array > 0).any():
            raise ValueError(
                "Argument `log_alpha` must hold numbers <= 0, the logarithms of error "
                f"rates. Received: log_alpha={log_alpha!r}. Pass `numpy.log(alpha)`."
            )
        return like_input(self._log_values(array.ravel()), array)

    def convex_conjugate(self, y: ArrayLike) -> Any:
        """`f*(y) = sup_alpha (y alpha - f(alpha))`.

        Args:
            y: number or array; `-exp(epsilon)` gives `delta(epsilon) - 1`.

        Returns:
            A float, or an array of the shape of `y`.
        """
        array = finite_or_infinite("y", y)
        flat = array.ravel()
        with np.errstate(divide="ignore"):
            epsilon = np.log(np.maximum(-flat, 0.0))
        below = self._delta(epsilon) - 1.0
        return like_input(np.where(flat >= 0, flat, below), array)

    # Duality with (epsilon, delta).

    def delta(self, epsilon: ArrayLike) -> Any:
        """`delta(epsilon) = 1 + f*(-exp(epsilon))`, the hockey-stick profile.

        It bounds `Q(S) - exp(epsilon) P(S)` over all events `S`. For a statement about
        both orders of the pair take `symmetrize()` first.

        Args:
            epsilon: number or array; any real number, infinities included.

        Returns:
            A float in [0, 1], or an array of the shape of `epsilon`.
        """
        array = finite_or_infinite("epsilon", epsilon)
        flat = array.ravel()
        least = np.maximum(-np.expm1(np.minimum(flat, 0.0)), 0.0)
        values = np.clip(self._delta(flat), least, 1.0)
        return like_input(values, array)

    def epsilon(self, delta: ArrayLike) -> Any:
        """Smallest `epsilon >= 0` with `delta(epsilon) <= delta`.

        Args:
            delta: number or array in [0, 1].

        Returns:
            A float, or an array of the shape of `delta`; `inf` where no finite epsilon
            reaches `delta`.
        """
        array = probabilities("delta", delta)
        return like_input(self._epsilon(array.ravel()), array)

    def _epsilon(self, delta: Array) -> Array:
        # At delta = 0 a profile that underflows must not pass for a bounded loss.
        largest = self._loss_range()[1]
        if self._delta(np.array([np.inf]))[0] > 0:
            largest = np.inf
        found = crossing(self._delta, np.where(delta > 0, delta, 1.0))
        return np.minimum(np.where(delta > 0, found, np.inf), max(0.0, largest))

    # Operations.

    def inverse(self) -> TradeOff:
        """`f^-1 = T(Q, P)`: the two hypotheses swapped."""
        from keras_gdp.tradeoff.inverse import Inverse

        return self if self.is_symmetric else Inverse(self)

    def symmetrize(self) -> TradeOff:
        """`min{f, f^-1}**`: what holds for both orders when each order has one of them.

        This is the guarantee of a mechanism with `T(M(S), M(S')) >= f` for one order
        of neighbours and `>= f^-1` for the other, as under Poisson sampling. Its
        profile is the larger of the two profiles.

        Returns:
            The largest trade-off function below both `f` and its inverse.
        """
        from keras_gdp.tradeoff.envelope import lower_envelope

        return self if self.is_symmetric else lower_envelope([self, self.inverse()])

    def subsample(self, p: float, sampling: str = "poisson") -> TradeOff:
        """Amplification by sampling.

        Args:
            p: sampling probability in [0, 1]; for uniform sampling the ratio of batch
                size to data set size.
            sampling: `"poisson"` gives `f_p = p f + (1 - p) Id`, which holds for
                (without, with) the added record under add-or-remove-one neighbours; the
                other order has `f_p^-1`, so call `symmetrize()` at the end.
                `"uniform"` gives `C_p(f) = min{f_p, f_p^-1}**`, for fixed-size batches
                under replace-one neighbours, of the symmetrised `f`.

        Returns:
            The amplified trade-off function.

        Raises:
            ValueError: if `p` is no probability or `sampling` is neither of the two.
        """
        from keras_gdp.tradeoff.subsample import poisson_subsample

        p = _validate.probability(
            "p", p, "It is the sampling probability, `batch_size / num_examples`."
        )
        _validate.one_of("sampling", sampling, ["poisson", "uniform"])
        if sampling == "poisson":
            return poisson_subsample(self, p)
        return poisson_subsample(self.symmetrize(), p).symmetrize()

    def compose(self, other: TradeOff) -> TradeOff:
        """The tensor product: the trade-off of releasing both outputs.

        Args:
            other: trade-off function of the second (adaptively chosen) mechanism.

        Returns:
            `T(P x P', Q x Q')`, in closed form where there is one.
        """
        from keras_gdp.tradeoff.composition import compose

        return compose([(self, 1), (checked_tradeoff("other", other), 1)])

    def self_compose(self, n: int) -> TradeOff:
        """The `n`-fold tensor product of `f` with itself.

        Args:
            n: number of releases, >= 0.

        Returns:
            `f` composed `n` times; `Id` for `n = 0`.
        """
        from keras_gdp.tradeoff.composition import compose

        return compose([(self, _validate.count("n", n))])

    def group(self, k: int) -> TradeOff:
        """Privacy of groups of `k` records: `1 - (1 - f)` iterated `k` times.

        Args:
            k: group size, >= 1.

        Returns:
            A trade-off function for data sets that differ in up to `k` records.
        """
        from keras_gdp.tradeoff.group import group

        return group(self, _validate.count("k", k, minimum=1))

    def gaussian_mu(self) -> float:
        """Smallest `mu` for which the mechanism is mu-GDP: `G_mu <= f`.

        Returns:
            `sup_alpha Phi^-1(1 - alpha) - Phi^-1(f(alpha))`, over the vertices of a
            piecewise linear function and for others over a grid of thresholds that is
            refined around the maximum; `inf` if `f(0) < 1`, if `f` is 0 before 1, or
            if the supremum is not reached at losses that doubles can tell apart.

        References:
            Dong, Roth and Su, "Gaussian Differential Privacy", Section 2.2.
        """
        from keras_gdp.tradeoff.gaussian import smallest_mu

        return smallest_mu(self)

    # Divergences.

    def kl(self, *, reverse: bool = False) -> float:
        """Kullback-Leibler divergence of P from Q (`reverse`: of Q from P)."""
        from keras_gdp.tradeoff.divergences import kullback_leibler

        return kullback_leibler(self.inverse() if reverse else self)

    def renyi(self, order: float, *, reverse: bool = False) -> float:
        """Renyi divergence of P from Q (`reverse`: of Q from P).

        Args:
            order: > 0; 1 is the Kullback-Leibler divergence, `inf` the largest loss.
            reverse: swap the two distributions.

        Returns:
            The divergence; `inf` where it does not exist.
        """
        from keras_gdp.tradeoff.divergences import renyi

        return renyi(self.inverse() if reverse else self, order)

    def chi2(self, *, reverse: bool = False) -> float:
        """Chi-squared divergence of P from Q (`reverse`: of Q from P)."""
        from keras_gdp.tradeoff.divergences import chi_squared

        return chi_squared(self.inverse() if reverse else self)

    def total_variation(self) -> float:
        """Total variation distance, `max_alpha (1 - alpha - f(alpha))`."""
        return float(self.delta(0.0))

    def hockey_stick(self, epsilon: ArrayLike, *, reverse: bool = False) -> Any:
        """`H_{exp(epsilon)}(Q || P)` (`reverse`: of P from Q)."""
        return (self.inverse() if reverse else self).delta(epsilon)

    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Axes:
        """Draws the curve; see `keras_gdp.tradeoff.plot_tradeoffs`."""
        from keras_gdp.tradeoff.plot import plot_tradeoffs

        return plot_tradeoffs({kwargs.pop("label", repr(self)): self}, ax=ax, **kwargs)


def checked_tradeoff(name: str, value: TradeOff) -> TradeOff:
    """Returns `value` if it is a trade-off function."""
    if not isinstance(value, TradeOff):
        advice = "Accountants give theirs with `trade_off()`."
        expected = "a trade-off function such as gaussian(1.0)"
        raise TypeError(_validate.message(name, value, expected, advice))
    return value


def checked_list(name: str, values: Iterable[TradeOff]) -> list[TradeOff]:
    """Returns `values` as a list if they are trade-off functions."""
    if not isinstance(values, Iterable):
        expected = "a list of trade-off functions"
        raise TypeError(_validate.message(name, values, expected, "Pass [f] for one."))
    return [checked_tradeoff(f"{name}[{i}]", f) for i, f in enumerate(values)]


def _excess(epsilon: Array, gain: Array, cost: Array) -> Array:
    """`gain - exp(epsilon) cost`, without overflow."""
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.where(cost > 0, epsilon + np.log(cost), -np.inf)
    excess = gain - np.exp(np.minimum(exponent, 1.0))
    return np.asarray(np.clip(excess, 0.0, 1.0))
