"""Embedding: only the rows that an example reads have a gradient."""

import keras
import tensorflow as tf

from keras_gdp.clipping.contributions import lookup_of
from keras_gdp.clipping.rules.registry import register

__all__ = []


@register(keras.layers.Embedding, text="sums over the rows each example reads")
def embedding(layer, record, inputs):
    """`y_t = E[id_t]`: dE[i] = sum of dy_t over the t with id_t = i."""
    if inputs.dtype not in (tf.int32, tf.int64):
        inputs = tf.cast(inputs, tf.int32)
    rows, width = layer.embeddings.shape
    # Keras counts negative ids from the end.
    indices = tf.where(inputs < 0, inputs + rows, inputs)
    outputs = tf.gather(record.fixed(layer.embeddings), indices)

    def lookup(gradients):
        batch = indices.shape[0] or tf.shape(indices)[0]
        tokens = indices.shape[1:].num_elements() or -1
        return lookup_of(
            tf.reshape(gradients, [batch, tokens, width]),
            tf.reshape(indices, [batch, tokens]),
            (rows, width),
        )

    return record.tap(
        keras.ops.cast(outputs, layer.compute_dtype),
        lambda gradients: [(layer.embeddings, lambda: lookup(gradients))],
    )
