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
from keras_gdp.training.row_losses import losses_at_once

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


K = keras.losses


def predictions(loss, y, weights=None, width=4, loss_weights=None, model=None):
    """Returns a compiled model and rows `(x, y, y_pred, sample_weight)` for it."""
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
    inputs = keras.Input((4,))
    model = model or keras.Model(inputs, L.Dense(width, "sigmoid")(inputs))
    model.compile("sgd", loss, loss_weights=loss_weights)
    x, y = tf.constant(x), tf.constant(y)
    _keras.build(model, (x, y, None))
    weights = None if weights is None else tf.constant(weights)
    return model, (x, y, model(x), weights)


LABELS = np.arange(ROWS) % 4
SHARES = np.random.default_rng(1).uniform(0.1, 0.9, (ROWS, 4)).astype("float32")
# Rows that a loss of the whole batch would mix up: some of them are all 0 and 1.
ROUNDED = np.where(np.arange(ROWS)[:, None] < 2, np.round(SHARES), SHARES)


@pytest.mark.parametrize("weights", [None, np.arange(ROWS, dtype="float32")])
@pytest.mark.parametrize(
    ("loss", "y", "width"),
    [
        (K.SparseCategoricalCrossentropy(), LABELS, 4),
        (K.SparseCategoricalCrossentropy(reduction="sum"), LABELS[:, None], 4),
        ("sparse_categorical_crossentropy", LABELS, 4),
        (K.BinaryCrossentropy(label_smoothing=0.1), LABELS % 2, 1),
        *(
            (loss, ROUNDED, 4)
            for loss in [
                "mse",
                "mae",
                "msle",
                "mape",
                "kl_divergence",
                "poisson",
                K.Huber(0.1, reduction="none"),
                K.LogCosh(),
                K.BinaryCrossentropy(from_logits=True),
                K.BinaryFocalCrossentropy(),
                K.CategoricalCrossentropy(label_smoothing=0.1),
                K.CategoricalFocalCrossentropy(),
            ]
        ),
    ],
)
def test_losses_at_once_are_those_of_each_row_alone(loss, y, width, weights):
    model, rows = predictions(loss, y, weights, width, loss_weights=0.5)
    losses = losses_at_once(model, rows)
    assert losses.shape == (ROWS,)
    objective, _ = model_objective(model)
    for i in range(ROWS):
        x, y, _, weight = (None if leaf is None else leaf[i : i + 1] for leaf in rows)
        alone, _ = objective.example_loss((x, y, weight))
        np.testing.assert_allclose(losses[i], alone, rtol=1e-5)


class Doubled(K.MeanSquaredError):
    def call(self, y_true, y_pred):
        return 2 * super().call(y_true, y_pred)


class WithOwnLoss(keras.Model):
    def compute_loss(self, *args, **kwargs):
        return 2 * super().compute_loss(*args, **kwargs)


def with_own_loss():
    inputs = keras.Input((4,))
    return WithOwnLoss(inputs, L.Dense(4)(inputs))


def sequence_model():
    inputs = keras.Input((4,))
    return keras.Model(inputs, L.Reshape((2, 2))(L.Dense(4)(inputs)))


@pytest.mark.parametrize(
    ("loss", "y", "options"),
    [
        ("hinge", ROUNDED, {}),
        (lambda y, y_pred: tf.reduce_mean(tf.square(y - y_pred), -1), SHARES, {}),
        (Doubled(), SHARES, {}),
        (K.MeanSquaredError(reduction="mean_with_sample_weight"), SHARES, {}),
        ("mse", SHARES, {"weights": np.ones((ROWS, 1), "float32")}),
        ("mse", SHARES[:, :1], {}),
        ("mse", SHARES[:, 0], {"width": ROWS}),
        ("mse", SHARES, {"model": with_own_loss}),
        ("mse", SHARES.reshape(ROWS, 2, 2), {"model": sequence_model}),
        (K.SparseCategoricalCrossentropy(ignore_class=1), LABELS, {}),
        (K.BinaryCrossentropy(axis=0), SHARES, {}),
        (K.Dice(), SHARES, {}),
    ],
)
def test_losses_that_might_couple_rows_are_taken_row_by_row(loss, y, options):
    if "model" in options:
        options = options | {"model": options["model"]()}
    assert losses_at_once(*predictions(loss, y, **options)) is None


def test_losses_at_once_leave_the_reduction_and_regularizers_alone():
    inputs = keras.Input((4,))
    loss = K.MeanSquaredError()
    outputs = L.Dense(4, kernel_regularizer=keras.regularizers.L2(10.0))(inputs)
    _, expected, result = clipped_sums(keras.Model(inputs, outputs), loss)
    assert loss.reduction == "sum_over_batch_size"
    np.testing.assert_allclose(result.losses, expected.losses, rtol=1e-5)
    check(expected, result, 1e-5)
