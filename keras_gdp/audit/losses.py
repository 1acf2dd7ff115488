"""The loss of each example, as the compiled model defines it."""

import numpy as np

__all__ = ["checked_pair", "per_example_losses"]


def checked_pair(name, value):
    """Returns `(x, y)` if `value` is a pair."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ValueError(
            f"Argument `{name}` must be a pair (x, y) of inputs and targets. Received: "
            f"{_short(value)}. Pass `{name}=(x, y)`."
        )
    return tuple(value)


def _short(value):
    if isinstance(value, tuple | list):
        return f"{len(value)} elements in a {type(value).__name__}"
    return f"{repr(value)[:80]} of type {type(value).__name__}"


def per_example_losses(model, x, y, batch_size=256, *, source="Argument `model`"):
    """Returns the compiled loss of each example alone, without regularisers.

    Args:
        model: A compiled Keras model.
        x: Inputs, arrays with a leading axis of examples, nested or not.
        y: Targets, nested or not.
        batch_size: Examples per forward pass.
        source: Where the model comes from, for messages.

    Returns:
        Array of shape (examples,).

    Raises:
        ValueError: If the model is no compiled Keras model.
    """
    import keras
    import tensorflow as tf

    from keras_gdp.training import _keras

    if not isinstance(model, keras.Model) or not model.compiled:
        state = ", not compiled" if isinstance(model, keras.Model) else ""
        raise ValueError(
            f"{source} must be a compiled Keras model, whose loss is computed. "
            f"Received: {_short(model)}{state}. Call "
            "`model.compile(optimizer, loss)`."
        )

    def one(x, y, y_pred):
        loss = _keras.compute_loss(model, x, y, y_pred, None)
        return tf.reduce_sum(loss)

    @tf.function(reduce_retracing=True, autograph=False)
    def losses(x, y):
        with (
            _keras.without_regularizers(model),
            _keras.record_metric_updates(model),
        ):
            return _keras.map_rows(one, (x, y, model(x, training=False)))

    rows = len(keras.tree.flatten(x)[0])
    parts = []
    for begin in range(0, rows, batch_size):
        chunk = keras.tree.map_structure(
            lambda a, b=begin: tf.convert_to_tensor(a[b : b + batch_size]), (x, y)
        )
        parts.append(losses(*chunk).numpy())
    return np.concatenate(parts).astype("float64") if parts else np.zeros(0)
