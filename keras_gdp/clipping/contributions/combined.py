"""The sum over several calls that use the same variable."""

import tensorflow as tf

from keras_gdp.clipping.contributions.base import (
    Contribution,
    add_rows,
    by_rows,
    fits,
    rebuild_parts,
    squares,
)
from keras_gdp.clipping.contributions.stacked import Stacked

__all__ = ["Combined", "combine"]


class Combined(Contribution):
    """The sum of several contributions to the same variable."""

    def __init__(self, parts):
        super().__init__([t for part in parts for t in part.tensors], parts[0].shape)
        self.parts = parts
        self._gradients = None

    def rebuild(self, tensors):
        return Combined(rebuild_parts(self.parts, tensors))

    def per_example(self):
        return tf.add_n([part.per_example() for part in self.parts])

    def scale(self):
        scales = [part.scale() for part in self.parts]
        return None if any(s is None for s in scales) else tf.add_n(scales)

    def squared_norms(self):
        if fits(self.size, self.tensors[0].shape[0]):
            self._gradients = self.per_example()
            return squares(self._gradients)
        return by_rows(lambda part: squares(part.per_example()), self, self.size)

    def settled(self):
        return self if self._gradients is None else Stacked(self._gradients)

    def weighted_sum(self, factors):
        return add_rows(self, factors)


def combine(contributions):
    """Returns one contribution for all uses of a variable.

    The gradients of an example's several uses are added before any norm is taken.
    """
    first, *others = contributions
    if not others:
        return first
    joined = None
    if all(type(other) is type(first) for other in others):
        joined = first.join(others)
    return joined or Combined(contributions)
