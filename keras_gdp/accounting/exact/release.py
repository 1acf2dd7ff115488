"""delta of a single release: no composition, so no inversion either."""

import math

import numpy as np

from keras_gdp._gdp import log_delta_from_mu
from keras_gdp.accounting.exact.mixture import MixtureLoss
from keras_gdp.accounting.exact.privacy_loss import (
    LEAST_MASS,
    DiscreteLoss,
    GaussianLoss,
    Loss,
)
from keras_gdp.accounting.exact.uniform import UniformLoss

__all__ = ["log_delta_of_one"]

_ABOUT = 1e-9  # of epsilon, or of 1: further off no threshold is placed


def log_delta_of_one(loss: Loss, epsilon: float) -> tuple[float, float]:
    """Bounds on the log of P(L > epsilon) - e^epsilon Q(L > epsilon).

    The threshold set is optimal, so a small error in placing it hardly matters.

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
    if sampled := _sampled_gaussian(loss):
        p, mu = sampled
        inner = epsilon - math.log(p)
        if epsilon < 500.0:
            inner = math.log1p(math.expm1(epsilon) / p)
        value = math.log(p) + float(log_delta_from_mu(inner, mu))
        error = 4e-16 * (16.0 + abs(value) + inner / mu * inner / mu)
        return value - error, value + error
    about = _ABOUT * max(epsilon, 1.0)
    edges = np.array([epsilon - about, epsilon, epsilon + about])
    p_mass, q_mass, miss = loss.masses(edges)
    p, q, near = float(p_mass[-2:].sum()), float(q_mass[-2:].sum()), p_mass[1:3].sum()
    if not miss < about:
        return -math.inf, 0.0
    misplaced = math.expm1(miss) * float(near)
    log_q = math.log(q) if q > LEAST_MASS else -math.inf
    if q <= LEAST_MASS and isinstance(loss, MixtureLoss):
        log_q = _log_mass_beyond(loss, epsilon)
    if log_q == -math.inf:  # e^epsilon Q may be anything up to P
        return -math.inf, _log(p * (1.0 + 4e-15))
    scaled = math.exp(min(epsilon + log_q, 0.0))
    error = 4e-15 * (p + scaled) + 4e-16 * scaled * (epsilon - log_q)
    return _log(p - scaled - error), _log(p - scaled + error + misplaced)


def _sampled_gaussian(loss: Loss) -> tuple[float, float] | None:
    """(p, mu) of a loss whose delta at epsilon >= 0 is p times a Gaussian's."""
    if isinstance(loss, UniformLoss) and loss.fade is None:
        return loss.p, loss.mu
    if isinstance(loss, MixtureLoss) and loss.noise == "gaussian":
        if loss.fade is None and loss.q == [(1.0, 0.0)] and len(loss.p) == 2:
            return loss.p[1]  # the other is (1 - p, 0)
    return None


def _log_mass_beyond(loss: MixtureLoss, epsilon: float) -> float:
    """Log of the mass of the losses above epsilon under Q."""
    from scipy.special import log_ndtr

    def log_tail(x: float) -> float:
        if loss.noise == "gaussian":
            return float(log_ndtr(-x))
        return math.log(0.5) - x if x > 0.0 else math.log1p(-0.5 * math.exp(x))

    at = float(loss.locate(np.array([epsilon]))[0][0])
    logs = [math.log(weight) + log_tail(at - shift) for weight, shift in loss.q]
    return float(np.logaddexp.reduce(logs))


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf
