"""One bound that follows a quantile of the gradients' norms."""

import keras
import tensorflow as tf

from keras_gdp import _validate
from keras_gdp.clipping.strategies.base import (
    ClippingStrategy,
    checked_bound,
    clip_factors,
    safe_bound,
    total_norms,
)

__all__ = ["AdaptiveQuantile"]


@keras.saving.register_keras_serializable(package="keras_gdp")
class AdaptiveQuantile(ClippingStrategy):
    """Moves the clip norm to a quantile of the per-example gradient norms.

    After a step with bound C, of which a noised share b of the examples was within C,
    the next bound is `C exp(-learning_rate (b - target_quantile))` (Andrew, Thakkar,
    McMahan, Ramaswamy 2021, "Differentially private learning with adaptive clipping").

    Each example adds +1/2 to the count if its norm is within C and -1/2 otherwise, so
    that adding or removing it moves the count by 1/2: noise of standard deviation
    `count_noise_multiplier / 2`. (The paper's `sigma_b` is half of
    `count_noise_multiplier`.) The share is `count / batch_size + 1/2`, with the
    expected batch size.

    Args:
        target_quantile: Share of examples to leave unclipped, in (0, 1).
        learning_rate: Step of the logarithm of the bound, > 0. At 0.2 and a target of
            one half the bound moves by at most about 10 % per step.
        count_noise_multiplier: Noise on the count in units of its sensitivity, > 0. It
            is part of every step's cost: 10 beside a noise multiplier of 1 lowers the
            effective one to 0.995. The share is known to about
            `count_noise_multiplier / (2 batch_size)`.
        initial_l2_norm_clip: The bound of the first step, > 0. Any start within a few
            orders of magnitude will do.
    """

    def __init__(
        self,
        target_quantile: float = 0.5,
        learning_rate: float = 0.2,
        count_noise_multiplier: float = 10.0,
        *,
        initial_l2_norm_clip: float = 1.0,
    ):
        advice = "It is the share of examples to leave unclipped; try 0.5."
        self.target_quantile = _validate.probability(
            "target_quantile", target_quantile, advice
        )
        if self.target_quantile in (0.0, 1.0):
            raise ValueError(
                "Argument `target_quantile` must be a number in (0, 1). Received: "
                f"target_quantile={target_quantile!r}. {advice}"
            )
        self.learning_rate = _validate.positive(
            "learning_rate",
            learning_rate,
            "It is the bound's speed of adapting, no optimizer's; try 0.2.",
        )
        self.count_noise_multiplier = _validate.positive(
            "count_noise_multiplier",
            count_noise_multiplier,
            "The count is computed from the data and needs noise; try 10.",
        )
        self.initial_l2_norm_clip = checked_bound(
            "initial_l2_norm_clip",
            initial_l2_norm_clip,
            "It is the bound of the first step, which then adapts; start with 1.0.",
        )
        self._bound = None

    @property
    def side_noise_multiplier(self) -> float:
        return self.count_noise_multiplier

    def build(self, variables, add_variable):
        del variables
        self._bound = add_variable(
            (),
            keras.initializers.Constant(self.initial_l2_norm_clip),
            "l2_norm_clip",
        )

    def factors(self, squared_norms):
        return clip_factors(total_norms(squared_norms), self.sensitivity)

    @property
    def sensitivity(self):
        if self._bound is None:
            return self.initial_l2_norm_clip
        return tf.convert_to_tensor(self._bound.value)

    def statistics(self, squared_norms, present):
        norms = total_norms(squared_norms)[:, 0]
        votes = tf.where(norms <= self.sensitivity, 0.5, -0.5)
        counted = present & tf.math.is_finite(norms)
        return tf.reduce_sum(tf.where(counted, votes, 0.0))[None]

    def statistics_stddevs(self):
        return tf.constant([0.5 * self.count_noise_multiplier])

    def update(self, noised_statistics, batch_size):
        share = noised_statistics[0] / batch_size + 0.5
        step = -self.learning_rate * (share - self.target_quantile)
        self._bound.assign(safe_bound(self.sensitivity * tf.exp(step)))

    def describe(self) -> str:
        now = "starts at" if self._bound is None else "is now"
        return (
            "the gradient of each example, over all trainable variables, is clipped to "
            "an L2 norm that follows the "
            f"{self.target_quantile:g} quantile of the norms by noised counts, and "
            f"{now} {float(self.sensitivity):g}"
        )

    def describe_noise(self, noise_multiplier: float) -> str:
        return (
            f"{super().describe_noise(noise_multiplier)}, and "
            f"{self.count_noise_multiplier:g} times its sensitivity on the count of "
            "unclipped examples"
        )

    def get_config(self) -> dict:
        return {
            "target_quantile": self.target_quantile,
            "learning_rate": self.learning_rate,
            "count_noise_multiplier": self.count_noise_multiplier,
            "initial_l2_norm_clip": self.initial_l2_norm_clip,
        }
