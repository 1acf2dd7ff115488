"""Tells a loss that couples the examples of a batch from a sum over examples."""

import keras
import numpy as np
import tensorflow as tf

from keras_gdp.clipping.aside import run_aside
from keras_gdp.clipping.made_up import made_up_rows, uniform
from keras_gdp.errors import UnsupportedLayerError
from keras_gdp.training import _keras

__all__ = ["validate_loss"]

_DRAWS = 2  # made-up predictions that must all tell the same
_LEAST_MOVE = 1e-4  # of the loss, relative: less may be rounding
_COUPLED = 0.03  # of a move: what it may depend on another row
_ROUNDED = 16.0  # units of the loss's type


def validate_loss(model, row_specs):
    """Raises if the compiled loss of a batch is surely no sum over its examples.

    Args:
        model: The built model.
        row_specs: Nested `tf.TensorSpec`s of a batch `(x, y, sample_weight)`.

    Raises:
        UnsupportedLayerError: With the reason and the way out.
    """
    if run_aside(lambda: _couples(model, row_specs)):
        raise UnsupportedLayerError(
            "The loss couples the examples of a batch: what the predictions for one "
            "example cost depends on those for another. Private training takes the "
            "loss of each example alone, on a batch of one, which is another "
            "objective; a contrastive loss, say, can be constant then. Use a loss "
            "that is a mean or a sum over examples (one that reduces over all axes, "
            "as keras.losses.Dice(), can be told not to: axis=...), or serve what "
            "belongs together as one example."
        )


def _couples(model, row_specs):
    """Whether moving one row's predictions counts otherwise beside another row."""
    try:
        return all(
            _couple(*_losses_of_two(model, row_specs, seed))
            for seed in range(2, 2 + _DRAWS)
        )
    except Exception:  # What fails on made-up predictions says nothing.
        return False


def _couple(losses, again, unit):
    """Whether a matrix of losses is surely no sum of rows and columns."""
    if not np.isfinite(losses).all() or (losses != again).any():
        return False  # A loss that draws random numbers cannot be told from one.
    move = min(np.abs(np.diff(losses, axis=axis)).max() for axis in (0, 1))
    mixed = abs(losses[0, 0] - losses[0, 1] - losses[1, 0] + losses[1, 1])
    size = np.abs(losses).max()
    told = move > _LEAST_MOVE * size and mixed > _ROUNDED * unit * size
    return bool(told and mixed > _COUPLED * move)


def _losses_of_two(model, row_specs, seed):
    """Returns the losses of two examples, two predictions for each, as a matrix.

    Twice, and the rounding unit of the least accurate type on the way.
    """
    x, y, _ = made_up_rows(row_specs, 2, uniform)
    generator = np.random.default_rng(seed)

    def draw(leaf):
        values = uniform(generator, (4, *leaf.shape[1:]))
        return tf.cast(tf.constant(values), leaf.dtype)

    with _keras.record_metric_updates(model), _keras.without_regularizers(model):
        predicted = _keras.call_model(model, x, training=False)
        y_pred = keras.tree.map_structure(draw, predicted)

        def loss(*pair):
            pair = keras.tree.map_structure(lambda leaf: tf.gather(leaf, pair), y_pred)
            return tf.reduce_sum(_keras.compute_loss(model, x, y, pair, None))

        losses = [[loss(i, j) for j in (2, 3)] for i in (0, 1)]
        again = [[loss(i, j) for j in (2, 3)] for i in (0, 1)]
    types = [leaf.dtype for leaf in [losses[0][0], *keras.tree.flatten(y_pred)]]
    unit = 2.0**-23 if min(dtype.size for dtype in types) >= 4 else 2.0**-7
    return np.array(losses, np.float64), np.array(again, np.float64), unit
