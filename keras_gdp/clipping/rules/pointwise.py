"""PReLU: slopes that multiply the negative part."""

import keras

from keras_gdp.clipping.rules._bias import broadcast_gradient
from keras_gdp.clipping.rules.registry import register

__all__ = []


@register(keras.layers.PReLU, text="sums of scaled gradients")
def prelu(layer, record, inputs):
    """`y = relu(x) - alpha relu(-x)`: dalpha = -sum of dy relu(-x)."""
    negative = keras.ops.relu(-inputs)
    outputs = keras.ops.relu(inputs) - record.fixed(layer.alpha) * negative
    return record.tap(
        outputs,
        lambda gradients: [
            (
                layer.alpha,
                lambda: broadcast_gradient(
                    -gradients * keras.ops.cast(negative, gradients.dtype),
                    layer.alpha.shape,
                ),
            )
        ],
    )
