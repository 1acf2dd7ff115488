"""Per-example gradients held as they are: biases, scales."""

import tensorflow as tf

from keras_gdp.clipping.contributions.base import (
    Contribution,
    frobenius,
    squares,
)

__all__ = ["Stacked", "summed"]


class Stacked(Contribution):
    """Gradients of shape (batch, *shape), for variables small beside activations.

    Args:
        gradients: Tensor of shape (batch, *shape).
        scale: Returns what `Contribution.scale` does; `None` if that is unknown.
    """

    def __init__(self, gradients, scale=None):
        super().__init__([gradients], gradients.shape[1:])
        self._scale = scale

    def rebuild(self, tensors):
        return Stacked(*tensors)

    def per_example(self):
        return self.tensors[0]

    def scale(self):
        return None if self._scale is None else self._scale()

    def squared_norms(self):
        return squares(self.tensors[0])

    def weighted_sum(self, factors):
        gradients = self.tensors[0]
        return tf.tensordot(tf.cast(factors, gradients.dtype), gradients, axes=1)

    def join(self, others):
        parts = (self, *others)
        known = all(part._scale is not None for part in parts)
        return Stacked(
            tf.add_n([part.tensors[0] for part in parts]),
            (lambda: tf.add_n([part.scale() for part in parts])) if known else None,
        )


def summed(terms, axes, shape):
    """Returns the `Stacked` gradients that are sums of terms.

    Args:
        terms: Tensor of shape (batch, ...).
        axes: Axes to sum over.
        shape: Shape of the variable.
    """
    total = tf.reduce_sum(terms, axis=axes) if axes else terms
    if tuple(total.shape[1:]) != tuple(shape):
        total = tf.reshape(total, [-1, *shape])

    def scale():
        sizes = tf.gather(tf.shape(terms), tf.constant(axes, tf.int32))
        count = tf.cast(tf.reduce_prod(sizes), tf.float64)
        return tf.sqrt(count) * frobenius(terms)

    return Stacked(total, scale)
