"""The fast engine is used where it is right, and only there."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_gdp.clipping import Flat
from keras_gdp.clipping.choose import choose_engine
from keras_gdp.errors import UnsupportedLayerError
from keras_gdp.training.objective import model_objective
from tests.zoo import ZOO, build

L = keras.layers


def choice(model, name="auto", loss="mse", x=None, y=None):
    model.compile(loss=loss, optimizer="sgd")
    model._symbolic_build(data_batch=(x, y, None))
    objective, _ = model_objective(model)
    specs = keras.tree.map_structure(
        lambda a: tf.TensorSpec([None, *a.shape[1:]], tf.as_dtype(a.dtype)), (x, y)
    )
    return choose_engine(name, Flat(1.0), None, objective, (*specs, None))


@pytest.mark.parametrize("name", ZOO)
def test_common_models_get_the_fast_engine(name):
    model, loss, x, y = build(name, 4)
    before = [w.numpy() for w in model.weights]
    engine, reason = choice(model, loss=loss, x=x, y=y)
    if name == "with_activity_loss":
        assert engine.name == "vectorized"
        assert "adds a loss" in reason
    else:
        assert engine.name == "bookkeeping", reason
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)


@keras.saving.register_keras_serializable("keras_gdp_tests")
class BatchMean(L.Layer):
    def call(self, inputs):
        return inputs - keras.ops.mean(inputs, axis=0, keepdims=True)


@keras.saving.register_keras_serializable("keras_gdp_tests")
class Capacity(L.Layer):
    """Passes on the first rows of equal content only, as a full expert would."""

    def call(self, inputs):
        route = tf.cast(inputs[:, :1] > 0, tf.float32)
        order = tf.cumsum(route, axis=0)
        return inputs * tf.where(order <= 3, 1.0, 0.0)


@keras.saving.register_keras_serializable("keras_gdp_tests")
class Noisy(L.Layer):
    def call(self, inputs):
        return inputs + tf.random.normal(tf.shape(inputs))


class Outside(keras.Model):
    """Uses a layer's kernel without calling the layer."""

    def __init__(self, also_call):
        super().__init__()
        self.hidden = L.Dense(3)
        self.also_call = also_call

    def build(self, shape):
        self.hidden.build(shape)

    def call(self, inputs):
        outputs = keras.ops.matmul(inputs, self.hidden.kernel)
        return outputs + self.hidden(inputs) if self.also_call else outputs


class Own(keras.Model):
    def build(self, shape):
        self.matrix = self.add_weight(shape=(shape[-1], 3))

    def call(self, inputs):
        return keras.ops.matmul(inputs, self.matrix)


class Windows(keras.Model):
    """Folds an axis into the batch."""

    def __init__(self):
        super().__init__()
        self.hidden = L.Dense(3)

    def build(self, shape):
        self.hidden.build((None, 2))

    def call(self, inputs):
        folded = keras.ops.reshape(inputs, (-1, 2))
        return keras.ops.reshape(self.hidden(folded), (-1, 6))


