"""Gradients without clipping and noise never reach the weights."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_gdp as gdp

L = keras.layers
X = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
Y = np.ones((8, 1), "float32")
ENGINES = ["auto", "loop", "vectorized"]


def optimizer(**kwargs):
    return gdp.DPSGD(1.0, **{"l2_norm_clip": 1.0, "noise_multiplier": 1.0, **kwargs})


def assert_refused(model, error, match, data=(X, Y), **kwargs):
    model(data[0][:1])
    before = model.get_weights()
    with pytest.raises(error, match=match):
        model.fit(*data, batch_size=4, verbose=0, **kwargs)
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


class OwnStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(self(x) - y))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("eager", [False, True])
def test_a_train_step_of_the_users_own_is_refused(eager):
    model = OwnStep()
    model.compile(optimizer(), "mse", run_eagerly=eager)
    assert_refused(model, gdp.UnclippedGradientsError, "private_step")


def test_a_train_step_that_calls_super_stays_private():
    class Wrapping(OwnStep):
        def train_step(self, data):
            return keras.Model.train_step(self, data)

    model = Wrapping()
    model.compile(optimizer(), "mse")
    model.fit(X, Y, batch_size=4, verbose=0)
    assert int(model.optimizer.private_steps) == 2


@pytest.mark.parametrize(
    "name",
    [n for n in gdp.__all__ if n.startswith("DP")],
)
def test_every_optimizer_refuses_foreign_gradients(name):
    private = getattr(gdp, name)(0.1, l2_norm_clip=1.0, noise_multiplier=1.0)
    variable = keras.Variable(np.ones(3, "float32"))
    gradient = tf.ones(3)
    for call in (
        lambda: private.apply([gradient], [variable]),
        lambda: private.apply_gradients([(gradient, variable)]),
    ):
        with pytest.raises(gdp.UnclippedGradientsError, match="private_step"):
            call()
    np.testing.assert_array_equal(variable, np.ones(3))


def test_foreign_gradients_are_refused_inside_wrappers():
    inner = optimizer()
    wrapper = keras.optimizers.LossScaleOptimizer(inner)
    variable = keras.Variable(np.ones(3, "float32"))
    with pytest.raises(gdp.UnclippedGradientsError):
        wrapper.apply_gradients([(tf.ones(3), variable)])


@pytest.mark.parametrize("clipping", ENGINES)
@pytest.mark.parametrize("eager", [False, True])
def test_trainable_batch_normalization_is_refused(clipping, eager):
    model = keras.Sequential(
        [keras.Input((6,)), L.Dense(4), L.BatchNormalization(name="bad"), L.Dense(1)]
    )
    model.compile(optimizer(clipping=clipping), "mse", run_eagerly=eager)
    assert_refused(model, gdp.UnsupportedLayerError, "'bad'.*GroupNormalization")


@pytest.mark.parametrize("clipping", ENGINES)
def test_any_layer_that_stores_data_is_refused(clipping):
    class Remembering(L.Layer):
        def build(self, shape):
            self.seen = self.add_weight(
                shape=(shape[-1],), trainable=False, name="seen", initializer="zeros"
            )

        def call(self, x):
            self.seen.assign(keras.ops.sum(x, axis=0))
            return x

    model = keras.Sequential([keras.Input((6,)), Remembering(), L.Dense(1)])
    model.compile(optimizer(clipping=clipping), "mse")
    assert_refused(model, gdp.UnsupportedLayerError, "seen")


def test_state_written_inside_a_loop_is_refused():
    class Hidden(L.Layer):
        def build(self, shape):
            self.seen = self.add_weight(
                shape=(), trainable=False, name="seen", initializer="zeros"
            )

        def call(self, x):
            def body(i):
                self.seen.assign(tf.reduce_sum(x))
                return [i + 1]

            steps = tf.while_loop(lambda i: i < 2, body, [tf.constant(0)])
            return x + tf.cast(steps[0], x.dtype)

        def compute_output_shape(self, shape):
            return shape

    model = keras.Sequential([keras.Input((6,)), Hidden(), L.Dense(1)])
    model.compile(optimizer(clipping="loop"), "mse")
    assert_refused(model, gdp.UnsupportedLayerError, "seen")


def test_stateful_recurrent_layers_are_refused():
    inputs = keras.Input(batch_shape=(1, 4, 3))
    model = keras.Model(inputs, L.Dense(1)(L.LSTM(2, stateful=True)(inputs)))
    model.compile(optimizer(batch_size=1), "mse")
    before = model.get_weights()
    with pytest.raises(gdp.UnsupportedLayerError, match="stateful=False"):
        model.fit(np.ones((1, 4, 3)), np.ones((1, 1)), batch_size=1, verbose=0)
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_several_replicas_are_refused():
    devices = tf.config.list_logical_devices("CPU")
    if len(devices) < 2:
        pytest.skip("needs two logical devices, which are fixed when TensorFlow starts")


def test_ragged_batches_are_refused_with_the_way_out():
    ragged = tf.ragged.constant([[1.0, 2.0], [3.0]])
    with pytest.raises(ValueError, match=r"to_tensor"):
        optimizer(batch_size=2).private_step(
            lambda row: tf.reduce_sum(row), ragged, [keras.Variable(1.0)]
        )


def test_plain_optimizers_are_left_alone():
    model = keras.Sequential([keras.Input((6,)), L.BatchNormalization(), L.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=4, verbose=0)


class Tracked(keras.Model):
    """Keeps a metric of its own; what is done with it is in the subclasses."""

    def __init__(self):
        super().__init__()
        self.dense = L.Dense(1)
        self.seen = keras.metrics.Mean(name="seen")
        self.memory = self.add_weight(name="memory", shape=(), trainable=False)

    def call(self, x, training=False):
        return self.dense(x)


class StoresInComputeMetrics(Tracked):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.memory.assign(tf.reduce_sum(y))
        return super().compute_metrics(x, y, y_pred, sample_weight)


class ReadsWhatItTracks(Tracked):
    def call(self, x, training=False):
        self.seen.update_state(x)
        return self.dense(x) + self.seen.result()


class PredictsFromWhatItTracks(Tracked):
    def call(self, x, training=False):
        if training:
            self.seen.update_state(x)
            return self.dense(x)
        return self.dense(x) + self.seen.result()


class WeighsTheLossByWhatItTracks(Tracked):
    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        self.seen.update_state(y)
        return super().compute_loss(x, y, y_pred, sample_weight) * self.seen.result()


class TracksInALayer(Tracked):
    def __init__(self):
        super().__init__()

        class Counting(L.Layer):
            def __init__(self):
                super().__init__()
                self.mean = keras.metrics.Mean(name="inner")

            def call(self, x):
                self.mean.update_state(x)
                return x * self.mean.result()

        self.dense = keras.Sequential([Counting(), L.Dense(1)])


@pytest.mark.parametrize("clipping", ENGINES)
@pytest.mark.parametrize(
    ("model", "named"),
    [
        (StoresInComputeMetrics, "memory"),
        (ReadsWhatItTracks, "metric"),
        (PredictsFromWhatItTracks, "metric"),
        (WeighsTheLossByWhatItTracks, "metric"),
        (TracksInALayer, "metric"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_metrics_must_not_carry_data_into_the_model(model, named, clipping):
    network = model()
    network.compile(optimizer(clipping=clipping), "mse")
    assert_refused(network, gdp.UnsupportedLayerError, named)


@pytest.mark.parametrize("bound", [1e-13, 1e-30, 5e-324])
def test_clip_norms_that_float32_norms_cannot_resolve_are_refused(bound):
    with pytest.raises(ValueError, match="underflow"):
        optimizer(l2_norm_clip=bound)


@pytest.mark.parametrize("eager", [False, True])
def test_a_fit_without_the_targets_of_its_loss_is_refused(eager):
    model = keras.Sequential([keras.Input((6,)), L.Dense(1)])
    model.compile(optimizer(), "mse", run_eagerly=eager)
    assert_refused(model, ValueError, "`y` of `fit` is missing.*'mse'", data=(X,))
    assert float(model.optimizer._divisor) == 4  # Declared by `fit(batch_size=4)`.


def test_a_loss_of_the_models_own_needs_no_targets():
    class Own(keras.Sequential):
        def compute_loss(self, x, y, y_pred, *args, **kwargs):
            return keras.ops.mean(keras.ops.square(y_pred))

    model = Own([keras.Input((6,)), L.Dense(1)])
    model.compile(optimizer(), "mse")
    model.fit(X, batch_size=4, verbose=0)
    assert int(model.optimizer.private_steps) == 2


def test_a_fit_without_examples_is_refused():
    model = keras.Sequential([keras.Input((6,)), L.Dense(1)])
    model.compile(optimizer(), "mse")
    assert_refused(model, ValueError, "`x` of `fit` holds no", (X[:0], Y[:0]))


@pytest.mark.parametrize("bad", [0, -1, 2.5, "32"])
def test_a_fit_with_a_batch_size_that_is_no_count_is_refused(bad):
    model = keras.Sequential([keras.Input((6,)), L.Dense(1)])
    model.compile(optimizer(), "mse")
    with pytest.raises((ValueError, TypeError), match="`batch_size`.*batch_size=32"):
        model.fit(X, Y, batch_size=bad, verbose=0)


def test_a_fit_without_weights_to_train_is_refused():
    model = keras.Sequential([keras.Input((6,)), L.Dense(1, trainable=False)])
    model.compile(optimizer(), "mse")
    assert_refused(model, ValueError, "must have trainable weights.*trainable = True")


@pytest.mark.parametrize("name", [n for n in gdp.__all__ if n.startswith("DP")])
def test_a_missing_noise_multiplier_names_the_public_class(name):
    with pytest.raises(TypeError, match=f"`noise_multiplier` of {name} is missing"):
        getattr(gdp, name)(0.1, l2_norm_clip=1.0)
    parameter = inspect.signature(getattr(gdp, name)).parameters["noise_multiplier"]
    assert parameter.default is inspect.Parameter.empty


@pytest.mark.parametrize(
    "bad",
    [
        {"noise_multiplier": 1e38, "l2_norm_clip": 100.0},
        {"noise_multiplier": 1e300},
        {"noise_multiplier": 1e-30, "l2_norm_clip": 1e-10},
        {"noise_multiplier": 1e20, "l2_norm_clip": gdp.clipping.AdaptiveQuantile()},
        {"l2_norm_clip": gdp.clipping.AdaptiveQuantile(0.5, 0.2, 1e300)},
    ],
    ids=str,
)
def test_noise_that_float32_cannot_hold_is_refused(bad):
    with pytest.raises(ValueError, match="`noise_multiplier` times the sensitivity"):
        optimizer(**bad)


def test_noise_is_checked_again_when_the_layers_are_known():
    private = optimizer(l2_norm_clip=gdp.clipping.PerLayer(1e30), noise_multiplier=1e10)
    with pytest.raises(ValueError, match="`noise_multiplier` times the sensitivity"):
        private.build([keras.Variable(np.ones(3, "float32"))])


@pytest.mark.parametrize("model", ["m", None, 3])
def test_explain_clipping_names_a_model_that_is_none(model):
    with pytest.raises(
        ValueError, match="`model` must be a compiled.*Pass the model itself"
    ):
        gdp.explain_clipping(model)
