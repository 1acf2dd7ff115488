"""The interface of the engines, and the loop over physical batches."""

import tensorflow as tf

from keras_gdp.clipping.contributions.base import zero_rows
from keras_gdp.clipping.objective import (
    Objective,
    leaves_of,
    num_rows,
    rows_of,
    with_leaves,
)
from keras_gdp.clipping.result import ClippedSum
from keras_gdp.clipping.strategies import ClippingStrategy

__all__ = ["Engine", "weighted_sum"]


class Engine:
    """Computes the clipped sum of per-example gradients of a batch.

    A subclass implements `clip_rows` for as many rows as fit into memory at once;
    this class feeds it the batch in chunks and adds up the results.

    Args:
        strategy: The clipping strategy.
        physical_batch_size: Rows per chunk; `None` for the whole batch at once. The
            result does not depend on it, memory does.
    """

    name = ""
    # Whether the engine is right only where examples do not affect each other.
    needs_isolation = False

    def __init__(self, strategy: ClippingStrategy, physical_batch_size=None):
        self.strategy = strategy
        self.physical_batch_size = physical_batch_size

    def factors(self, squared_norms, present):
        """Returns the clip factors of shape (rows, variables); 0 for an absent row.

        Args:
            squared_norms: Tensor of shape (rows, variables).
            present: Boolean tensor of shape (rows,).
        """
        factors = self.strategy.factors(squared_norms)
        factors = factors * tf.expand_dims(tf.cast(present, tf.float32), 1)
        return tf.broadcast_to(factors, tf.shape(squared_norms))

    def clip_rows(self, objective: Objective, rows, present) -> ClippedSum:
        """Returns the clipped sum of some rows.

        Args:
            objective: What to differentiate.
            rows: Nested batch with a leading axis of at least one row.
            present: Boolean tensor of shape (rows,). A row that is not present
                contributes exactly zero, whatever it holds.
        """
        raise NotImplementedError

    def clip(self, objective: Objective, batch, present) -> ClippedSum:
        """Returns the clipped sum of a whole batch, in chunks.

        Args:
            objective: What to differentiate.
            batch: Nested batch with a leading axis of any length, also zero.
            present: Boolean tensor of shape (rows,).
        """
        result = self._clip_chunks(objective, batch, present)
        statistics = self.strategy.statistics(result.squared_norms, present)
        return result._replace(statistics=statistics)

    def _clip_chunks(self, objective, batch, present):
        count = num_rows(batch)
        size = self.physical_batch_size
        if isinstance(count, int) and count > 0 and (size is None or count <= size):
            return self._clip_shaped_rows(objective, batch, present)
        # An empty batch becomes one absent row: the step still adds its noise.
        if size is None:
            size = tf.maximum(count, 1)
        chunks = tf.maximum((count + size - 1) // size, 1)
        padding = chunks * size - count
        batch, present = _pad((batch, present), padding)
        if tf.executing_eagerly():
            result = self._eager_chunks(objective, batch, present, chunks, size)
        elif self.physical_batch_size is None:
            result = self._clip_shaped_rows(objective, batch, present)
        else:
            result = self._graph_chunks(objective, batch, present, chunks, size)
        return ClippedSum(
            result.gradients,
            *rows_of((result.squared_norms, result.losses, result.outputs), 0, count),
        )

    def _clip_shaped_rows(self, objective, rows, present):
        part = self.clip_rows(objective, rows, present)
        # TensorFlow loses shapes where inputs have sizes that are not known.
        sums = [
            total
            if total.shape == variable.shape
            else tf.ensure_shape(total, variable.shape)
            for total, variable in zip(part.gradients, objective.variables, strict=True)
        ]
        return part._replace(gradients=sums)

    def _eager_chunks(self, objective, batch, present, chunks, size):
        sums, stacked = None, []
        for chunk in range(int(chunks)):
            begin, end = chunk * size, (chunk + 1) * size
            part = self._clip_shaped_rows(
                objective, rows_of(batch, begin, end), present[begin:end]
            )
            stacked.append((part.squared_norms, part.losses, part.outputs))
            sums = (
                part.gradients
                if sums is None
                else [a + b for a, b in zip(sums, part.gradients, strict=True)]
            )
        rows = tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *stacked)
        return ClippedSum(sums, *rows)

    def _graph_chunks(self, objective, batch, present, chunks, size):
        leaves = leaves_of((batch, present))

        # Traced once, as a function of its own, so that its output shapes are known
        # before the loop that calls it is built.
        def clip_chunk(*tensors):
            rows, mask = with_leaves((batch, present), tensors)
            part = self._clip_shaped_rows(objective, rows, mask)
            return part.gradients, (part.squared_norms, part.losses, part.outputs)

        one_chunk = tf.function(clip_chunk, autograph=False).get_concrete_function(
            *(tf.TensorSpec([size, *leaf.shape[1:]], leaf.dtype) for leaf in leaves)
        )
        sum_specs, row_specs = one_chunk.structured_outputs
        sums = [tf.zeros(spec.shape, spec.dtype) for spec in sum_specs]
        arrays = tf.nest.map_structure(
            lambda spec: tf.TensorArray(spec.dtype, chunks, element_shape=spec.shape),
            row_specs,
        )

        chunked = [_split(leaf, chunks, size) for leaf in leaves]

        def body(chunk, sums, arrays):
            gradients, per_row = one_chunk(
                *(tf.gather(leaf, chunk) for leaf in chunked)
            )
            return (
                chunk + 1,
                [a + b for a, b in zip(sums, gradients, strict=True)],
                tf.nest.map_structure(
                    lambda array, rows: array.write(chunk, rows), arrays, per_row
                ),
            )

        _, sums, arrays = tf.while_loop(
            lambda chunk, *_: chunk < chunks, body, (0, sums, arrays)
        )
        rows = tf.nest.map_structure(lambda array: _merge(array.stack()), arrays)
        return ClippedSum(sums, *rows)


def weighted_sum(factors, gradients):
    """Returns the sum over examples of factor times gradient.

    Args:
        factors: Tensor of shape (batch,), zero for an example to leave out.
        gradients: Tensor of shape (batch, ...), possibly NaN or infinite where the
            factor is zero.
    """
    factors = tf.cast(factors, gradients.dtype)
    # NaN times zero is NaN: select before multiplying.
    (gradients,) = zero_rows(factors <= 0, [gradients])
    return tf.tensordot(factors, gradients, axes=1)


def _split(rows, chunks, size):
    """Reshapes (chunks * size, ...) to (chunks, size, ...)."""
    shape = tf.concat([[chunks, size], tf.shape(rows)[1:]], 0)
    return tf.ensure_shape(tf.reshape(rows, shape), [None, size, *rows.shape[1:]])


def _merge(chunks):
    """Reshapes (chunks, size, ...) to (chunks * size, ...)."""
    shape = tf.shape(chunks)
    merged = tf.reshape(chunks, tf.concat([[shape[0] * shape[1]], shape[2:]], 0))
    return tf.ensure_shape(merged, [None, *chunks.shape[2:]])


def _pad(batch, padding):
    def pad(leaf):
        if leaf is None:
            return None
        if leaf.dtype == tf.string:
            filler = tf.fill(tf.concat([[padding], tf.shape(leaf)[1:]], 0), "")
            return tf.concat([leaf, filler], 0)
        return tf.pad(leaf, [[0, padding]] + [[0, 0]] * (leaf.shape.rank - 1))

    return tf.nest.map_structure(pad, batch)
