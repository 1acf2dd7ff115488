"""Whole models: the fast engines against one example at a time."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_gdp.clipping import Flat
from keras_gdp.clipping.choose import ENGINES, choose_engine
from keras_gdp.clipping.objective import specs_of
from keras_gdp.training.objective import model_objective

L = keras.layers


def images(generator, rows):
    return generator.normal(size=(rows, 8, 8, 3)).astype("float32")


def tokens(generator, rows):
    return generator.integers(0, 11, (rows, 6)).astype("int32")


def series(generator, rows):
    return generator.normal(size=(rows, 6, 4)).astype("float32")


def resnet():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(4, 3, padding="same")(inputs)
    for filters, strides in ((4, 1), (6, 2)):
        y = L.Activation("relu")(L.GroupNormalization(2)(x))
        shortcut = L.Conv2D(filters, 1, strides=strides)(y)
        y = L.Conv2D(filters, 3, strides=strides, padding="same")(y)
        y = L.Activation("relu")(L.GroupNormalization(2)(y))
        x = shortcut + L.Conv2D(filters, 3, padding="same")(y)
    return keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling2D()(x))), images


def vgg():
    layers = [keras.Input((8, 8, 3))]
    for filters in (4, 6):
        layers += [
            L.Conv2D(filters, 3, padding="same", activation="relu"),
            L.Conv2D(filters, 3, padding="same", activation="relu"),
            L.MaxPooling2D(),
        ]
    layers += [L.Flatten(), L.Dense(8, activation="relu"), L.Dropout(0.5), L.Dense(3)]
    return keras.Sequential(layers), images


def mobile_net():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(8, 3, strides=2, padding="same", activation="relu6")(inputs)
    y = L.Conv2D(16, 1, use_bias=False)(x)
    y = L.LayerNormalization()(y)
    y = L.DepthwiseConv2D(3, padding="same", activation="relu6")(y)
    x = x + L.Conv2D(8, 1)(y)
    x = L.SeparableConv2D(6, 3)(x)
    return keras.Model(inputs, L.Dense(3)(L.GlobalMaxPooling2D()(x))), images


def autoencoder():
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            L.Conv2D(4, 3, strides=2, padding="same", activation="tanh"),
            L.Conv2DTranspose(4, 3, strides=2, padding="same", activation="tanh"),
            L.Conv2D(3, 3, padding="same"),
            L.Flatten(),
            L.Dense(3),
        ]
    ), images


def simple_rnn():
    return keras.Sequential([keras.Input((6, 4)), L.SimpleRNN(5), L.Dense(3)]), series


def gru():
    layers = [L.Embedding(11, 4, mask_zero=True), L.GRU(5), L.Dense(3)]
    return keras.Sequential([keras.Input((6,), dtype="int32"), *layers]), tokens


def stacked_lstm():
    layers = [L.LSTM(5, return_sequences=True), L.LSTM(4), L.Dense(3)]
    return keras.Sequential([keras.Input((6, 4)), *layers]), series


def bidirectional():
    layers = [L.Embedding(11, 4), L.Bidirectional(L.LSTM(3)), L.Dense(3)]
    return keras.Sequential([keras.Input((6,), dtype="int32"), *layers]), tokens


def transformer():
    inputs = keras.Input((6,), dtype="int32")
    positions = L.Embedding(6, 8)(keras.ops.arange(6)[None] + 0 * inputs)
    x = L.Embedding(11, 8)(inputs) + positions
    for _ in range(2):
        x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 4)(x, x))
        x = L.LayerNormalization()(x + L.Dense(8)(L.Dense(12, activation="gelu")(x)))
    return keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling1D()(x))), tokens


def hybrid():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(6, 3, strides=2, activation="relu")(inputs)
    x = L.Reshape((9, 6))(x)
    x = x + L.GroupQueryAttention(4, 4, 2)(x, x)
    x = L.RMSNormalization()(x)
    return keras.Model(inputs, L.Dense(3)(L.Flatten()(x))), images


def two_towers():
    users, items = (keras.Input((3,), dtype="int32", name=n) for n in ("user", "item"))
    embedding, tower = L.Embedding(11, 4), L.Dense(5, activation="tanh")

    def encode(ids):
        return tower(L.GlobalAveragePooling1D()(embedding(ids)))

    scores = L.Dot(1)([encode(users), encode(items)])
    model = keras.Model({"user": users, "item": items}, L.Dense(3)(scores))

    def data(generator, rows):
        return {
            name: generator.integers(0, 11, (rows, 3)).astype("int32")
            for name in ("user", "item")
        }

    return model, data


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.body = keras.Sequential([L.Dense(5, activation="tanh"), L.Dense(4)])
        self.gate = L.Dense(4, activation="sigmoid")
        self.head = L.Dense(3)

    def call(self, x, training=False):
        x = keras.ops.mean(x, axis=1)
        hidden = self.body(x)
        return self.head(hidden * self.gate(x) + self.body(2.0 * x))


def subclassed():
    return Subclassed(), series


MODELS = {
    f.__name__: f
    for f in (
        resnet,
        vgg,
        mobile_net,
        autoencoder,
        simple_rnn,
        gru,
        stacked_lstm,
        bidirectional,
        transformer,
        hybrid,
        two_towers,
        subclassed,
    )
}


@pytest.mark.parametrize("name", list(MODELS))
def test_fast_engines_equal_one_example_at_a_time(name):
    keras.utils.set_random_seed(0)
    model, data = MODELS[name]()
    generator = np.random.default_rng(0)
    x = data(generator, 5)
    model(keras.tree.map_structure(lambda a: a[:1], x))
    for layer in model._flatten_layers():
        if isinstance(layer, L.Dropout):
            layer.rate = 0.0
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    objective, _ = model_objective(model)
    y = generator.integers(0, 3, 5)
    batch = (keras.tree.map_structure(tf.constant, x), tf.constant(y), None)
    engine, reason = choose_engine("auto", Flat(0.3), None, objective, specs_of(batch))
    assert engine.name == "bookkeeping", reason
    results = {}
    for kind in ("loop", "bookkeeping", "reweight"):
        # Two rows at a time, the last chunk with one absent row.
        engine = ENGINES[kind](Flat(0.3), physical_batch_size=2)
        present = tf.constant([True, True, False, True, True])
        results[kind] = engine.clip(objective, batch, present)
    expected = results.pop("loop")
    norms = np.sqrt(np.sum(expected.squared_norms, axis=1))
    assert (norms > 0.3).any()
    scale = max(np.abs(g).max() for g in expected.gradients)
    for result in results.values():
        np.testing.assert_allclose(
            np.sqrt(np.sum(result.squared_norms, axis=1)), norms, rtol=1e-5
        )
        for one, other in zip(expected.gradients, result.gradients, strict=True):
            np.testing.assert_allclose(other, one, atol=1e-5 * scale, rtol=0)
