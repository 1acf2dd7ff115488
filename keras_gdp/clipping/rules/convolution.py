"""Convolutions: the filter gradients of the examples."""

import math

import keras
import numpy as np
import tensorflow as tf

from keras_gdp.clipping.contributions import Local, summed
from keras_gdp.clipping.contributions.base import fits, frobenius
from keras_gdp.clipping.rules._filters import Geometry
from keras_gdp.clipping.rules.registry import register

__all__ = []

L = keras.layers


@register(L.Conv1D, L.Conv2D, L.Conv3D, text="filter gradients of each example")
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
    geometry = Geometry(
        layer.kernel.shape, layer.strides, layer.dilation_rate, padding, layer.groups
    )
    filters = Filters(layer, inputs, operation, layer.kernel, geometry)
    return finish(layer, record, outputs, filters)


@register(
    L.Conv1DTranspose,
    L.Conv2DTranspose,
    L.Conv3DTranspose,
    text="filter gradients of each example",
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
    # The filter slides over the outputs.
    geometry = Geometry(
        layer.kernel.shape, layer.strides, layer.dilation_rate, layer.padding
    )
    filters = Filters(layer, inputs, operation, layer.kernel, geometry, transposed=True)
    return finish(layer, record, outputs, filters)


@register(L.DepthwiseConv1D, L.DepthwiseConv2D, text="filter gradients of each example")
def depthwise_convolution(layer, record, inputs):
    """`z = x * K + b`, each channel with filters of its own."""
    filters = depthwise_filters(layer, inputs, layer.kernel)
    outputs = filters.operation(inputs, record.fixed(layer.kernel))
    return finish(layer, record, outputs, filters)


def depthwise_filters(layer, inputs, kernel):
    """Returns the `Filters` of a depthwise convolution."""

    def operation(inputs, kernel):
        return keras.ops.depthwise_conv(
            inputs,
            kernel,
            strides=layer.strides,
            padding=layer.padding,
            dilation_rate=layer.dilation_rate,
            data_format=layer.data_format,
        )

    *window, channels, multiplier = kernel.shape
    geometry = Geometry(
        (*window, 1, channels * multiplier),
        np.broadcast_to(layer.strides, len(window)).tolist(),
        np.broadcast_to(layer.dilation_rate, len(window)).tolist(),
        layer.padding,
        groups=channels,
    )
    return Filters(layer, inputs, operation, kernel, geometry)


class Filters:
    """A kernel that enters `operation(inputs, kernel)`, and its gradients.

    Args:
        layer: The layer, for its data format.
        inputs: What the layer receives.
        operation: The convolution as a function of inputs and kernel.
        kernel: The variable.
        geometry: Of the filter gradient.
        transposed: Whether inputs and output gradients change their roles.
    """

    def __init__(self, layer, inputs, operation, kernel, geometry, transposed=False):
        self.operation = operation
        self.kernel = kernel
        self._channels_last = layer.data_format == "channels_last"
        self._inputs = inputs
        self._geometry = geometry
        self._transposed = transposed

    def contribution(self, gradients):
        """Returns the contribution, given the gradient of the output."""
        # Half precision would round the sum differently from the norms.
        inputs = tf.cast(self._inputs, gradients.dtype)
        positions = math.prod(size or 1 for size in gradients.shape[1:])
        window = math.prod(self._geometry.window)
        fitting = fits(window * math.prod(s or 1 for s in inputs.shape[1:]), None)
        known = None not in (*inputs.shape[1:], *gradients.shape[1:])
        stacked = self._stacked if known and fitting and fits(positions, None) else None

        def scale(gradients, inputs):
            # An entry meets each position of the window at most once.
            return math.sqrt(window) * frobenius(inputs) * frobenius(gradients)

        return Local(
            gradients, [inputs], self.kernel.shape, self._product, stacked, scale
        )

    def _stacked(self, gradients, inputs):
        slid, other = (gradients, inputs) if self._transposed else (inputs, gradients)
        if not self._channels_last:
            slid, other = _channels_last(slid), _channels_last(other)
        filters = self._geometry.stacked(slid, other)
        return tf.reshape(filters, [-1, *self.kernel.shape])

    def _product(self, gradients, inputs):
        # The value does not matter, the operation being linear in the kernel.
        value = tf.zeros(self.kernel.shape, gradients.dtype)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(value)
            outputs = self.operation(inputs, value)
        return tape.gradient(outputs, value, gradients)


def _channels_last(tensor):
    return tf.transpose(tensor, [0, *range(2, tensor.shape.rank), 1])


def finish(layer, record, outputs, filters):
    """Adds the bias and taps the outputs; returns them after the activation."""
    channels = outputs.shape.rank - 1 if layer.data_format == "channels_last" else 1
    if layer.use_bias:
        shape = [1] * outputs.shape.rank
        shape[channels] = -1
        outputs = outputs + tf.reshape(record.fixed(layer.bias), shape)
    outputs = record.tap(
        outputs,
        lambda gradients: [
            (filters.kernel, lambda: filters.contribution(gradients)),
            (layer.bias, lambda: _bias_gradient(gradients, channels)),
        ],
    )
    return outputs if layer.activation is None else layer.activation(outputs)


def _bias_gradient(gradients, channels):
    axes = [axis for axis in range(1, gradients.shape.rank) if axis != channels]
    return summed(gradients, axes, [gradients.shape[channels]])
