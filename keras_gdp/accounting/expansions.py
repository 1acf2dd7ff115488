"""How far the central limit theorem can be off: Berry-Esseen and Edgeworth.

Both start from the moments of one step's log likelihood ratio L = log dQ/dP under P
and under Q, where Q is the output with the record and P the one without. T steps are
told apart by thresholds of the sum of L, whose two distributions the central limit
theorem replaces by normal ones.

The Berry-Esseen bounds hold for every T, but their width (about 0.03 for typical
training runs) makes them useful for the middle of the trade-off function only; the
Edgeworth correction is far more accurate there, and is not a bound.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_gdp import _validate
from keras_gdp.accounting.events import Event
from keras_gdp.accounting.exact.mixture import MixtureLoss
from keras_gdp.accounting.exact.pairs import dominating_pair
from keras_gdp.accounting.exact.uniform import UniformLoss
from keras_gdp.errors import UnsupportedEventError

__all__ = [
    "LossMoments",
    "berry_esseen_trade_off",
    "edgeworth_trade_off",
    "loss_moments",
]

Array = NDArray[np.float64]

_IID_CONSTANT = 0.4748  # Shevtsova (2011)


class LossMoments(NamedTuple):
    """Moments of one step's loss: mean, variance, E|L - mean|^3, cumulants 3 and 4."""

    mean: float
    variance: float
    absolute_third: float
    third: float
    fourth: float


def loss_moments(
    event: Event, relation: str = "add_remove"
) -> tuple[LossMoments, LossMoments]:
    """Moments of L = log dQ/dP of one release, under P and under Q.

    Args:
        event: A sampled Gaussian or Laplace event.
        relation: `"add_remove"` or `"replace_one"`.

    Returns:
        The moments under P (without the record) and under Q (with it).

    Raises:
        UnsupportedEventError: If the event has no smooth loss to expand.

    Example:
        >>> from keras_gdp.accounting import SampledGaussian
        >>> under_p, under_q = loss_moments(SampledGaussian(1.3, 256 / 60000))
        >>> f"{under_p.mean:.9e}", f"{under_q.variance:.9e}"
        ('-7.283591442e-06', '1.469201107e-05')
    """
    pair = dominating_pair(event, relation, 1)
    if pair is None or not isinstance(pair.forward, MixtureLoss | UniformLoss):
        raise UnsupportedEventError(
            f"{event!r} has no sampled loss to expand: plain Gaussian releases compose "
            "exactly (mu adds up in squares). Use the exact accountant."
        )
    atom = pair.forward.atom if isinstance(pair.forward, UniformLoss) else 0.0
    weight, loss = pair.forward.nodes(2.0, 1.0).measure()
    return (
        _moments(weight, loss, atom),
        _moments(weight * np.exp(loss), loss, atom),
    )


def _moments(weight: Array, loss: Array, atom: float) -> LossMoments:
    mean = float(weight @ loss)
    centred = loss - mean

    def central(order: int, absolute: bool = False) -> float:
        values = np.abs(centred) if absolute else centred
        at_zero = abs(mean) if absolute else -mean
        return float(weight @ values**order) + atom * at_zero**order

    variance = central(2)
    fourth = central(4) - 3.0 * variance**2
    return LossMoments(mean, variance, central(3, True), central(3), fourth)


def _prepare(
    event: Event, steps: int, alpha: ArrayLike, relation: str
) -> tuple[LossMoments, LossMoments, int, Array]:
    count = _validate.count("steps", steps, minimum=1)
    points = _validate.array("alpha", alpha)
    if not ((points >= 0) & (points <= 1)).all():
        raise ValueError(_validate.message("alpha", alpha, "in [0, 1]"))
    under_p, under_q = loss_moments(event, relation)
    return under_p, under_q, count, points


