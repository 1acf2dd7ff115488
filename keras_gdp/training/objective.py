"""The per-example objective of a compiled model."""

import keras
import tensorflow as tf

from keras_gdp.clipping import Objective
from keras_gdp.clipping.objective import BatchedLoss
from keras_gdp.errors import UnsupportedLayerError
from keras_gdp.training import _keras

__all__ = ["ModelOutputs", "model_objective", "present_rows", "regularizer_gradients"]


class ModelOutputs:
    """Flattens what the forward pass yields beside the loss, and puts it back.

    The structure is known once the model was called on one row; the tensors come
    back from the engine stacked along the batch.
    """

    def flatten(self, y_pred, single_losses):
        """Returns predictions, their masks, and single losses as a list of tensors."""
        leaves = keras.tree.flatten(y_pred)
        masks = [_keras.keras_mask(leaf) for leaf in leaves]
        self._structure = y_pred
        self._has_mask = [mask is not None for mask in masks]
        self._num_single_losses = len(single_losses)
        return [
            *leaves,
            *(mask for mask in masks if mask is not None),
            *(tf.reshape(loss, [-1]) for loss in single_losses),
        ]

    def unflatten(self, tensors):
        """Returns `(y_pred, single_losses)` of stacked tensors."""
        tensors = iter(tensors)
        leaves = [next(tensors) for _ in self._has_mask]
        for leaf, has_mask in zip(leaves, self._has_mask, strict=True):
            if has_mask:
                _keras.set_keras_mask(leaf, next(tensors))
        y_pred = keras.tree.pack_sequence_as(self._structure, leaves)
        return y_pred, [next(tensors) for _ in range(self._num_single_losses)]


def model_objective(model, loss_scale=1.0):
    """Returns `(objective, outputs)` for rows `(x, y, sample_weight)`.

    The loss of one example is what the compiled loss gives on a batch of that one
    example. No reduction, mask or weight can then couple it to another example.
    """
    outputs = ModelOutputs()

    def loss_of(x, y, y_pred, sample_weight):
        with (
            _keras.without_regularizers(model),
            _keras.record_single_losses(model) as single_losses,
        ):
            loss = _keras.compute_loss(model, x, y, y_pred, sample_weight)
        return tf.reduce_sum(loss), list(single_losses)

    def example_loss(row):
        x, y, sample_weight = row
        y_pred = _keras.call_model(model, x)
        loss, single_losses = loss_of(x, y, y_pred, sample_weight)
        return loss, outputs.flatten(y_pred, single_losses)

    def losses(rows):
        x, y, sample_weight = rows
        with _keras.without_regularizers(model):
            y_pred = _keras.call_model(model, x)
            if model.losses:
                raise UnsupportedLayerError(
                    "a layer adds a loss (`add_loss`, `activity_regularizer`) that is "
                    "known for the whole batch only"
                )
        values, single_losses = _keras.map_rows(loss_of, (x, y, y_pred, sample_weight))
        return values, outputs.flatten(y_pred, single_losses)

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
        return 0.0, None
    with tf.GradientTape() as tape:
        value = tf.add_n([tf.cast(v.regularizer(v), tf.float32) for v in regularized])
    return value, tape.gradient(value, [variable.value for variable in variables])
