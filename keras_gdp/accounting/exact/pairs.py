"""From events to dominating pairs: which losses one release has, per relation."""

import functools
import math
from typing import NamedTuple

from keras_gdp.accounting.events import (
    NO_NOISE,
    ApproximateDP,
    Event,
    Gaussian,
    Laplace,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
    UniformSampledGaussian,
)
from keras_gdp.accounting.exact.mixture import MixtureLoss
from keras_gdp.accounting.exact.privacy_loss import DiscreteLoss, GaussianLoss, Loss
from keras_gdp.accounting.exact.uniform import UniformLoss
from keras_gdp.errors import UnsupportedEventError

__all__ = ["Pair", "dominating_pair"]


class Pair(NamedTuple):
    """Losses of one release in both directions; the same object if symmetric.

    `times` counts independent copies (randomized response of a group).
    """

    forward: Loss
    reverse: Loss
    times: int = 1


_INFINITE = DiscreteLoss([1.0, 0.0], [0.0, 1.0], [math.inf, -math.inf])


@functools.lru_cache(maxsize=128)
def dominating_pair(event: Event, relation: str, group_size: int) -> Pair | None:
    """Dominating pair of one elementary event, or None if it costs nothing.

    Args:
        event: An elementary event.
        relation: `"add_remove"` or `"replace_one"`.
        group_size: In how many records neighbouring data sets differ.

    Returns:
        The pair, in the direction "records present against absent" first.

    Raises:
        UnsupportedEventError: If no dominating pair is known.
    """
    if getattr(event, "sampling_probability", 1.0) == 0.0:
        return None
    if getattr(event, "noise_multiplier", 1.0) < NO_NOISE:
        return _both(_INFINITE)
    replaced = relation == "replace_one"
    sensitivity = group_size * (2.0 if replaced else 1.0)
    sampled = getattr(event, "sampling_probability", 1.0) < 1.0
    if isinstance(event, SampledGaussian | SampledLaplace) and sampled:
        return _sampled(event, replaced, group_size)
    if isinstance(event, Gaussian | SampledGaussian):
        return _both(GaussianLoss(sensitivity / event.noise_multiplier))
    if isinstance(event, Laplace | SampledLaplace):
        shift = sensitivity / event.noise_multiplier
        return _both(MixtureLoss([(1.0, shift)], [(1.0, 0.0)], "laplace"))
    if isinstance(event, UniformSampledGaussian):
        return _uniform(event, replaced, group_size)
    if isinstance(event, RandomizedResponse):
        noise, count = event.noise_probability, event.num_categories
        if noise == 1.0:
            return None
        other, rest = noise / count, noise * (count - 2) / count
        top = 1.0 - noise + other
        most = math.log1p((1.0 - noise) * count / noise) if noise else math.inf
        losses = [most, -most, 0.0]
        loss = DiscreteLoss([top, other, rest], [other, top, rest], losses)
        return Pair(loss, loss, group_size)
    if isinstance(event, ApproximateDP):
        return _approximate(event, group_size)
    raise UnsupportedEventError(
        f"No dominating pair is known for {event!r}. Use the events of "
        "keras_gdp.accounting, for instance ApproximateDP(epsilon, delta) for a "
        "mechanism analysed elsewhere."
    )


def _both(loss: Loss) -> Pair:
    return Pair(loss, loss)


def _sampled(
    event: SampledGaussian | SampledLaplace, replaced: bool, group_size: int
) -> Pair:
    """Binomially many of the group's records enter, all pulling one way."""
    p, unit = event.sampling_probability, 1.0 / event.noise_multiplier
    noise = "gaussian" if isinstance(event, SampledGaussian) else "laplace"
    parts = []
    for j in range(group_size + 1):
        choose = math.lgamma(group_size + 1) - math.lgamma(j + 1)
        choose -= math.lgamma(group_size - j + 1)
        stay = (group_size - j) * math.log1p(-p)
        weight = math.exp(choose + j * math.log(p) + stay)
        if weight > 0:
            parts.append((weight, j * unit))
    mirrored = [(weight, -shift) for weight, shift in parts]
    if replaced:
        return _both(MixtureLoss(parts, mirrored, noise))
    origin = [(1.0, 0.0)]
    return Pair(MixtureLoss(parts, origin, noise), MixtureLoss(origin, mirrored, noise))


def _uniform(event: UniformSampledGaussian, replaced: bool, group_size: int) -> Pair:
    if not replaced:
        raise UnsupportedEventError(
            f"{event!r} fixes the batch size, which a record more or less would "
            'change: account it with relation="replace_one", or sample each record '
            "independently and use SampledGaussian."
        )
    if group_size != 1:
        raise UnsupportedEventError(
            f"{event!r} has no exact group analysis here: use group_size=1, or "
            "Poisson sampling (SampledGaussian), which supports groups."
        )
    mu, p = 2.0 / event.noise_multiplier, event.batch_size / event.num_examples
    return _both(GaussianLoss(mu) if p == 1.0 else UniformLoss(mu, p))


def _approximate(event: ApproximateDP, group_size: int) -> Pair | None:
    epsilon, delta = event.epsilon, event.delta
    if group_size > 1:
        # k records: k epsilon and delta (1 + e^epsilon + ... + e^((k-1) epsilon)).
        log_sum = math.log(group_size) + (group_size - 1) * epsilon
        delta = min(1.0, delta * math.exp(min(log_sum, 700.0)))
        epsilon = group_size * epsilon
    if epsilon == 0.0 and delta == 0.0:
        return None
    if epsilon > 700.0 or delta == 1.0:
        return _both(_INFINITE)
    likely = (1.0 - delta) / (1.0 + math.exp(-epsilon))
    rare = (1.0 - delta) / (1.0 + math.exp(epsilon))
    losses = [math.inf, epsilon, -epsilon, -math.inf]
    return _both(
        DiscreteLoss([delta, likely, rare, 0.0], [0.0, rare, likely, delta], losses)
    )
