"""The interface of the strategies, and the arithmetic that they share."""

import math

import numpy as np
import tensorflow as tf

from keras_gdp import _validate
from keras_gdp.accounting.events import Gaussian

__all__ = ["ClippingStrategy", "checked_bound", "clip_factors", "safe_bound"]

# Float32 norms of millions of entries carry a relative error of a few 1e-7. Scaling
# to slightly less than the bound keeps the true norm below the bound regardless.
ROUNDING_MARGIN = 1e-6
# Squares of gradients below 1e-19 vanish in float32. Even a billion of them then have
# a norm below this bound, so that what is not seen need not be clipped.
_SMALLEST_BOUND = 1e-12
# No float32 norm, whose square is finite too, reaches this bound.
_LARGEST_FIXED_BOUND = 1e30
# Bounds that adapt stay where they cannot overflow either.
_LARGEST_BOUND = 1e12


def checked_bound(name, value, advice="") -> float:
    """Returns a bound on a norm as a float; refuses what float32 cannot bound."""
    bound = _validate.positive(name, value, advice)
    if bound < _SMALLEST_BOUND:
        raise ValueError(
            f"Argument `{name}` is too small for float32 norms, which would underflow. "
            f"Received a bound of {bound:g}; it must be at least {_SMALLEST_BOUND:g}. "
            "Scale the loss up instead."
        )
    if bound > _LARGEST_FIXED_BOUND:
        raise ValueError(
            f"Argument `{name}` is too large for float32 norms, which would overflow. "
            f"Received a bound of {bound:g}; it must be at most "
            f"{_LARGEST_FIXED_BOUND:g}. Start with 1.0."
        )
    return bound


def clip_factors(norms, l2_norm_clip):
    """Returns the factors that bring norms down to at most `l2_norm_clip`.

    Args:
        norms: Tensor of any shape, >= 0, possibly NaN or infinite.
        l2_norm_clip: The bound, in the same unit; a number, or a tensor that
            broadcasts against `norms`.

    Returns:
        Factors in [0, 1] of the shape of `norms`: exactly 1 where the norm is
        within the bound, exactly 0 where it is not finite.
    """
    bound = tf.cast(l2_norm_clip, norms.dtype) * (1.0 - ROUNDING_MARGIN)
    finite = tf.math.is_finite(norms)
    return tf.where(finite, bound / tf.maximum(norms, bound), tf.zeros_like(norms))


def safe_bound(bound):
    """Keeps a bound that adapts within the range of float32 arithmetic."""
    return tf.clip_by_value(bound, _SMALLEST_BOUND, _LARGEST_BOUND)


