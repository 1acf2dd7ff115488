"""Separable convolutions: a depthwise convolution, then one of width 1."""

import keras

from keras_gdp.clipping.rules.convolution import (
    depthwise_operation,
    filter_gradient,
    finish,
)
from keras_gdp.clipping.rules.registry import register

__all__ = []

L = keras.layers


@register(
    L.SeparableConv1D, L.SeparableConv2D, text="filter gradients, example by example"
)
def separable_convolution(layer, record, inputs):
    """`z = (x * D) * P + b`."""
    depthwise = depthwise_operation(layer)

    def pointwise(inputs, kernel):
        return keras.ops.conv(
            inputs, kernel, strides=1, padding="valid", data_format=layer.data_format
        )

    middle = depthwise(inputs, record.fixed(layer.depthwise_kernel))
    middle = record.tap(
        middle,
        lambda gradients: [
            (
                layer.depthwise_kernel,
                lambda: filter_gradient(
                    gradients, inputs, depthwise, layer.depthwise_kernel
                ),
            )
        ],
    )
    outputs = pointwise(middle, record.fixed(layer.pointwise_kernel))
    return finish(layer, record, middle, outputs, pointwise, layer.pointwise_kernel)
