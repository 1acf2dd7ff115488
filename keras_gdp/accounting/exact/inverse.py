"""At which outcome a mixture has a given loss."""

import math
from typing import TYPE_CHECKING

import numpy as np

from keras_gdp.accounting.exact.waves import Array

if TYPE_CHECKING:
    from keras_gdp.accounting.exact.mixture import MixtureLoss

__all__ = ["closed_form", "search"]


def closed_form(pair: "MixtureLoss", target: Array) -> Array | None:
    """Inverse of the loss of one sampled record under addition and removal."""
    if pair.noise != "gaussian":
        return None
    for sign, parts, other in ((1.0, pair.p, pair.q), (-1.0, pair.q, pair.p)):
        if len(other) == 1 and other[0][1] == 0.0 and len(parts) == 2:
            (_, zero), (w, shift) = parts
            if zero == 0.0:
                # log((exp(y) - 1)/w + 1), also where exp(y) overflows
                y = sign * target
                odds = np.maximum(np.expm1(np.minimum(y, 600.0)) / w, -1.0 + 1e-16)
                large = np.where(y > 600.0, y - math.log(w), 0.0)
                log_odds = np.where(y > 600.0, large, np.log1p(odds))
                return np.asarray(log_odds / shift + shift / 2.0)
    return None


def search(pair: "MixtureLoss", target: Array, low: float, high: float) -> Array:
    """Inverse of the loss by a table and Newton's iteration."""
    size = 20001 if target.size > 100 else 2001
    table = np.linspace(low, high, size)
    losses = np.maximum.accumulate(pair.loss(table))
    index = np.clip(np.searchsorted(losses, target, "right") - 1, 0, size - 2)
    left, right = table[index], table[index + 1]
    x = np.interp(target, losses, table)
    for _ in range(3):
        if pair.noise == "gaussian":
            slope = pair.slope(x)
        else:
            slope = (losses[index + 1] - losses[index]) / (right - left)
        with np.errstate(divide="ignore", invalid="ignore"):
            new = x - (pair.loss(x) - target) / slope
        x = np.where(np.isfinite(new), np.clip(new, left, right), x)
    return np.asarray(x)
