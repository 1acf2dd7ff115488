"""Sums of outer products: the kernels of dense layers, also inside others."""

import tensorflow as tf

from keras_gdp.clipping.contributions.base import (
    Contribution,
    by_rows,
    fits,
    frobenius,
    guarded,
    squares,
    weigh,
)
from keras_gdp.clipping.contributions.stacked import Stacked

__all__ = ["Outer"]


class Outer(Contribution):
    """The gradient `sum_t inputs[t] gradients[t]^T` of a matrix, per example.

    Its squared norm is `|a|^2 |g|^2` for a single token (Goodfellow 2015). For T
    tokens it is the inner product of the two Gram matrices of shape (T, T), or the
    norm of the instantiated gradient, whichever costs less.

    Args:
        gradients: Tensor of shape (batch, m) or (batch, T, m).
        inputs: Tensor of shape (batch, n) or (batch, T, n).
        shape: Shape of the variable, with n * m entries in this order.
    """

    def __init__(self, gradients, inputs, shape=None):
        inputs = tf.cast(inputs, gradients.dtype)
        if inputs.shape.rank > 3:
            inputs, gradients = _tokens(inputs), _tokens(gradients)
        self._matrix = (inputs.shape[-1], gradients.shape[-1])
        self._gradients = None
        super().__init__([gradients, inputs], shape or self._matrix)

    def rebuild(self, tensors):
        return Outer(*tensors, shape=self.shape)

    @property
    def instantiates(self):
        """Whether norms are taken from the (n, m) form rather than the Gram form."""
        n, m = self._matrix
        tokens = self.tensors[0].shape[1]
        if tokens is None:
            return fits(self.size, self.tensors[0].shape[0])
        return tokens * (n + m) >= n * m

    def per_example(self):
        gradients, inputs = _as_sequence(self.tensors)
        matrices = tf.matmul(inputs, gradients, transpose_a=True)
        return tf.reshape(matrices, [-1, *self.shape])

    def scale(self):
        gradients, inputs = self.tensors
        return frobenius(inputs) * frobenius(gradients)

    def squared_norms(self):
        gradients, inputs = self.tensors
        if gradients.shape.rank == 2:
            # In float64 neither factor underflows, which would hide the other.
            return tf.cast(tf.square(self.scale()), tf.float32)
        if not self.instantiates:
            tokens = gradients.shape[1] or 1
            squared = by_rows(lambda part: _gram(*part.tensors), self, 2 * tokens**2)
            return guarded(squared, self.scale())
        if fits(self.size, gradients.shape[0]):
            # Instantiated is chosen where it is smaller than the activations, so
            # it may as well be kept for the weighted sum.
            self._gradients = self.per_example()
            return squares(self._gradients)
        squared = by_rows(lambda part: squares(part.per_example()), self, self.size)
        return guarded(squared, self.scale())

    def settled(self):
        return self if self._gradients is None else Stacked(self._gradients)

    def weighted_sum(self, factors):
        gradients, inputs = self.tensors
        total = tf.matmul(
            _flat(inputs), _flat(weigh(factors, gradients)), transpose_a=True
        )
        return total if self.shape == self._matrix else tf.reshape(total, self.shape)

    def join(self, others):
        if any(o._matrix != self._matrix or o.shape != self.shape for o in others):
            return None
        parts = [_as_sequence(part.tensors) for part in (self, *others)]
        return Outer(
            *(tf.concat(tensors, axis=1) for tensors in zip(*parts, strict=True)),
            shape=self.shape,
        )


def _tokens(tensor):
    """Reshapes (batch, ..., n) to (batch, tokens, n), keeping static sizes."""
    if None in tensor.shape[1:]:
        batch = tensor.shape[0] or tf.shape(tensor)[0]
        tokens = tf.reduce_prod(tf.shape(tensor)[1:-1])
        return tf.reshape(tensor, [batch, tokens, tensor.shape[-1]])
    tokens = 1
    for size in tensor.shape[1:-1]:
        tokens *= size
    return tf.reshape(tensor, [-1, tokens, tensor.shape[-1]])


def _flat(tensor):
    if tensor.shape.rank == 2:
        return tensor
    return tf.reshape(tensor, [-1, tensor.shape[-1]])


def _as_sequence(tensors):
    return [t[:, None] if t.shape.rank == 2 else t for t in tensors]


def _gram(gradients, inputs):
    # Differences of large numbers: in float32 rounding would be all that is left of
    # a gradient whose tokens nearly cancel.
    gradients, inputs = (tf.cast(t, tf.float64) for t in (gradients, inputs))
    products = tf.matmul(inputs, inputs, transpose_b=True) * tf.matmul(
        gradients, gradients, transpose_b=True
    )
    total = tf.reduce_sum(products, axis=[1, 2])
    # NaN stays NaN: the norm of a broken example must not become zero.
    return tf.where(total < 0, tf.zeros([], tf.float64), total)
