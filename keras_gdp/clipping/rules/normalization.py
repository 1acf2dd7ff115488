"""Normalisations: per-example sums of scaled and plain output gradients."""

import keras
import tensorflow as tf

from keras_gdp.clipping.contributions import Stacked, summed
from keras_gdp.clipping.rules.registry import register
from keras_gdp.errors import UnsupportedLayerError

__all__ = []

L = keras.layers


def _tap(record, outputs, normalized, axes, scale, offset):
    """Taps `outputs = normalized * scale + offset`; `normalized` is a function."""
    axes = sorted(axis % outputs.shape.rank for axis in axes)
    others = [axis for axis in range(1, outputs.shape.rank) if axis not in axes]

    def total(gradients, variable):
        return summed(gradients, others, variable.shape)

    return record.tap(
        outputs,
        lambda gradients: [
            (
                scale,
                lambda: total(
                    gradients * tf.cast(normalized(), gradients.dtype), scale
                ),
            ),
            (offset, lambda: total(gradients, offset)),
        ],
    )


def _fixed(record, variable):
    return None if variable is None else record.fixed(variable)


@register(
    L.LayerNormalization,
    text="sums of scaled gradients",
    declines=lambda layer: "it has rms_scaling" if layer.rms_scaling else "",
)
def layer_normalization(layer, record, inputs):
    """`y = x^ gamma + beta`: dgamma = sum of dy x^, dbeta = sum of dy."""

    def normalize(gamma, beta):
        return keras.ops.layer_normalization(
            inputs, gamma, beta, layer.axis, layer.epsilon
        )

    outputs = normalize(_fixed(record, layer.gamma), _fixed(record, layer.beta))
    outputs = keras.ops.cast(outputs, layer.compute_dtype)
    return _tap(
        record,
        outputs,
        lambda: normalize(None, None),
        layer.axis,
        layer.gamma,
        layer.beta,
    )


@register(L.RMSNormalization, text="sums of scaled gradients")
def rms_normalization(layer, record, x):
    """`y = x^ scale`: dscale = sum of dy x^."""

    def normalize(scale):
        return keras.ops.rms_normalization(
            x, scale=scale, axis=layer.axis, epsilon=layer.epsilon
        )

    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    return _tap(
        record,
        normalize(record.fixed(layer.scale)),
        lambda: normalize(None),
        axes,
        layer.scale,
        None,
    )


@register(L.GroupNormalization, text="sums of scaled gradients")
def group_normalization(layer, record, inputs):
    """`y = x^ gamma + beta` with statistics per example and group of channels."""
    rank = inputs.shape.rank
    axis = layer.axis % rank
    shape = tf.shape(inputs)
    channels = inputs.shape[axis]
    grouped_shape = tf.concat(
        [
            shape[:axis],
            [layer.groups, channels // layer.groups],
            shape[axis + 1 :],
        ],
        0,
    )
    # Half precision would overflow in the variance.
    grouped = tf.reshape(inputs, grouped_shape)
    if grouped.dtype.size < 4:
        grouped = tf.cast(grouped, tf.float32)
    reduced = [i for i in range(1, rank + 1) if i != axis]
    mean, variance = tf.nn.moments(grouped, reduced, keepdims=True)
    inverse = tf.math.rsqrt(variance + layer.epsilon)
    broadcast = [1] * (rank + 1)
    broadcast[axis : axis + 2] = [layer.groups, channels // layer.groups]

    def aligned(variable):
        value = tf.reshape(record.fixed(variable), broadcast)
        return tf.cast(value, grouped.dtype)

    factor = inverse if layer.gamma is None else inverse * aligned(layer.gamma)
    offset = -mean * factor
    if layer.beta is not None:
        offset = offset + aligned(layer.beta)
    outputs = tf.reshape(grouped * factor + offset, shape)
    outputs = tf.ensure_shape(tf.cast(outputs, layer.compute_dtype), inputs.shape)
    others = [i for i in range(1, rank) if i != axis]

    def of_gamma(gradients):
        # sum of dy (x - mean) inverse, where the latter two leave the sum
        def by_group(tensor):
            total = tf.reduce_sum(tensor, others)
            return tf.reshape(total, [-1, layer.groups, channels // layer.groups])

        def once(statistic):
            return tf.cast(tf.reshape(statistic, [-1, layer.groups, 1]), dtype)

        dtype = gradients.dtype
        total = by_group(gradients * tf.cast(inputs, dtype))
        total = once(inverse) * (total - once(mean) * by_group(gradients))

        def scale():
            normalized = tf.reshape((grouped - mean) * inverse, shape)
            terms = gradients * tf.cast(normalized, dtype)
            return summed(terms, others, layer.gamma.shape).scale()

        return Stacked(tf.reshape(total, [-1, channels]), scale)

    return record.tap(
        outputs,
        lambda gradients: [
            (layer.gamma, lambda: of_gamma(gradients)),
            (layer.beta, lambda: summed(gradients, others, layer.beta.shape)),
        ],
    )


@register(L.BatchNormalization, text="sums of scaled gradients, statistics frozen")
def batch_normalization(layer, record, inputs, training=None, mask=None):
    """`y = x^ gamma + beta` with the moving statistics."""
    del mask
    if training and layer.trainable:
        raise UnsupportedLayerError(
            f"layer {layer.name!r} (BatchNormalization) mixes the examples of a batch"
        )
    wide = tf.cast(inputs, tf.float32) if inputs.dtype.size < 4 else inputs

    def normalize(gamma, beta):
        return keras.ops.batch_normalization(
            x=wide,
            mean=tf.cast(layer.moving_mean, wide.dtype),
            variance=tf.cast(layer.moving_variance, wide.dtype),
            axis=layer.axis,
            offset=beta,
            scale=gamma,
            epsilon=layer.epsilon,
        )

    gamma = layer.gamma if layer.scale else None
    beta = layer.beta if layer.center else None
    outputs = normalize(_fixed(record, gamma), _fixed(record, beta))
    outputs = tf.cast(outputs, layer.compute_dtype)
    return _tap(
        record,
        outputs,
        lambda: normalize(None, None),
        [layer.axis],
        gamma,
        beta,
    )
