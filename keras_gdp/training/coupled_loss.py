"""Tells a loss that couples the examples of a batch from a sum over examples."""

import keras
import numpy as np
import tensorflow as tf

from keras_gdp.clipping.aside import run_aside
from keras_gdp.clipping.made_up import made_up_rows, uniform
from keras_gdp.errors import UnsupportedLayerError
from keras_gdp.training import _keras

__all__ = ["validate_loss"]

_ROWS = 6  # of a made-up batch: some losses couple more than two
_DRAWS = 3  # made-up predictions, of which any may tell
_LEAST_MOVE = 1e-4  # of the loss, relative: less may be rounding
_COUPLED = (0.01, 0.05)  # of a move: what it may depend on another row; if rounded
_CONSTANT = 1e-3  # of a move: what an example alone must move at least
_ROUNDED = 2.0**-19  # of the loss, 16 units


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
    """Whether made-up predictions show that the loss is no sum over rows."""
    try:
        return any(_tells(*_losses(model, row_specs, seed)) for seed in range(_DRAWS))
    except Exception:  # What fails on made-up predictions says nothing.
        return False


def _tells(losses, again, alone, rounded):
    """Whether moving one row counts otherwise beside another row, or only there."""
    if not np.isfinite(losses).all() or (losses != again).any():
        return False  # A loss that draws random numbers cannot be told from one.
    move = min(np.abs(np.diff(losses, axis=axis)).max() for axis in (0, 1))
    mixed = abs(losses[0, 0] - losses[0, 1] - losses[1, 0] + losses[1, 1])
    size = np.abs(losses).max()
    if not move > _LEAST_MOVE * size:
        return False
    if np.abs(np.diff(alone, axis=1)).max() <= _CONSTANT * move:
        return True
    return bool(mixed > max(_COUPLED[rounded] * move, _ROUNDED * size))


def _losses(model, row_specs, seed):
    """Returns the losses of a batch, two predictions for each of two rows, as a matrix.

    The same once more; the losses of either row alone, with either prediction; and
    whether predictions or losses are of half precision.
    """
    x, y, _ = made_up_rows(row_specs, _ROWS, uniform)
    generator = np.random.default_rng(seed)

    def draw(leaf):
        values = uniform(generator, (_ROWS + 2, *leaf.shape[1:]))
        return tf.cast(tf.constant(values), leaf.dtype)

    def pick(tensors, rows):
        return keras.tree.map_structure(
            lambda leaf: None if leaf is None else tf.gather(leaf, rows), tensors
        )

    with _keras.record_metric_updates(model), _keras.without_regularizers(model):
        predicted = _keras.call_model(model, x, training=False)
        y_pred = keras.tree.map_structure(draw, predicted)

        def loss(rows, predictions):
            batch = pick((x, y), rows)
            value = _keras.compute_loss(model, *batch, pick(y_pred, predictions), None)
            return tf.reduce_sum(value)

        def of_batch():
            every, others = list(range(_ROWS)), list(range(2, _ROWS))
            firsts, seconds = (0, _ROWS), (1, _ROWS + 1)
            return [[loss(every, [i, j, *others]) for j in seconds] for i in firsts]

        losses, again = of_batch(), of_batch()
        alone = [[loss([i], [k]) for k in (i, _ROWS + i)] for i in (0, 1)]
    types = [leaf.dtype for leaf in [losses[0][0], *keras.tree.flatten(y_pred)]]
    half = min(dtype.size for dtype in types) < 4
    return *(np.array(rows, np.float64) for rows in (losses, again, alone)), half
