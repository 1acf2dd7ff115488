"""Rows picked from a table: embeddings."""

import sys

import tensorflow as tf

from keras_gdp.clipping.contributions.base import (
    Contribution,
    by_rows,
    fits,
    guarded,
    squares,
    weigh,
)
from keras_gdp.clipping.xla import traced_for_xla

__all__ = ["Lookup", "lookup_of"]

# Up to this many ids per example, comparing all pairs is cheapest.
_MAX_PAIRS = 32
# Sparse products on processors are several times faster below 32 columns.
_MAX_COLUMNS = 31


class Lookup(Contribution):
    """The gradient of a table whose rows `indices` were read, per example.

    A row that an example reads more than once receives the sum of the gradients, and
    only then its norm counts. Nothing of the table's size is made per example.

    Args:
        gradients: Tensor of shape (batch, T, d).
        indices: Integer tensor of shape (batch, T), entries in [0, rows).
        shape: Shape of the table, (rows, d).
    """

    def __init__(self, gradients, indices, shape):
        super().__init__([gradients, indices], shape)

    def rebuild(self, tensors):
        return Lookup(*tensors, shape=self.shape)

    def per_example(self):
        gradients, indices = self.tensors
        batch, _ = _sizes(indices)
        rows, width = self.shape
        offsets = tf.range(0, batch * rows, rows, dtype=indices.dtype)
        places = indices + tf.expand_dims(offsets, 1)
        flat = _sum_rows(gradients, places, batch * rows)
        return tf.reshape(flat, [-1, rows, width])

    def scale(self):
        _, tokens = _sizes(self.tensors[1])
        return tf.sqrt(
            tf.cast(tokens, tf.float64) * tf.cast(squares(self.tensors[0]), tf.float64)
        )

    def squared_norms(self):
        tokens = self.tensors[1].shape[1]
        if tokens == 1:
            return squares(self.tensors[0])
        if tokens is not None and tokens <= _MAX_PAIRS:
            squared = by_rows(lambda part: _pairs(*part.tensors), self, 2 * tokens**2)
        elif fits(self.shape[0], self.tensors[0].shape[0]):
            squared = _marked_segments(*self.tensors, self.shape[0])
        else:
            squared = _sorted_segments(*self.tensors)
        return guarded(squared, self.scale())

    def weighted_sum(self, factors):
        gradients, indices = self.tensors
        return _sum_rows(gradients, indices, self.shape[0], factors)

    def join(self, others):
        if any(other.shape != self.shape for other in others):
            return None
        parts = [part.tensors for part in (self, *others)]
        gradients = tf.concat([part[0] for part in parts], axis=1)
        indices = tf.concat([tf.cast(p[1], tf.int64) for p in parts], axis=1)
        return Lookup(gradients, indices, self.shape)


def lookup_of(gradients, indices, shape):
    """Returns the contribution of reading rows of a table.

    Args:
        gradients: Tensor of shape (batch, tokens, width).
        indices: Integer tensor of shape (batch, tokens). What is read outside of the
            table has no gradient, and must not be taken for a row of another example.
        shape: That of the table, (rows, width).
    """
    if not _on_processor():  # There the step has failed when the rows were read.
        valid = tf.logical_and(indices >= 0, indices < shape[0])
        indices = tf.where(valid, indices, tf.zeros([], indices.dtype))
        gradients = tf.where(
            tf.expand_dims(valid, -1), gradients, tf.zeros([], gradients.dtype)
        )
    return Lookup(gradients, indices, shape)


def _sizes(tensor):
    """Returns the sizes of all axes, as numbers if they are static."""
    sizes = tensor.shape.as_list()
    return tf.unstack(tf.shape(tensor)) if None in sizes else sizes


