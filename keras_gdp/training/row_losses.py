"""The compiled losses of all rows of a batch, each as if it were alone."""

import keras
import tensorflow as tf

from keras_gdp.clipping.contributions.base import weigh
from keras_gdp.clipping.recording import refuse_outside
from keras_gdp.clipping.vectorize import quiet
from keras_gdp.training import _keras

__all__ = ["losses_at_once", "losses_row_by_row"]

# Keras' functions that map two matrices row by row. The hinge losses do not: they ask
# whether all labels of the batch are 0 or 1.
_SPARSE = {keras.losses.sparse_categorical_crossentropy}
_DENSE = {
    keras.losses.binary_crossentropy,
    keras.losses.binary_focal_crossentropy,
    keras.losses.categorical_crossentropy,
    keras.losses.categorical_focal_crossentropy,
    keras.losses.huber,
    keras.losses.kl_divergence,
    keras.losses.log_cosh,
    keras.losses.mean_absolute_error,
    keras.losses.mean_absolute_percentage_error,
    keras.losses.mean_squared_error,
    keras.losses.mean_squared_logarithmic_error,
    keras.losses.poisson,
}


def losses_at_once(model, rows):
    """Returns the losses of all rows as Keras itself computes them, or `None`.

    That is where they are certain to be what the compiled loss gives for each row
    alone: one loss function that is known to map predictions of shape (rows, n) and
    targets row by row to one number each, with one weight per row. Whatever the
    reduction over a batch of one, it has nothing to do then.

    Args:
        model: The compiled model, without weight regularisers.
        rows: Tuple `(x, y, y_pred, sample_weight)`, of as many rows each (see
            `same_rows`): a tensor of one would be broadcast.

    Returns:
        Tensor of shape (rows,), or `None`.
    """
    x, y, y_pred, sample_weight = rows
    loss = _keras.only_loss(model)
    if (
        loss is None
        or loss.reduction not in ("sum_over_batch_size", "mean", "sum", "none", None)
        or not _row_by_row(*_keras.loss_function(loss), y, y_pred)
        or not (sample_weight is None or _is_matrix(sample_weight, rank=1))
    ):
        return None
    reduction, loss.reduction = loss.reduction, "none"
    try:
        losses = _keras.compute_loss(model, x, y, y_pred, sample_weight)
    finally:
        loss.reduction = reduction
    return losses if losses.shape.rank == 1 else None


def _row_by_row(function, arguments, y, y_pred):
    if not (_is_matrix(y_pred) and isinstance(y, tf.Tensor) and y.shape.rank):
        return False
    if arguments.get("axis", -1) != -1 or arguments.get("ignore_class") is not None:
        return False
    sizes, width = y.shape[1:].as_list(), y_pred.shape[1]
    if function in _SPARSE:
        return sizes in ([], [1])
    return function in _DENSE and (sizes == [width] or (sizes, width) == ([], 1))


def _is_matrix(tensor, rank=2):
    return (
        isinstance(tensor, tf.Tensor)
        and tensor.shape.rank == rank
        and None not in tensor.shape[1:]
        and _keras.keras_mask(tensor) is None
    )


def losses_row_by_row(row_loss, rows, trained, scale):
    """Returns the losses of all rows, and what else `row_loss` returns, stacked.

    Each row's loss is differentiated where it is computed, by the row's predictions. A
    backward pass through all of them at once would have XLA compile every step anew. It
    is left for losses with a loop or a condition, whose gradients `tf.vectorized_map`
    cannot convert.

    Args:
        row_loss: Maps the elements of `rows`, one row of each, to
            `(loss, list of tensors)`.
        rows: Tuple `(x, y, y_pred, sample_weight)`.
        trained: The variables that are trained; the losses must not use them.
        scale: The factor on the losses that their gradients will have, which keeps
            those in half precision from underflow here as well.
    """

    def floating(y_pred):
        return [
            leaf
            for leaf in keras.tree.flatten(y_pred)
            if leaf.dtype.is_floating or leaf.dtype.is_complex
        ]

    def loss_and_gradients(x, y, y_pred, sample_weight):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(floating(y_pred))
            loss, others = row_loss(x, y, y_pred, sample_weight)
            scaled = loss * tf.cast(scale, loss.dtype)
        gradients = tape.gradient(
            scaled,
            floating(y_pred),
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return loss, others, [gradient[0] for gradient in gradients]

    @tf.custom_gradient
    def losses_of(*leaves):
        losses, others, gradients = _keras.map_rows(loss_and_gradients, rows)

        def backward(upstream, *_, variables=None):
            refuse_outside(variables, trained)
            factors = upstream / tf.cast(scale, upstream.dtype)
            d_leaves = [weigh(factors, gradient) for gradient in gradients]
            return (d_leaves, [None] * len(variables)) if variables else d_leaves

        return (losses, *others), backward

    try:
        with quiet():
            losses, *others = losses_of(*floating(rows[2]))
    except Exception:  # Any failure at all means that it cannot.
        return _keras.map_rows(row_loss, rows)
    return losses, others
