"""EinsumDense: an einsum whose contracted axes are folded into one matrix product."""

import keras
import tensorflow as tf

from keras_gdp.clipping.contributions import Outer, Stacked
from keras_gdp.clipping.contributions.base import frobenius
from keras_gdp.clipping.rules._bias import broadcast_gradient
from keras_gdp.clipping.rules.registry import register

__all__ = []


def _axes(layer):
    """Returns the three lists of labels, with `...` written out on the right.

    Example: "btd,dnh->btnh" is ("btd", "dnh", "btnh").
    """
    operands, output = layer.equation.replace(" ", "").split("->")
    inputs, kernel = operands.split(",")
    return inputs, kernel, output


def _declines(layer):
    inputs, kernel, output = _axes(layer)
    if "..." in kernel:
        return "its equation has an ellipsis in the kernel"
    labels = inputs.replace("...", ""), kernel, output.replace("...", "")
    if any(len(set(part)) != len(part) for part in labels):
        return "its equation repeats an axis"
    return ""


@register(
    keras.layers.EinsumDense,
    text="outer products of inputs and gradients, by its equation",
    declines=_declines,
)
def einsum_dense(layer, record, inputs, training=None):
    """`z = einsum(x, W) + b`."""
    del training
    outputs = keras.ops.einsum(layer.equation, inputs, record.fixed(layer.kernel))
    if layer.bias is not None:
        outputs = keras.ops.add(outputs, record.fixed(layer.bias))
    outputs = record.tap(
        outputs,
        lambda gradients: [
            (layer.kernel, lambda: _kernel_gradient(layer, gradients, inputs)),
            (layer.bias, lambda: broadcast_gradient(gradients, layer.bias.shape)),
        ],
    )
    return outputs if layer.activation is None else layer.activation(outputs)


def _kernel_gradient(layer, gradients, inputs):
    """Returns dW of shape (n..., m...), one outer product per remaining axis.

    Kernel axes that the input contracts away form n, those that appear in the output
    alone form m, and the axes shared by input and output are tokens: "btd,dnh->btnh"
    has n = d, m = nh, token t. Other equations are instantiated.
    """
    in_labels, kernel_labels, out_labels = _axes(layer)
    spare = inputs.shape.rank - len(in_labels.replace("...", ""))
    ellipsis = "".join(c for c in "ABCDEFGH" if c not in layer.equation)[:spare]
    in_labels = in_labels.replace("...", ellipsis)
    out_labels = out_labels.replace("...", ellipsis)
    batch = in_labels[0]
    contracted = [c for c in kernel_labels if c in in_labels and c not in out_labels]
    produced = [c for c in kernel_labels if c in out_labels and c not in in_labels]
    tokens = [c for c in in_labels[1:] if c in out_labels]
    simple = (
        out_labels[0] == batch
        and kernel_labels == "".join(contracted + produced)
        and set(in_labels) == {batch, *contracted, *tokens}
        and set(out_labels) == {batch, *produced, *tokens}
    )
    if not simple:
        equation = f"{in_labels},{out_labels}->{batch}{kernel_labels}"
        inputs = tf.cast(inputs, gradients.dtype)
        return Stacked(
            tf.einsum(equation, inputs, gradients),
            lambda: frobenius(inputs) * frobenius(gradients),
        )
    return Outer(
        _matrix(gradients, out_labels, tokens, produced),
        _matrix(inputs, in_labels, tokens, contracted),
        shape=layer.kernel.shape,
    )


def _matrix(tensor, labels, tokens, features):
    """Transposes and reshapes to (batch, tokens, features)."""
    order = [0] + [labels.index(c) for c in [*tokens, *features]]
    if order != list(range(len(order))):
        tensor = tf.transpose(tensor, order)
    width = tensor.shape[1 + len(tokens) :].num_elements()
    if not tokens:
        return tf.reshape(tensor, [-1, width])
    batch = tensor.shape[0] or tf.shape(tensor)[0]
    length = tensor.shape[1 : 1 + len(tokens)].num_elements()
    if length is None:
        length = tf.reduce_prod(tf.shape(tensor)[1 : 1 + len(tokens)])
    return tf.reshape(tensor, [batch, length, width])
