"""The vector-Jacobian product of one operation or layer, example by example."""

import tensorflow as tf

from keras_gdp.clipping.contributions.base import (
    Contribution,
    add_rows,
    by_rows,
    fits,
    guarded,
    squares,
    weigh,
)
from keras_gdp.clipping.contributions.stacked import Stacked

__all__ = ["Local"]


class Local(Contribution):
    """Gradients that only the operation itself can compute.

    Args:
        gradients: Gradient of the operation's output, of shape (batch, ...).
        inputs: Sequence of tensors of shape (batch, ...).
        shape: Shape of the variable.
        product: Maps `(gradients, *inputs)` of some rows to the variable's gradient
            summed over these rows; linear in `gradients`.
        stacked: Maps `(gradients, *inputs)` to the gradients of all rows at once, of
            shape (batch, *shape); `None` to take one row after the other.
        scale: Maps `(gradients, *inputs)` to what `Contribution.scale` returns;
            `None` if that is unknown.
    """

    def __init__(self, gradients, inputs, shape, product, stacked=None, scale=None):
        super().__init__([gradients, *inputs], shape)
        self._product = product
        self._stacked = stacked
        self._scale = scale
        self._gradients = None

    def rebuild(self, tensors):
        gradients, *inputs = tensors
        return Local(
            gradients, inputs, self.shape, self._product, self._stacked, self._scale
        )

    def per_example(self):
        if self._stacked is not None:
            return self._stacked(*self.tensors)
        stacked = tf.map_fn(
            lambda row: self._product(*(tensor[None] for tensor in row)),
            self.tensors,
            fn_output_signature=tf.TensorSpec(self.shape, self.tensors[0].dtype),
        )
        return tf.reshape(stacked, [-1, *self.shape])

    def scale(self):
        return None if self._scale is None else self._scale(*self.tensors)

    def squared_norms(self):
        rows, entries = self.tensors[0].shape[0], self.tensors[0].shape[1:]
        if fits(self.size, rows):
            stacked = self.per_example()
            if (
                entries.num_elements() is None
                or self.size <= 16 * entries.num_elements()
            ):
                # Small beside the activations: kept for the weighted sum.
                self._gradients = stacked
                return squares(stacked)
            squared = squares(stacked)
        else:
            squared = by_rows(lambda part: squares(part._single()), self, self.size)
        return squared if self._scale is None else guarded(squared, self.scale())

    def _single(self):
        return self._product(*self.tensors)[None]

    def settled(self):
        return self if self._gradients is None else Stacked(self._gradients)

    def weighted_sum(self, factors):
        if self._scale is None:
            return add_rows(self, factors)
        gradients, *inputs = self.tensors
        return self._product(weigh(factors, gradients), *inputs)
