"""One example at a time: slow, always right, the oracle of the other engines."""

import tensorflow as tf

from keras_gdp.clipping.engines.base import Engine, weighted_sum
from keras_gdp.clipping.result import ClippedSum

__all__ = ["LoopEngine"]


class LoopEngine(Engine):
    """Differentiates each example alone, in a loop inside the step.

    Memory is that of one example's gradient, whatever the batch; every layer that
    Keras can differentiate is supported.
    """

    name = "loop"

    def __init__(self, strategy, physical_batch_size=None):
        del physical_batch_size  # One example at a time is within any limit.
        super().__init__(strategy, physical_batch_size=1)

    def clip_rows(self, objective, rows, present):
        loss, outputs, gradients = objective.example_gradient(rows)
        squared_norms = [tf.reduce_sum(tf.square(g))[None] for g in gradients]
        stacked = tf.stack([tf.cast(n, tf.float32) for n in squared_norms], axis=1)
        factors = self.factors(stacked, present)
        sums = [
            weighted_sum(factors[:, index], gradient[None])
            for index, gradient in enumerate(gradients)
        ]
        return ClippedSum(sums, stacked, loss[None], outputs)
