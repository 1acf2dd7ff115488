"""`private_step`: privacy in training loops of the user's own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_gdp as gdp


def optimizer(**kwargs):
    return gdp.DPSGD(
        1.0, **{"l2_norm_clip": 1.0, "noise_multiplier": 0.0, "batch_size": 4, **kwargs}
    )


def squared_error(w):
    return lambda example: tf.square(w * example[0] - example[1])


BATCH = (np.ones(4, "float32"), np.array([10, 10, -10, 0], "float32"))


@pytest.mark.parametrize("clipping", ["auto", "loop", "vectorized"])
@pytest.mark.parametrize("compiled", [False, True, "xla"])
def test_it_clips_each_example_and_divides_by_the_declared_size(clipping, compiled):
    w, private = keras.Variable(0.0), optimizer(clipping=clipping)

    def step():
        return private.private_step(squared_error(w), BATCH, [w])

    if compiled:
        step = tf.function(step, jit_compile=compiled == "xla", autograph=False)
    losses = step()
    np.testing.assert_allclose(losses, [100, 100, 100, 0])
    assert float(w) == pytest.approx(0.25, abs=1e-6)
    assert int(private.private_steps) == 1
    step()
    assert int(private.private_steps) == 2


def test_the_noise_has_the_declared_size():
    w = keras.Variable(np.zeros((100, 100), "float32"))
    private = optimizer(noise_multiplier=2.0, l2_norm_clip=0.5, batch_size=10)
    private.private_step(lambda example: 0.0 * tf.reduce_sum(example), BATCH[0], [w])
    # Standard deviation 2.0 * 0.5 / 10; 10,000 samples: standard error 0.7 %.
    assert np.std(w) == pytest.approx(0.1, rel=0.05)


def test_steps_are_charged_without_amplification_unless_declared():
    w, private = keras.Variable(0.0), optimizer(noise_multiplier=1.0)
    private.private_step(squared_error(w), BATCH, [w])
    (phase,) = private.phases
    assert phase.sampling.kind == "unknown"
    assert phase.event == gdp.accounting.Gaussian(1.0)


def test_models_are_called_with_a_batch_axis_added():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    private = optimizer()

    def loss(example):
        return keras.losses.mean_squared_error(
            example["y"][None], model(example["x"][None], training=True)
        )

    batch = {"x": np.ones((4, 3), "float32"), "y": np.ones((4, 1), "float32")}
    before = model.get_weights()[0]
    private.private_step(loss, batch, model.trainable_variables)
    assert not np.array_equal(model.get_weights()[0], before)


def test_a_loss_that_is_no_scalar_is_refused():
    w = keras.Variable(np.ones(3, "float32"))
    with pytest.raises(ValueError, match="scalar"):
        optimizer().private_step(lambda example: w * example, BATCH[0], [w])


def test_batch_normalization_is_refused():
    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization()])
    before = model.get_weights()
    with pytest.raises(gdp.UnsupportedLayerError):
        optimizer().private_step(
            lambda example: tf.reduce_sum(model(example[None], training=True)),
            np.arange(12, dtype="float32").reshape(4, 3),
            model.trainable_variables,
        )
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_empty_batch_is_a_charged_step():
    w, private = keras.Variable(0.0), optimizer()
    losses = private.private_step(squared_error(w), (np.zeros(0), np.zeros(0)), [w])
    assert losses.shape == (0,)
    assert int(private.private_steps) == 1


class TwoOptimizers(keras.Model):
    def __init__(self, private):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.dense.build((None, 3))
        self.private = private
        self.built = True

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y, weights = data

        def loss(example):
            residual = self.dense(example[0][None])[0, 0] - example[1][0]
            return residual**2

        losses = self.private.private_step(
            loss, (x, y), self.trainable_variables, sample_weight=weights
        )
        return {"loss": tf.reduce_mean(losses)}


def test_a_budget_watches_the_optimizer_of_an_own_loop_and_only_during_fit():
    private = optimizer(noise_multiplier=2.0, batch_size=10)
    model = TwoOptimizers(private)
    model.compile()
    x, y = np.ones((100, 3), "float32"), np.ones((100, 1), "float32")
    train = gdp.PoissonDataset(x, y, batch_size=10)
    budget = gdp.PrivacyBudget(2.0, 1e-5, dataset=train, optimizer=private)
    history = model.fit(train, epochs=2, callbacks=[budget], verbose=0)
    assert len(history.history["epsilon"]) == 2
    (phase,) = private.phases
    assert (phase.sampling.kind, phase.steps) == ("poisson", 20)
    model.train_step((x, y, np.ones(100, "float32")))
    assert [p.sampling.kind for p in private.phases] == ["poisson", "unknown"]


def test_rows_of_weight_zero_contribute_nothing_and_weights_scale_the_loss():
    w, private = keras.Variable(0.0), optimizer(l2_norm_clip=1000.0)
    weights = np.array([0.0, 0.5, 1.0, 1.0], "float32")
    losses = private.private_step(squared_error(w), BATCH, [w], sample_weight=weights)
    np.testing.assert_allclose(losses, [100, 100, 100, 0])
    # Gradients -20, -20, +20, 0 by the weights, over 4.
    assert float(w) == pytest.approx(-10 / 4, rel=1e-5)


@pytest.mark.parametrize("clipping", ["loop", "vectorized"])
def test_padding_does_not_add_to_the_sensitivity(clipping):
    def update(present):
        w = keras.Variable(np.zeros(3, "float32"))
        private = optimizer(batch_size=1, clipping=clipping)
        x = np.zeros((4, 3), "float32")
        x[: len(present)] = np.reshape(present, (-1, 1))
        weights = (np.arange(4) < len(present)).astype("float32")
        private.private_step(
            # A padding row, of zeros, has a gradient of its own.
            lambda example: tf.reduce_sum(w * (example - 5.0)),
            x,
            [w],
            sample_weight=weights,
        )
        return w.numpy()

    difference = update([1.0, 9.0]) - update([1.0])
    assert np.linalg.norm(difference) <= 1 + 1e-6


def test_padded_batches_without_weights_are_refused():
    private = optimizer(noise_multiplier=2.0)
    w = keras.Variable(0.0)
    train = gdp.PoissonDataset(np.ones(100, "float32"), batch_size=10)
    budget = gdp.PrivacyBudget(None, 1e-5, dataset=train, optimizer=private)
    budget.on_train_begin()
    x, _, weights = train[0]

    def loss(example):
        return w * example

    budget.on_train_batch_begin(0)
    with pytest.raises(ValueError, match="padded with rows of weight 0"):
        private.private_step(loss, x, [w])
    private.private_step(loss, x, [w], sample_weight=weights)
    assert int(private.private_steps) == 1


@pytest.mark.parametrize("weights", [np.ones(3), np.ones((4, 2)), 1.0])
def test_weights_of_another_shape_are_refused(weights):
    w = keras.Variable(0.0)
    with pytest.raises(ValueError, match="`sample_weight`.*Reduce weights"):
        optimizer().private_step(squared_error(w), BATCH, [w], sample_weight=weights)


@pytest.mark.parametrize(
    ("variables", "received"),
    [([], "variables=\\[\\]"), ("single", "a single one"), ([1, 2], "1"), (3, "3")],
    ids=str,
)
def test_variables_are_a_list_of_variables(variables, received):
    w, private = keras.Variable(0.0), optimizer()
    given = w if variables == "single" else variables
    with pytest.raises(ValueError, match=f"`variables`.*Received.*{received}"):
        private.private_step(squared_error(w), BATCH, given)
    assert not private.built


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("mse", "`loss_fn` must be a function"),
        (lambda example: None, "`loss_fn` must return a scalar.*None"),
        (lambda example: 1, "floating-point scalar"),
    ],
    ids=["text", "none", "integer"],
)
def test_losses_that_are_none_are_refused_before_anything_is_fixed(loss, message):
    w, private = keras.Variable(0.0), optimizer(batch_size=None)
    with pytest.raises(ValueError, match=message):
        private.private_step(loss, BATCH, [w])
    assert int(private.private_steps) == 0
    assert float(private._divisor) == 0.0


@pytest.mark.parametrize(
    "batch",
    [
        [[1.0], [1.0, 2.0]],
        np.array([[1.0], [1.0, 2.0]], dtype=object),
        [np.ones(4), np.ones(3)],
        tf.ragged.constant([[1.0], [1.0, 2.0]]),
        3.0,
        (),
    ],
    ids=["lists", "objects", "lengths", "ragged", "scalar", "empty"],
)
def test_batches_without_rows_of_one_length_are_named(batch):
    w, private = keras.Variable(0.0), optimizer()
    with pytest.raises(ValueError, match="`batch` must be a dense tensor"):
        private.private_step(squared_error(w), batch, [w])
    assert not private.built
