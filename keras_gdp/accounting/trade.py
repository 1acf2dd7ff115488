"""Closed forms under the central limit theorem, and the trade of Bu et al.

Section 3 of "Deep Learning with Gaussian Differential Privacy": the moments
accountant over-charges, so the (epsilon, delta) that it reports can be had with less
noise. The paper computes that noise by the central limit theorem, which may overspend
at finite T; the same trade with the exact accountant is sound, and always gains,
because the exact delta is below the moments accountant's.
"""

import math
from typing import NamedTuple

import numpy as np

from keras_gdp import _validate
from keras_gdp._gdp import mu_from_epsilon_delta
from keras_gdp.accounting.accountant import make_accountant
from keras_gdp.accounting.calibrate import noise_multiplier_for
from keras_gdp.accounting.clt import uniform_growth
from keras_gdp.accounting.events import SampledGaussian

__all__ = [
    "NoiseTrade",
    "noise_multiplier_for_mu",
    "sampling_probability_for_mu",
    "steps_for_mu",
    "trade_noise",
]


class NoiseTrade(NamedTuple):
    """Result of `trade_noise`.

    `delta` is what the moments accountant reports at the epsilon asked for, and
    `noise_multiplier` the smaller noise that suffices for it.
    """

    delta: float
    noise_multiplier: float


def noise_multiplier_for_mu(
    mu: float,
    *,
    sampling_probability: float,
    steps: float,
    sampling: str = "poisson",
    sensitivity: float = 1.0,
) -> float:
    """Noise multiplier that gives mu-GDP by the central limit theorem (estimate).

    `sigma = 1/sqrt(log(1 + (mu/(p sqrt T))^2))` for Poisson sampling, the inverse of
    `mu_uniform` for fixed-size batches; for p = 1 the exact sqrt(T)/mu.

    Args:
        mu: GDP parameter > 0.
        sampling_probability: Probability of each record to be in a batch.
        steps: Number of noised updates.
        sampling: `"poisson"`, or `"uniform"` for fixed-size batches.
        sensitivity: How far one step's sum moves, in clip norms: 1 under add_remove,
            2 for fixed-size batches in training (see `mu_uniform`).

    Returns:
        The noise multiplier; 0 if nothing is released.

    Example:
        >>> sigma = noise_multiplier_for_mu(1.0, sampling_probability=0.01, steps=1e4)
        >>> round(sigma, 10)
        1.2011224088
    """
    target = _validate.positive("mu", mu)
    p = _validate.probability("sampling_probability", sampling_probability)
    count = _validate.non_negative("steps", steps)
    if p == 0.0 or count == 0.0:
        return 0.0
    _validate.one_of("sampling", sampling, ("poisson", "uniform"))
    scale = _validate.positive("sensitivity", sensitivity)
    ratio = target / (p * math.sqrt(count))
    if p == 1.0:
        return scale / ratio
    if sampling == "poisson":
        return scale / math.sqrt(math.log1p(ratio * ratio))
    return scale / _uniform_argument(0.5 * ratio * ratio)


def _uniform_argument(growth: float) -> float:
    """The u at which `uniform_growth` has a value > 0."""
    from scipy.optimize import brentq

    def gap(y: float) -> float:
        return math.log(float(uniform_growth(np.array(math.exp(y))))) - math.log(growth)

    # (exp(u^2) - 1)/2 <= h(u) <= 2 (exp(u^2) - 1), with room to spare.
    low, high = (0.5 * math.log(math.log1p(growth * f)) for f in (0.4, 2.5))
    return math.exp(float(brentq(gap, low, high, xtol=1e-15, rtol=1e-15)))


def sampling_probability_for_mu(
    mu: float, *, noise_multiplier: float, steps: float
) -> float:
    """Sampling probability that gives mu-GDP by the central limit theorem (estimate).

    `p = mu/sqrt(T (exp(1/sigma^2) - 1))`, at most 1.

    Args:
        mu: GDP parameter > 0.
        noise_multiplier: Noise standard deviation over `l2_norm_clip`, > 0.
        steps: Number of noised updates, > 0.

    Returns:
        The probability.
    """
    target = _validate.positive("mu", mu)
    noise = _validate.positive("noise_multiplier", noise_multiplier)
    count = _validate.positive("steps", steps)
    if target >= math.sqrt(count) / noise:
        return 1.0
    square = noise**-2.0
    log_growth = math.log(math.expm1(square)) if square < 30.0 else square
    return min(1.0, math.exp(math.log(target) - 0.5 * (math.log(count) + log_growth)))


def steps_for_mu(
    mu: float, *, noise_multiplier: float, sampling_probability: float
) -> int:
    """Largest number of steps within mu-GDP by the central limit theorem (estimate).

    `T = floor((mu/p)^2 / (exp(1/sigma^2) - 1))`; for p = 1 the exact (mu sigma)^2.

    Args:
        mu: GDP parameter > 0.
        noise_multiplier: Noise standard deviation over `l2_norm_clip`, > 0.
        sampling_probability: Probability in (0, 1] of each record to be in a batch.

    Returns:
        The number of steps.
    """
    target = _validate.positive("mu", mu)
    noise = _validate.positive("noise_multiplier", noise_multiplier)
    p = _validate.probability("sampling_probability", sampling_probability)
    p = _validate.positive("sampling_probability", p)
    square = noise**-2.0
    growth = math.expm1(min(square, 700.0)) if p < 1.0 else square
    return math.floor((target / p) ** 2 / growth * (1.0 + 1e-12))


def trade_noise(
    epsilon: float,
    *,
    noise_multiplier: float,
    sampling_probability: float,
    steps: int,
    accountant: str = "exact",
) -> NoiseTrade:
    """The smaller noise that gives what the moments accountant would have reported.

    Args:
        epsilon: At which the two must agree, > 0.
        noise_multiplier: Noise of the run that the moments accountant judges.
        sampling_probability: Probability of each record to be in a batch.
        steps: Number of noised updates.
        accountant: `"exact"` (sound), or `"clt"` for the paper's own estimate.

    Returns:
        The moments accountant's delta, and the noise multiplier that reaches it.

    References:
        Bu, Dong, Long and Su (2020), section 3, equations (7) and (8).

    Example:
        >>> trade = trade_noise(1.0, noise_multiplier=1.3, steps=3516,
        ...     sampling_probability=256 / 60000)
        >>> f"{trade.delta:.6e}", round(trade.noise_multiplier, 6)
        ('2.161557e-04', 1.021038)
    """
    target = _validate.positive("epsilon", epsilon)
    choice = _validate.one_of("accountant", accountant, ("exact", "clt"))
    steps = _validate.count("steps", steps, minimum=1)
    _validate.positive("sampling_probability", sampling_probability)
    event = SampledGaussian(noise_multiplier, sampling_probability)
    moments = make_accountant("moments").compose(event, steps)
    delta = float(moments.delta(target))
    if delta >= 1.0:
        raise ValueError(
            "Argument `epsilon` must be so large that the moments accountant has "
            f"something to say. Received: epsilon={epsilon!r}, where its delta is 1. "
            "Raise epsilon, or the noise multiplier."
        )
    if choice == "clt":
        mu = float(mu_from_epsilon_delta(target, delta))
        noise = noise_multiplier_for_mu(
            mu, sampling_probability=sampling_probability, steps=steps
        )
        return NoiseTrade(delta, noise)
    noise = noise_multiplier_for(
        target, delta, sampling_probability=sampling_probability, steps=steps
    )
    return NoiseTrade(delta, noise)