def _sum_rows(gradients, indices, rows, factors=None):
    """Returns a table whose row i is the sum of the gradients with index i.

    Args:
        gradients: Tensor of shape (batch, T, d).
        indices: Integer tensor of batch * T entries in [0, rows).
        rows: Rows of the table.
        factors: Tensor of shape (batch,) that weighs the examples; `None` for ones.
    """
    width = gradients.shape[-1]
    indices = tf.reshape(indices, [-1])
    if not _on_processor():
        if factors is not None:
            gradients = weigh(factors, gradients)
        gradients = tf.reshape(gradients, [-1, width])
        return tf.math.unsorted_segment_sum(gradients, indices, rows)
    # The same as the product with a sparse matrix, whose processor kernel is faster.
    batch, tokens, _ = _sizes(gradients)
    if factors is None:
        values = tf.ones([batch * tokens], gradients.dtype)
    else:
        values = tf.expand_dims(tf.cast(factors, gradients.dtype), 1)
        values = tf.reshape(tf.broadcast_to(values, [batch, tokens]), [-1])
    places = _side_by_side(
        tf.cast(indices, tf.int64), tf.range(batch * tokens, dtype=tf.int64)
    )
    shape = tf.cast([rows, batch * tokens], tf.int64)

    def product(columns):
        return tf.raw_ops.SparseTensorDenseMatMul(
            a_indices=places, a_values=values, a_shape=shape, b=columns
        )

    gradients = tf.reshape(gradients, [-1, width])
    count = -(-width // _MAX_COLUMNS)
    if count == 1:
        return product(gradients)
    sizes = [width // count + (i < width % count) for i in range(count)]
    columns = tf.split(gradients, sizes, axis=1)
    return tf.concat([product(part) for part in columns], axis=1)


def _on_processor():
    return not (tf.config.list_logical_devices("GPU") or traced_for_xla())


def _side_by_side(left, right):
    """Stacks int64 vectors of entries below 2^31 as int32 columns: `tf.stack`, fast."""
    low, high = (left, right) if sys.byteorder == "little" else (right, left)
    return tf.bitcast(low + high * 2**32, tf.int32)


def _pairs(gradients, indices):
    # In float64, as differences of large numbers are taken.
    gradients = tf.cast(gradients, tf.float64)
    equal = tf.equal(indices[:, :, None], indices[:, None, :])
    products = tf.matmul(gradients, gradients, transpose_b=True)
    total = tf.reduce_sum(tf.where(equal, products, 0), axis=[1, 2])
    return tf.where(total < 0, tf.zeros([], tf.float64), total)


def _marked_segments(gradients, indices, rows):
    """Adds up equal ids of one example at one of the tokens that have the id."""
    batch, tokens = _sizes(indices)
    offsets = tf.cast(tf.expand_dims(tf.range(0, batch * rows, rows), 1), tf.int64)
    flat = tf.reshape(tf.cast(indices, tf.int64) + offsets, [-1])
    places = tf.range(batch * tokens)
    if _on_processor():
        # Whichever of the tokens at one place stays: faster than their maximum.
        marks = tf.raw_ops.SparseToDense(
            sparse_indices=flat,
            output_shape=tf.cast([batch * rows], tf.int64),
            sparse_values=places,
            default_value=0,
            validate_indices=False,
        )
    else:
        marks = tf.math.unsorted_segment_max(places, flat, batch * rows)
    sums = _sum_rows(gradients, tf.gather(marks, flat), batch * tokens)
    return squares(tf.reshape(sums, [batch, -1]))


def _sorted_segments(gradients, indices):
    """Adds up equal ids of one example after sorting them."""
    batch, tokens = _sizes(indices)
    order = tf.argsort(indices, axis=1)
    ordered = tf.gather(indices, order, axis=1, batch_dims=1)
    starts = tf.concat(
        [tf.ones([batch, 1], tf.bool), ordered[:, 1:] != ordered[:, :-1]], axis=1
    )
    # Number of the distinct id, counted over the whole chunk.
    segments = tf.cumsum(tf.cast(tf.reshape(starts, [-1]), tf.int32)) - 1
    values = tf.gather(gradients, order, axis=1, batch_dims=1)
    sums = _sum_rows(values, segments, batch * tokens)
    # The squared norm of a segment is counted once, at the token that starts it.
    per_token = tf.gather(tf.reduce_sum(tf.square(sums), axis=-1), segments)
    counted = tf.where(tf.reshape(starts, [-1]), per_token, 0)
    return tf.reduce_sum(tf.reshape(counted, [batch, tokens]), axis=1)
