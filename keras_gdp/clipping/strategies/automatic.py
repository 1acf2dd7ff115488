"""Gradients normalised instead of clipped: no bound to choose."""

import keras
import tensorflow as tf

from keras_gdp.clipping.strategies.base import (
    ROUNDING_MARGIN,
    ClippingStrategy,
    checked_bound,
    total_norms,
)

__all__ = ["Automatic"]


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
        gamma: The stability constant, > 0, in units of the gradient.
    """

    def __init__(self, gamma: float = 0.01):
        advice = "It is the stability constant of automatic clipping; try 0.01."
        # A gradient whose norm float32 cannot tell from zero is scaled by 1 / gamma.
        self.gamma = checked_bound("gamma", gamma, advice)

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
