"""Events: what was released from the data, without saying what it costs.

An event is a frozen value. `noise_multiplier` is always the standard deviation of
the noise (for Laplace noise: its scale) divided by `l2_norm_clip`, the bound on one
record's contribution to the clipped *sum*. How far one record can move that sum
depends on the neighbouring relation, and the accountant takes care of it:

| relation      | neighbours differ by                | the clipped sum moves by  |
|---------------|-------------------------------------|---------------------------|
| `add_remove`  | one record present or absent        | at most `l2_norm_clip`    |
| `replace_one` | one record's value, same data size  | at most 2 `l2_norm_clip`  |

So one Gaussian release with noise multiplier 1 is 1-GDP under `add_remove` and 2-GDP
under `replace_one`. Units belong to the logical update: one event per noise draw.

Example:
    >>> step = SampledGaussian(noise_multiplier=1.1, sampling_probability=0.01)
    >>> run = Composed([SelfComposed(step, 1000), Gaussian(10.0)])
    >>> Event.from_dict(run.to_dict()) == run
    True
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from keras_gdp import _validate

__all__ = [
    "NO_NOISE",
    "ApproximateDP",
    "Composed",
    "Event",
    "Gaussian",
    "Laplace",
    "RandomizedResponse",
    "SampledGaussian",
    "SampledLaplace",
    "SelfComposed",
    "UniformSampledGaussian",
]

NO_NOISE = 1e-100  # below it squares of losses overflow: accounted as no noise


@dataclasses.dataclass(frozen=True)
class Event:
    """Base of all events; compares by value, hashable, JSON round trip."""

    def leaves(self) -> "Iterator[tuple[Event, int]]":
        """Yields each elementary event of the tree with its number of releases."""
        yield self, 1

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary that `Event.from_dict` reads back."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"type": type(self).__name__, **fields}

    @staticmethod
    def from_dict(record: Mapping[str, Any]) -> "Event":
        """Builds the event that `to_dict` described, checking every value.

        Args:
            record: A dictionary with the key `"type"` and the event's fields.

        Returns:
            The event.

        Raises:
            ValueError: If the name is unknown, a field is missing or left over, or
                a value is out of range.
        """
        if not isinstance(record, Mapping):
            raise TypeError(
                "Argument `record` must be a dictionary as made by `Event.to_dict`. "
                f"Received: record={record!r}. Parse JSON first, with `json.loads`."
            )
        name = record.get("type")
        kinds = {kind.__name__: kind for kind in _KINDS}
        if name not in kinds:
            raise ValueError(
                f"Argument `record` must name one of {sorted(kinds)} under the key "
                f"'type'. Received: record={dict(record)!r}. A newer version of "
                "keras_gdp may have written it."
            )
        kind = kinds[name]
        expected = {f.name for f in dataclasses.fields(kind)}
        given = set(record) - {"type"}
        if given != expected:
            raise ValueError(
                f"Argument `record` must hold exactly the fields {sorted(expected)} "
                f"of {name}. Received: {sorted(given)}. Pass what `to_dict` returned, "
                "unchanged."
            )
        values = {key: record[key] for key in expected}
        if kind is Composed:
            values["events"] = [Event.from_dict(item) for item in values["events"]]
        if kind is SelfComposed:
            values["event"] = Event.from_dict(values["event"])
        return kind(**values)

    @staticmethod
    def from_dp_event(dp_event: Any) -> "Event":
        """Builds the event equivalent to a `dp_accounting` event.

        Args:
            dp_event: A `dp_accounting.DpEvent`.

        Returns:
            The event.

        Raises:
            ImportError: If the package dp-accounting is not installed.
            UnsupportedEventError: If keras_gdp has no equivalent.
        """
        from keras_gdp.accounting import interop

        return interop.from_dp_event(dp_event)

    def to_dp_event(self) -> Any:
        """Returns the equivalent `dp_accounting` event.

        Returns:
            A `dp_accounting.DpEvent`.

        Raises:
            ImportError: If the package dp-accounting is not installed.
            UnsupportedEventError: If dp_accounting has no equivalent.
        """
        from keras_gdp.accounting import interop

        return interop.to_dp_event(self)


@dataclasses.dataclass(frozen=True)
class Gaussian(Event):
    """Gaussian noise on a sum over all records.

    Also one whole epoch of shuffled or otherwise disjoint batches, where each
    record is used once.

    Args:
        noise_multiplier: Noise standard deviation over `l2_norm_clip`, >= 0.
            0 means no privacy: epsilon is infinite.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        _set(self, noise_multiplier=_noise(self.noise_multiplier))


@dataclasses.dataclass(frozen=True)
class SampledGaussian(Event):
    """Gaussian noise on a sum over a Poisson sample: one step of DP-SGD.

    Args:
        noise_multiplier: Noise standard deviation over `l2_norm_clip`, >= 0.
        sampling_probability: Probability in [0, 1] with which each record enters
            the batch, independently of all others.
    """

    noise_multiplier: float
    sampling_probability: float

    def __post_init__(self) -> None:
        _set(
            self,
            noise_multiplier=_noise(self.noise_multiplier),
            sampling_probability=_sampling(self.sampling_probability),
        )