class Looping(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = L.Dense(4)

    def build(self, shape):
        self.hidden.build(shape)

    def call(self, inputs):
        return keras.ops.fori_loop(0, 2, lambda i, x: self.hidden(x), inputs)


def layered(layer):
    return keras.Sequential([keras.Input((4,)), L.Dense(4), layer, L.Dense(3)])


REFUSED = {
    "batch mean": (lambda: layered(BatchMean()), "other examples"),
    "capacity": (lambda: layered(Capacity()), "other examples"),
    "unknown randomness": (lambda: layered(Noisy()), "other examples"),
    "kernel outside": (lambda: Outside(False), "outside of the call"),
    "kernel inside and outside": (lambda: Outside(True), "outside of the call"),
    "weights of the model": (Own, "weights of its own"),
    "folded batch": (Windows, "called on 16 rows"),
    "loop": (Looping, "inside of a loop|iterations|examples"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_fast_engines_cannot_do_is_refused_with_the_reason(name, seeded):
    make, reason = REFUSED[name]
    model = make()
    x = np.ones((2, 4), "float32")
    y = np.ones(model(x).shape, "float32")
    with pytest.raises(UnsupportedLayerError, match=reason):
        choice(model, "bookkeeping", x=x, y=y)
    engine, text = choice(model, x=x, y=y)
    assert engine.name in ("vectorized", "loop")
    assert "bookkeeping is not possible" in text


def test_the_vectorized_engine_is_refused_where_tensorflow_cannot_vectorise():
    def loss(y, y_pred):
        return tf.map_fn(lambda row: row[0] - row[1], (y, y_pred), tf.float32)

    model = keras.Sequential([keras.Input((4,)), L.Dense(3)])
    x, y = np.ones((2, 4), "float32"), np.ones((2, 3), "float32")
    with pytest.raises(UnsupportedLayerError, match="vectorized_map cannot convert"):
        choice(model, "vectorized", loss, x, y)
    engine, reason = choice(model, loss=loss, x=x, y=y)
    assert engine.name == "bookkeeping", reason


def test_a_named_vectorized_engine_is_not_refused_for_what_made_up_rows_lack():
    def loss(y, y_pred):
        checked = tf.debugging.assert_greater(y, 5.0)
        with tf.control_dependencies([checked]):
            return tf.reduce_mean(tf.square(y - y_pred), axis=-1)

    model = keras.Sequential([keras.Input((4,)), L.Dropout(0.5, seed=1), L.Dense(3)])
    x, y = np.ones((2, 4), "float32"), np.full((2, 3), 6.0, "float32")
    before = [w.numpy() for w in model.weights]
    engine, _ = choice(model, "vectorized", loss, x, y)
    assert engine.name == "vectorized"
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)


def test_the_vectorized_engine_is_tried_on_sizes_that_fit_a_window():
    model = keras.Sequential(
        [
            keras.Input((None, 2)),
            L.Conv1D(3, 5, activity_regularizer="l2"),
            L.GlobalMaxPooling1D(),
        ]
    )
    model.compile(loss="mse", optimizer="sgd")
    objective, _ = model_objective(model)
    specs = tf.TensorSpec([None, None, 2]), tf.TensorSpec([None, 3]), None
    for name in ("vectorized", "auto"):
        engine, reason = choose_engine(name, Flat(1.0), None, objective, specs)
        assert engine.name == "vectorized", reason


class SelfAttention(L.Layer):
    def build(self, shape):
        self.attention = L.MultiHeadAttention(2, 2, dropout=0.5)
        self.attention.build(shape, shape)

    def call(self, inputs, training=None):
        return self.attention(inputs, inputs, training=training)


def test_dropout_does_not_disturb_the_check(seeded):
    model = keras.Sequential(
        [
            keras.Input((4, 3)),
            L.LSTM(4, dropout=0.5, return_sequences=True),
            L.SpatialDropout1D(0.5),
            L.GaussianNoise(1.0),
            SelfAttention(),
            L.Flatten(),
            L.Dropout(0.5),
            L.Dense(2),
        ]
    )
    x, y = np.ones((2, 4, 3), "float32"), np.ones((2, 2), "float32")
    seeds = [w.numpy() for w in model.non_trainable_variables]
    engine, reason = choice(model, x=x, y=y)
    assert engine.name == "bookkeeping", reason
    for variable, seed in zip(model.non_trainable_variables, seeds, strict=True):
        np.testing.assert_array_equal(variable, seed)
    assert model.layers[0].cell.dropout == 0.5


def test_a_path_hidden_by_zero_weights_is_still_checked(seeded):
    model = keras.Sequential(
        [
            keras.Input((4,)),
            L.Dense(4),
            BatchMean(),
            L.Dense(3, kernel_initializer="zeros"),
        ]
    )
    x, y = np.ones((2, 4), "float32"), np.ones((2, 3), "float32")
    with pytest.raises(UnsupportedLayerError, match="other examples"):
        choice(model, "bookkeeping", x=x, y=y)
