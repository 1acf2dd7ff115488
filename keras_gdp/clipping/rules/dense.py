"""Dense: outer products of input and pre-activation gradient."""

import keras

from keras_gdp.clipping.contributions import Outer
from keras_gdp.clipping.rules._bias import broadcast_gradient
from keras_gdp.clipping.rules.registry import register

__all__ = []


@register(keras.layers.Dense, text="outer products of inputs and gradients")
def dense(layer, record, inputs, training=None):
    """`z = x W + b`: dW = sum_t x_t dz_t^T, db = sum_t dz_t."""
    del training
    outputs = keras.ops.matmul(inputs, record.fixed(layer.kernel))
    if layer.bias is not None:
        outputs = keras.ops.add(outputs, record.fixed(layer.bias))
    outputs = record.tap(
        outputs,
        lambda gradients: [
            (layer.kernel, lambda: Outer(gradients, inputs)),
            (layer.bias, lambda: broadcast_gradient(gradients, layer.bias.shape)),
        ],
    )
    return outputs if layer.activation is None else layer.activation(outputs)
