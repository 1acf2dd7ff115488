"""ExactAccountant: both directions of a composition, the worse of which counts."""

import math

import numpy as np

from keras_gdp.accounting.accountant import Accountant, make_accountant
from keras_gdp.accounting.events import Event
from keras_gdp.accounting.exact.composition import Composition, directions
from keras_gdp.accounting.exact.delta import delta_bounds, delta_curve
from keras_gdp.accounting.exact.epsilon import epsilon_bounds
from keras_gdp.accounting.exact.pairs import dominating_pair
from keras_gdp.accounting.exact.readings import Bounds
from keras_gdp.accounting.exact.waves import Array

__all__ = ["ExactAccountant"]

_LOOSE = 1e-3  # wider bounds are intersected with the Renyi accountant's


class ExactAccountant(Accountant):
    """The privacy cost itself: numerical composition of privacy losses.

    `epsilon` and `delta` return the upper end of bounds that contain the truth.
    For Gaussian noise the two ends agree to nine digits or more, at delta = 1e-5 as at
    1e-40, after two steps as after a million, unless delta is within some per cent of
    total variation after few rare releases; for randomized response up to 100,000
    releases, and for Laplace noise after some hundreds. Elsewhere they can be apart,
    the upper end as sound.

    Example:
        >>> from keras_gdp.accounting import SampledGaussian
        >>> run = ExactAccountant().compose(SampledGaussian(1.3, 256 / 60000), 3516)
        >>> round(run.epsilon(1e-5), 8)
        0.86454019
        >>> low, high = run.delta_bounds(1.2)
        >>> low <= high and high - low < 1e-9 * high
        True
    """

    name = "exact"

    @property
    def _method(self) -> str:
        return (
            "Upper bound, tight to numerical precision: exact composition of the "
            "privacy loss distributions of the dominating pairs."
        )

    def _check(self, event: Event) -> None:
        dominating_pair(event, self.relation, self.group_size)

    def _directions(self) -> tuple[Composition, ...]:
        # Sorted, so that their order does not matter to the last digit.
        events = tuple(sorted(self.events, key=repr))
        return directions(events, self.relation, self.group_size)

    def _delta_curve(self, epsilons: Array) -> Array:
        curve = np.zeros(epsilons.size)
        for composition in self._directions():
            curve = np.maximum(curve, delta_curve(composition, epsilons))
        return curve

    def _delta_bounds(self, epsilon: float) -> Bounds:
        low, high = 0.0, 0.0
        compositions = self._directions()
        # Total variation is the same in both directions.
        for composition in compositions[: 1 if epsilon == 0.0 else 2]:
            bounds = delta_bounds(composition, epsilon, high)
            low, high = max(low, bounds[0]), max(high, bounds[1])
        if _loose(low, high) and compositions[0].steps > 1:
            other = min(compositions[0].total_variation, self._renyi().delta(epsilon))
            high = max(low, _tighter(high, other))
        return low, high

    def _epsilon_bounds(self, delta: float) -> Bounds:
        low, high = 0.0, 0.0
        compositions = self._directions()
        # Total variation is the same in both directions and adds up over steps.
        if compositions and compositions[0].total_variation <= delta:
            return 0.0, 0.0
        for composition in compositions:
            bounds = epsilon_bounds(composition, delta, high)
            low, high = max(low, bounds[0]), max(high, bounds[1])
        if _loose(low, high) and compositions[0].steps > 1:
            high = max(low, _tighter(high, self._renyi_epsilon(delta)))
        return low, high

    def _renyi_epsilon(self, delta: float) -> float:
        """The Renyi bound's epsilon, where its delta is at most that one."""
        bound, step = self._renyi(), 1e-15
        epsilon = float(bound.epsilon(delta))
        while bound.delta(epsilon) > delta and step < _LOOSE:
            epsilon, step = epsilon * (1.0 + step), 4.0 * step
        return epsilon

    def _renyi(self) -> Accountant:
        """The same composition for the Renyi bound, which is sound at any scale."""
        other = make_accountant("rdp", self.relation, group_size=self.group_size)
        for event, count in self.events:
            other.compose(event, count)
        return other


def _loose(low: float, high: float) -> bool:
    """Whether bounds are far apart, which infinity minus a number does not tell."""
    return low < high and (high == math.inf or high - low > _LOOSE * high)


def _tighter(high: float, other: float) -> float:
    """The other bound if it is surely worth it: epsilon and delta agree on `high`."""
    return other if other < high * (1.0 - _LOOSE) else high
