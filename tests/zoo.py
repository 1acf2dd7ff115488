"""Small models of every kind, with data that fits them."""

import keras
import numpy as np

L = keras.layers


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = L.Dense(5, activation="tanh")
        self.out = L.Dense(1)

    def call(self, inputs, training=False):
        return self.out(self.hidden(inputs))


def mlp():
    model = keras.Sequential(
        [keras.Input((4,)), L.Dense(5, activation="relu"), L.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, loss, lambda r, n: (r.normal(size=(n, 4)), r.integers(0, 3, n))


def subclassed():
    return (
        Subclassed(),
        "mse",
        lambda r, n: (r.normal(size=(n, 4)), r.normal(size=(n, 1))),
    )


def cnn():
    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            L.Conv2D(3, 3, strides=2, padding="same", activation="tanh"),
            L.MaxPooling2D(2),
            L.Flatten(),
            L.Dense(2),
        ]
    )
    return (
        model,
        "mse",
        lambda r, n: (r.normal(size=(n, 6, 6, 1)), r.normal(size=(n, 2))),
    )


def embedding():
    model = keras.Sequential(
        [
            keras.Input((7,), dtype="int32"),
            L.Embedding(11, 4, mask_zero=True),
            L.GlobalAveragePooling1D(),
            L.Dense(1, activation="sigmoid"),
        ]
    )
    return (
        model,
        "binary_crossentropy",
        lambda r, n: (
            r.integers(0, 4, (n, 7)).astype("int32"),
            r.integers(0, 2, (n, 1)).astype("float32"),
        ),
    )


def masked_sequence():
    inputs = keras.Input((5,), dtype="int32")
    x = L.Embedding(9, 4, mask_zero=True)(inputs)
    model = keras.Model(inputs, L.Dense(2)(x))
    return (
        model,
        "mse",
        lambda r, n: (
            np.sort(r.integers(0, 9, (n, 5)), axis=1)[:, ::-1].astype("int32"),
            r.normal(size=(n, 5, 2)),
        ),
    )


def several_inputs_and_outputs():
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    joined = L.Concatenate()([L.Dense(4)(a), L.Dense(4)(b)])
    model = keras.Model(
        {"a": a, "b": b},
        {"first": L.Dense(1, name="first")(joined), "second": L.Dense(2)(joined)},
    )
    return (
        model,
        {"first": "mse", "second": "mae"},
        lambda r, n: (
            {"a": r.normal(size=(n, 3)), "b": r.normal(size=(n, 2))},
            {"first": r.normal(size=(n, 1)), "second": r.normal(size=(n, 2))},
        ),
    )


def attention():
    inputs = keras.Input((4, 6))
    x = L.MultiHeadAttention(2, 3)(inputs, inputs)
    x = L.LayerNormalization()(x + inputs)
    model = keras.Model(inputs, L.Dense(1)(L.Flatten()(x)))
    return model, "mse", lambda r, n: (r.normal(size=(n, 4, 6)), r.normal(size=(n, 1)))


def recurrent():
    model = keras.Sequential([keras.Input((4, 3)), L.LSTM(3), L.Dense(1)])
    return model, "mse", lambda r, n: (r.normal(size=(n, 4, 3)), r.normal(size=(n, 1)))


def tied():
    inputs = keras.Input((3,))
    layer = L.Dense(3)
    model = keras.Model(inputs, layer(L.Activation("tanh")(layer(inputs))))
    return model, "mse", lambda r, n: (r.normal(size=(n, 3)), r.normal(size=(n, 3)))


def with_activity_loss():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            L.Dense(3, activity_regularizer="l2"),
            L.Dense(1, kernel_regularizer=keras.regularizers.L2(0.3)),
        ]
    )
    return model, "mse", lambda r, n: (r.normal(size=(n, 4)), r.normal(size=(n, 1)))


def frozen_batch_normalization():
    model = keras.Sequential(
        [keras.Input((4,)), L.Dense(3), L.BatchNormalization(), L.Dense(1)]
    )
    model.layers[1].trainable = False
    return model, "mse", lambda r, n: (r.normal(size=(n, 4)), r.normal(size=(n, 1)))


ZOO = {
    f.__name__: f
    for f in (
        mlp,
        subclassed,
        cnn,
        embedding,
        masked_sequence,
        several_inputs_and_outputs,
        attention,
        recurrent,
        tied,
        with_activity_loss,
        frozen_batch_normalization,
    )
}


def build(name, rows, seed=0):
    """Returns `(model, loss, x, y)` with fixed weights and `rows` rows of data."""
    keras.utils.set_random_seed(1)
    model, loss, data = ZOO[name]()
    x, y = keras.tree.map_structure(
        lambda a: a.astype("float32") if a.dtype == np.float64 else a,
        data(np.random.default_rng(seed), rows),
    )
    model(keras.tree.map_structure(lambda a: a[:1], x) if rows else data_row(data))
    return model, loss, x, y


def data_row(data):
    x, _ = data(np.random.default_rng(0), 1)
    return keras.tree.map_structure(
        lambda a: a.astype("float32") if a.dtype == np.float64 else a, x
    )