def berry_esseen_trade_off(
    event: Event, steps: int, alpha: ArrayLike, relation: str = "add_remove"
) -> tuple[Array, Array]:
    """Bounds on the trade-off function of `steps` releases, in one direction.

    With means, variances and third absolute moments (m, v, rho) of one step under P
    and Q, g = 0.4748 rho/(v^1.5 sqrt(T)), s = sqrt(T v), d = T (m_P - m_Q):

        Phi((s_P Phi^-1(1 - a - g_P) + d)/s_Q) - g_Q <= f(a)
        f(a) <= Phi((s_P Phi^-1(1 - a + g_P) + d)/s_Q) + g_Q

    The Berry-Esseen theorem under P fixes the threshold, under Q the type II error.

    Args:
        event: One step, sampled.
        steps: Number of steps, >= 1.
        alpha: Type I errors in [0, 1].
        relation: `"add_remove"` or `"replace_one"`.

    Returns:
        `(lower, upper)`, clipped to [0, 1 - alpha].
    """
    from scipy.special import ndtr, ndtri

    p, q, count, a = _prepare(event, steps, alpha, relation)
    g_p, g_q = (
        _IID_CONSTANT * m.absolute_third / (m.variance**1.5 * math.sqrt(count))
        for m in (p, q)
    )
    s_p, s_q = math.sqrt(count * p.variance), math.sqrt(count * q.variance)
    shift = count * (p.mean - q.mean)

    def normal(level: Array) -> Array:
        quantile = ndtri(np.clip(level, 0.0, 1.0))
        return np.asarray(ndtr((s_p * quantile + shift) / s_q))

    lower = np.clip(normal(1.0 - a - g_p) - g_q, 0.0, 1.0 - a)
    upper = np.clip(normal(1.0 - a + g_p) + g_q, 0.0, 1.0 - a)
    return lower, upper


def _edgeworth_cdf(x: Array, moments: LossMoments, count: int) -> Array:
    from scipy.special import ndtr

    scale = count * moments.variance
    g3 = count * moments.third / scale**1.5
    g4 = count * moments.fourth / scale**2
    density = np.exp(-x * x / 2.0) / math.sqrt(2.0 * math.pi)
    hermite = g3 / 6.0 * (x**2 - 1.0) + g4 / 24.0 * (x**3 - 3.0 * x)
    hermite = hermite + g3**2 / 72.0 * (x**5 - 10.0 * x**3 + 15.0 * x)
    return np.asarray(ndtr(x) - density * hermite)


def edgeworth_trade_off(
    event: Event, steps: int, alpha: ArrayLike, relation: str = "add_remove"
) -> Array:
    """Second-order (Edgeworth) estimate of the trade-off function, one direction.

    An approximation, and no guarantee: good in the middle (error 1e-6 for a typical
    run, where the central limit theorem is off by 1e-4), unreliable in the tails.

    Args:
        event: One step, sampled.
        steps: Number of steps, >= 1.
        alpha: Type I errors in [0, 1].
        relation: `"add_remove"` or `"replace_one"`.

    Returns:
        The estimate, clipped to [0, 1 - alpha].

    References:
        Zheng, Dong, Long and Su, "Sharp Composition Bounds for Gaussian Differential
        Privacy via Edgeworth Expansion" (2020).

    Example:
        >>> from keras_gdp.accounting import SampledGaussian
        >>> step = SampledGaussian(1.3, 256 / 60000)
        >>> round(float(edgeworth_trade_off(step, 3516, 0.3)), 10)
        0.6167726266
    """
    from scipy.special import ndtri

    p, q, count, a = _prepare(event, steps, alpha, relation)
    s_p, s_q = math.sqrt(count * p.variance), math.sqrt(count * q.variance)
    shift = count * (p.mean - q.mean)
    inside = np.clip(a, 1e-300, 1.0 - 1e-16)
    threshold = -ndtri(inside)
    # The root nearest to the normal quantile: Newton's iteration from there.
    for _ in range(60):
        gap = _edgeworth_cdf(threshold, p, count) - (1.0 - inside)
        width = 1e-5
        slope = _edgeworth_cdf(threshold + width, p, count)
        slope = (slope - _edgeworth_cdf(threshold - width, p, count)) / (2.0 * width)
        slope = np.where(np.abs(slope) > 1e-12, slope, 1.0)
        threshold = threshold - np.clip(gap / slope, -0.5, 0.5)
    value = _edgeworth_cdf((threshold * s_p + shift) / s_q, q, count)
    value = np.where(a <= 0.0, 1.0, np.where(a >= 1.0, 0.0, value))
    return np.clip(value, 0.0, 1.0 - a)
