"""One noisy gradient step from a random start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import ndtr

from keras_gdp import _gdp, _validate
from keras_gdp.tradeoff._arrays import Array
from keras_gdp.tradeoff.base import TradeOff
from keras_gdp.tradeoff.gaussian import gaussian
from keras_gdp.tradeoff.mixture import GaussianMixture

__all__ = ["random_initialization"]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_REACH = 38.0  # the normal density underflows beyond
_MARGIN = 1e-10


def random_initialization(
    a: float | None = None,
    b: float | None = None,
    noise_stddev: float | None = None,
    l2_norm_clip: float | None = None,
    *,
    shift: Callable[[Array], Array] | None = None,
    initialization: Any = None,
) -> TradeOff:
    r"""Trade-off function of `theta_1 = theta_0 - g(theta_0) + N(0, noise_stddev^2)`.

    Given the start `I` the two outputs are normal with means `shift(I)` apart, so by
    joint concavity

        alpha(t) = E Phi(-t / mu_I - mu_I / 2),  f(alpha(t)) = alpha(-t),
        delta(epsilon) = E delta(epsilon; mu_I),  mu_I = shift(I) / noise_stddev.

    In the linear model with loss `(y - theta x)^2 / 2`, adding a record `(x, y)` gives
    `shift(I) = min(|a I + b|, l2_norm_clip)` with `a = x^2`, `b = -x y`.

    Args:
        a: slope of the linear model's shift; for `shift=` leave out `a` and `b`.
        b: its offset.
        noise_stddev: standard deviation of the noise on the step, > 0.
        l2_norm_clip: clip norm of the gradient difference; None for no clipping.
        shift: the distance of the two means as a function of an array of starts.
        initialization: SciPy distribution of the start; standard normal by default
            (the linear model needs the default).

    Returns:
        The trade-off function for this record. A guarantee needs the envelope over all
        admissible records (`lower_envelope`): a larger `|y|` is worse, but no such rule
        holds for `x`.

    Raises:
        ValueError: if the arguments describe neither model, or leave their ranges.

    References:
        Wang et al., "Unified Enhancement of Privacy Bounds for Mixture Mechanisms via
        f-Differential Privacy", NeurIPS 2023, Section 5.

    Example:
        >>> f = random_initialization(1.0, -1.0, 1.0, l2_norm_clip=1.0)
        >>> round(f(0.05), 6), round(f.delta(0.5), 6)
        (0.784888, 0.16056)
    """
    sigma = _validate.positive(
        "noise_stddev",
        noise_stddev,
        "It is the standard deviation of the noise on the released step, such as 1.0.",
        infinite=True,
    )
    clip = np.inf
    if l2_norm_clip is not None:
        clip = _validate.positive(
            "l2_norm_clip",
            l2_norm_clip,
            "It bounds the shift, such as 1.0; None for no bound.",
            infinite=True,
        )
    if sigma == np.inf:
        return gaussian(0.0)
    if shift is not None:
        if a is not None or b is not None:
            raise ValueError(
                "Argument `shift` must be given without `a` and `b`. Received: "
                f"a={a!r}, b={b!r}. Leave them out, or leave out `shift`."
            )
        return _general(shift, sigma, clip, initialization)
    if a is None or b is None or initialization is not None:
        raise ValueError(
            "Arguments `a` and `b` must be given together and without "
            f"`initialization`, or else `shift`. Received: a={a!r}, b={b!r}, "
            f"initialization={initialization!r}. A record (x, y) has a = x^2, b = -x y."
        )
    advice = "It is of the shift |a start + b|; a record (x, y) has a = x^2, b = -x y."
    a, b = _validate.real("a", a, advice), _validate.real("b", b, advice)
    if a == 0:
        return gaussian(min(abs(b), clip) / sigma)
    return _linear(a, b, sigma, clip)


def _linear(a: float, b: float, sigma: float, clip: float) -> TradeOff:
    zero = -b / a
    # The integrand is flat to all orders but not analytic where mu_I = 0.
    dyadic = 2.0 ** np.arange(-52.0, 7.0)
    unit = np.arange(-_REACH, _REACH + 1)
    edges = np.concatenate([unit, zero - dyadic, zero + dyadic, [zero]])
    low, high = -_REACH, _REACH
    clipped = 0.0
    if clip < np.inf:
        ends = sorted([(clip - b) / a, (-clip - b) / a])
        clipped = float(ndtr(ends[0]) + ndtr(-ends[1]))
        low, high = max(low, ends[0]), min(high, ends[1])
    edges = np.unique(np.concatenate([edges, [low, high]]))
    edges = edges[(edges >= low) & (edges <= high)]
    mus, weights = np.zeros(0), np.zeros(0)
    if edges.size > 1:
        x, w = _gauss(edges[:-1], edges[1:])
        weights = w * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
        mus = np.abs(a * x + b) / sigma
    if clipped > 0:
        mus, weights = np.append(mus, clip / sigma), np.append(weights, clipped)
    keep = weights > 0
    mus, weights = mus[keep], weights[keep]
    weights = weights / weights.sum()
    if clip < np.inf:
        return GaussianMixture(mus, weights)
    return UnclippedLinear(mus, weights, a / sigma, b / sigma)


class UnclippedLinear(GaussianMixture):
    """The linear model without clipping: its Renyi divergences have a closed form."""

    def __init__(self, mus: Array, weights: Array, a: float, b: float) -> None:
        super().__init__(mus, weights)
        self._slope, self._offset = a, b

    def _renyi_closed(self, order: float) -> float | None:
        a, b = self._slope, self._offset
        if order == 1:
            return (a**2 + b**2) / 2
        c = order * (order - 1) / 2
        room = 1 - 2 * c * a**2
        if room <= 0:
            return np.inf
        return float((c * b**2 / room - np.log(room) / 2) / (order - 1))


def _general(
    shift: Callable[[Array], Array], sigma: float, clip: float, initialization: Any
) -> TradeOff:
    """Adaptive quadrature; a weight of 1e-10 without privacy covers its error."""
    if initialization is None:
        edges = np.linspace(-_REACH, _REACH, 153)

        def density(x: Array) -> Array:
            return np.asarray(np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi))
    else:
        levels = np.concatenate(
            [10.0 ** -np.arange(16.0, 1.0, -1.0), np.linspace(0.1, 0.5, 17)]
        )
        edges = np.unique(
            np.concatenate([initialization.ppf(levels), initialization.isf(levels)])
        )

        def density(x: Array) -> Array:
            return np.asarray(initialization.pdf(x))

    def parameters(x: Array) -> Array:
        distance = np.asarray(shift(x), dtype=np.float64)
        if distance.shape != x.shape or not (distance >= 0).all():
            raise ValueError(
                "Argument `shift` must map an array of starts to an array of distances "
                f">= 0 of the same shape. Received values {distance!r}. Return, say, "
                "`np.abs(start)`."
            )
        return np.minimum(distance, clip) / sigma

    # Near a start without any shift the profile bends at every scale of epsilon.
    probes = np.concatenate(
        [[0.0], 10.0 ** np.arange(-5.0, -1.0), 2.0 ** np.arange(-4.0, 4.0)]
    )

    def integrals(lows: Array, highs: Array) -> tuple[Array, Array, Array]:
        x, w = _gauss(lows, highs)
        mus, weights = parameters(x), w * density(x)
        each = np.asarray(_gdp.delta_from_mu(probes[:, None], mus)) * weights
        sums = each.reshape(probes.size, lows.size, _NODES.size).sum(axis=2)
        return sums, mus.reshape(lows.size, -1), weights.reshape(lows.size, -1)

    lows, highs = edges[:-1], edges[1:]
    mus: list[Array] = []
    masses: list[Array] = []
    whole, _, _ = integrals(lows, highs)
    for depth in range(50):
        middle = (lows + highs) / 2
        left, left_mu, left_w = integrals(lows, middle)
        right, right_mu, right_w = integrals(middle, highs)
        rough = (np.abs(left + right - whole) > 1e-14).any(axis=0) & (depth < 49)
        for mu, w in ((left_mu, left_w), (right_mu, right_w)):
            mus.append(mu[~rough].ravel())
            masses.append(w[~rough].ravel())
        if not rough.any():
            break
        lows, highs, whole = (
            np.concatenate([lows[rough], middle[rough]]),
            np.concatenate([middle[rough], highs[rough]]),
            np.concatenate([left[:, rough], right[:, rough]], axis=1),
        )
    mu, weights = np.concatenate(mus), np.concatenate(masses)
    keep = weights > 0
    weights = weights[keep] * (1 - _MARGIN) / max(1.0, weights.sum())
    return GaussianMixture(mu[keep], weights)


def _gauss(lows: Array, highs: Array) -> tuple[Array, Array]:
    half = (highs - lows) / 2
    x = (lows + half)[:, None] + half[:, None] * _NODES
    return x.ravel(), (half[:, None] * _WEIGHTS).ravel()