@dataclasses.dataclass(frozen=True)
class UniformSampledGaussian(Event):
    """Gaussian noise on a sum over a fixed-size sample without replacement.

    Args:
        noise_multiplier: Noise standard deviation over `l2_norm_clip`, >= 0. (Not
            over the sensitivity, which is 2 `l2_norm_clip` under `replace_one`.)
        batch_size: Number of records drawn, uniformly among all such subsets.
        num_examples: Number of records drawn from; public under `replace_one`.
    """

    noise_multiplier: float
    batch_size: int
    num_examples: int

    def __post_init__(self) -> None:
        size = _validate.count("batch_size", self.batch_size, minimum=1)
        total = _validate.count("num_examples", self.num_examples, minimum=1)
        if size > total:
            raise ValueError(
                "Argument `batch_size` must not exceed `num_examples`. Received: "
                f"batch_size={size}, num_examples={total}. Choose a smaller batch size."
            )
        noise = _noise(self.noise_multiplier)
        _set(self, noise_multiplier=noise, batch_size=size, num_examples=total)


@dataclasses.dataclass(frozen=True)
class Laplace(Event):
    """Laplace noise on a sum over all records (contributions bounded in L1).

    Args:
        noise_multiplier: Noise scale (the `b` of exp(-|x|/b)) over the clip norm.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        _set(self, noise_multiplier=_noise(self.noise_multiplier))


@dataclasses.dataclass(frozen=True)
class SampledLaplace(Event):
    """Laplace noise on a sum over a Poisson sample.

    Args:
        noise_multiplier: Noise scale over the clip norm, >= 0.
        sampling_probability: Probability in [0, 1] that a record enters the batch.
    """

    noise_multiplier: float
    sampling_probability: float

    def __post_init__(self) -> None:
        _set(
            self,
            noise_multiplier=_noise(self.noise_multiplier),
            sampling_probability=_sampling(self.sampling_probability),
        )


@dataclasses.dataclass(frozen=True)
class RandomizedResponse(Event):
    """Each record's category is replaced by a uniform one with some probability.

    Under both relations the neighbouring record is taken to answer with another
    category, which covers an absent record with any fixed default answer.

    Args:
        noise_probability: Probability in [0, 1] of answering with a category drawn
            uniformly from all of them.
        num_categories: Number of categories, >= 2.
    """

    noise_probability: float
    num_categories: int = 2

    def __post_init__(self) -> None:
        _set(
            self,
            noise_probability=_validate.probability(
                "noise_probability",
                self.noise_probability,
                "It is the share of random answers, such as 0.25.",
            ),
            num_categories=_validate.count(
                "num_categories",
                self.num_categories,
                "It is the number of possible answers; 2 for yes and no.",
                minimum=2,
            ),
        )


@dataclasses.dataclass(frozen=True)
class ApproximateDP(Event):
    """Any mechanism that is (epsilon, delta)-DP under the accountant's relation.

    Args:
        epsilon: Number >= 0 (`inf` allowed).
        delta: Number in [0, 1]; this much mass has infinite privacy loss.
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        _set(
            self,
            epsilon=_validate.non_negative("epsilon", self.epsilon, infinite=True),
            delta=_validate.probability("delta", self.delta),
        )


@dataclasses.dataclass(frozen=True)
class Composed(Event):
    """Several events on the same data, in any adaptive order.

    Args:
        events: The events; an empty sequence costs nothing.
    """

    events: tuple[Event, ...]

    def __init__(self, events: Iterable[Event] = ()) -> None:
        if not isinstance(events, Iterable):
            raise TypeError(
                _validate.message("events", events, "a list of events", _COMBINED)
            )
        items = tuple(events)
        for index, item in enumerate(items):
            _require_event(f"events[{index}]", item)
        _set(self, events=items)

    def leaves(self) -> Iterator[tuple[Event, int]]:
        """Yields the elementary events of all parts."""
        for item in self.events:
            yield from item.leaves()

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary that `Event.from_dict` reads back."""
        return {"type": "Composed", "events": [e.to_dict() for e in self.events]}


@dataclasses.dataclass(frozen=True)
class SelfComposed(Event):
    """The same event repeated, adaptively.

    Args:
        event: The event.
        count: How many times, >= 0.
    """

    event: Event
    count: int

    def __post_init__(self) -> None:
        _require_event("event", self.event)
        _set(self, count=_validate.count("count", self.count))

    def leaves(self) -> Iterator[tuple[Event, int]]:
        """Yields the event's elementary events, counted `count` times each."""
        for item, times in self.event.leaves():
            yield item, times * self.count

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary that `Event.from_dict` reads back."""
        inner = {"event": self.event.to_dict(), "count": self.count}
        return {"type": "SelfComposed", **inner}


_KINDS: tuple[type[Event], ...] = (
    ApproximateDP,
    Composed,
    Gaussian,
    Laplace,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
    SelfComposed,
    UniformSampledGaussian,
)


def _set(event: Event, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(event, name, value)


def _noise(value: object) -> float:
    return _validate.non_negative("noise_multiplier", value)


_COMBINED = (
    "Several are combined with Composed([...]), one that is repeated with "
    "SelfComposed(event, count)."
)


def _sampling(value: object) -> float:
    return _validate.probability("sampling_probability", value)


def _require_event(name: str, value: object) -> None:
    if not isinstance(value, Event):
        raise TypeError(
            _validate.message(name, value, "an event such as Gaussian(1.0)", _COMBINED)
        )