class ClippingStrategy:
    """Interface of the strategies: factors, sensitivity and noise that fit together.

    A strategy sees one squared norm per example and variable and returns one factor
    per example and variable. It may release statistics of the batch beside the sum, a
    *side release*, to adapt its bounds; these are bounded per example and noised with
    the sum, as parts of one joint Gaussian release. Everything that the guarantee
    needs is stated here.

    An optimizer works with a copy of its own, whose state, if any, are variables of
    the optimizer. Scaled by the standard deviations of the noise, one example moves the
    joint release by at most `1 / effective_noise_multiplier(noise_multiplier)`.
    """

    # Noise standard deviation of the side release over its sensitivity; `None` where
    # nothing is released beside the sum.
    side_noise_multiplier: float | None = None

    def build(self, variables, add_variable) -> None:
        """Creates the state for these variables, before anything else is called.

        Args:
            variables: Keras variables in the order of the gradients.
            add_variable: Called as `add_variable(shape, initializer, name)`, returns
                a float32 Keras variable that is saved with the optimizer.
        """

    def check_variables(self, variables) -> None:
        """Raises `ValueError` if a step is on other variables than was built for."""

    @property
    def needs_start(self) -> bool:
        """Whether `start` must be called before the first step. Runs eagerly."""
        return False

    def start(self, squared_norms) -> None:
        """Sets the first bounds from gradients of made-up examples. Runs eagerly.

        Args:
            squared_norms: Array of shape (examples, variables), of random noise
                inputs, never of data.
        """

    def factors(self, squared_norms):
        """Returns clip factors.

        Args:
            squared_norms: Tensor of shape (batch, variables).

        Returns:
            Tensor of shape (batch, variables) or (batch, 1), finite and >= 0, and 0
            in the whole row of an example with a non-finite norm.
        """
        raise NotImplementedError

    @property
    def sensitivity(self):
        """L2 sensitivity of the clipped sum to adding or removing one example.

        A float, or a scalar tensor where it follows the state.
        """
        raise NotImplementedError

    def noise_stddevs(self, noise_multiplier: float, num_variables: int) -> list:
        """Returns the standard deviation of the noise on each variable's sum."""
        return [noise_multiplier * self.sensitivity] * num_variables

    def statistics(self, squared_norms, present):
        """Returns the sums over the batch that are released beside the clipped sum.

        Args:
            squared_norms: Tensor of shape (batch, variables).
            present: Boolean tensor of shape (batch,). A row that is not present, or
                whose norm is not finite, contributes exactly zero.

        Returns:
            Float32 tensor of shape (statistics,), without noise; or `None`.
        """
        del squared_norms, present

    def statistics_stddevs(self):
        """Returns the standard deviations of the noise on `statistics`."""
        raise NotImplementedError

    def update(self, noised_statistics, batch_size):
        """Adapts the state to the noised statistics; runs inside the graph.

        Args:
            noised_statistics: `statistics` with its noise added.
            batch_size: The expected batch size, a scalar tensor.

        Returns:
            `None`, or one scalar per variable to multiply the noised sum with. It may
            depend on nothing but what was released.
        """
        raise NotImplementedError

    def effective_noise_multiplier(self, noise_multiplier: float) -> float:
        """Noise multiplier of one step as a single Gaussian release.

        Args:
            noise_multiplier: Of the clipped sum alone, >= 0.

        Returns:
            `(1 / noise_multiplier^2 + 1 / side_noise_multiplier^2)^(-1/2)`: the parts
            of a Gaussian release, each in units of its noise, are the coordinates of
            one vector, whose sensitivity is the root of the sum of squares.

        Raises:
            ValueError: If the noise multiplier is negative.
        """
        noise_multiplier = _validate.non_negative(
            "noise_multiplier",
            noise_multiplier,
            "It is the noise's standard deviation in units of the sensitivity.",
        )
        if self.side_noise_multiplier is None or noise_multiplier == 0:
            return noise_multiplier
        return 1.0 / math.hypot(
            1.0 / noise_multiplier, 1.0 / self.side_noise_multiplier
        )

    def noise_multiplier_for(self, effective_noise_multiplier: float) -> float:
        """The noise on the sum with which a step costs what a budget allows.

        Args:
            effective_noise_multiplier: Of the whole step, > 0, as
                `keras_gdp.accounting.noise_multiplier_for` returns it.

        Raises:
            ValueError: If the side release alone costs as much, or if the effective
                noise multiplier is not positive.
        """
        effective_noise_multiplier = _validate.positive(
            "effective_noise_multiplier",
            effective_noise_multiplier,
            "`keras_gdp.accounting.noise_multiplier_for` finds it for a budget.",
        )
        side = self.side_noise_multiplier
        if side is None:
            return effective_noise_multiplier
        if side <= effective_noise_multiplier:
            raise ValueError(
                "The side release alone spends the budget, which asks for an effective "
                f"noise multiplier of {effective_noise_multiplier:g}. Raise the noise "
                f"of {self!r} well above it."
            )
        # Neither cancels nor overflows; on the safe side of rounding.
        ratio = side / (
            math.sqrt(side - effective_noise_multiplier)
            * math.sqrt(side + effective_noise_multiplier)
        )
        return (1.0 + 1e-12) * effective_noise_multiplier * ratio

    def event(self, noise_multiplier: float) -> Gaussian:
        """The accounting event of one step on a batch, before sampling amplifies it."""
        return Gaussian(self.effective_noise_multiplier(noise_multiplier))

    def describe(self) -> str:
        """One sentence for the privacy statement."""
        raise NotImplementedError

    def describe_noise(self, noise_multiplier: float) -> str:
        """One sentence on the noise, for the privacy statement."""
        return (
            f"Gaussian, standard deviation {noise_multiplier:g} times that sensitivity "
            f"on every step's sum (noise multiplier {noise_multiplier:g})"
        )

    def get_config(self) -> dict:
        """Returns the constructor's arguments."""
        raise NotImplementedError

    @classmethod
    def from_config(cls, config: dict) -> "ClippingStrategy":
        """Returns a strategy from `get_config()`'s result."""
        return cls(**config)

    def owned_copy(self) -> "ClippingStrategy":
        """Returns a strategy with these arguments and no state, for one optimizer."""
        copy = type(self).from_config(self.get_config())
        copy._owned = True
        return copy

    def __setattr__(self, name, value):
        if not name.startswith("_") and self.__dict__.get("_owned"):
            raise AttributeError(
                f"`{name}` of the {type(self).__name__} of an optimizer cannot be "
                "changed: the compiled step and the ledger rest on it. Compile the "
                "model with a new optimizer and strategy, as a new phase of training."
            )
        super().__setattr__(name, value)

    def __repr__(self):
        arguments = ", ".join(f"{k}={v!r}" for k, v in self.get_config().items())
        return f"{type(self).__name__}({arguments})"


def total_norms(squared_norms):
    """Returns the norms over all variables, of shape (batch, 1)."""
    return tf.sqrt(tf.reduce_sum(squared_norms, axis=1, keepdims=True))


def root_of_squares(bounds) -> float:
    """Returns the root of the sum of squares of numbers."""
    return float(np.sqrt(np.sum(np.square(np.asarray(bounds, np.float64)))))
