"""Renyi accountants: the RDP conversion of today and the moments accountant.

One step's Renyi divergence of order a is K(a - 1)/(a - 1), K the cumulant function
of its privacy loss; orders are real numbers and the best one is searched for.
"""

import math
from collections.abc import Callable

from keras_gdp.accounting.accountant import Accountant
from keras_gdp.accounting.events import Event
from keras_gdp.accounting.exact.moments import QuadratureTooLargeError
from keras_gdp.accounting.exact.pairs import dominating_pair
from keras_gdp.accounting.exact.privacy_loss import Loss

__all__ = ["MomentsAccountant", "RDPAccountant"]


def _rounded_up(loss: Loss, order: float) -> float:
    """The cumulant, or a little more than it."""
    return loss.real(order)[0] + loss.rounding(order)


class _CumulantAccountant(Accountant):
    """What both share: cumulants of the composition, best order."""

    def _check(self, event: Event) -> None:
        dominating_pair(event, self.relation, self.group_size)

    def log_moment(self, order: float) -> float:
        """Largest log E[exp(order L)] of the two directions, order > 0."""
        pairs = [
            (dominating_pair(event, self.relation, self.group_size), count)
            for event, count in self.events
        ]
        totals = [0.0, 0.0]
        for pair, count in pairs:
            if pair is None:
                continue
            if max(pair.forward.infinite_mass, pair.reverse.infinite_mass) > 0:
                return math.inf
            try:
                forward = reverse = _rounded_up(pair.forward, order)
                if pair.reverse is not pair.forward:
                    reverse = _rounded_up(pair.reverse, order)
            except QuadratureTooLargeError:
                return math.inf  # this order is out of reach: no bound from it
            totals[0] += count * pair.times * forward
            totals[1] += count * pair.times * reverse
        return max(totals)

    def _minimum(self, objective: Callable[[float], float]) -> float:
        """Smallest value over orders in (0, inf), found by walking downhill.

        Every order gives a valid bound, so a missed optimum costs tightness only.
        """
        from scipy.optimize import minimize_scalar

        def at(y: float) -> float:
            return objective(math.exp(y))

        step, middle = 0.7, 1.4
        value, right, left = at(middle), at(middle + step), at(middle - step)
        while right < value and middle < 40.0:
            left, value, middle = value, right, middle + step
            right = at(middle + step)
        while left <= value and middle > -40.0 and not right < value:
            right, value, middle = value, left, middle - step
            left = at(middle - step)
        if not math.isfinite(value):
            return value
        found = minimize_scalar(
            at,
            bounds=(middle - step, middle + step),
            method="bounded",
            options={"xatol": 1e-6},
        )
        return min(value, float(found.fun))

    def _delta_bounds(self, epsilon: float) -> tuple[float, float]:
        if epsilon == math.inf:
            return 0.0, 0.0 if math.isfinite(self.log_moment(1.0)) else 1.0
        return 0.0, math.exp(min(0.0, self._log_delta(epsilon)))

    def _epsilon_bounds(self, delta: float) -> tuple[float, float]:
        if not math.isfinite(self.log_moment(1e-3)):
            return 0.0, math.inf
        return 0.0, max(0.0, self._epsilon(math.log(delta)))

    def _log_delta(self, epsilon: float) -> float:
        raise NotImplementedError

    def _epsilon(self, log_delta: float) -> float:
        raise NotImplementedError


class RDPAccountant(_CumulantAccountant):
    """Renyi differential privacy with the improved conversion to (epsilon, delta).

    `epsilon = min over orders a > 1 of R_a + log(1 - 1/a) - (log delta + log a)/(a-1)`
    (Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy",
    Proposition 12). The order is any real number, chosen by search. Sampled
    mechanisms use their exact Renyi divergences; fixed-size batches those of the
    dominating pair of Dong, Roth and Su. An upper bound.

    Example:
        >>> from keras_gdp.accounting import SampledGaussian
        >>> run = RDPAccountant().compose(SampledGaussian(1.3, 256 / 60000), 3516)
        >>> round(run.epsilon(1e-5), 6)
        0.954487
    """

    name = "rdp"

    @property
    def _method(self) -> str:
        return (
            "Upper bound: Renyi differential privacy over real orders, converted by "
            "Canonne, Kamath and Steinke (2020); usually loose by 5 to 20 percent."
        )

    def renyi_divergence(self, order: float) -> float:
        """Renyi divergence of everything composed so far, order > 1."""
        return self.log_moment(order - 1.0) / (order - 1.0)

    def _log_delta(self, epsilon: float) -> float:
        def objective(order: float) -> float:
            shape = -order * math.log1p(1.0 / order) - math.log1p(order)
            return _upper_sum(self.log_moment(order), -order * epsilon, shape)

        return self._minimum(objective)

    def _epsilon(self, log_delta: float) -> float:
        def objective(order: float) -> float:
            shape = -math.log1p(1.0 / order) - math.log1p(order) / order
            return _upper_sum(self.log_moment(order) / order, -log_delta / order, shape)

        return self._minimum(objective)


class MomentsAccountant(_CumulantAccountant):
    """The moments accountant of Abadi et al. that Bu et al. compare with.

    `delta = min over lambda > 0 of exp(alpha(lambda) - lambda epsilon)` with the log
    moments alpha of everything composed, over real lambda. An upper bound, kept for
    comparison: `RDPAccountant` is always at least as tight.

    References:
        Abadi et al., "Deep Learning with Differential Privacy", Theorem 2.

    Example:
        >>> from keras_gdp.accounting import SampledGaussian
        >>> run = MomentsAccountant().compose(SampledGaussian(1.3, 256 / 60000), 3516)
        >>> round(run.epsilon(1e-5), 5)
        1.19124
    """

    name = "moments"

    @property
    def _method(self) -> str:
        return (
            "Upper bound: moments accountant (Abadi et al. 2016) over real orders, "
            "with its original conversion; looser than every other accountant here."
        )

    def _log_delta(self, epsilon: float) -> float:
        return self._minimum(
            lambda order: _upper_sum(self.log_moment(order), -order * epsilon)
        )

    def _epsilon(self, log_delta: float) -> float:
        return self._minimum(
            lambda order: _upper_sum(self.log_moment(order) / order, -log_delta / order)
        )


def _upper_sum(*terms: float) -> float:
    """A sum that is not below the exact one by rounding, nor by that of its terms."""
    return sum(terms) + 1e-15 * sum(abs(term) for term in terms)
