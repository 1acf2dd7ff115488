"""One bound for the whole gradient."""

import keras

from keras_gdp.clipping.strategies.base import (
    ClippingStrategy,
    checked_bound,
    clip_factors,
    total_norms,
)

__all__ = ["Flat"]


@keras.saving.register_keras_serializable(package="keras_gdp")
class Flat(ClippingStrategy):
    """Clips each example's whole gradient to one L2 bound (Abadi et al. 2016).

    Args:
        l2_norm_clip: The bound, a finite number > 0, in units of the gradient.
    """

    def __init__(self, l2_norm_clip: float):
        self.l2_norm_clip = checked_bound(
            "l2_norm_clip",
            l2_norm_clip,
            "It bounds the L2 norm of each example's gradient; start with 1.0. Bounds "
            "per layer are gdp.clipping.PerLayer([1.0, 2.0]).",
        )

    def factors(self, squared_norms):
        return clip_factors(total_norms(squared_norms), self.l2_norm_clip)

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
