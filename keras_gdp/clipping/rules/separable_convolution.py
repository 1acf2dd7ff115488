"""Separable convolutions: a depthwise convolution, then one of width 1."""

import keras

from keras_gdp.clipping.rules._filters import Geometry
from keras_gdp.clipping.rules.convolution import Filters, depthwise_filters, finish
from keras_gdp.clipping.rules.registry import register

__all__ = []

L = keras.layers


@register(L.SeparableConv1D, L.SeparableConv2D, text="filter gradients of each example")
def separable_convolution(layer, record, inputs):
    """`z = (x * D) * P + b`."""
    depthwise = depthwise_filters(layer, inputs, layer.depthwise_kernel)

    def operation(inputs, kernel):
        return keras.ops.conv(
            inputs, kernel, strides=1, padding="valid", data_format=layer.data_format
        )

    middle = depthwise.operation(inputs, record.fixed(layer.depthwise_kernel))
    middle = record.tap(
        middle,
        lambda gradients: [
            (layer.depthwise_kernel, lambda: depthwise.contribution(gradients))
        ],
    )
    ones = [1] * (len(layer.pointwise_kernel.shape) - 2)
    pointwise = Filters(
        layer,
        middle,
        operation,
        layer.pointwise_kernel,
        Geometry(layer.pointwise_kernel.shape, ones, ones, "valid"),
    )
    outputs = operation(middle, record.fixed(layer.pointwise_kernel))
    return finish(layer, record, outputs, pointwise)
