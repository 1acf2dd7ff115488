"""Translation to and from the events of the package dp-accounting (optional)."""

from typing import Any

from keras_gdp.accounting.events import (
    ApproximateDP,
    Composed,
    Event,
    Gaussian,
    Laplace,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
    SelfComposed,
    UniformSampledGaussian,
)
from keras_gdp.errors import UnsupportedEventError

__all__ = ["from_dp_event", "to_dp_event"]


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise ImportError(
            "This needs the package dp-accounting: pip install keras_gdp[interop]."
        ) from error
    return dp_accounting


def _has(lib: Any, kind: str) -> bool:
    """Whether this version of dp_accounting knows a kind of event."""
    return hasattr(lib, f"{kind}DpEvent")


def to_dp_event(event: Event) -> Any:
    """Returns the equivalent `dp_accounting` event.

    The noise multiplier keeps its meaning (noise over the clip norm); dp_accounting
    leaves the sensitivity under replacement to its accountants, some of which forget
    it: account replace_one runs with keras_gdp.

    Args:
        event: An event of keras_gdp.

    Returns:
        A `dp_accounting.DpEvent`.

    Raises:
        ImportError: If dp-accounting is not installed.
        UnsupportedEventError: If it has no equivalent event.
    """
    lib = _library()
    if isinstance(event, Composed):
        return lib.ComposedDpEvent([to_dp_event(item) for item in event.events])
    if isinstance(event, SelfComposed):
        return lib.SelfComposedDpEvent(to_dp_event(event.event), event.count)
    if isinstance(event, Gaussian):
        return lib.GaussianDpEvent(event.noise_multiplier)
    if isinstance(event, Laplace):
        return lib.LaplaceDpEvent(event.noise_multiplier)
    if isinstance(event, SampledGaussian | SampledLaplace):
        whole = Gaussian if isinstance(event, SampledGaussian) else Laplace
        inner = to_dp_event(whole(event.noise_multiplier))
        return lib.PoissonSampledDpEvent(event.sampling_probability, inner)
    if isinstance(event, UniformSampledGaussian):
        inner = lib.GaussianDpEvent(event.noise_multiplier)
        return lib.SampledWithoutReplacementDpEvent(
            event.num_examples, event.batch_size, inner
        )
    if isinstance(event, RandomizedResponse) and _has(lib, "RandomizedResponse"):
        return lib.RandomizedResponseDpEvent(
            event.noise_probability, event.num_categories
        )
    if isinstance(event, ApproximateDP) and _has(lib, "EpsilonDelta"):
        return lib.EpsilonDeltaDpEvent(event.epsilon, event.delta)
    raise UnsupportedEventError(
        f"dp_accounting has no event like {event!r}. Translate the others and account "
        "this one with keras_gdp."
    )


def from_dp_event(dp_event: Any) -> Event:
    """Returns the keras_gdp event equivalent to a `dp_accounting` event.

    Args:
        dp_event: A `dp_accounting.DpEvent`.

    Returns:
        The event.

    Raises:
        ImportError: If dp-accounting is not installed.
        UnsupportedEventError: If keras_gdp has no equivalent event.
    """
    lib = _library()
    if isinstance(dp_event, lib.NoOpDpEvent):
        return Composed()
    if isinstance(dp_event, lib.ComposedDpEvent):
        return Composed([from_dp_event(item) for item in dp_event.events])
    if isinstance(dp_event, lib.SelfComposedDpEvent):
        return SelfComposed(from_dp_event(dp_event.event), dp_event.count)
    if isinstance(dp_event, lib.GaussianDpEvent):
        return Gaussian(dp_event.noise_multiplier)
    if isinstance(dp_event, lib.LaplaceDpEvent):
        return Laplace(dp_event.noise_multiplier)
    if _has(lib, "RandomizedResponse") and isinstance(
        dp_event, lib.RandomizedResponseDpEvent
    ):
        return RandomizedResponse(dp_event.noise_parameter, dp_event.num_buckets)
    if _has(lib, "EpsilonDelta") and isinstance(dp_event, lib.EpsilonDeltaDpEvent):
        return ApproximateDP(dp_event.epsilon, dp_event.delta)
    if isinstance(dp_event, lib.PoissonSampledDpEvent):
        inner, p = from_dp_event(dp_event.event), dp_event.sampling_probability
        if isinstance(inner, Gaussian):
            return SampledGaussian(inner.noise_multiplier, p)
        if isinstance(inner, Laplace):
            return SampledLaplace(inner.noise_multiplier, p)
    if isinstance(dp_event, lib.SampledWithoutReplacementDpEvent):
        inner = from_dp_event(dp_event.event)
        if isinstance(inner, Gaussian):
            size, total = dp_event.sample_size, dp_event.source_dataset_size
            return UniformSampledGaussian(inner.noise_multiplier, size, total)
    raise UnsupportedEventError(
        f"keras_gdp has no event like {dp_event!r}. Use ApproximateDP(epsilon, delta) "
        "with a guarantee computed elsewhere."
    )
