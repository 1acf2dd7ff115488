"""Couplings between the examples of a batch keep the fast engines away."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_gdp as gdp
from keras_gdp.clipping import Flat
from keras_gdp.clipping.choose import choose_engine
from keras_gdp.clipping.objective import specs_of
from keras_gdp.training.objective import model_objective

L = keras.layers


def layer(function):
    class Coupling(L.Layer):
        def call(self, x):
            return function(x)

        def compute_output_shape(self, shape):
            return shape

    return Coupling()


def mean_of_others(x):
    return x + 1e-4 * tf.stop_gradient(tf.reduce_mean(x, 0, keepdims=True))


def faint_mean(x):
    return x + 1e-8 * tf.reduce_mean(x, 0, keepdims=True)


def only_in_large_batches(x):
    largest = tf.stop_gradient(tf.reduce_max(tf.abs(x), axis=0, keepdims=True))
    return x / (1.0 + tf.where(tf.shape(x)[0] > 8, largest, 0.0))


def running_total(x):
    return x + 0.1 * tf.cumsum(x, axis=0)


def rank_in_batch(x):
    return x * (1.0 + tf.cast(tf.argsort(x, axis=0), x.dtype))


def neighbour(x):
    return x + 0.01 * tf.roll(x, 1, axis=0)


def engine_for(model, x, y=None, rows=64, loss="mse"):
    model.compile("sgd", loss)
    objective, _ = model_objective(model)
    if y is None:
        y = tf.zeros([rows, *model.output_shape[1:]])
    specs = specs_of((x, y, None))
    return choose_engine("auto", Flat(1.0), None, objective, specs)


@pytest.mark.parametrize(
    "function",
    [
        mean_of_others,
        faint_mean,
        only_in_large_batches,
        running_total,
        rank_in_batch,
        neighbour,
    ],
    ids=lambda f: f.__name__,
)
def test_examples_that_influence_others_are_noticed(function):
    model = keras.Sequential(
        [keras.Input((3,)), L.Dense(4), layer(function), L.Dense(1)]
    )
    engine, reason = engine_for(model, tf.zeros([64, 3]))
    assert engine.name in ("vectorized", "loop")
    assert "other examples" in reason


def test_what_acts_on_each_example_alone_is_not_mistaken_for_a_coupling():
    model = keras.Sequential(
        [
            keras.Input((6, 3)),
            L.Dense(4, activation="softmax"),
            L.LayerNormalization(),
            layer(lambda x: x / (1e-3 + tf.reduce_max(tf.abs(x), 1, keepdims=True))),
            L.LSTM(3),
            L.Dropout(0.5),
            L.Dense(1),
        ]
    )
    engine, reason = engine_for(model, tf.zeros([200, 6, 3]), rows=200)
    assert engine.name == "bookkeeping", reason


def test_string_inputs_are_left_to_the_other_engines():
    model = keras.Sequential(
        [
            keras.Input((1,), dtype="string"),
            L.StringLookup(vocabulary=["a", "b"]),
            L.Embedding(3, 4),
            L.Flatten(),
            L.Dense(1),
        ]
    )
    engine, reason = engine_for(model, tf.fill([8, 1], ""), rows=8)
    assert engine.name in ("vectorized", "loop")
    assert "strings" in reason


def test_state_that_is_written_for_several_rows_only_is_never_written():
    class Stats(L.Layer):
        def build(self, shape):
            self.mean = self.add_weight(
                shape=(3,), trainable=False, initializer="zeros", name="mean"
            )

        def call(self, x, training=False):
            if training and x.shape[0] != 1:
                self.mean.assign(tf.reduce_mean(x, 0))
            return x

    stats = Stats()
    model = keras.Sequential([keras.Input((3,)), stats, L.Dense(1)])
    model.compile(gdp.DPSGD(0.1, l2_norm_clip=1.0, noise_multiplier=1.0), "mse")
    x, y = np.ones((20, 3), "float32"), np.ones((20, 1), "float32")
    model.fit(x, y, batch_size=10, verbose=0)
    np.testing.assert_array_equal(stats.mean, np.zeros(3))
