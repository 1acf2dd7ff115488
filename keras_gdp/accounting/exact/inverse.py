"""At which outcome a mixture has a given loss."""

import math
from typing import TYPE_CHECKING

import numpy as np

from keras_gdp.accounting.exact.waves import Array

if TYPE_CHECKING:
    from keras_gdp.accounting.exact.mixture import MixtureLoss

__all__ = ["closed_form", "search"]

_ROUNDS = 60
_ENOUGH = 1e-14  # of a loss, or of 1


def closed_form(pair: "MixtureLoss", target: Array) -> Array | None:
    """Inverse of the loss of one sampled record, added, removed or replaced."""
    if pair.noise != "gaussian" or len(pair.p) > 2 or len(pair.q) > 2:
        return None
    (p_rest, p_zero), (w, a) = pair.p[0], pair.p[-1]
    (q_rest, q_zero), (v, b) = pair.q[0], pair.q[-1]
    if (p_zero, q_zero) != (0.0, 0.0):
        return None
    if b == 0.0 < a and len(pair.p) == 2:
        return _one_sided(target, w, a)
    if a == 0.0 > b and len(pair.q) == 2:
        return _one_sided(-target, v, b)
    if (p_rest, w, a) == (q_rest, v, -b) and w < 1.0:
        # exp(a x) solves a quadratic equation.
        half = np.abs(target) / 2.0
        with np.errstate(divide="ignore"):
            log_sinh = half + np.log(-np.expm1(-2.0 * half) / 2.0)
        log_odds = log_sinh + math.log(p_rest) - math.log(w) + a * a / 2.0
        small = np.arcsinh(np.exp(np.minimum(log_odds, 0.0)))
        large = np.maximum(log_odds, 0.0)
        large += np.log1p(np.sqrt(1.0 + np.exp(-2.0 * large)))
        inverse = np.where(log_odds < 0.0, small, large)
        return np.asarray(np.copysign(half + inverse, target) / a)
    return None


def _one_sided(y: Array, weight: float, shift: float) -> Array:
    """Where a mixture of so much weight at a shift, and the rest at 0, is exp(y)."""
    # log((exp(y) - 1)/w + 1), also where exp(y) overflows
    odds = np.maximum(np.expm1(np.minimum(y, 600.0)) / weight, -1.0 + 1e-16)
    large = np.where(y > 600.0, y - math.log(weight), 0.0)
    log_odds = np.where(y > 600.0, large, np.log1p(odds))
    return np.asarray(log_odds / shift + shift / 2.0)


def search(pair: "MixtureLoss", target: Array, low: float, high: float) -> Array:
    """Inverse of the loss by a table and Newton's iteration in its cells."""
    table = np.linspace(low, high, 20001 if target.size > 100 else 2001)
    if pair.noise == "laplace":  # smooth between kinks alone
        table = np.union1d(table, np.clip(pair.kinks(), low, high))
    losses = np.maximum.accumulate(pair.loss(table))
    index = np.clip(np.searchsorted(losses, target, "right") - 1, 0, table.size - 2)
    left, right = table[index], table[index + 1]
    x = np.clip(np.interp(target, losses, table), left, right)
    for _ in range(_ROUNDS):
        gap = pair.loss(x) - target
        if (np.abs(gap) <= _ENOUGH * np.maximum(np.abs(target), 1.0)).all():
            break
        left, right = np.where(gap <= 0.0, x, left), np.where(gap > 0.0, x, right)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            new = x - gap / pair.slope(x)
        x = np.where((left < new) & (new < right), new, 0.5 * (left + right))
    return np.asarray(x)
