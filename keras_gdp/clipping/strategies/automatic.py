"""Gradients normalised instead of clipped: no bound to choose."""

import keras
import tensorflow as tf

from keras_gdp import _validate
from keras_gdp.clipping.strategies.base import (
    ROUNDING_MARGIN,
    ClippingStrategy,
    total_norms,
)

__all__ = ["Automatic"]

# Below it, squares that vanish in float32 could hide a gradient that the factor blows
# up beyond the bound.
_SMALLEST_GAMMA = 1e-10


@keras.saving.register_keras_serializable(package="keras_gdp")
class Automatic(ClippingStrategy):
    """Scales each example's gradient g by `1 / (|g| + gamma)`.

    The size of the gradients no longer matters: there is no clip norm, and the learning
    rate is in units of normalised gradients. Unlike plain normalisation, an example
    whose gradient is small against `gamma` keeps a small one, which is what makes the
    method converge (Bu, Wang, Zha, Karypis 2023, "Automatic clipping: differentially
    private deep learning made easier and stronger", AUTO-S).

    The norm of a scaled gradient is `|g| / (|g| + gamma) < 1`: the sensitivity is 1.

    Args:
        gamma: The stability constant, >= 1e-10, in units of the gradient.
    """

    def __init__(self, gamma: float = 0.01):
        advice = "It is the stability constant of automatic clipping; try 0.01."
        self.gamma = _validate.positive("gamma", gamma, advice)
        if self.gamma < _SMALLEST_GAMMA:
            raise ValueError(
                f"Argument `gamma` must be >= {_SMALLEST_GAMMA:g}, so that float32 "
                f"norms can be told from zero. Received: gamma={gamma!r}. {advice}"
            )

    def factors(self, squared_norms):
        norms = total_norms(squared_norms)
        finite = tf.math.is_finite(norms)
        safe = tf.where(finite, norms, tf.zeros_like(norms))
        scaled = (1.0 - ROUNDING_MARGIN) / (safe + self.gamma)
        return tf.where(finite, scaled, tf.zeros_like(norms))

    @property
    def sensitivity(self) -> float:
        return 1.0

    def describe(self) -> str:
        return (
            "the gradient g of each example, over all trainable variables, is scaled "
            f"by 1 / (|g| + {self.gamma:g}), to an L2 norm below 1"
        )

    def get_config(self) -> dict:
        return {"gamma": self.gamma}
