"""The interface of the contributions, and what they share."""

import math

import tensorflow as tf

from keras_gdp.clipping.xla import traced_for_xla

__all__ = [
    "Contribution",
    "add_rows",
    "by_rows",
    "cancels",
    "fits",
    "frobenius",
    "guarded",
    "rebuild_parts",
    "squares",
    "weigh",
    "zero_rows",
]

# Per-example gradients of a whole chunk are held in memory up to this many entries
# (256 MiB of float32) per variable; beyond it they are made one example at a time.
_MAX_ENTRIES = 2**26
_ASSUMED_ROWS = 256


class Contribution:
    """Per-example gradients of one variable, in a factored form.

    `tensors` are what it is made of, each with a leading axis of examples. The
    gradient of example i depends on row i of the tensors alone.

    Attributes:
        tensors: Tuple of tensors of shape (batch, ...). The first one holds the
            gradient of the layer's output, in float32 or wider.
        shape: Static shape of the variable.
    """

    def __init__(self, tensors, shape):
        self.tensors = tuple(tensors)
        self.shape = tuple(shape)

    @property
    def size(self):
        """Number of entries of the variable."""
        return math.prod(self.shape)

    def rebuild(self, tensors):
        """Returns the same contribution made of other tensors."""
        raise NotImplementedError

    def per_example(self):
        """Returns the gradients, of shape (batch, *shape)."""
        raise NotImplementedError

    def squared_norms(self):
        """Returns the squared L2 norms of the gradients, of shape (batch,).

        Where `weighted_sum` adds up more than whole gradients, they are `guarded`.
        """
        raise NotImplementedError

    def scale(self):
        """Returns the norm that the gradients' terms would have without their signs.

        An upper bound on it, a float64 tensor of shape (batch,); `None` if unknown.
        """
        raise NotImplementedError

    def settled(self):
        """Returns the contribution to take the sum from, once norms were taken.

        That is itself, or the whole gradients if the norms needed them anyway.
        """
        return self

    def weighted_sum(self, factors):
        """Returns the sum over examples of factor times gradient.

        Args:
            factors: Tensor of shape (batch,), >= 0. The tensors must be finite, also
                those of an example with factor zero: see `zero_rows`.
        """
        raise NotImplementedError

    def join(self, others):
        """Returns one contribution for the sum with others of this class, or `None`."""
        del others
        return None


def rebuild_parts(parts, tensors):
    """Returns parts made of other tensors, those of all parts in one sequence."""
    tensors = iter(tensors)
    return [part.rebuild([next(tensors) for _ in part.tensors]) for part in parts]


def fits(entries_per_row, rows):
    """Whether a chunk's tensors of so many entries per row may be held at once."""
    return entries_per_row * (rows or _ASSUMED_ROWS) <= _MAX_ENTRIES


def by_rows(function, contribution, entries_per_row):
    """Applies `function` to a contribution, one row at a time if memory asks for it.

    Args:
        function: Maps a contribution to a tensor of shape (rows,).
        contribution: The contribution.
        entries_per_row: Size of the intermediate result per row.
    """
    if fits(entries_per_row, contribution.tensors[0].shape[0]):
        return function(contribution)
    return tf.map_fn(
        lambda row: function(contribution.rebuild([t[None] for t in row]))[0],
        contribution.tensors,
        fn_output_signature=contribution.tensors[0].dtype,
    )


# A norm in float32 is below the true one by 1.8e-6 where millions of entries are equal.
_FEW, _LOST = 2048, 1.0 + 4e-6


def squares(gradients):
    """Returns the sum of squares over all axes but the first."""
    if traced_for_xla():  # It fuses all this, and would add up one after the other.
        squared = tf.cast(tf.square(gradients), tf.float64)
        total = tf.reduce_sum(squared, axis=_within_rows(gradients))
        return tf.cast(total, gradients.dtype)
    squared = tf.square(_norms(gradients))
    entries = gradients.shape[1:].num_elements()
    return squared if entries and entries <= _FEW else squared * _LOST


def _norms(tensor):
    # Nothing of the tensor's size is written.
    return tf.raw_ops.EuclideanNorm(input=tensor, axis=_within_rows(tensor))


def _within_rows(tensor):
    return list(range(1, tensor.shape.rank))


def add_rows(contribution, factors):
    """Returns the weighted sum, one whole gradient after the other."""
    factors = tf.cast(factors, contribution.tensors[0].dtype)

    def add(total, row):
        factor, *tensors = row
        part = contribution.rebuild([tensor[None] for tensor in tensors])
        return total + factor * part.per_example()[0]

    initial = tf.zeros(contribution.shape, factors.dtype)
    return tf.foldl(add, (factors, *contribution.tensors), initial)


def frobenius(tensor):
    """Returns the L2 norm of each row, in float64, where no square underflows."""
    tensor = tf.cast(tensor, tf.float64)
    return tf.sqrt(squares(tensor)) if traced_for_xla() else _norms(tensor)


# Rounding errors of a sum in float32 are some 1e-7 of its terms' size.
_ROUNDING = 5e-7
# Terms may be this much larger than their sum; 1 / 1000 of that is lost to rounding.
_CANCELLATION = 1e-3


def guarded(squared_norms, scale):
    """Returns squared norms that also bound what rounding makes of a gradient.

    The terms of an example's gradient can be far larger than the gradient, if they
    cancel. Added up together with those of other examples, they would leave rounding
    errors in proportion to their own size. The norm is therefore taken to be at least
    a thousandth of it, and larger by the rounding errors: the clipped terms are then
    at most a thousand times the clip norm, and what rounding makes of them is small.

    Args:
        squared_norms: Tensor of shape (batch,).
        scale: What `Contribution.scale` returns.
    """
    norms = tf.sqrt(tf.cast(squared_norms, tf.float64))
    larger = tf.maximum(norms + _ROUNDING * scale, _CANCELLATION * scale)
    # `tf.maximum` does not keep NaN on every device.
    larger = tf.where(tf.math.is_nan(norms + scale), norms + scale, larger)
    return tf.cast(tf.square(larger), tf.float32)


def cancels(scale, squared_norms):
    """Whether the terms of each example are too large beside its whole gradient.

    Args:
        scale: What `Contribution.scale` returns.
        squared_norms: Squared norms over all variables, of shape (batch,).
    """
    norms = tf.sqrt(tf.cast(squared_norms, tf.float64))
    return tf.logical_not(_CANCELLATION * scale <= norms)


def zero_rows(absent, tensors):
    """Returns tensors with exact zeros, instead of NaN say, in absent rows."""
    aligned = {
        rank: tf.reshape(absent, [-1] + [1] * (rank - 1))
        for rank in {tensor.shape.rank for tensor in tensors}
    }
    zeros = {dtype: tf.zeros([], dtype) for dtype in {t.dtype for t in tensors}}
    return [tf.where(aligned[t.shape.rank], zeros[t.dtype], t) for t in tensors]


def weigh(factors, tensor):
    """Multiplies the rows of a tensor by factors of shape (rows,)."""
    shape = [-1] + [1] * (tensor.shape.rank - 1)
    return tensor * tf.reshape(tf.cast(factors, tensor.dtype), shape)
