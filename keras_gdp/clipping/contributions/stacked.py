"""Per-example gradients held as they are: biases, scales."""

import tensorflow as tf

from keras_gdp.clipping.contributions.base import (
    Contribution,
    squares,
    weighted_total,
)

__all__ = ["Stacked"]


class Stacked(Contribution):
    """Gradients of shape (batch, *shape), for variables small beside activations.

    Args:
        gradients: Tensor of shape (batch, *shape).
    """

    def __init__(self, gradients):
        super().__init__([gradients], gradients.shape[1:])

    def rebuild(self, tensors):
        return Stacked(*tensors)

    def per_example(self):
        return self.tensors[0]

    def squared_norms(self):
        return squares(self.tensors[0])

    def weighted_sum(self, factors, finite=False):
        return weighted_total(factors, self.tensors[0], finite)

    def join(self, others):
        return Stacked(tf.add_n([self.tensors[0], *(o.tensors[0] for o in others)]))
