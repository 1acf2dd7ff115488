"""`compile(optimizer=DP...)` is enough, for every kind of model and call."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_gdp as gdp
from keras_gdp.clipping import Flat
from keras_gdp.clipping.choose import choose_engine
from keras_gdp.training.objective import model_objective
from tests.zoo import ZOO, build

L = keras.layers


def sgd(**kwargs):
    defaults = {"l2_norm_clip": 1.0, "noise_multiplier": 0.0, "learning_rate": 1.0}
    return gdp.DPSGD(**{**defaults, **kwargs})


def linear(**compiled):
    """One weight w = 0 and the loss (w - y)^2."""
    model = keras.Sequential(
        [keras.Input((1,)), L.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    compiled = {"optimizer": sgd(), "loss": "mse", **compiled}
    model.compile(**compiled)
    return model


def weight(model):
    return float(model.get_weights()[0][0, 0])


ONES = np.ones((4, 1), "float32")
TARGETS = np.array([[10], [10], [-10], [0]], "float32")


@pytest.mark.parametrize("name", list(ZOO))
def test_every_model_trains_with_fit(name):
    model, loss, x, y = build(name, 8)
    before = model.get_weights()
    model.compile(gdp.DPSGD(0.1, l2_norm_clip=1.0, noise_multiplier=0.5), loss)
    history = model.fit(x, y, batch_size=4, epochs=2, verbose=0)
    assert int(model.optimizer.private_steps) == 4
    assert np.isfinite(history.history["loss"]).all()
    changed = [
        not np.array_equal(a, b)
        for a, b, v in zip(before, model.get_weights(), model.weights, strict=True)
        if v.trainable
    ]
    assert all(changed)


@pytest.mark.parametrize("name", list(ZOO))
def test_logs_are_those_of_plain_keras(name):
    model, loss, x, y = build(name, 6)
    model.compile(keras.optimizers.SGD(0.0), loss, metrics=_metrics(y))
    expected = model.fit(x, y, batch_size=6, verbose=0).history
    model.compile(
        gdp.DPSGD(0.0, l2_norm_clip=1.0, noise_multiplier=0.0),
        loss,
        metrics=_metrics(y),
    )
    logs = model.fit(x, y, batch_size=6, verbose=0).history
    assert logs.keys() == expected.keys()
    if name in {"masked_sequence", "with_activity_loss"}:
        return  # Keras divides these losses by sums over the whole batch.
    for key, values in expected.items():
        np.testing.assert_allclose(logs[key], values, rtol=1e-4, err_msg=key)


def _metrics(y):
    if not isinstance(y, dict) and y.dtype.kind == "i":
        return ["accuracy"]
    return {key: ["mae"] for key in y} if isinstance(y, dict) else ["mae"]


def test_the_clipped_mean_is_exact():
    model = linear()
    model.fit(ONES, TARGETS, batch_size=4, verbose=0)
    assert weight(model) == pytest.approx(0.25, abs=1e-6)


@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size", "none", "mean"])
def test_any_loss_reduction_means_the_same(reduction):
    model = linear(loss=keras.losses.MeanSquaredError(reduction=reduction))
    model.fit(ONES, TARGETS, batch_size=4, verbose=0)
    assert weight(model) == pytest.approx(0.25, abs=1e-6)


def test_the_divisor_is_declared_not_counted():
    for rows in (2, 3):
        model = linear(optimizer=sgd(batch_size=4))
        model.train_on_batch(ONES[:2], -10 * ONES[:2])
        assert weight(model) == pytest.approx(-0.5, abs=1e-6)
        del rows
    model = linear(optimizer=sgd())
    model.fit(np.ones((6, 1)), -10 * np.ones((6, 1)), batch_size=4, verbose=0)
    assert weight(model) == pytest.approx(-1.5, abs=1e-5)


def test_the_divisor_of_train_on_batch_stays_that_of_the_first_batch():
    model = linear()
    model.train_on_batch(ONES, -10 * ONES)
    model.train_on_batch(ONES[:2], -10 * ONES[:2])
    assert weight(model) == pytest.approx(-1.5, abs=1e-5)


def test_an_unknown_batch_size_is_an_error_before_the_first_step():
    model = linear()
    data = tf.data.Dataset.from_tensor_slices((ONES, TARGETS)).batch(3)
    with pytest.raises(ValueError, match="batch_size="):
        model.fit(data, verbose=0)
    assert weight(model) == 0
    model = linear(optimizer=sgd(batch_size=4))
    model.fit(data, verbose=0)
    # Batches of 3 and 1: (1 + 1 - 1) / 4, then a gradient of 2 * 0.25 over 4.
    assert weight(model) == pytest.approx(0.125, abs=1e-6)


def test_a_batch_size_beyond_the_data_stays_the_divisor():
    model = linear()
    model.fit(ONES, TARGETS, verbose=0)
    assert weight(model) == pytest.approx(1 / 32, abs=1e-6)


def test_sample_weights_scale_the_loss_before_clipping():
    model = linear(optimizer=sgd(l2_norm_clip=15.0))
    # Gradients -20, -20, +20, 0 times weights 0.5, 1, 0, 1: -10, -15 (clipped), 0, 0.
    weights = np.array([0.5, 1.0, 0.0, 1.0])
    model.fit(ONES, TARGETS, sample_weight=weights, batch_size=4, verbose=0)
    assert weight(model) == pytest.approx(25 / 4, rel=1e-5)


def test_class_weights_scale_the_loss_before_clipping():
    x, y = np.eye(2, dtype="float32"), np.array([0, 1])

    def kernels(**kwargs):
        model = keras.Sequential(
            [keras.Input((2,)), L.Dense(2, kernel_initializer="zeros", use_bias=False)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(sgd(l2_norm_clip=100.0), loss)
        model.fit(x, y, batch_size=2, verbose=0, **kwargs)
        return model.get_weights()[0]

    plain, weighted = kernels(), kernels(class_weight={0: 3.0, 1: 1.0})
    np.testing.assert_allclose(weighted[0], 3 * plain[0], rtol=1e-5)
    np.testing.assert_allclose(weighted[1], plain[1], rtol=1e-5)


def test_one_example_does_not_change_another_ones_clipped_gradient():
    model, loss, x, y = build("masked_sequence", 2)

    def update(x, y, rows):
        model.set_weights(start)
        model.compile(sgd(batch_size=1, l2_norm_clip=1e6), loss)
        model.train_on_batch(x[rows], y[rows])
        return [a - b for a, b in zip(model.get_weights(), start, strict=True)]

    start = model.get_weights()
    x[0], x[1] = [3, 2, 0, 0, 0], [1, 2, 3, 4, 0]
    both = update(x, y, [0, 1])
    parts = [update(x, y, [0]), update(x, y, [1])]
    for whole, first, second in zip(both, *parts, strict=True):
        np.testing.assert_allclose(whole, first + second, atol=1e-5)


@pytest.mark.parametrize("rows", [4, 2])
def test_regularizers_act_once_per_update_and_are_not_clipped(rows):
    model = keras.Sequential(
        [
            keras.Input((1,)),
            L.Dense(
                1,
                use_bias=False,
                kernel_initializer=keras.initializers.Constant(2.0),
                kernel_regularizer=keras.regularizers.L2(0.5),
            ),
        ]
    )
    model.compile(sgd(learning_rate=0.1, batch_size=4), "mse")
    model.train_on_batch(np.zeros((rows, 1)), np.zeros((rows, 1)))
    assert weight(model) == pytest.approx(1.8, abs=1e-6)
    assert model.layers[0].kernel.regularizer is not None


def test_add_loss_is_clipped_with_the_example():
    class Penalty(L.Layer):
        def call(self, x):
            self.add_loss(keras.ops.sum(x))
            return x

    model = keras.Sequential(
        [
            keras.Input((1,)),
            L.Dense(1, use_bias=False, kernel_initializer="zeros"),
            Penalty(),
        ]
    )
    model.compile(sgd(l2_norm_clip=100.0), "mse")
    model.fit(ONES, TARGETS, batch_size=4, verbose=0)
    # d/dw [(w - y)^2 + w] at w = 0: -19, -19, 21, 1.
    assert weight(model) == pytest.approx(16 / 4, rel=1e-5)


@pytest.mark.parametrize("clipping", ["loop", "vectorized"])
def test_a_layer_used_twice_counts_once_with_its_summed_gradient(clipping):
    class Square(L.Layer):
        def build(self, shape):
            self.w = self.add_weight(
                shape=(), initializer=keras.initializers.Constant(3.0)
            )

        def call(self, x):
            return self.w * x

    inputs = keras.Input((1,))
    layer = Square()
    model = keras.Model(inputs, layer(layer(inputs)))
    model.compile(
        sgd(clipping=clipping), lambda y_true, y_pred: keras.ops.sum(y_pred, axis=-1)
    )
    model.fit(ONES[:1], ONES[:1], batch_size=1, verbose=0)
    assert float(model.get_weights()[0]) == pytest.approx(2.0, abs=1e-5)


def test_frozen_layers_get_no_gradient_and_no_noise():
    model = keras.Sequential([keras.Input((4,)), L.Dense(3), L.Dense(1)])
    model.layers[0].trainable = False
    frozen = model.layers[0].get_weights()
    model.compile(sgd(noise_multiplier=1.0), "mse")
    model.fit(np.ones((8, 4)), np.ones((8, 1)), batch_size=4, verbose=0)
    for a, b in zip(model.layers[0].get_weights(), frozen, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("clipping", ["loop", "vectorized"])
def test_mixed_precision_clips_in_float32(policy, clipping):
    dtype = keras.dtype_policies.DTypePolicy(policy)
    model = keras.Sequential(
        [
            keras.Input((1,)),
            L.Dense(1, use_bias=False, kernel_initializer="zeros", dtype=dtype),
        ],
    )
    model.dtype_policy = dtype
    model.compile(sgd(clipping=clipping), "mse")
    wrapped = type(model.optimizer).__name__ == "LossScaleOptimizer"
    assert wrapped == (policy == "mixed_float16")
    model.fit(ONES, TARGETS, batch_size=4, epochs=2, verbose=0)
    # The second step's gradients are -1, -1, 1 and 2 * 0.25.
    assert weight(model) == pytest.approx(0.375, abs=1e-5)
    inner = model.optimizer.inner_optimizer if wrapped else model.optimizer
    assert int(inner.private_steps) == 2


# One example at a time, its float16 gradient overflows; bookkeeping multiplies inputs
# and output gradients in float32, where it does not.
@pytest.mark.parametrize(("clipping", "expected"), [("loop", 0.5), ("auto", 0.25)])
def test_float16_overflow_removes_the_example_and_is_charged(clipping, expected):
    dtype = keras.dtype_policies.DTypePolicy("mixed_float16")
    model = keras.Sequential(
        [
            keras.Input((1,)),
            L.Dense(1, use_bias=False, kernel_initializer="zeros", dtype=dtype),
        ],
    )
    model.dtype_policy = dtype
    model.compile(sgd(clipping=clipping), "mse")
    model.fit(np.array([[1], [1], [6e4], [1]]), TARGETS, batch_size=4, verbose=0)
    assert weight(model) == pytest.approx(expected, abs=1e-5)
    assert int(model.optimizer.inner_optimizer.private_steps) == 1


@pytest.mark.parametrize(
    "data",
    [
        lambda: (tf.data.Dataset.from_tensor_slices((ONES, TARGETS)).batch(4, True),),
        lambda: (ONES, TARGETS),
        lambda: (tf.constant(ONES), tf.constant(TARGETS)),
        lambda: (Batches(),),
    ],
    ids=["tf.data", "numpy", "tensors", "PyDataset"],
)
def test_every_data_source_works(data):
    model = linear(optimizer=sgd(batch_size=4))
    model.fit(*data(), batch_size=4 if len(data()) == 2 else None, verbose=0)
    assert weight(model) == pytest.approx(0.25, abs=1e-6)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return ONES, TARGETS


def test_dropout_models_train_in_every_engine():
    for clipping in ("loop", "vectorized"):
        model = keras.Sequential(
            [keras.Input((4,)), L.Dense(8), L.Dropout(0.5), L.Dense(1)]
        )
        model.compile(sgd(clipping=clipping, learning_rate=0.01), "mse")
        model.fit(np.ones((8, 4)), np.ones((8, 1)), batch_size=4, verbose=0)
        assert int(model.optimizer.private_steps) == 2


def test_one_forward_pass_serves_loss_metrics_and_gradient():
    calls = []

    class Counting(L.Layer):
        def call(self, x):
            calls.append(1)
            return x

    model = keras.Sequential([keras.Input((1,)), Counting(), L.Dense(1)])
    model.compile(sgd(clipping="loop"), "mse", metrics=["mae"], run_eagerly=True)
    model.train_on_batch(ONES, TARGETS)
    calls.clear()
    model.train_on_batch(ONES, TARGETS)
    assert len(calls) == 4


def test_models_that_cannot_be_vectorized_fall_back_to_the_loop_and_say_so():
    model = keras.Sequential(
        [keras.Input((5, 5, 4)), L.Conv2D(4, 3, groups=2), L.Flatten(), L.Dense(1)]
    )
    model.compile(sgd(clipping="auto"), "mse")
    engine, _ = choose_engine(
        "auto",
        Flat(1.0),
        None,
        model_objective(model)[0],
        (tf.TensorSpec([4, 5, 5, 4]), tf.TensorSpec([4, 1]), None),
    )
    assert engine.name != "vectorized"
    model.fit(np.ones((4, 5, 5, 4)), np.ones((4, 1)), batch_size=4, verbose=0)
    assert int(model.optimizer.private_steps) == 1


def test_explain_names_engine_clipping_and_layers():
    model, loss, _, _ = build("cnn", 2)
    model.compile(sgd(clipping="loop"), loss)
    text = gdp.explain_clipping(model)
    assert "Engine: loop" in text
    assert "L2 norm 1" in text
    for layer in ("conv2d", "dense"):
        assert layer in text


def test_untrained_private_model_learns_nothing_with_huge_noise():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 10)).astype("float32")
    y = (x[:, 0] > 0).astype("float32")
    model = keras.Sequential([keras.Input((10,)), L.Dense(1, activation="sigmoid")])
    model.compile(
        gdp.DPAdam(0.1, l2_norm_clip=1.0, noise_multiplier=1000.0, noise_seed=1),
        "binary_crossentropy",
    )
    model.fit(x, y, batch_size=100, epochs=5, verbose=0)
    correlation = np.corrcoef(model.predict(x, verbose=0)[:, 0], y)[0, 1]
    first = np.abs(model.get_weights()[0]).ravel()
    assert correlation < 0.8
    assert first[0] < 3 * np.median(first)


class Tracking(keras.Model):
    """Updates trackers where Keras' documentation does: in call and compute_loss."""

    def __init__(self):
        super().__init__()
        self.dense = L.Dense(2, kernel_initializer="ones")
        self.in_call = keras.metrics.Mean(name="in_call")
        self.mean = keras.metrics.Mean(name="mean")
        self.error = keras.metrics.MeanAbsoluteError(name="error")

    def call(self, x):
        y_pred = self.dense(x)
        self.in_call.update_state(y_pred)
        return y_pred

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight)
        self.mean.update_state(tf.reduce_mean(y_pred**2))
        self.error.update_state(y, y_pred)
        return loss


