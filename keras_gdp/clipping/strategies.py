"""Clipping strategies: how far each example's gradient is scaled down."""

import keras
import tensorflow as tf

from keras_gdp import _validate

__all__ = ["ClippingStrategy", "Flat", "clip_factors"]

# Float32 norms of millions of entries carry a relative error of a few 1e-7. Scaling
# to slightly less than the bound keeps the true norm below the bound regardless.
_ROUNDING_MARGIN = 1e-6


def clip_factors(norms, l2_norm_clip):
    """Returns the factors that bring norms down to at most `l2_norm_clip`.

    Args:
        norms: Tensor of any shape, >= 0, possibly NaN or infinite.
        l2_norm_clip: The bound, in the same unit.

    Returns:
        Factors in [0, 1] of the shape of `norms`: exactly 1 where the norm is
        within the bound, exactly 0 where it is not finite.
    """
    bound = tf.cast(l2_norm_clip, norms.dtype) * (1.0 - _ROUNDING_MARGIN)
    finite = tf.math.is_finite(norms)
    safe = tf.where(finite, norms, tf.ones_like(norms))
    return tf.where(finite, bound / tf.maximum(safe, bound), tf.zeros_like(norms))


class ClippingStrategy:
    """Interface of the strategies: factors, sensitivity and noise that fit together.

    A strategy sees one squared norm per example and variable and returns one factor
    per example and variable; everything that the guarantee needs follows from it.
    """

    def factors(self, squared_norms):
        """Returns clip factors.

        Args:
            squared_norms: Tensor of shape (batch, variables).

        Returns:
            Tensor of shape (batch, variables) or (batch, 1), entries in [0, 1], and
            0 in the whole row of an example with a non-finite norm.
        """
        raise NotImplementedError

    @property
    def sensitivity(self):
        """L2 sensitivity of the clipped sum to adding or removing one example."""
        raise NotImplementedError

    def effective_noise_multiplier(self, noise_multiplier: float) -> float:
        """Noise multiplier of one step as a single Gaussian release."""
        return noise_multiplier

    def describe(self) -> str:
        """One sentence for the privacy statement."""
        raise NotImplementedError

    def get_config(self) -> dict:
        """Returns the constructor's arguments."""
        raise NotImplementedError

    @classmethod
    def from_config(cls, config: dict) -> "ClippingStrategy":
        """Returns a strategy from `get_config()`'s result."""
        return cls(**config)


@keras.saving.register_keras_serializable(package="keras_gdp")
class Flat(ClippingStrategy):
    """Clips each example's whole gradient to one L2 bound (Abadi et al. 2016).

    Args:
        l2_norm_clip: The bound, a finite number > 0, in units of the gradient.
    """

    def __init__(self, l2_norm_clip: float):
        self.l2_norm_clip = _validate.positive(
            "l2_norm_clip",
            l2_norm_clip,
            "It bounds the L2 norm of each example's gradient; start with 1.0.",
        )

    def factors(self, squared_norms):
        norms = tf.sqrt(tf.reduce_sum(squared_norms, axis=1, keepdims=True))
        return clip_factors(norms, self.l2_norm_clip)

    @property
    def sensitivity(self) -> float:
        return self.l2_norm_clip

    def describe(self) -> str:
        return (
            "the gradient of each example, over all trainable variables, is clipped "
            f"to L2 norm {self.l2_norm_clip:g}"
        )

    def get_config(self) -> dict:
        return {"l2_norm_clip": self.l2_norm_clip}
