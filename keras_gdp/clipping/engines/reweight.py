"""Norms first, then a second backward pass of the reweighted loss."""

import tensorflow as tf

from keras_gdp.clipping.contributions.base import cancels
from keras_gdp.clipping.engines.base import Engine
from keras_gdp.clipping.engines.bookkeeping import squared_norms_of, weighted_sums_of
from keras_gdp.clipping.objective import num_rows
from keras_gdp.clipping.recording import Recording
from keras_gdp.clipping.result import ClippedSum
from keras_gdp.errors import UnsupportedLayerError

__all__ = ["ReweightEngine"]


class ReweightEngine(Engine):
    """Differentiates `sum_i c_i loss_i`, with the clip factors as constants.

    The norms come from the layer rules, as in bookkeeping. The factors then weigh the
    losses, and an ordinary backward pass of the same forward pass gives the clipped
    sum (Lee and Kifer 2021, "Scaling up differentially private deep learning with
    fast per-example gradient clipping").

    A weight of zero does not stop a NaN on its way back, and parts of a gradient that
    nearly cancel would leave their rounding errors: where the result is not finite, or
    an example's parts are a thousand times its norm, the sums are those of
    bookkeeping. In half precision the second pass would round differently from the
    first, and the bound could be missed by more than rounding in float32 allows: such
    models are refused.

    A weighted loss has one factor per example. Where the strategy scales the variables
    of an example separately, there is no second pass, and the sums are those of
    bookkeeping.

    It relies on the loss of an example depending on that example's row alone.
    """

    name = "reweight"
    needs_isolation = True

    def clip_rows(self, objective, rows, present):
        with Recording(objective, num_rows(rows), hold=False) as recording:
            losses, outputs = objective.batched.losses(rows)
        contributions = recording.contributions(losses, objective.loss_scale)
        squared_norms = squared_norms_of(contributions, losses)
        factors = self.factors(squared_norms, present)
        if self.strategy.factors(squared_norms).shape[1] != 1:
            sums = weighted_sums_of(
                contributions, squared_norms, factors, objective.variables
            )
            return ClippedSum(sums, squared_norms, losses, outputs)
        if recording.half_precision:
            raise UnsupportedLayerError("a layer computes in half precision")
        reweighted = recording.gradients(losses, factors[:, 0], objective.loss_scale)
        scales = [c.scale() for c in contributions if c is not None]
        if any(scale is None for scale in scales):
            raise UnsupportedLayerError("a layer with weights has no rule of its own")
        total = tf.reduce_sum(squared_norms, axis=1)
        # What the first pass bounds, the second pass must not lose to rounding.
        trusted = tf.reduce_all(
            [tf.reduce_all(tf.math.is_finite(g)) for g in reweighted]
            + [
                tf.reduce_all(~cancels(scale, total) | (factors[:, 0] <= 0))
                for scale in scales
            ]
        )
        sums = tf.cond(
            trusted,
            lambda: reweighted,
            lambda: weighted_sums_of(
                contributions, squared_norms, factors, objective.variables
            ),
        )
        return ClippedSum(sums, squared_norms, losses, outputs)
