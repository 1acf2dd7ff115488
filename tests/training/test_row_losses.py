"""Losses that are differentiated row by row, against one example at a time."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_gdp.clipping import Flat
from keras_gdp.clipping.choose import ENGINES, choose_engine
from keras_gdp.clipping.objective import specs_of
from keras_gdp.training import _keras
from keras_gdp.training.objective import model_objective

L = keras.layers
ROWS = 5


def model_of(call, dtype=None):
    inputs = keras.Input((4,))
    return keras.Model(inputs, call(L.Dense(4, dtype=dtype)(inputs)))


def complex_predictions():
    class Paired(keras.layers.Layer):
        def call(self, x):
            return tf.complex(x[:, :2], x[:, 2:])

        def compute_output_spec(self, x):
            return keras.KerasTensor((x.shape[0], 2), dtype="complex64")

    def loss(y, y_pred):
        return tf.reduce_sum(tf.square(tf.abs(y_pred) - y[:, :2]), axis=-1)

    return model_of(Paired()), loss


def integer_predictions():
    return model_of(lambda x: [x, keras.ops.argmax(x, axis=-1)]), ["mse", None]


def same_predictions_twice():
    return model_of(lambda x: [x, x]), ["mse", "mae"]


def weights_that_are_not_trained():
    features = keras.Sequential([keras.Input((4,)), L.Dense(3, activation="tanh")])

    def loss(y, y_pred):
        return tf.reduce_mean(tf.square(features(y_pred) - features(y)), axis=-1)

    return model_of(lambda x: x), loss


def condition():
    def loss(y, y_pred):
        return tf.cond(
            tf.reduce_sum(y) > 0,
            lambda: tf.reduce_sum(y_pred),
            lambda: tf.reduce_sum(y_pred**2),
        )

    return model_of(lambda x: x), loss


def loop():
    def loss(y, y_pred):
        del y
        return tf.reduce_sum(tf.map_fn(tf.sin, y_pred), axis=-1)

    return model_of(lambda x: x), loss


def own_gradient():
    @tf.custom_gradient
    def halved(x):
        return tf.sin(x), lambda upstream: 0.5 * upstream * tf.cos(x)

    def loss(y, y_pred):
        del y
        return tf.reduce_sum(halved(y_pred), axis=-1)

    return model_of(lambda x: x), loss


KINDS = [
    complex_predictions,
    integer_predictions,
    same_predictions_twice,
    weights_that_are_not_trained,
    condition,
    loop,
    own_gradient,
]


def clipped_sums(model, losses, loss_scale=1.0):
    """Returns `(engine chosen, expected result, result)`."""
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(2, ROWS, 4)).astype("float32")
    model.compile("sgd", losses)
    y = [y, None if losses[1] is None else y] if isinstance(losses, list) else y
    batch = tf.nest.map_structure(
        lambda leaf: None if leaf is None else tf.constant(leaf), (x, y, None)
    )
    _keras.build(model, batch)
    objective, _ = model_objective(model, loss_scale)
    chosen, reason = choose_engine("auto", Flat(1e-3), None, objective, specs_of(batch))
    present = tf.ones([ROWS], tf.bool)
    expected = ENGINES["loop"](Flat(1e-3)).clip(objective, batch, present)
    result = ENGINES["bookkeeping"](Flat(1e-3)).clip(objective, batch, present)
    return (chosen.name, reason), expected, result


def check(expected, result, tolerance):
    np.testing.assert_allclose(
        result.squared_norms, expected.squared_norms, rtol=tolerance
    )
    for one, other in zip(expected.gradients, result.gradients, strict=True):
        scale = np.abs(one).max()
        np.testing.assert_allclose(other, one, atol=tolerance * scale, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_bookkeeping_covers_losses_of_this_kind(kind):
    (name, reason), expected, result = clipped_sums(*kind())
    assert name == "bookkeeping", reason
    check(expected, result, 1e-5)


def test_the_loss_scale_keeps_gradients_in_half_precision_from_underflow():
    # The mean over many outputs has gradients of some 1e-7, which float16 rounds by
    # more than a tenth; 256 times as large it does by 0.1 %.
    inputs = keras.Input((4,))
    outputs = L.Dense(4, use_bias=False, dtype="mixed_float16")(inputs)
    model = keras.Model(inputs, outputs)

    def loss(y, y_pred):
        del y
        return tf.reduce_sum(tf.square(tf.cast(y_pred, tf.float32)), axis=-1) / 2**22

    _, expected, result = clipped_sums(model, loss, loss_scale=256.0)
    check(expected, result, 5e-3)


def test_a_loss_with_trained_weights_names_them():
    model = model_of(lambda x: x)
    kernel = model.layers[-1].kernel

    def loss(y, y_pred):
        penalty = 1e-6 * tf.reduce_sum(tf.square(kernel.value))
        return tf.reduce_mean(tf.square(y_pred - y), axis=-1) + penalty

    model.compile("sgd", loss)
    specs = tuple(tf.TensorSpec([ROWS, 4], tf.float32) for _ in range(2))
    engine, reason = choose_engine(
        "auto", Flat(1.0), None, model_objective(model)[0], (*specs, None)
    )
    assert engine.name != "bookkeeping"
    assert "kernel" in reason
    assert "outside of the call" in reason
