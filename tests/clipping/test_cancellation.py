"""Examples whose gradient is the small difference of large parts are clipped too."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_gdp.clipping import Flat
from keras_gdp.clipping.choose import ENGINES
from keras_gdp.training.objective import model_objective

L = keras.layers
ROWS = 33


def inner_product(y, y_pred):
    """Hands `y` to the output as its gradient."""
    return tf.reduce_sum(y * y_pred, axis=list(range(1, len(y_pred.shape))))


def dense(tokens, bias):
    def make():
        layer = L.Dense(8, use_bias=bias, kernel_initializer="zeros")
        return keras.Sequential([keras.Input((tokens, 8)), layer])

    def x(generator):
        return np.repeat(generator.normal(size=(ROWS, 1, 8)), tokens, axis=1)

    return make, x, (tokens, 8)


def wide_dense():
    def make():
        layer = L.Dense(64, use_bias=False, kernel_initializer="zeros")
        return keras.Sequential([keras.Input((2, 64)), layer])

    def x(generator):
        return np.repeat(generator.normal(size=(ROWS, 1, 64)), 2, axis=1)

    return make, x, (2, 64)


def embedding(tokens):
    def make():
        layer = L.Embedding(3, 8, embeddings_initializer="zeros")
        return keras.Sequential([keras.Input((tokens,), dtype="int32"), layer])

    def x(generator):
        ids = generator.integers(0, 3, (ROWS, tokens))
        ids[-1] = 1
        return ids.astype("int32")

    return make, x, (tokens, 8)


def convolution(window):
    def make():
        layer = L.Conv1D(8, window, padding="same", kernel_initializer="zeros")
        return keras.Sequential([keras.Input((6, 8)), layer])

    def x(generator):
        return np.repeat(generator.normal(size=(ROWS, 1, 8)), 6, axis=1)

    return make, x, (6, 8)


def twice():
    def make():
        layer = L.Dense(8, kernel_initializer="zeros")
        inputs = keras.Input((8,))
        outputs = L.Concatenate(axis=1)(
            [L.Reshape((1, 8))(layer(inputs)), L.Reshape((1, 8))(layer(inputs))]
        )
        return keras.Model(inputs, outputs)

    return make, lambda generator: generator.normal(size=(ROWS, 8)), (2, 8)


def recurrent(cls):
    def make():
        layer = cls(8, return_sequences=True, kernel_initializer="zeros")
        return keras.Sequential([keras.Input((4, 8)), layer])

    def x(generator):
        return np.repeat(generator.normal(size=(ROWS, 1, 8)), 4, axis=1)

    return make, x, (4, 8)


CASES = {
    "dense": dense(2, False),
    "dense, four tokens": dense(4, False),
    "dense with bias": dense(2, True),
    "dense, Gram form": wide_dense(),
    "embedding": embedding(4),
    "embedding, long": embedding(64),
    "convolution": convolution(1),
    "wide convolution": convolution(3),
    "a layer used twice": twice(),
    "SimpleRNN": recurrent(L.SimpleRNN),
    "GRU": recurrent(L.GRU),
}


@pytest.mark.parametrize("engine", ["bookkeeping", "reweight"])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e10])
@pytest.mark.parametrize("name", list(CASES))
def test_an_example_moves_the_sum_by_no_more_than_the_clip_norm(name, size, engine):
    make, x, shape = CASES[name]
    generator = np.random.default_rng(0)
    model = make()
    model.compile("sgd", inner_product)
    objective, _ = model_objective(model)
    x = x(generator)
    x = x if x.dtype == np.int32 else x.astype("float32")
    y = generator.normal(size=(ROWS, *shape))
    # The last example: parts that cancel but for one in ten thousand, or exactly.
    signs = (-1.0) ** np.arange(shape[0])[:, None] * np.ones(shape)
    for rest in (1e-4, 0.0):
        y[-1] = size * (signs * y[-1, :1] + rest * generator.normal(size=shape))
        batch = (tf.constant(x), tf.constant(y.astype("float32")), None)

        @tf.function(autograph=False)
        def clip(present, batch=batch):
            result = ENGINES[engine](Flat(1.0)).clip(objective, batch, present)
            return tf.concat([tf.reshape(g, [-1]) for g in result.gradients], 0)

        everyone = np.ones(ROWS, bool)
        without = np.arange(ROWS) < ROWS - 1
        moved = clip(tf.constant(everyone)) - clip(tf.constant(without))
        assert np.linalg.norm(moved) <= 1.001
