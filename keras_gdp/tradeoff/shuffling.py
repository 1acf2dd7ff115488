"""Privacy amplification by shuffling local randomisers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, gammaln

from keras_gdp import _validate
from keras_gdp.tradeoff._arrays import Array, like_input, probabilities
from keras_gdp.tradeoff._solve import Point
from keras_gdp.tradeoff.base import TradeOff
from keras_gdp.tradeoff.piecewise import identity, no_privacy

__all__ = ["shuffled", "shuffled_epsilon_bound"]

_EPSILON0 = "It is the epsilon of each local report, such as 1.0."
_REPORTS = "It is the number of reports that are shuffled."


def shuffled(
    epsilon0: float, n: int, delta0: float = 0.0, clones: str = "clones"
) -> TradeOff:
    r"""The trade-off function of `n` shuffled local reports.

    Every user applies an (epsilon0, delta0)-DP randomiser and the reports are shuffled;
    neighbouring data sets differ in one user's value. The other users' reports hide the
    differing one among a binomial number of clones, and given that number `c` the two
    hypotheses are binomials: with `F`, `b` the distribution function and the
    probabilities of `Bin(c, 1/2)` and `q = e^eps0 / (1 + e^eps0)`,

        f( sum_c w_c [q F(k-1) + (1-q) F(k)] ) = sum_c w_c [1 - (1-q) F(k-1) - q F(k)],

    where `k` depends on `c` and the threshold and `w_c` are the probabilities of
    `Bin(n - 1, r)`. It is symmetric.

    Args:
        epsilon0: local privacy parameter, >= 0.
        n: number of users, >= 1.
        delta0: local failure probability; if positive the randomisers must be chosen
            in advance, not adaptively.
        clones: `"clones"` has `r = e^-eps0`, valid for every randomiser, adaptively
            chosen ones included. `"stronger"` has `r = 2 / (e^eps0 + 1)`: only for
            randomisers `R` with `R(x) >= (R(x1) + R(x1')) / (e^eps0 + 1)` for every
            input `x` and the differing pair, such as k-ary randomised response. The
            lemma that claimed it for all randomisers has been withdrawn. It needs
            `delta0 = 0`.

    Returns:
        The trade-off function, under replace-one neighbours.

    Raises:
        ValueError: if an argument is outside its range.

    References:
        Feldman, McMillan and Talwar, "Hiding Among the Clones", FOCS 2021; Wang et al.,
        "Unified Enhancement of Privacy Bounds for Mixture Mechanisms via
        f-Differential Privacy", NeurIPS 2023, Section 4.

    Example:
        >>> round(shuffled(1.0, 1000).epsilon(1e-6), 6)
        0.182412
    """
    epsilon0 = _validate.non_negative("epsilon0", epsilon0, _EPSILON0, infinite=True)
    n = _validate.count("n", n, _REPORTS, minimum=1)
    delta0 = _validate.probability(
        "delta0", delta0, "It is the delta of each local report; 0 for pure epsilon0."
    )
    _validate.one_of(
        "clones",
        clones,
        ["clones", "stronger"],
        "'stronger' is tighter, for delta0 = 0 only.",
    )
    if clones == "stronger" and delta0 > 0:
        raise ValueError(
            "Argument `clones` must be 'clones' when `delta0` is positive: the "
            f"stronger bound is not proved there. Received: clones={clones!r}, "
            f"delta0={delta0!r}. Leave `clones` out."
        )
    if epsilon0 == np.inf or delta0 == 1:
        return no_privacy()
    if epsilon0 == 0 and delta0 == 0:
        return identity()
    if clones == "clones":
        return _with_failures(
            Shuffled(epsilon0, n, float(np.exp(-epsilon0) * (1 - delta0))), n, delta0
        )
    return Shuffled(epsilon0, n, float(2 / (np.exp(epsilon0) + 1)))


def _with_failures(f: Shuffled, n: int, delta0: float) -> TradeOff:
    if delta0 == 0:
        return f
    # Users whose randomiser is within total variation exp(-eps0) delta0 of a clone.
    return Failing(f, delta0, (n - 1) * float(np.exp(-f.epsilon0)) * delta0)


@dataclass(frozen=True, repr=False)
class Shuffled(TradeOff):
    """The clone pair with clone probability `rate`; see `shuffled`."""

    epsilon0: float
    n: int
    rate: float

    def __repr__(self) -> str:
        name = (
            "clones" if self.rate < 1.0000001 * np.exp(-self.epsilon0) else "stronger"
        )
        return f"shuffled(epsilon0={self.epsilon0!r}, n={self.n}, clones={name!r})"

    @property
    def is_symmetric(self) -> bool:
        """Always true."""
        return True

    @cached_property
    def _clone_counts(self) -> tuple[Array, Array]:
        """Numbers of clones within 11 standard deviations, and their probabilities."""
        m, r = self.n - 1, self.rate
        spread = 11 * np.sqrt(m * r * (1 - r)) + 40
        first, last = max(0, int(m * r - spread)), min(m, int(m * r + spread) + 1)
        c = np.arange(first, last + 1.0)
        log_w = gammaln(m + 1) - gammaln(c + 1) - gammaln(m - c + 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_w = log_w + c * np.log(r)
            log_w = log_w + np.where(m - c > 0, (m - c) * np.log1p(-r), 0.0)
        weight = np.exp(log_w)
        return c, weight / weight.sum()

    def _cut(self, t: Array, c: Array) -> Array:
        """Smallest of the losing counts: the loss exceeds `t` where `x <= k`."""
        e, threshold = self.epsilon0, np.clip(t, -self.epsilon0, self.epsilon0)
        # y = (e^e0 - e^t) / ((e^e0 - 1) (1 + e^t)), in terms that do not cancel.
        y = -np.expm1(threshold - e) / (-np.expm1(-e)) / (1 + np.exp(threshold))
        # Ties sit at whole numbers; either side gives the same line.
        return np.asarray(np.ceil(np.multiply.outer(y, c + 1) - 1e-12) - 1)

    def _point(self, t: Array) -> Point:
        c, w = self._clone_counts
        q = 1 / (1 + np.exp(-self.epsilon0))
        result = [np.empty(t.size) for _ in range(4)]
        for i, threshold in enumerate(t):
            if abs(threshold) >= self.epsilon0:
                everything = float(threshold < 0)
                rates = (everything, 1 - everything, 1 - everything, everything)
            else:
                k = self._cut(np.array([threshold]), c)[0]
                below, pmf = _binomial(k, c)
                up_to, above = below + pmf, 1 - below - pmf
                from_k = 1 - below
                rates = (
                    float(w @ (q * below + (1 - q) * up_to)),
                    float(w @ (q * above + (1 - q) * from_k)),
                    float(w @ (q * from_k + (1 - q) * above)),
                    float(w @ ((1 - q) * below + q * up_to)),
                )
            for part, rate in zip(result, rates, strict=True):
                part[i] = rate
        return Point(*result)

    def _delta(self, epsilon: Array) -> Array:
        c, w = self._clone_counts
        q = 1 / (1 + np.exp(-self.epsilon0))
        result = np.empty(epsilon.size)
        for i, e in enumerate(epsilon):
            if e >= self.epsilon0:
                result[i] = 0.0
            elif e < 0:
                other = self._delta(np.array([-e]))[0]
                result[i] = -np.expm1(e) + np.exp(e) * other
            else:
                k = self._cut(np.array([e]), c)[0]
                below, pmf = _binomial(k, c)
                gain = q * -np.expm1(e - self.epsilon0)
                result[i] = max(0.0, float(w @ (gain * pmf - np.expm1(e) * below)))
        return result

    def _reverse_delta(self, epsilon: Array) -> Array:
        return self._delta(epsilon)

    @property
    def _most_thresholds(self) -> int:
        return int(np.clip(2**24 // self._clone_counts[0].size, 2**11, 2**14))

    def _loss_range(self) -> tuple[float, float]:
        return -self.epsilon0, self.epsilon0


def _binomial(k: Array, c: Array) -> tuple[Array, Array]:
    """`F(k - 1)` and `b(k)` of `Bin(c, 1/2)`, for `-1 <= k <= c`."""
    inside = k >= 0
    x = np.maximum(k, 0.0)
    log_pmf = gammaln(c + 1) - gammaln(x + 1) - gammaln(c - x + 1) - c * np.log(2)
    pmf = np.where(inside, np.exp(log_pmf), 0.0)
    positive = np.maximum(x, 1.0)
    below = np.where(k >= 1, betainc(c - x + 1, positive, 0.5), 0.0)
    return below, pmf


@dataclass(frozen=True, repr=False)
class Failing(TradeOff):
    """`(1 - delta0) f((alpha + tau) / (1 - delta0)) - tau`, cut off at 0."""

    f: Shuffled
    delta0: float
    tau: float

    def __repr__(self) -> str:
        return (
            f"shuffled(epsilon0={self.f.epsilon0!r}, n={self.f.n}, "
            f"delta0={self.delta0!r})"
        )

    @property
    def is_symmetric(self) -> bool:
        """Always true."""
        return True

    @property
    def _most_thresholds(self) -> int:
        return self.f._most_thresholds

    @cached_property
    def _at_zero(self) -> float:
        keep = 1 - self.delta0
        if self.tau >= keep:
            return 0.0
        return max(0.0, keep * float(self.f(self.tau / keep)) - self.tau)

    def _point(self, t: Array) -> Point:
        keep, top = 1 - self.delta0, self._at_zero
        rates = self.f._point(t)
        alpha, beta = keep * rates.alpha - self.tau, keep * rates.beta - self.tau
        left, right = alpha <= 0, beta <= 0
        alpha = np.where(left, 0.0, np.where(right, top, alpha))
        beta = np.where(left, top, np.where(right, 0.0, beta))
        return Point(alpha, beta, 1 - alpha, 1 - beta)

    def _delta(self, epsilon: Array) -> Array:
        # Where the supporting line touches beyond the cut, the end of the curve counts.
        rates = self._point(epsilon)
        clones = (1 - self.delta0) * self.f._delta(epsilon) + self.delta0
        with np.errstate(over="ignore"):
            growth = np.exp(np.minimum(epsilon, 700.0))
        inner = clones + (1 + growth) * self.tau
        at_ends = np.where(
            rates.alpha <= 0, 1 - self._at_zero, 1 - growth * self._at_zero
        )
        cut = (rates.alpha <= 0) | (rates.beta <= 0)
        return np.where(cut, at_ends, inner)

    def _reverse_delta(self, epsilon: Array) -> Array:
        return self._delta(epsilon)


def shuffled_epsilon_bound(
    epsilon0: float, n: int, delta: ArrayLike, *, bound: str = "fmt23"
) -> float | Array:
    """Published closed-form bounds on epsilon after shuffling, for comparison.

    Args:
        epsilon0: local privacy parameter, > 0.
        n: number of users.
        delta: target failure probability.
        bound: `"fmt21"`, for all randomisers, or `"fmt23"`, of the stronger clones.

    Returns:
        The bound on epsilon; `nan` where its condition on `epsilon0` fails.

    Raises:
        ValueError: if an argument is outside its range.

    References:
        Feldman, McMillan and Talwar, FOCS 2021, Theorem 3.1, and SODA 2023, Theorem
        3.2.

    Example:
        >>> round(shuffled_epsilon_bound(1.0, 1000, 1e-6, bound="fmt21"), 6)
        0.566201
    """
    epsilon0 = _validate.positive("epsilon0", epsilon0, _EPSILON0)
    n = _validate.count("n", n, _REPORTS, minimum=1)
    _validate.one_of(
        "bound", bound, ["fmt21", "fmt23"], "'fmt23' is the later, tighter one."
    )
    array = probabilities("delta", delta)
    d, e = array.ravel(), np.exp(epsilon0)
    with np.errstate(divide="ignore", invalid="ignore"):
        if bound == "fmt21":
            valid = epsilon0 <= np.log(n / (16 * np.log(2 / d)))
            term = 8 * np.sqrt(e * np.log(4 / d) / n) + 8 * e / n
            value = np.log1p((e - 1) / (e + 1) * term)
        else:
            valid = epsilon0 <= np.log(n / (8 * np.log(2 / d)) - 1)
            term = 4 * np.sqrt(2 * np.log(4 / d)) / np.sqrt((e + 1) * n) + 4 / n
            value = np.log1p((e - 1) * term)
    return like_input(np.where(valid, value, np.nan), array)
