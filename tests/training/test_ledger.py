"""The ledger follows the weights: through compile, restores and other training."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_gdp as gdp
from keras_gdp import accounting
from keras_gdp.sampling import Sampling

X = np.random.default_rng(0).normal(size=(100, 3)).astype("float32")
Y = np.ones((100, 1), "float32")


def sgd(noise_multiplier=2.0, **kwargs):
    return gdp.DPSGD(0.1, l2_norm_clip=1.0, noise_multiplier=noise_multiplier, **kwargs)


def model(optimizer=None, **compiled):
    network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    network.compile(optimizer or sgd(), "mse", **compiled)
    return network


def poisson(steps, **kwargs):
    return gdp.PoissonDataset(X, Y, batch_size=10, steps_per_epoch=steps, **kwargs)


def record(optimizer):
    return [(p.sampling.kind, p.noise_multiplier, p.steps) for p in optimizer.phases]


class During(keras.callbacks.Callback):
    """Calls a function after the given batch of the first epoch."""

    def __init__(self, action, after=0):
        super().__init__()
        self.action, self.after = action, after

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.after and self.action is not None:
            action, self.action = self.action, None
            action(self.model)


# Compiling anew -----------------------------------------------------------------------


def test_an_ordinary_optimizer_in_between_neither_erases_nor_hides_anything():
    trained = model()
    trained.fit(poisson(3), verbose=0)
    with pytest.warns(UserWarning, match="voids the guarantee"):
        trained.compile("sgd", "mse")
    trained.compile(sgd(3.0), "mse")
    assert record(trained.optimizer) == [("poisson", 2.0, 3)]
    assert int(trained.optimizer.private_steps) == 3


@pytest.mark.parametrize("how", ["fit", "train_on_batch"])
def test_training_without_privacy_after_training_with_it_costs_infinity(how):
    trained = model()
    trained.fit(poisson(3), verbose=0)
    with pytest.warns(UserWarning, match="voids the guarantee"):
        trained.compile("sgd", "mse")
    getattr(trained, how)(X[:10], Y[:10])
    trained.compile(sgd(), "mse")
    budget = gdp.PrivacyBudget(None, 1e-5)
    train = poisson(3)
    trained.fit(train, callbacks=[budget], verbose=0)
    assert budget.spent() == np.inf
    assert "gives no privacy" in " ".join(str(budget.statement()).split())


def test_ordinary_training_before_private_training_is_not_charged():
    network = model("sgd")
    network.fit(X, Y, verbose=0)
    network.compile(sgd(), "mse")
    network.fit(poisson(3), verbose=0)
    assert record(network.optimizer) == [("poisson", 2.0, 3)]


def test_histories_of_two_optimizers_add_up():
    other = model(sgd(0.7))
    other.fit(poisson(5), verbose=0)
    trained = model(sgd(0.3))
    trained.fit(poisson(2), verbose=0)
    # What the other optimizer carries in its state, and what the weights carry.
    trained.compile(other.optimizer, "mse")
    assert sorted(record(trained.optimizer)) == [
        ("poisson", 0.3, 2),
        ("poisson", 0.7, 5),
    ]
    assert int(trained.optimizer.private_steps) == 7


def test_compiling_back_and_forth_counts_each_step_once():
    first, second = sgd(), sgd(3.0)
    trained = model(first)
    trained.fit(poisson(3), verbose=0)
    trained.compile(second, "mse")
    trained.fit(poisson(2), verbose=0)
    expected = [("poisson", 2.0, 3), ("poisson", 3.0, 2)]
    for optimizer in (first, second, first, sgd(5.0)):
        trained.compile(optimizer, "mse")
        assert record(trained.optimizer) == expected
        assert int(trained.optimizer.private_steps) == 5


def test_the_limit_comes_along_as_the_steps_that_are_left():
    trained = model()
    trained.fit(poisson(3), verbose=0)
    trained.optimizer.max_private_steps.assign(10)
    trained.compile(sgd(), "mse")
    trained.fit(poisson(20), verbose=0)
    assert int(trained.optimizer.private_steps) == 10


def test_seeds_of_earlier_phases_stay_in_the_statement():
    trained = model(sgd(noise_seed=4))
    trained.fit(poisson(2, seed=5), verbose=0)
    trained.compile(sgd(), "mse")
    budget = gdp.PrivacyBudget(None, 1e-5)
    trained.fit(poisson(2), callbacks=[budget], verbose=0)
    text = " ".join(str(budget.statement()).split())
    assert "noise of an earlier phase is reproducible" in text
    assert "sampling of an earlier phase is reproducible" in text


def test_a_compiled_loss_is_checked_anew():
    def batchwise(y, y_pred):
        return (y - y_pred) ** 2 / tf.reduce_mean(y_pred)

    optimizer = sgd(clipping="bookkeeping")
    trained = model(optimizer)
    trained.fit(poisson(2), verbose=0)
    trained.compile(optimizer, batchwise)
    with pytest.raises(gdp.UnsupportedLayerError, match="couples the examples"):
        trained.fit(poisson(2), verbose=0)

    class Remembering(keras.losses.Loss):
        def __init__(self):
            super().__init__()
            self.seen = keras.Variable(0.0, name="seen")

        def call(self, y, y_pred):
            self.seen.assign(tf.reduce_sum(y))
            return (y - y_pred) ** 2

    trained.compile(optimizer, Remembering())
    with pytest.raises(gdp.UnsupportedLayerError, match="writes a variable"):
        trained.fit(poisson(2), verbose=0)


def test_a_layer_carries_its_ledger_into_other_models():
    back = keras.layers.Dense(4)
    first = keras.Sequential([keras.Input((3,)), back, keras.layers.Dense(1)])
    first.compile(sgd(), "mse")
    first.fit(poisson(5), verbose=0)
    for frozen in (False, True):
        back.trainable = not frozen
        second = keras.Sequential([keras.Input((3,)), back, keras.layers.Dense(1)])
        second.compile(sgd(3.0), "mse")
        second.fit(poisson(2), verbose=0)
        assert ("poisson", 2.0, 5) in record(second.optimizer)
    # Its weights were trained in the second model, too.
    first.fit(poisson(1), verbose=0)
    assert record(first.optimizer) == [("poisson", 2.0, 6), ("poisson", 3.0, 2)]


def test_steps_of_train_on_batch_belong_to_the_weights_too():
    back = keras.layers.Dense(4)
    first, second = (
        keras.Sequential([keras.Input((3,)), back, keras.layers.Dense(1)])
        for _ in range(2)
    )
    first.compile(sgd(2.0), "mse")
    second.compile(sgd(3.0), "mse")
    first.train_on_batch(X[:10], Y[:10])
    second.train_on_batch(X[:10], Y[:10])
    first.train_on_batch(X[:10], Y[:10])
    second.train_on_batch(X[:10], Y[:10])
    assert sorted(record(second.optimizer)) == [
        ("unknown", 2.0, 2),
        ("unknown", 3.0, 2),
    ]


def test_a_feature_extractor_carries_its_ledger():
    trained = model()
    trained.fit(poisson(5), verbose=0)
    outputs = keras.layers.Dense(1)(trained.layers[-1].output)
    head = keras.Model(trained.inputs, outputs)
    head.compile(sgd(), "mse")
    head.train_on_batch(X[:10], Y[:10])
    assert sorted(record(head.optimizer)) == [("poisson", 2.0, 5), ("unknown", 2.0, 1)]


def test_training_a_private_layer_in_an_ordinary_model_costs_infinity():
    back = keras.layers.Dense(4)
    first = keras.Sequential([keras.Input((3,)), back, keras.layers.Dense(1)])
    first.compile(sgd(), "mse")
    first.fit(poisson(5), verbose=0)
    second = keras.Sequential([keras.Input((3,)), back, keras.layers.Dense(1)])
    with pytest.warns(UserWarning, match="voids the guarantee"):
        second.compile("sgd", "mse")
    second.fit(X, Y, verbose=0)
    assert ("unknown", 0.0, 1) in record(first.optimizer)


@pytest.mark.parametrize("compiled", [False, True])
def test_private_steps_of_another_optimizer_belong_to_the_weights(compiled):
    trained = model()
    trained.fit(poisson(3), verbose=0)
    other = sgd(5.0, batch_size=10)

    def step():
        return other.private_step(
            lambda example: tf.reduce_sum(trained(example[None])),
            X[:10],
            trained.trainable_variables,
        )

    step = tf.function(step, autograph=False) if compiled else step
    for _ in range(2):
        step()
    expected = [("poisson", 2.0, 3), ("unknown", 5.0, 2)]
    assert record(other) == expected
    trained.fit(poisson(1), verbose=0)
    assert sorted(record(trained.optimizer)) == [
        ("poisson", 2.0, 4),
        ("unknown", 5.0, 2),
    ]


def test_ordinary_optimizers_in_a_train_step_of_ones_own_are_not_charged():
    private = sgd(batch_size=10)

    class Adversarial(keras.Model):
        def __init__(self):
            super().__init__()
            self.critic = keras.layers.Dense(1)
            self.critic.build((None, 3))
            self.built = True

        def train_step(self, data):
            x, _, weights = data
            variables = self.critic.trainable_variables
            losses = private.private_step(
                lambda example: tf.reduce_sum(self.critic(example[None])),
                x,
                variables,
                sample_weight=weights,
            )
            return {"loss": tf.reduce_mean(losses)}

    network = Adversarial()
    network.compile("sgd")
    for _ in range(2):
        train = poisson(3)
        budget = gdp.PrivacyBudget(None, 1e-5, dataset=train, optimizer=private)
        network.fit(train, callbacks=[budget], verbose=0)
    assert record(private) == [("poisson", 2.0, 6)]


# Restoring ----------------------------------------------------------------------------


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True


@pytest.mark.parametrize("how", ["weights", "checkpoint", "in a callback"])
def test_a_pass_that_a_restore_broke_off_is_charged_whole(tmp_path, how):
    def restore(target):
        if how == "checkpoint":
            tf.train.Checkpoint(model=target, optimizer=target.optimizer).restore(path)
        else:
            target.load_weights(path)

    class Restore(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            restore(self.model)

    trained, path = model(), str(tmp_path / "m.weights.h5")
    trained.fit(X, Y, batch_size=40, callbacks=[Stop()], verbose=0)
    if how == "checkpoint":
        saved = tf.train.Checkpoint(model=trained, optimizer=trained.optimizer)
        path = saved.save(str(tmp_path / "c"))
    else:
        trained.save_weights(path)
    other, callbacks = model(), [Stop()]
    if how == "in a callback":
        callbacks.append(Restore())
    else:
        restore(other)
    other.fit(X, Y, batch_size=40, callbacks=callbacks, verbose=0)
    # One step of each of two passes over three batches.
    assert int(other.optimizer.private_steps) == 2
    (phase,) = other.optimizer.phases
    assert phase.count == 2


# Steps that are not those of `fit` ----------------------------------------------------


@pytest.mark.parametrize("arrays", [True, False])
def test_train_on_batch_during_fit_is_charged_as_seeing_everything(arrays):
    trained = model()
    extra = During(lambda network: network.train_on_batch(X[:10], Y[:10]))
    data = (X, Y) if arrays else (poisson(10),)
    trained.fit(*data, batch_size=10 if arrays else None, callbacks=[extra], verbose=0)
    kind = "shuffle" if arrays else "poisson"
    assert record(trained.optimizer) == [(kind, 2.0, 10), ("unknown", 2.0, 1)]


def test_batches_that_are_used_twice_are_charged_as_seeing_everything():
    trained = model()
    train = poisson(10)
    budget = gdp.PrivacyBudget(None, 1e-5, dataset=train, optimizer=trained.optimizer)
    budget.set_model(trained)
    budget.on_train_begin()
    batch = train[0]
    budget.on_train_batch_begin(0)
    trained.train_on_batch(*batch)
    budget.on_train_batch_end(0)
    budget.on_train_batch_begin(1)
    trained.train_on_batch(*batch)
    with pytest.raises(gdp.SamplingMismatchError, match="2 private steps"):
        budget.on_train_batch_end(1)
    assert record(trained.optimizer) == [("unknown", 2.0, 2)]


def test_steps_before_and_after_the_batches_of_an_own_loop_are_charged_whole():
    trained = model()
    train = poisson(10)
    budget = gdp.PrivacyBudget(None, 1e-5, dataset=train, optimizer=trained.optimizer)
    budget.set_model(trained)
    budget.on_train_begin()
    trained.train_on_batch(*train[0])
    budget.on_train_batch_begin(0)
    trained.train_on_batch(*train[1])
    budget.on_train_batch_end(0)
    budget.on_train_end()
    trained.train_on_batch(*train[2])
    assert sorted(record(trained.optimizer)) == [
        ("poisson", 2.0, 1),
        ("unknown", 2.0, 2),
    ]


def test_objects_that_only_look_like_arrays_are_charged_per_step():
    class Batches(keras.utils.PyDataset):
        shape = (100, 3)

        def __len__(self):
            return 20

        def __getitem__(self, index):
            return X[:10], Y[:10]

    trained = model(sgd(batch_size=10))
    trained.fit(Batches(), verbose=0)
    assert record(trained.optimizer) == [("unknown", 2.0, 20)]


@pytest.mark.parametrize(
    ("options", "divisor"), [({}, 32), ({"batch_size": 50}, 50), ({"batch_size": 8}, 8)]
)
def test_fewer_examples_than_the_batch_size_are_seen_by_every_step(options, divisor):
    few, y = np.ones((8, 1), "float32"), np.full((8, 1), -10.0)
    trained = keras.Sequential(
        [
            keras.Input((1,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    private = gdp.DPSGD(1.0, l2_norm_clip=1.0, noise_multiplier=0.0)
    trained.compile(private, "mse")
    trained.fit(few, y, epochs=3, verbose=0, **options)
    # Eight clipped gradients of norm 1 each step; the divisor is the declared one, as
    # that of a last, incomplete batch.
    weight = float(trained.get_weights()[0][0, 0])
    assert weight == pytest.approx(-3 * 8 / divisor, rel=1e-5)
    (phase,) = private.phases
    assert (phase.sampling, phase.steps) == (Sampling("shuffle", 8, 8), 3)
    noisy = model(sgd(2.0))
    budget = gdp.PrivacyBudget(None, 1e-5)
    noisy.fit(X[:8], Y[:8], epochs=3, callbacks=[budget], verbose=0, **options)
    whole = accounting.ExactAccountant().compose(accounting.Gaussian(2.0), 3)
    assert budget.spent() == pytest.approx(whole.epsilon(1e-5))


def test_a_subclass_that_draws_otherwise_is_not_trusted():
    class Everything(gdp.PoissonDataset):
        def _batch(self, rng):
            return X, Y, np.ones(100, "float32")

    class Repeating(gdp.PoissonDataset):
        def __getitem__(self, index):
            return super().__getitem__(0)

    class Renamed(gdp.PoissonDataset):
        pass

    for kind in (Everything, Repeating):
        train = kind(X, Y, batch_size=10, steps_per_epoch=2)
        trained = model(sgd(batch_size=10))
        trained.fit(train, verbose=0)
        assert record(trained.optimizer) == [("unknown", 2.0, 2)]
        with pytest.raises(ValueError, match="overrides"):
            gdp.PrivacyBudget(1.0, 1e-5, dataset=train)
    trained = model()
    trained.fit(Renamed(X, Y, batch_size=10, steps_per_epoch=2), verbose=0)
    assert record(trained.optimizer) == [("poisson", 2.0, 2)]


# Limits and warnings ------------------------------------------------------------------


def test_fit_beyond_a_saved_limit_is_refused_unless_a_budget_may_raise_it():
    trained = model()
    trained.optimizer.max_private_steps.assign(3)
    with pytest.warns(UserWarning, match="changed nothing"):
        trained.fit(poisson(5), verbose=0)
    with pytest.raises(gdp.BudgetExceededError, match="3 private steps"):
        trained.fit(poisson(5), verbose=0)
    train = poisson(5)
    budget = gdp.PrivacyBudget(5.0, 1e-5, dataset=train)
    trained.fit(train, callbacks=[budget], verbose=0)
    assert int(trained.optimizer.private_steps) == 8


@pytest.mark.parametrize(
    ("callback", "warns"),
    [
        (lambda: keras.callbacks.EarlyStopping(monitor="loss"), True),
        (lambda: keras.callbacks.ReduceLROnPlateau(monitor="loss"), True),
        (lambda: keras.callbacks.EarlyStopping(monitor="val_loss"), False),
        (lambda: keras.callbacks.EarlyStopping(monitor="epsilon", mode="min"), False),
        (lambda: keras.callbacks.ModelCheckpoint("m.keras", monitor="loss"), False),
    ],
    ids=range(5),
)
def test_callbacks_that_decide_by_training_metrics_are_warned_of(
    callback, warns, monkeypatch
):
    trained = model()
    monkeypatch.setattr(
        keras.callbacks.ModelCheckpoint, "on_epoch_end", lambda *_: None
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained.fit(
            poisson(2), validation_data=(X, Y), callbacks=[callback()], verbose=0
        )
    found = [w for w in caught if "without noise" in str(w.message)]
    assert bool(found) == warns


def test_the_accounting_of_mixed_phases_is_their_composition():
    trained = model()
    trained.fit(poisson(4), verbose=0)
    trained.train_on_batch(X[:10], Y[:10])
    trained.fit(X, Y, batch_size=50, verbose=0)
    trained.fit(poisson(3), verbose=0)
    budget = gdp.PrivacyBudget(None, 1e-5)
    train = poisson(1)
    trained.fit(train, callbacks=[budget], verbose=0)
    expected = (
        accounting.ExactAccountant()
        .compose(accounting.SampledGaussian(2.0, 0.1), 8)
        .compose(accounting.Gaussian(2.0), 2)
    )
    assert budget.spent() == pytest.approx(expected.epsilon(1e-5), rel=1e-9)


def test_steps_that_a_full_ledger_cannot_record_are_refused():
    trained = model()
    ledger = trained.optimizer._ledger
    trained.train_on_batch(X, Y)
    for noise_multiplier in range(3, 66):
        settings = ledger._encode(Sampling("unknown"), float(noise_multiplier))
        ledger._add([*settings, 1.0])
    assert len(trained.optimizer.phases) == 64
    trained.train_on_batch(X, Y)
    trained.compile(sgd(100.0), "mse")
    before = trained.get_weights()
    for train in (
        lambda: trained.train_on_batch(X, Y),
        lambda: trained.fit(poisson(1), verbose=0),
    ):
        with pytest.raises(gdp.LedgerError, match="64 phases"):
            train()
    for weight, value in zip(trained.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, value)
    trained.compile(sgd(2.0), "mse")
    trained.train_on_batch(X, Y)
    assert sum(p.steps for p in trained.optimizer.phases) == 66
