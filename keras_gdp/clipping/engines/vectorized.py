"""All examples at once, by `tf.vectorized_map` over the one-example gradient."""

import tensorflow as tf

from keras_gdp.clipping.contributions.base import squares
from keras_gdp.clipping.engines.base import Engine, weighted_sum
from keras_gdp.clipping.objective import leaves_of, with_leaves
from keras_gdp.clipping.result import ClippedSum
from keras_gdp.clipping.vectorize import vectorized_map

__all__ = ["VectorizedEngine"]


class VectorizedEngine(Engine):
    """Vectorises the one-example gradient over the rows of a chunk.

    Memory is one gradient per row of the chunk. Random layers (dropout) draw one
    mask for the whole chunk, which changes nothing about privacy.
    """

    name = "vectorized"

    def clip_rows(self, objective, rows, present):
        def one_example(elements):
            row = with_leaves(rows, [element[None] for element in elements])
            loss, outputs, gradients = objective.example_gradient(row)
            return loss, [output[0] for output in outputs], gradients

        losses, outputs, gradients = vectorized_map(one_example, leaves_of(rows))
        squared_norms = tf.stack(
            [tf.cast(squares(gradient), tf.float32) for gradient in gradients], axis=1
        )
        factors = self.factors(squared_norms, present)
        sums = [
            weighted_sum(factors[:, index], gradient)
            for index, gradient in enumerate(gradients)
        ]
        return ClippedSum(sums, squared_norms, losses, outputs)
