"""Central limit theorems for composition: limits, error bounds and refinements.

Only `berry_esseen` bounds anything. The limit itself and its Edgeworth refinement are
approximations, and both under-report the privacy loss in the tail.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from keras_gdp import _validate
from keras_gdp.tradeoff._arrays import Array, like_input, probabilities
from keras_gdp.tradeoff.base import TradeOff, checked_tradeoff
from keras_gdp.tradeoff.gaussian import gaussian
from keras_gdp.tradeoff.piecewise import PiecewiseLinear

__all__ = [
    "LossMoments",
    "berry_esseen",
    "berry_esseen_symmetric",
    "edgeworth",
    "gaussian_limit",
    "loss_moments",
]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


class LossMoments(NamedTuple):
    """Moments of the privacy loss `L = log(q / p)` of one release.

    `absolute_central_third` is `E |L - mean|^3`; `cumulant3` and `cumulant4` are the
    third and fourth cumulants; `second` and `absolute_third` are `E L^2` and `E |L|^3`.
    """

    mean: float
    variance: float
    absolute_central_third: float
    cumulant3: float
    cumulant4: float
    second: float
    absolute_third: float


def loss_moments(f: TradeOff, *, under: str = "P") -> LossMoments:
    """Moments of the privacy loss under one of the two distributions.

    Under P they are the functionals of Dong, Roth and Su: `kl = -mean`,
    `kappa_2 = second`, `kappa_3 = absolute_third`,
    `kappa-bar_3 = absolute_central_third`.

    Args:
        f: a trade-off function.
        under: `"P"` or `"Q"`.

    Returns:
        The moments, to about 1e-10 relative.

    Raises:
        ValueError: if `under` is neither, or the loss is infinite with positive
            probability.
    """
    _validate.one_of(
        "under",
        under,
        ["P", "Q"],
        "It is the distribution that the moments are taken under.",
    )
    checked_tradeoff("f", f)
    lost = f._delta(np.array([np.inf]))[0] if under == "Q" else 0.0
    lost = f._reverse_delta(np.array([np.inf]))[0] if under == "P" else lost
    if lost > 0:
        raise ValueError(
            "Argument `f` must have finite losses: some outcome is impossible under "
            f"one of the distributions. Received: f={f!r}. Compose it exactly, with "
            "`f.self_compose(n)`."
        )
    if isinstance(f, PiecewiseLinear):
        mass = f._p if under == "P" else f._q

        def expect(power: int, center: float, absolute: bool) -> float:
            terms = (f._t - center) ** power
            return float(mass @ (np.abs(terms) if absolute else terms))
    else:

        def expect(power: int, center: float, absolute: bool) -> float:
            return _tail_moment(f, power, center, absolute, under)

    mean = expect(1, 0.0, False)
    variance = expect(2, mean, False)
    return LossMoments(
        mean,
        variance,
        expect(3, mean, True),
        expect(3, mean, False),
        expect(4, mean, False) - 3 * variance**2,
        expect(2, 0.0, False),
        expect(3, 0.0, True),
    )


def _tail_moment(
    f: TradeOff, power: int, center: float, absolute: bool, under: str
) -> float:
    """`E (L - center)^power` as integrals of the two tails of L around the center."""

    def upper(x: Array) -> Array:
        rates = f._point(center + x)
        return rates.alpha if under == "P" else rates.power

    def lower(x: Array) -> Array:
        rates = f._point(center - x)
        return rates.accept if under == "P" else rates.beta

    sign = 1.0 if absolute or power % 2 == 0 else -1.0
    breaks = [abs(side - center) for side in (0.0, *f._loss_range())]
    right = _half_line(upper, power, breaks)
    return right + sign * _half_line(lower, power, breaks)


def _half_line(tail: object, power: int, breaks: list[float]) -> float:
    """`int_0^inf power x^(power - 1) tail(x) dx` on panels that double in width."""
    from collections.abc import Callable
    from typing import cast

    function = cast("Callable[[Array], Array]", tail)
    edges = [0.0, *(2.0 ** np.arange(-40.0, 12.0, 0.25))]
    edges.extend(b for b in breaks if 0 < b < np.inf)
    edge = np.unique(np.array(edges))
    half = np.diff(edge) / 2
    x = (edge[:-1] + half)[:, None] + half[:, None] * _NODES
    values = power * x ** (power - 1) * function(x.ravel()).reshape(x.shape)
    return float(half @ (values @ _WEIGHTS))


def gaussian_limit(f: TradeOff, n: int) -> TradeOff:
    """The limit `G_mu` of `n` compositions of a weak `f`, an approximation.

    With `mu = sqrt(n chi^2(Q || P))`; for Poisson sampling of the Gaussian mechanism
    this is `p sqrt(n (exp(1 / sigma^2) - 1))`. At finite `n` it may claim more privacy
    than there is; `f.self_compose(n)` does not.

    Args:
        f: trade-off function of one release.
        n: number of releases.

    Returns:
        A Gaussian trade-off function.

    References:
        Bu, Dong, Long and Su, "Deep Learning with Gaussian Differential Privacy",
        HDSR 2020, Theorem 5 and Lemma 1.
    """
    n = _validate.count("n", n)
    return gaussian(float(np.sqrt(n * checked_tradeoff("f", f).chi2(reverse=True))))


def berry_esseen_symmetric(f: TradeOff, n: int) -> tuple[float, float]:
    """Proven distance of `n` compositions of a symmetric `f` from a Gaussian.

    The result `(mu, gamma)` says that `G_mu(a + gamma) - gamma` lies below and
    `G_mu(a - gamma) + gamma` above the composition.

    Args:
        f: a symmetric trade-off function.
        n: number of compositions, >= 1.

    Returns:
        The parameter of the Gaussian and the error, for `a` in `[gamma, 1 - gamma]`;
        void if `gamma >= 1/2`.

    Raises:
        ValueError: if `f` is not symmetric.

    References:
        Dong, Roth and Su, "Gaussian Differential Privacy", Theorem 3.4.
    """
    if not checked_tradeoff("f", f).is_symmetric:
        raise ValueError(
            f"Argument `f` must be symmetric. Received: f={f!r}. Use `berry_esseen` or "
            "`f.symmetrize()`."
        )
    n = _validate.count("n", n, minimum=1)
    moments = loss_moments(f)
    root = np.sqrt(n * moments.variance)
    mu = 2 * n * -moments.mean / root
    gamma = 0.56 * n * moments.absolute_central_third / root**3
    return float(mu), float(gamma)


def berry_esseen(
    f: TradeOff, n: int, alpha: ArrayLike, *, constant: float = 0.4748
) -> tuple[float | Array, float | Array]:
    """Proven bounds on the `n`-fold composition, without symmetry.

    The Berry-Esseen theorem under P bounds the threshold of the test at level alpha,
    and under Q its power there.

    Args:
        f: trade-off function of one release.
        n: number of releases, >= 1.
        alpha: type I errors in [0, 1].
        constant: of the Berry-Esseen theorem; 0.4748 is proved for equal summands
            (Shevtsova, 2011).

    Returns:
        Lower and upper bounds on `f.self_compose(n)(alpha)`.
    """
    n = _validate.count("n", n, minimum=1)
    array = probabilities("alpha", alpha)
    a = array.ravel()
    under_p, under_q = loss_moments(f, under="P"), loss_moments(f, under="Q")
    errors, stddevs = [], []
    for moments in (under_p, under_q):
        error = constant * moments.absolute_central_third / moments.variance**1.5
        errors.append(error / np.sqrt(n))
        stddevs.append(np.sqrt(n * moments.variance))
    distance = n * (under_p.mean - under_q.mean)

    def type_two(level: Array) -> Array:
        # The quantile of 1 - level, infinite where level leaves (0, 1).
        quantile = -ndtri(np.clip(level, 0.0, 1.0))
        return np.asarray(ndtr((stddevs[0] * quantile + distance) / stddevs[1]))

    lower = np.clip(type_two(a + errors[0]) - errors[1], 0.0, 1 - a)
    upper = np.clip(type_two(a - errors[0]) + errors[1], 0.0, 1 - a)
    return like_input(lower, array), like_input(upper, array)


def edgeworth(f: TradeOff, n: int, alpha: ArrayLike) -> float | Array:
    """Second-order Edgeworth approximation of the `n`-fold composition, no bound.

    Args:
        f: trade-off function of one release.
        n: number of releases, >= 1.
        alpha: type I errors in (0, 1).

    Returns:
        The approximation, clipped to `[0, 1 - alpha]`.

    References:
        Zheng, Dong, Long and Su, "Sharp Composition Bounds for Gaussian Differential
        Privacy via Edgeworth Expansion", ICML 2020.
    """
    n = _validate.count("n", n, minimum=1)
    array = probabilities("alpha", alpha)
    a = array.ravel()
    under_p, under_q = loss_moments(f, under="P"), loss_moments(f, under="Q")
    stddev_p = np.sqrt(n * under_p.variance)
    stddev_q = np.sqrt(n * under_q.variance)
    threshold = _expansion_root(under_p, n, 1 - a)
    distance = n * (under_p.mean - under_q.mean)
    value = _expansion((threshold * stddev_p + distance) / stddev_q, under_q, n)
    return like_input(np.clip(value, 0.0, 1 - a), array)


def _expansion(x: Array, moments: LossMoments, n: int) -> Array:
    skew = n * moments.cumulant3 / (n * moments.variance) ** 1.5
    excess = n * moments.cumulant4 / (n * moments.variance) ** 2
    density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    correction = (
        skew / 6 * (x**2 - 1)
        + excess / 24 * (x**3 - 3 * x)
        + skew**2 / 72 * (x**5 - 10 * x**3 + 15 * x)
    )
    return np.asarray(ndtr(x) - density * correction)


def _expansion_root(moments: LossMoments, n: int, level: Array) -> Array:
    """Root of the expansion nearest to the normal quantile: it is not monotone."""
    start = ndtri(level)
    offsets = np.linspace(0.0, 3.0, 601)
    at_start = np.sign(_expansion(start, moments, n) - level)
    low, high = start.copy(), start.copy()
    for side in (1.0, -1.0):
        x = start[:, None] + side * offsets
        change = np.sign(_expansion(x, moments, n) - level[:, None])
        crossed = change != at_start[:, None]
        first = crossed.argmax(axis=1)
        rows = np.flatnonzero(crossed.any(axis=1))
        near = offsets[first[rows]]
        better = (low[rows] == high[rows]) | (near < np.abs(high[rows] - start[rows]))
        rows, first = rows[better], first[rows][better]
        high[rows] = start[rows] + side * offsets[first]
        low[rows] = start[rows] + side * offsets[np.maximum(first - 1, 0)]
    for _ in range(80):
        middle = (low + high) / 2
        same = np.sign(_expansion(middle, moments, n) - level) == at_start
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    return (low + high) / 2
