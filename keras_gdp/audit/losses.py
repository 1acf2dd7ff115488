"""The loss of each example, as the compiled model defines it."""

import numpy as np

__all__ = ["per_example_losses"]


def per_example_losses(model, x, y, batch_size=256):
    """Returns the compiled loss of each example alone, without regularisers.

    Args:
        model: A compiled Keras model.
        x: Inputs, arrays with a leading axis of examples, nested or not.
        y: Targets, nested or not.
        batch_size: Examples per forward pass.

    Returns:
        Array of shape (examples,).
    """
    import keras
    import tensorflow as tf

    from keras_gdp.training import _keras

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
