"""The per-example objective of a compiled model."""

import keras
import tensorflow as tf

from keras_gdp.clipping import Objective
from keras_gdp.clipping.objective import BatchedLoss, num_rows
from keras_gdp.errors import UnsupportedLayerError
from keras_gdp.training import _keras
from keras_gdp.training.row_losses import losses_at_once, losses_row_by_row

__all__ = ["ModelOutputs", "model_objective", "present_rows", "regularizer_gradients"]


class ModelOutputs:
    """Flattens what the forward pass yields beside the loss, and puts it back.

    That is the predictions with their masks, and the values that Keras would have
    added to metrics meanwhile. The structure is known once the model was called; the
    tensors come back from the engine stacked along the batch.
    """

    def __init__(self):
        self._updates = []

    def flatten(self, y_pred, updates):
        """Returns predictions, their masks, and the updates' values as tensors."""
        leaves = keras.tree.flatten(y_pred)
        masks = [_keras.keras_mask(leaf) for leaf in leaves]
        self._structure = y_pred
        self._has_mask = [mask is not None for mask in masks]
        return [*leaves, *(mask for mask in masks if mask is not None), *updates]

    def values_of(self, recorded, rows=None, begin=0):
        """Returns the values of recorded updates, one row or one batch of rows each.

        Args:
            recorded: List of `(metric, args, kwargs)`.
            rows: Number of rows that they hold; `None` for those of a single row,
                whose leading axis is then left out.
            begin: How many updates were recorded before these.
        """
        self._updates[begin:] = recorded
        return [
            _row_value(leaf) if rows is None else _row_values(leaf, rows)
            for _, args, kwargs in recorded
            for leaf in keras.tree.flatten((args, kwargs))
            if leaf is not None
        ]

    def unflatten(self, tensors):
        """Returns `(y_pred, updates)` of stacked tensors.

        The updates are a list of `(metric, args, kwargs)`.
        """
        tensors = iter(tensors)
        leaves = [next(tensors) for _ in self._has_mask]
        for leaf, has_mask in zip(leaves, self._has_mask, strict=True):
            if has_mask:
                _keras.set_keras_mask(leaf, next(tensors))
        y_pred = keras.tree.pack_sequence_as(self._structure, leaves)
        updates = [
            (
                metric,
                *keras.tree.map_structure(
                    lambda leaf: None if leaf is None else next(tensors),
                    (args, kwargs),
                ),
            )
            for metric, args, kwargs in self._updates
        ]
        return y_pred, updates


def _row_value(leaf):
    value = tf.convert_to_tensor(leaf)
    return value[0] if value.shape.rank and value.shape[0] == 1 else value


def _row_values(leaf, rows):
    value = tf.convert_to_tensor(leaf)
    if value.shape.rank == 0:
        return tf.fill([rows], value)
    if isinstance(rows, int) and value.shape[0] not in (None, rows):
        raise UnsupportedLayerError(
            "a metric is updated by a layer with values of another size than the batch"
        )
    return value


def model_objective(model, loss_scale=1.0, compute_loss=_keras.compute_loss):
    """Returns `(objective, outputs)` for rows `(x, y, sample_weight)`.

    The loss of one example is what the compiled loss gives on a batch of that one
    example. No reduction, mask or weight can then couple it to another example.

    Args:
        model: The model.
        loss_scale: As in `Objective`.
        compute_loss: Called as `compute_loss(model, x, y, y_pred, sample_weight)`.
    """
    outputs = ModelOutputs()

    def loss_of(x, y, y_pred, sample_weight):
        with _keras.without_regularizers(model):
            loss = compute_loss(model, x, y, y_pred, sample_weight)
        return tf.reduce_sum(loss)

    def example_loss(row):
        x, y, sample_weight = row
        with _keras.record_metric_updates(model) as recorded:
            y_pred = _keras.call_model(model, x)
            loss = loss_of(x, y, y_pred, sample_weight)
        values = outputs.values_of(recorded)
        return loss, outputs.flatten(y_pred, [value[None] for value in values])

    def losses(rows):
        x, y, sample_weight = rows
        with (
            _keras.without_regularizers(model),
            _keras.record_metric_updates(model) as recorded,
        ):
            y_pred = _keras.call_model(model, x)
            if model.losses:
                raise UnsupportedLayerError(
                    "a layer adds a loss (`add_loss`, `activity_regularizer`) that is "
                    "known for the whole batch only"
                )
        in_call = outputs.values_of(recorded, num_rows(rows))
        if compute_loss is _keras.compute_loss:
            with _keras.without_regularizers(model):
                values = losses_at_once(model, (x, y, y_pred, sample_weight))
            if values is not None:
                return values, outputs.flatten(y_pred, in_call)

        def row_loss(x, y, y_pred, sample_weight):
            with _keras.record_metric_updates(model) as recorded_here:
                loss = loss_of(x, y, y_pred, sample_weight)
            return loss, outputs.values_of(recorded_here, begin=len(recorded))

        values, in_loss = losses_row_by_row(
            row_loss, (x, y, y_pred, sample_weight), variables, loss_scale
        )
        return values, outputs.flatten(y_pred, [*in_call, *in_loss])

    variables = [variable.value for variable in model.trainable_variables]
    batched = BatchedLoss(losses, _keras.children_of)
    return Objective(example_loss, variables, loss_scale, model, batched), outputs


def present_rows(sample_weight, rows):
    """Returns a boolean tensor of shape (rows,): which examples take part.

    An example all of whose weights are zero, such as a padding row, does not.
    """
    weights = [leaf for leaf in keras.tree.flatten(sample_weight) if leaf is not None]
    present = tf.fill([rows], not weights)
    for weight in weights:
        nonzero = tf.not_equal(weight, tf.zeros([], weight.dtype))
        present |= tf.reduce_any(tf.reshape(nonzero, [rows, -1]), axis=1)
    return present


def regularizer_gradients(model):
    """Returns `(value, gradients)` of the weight regularisers; `None` for none."""
    variables = model.trainable_variables
    regularized = [v for v in variables if v.regularizer is not None]
    if not regularized:
        return None, None
    with tf.GradientTape() as tape:
        value = tf.add_n([tf.cast(v.regularizer(v), tf.float32) for v in regularized])
    return value, tape.gradient(value, [variable.value for variable in variables])
