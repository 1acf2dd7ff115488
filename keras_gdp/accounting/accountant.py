"""The interface of all accountants: compose events, then read epsilon or delta."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_gdp import _validate
from keras_gdp.accounting.events import Event
from keras_gdp.errors import UnsupportedEventError

if TYPE_CHECKING:
    from keras_gdp.tradeoff import TradeOff

__all__ = ["ACCOUNTANTS", "RELATIONS", "Accountant", "make_accountant"]

Array = NDArray[np.float64]

RELATIONS = ("add_remove", "replace_one")

_UNITS = {
    "add_remove": "one record present in one data set and absent from the other",
    "replace_one": "one record replaced by another, the number of records unchanged",
}


class Accountant(ABC):
    """Adds up events and answers what they cost together.

    Reading never changes the accountant. Composing walks the event's tree once,
    checks all of it, and only then counts it.

    Args:
        relation: When two data sets are neighbours: `"add_remove"` (one record
            present or absent) or `"replace_one"` (one record's value changes).
        group_size: In how many records neighbouring data sets may differ (the
            number of records that one person contributes at most).
    """

    name: ClassVar[str]
    is_upper_bound: bool = True

    def __init__(self, relation: str = "add_remove", *, group_size: int = 1) -> None:
        self._relation = _validate.one_of("relation", relation, RELATIONS)
        self._group_size = _validate.count(
            "group_size",
            group_size,
            "It is the number of records that one person contributes; 1 for one.",
            minimum=1,
        )
        self._counts: dict[Event, int] = {}

    @property
    def relation(self) -> str:
        """The neighbouring relation, fixed at construction."""
        return self._relation

    @property
    def group_size(self) -> int:
        """In how many records neighbouring data sets may differ."""
        return self._group_size

    @property
    def events(self) -> tuple[tuple[Event, int], ...]:
        """The elementary events composed so far with their counts."""
        return tuple(self._counts.items())

    def compose(self, event: Event, count: int = 1) -> Self:
        """Adds `count` releases of an event.

        Args:
            event: Any event of this package.
            count: How many times it happened, >= 0.

        Returns:
            The accountant itself.

        Raises:
            UnsupportedEventError: If this accountant has no sound analysis of a part
                of the event under its relation. Nothing is counted then.
        """
        if not isinstance(event, Event):
            raise TypeError(
                "Argument `event` must be an event such as SampledGaussian(1.1, 0.01). "
                f"Received: event={event!r}. Build it from the "
                "noise multiplier and the sampling probability."
            )
        times = _validate.count("count", count)
        added: dict[Event, int] = {}
        for leaf, repeated in event.leaves():
            try:
                self._check(leaf)
            except UnsupportedEventError as error:
                inside = "" if leaf == event else f" (a part of {event!r})"
                raise UnsupportedEventError(
                    f"{type(self).__name__} cannot account {leaf!r}{inside} under "
                    f"relation={self._relation!r}: {error}"
                ) from None
            added[leaf] = added.get(leaf, 0) + repeated * times
        for leaf, repeated in added.items():
            if repeated:
                self._counts[leaf] = self._counts.get(leaf, 0) + repeated
        return self

    def copy(self) -> Self:
        """Returns an independent accountant with the same events."""
        return copy.deepcopy(self)

    __copy__ = copy

    def epsilon(self, delta: ArrayLike) -> Any:
        """Smallest epsilon that this accountant vouches for at delta.

        Args:
            delta: Probability in (0, 1), or an array of such.

        Returns:
            epsilon >= 0 (`inf` if there is no guarantee), in the shape of `delta`.
        """

        def upper(value: float) -> float:
            checked = _validate.delta("delta", value)
            return self._epsilon_bounds(checked)[1] if self._counts else 0.0

        return _map("delta", delta, upper)

    def delta(self, epsilon: ArrayLike) -> Any:
        """Smallest delta that this accountant vouches for at epsilon.

        Args:
            epsilon: Number >= 0, or an array of such.

        Returns:
            delta in [0, 1], in the shape of `epsilon`.
        """

        def upper(value: float) -> float:
            checked = _validate.non_negative("epsilon", value, infinite=True)
            return self._delta_bounds(checked)[1] if self._counts else 0.0

        return _map("epsilon", epsilon, upper)

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        """Bounds on the true epsilon at delta: (lower, upper).

        Returns:
            For accountants with `is_upper_bound` the truth lies between the two.
            For an estimate the second number is the estimate.
        """
        value = _validate.delta("delta", delta)
        return (0.0, 0.0) if not self._counts else self._epsilon_bounds(value)

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """Bounds on the true delta at epsilon: (lower, upper), as `epsilon_bounds`."""
        value = _validate.non_negative("epsilon", epsilon, infinite=True)
        return (0.0, 0.0) if not self._counts else self._delta_bounds(value)

    @property
    def assumption(self) -> str:
        """What the numbers rest on, as text for a privacy statement."""
        unit = _UNITS[self._relation]
        if self._group_size > 1:
            unit = f"up to {self._group_size} records at once, each: {unit}"
        return f"{self._method} Neighbouring data sets: {unit}."

    @property
    @abstractmethod
    def _method(self) -> str:
        """One or two sentences on the method, ending with a full stop."""

    @abstractmethod
    def _check(self, event: Event) -> None:
        """Raises UnsupportedEventError for an elementary event it cannot do."""

    @abstractmethod
    def _epsilon_bounds(self, delta: float) -> tuple[float, float]: ...

    @abstractmethod
    def _delta_bounds(self, epsilon: float) -> tuple[float, float]: ...

    def _delta_curve(self, epsilons: Array) -> Array:
        """Upper bounds on delta at many epsilons."""
        return np.asarray(self.delta(epsilons))

    def trade_off(self, num_points: int = 200) -> "TradeOff":
        """Trade-off function of everything composed so far.

        Built from `num_points` values of delta(epsilon), so for an upper bound it is
        a valid (lower) bound on the true trade-off function.

        Args:
            num_points: How many points of the privacy curve are computed.

        Returns:
            A `keras_gdp.tradeoff.TradeOff`.
        """
        points = _validate.count(
            "num_points",
            num_points,
            "More points draw a finer curve; try 101.",
            minimum=2,
        )
        tradeoff = import_module("keras_gdp.tradeoff")
        result: TradeOff = self._trade_off(tradeoff, points)
        return result

    def _trade_off(self, tradeoff: Any, points: int) -> Any:
        if not self._counts:
            return tradeoff.identity()
        top = self.epsilon(1e-12)
        top = top if math.isfinite(top) else 0.0
        grid = top * np.linspace(0.0, 1.0, points) ** 1.5
        epsilons = np.unique(grid)
        return tradeoff.from_delta(epsilons, self._delta_curve(epsilons))


def _map(name: str, value: ArrayLike, function: Callable[[float], float]) -> Any:
    if isinstance(value, np.ndarray | list | tuple):
        numbers = np.asarray(value)
        flat = [function(item) for item in numbers.ravel().tolist()]
        return np.array(flat, dtype=np.float64).reshape(numbers.shape)
    return function(value)  # type: ignore[arg-type]


ACCOUNTANTS = {
    "exact": ("keras_gdp.accounting.exact.accountant", "ExactAccountant"),
    "rdp": ("keras_gdp.accounting.rdp", "RDPAccountant"),
    "clt": ("keras_gdp.accounting.clt", "CLTAccountant"),
    "moments": ("keras_gdp.accounting.rdp", "MomentsAccountant"),
}


def make_accountant(
    name: str = "exact", relation: str = "add_remove", *, group_size: int = 1
) -> Accountant:
    """Returns a new accountant by name.

    Args:
        name: `"exact"`, `"rdp"`, `"clt"` or `"moments"`.
        relation: `"add_remove"` or `"replace_one"`.
        group_size: In how many records neighbouring data sets may differ.

    Returns:
        An accountant without events.
    """
    module, kind = ACCOUNTANTS[_validate.one_of("accountant", name, ACCOUNTANTS)]
    made: Accountant = getattr(import_module(module), kind)(
        relation, group_size=group_size
    )
    return made
