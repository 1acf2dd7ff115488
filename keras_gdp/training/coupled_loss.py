"""Tells a loss that couples the examples of a batch from a sum over examples."""

import warnings

import keras
import numpy as np
import tensorflow as tf

from keras_gdp.clipping.aside import run_aside
from keras_gdp.clipping.made_up import made_up_rows, uniform
from keras_gdp.training import _keras

__all__ = ["warn_of_coupled_loss"]

_LEAST_MOVE = 1e-4  # of the loss, relative: less may be rounding
_COUPLED = 0.03  # of a move: what it may depend on another row


def warn_of_coupled_loss(model, row_specs):
    """Warns if the compiled loss of a batch is no sum over its examples.

    Args:
        model: The built model.
        row_specs: Nested `tf.TensorSpec`s of a batch `(x, y, sample_weight)`.
    """
    if run_aside(lambda: _couples(model, row_specs)):
        warnings.warn(
            "The loss couples the examples of a batch: what the predictions for one "
            "example cost depends on those for another. Private training takes the "
            "loss of each example alone, on a batch of one, which is another "
            "objective; a contrastive loss, say, can be constant then. Use a loss "
            "that is a mean or a sum over examples, or serve what belongs together "
            "as one example.",
            stacklevel=2,
        )


def _couples(model, row_specs):
    """Whether moving one row's predictions counts otherwise beside another row."""
    try:
        losses = _losses_of_two(model, row_specs)
    except Exception:  # What fails on made-up predictions says nothing.
        return False
    moves = [np.abs(np.diff(losses, axis=axis)).max() for axis in (0, 1)]
    mixed = abs(losses[0, 0] - losses[0, 1] - losses[1, 0] + losses[1, 1])
    size = np.abs(losses).max()
    told = np.isfinite(losses).all() and min(moves) > _LEAST_MOVE * size
    return bool(told and mixed > _COUPLED * min(moves))


def _losses_of_two(model, row_specs):
    """Returns the losses of two examples, two predictions for each, as a matrix."""
    x, y, _ = made_up_rows(row_specs, 2, uniform)
    generator = np.random.default_rng(2)

    def draw(leaf):
        values = uniform(generator, (4, *leaf.shape[1:]))
        return tf.cast(tf.constant(values), leaf.dtype)

    with _keras.record_metric_updates(model), _keras.without_regularizers(model):
        predicted = _keras.call_model(model, x, training=False)
        y_pred = keras.tree.map_structure(draw, predicted)

        def loss(*pair):
            pair = keras.tree.map_structure(lambda leaf: tf.gather(leaf, pair), y_pred)
            return tf.reduce_sum(_keras.compute_loss(model, x, y, pair, None))

        return np.array([[loss(i, j) for j in (2, 3)] for i in (0, 1)], np.float64)
