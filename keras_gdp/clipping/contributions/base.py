"""The interface of the contributions, and their sum over several calls."""

import math

import tensorflow as tf

__all__ = [
    "Combined",
    "Contribution",
    "by_rows",
    "combine",
    "fits",
    "not_negative",
    "select",
    "squares",
    "weigh",
    "weighted_total",
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
        """Returns the squared L2 norms of the gradients, of shape (batch,)."""
        return by_rows(lambda part: squares(part.per_example()), self, self.size)

    def weighted_sum(self, factors, finite=False):
        """Returns the sum over examples of factor times gradient.

        Args:
            factors: Tensor of shape (batch,), >= 0; an example with factor zero is
                left out whatever its tensors hold, NaN included.
            finite: Whether the gradients of all examples are finite, those of factor
                zero too. Zeros need then not be selected, only multiplied.
        """
        raise NotImplementedError

    def join(self, others):
        """Returns one contribution for the sum with others of this class, or `None`."""
        del others
        return None


class Combined(Contribution):
    """The sum of several contributions to the same variable."""

    def __init__(self, parts):
        super().__init__([t for part in parts for t in part.tensors], parts[0].shape)
        self.parts = parts

    def rebuild(self, tensors):
        tensors = list(tensors)
        parts = []
        for part in self.parts:
            parts.append(part.rebuild(tensors[: len(part.tensors)]))
            del tensors[: len(part.tensors)]
        return Combined(parts)

    def per_example(self):
        return tf.add_n([part.per_example() for part in self.parts])

    def weighted_sum(self, factors, finite=False):
        return tf.add_n([part.weighted_sum(factors, finite) for part in self.parts])


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


def squares(gradients):
    """Returns the sum of squares over all axes but the first."""
    return tf.reduce_sum(
        tf.square(gradients), axis=list(range(1, gradients.shape.rank))
    )


def select(factors, tensor, finite=False):
    """Replaces the rows of a tensor whose factor is zero by exact zeros.

    Where all is `finite` it returns the tensor: the factors will do it.
    """
    if finite:
        return tensor
    keep = tf.reshape(factors > 0, [-1] + [1] * (tensor.shape.rank - 1))
    return tf.where(keep, tensor, tf.zeros([], tensor.dtype))


def weigh(factors, tensor, finite=False):
    """Multiplies the rows of a tensor by factors, where zero means exactly zero."""
    factors = tf.cast(factors, tensor.dtype)
    shape = [-1] + [1] * (tensor.shape.rank - 1)
    return select(factors, tensor, finite) * tf.reshape(factors, shape)


def weighted_total(factors, tensor, finite=False):
    """Returns the sum over rows of factor times row."""
    factors = tf.cast(factors, tensor.dtype)
    return tf.tensordot(factors, select(factors, tensor, finite), axes=1)


def not_negative(squared_norms):
    """Replaces negative entries, which only rounding can make, by zero; keeps NaN.

    `tf.maximum` does not keep NaN on every device, and the norm of a broken example
    must not become zero.
    """
    zero = tf.zeros([], squared_norms.dtype)
    return tf.where(squared_norms < 0, zero, squared_norms)
