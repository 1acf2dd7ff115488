"""delta of a single release: no composition, so no inversion either."""

import math

import numpy as np

from keras_gdp._gdp import log_delta_from_mu
from keras_gdp.accounting.exact.mixture import MixtureLoss
from keras_gdp.accounting.exact.privacy_loss import DiscreteLoss, GaussianLoss, Loss

__all__ = ["log_delta_of_one"]

_LEAST = 1e-300  # masses below it have lost digits


def log_delta_of_one(loss: Loss, epsilon: float) -> tuple[float, float]:
    """Bounds on the log of P(L > epsilon) - e^epsilon Q(L > epsilon).

    The threshold set is optimal, so a small error in placing it does not matter.

    Args:
        loss: The loss of the release.
        epsilon: Number >= 0.

    Returns:
        The lower and the upper end, without the mass of infinite loss.
    """
    if isinstance(loss, GaussianLoss):
        value = float(log_delta_from_mu(epsilon, loss.mu))
        error = 4e-16 * (8.0 + abs(value))
        return value - error, value + error
    if isinstance(loss, DiscreteLoss):
        value = loss.log_delta(epsilon)
        error = 4e-16 * (8.0 + abs(value)) if value > -math.inf else 0.0
        return value - error, value + error
    if isinstance(loss, MixtureLoss) and loss.noise == "gaussian" and len(loss.q) == 1:
        if len(loss.p) == 2 and loss.q[0][1] == 0.0:
            # (1-p) N(0,1) + p N(mu,1) against N(0,1): p times a Gaussian's delta.
            p, mu = loss.p[1]
            inner = epsilon - math.log(p)
            if epsilon < 500.0:
                inner = math.log1p(math.expm1(epsilon) / p)
            value = math.log(p) + float(log_delta_from_mu(inner, mu))
            error = 4e-16 * (16.0 + abs(value) + inner / mu * inner / mu)
            return value - error, value + error
    p_mass, q_mass, _ = loss.masses(np.array([epsilon]))
    p, q = float(p_mass[-1]), float(q_mass[-1])
    log_q = math.log(q) if q > _LEAST else -math.inf
    if q <= _LEAST and isinstance(loss, MixtureLoss) and loss.noise == "gaussian":
        log_q = _log_mass_beyond(loss, epsilon)
    if log_q == -math.inf:  # e^epsilon Q may be anything up to P
        return -math.inf, _log(p * (1.0 + 4e-15))
    scaled = math.exp(min(epsilon + log_q, 0.0))
    error = 4e-15 * (p + scaled) + 4e-16 * scaled * (epsilon - log_q)
    return _log(p - scaled - error), _log(p - scaled + error)


def _log_mass_beyond(loss: MixtureLoss, epsilon: float) -> float:
    """Log of the mass of the losses above epsilon under Q, for Gaussian noise."""
    from scipy.special import log_ndtr

    at = float(loss.locate(np.array([epsilon]))[0][0])
    logs = [math.log(w) + float(log_ndtr(shift - at)) for w, shift in loss.q]
    return float(np.logaddexp.reduce(logs))


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf
