"""The trade-off function of NoisySGD and NoisyAdam."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from keras_gdp import _validate
from keras_gdp.tradeoff._arrays import Array, finite_or_infinite
from keras_gdp.tradeoff.base import TradeOff, checked_tradeoff
from keras_gdp.tradeoff.duality import from_delta
from keras_gdp.tradeoff.envelope import LowerEnvelope
from keras_gdp.tradeoff.gaussian import gaussian
from keras_gdp.tradeoff.piecewise import PiecewiseLinear

__all__ = ["moments_accountant", "noisy_sgd"]


def noisy_sgd(
    noise_multiplier: float, sampling_probability: float, steps: int
) -> TradeOff:
    """`min{f, f^-1}**` with `f = (p G_{1/sigma} + (1 - p) Id)` composed `steps` times.

    It holds for add-or-remove-one neighbours, Poisson sampling and noise of standard
    deviation `noise_multiplier * l2_norm_clip` on the clipped sum. Momentum, Adam and
    any other processing of the noisy sums change nothing.

    Args:
        noise_multiplier: `sigma`, >= 0; 0 gives no privacy.
        sampling_probability: `p` in [0, 1].
        steps: number of noisy updates, >= 0.

    Returns:
        The exact guarantee, up to the `accuracy` it states.

    Raises:
        ValueError: if an argument is outside its range.

    References:
        Bu, Dong, Long and Su, "Deep Learning with Gaussian Differential Privacy",
        HDSR 2020, Theorem 3.

    Example:
        >>> f = noisy_sgd(1.3, 256 / 60000, 3516)
        >>> round(f.epsilon(1e-5), 6)
        0.86454
    """
    sigma = _validate.non_negative("noise_multiplier", noise_multiplier, infinite=True)
    p = _validate.probability("sampling_probability", sampling_probability)
    steps = _validate.count("steps", steps)
    mu = np.inf if sigma == 0 else 1 / sigma
    return gaussian(mu).subsample(p).self_compose(steps).symmetrize()


def moments_accountant(
    f: TradeOff, epsilons: ArrayLike | None = None
) -> PiecewiseLinear:
    """What the moments accountant knows about `f`.

    This is `sup f_{epsilon, delta_MA(epsilon)}` over all `epsilon >= 0`, with
    `delta_MA(epsilon) = inf_lambda exp(lambda (R_{lambda + 1} - epsilon))`, both orders
    of the pair and a grid of real `lambda` from 1e-2 to 1e4. Renyi divergences add up
    under composition, which is why this is cheap; it always lies below `f`.

    Args:
        f: a trade-off function, usually a composition.
        epsilons: at which to take the supremum; by default 2000 up to where `delta_MA`
            is 1e-15.

    Returns:
        The implied (symmetric) trade-off function.

    References:
        Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Theorem 2;
        Bu et al., HDSR 2020, Theorem 4.
    """
    checked_tradeoff("f", f)
    order = np.geomspace(1e-2, 1e4, 1501)
    moment = np.array([x * _worse_renyi(f, 1 + x) for x in order])
    usable = np.isfinite(moment)
    order, moment = order[usable], moment[usable]
    if order.size == 0:
        return from_delta([0.0], [1.0])
    if epsilons is None:
        end = float(((moment + 15 * np.log(10)) / order).min())
        grid: Array = np.linspace(0.0, end, 2000)
    else:
        grid = finite_or_infinite("epsilons", epsilons).ravel()
    log_delta = (moment - np.multiply.outer(grid, order)).min(axis=1)
    return from_delta(grid, np.exp(np.minimum(log_delta, 0.0)))


def _worse_renyi(f: TradeOff, order: float) -> float:
    if isinstance(f, LowerEnvelope):
        # Each part's own bound: the profile is the larger one of the parts' profiles.
        return max(_worse_renyi(part, order) for part in f.parts)
    forward = f.renyi(order)
    return forward if f.is_symmetric else max(forward, f.renyi(order, reverse=True))
