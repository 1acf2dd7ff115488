"""F-divergences of the pair behind a trade-off function.

They are integrals of the two hockey-stick profiles (Sason and Verdu, "f-divergence
inequalities", 2016, Proposition 3),

    D_F(P || Q) = int_0^inf [ F''(e^x) e^x H_{e^x}(P || Q)
                              + F''(e^-x) e^-2x H_{e^x}(Q || P) ] dx,

whose terms are positive, so that nothing cancels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from keras_gdp import _validate
from keras_gdp.tradeoff._arrays import Array
from keras_gdp.tradeoff.base import TradeOff
from keras_gdp.tradeoff.composition import Composed
from keras_gdp.tradeoff.inverse import Inverse
from keras_gdp.tradeoff.loss_mgf import log_mgf
from keras_gdp.tradeoff.mixture import Mixture
from keras_gdp.tradeoff.piecewise import PiecewiseLinear
from keras_gdp.tradeoff.subsample import PoissonSubsampled

__all__ = ["chi_squared", "kullback_leibler", "renyi"]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


def kullback_leibler(f: TradeOff) -> float:
    """`KL(P || Q) = -int log |f'|`."""
    if isinstance(f, PiecewiseLinear):
        return np.inf if f._p_only > 0 else max(0.0, -float(f._p @ f._t))
    closed = f._renyi_closed(1.0)
    if closed is not None:
        return closed
    parts = _factors(f)
    if parts is not None:
        return float(sum(n * kullback_leibler(g) for g, n in parts))
    if isinstance(f, Mixture):
        return f.mean(kullback_leibler)
    if _lost(f)[0] > 0:
        return np.inf
    return _integral(f, 0.0) + _integral(f.inverse(), -1.0)


def chi_squared(f: TradeOff) -> float:
    """`chi^2(P || Q) = int 1 / |f'| - 1`."""
    if isinstance(f, Inverse) and isinstance(f.f, PoissonSubsampled):
        # ((1 - p) p0 + p q0) / p0 - 1 is p times that of the unsampled pair.
        return f.f.p**2 * chi_squared(f.f.f.inverse())
    with np.errstate(over="ignore"):
        return float(np.expm1(renyi(f, 2.0)))


def renyi(f: TradeOff, order: float) -> float:
    """`R_order(P || Q) = log int |f'|^(1 - order) / (order - 1)`."""
    order = _validate.positive(
        "order",
        order,
        "It is the order of the divergence; 1 is Kullback-Leibler, try 2.",
        infinite=True,
    )
    if order == 1:
        return kullback_leibler(f)
    if order == np.inf:
        low = f._loss_range()[0]
        return np.inf if _lost(f)[0] > 0 else max(0.0, -low)
    closed = f._renyi_closed(order)
    if closed is not None:
        return closed
    if isinstance(f, PiecewiseLinear):
        return _renyi_piecewise(f, order)
    parts = _factors(f)
    if parts is not None:
        return float(sum(n * renyi(g, order) for g, n in parts))
    if isinstance(f, Mixture):
        with np.errstate(over="ignore", divide="ignore"):
            mean = f.mean(lambda g: float(np.exp((order - 1) * renyi(g, order))))
            return float(np.log(mean) / (order - 1))
    log_m = log_mgf(f)
    if log_m is not None:
        return float(log_m(1.0 - order, np.zeros(1)).real[0] / (order - 1))
    if order > 1 and _lost(f)[0] > 0:
        return np.inf
    scaled = order * (order - 1)
    steep = _integral(f, order - 1)
    flat = _integral(f.inverse(), -order)
    return float(np.log1p(scaled * (steep + flat)) / (order - 1))


def _renyi_piecewise(f: PiecewiseLinear, order: float) -> float:
    if order > 1 and f._p_only > 0:
        return np.inf
    if f._t.size == 0:
        return np.inf
    exponent = np.log(f._p) + (1 - order) * f._t
    peak = exponent.max()
    return float((peak + np.log(np.exp(exponent - peak).sum())) / (order - 1))


def _factors(f: TradeOff) -> list[tuple[TradeOff, int]] | None:
    """The factors of a composition: divergences of these kinds add up."""
    if isinstance(f, Composed):
        return list(f.factors)
    if isinstance(f, Inverse) and isinstance(f.f, Composed):
        return [(g.inverse(), n) for g, n in f.f.factors]
    return None


def _lost(f: TradeOff) -> tuple[float, float]:
    """`P(q = 0)` and `Q(p = 0)`."""
    end = np.array([np.inf])
    return float(f._reverse_delta(end)[0]), float(f._delta(end)[0])


def _integral(f: TradeOff, rate: float) -> float:
    """`int_0^inf exp(rate x) H_{e^x}(P || Q) dx`, by adaptive Gauss rules.

    Returns `inf` if the integrand has not died down where the profile underflows:
    an overestimate is safe, a truncated integral is not.
    """

    def integrand(x: Array) -> Array:
        with np.errstate(divide="ignore"):
            exponent = rate * x + np.log(f._reverse_delta(x))
        return np.asarray(np.exp(np.minimum(exponent, 700.0)))

    at_zero = f._reverse_delta(np.zeros(1))[0]
    if at_zero == 0:
        return 0.0
    half = float(f.inverse()._epsilon(np.array([at_zero / 2]))[0])
    width = half if 0 < half < np.inf else 1.0
    low, total, peak = 0.0, 0.0, 0.0
    for _ in range(60):
        part = _adaptive(integrand, low, low + width, total)
        total += part
        peak = max(peak, part / width)
        end = float(integrand(np.array([low + width]))[0])
        if end * width <= 1e-17 * total:
            before = float(integrand(np.array([low + 0.9 * width]))[0])
            return total if before < 1e-3 * peak or rate <= 0 else np.inf
        low += width
        width *= 2
    return np.inf


def _adaptive(
    integrand: Callable[[Array], Array], low: float, high: float, scale: float
) -> float:
    """Integral over a panel, halving the parts on which two rules disagree."""

    def rule(lows: Array, highs: Array) -> Array:
        half = (highs - lows) / 2
        x = (lows + half)[:, None] + half[:, None] * _NODES
        return np.asarray(
            half * (integrand(x.ravel()).reshape(x.shape) * _WEIGHTS).sum(axis=1)
        )

    lows, highs = np.array([low]), np.array([high])
    whole = rule(lows, highs)
    total = 0.0
    for _ in range(48):
        middle = (lows + highs) / 2
        left, right = rule(lows, middle), rule(middle, highs)
        error = np.abs(left + right - whole)
        size = abs(total) + scale + float(np.abs(whole).sum())
        rough = error > 1e-13 * size
        total += float((left + right)[~rough].sum())
        if not rough.any():
            return total
        lows = np.concatenate([lows[rough], middle[rough]])
        highs = np.concatenate([middle[rough], highs[rough]])
        whole = np.concatenate([left[rough], right[rough]])
    return total + float(whole.sum())
