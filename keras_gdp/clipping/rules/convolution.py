"""Convolutions: the filter gradient of one example at a time."""

import keras
import tensorflow as tf

from keras_gdp.clipping.contributions import Local, Stacked
from keras_gdp.clipping.rules.registry import register

__all__ = []

L = keras.layers


@register(L.Conv1D, L.Conv2D, L.Conv3D, text="filter gradients, example by example")
def convolution(layer, record, inputs):
    """`z = x * K + b`, for any stride, dilation, padding and number of groups."""
    padding = layer.padding
    if padding == "causal":
        left = layer.dilation_rate[0] * (layer.kernel_size[0] - 1)
        time = 1 if layer.data_format == "channels_last" else 2
        inputs = tf.pad(inputs, [[left * (axis == time), 0] for axis in range(3)])
        padding = "valid"

    def operation(inputs, kernel):
        return keras.ops.conv(
            inputs,
            kernel,
            strides=list(layer.strides),
            padding=padding,
            dilation_rate=layer.dilation_rate,
            data_format=layer.data_format,
        )

    outputs = operation(inputs, record.fixed(layer.kernel))
    return finish(layer, record, inputs, outputs, operation, layer.kernel)


@register(
    L.Conv1DTranspose,
    L.Conv2DTranspose,
    L.Conv3DTranspose,
    text="filter gradients, example by example",
)
def transposed_convolution(layer, record, inputs):
    """`z = K^T x + b`, the adjoint of a convolution."""

    def operation(inputs, kernel):
        return keras.ops.conv_transpose(
            inputs,
            kernel,
            strides=list(layer.strides),
            padding=layer.padding,
            output_padding=layer.output_padding,
            dilation_rate=layer.dilation_rate,
            data_format=layer.data_format,
        )

    outputs = operation(inputs, record.fixed(layer.kernel))
    return finish(layer, record, inputs, outputs, operation, layer.kernel)


@register(
    L.DepthwiseConv1D, L.DepthwiseConv2D, text="filter gradients, example by example"
)
def depthwise_convolution(layer, record, inputs):
    """`z = x * K + b`, each channel with filters of its own."""
    operation = depthwise_operation(layer)
    outputs = operation(inputs, record.fixed(layer.kernel))
    return finish(layer, record, inputs, outputs, operation, layer.kernel)


def depthwise_operation(layer):
    """Returns the depthwise convolution of a layer, as a function of its kernel too."""

    def operation(inputs, kernel):
        return keras.ops.depthwise_conv(
            inputs,
            kernel,
            strides=layer.strides,
            padding=layer.padding,
            dilation_rate=layer.dilation_rate,
            data_format=layer.data_format,
        )

    return operation


def finish(layer, record, inputs, outputs, operation, kernel):
    channels = outputs.shape.rank - 1 if layer.data_format == "channels_last" else 1
    if layer.use_bias:
        shape = [1] * outputs.shape.rank
        shape[channels] = -1
        outputs = outputs + tf.reshape(record.fixed(layer.bias), shape)
    outputs = record.tap(
        outputs,
        lambda gradients: [
            (kernel, lambda: filter_gradient(gradients, inputs, operation, kernel)),
            (layer.bias, lambda: _bias_gradient(gradients, channels)),
        ],
    )
    return outputs if layer.activation is None else layer.activation(outputs)


def filter_gradient(gradients, inputs, operation, kernel):
    """Returns the contribution of a kernel that enters `operation(inputs, kernel)`."""
    dtype = inputs.dtype

    def product(gradients, inputs):
        # The value does not matter, the operation being linear in the kernel.
        value = tf.zeros(kernel.shape, dtype)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(value)
            outputs = operation(inputs, value)
        gradient = tape.gradient(outputs, value, tf.cast(gradients, dtype))
        return tf.cast(gradient, gradients.dtype)

    return Local(gradients, [inputs], kernel.shape, product)


def _bias_gradient(gradients, channels):
    axes = [axis for axis in range(1, gradients.shape.rank) if axis != channels]
    return Stacked(tf.reduce_sum(gradients, axis=axes))
