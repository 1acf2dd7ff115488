"""A bound per layer that follows the layer's mean gradient norm."""

import math

import keras
import numpy as np
import tensorflow as tf

from keras_gdp import _validate
from keras_gdp.clipping.strategies.base import (
    ROUNDING_MARGIN,
    checked_bound,
    safe_bound,
)
from keras_gdp.clipping.strategies.groups import GroupedStrategy

__all__ = ["AdaptivePerLayer"]

# A bound shrinks at most to this share of itself in one step. One that is far too
# large leaves a mean norm that is all noise, possibly negative; the next step measures
# it on a finer scale.
_SMALLEST_RATIO = 0.2
# Where a bound shrinks to less than this, the noise on the gradient was as much too
# large, and would do more harm than the gradient does good.
_KEPT_RATIO = 0.5


@keras.saving.register_keras_serializable(package="keras_gdp")
class AdaptivePerLayer(GroupedStrategy):
    """Clips layer by layer, at a multiple of the last step's noised mean norm.

    The gradient-aware scheme of van der Veen, Seggers, Bloem, Patrini (2018), "Three
    tools for practical differential privacy". In a step with bounds `C[l]`, the norm of
    each example's gradient of layer l is itself clipped at `beta C[l]`, summed over the
    batch, noised, and gives the bound of the next step:

        C'[l] = alpha / batch_size * (sum_i min(|g_i[l]|, beta C[l]) + noise)

    with the *expected* batch size. Where a bound turns out more than twice too large,
    so was the noise, and the layer is left as it is in this step; and no bound shrinks
    to less than a fifth of itself at once. (Additions to the paper, to get over a bad
    start; both follow from what was released.)

    With L layers, the noise on layer l's sum has standard deviation
    `noise_multiplier sqrt(L) C[l]`, that on its norms
    `norm_noise_multiplier sqrt(L) beta C[l]`: every layer gets an equal share of the
    privacy, and the two multipliers are those of all layers' sums and of all layers'
    norms together. (The paper states both per layer: divide its figures by `sqrt(L)`.)

    Args:
        alpha: The bound in units of the mean norm, > 0; the paper finds 1.0 near the
            best value on every data set.
        beta: The bound on the norms in units of the bound on the gradient, > 1 /
            alpha, or bounds could never grow. The paper takes 2.
        norm_noise_multiplier: Noise on the norms in units of their sensitivity, > 0. It
            is part of every step's cost: 10 beside a noise multiplier of 1 lowers the
            effective one to 0.995. The mean norm is known to about
            `norm_noise_multiplier sqrt(L) beta C / batch_size`.
        groups: `"layer"`, `"variable"`, or a list of regular expressions: what one
            bound is for.
        initial_l2_norm_clip: The bounds of the first step: a number > 0, or one per
            group; `None` for the mean norms of the gradients of random noise inputs,
            which costs no privacy.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        beta: float = 2.0,
        norm_noise_multiplier: float = 10.0,
        *,
        groups="layer",
        initial_l2_norm_clip=None,
    ):
        super().__init__(groups)
        self.alpha = _validate.positive(
            "alpha", alpha, "It scales the noised norms to bounds; try 1."
        )
        self.beta = _validate.positive(
            "beta", beta, "It limits the growth of a bound per step; try 2."
        )
        if self.alpha * self.beta <= 1.0:
            raise ValueError(
                "Argument `beta` must exceed 1 / alpha, or no bound could ever grow. "
                f"Received: alpha={alpha!r}, beta={beta!r}. Try alpha=1, beta=2."
            )
        self.norm_noise_multiplier = _validate.positive(
            "norm_noise_multiplier",
            norm_noise_multiplier,
            "The norms are computed from the data and need noise; try 10.",
        )
        advice = "Give a number, one per group, or None."
        given = initial_l2_norm_clip
        if isinstance(given, list | tuple) or np.ndim(given):
            if not len(given):
                raise ValueError(
                    "Argument `initial_l2_norm_clip` must hold at least one bound. "
                    f"Received: initial_l2_norm_clip={given!r}. {advice}"
                )
            initial_l2_norm_clip = tuple(
                checked_bound("initial_l2_norm_clip", bound, advice) for bound in given
            )
        elif initial_l2_norm_clip is not None:
            initial_l2_norm_clip = checked_bound("initial_l2_norm_clip", given, advice)
        self.initial_l2_norm_clip = initial_l2_norm_clip
        self._bounds = None

    @property
    def side_noise_multiplier(self) -> float:
        return self.norm_noise_multiplier

    def build(self, variables, add_variable):
        super().build(variables, add_variable)
        initial = self.initial_l2_norm_clip
        self.check_count("initial_l2_norm_clip", initial)
        # Zero until `start`.
        self._bounds = add_variable((self.num_groups,), "zeros", "l2_norm_clips")
        if initial is not None:
            self._bounds.assign(np.broadcast_to(initial, [self.num_groups]))

    @property
    def needs_start(self) -> bool:
        return bool(np.any(self._bounds.numpy() == 0.0))

    def start(self, squared_norms):
        norms = self.group_norms(tf.constant(squared_norms, tf.float32)).numpy()
        norms = norms[np.isfinite(norms).all(axis=1)]
        means = norms.mean(axis=0) if len(norms) else np.zeros(self.num_groups)
        if not means.any():
            raise ValueError(
                "The gradients of random noise inputs are zero or not finite, so "
                "AdaptivePerLayer cannot take its first bounds from them. Pass "
                "`initial_l2_norm_clip=`, such as 1.0."
            )
        # A layer may have no gradient at first, behind a layer of zeros.
        means = np.where(means > 0, means, np.median(means[means > 0]))
        self._bounds.assign(safe_bound(tf.cast(self.alpha * means, tf.float32)))

    @property
    def bounds(self):
        return tf.convert_to_tensor(self._bounds.value)

    @property
    def sensitivity(self):
        if self._bounds is None:
            return math.nan
        return tf.norm(self.bounds)

    def noise_stddevs(self, noise_multiplier, num_variables):
        share = noise_multiplier * math.sqrt(self.num_groups)
        return tf.unstack(self.per_variable(share * self.bounds), num_variables)

    def statistics(self, squared_norms, present):
        norms = self.group_norms(squared_norms)
        counted = present & tf.reduce_all(tf.math.is_finite(norms), axis=1)
        limits = self.beta * self.bounds * (1.0 - ROUNDING_MARGIN)
        clipped = tf.minimum(norms, limits)
        return tf.reduce_sum(tf.where(counted[:, None], clipped, 0.0), axis=0)

    def statistics_stddevs(self):
        share = self.norm_noise_multiplier * math.sqrt(self.num_groups)
        return share * self.beta * self.bounds

    def update(self, noised_statistics, batch_size):
        following = self.alpha * noised_statistics / batch_size
        bounds = self.bounds
        kept = tf.cast(following >= _KEPT_RATIO * bounds, tf.float32)
        following = tf.maximum(following, _SMALLEST_RATIO * bounds)
        self._bounds.assign(safe_bound(following))
        return tf.unstack(self.per_variable(kept), len(self._group_of))

    def describe(self) -> str:
        text = (
            f"the gradient of each example is clipped {self.unit} by {self.unit}, "
            f"to {self.alpha:g} times the noised mean norm of the step before"
        )
        if self._bounds is None or self.needs_start:
            return f"{text}, starting from gradients of random noise inputs"
        return f"{text}; the L2 norms are now " + ", ".join(
            f"{bound:.3g} ({name})"
            for name, bound in zip(
                self.group_names, self._bounds.numpy().tolist(), strict=True
            )
        )

    def describe_noise(self, noise_multiplier: float) -> str:
        return (
            f"Gaussian on every step's sum (noise multiplier {noise_multiplier:g}, an "
            f"equal share for every {self.unit}) and on the sums of the norms, each "
            f"clipped at {self.beta:g} times its bound (noise multiplier "
            f"{self.norm_noise_multiplier:g})"
        )

    def get_config(self) -> dict:
        initial = self.initial_l2_norm_clip
        return {
            "alpha": self.alpha,
            "beta": self.beta,
            "norm_noise_multiplier": self.norm_noise_multiplier,
            "groups": self._groups_config(),
            "initial_l2_norm_clip": (
                list(initial) if isinstance(initial, tuple) else initial
            ),
        }
