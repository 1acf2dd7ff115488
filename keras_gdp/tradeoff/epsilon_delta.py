"""The trade-off function of (epsilon, delta)-differential privacy."""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from keras_gdp import _validate
from keras_gdp.tradeoff.base import TradeOff
from keras_gdp.tradeoff.piecewise import PiecewiseLinear, no_privacy

__all__ = ["ApproximateDP", "approximate_dp"]


def approximate_dp(epsilon: float, delta: float = 0.0) -> PiecewiseLinear:
    r"""`f(alpha) = max{0, 1 - delta - e^eps alpha, e^-eps (1 - delta - alpha)}`.

    A mechanism is (epsilon, delta)-DP exactly if it is f-DP for this `f`.

    Args:
        epsilon: >= 0; `inf` gives no privacy.
        delta: in [0, 1].

    Returns:
        The trade-off function.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> f = approximate_dp(1.0, 0.1)
        >>> round(f(0.1), 6), round(f.delta(0.5), 6)
        (0.628172, 0.358884)
    """
    epsilon = _validate.non_negative("epsilon", epsilon, infinite=True)
    delta = _validate.probability("delta", delta)
    if epsilon == np.inf or delta == 1:
        return no_privacy()
    return ApproximateDP(epsilon, delta)


class ApproximateDP(PiecewiseLinear):
    """`f_{epsilon, delta}`; see `approximate_dp`."""

    def __init__(self, epsilon: float, delta: float) -> None:
        likely = (1 - delta) / (1 + np.exp(-epsilon))
        rare = likely * np.exp(-epsilon)
        if epsilon == 0:
            p = q = np.array([1 - delta])
            log_slopes = np.zeros(1)
        else:
            p, q = np.array([likely, rare]), np.array([rare, likely])
            log_slopes = np.array([-epsilon, epsilon])
        super().__init__(p, q, delta, delta, log_slopes)
        self.parameters = (epsilon, delta)

    def __repr__(self) -> str:
        epsilon, delta = self.parameters
        return f"approximate_dp(epsilon={epsilon!r}, delta={delta!r})"

    @property
    def is_symmetric(self) -> bool:
        """Always true."""
        return True

    def _self_compose_closed(self, n: int) -> TradeOff | None:
        # The pair of binomials of Kairouz, Oh and Viswanath, "The Composition Theorem
        # for Differential Privacy", Theorem 3.3.
        epsilon, delta = self.parameters
        if n > 10**6:
            return None
        k = np.arange(n + 1.0)
        log_choose = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
        log_rare = -np.logaddexp(0.0, epsilon)
        with np.errstate(divide="ignore"):
            survive = n * np.log1p(-delta)
        log_q = survive + log_choose + n * log_rare + k * epsilon
        revealed = float(-np.expm1(survive))
        q = np.exp(log_q)
        composed = PiecewiseLinear(
            q[::-1], q, revealed, revealed, (2 * k - n) * epsilon
        )
        return composed._renamed(f"{self!r}.self_compose({n})")
