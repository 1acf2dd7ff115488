"""`tf.vectorized_map`, with products and sums that keep to their rows everywhere.

Beside `xla.py` the only file that touches TensorFlow's private names: the table of
converters in `tensorflow.python.ops.parallel_for.pfor`.

Vectorising sums over segments puts the segments of all rows side by side: an index
beyond those of one row would be one of the next row's. On processors such indices fail
where they are read; elsewhere they count for nothing, in any row.

Vectorising a product of one row, of shape (1, T, n), with a matrix gives a product of
shapes (batch, 1, T, n) and (n, m). oneDNN, as TensorFlow 2.21 uses it, writes beyond
its buffers for it on processors with AVX-512: wrong results and crashes. Axes of
length 1 that both factors share are therefore left out of the product.
"""

import contextlib
import logging

import tensorflow as tf

__all__ = ["quiet", "vectorized_map"]


def vectorized_map(function, elements):
    """Maps a function over the leading axis of nested tensors, all at once."""
    return tf.vectorized_map(function, elements)


@contextlib.contextmanager
def quiet():
    """Keeps TensorFlow from logging what it cannot vectorise."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _squeezed_matmul(x, y, **adjoint):
    """Returns `tf.matmul(x, y)` without common batch axes of length 1."""
    rank = max(x.shape.rank, y.shape.rank)
    batch = [_aligned(t, rank) for t in (x, y)]
    ones = [axis for axis in range(1, rank - 2) if all(b[axis] == 1 for b in batch)]
    if not ones:
        return tf.matmul(x, y, **adjoint)
    factors = []
    for tensor in (x, y):
        missing = rank - tensor.shape.rank
        axes = [axis - missing for axis in ones if axis >= missing]
        factors.append(tf.squeeze(tensor, axes) if axes else tensor)
    product = tf.matmul(*factors, **adjoint)
    for axis in ones:
        product = tf.expand_dims(product, axis)
    return product


def _aligned(tensor, rank):
    """Returns the batch sizes of a tensor, filled up to `rank` axes with ones."""
    return [1] * (rank - tensor.shape.rank) + list(tensor.shape[:-2])


def _install():
    from tensorflow.python.ops.parallel_for import pfor

    known = pfor._pfor_converter_registry["BatchMatMulV2"]

    def convert(pfor_input):
        pfor_input.expanddim_inputs_for_broadcast()
        x, y = pfor_input.input(0)[0], pfor_input.input(1)[0]
        if x.shape.rank is None or y.shape.rank is None:
            return known(pfor_input)
        product = _squeezed_matmul(
            x,
            y,
            adjoint_a=pfor_input.get_attr("adj_x"),
            adjoint_b=pfor_input.get_attr("adj_y"),
        )
        return pfor.wrap(product, True)

    pfor._pfor_converter_registry["BatchMatMulV2"] = convert
    for name in ("Sum", "Max", "Min", "Prod"):
        kind = f"UnsortedSegment{name}"
        sums = pfor._pfor_converter_registry[kind]
        pfor._pfor_converter_registry[kind] = _within_segments(pfor, sums)


def _within_segments(pfor, known):
    """Returns a converter of sums over segments that drops indices beyond them."""

    def convert(pfor_input):
        indices, stacked, _ = pfor_input.input(1)
        segments = tf.cast(pfor_input.unstacked_input(2), indices.dtype)
        nowhere = tf.constant(-1, indices.dtype)
        kept = tf.where(indices < segments, indices, nowhere)
        pfor_input._inputs[1] = pfor.wrap(kept, stacked)
        return known(pfor_input)

    return convert


# Without these names another TensorFlow is at work, and its own converter stays.
with contextlib.suppress(ImportError, AttributeError, KeyError):
    _install()
