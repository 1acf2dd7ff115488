"""Embedding: only the rows that an example reads have a gradient."""

import keras
import tensorflow as tf

from keras_gdp.clipping.contributions import Lookup
from keras_gdp.clipping.rules.registry import register

__all__ = []


@register(keras.layers.Embedding, text="sums over the rows each example reads")
def embedding(layer, record, inputs):
    """`y_t = E[id_t]`: dE[i] = sum of dy_t over the t with id_t = i."""
    if inputs.dtype not in (tf.int32, tf.int64):
        inputs = tf.cast(inputs, tf.int32)
    outputs = keras.ops.take(record.fixed(layer.embeddings), inputs, axis=0)
    outputs = keras.ops.cast(outputs, layer.compute_dtype)
    return record.tap(
        outputs,
        lambda gradients: [
            (layer.embeddings, lambda: lookup(gradients, inputs, layer.embeddings))
        ],
    )


def lookup(gradients, indices, table):
    """Returns the contribution of reading rows of a table.

    Args:
        gradients: Tensor of shape (batch, ..., d).
        indices: Integer tensor of shape (batch, ...).
        table: Keras variable of shape (rows, d).
    """
    rows, width = table.shape
    batch = indices.shape[0] or tf.shape(indices)[0]
    tokens = indices.shape[1:].num_elements() or -1
    # Keras counts negative ids from the end; TensorFlow merges this with its doing so.
    indices = tf.where(indices < 0, indices + rows, indices)
    indices = tf.reshape(indices, [batch, tokens])
    gradients = tf.reshape(gradients, [batch, tokens, width])
    return Lookup(gradients, indices, (rows, width))