@pytest.mark.parametrize("engine", ["bookkeeping", "reweight", "vectorized", "loop"])
def test_trackers_show_the_same_in_every_engine_as_in_keras(engine):
    x = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
    y = np.ones((12, 2), "float32")

    def logs(optimizer):
        model = Tracking()
        model.compile(optimizer, "mse", metrics=["mae"])
        return model.fit(x, y, batch_size=6, verbose=0).history

    expected = logs(keras.optimizers.SGD(0.0))
    private = logs(sgd(learning_rate=0.0, clipping=engine))
    assert private.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(private[key], values, rtol=1e-5, err_msg=key)


def test_trackers_leave_padding_out():
    x, y = np.ones((40, 3), "float32"), np.ones((40, 2), "float32")
    model = Tracking()
    model.compile(sgd(learning_rate=0.0), "mse")
    train = gdp.PoissonDataset(x, y, batch_size=4, steps_per_epoch=5)
    logs = model.fit(train, verbose=0).history
    assert logs["mean"][0] == pytest.approx(9.0)
    assert logs["error"][0] == pytest.approx(2.0)


def test_explain_needs_no_targets():
    model = keras.Sequential([keras.Input((5,)), L.Dense(3, activation="softmax")])
    model.compile(sgd(), "sparse_categorical_crossentropy", metrics=["accuracy"])
    assert "bookkeeping" in gdp.explain_clipping(model)
