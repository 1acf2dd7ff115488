"""One forward and one backward pass, then sums layer by layer."""

import tensorflow as tf

from keras_gdp.clipping.contributions.base import zero_rows
from keras_gdp.clipping.engines.base import Engine
from keras_gdp.clipping.objective import num_rows
from keras_gdp.clipping.recording import Recording
from keras_gdp.clipping.result import ClippedSum

__all__ = ["BookkeepingEngine", "squared_norms_of", "weighted_sums_of"]


class BookkeepingEngine(Engine):
    """Norms and clipped sums from layer inputs and pre-activation gradients.

    The backward pass stops at the layers' outputs: it computes no gradient of any
    parameter. Each layer's rule gets the per-example norms from what it recorded,
    and, once the clip factors are known, the layer's part of the clipped sum (Bu et
    al. 2023, "Differentially private optimization on large model at small cost").

    It relies on the loss of an example depending on that example's row alone.
    """

    name = "bookkeeping"
    needs_isolation = True

    def clip_rows(self, objective, rows, present):
        with Recording(objective, num_rows(rows)) as recording:
            losses, outputs = objective.batched.losses(rows)
        contributions = recording.contributions(losses, objective.loss_scale)
        squared_norms = squared_norms_of(contributions, losses)
        factors = self.factors(squared_norms, present)
        sums = weighted_sums_of(
            contributions, squared_norms, factors, objective.variables
        )
        return ClippedSum(sums, squared_norms, losses, outputs)


def squared_norms_of(contributions, losses):
    """Returns squared norms of shape (batch, variables), float32."""
    return tf.stack(
        [
            tf.zeros(tf.shape(losses), tf.float32)
            if contribution is None
            else tf.cast(contribution.squared_norms(), tf.float32)
            for contribution in contributions
        ],
        axis=1,
    )


def weighted_sums_of(contributions, squared_norms, factors, variables):
    """Returns one clipped sum per variable.

    Args:
        contributions: One per variable, `None` for no gradient.
        squared_norms: Tensor of shape (batch, variables).
        factors: Tensor of shape (batch, variables).
        variables: The variables.
    """
    columns = tf.unstack(factors, len(variables), axis=1)
    settled = [part if part is None else part.settled() for part in contributions]
    parts = [part for part in settled if part is not None]
    tensors = {
        id(tensor): tensor
        for part in parts
        for tensor in part.tensors
        if not tensor.dtype.is_integer
    }
    # NaN times zero is NaN. Selecting zeros costs a copy of all that is summed, which
    # broken examples alone need.
    finite = tf.cond(
        tf.reduce_all(tf.math.is_finite(squared_norms)),
        lambda: list(tensors.values()),
        lambda: zero_rows(tf.reduce_all(factors <= 0, axis=1), tensors.values()),
    )
    tensors = dict(zip(tensors, finite, strict=True))
    sums = []
    for part, column, variable in zip(settled, columns, variables, strict=True):
        if part is None:
            dtype = tf.float64 if variable.dtype == tf.float64 else tf.float32
            total = tf.zeros(variable.shape, dtype)
        else:
            part = part.rebuild([tensors.get(id(t), t) for t in part.tensors])
            total = part.weighted_sum(column)
        same = total.shape == variable.shape
        sums.append(total if same else tf.reshape(total, variable.shape))
    return sums
