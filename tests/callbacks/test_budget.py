import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_gdp as gdp
from keras_gdp import accounting
from keras_gdp.callbacks import ledger_file

X = np.random.default_rng(0).normal(size=(100, 3)).astype("float32")
Y = np.ones((100, 1), "float32")
DELTA = 1e-5


def model(noise_multiplier=2.0, **compiled):
    network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = gdp.DPSGD(0.1, l2_norm_clip=1.0, noise_multiplier=noise_multiplier)
    network.compile(optimizer, "mse", **compiled)
    return network


def poisson(**kwargs):
    return gdp.PoissonDataset(X, Y, **{"batch_size": 10, **kwargs})


def epsilon_of(steps, noise_multiplier=2.0, probability=0.1):
    event = accounting.SampledGaussian(noise_multiplier, probability)
    return accounting.ExactAccountant().compose(event, steps).epsilon(DELTA)


def steps_of(trained):
    return int(trained.optimizer.private_steps)


@pytest.mark.parametrize(
    "compiled",
    [{}, {"steps_per_execution": 4}, {"run_eagerly": True}, {"jit_compile": True}],
    ids=str,
)
def test_exactly_the_affordable_steps_are_taken(compiled):
    trained, train = model(**compiled), poisson()
    budget = gdp.PrivacyBudget(1.0001 * epsilon_of(10), DELTA, dataset=train)
    trained.fit(train, epochs=3, callbacks=[budget], verbose=0)
    assert steps_of(trained) == 10
    assert int(trained.optimizer.iterations) == 10
    assert budget.spent() == pytest.approx(epsilon_of(10), rel=1e-6)
    assert budget.spent() <= budget.epsilon
    assert budget.remaining_steps() == 0


def test_steps_beyond_the_limit_change_nothing():
    trained = model()
    trained.optimizer.max_private_steps.assign(2)
    for _ in range(2):
        trained.train_on_batch(X[:10], Y[:10])
    before = [v.numpy() for v in [*trained.weights, *trained.optimizer.variables]]
    for _ in range(3):
        trained.train_on_batch(X[:10], Y[:10])
    after = [v.numpy() for v in [*trained.weights, *trained.optimizer.variables]]
    for a, b in zip(after, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_training_resumes_within_the_same_budget_and_no_further():
    trained, train = model(), poisson(steps_per_epoch=4)
    epsilon = 1.0001 * epsilon_of(10)
    for _ in range(2):
        budget = gdp.PrivacyBudget(epsilon, DELTA, dataset=train)
        trained.fit(train, callbacks=[budget], verbose=0)
    assert steps_of(trained) == 8
    budget = gdp.PrivacyBudget(epsilon, DELTA, dataset=train)
    trained.fit(train, epochs=5, callbacks=[budget], verbose=0)
    assert steps_of(trained) == 10
    weights = trained.get_weights()
    budget = gdp.PrivacyBudget(epsilon, DELTA, dataset=train)
    with pytest.raises(gdp.BudgetExceededError, match="10 private steps"):
        trained.fit(train, callbacks=[budget], verbose=0)
    for a, b in zip(trained.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_budget_too_small_for_one_step_is_refused_before_it():
    trained, train = model(noise_multiplier=0.3), poisson()
    weights = trained.get_weights()
    with pytest.raises(gdp.BudgetExceededError, match="noise_multiplier"):
        trained.fit(
            train, callbacks=[gdp.PrivacyBudget(0.01, 1e-9, dataset=train)], verbose=0
        )
    for a, b in zip(trained.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_every_epoch_logs_epsilon_by_all_accountants_and_mu(tmp_path):
    trained, train = model(), poisson()
    budget = gdp.PrivacyBudget(None, DELTA, dataset=train)
    csv = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    history = trained.fit(train, epochs=2, callbacks=[budget, csv], verbose=0).history
    event = accounting.SampledGaussian(2.0, 0.1)
    for epoch, steps in enumerate((10, 20)):
        for name, key in (
            ("exact", "epsilon"),
            ("exact", "epsilon_exact"),
            ("rdp", "epsilon_rdp"),
            ("clt", "epsilon_clt"),
        ):
            accountant = accounting.make_accountant(name).compose(event, steps)
            assert history[key][epoch] == pytest.approx(accountant.epsilon(DELTA))
        assert history["mu"][epoch] == pytest.approx(accounting.mu_clt(2.0, 0.1, steps))
    header = (tmp_path / "log.csv").read_text().splitlines()[0]
    assert "epsilon_exact" in header
    assert "mu" in header


def test_the_chosen_accountant_limits():
    for name in ("exact", "rdp", "moments", "clt"):
        trained, train = model(), poisson()
        budget = gdp.PrivacyBudget(1.5, DELTA, dataset=train, accountant=name)
        trained.fit(train, epochs=100, callbacks=[budget], verbose=0)
        event = accounting.SampledGaussian(2.0, 0.1)
        taken = steps_of(trained)
        accountant = accounting.make_accountant(name)
        assert accountant.copy().compose(event, taken).epsilon(DELTA) <= 1.5
        assert accountant.compose(event, taken + 1).epsilon(DELTA) > 1.5


def test_plain_arrays_are_accounted_as_one_release_per_pass():
    trained = model()
    budget = gdp.PrivacyBudget(None, DELTA)
    trained.fit(X, Y, batch_size=40, epochs=3, callbacks=[budget], verbose=0)
    assert steps_of(trained) == 9
    expected = accounting.ExactAccountant().compose(accounting.Gaussian(2.0), 3)
    assert budget.spent() == pytest.approx(expected.epsilon(DELTA))
    assert budget.statement().mu == pytest.approx(math.sqrt(3) / 2)
    assert "PoissonDataset would cost" in str(budget.statement()).replace("\n    ", " ")


def test_interrupted_passes_are_charged_whole():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

    trained = model()
    budget = gdp.PrivacyBudget(None, DELTA)
    for _ in range(3):
        trained.fit(X, Y, batch_size=40, callbacks=[budget, Stop()], verbose=0)
    assert steps_of(trained) == 3
    expected = accounting.ExactAccountant().compose(accounting.Gaussian(2.0), 3)
    assert budget.spent() == pytest.approx(expected.epsilon(DELTA))


def test_shuffled_training_stops_after_the_last_affordable_pass():
    trained = model()
    two = accounting.ExactAccountant().compose(accounting.Gaussian(2.0), 2)
    budget = gdp.PrivacyBudget(1.001 * two.epsilon(DELTA), DELTA)
    trained.fit(X, Y, batch_size=40, epochs=5, callbacks=[budget], verbose=0)
    assert steps_of(trained) == 6


def test_steps_outside_of_fit_are_charged_without_amplification():
    trained, train = model(), poisson()
    trained.train_on_batch(X[:10], Y[:10])
    budget = gdp.PrivacyBudget(None, DELTA, dataset=train)
    trained.fit(train, callbacks=[budget], verbose=0)
    expected = (
        accounting.ExactAccountant()
        .compose(accounting.Gaussian(2.0))
        .compose(accounting.SampledGaussian(2.0, 0.1), 10)
    )
    assert budget.spent() == pytest.approx(expected.epsilon(DELTA))


def test_phases_with_different_sampling_are_composed():
    trained = model()
    for size in (10, 20):
        train = poisson(batch_size=size)
        budget = gdp.PrivacyBudget(None, DELTA, dataset=train)
        trained.fit(train, callbacks=[budget], verbose=0)
    expected = (
        accounting.ExactAccountant()
        .compose(accounting.SampledGaussian(2.0, 0.1), 10)
        .compose(accounting.SampledGaussian(2.0, 0.2), 5)
    )
    assert budget.spent() == pytest.approx(expected.epsilon(DELTA))


def test_uniform_sampling_is_accounted_under_replace_one():
    trained, train = model(), gdp.UniformDataset(X, Y, batch_size=10)
    budget = gdp.PrivacyBudget(None, DELTA, dataset=train)
    trained.fit(train, callbacks=[budget], verbose=0)
    expected = accounting.ExactAccountant("replace_one").compose(
        accounting.UniformSampledGaussian(2.0, 10, 100), 10
    )
    assert budget.spent() == pytest.approx(expected.epsilon(DELTA))
    assert budget.statement().relation == "replace_one"


def test_no_noise_is_infinite_epsilon_and_no_error():
    trained, train = model(noise_multiplier=0.0), poisson()
    budget = gdp.PrivacyBudget(None, DELTA, dataset=train)
    history = trained.fit(train, callbacks=[budget], verbose=0).history
    assert history["epsilon"] == [math.inf]
    statement = budget.statement()
    assert "infinity" in str(statement)
    assert "no privacy" in str(statement)
    assert json.loads(statement.to_json())["epsilon"] == "inf"
    budget = gdp.PrivacyBudget(10.0, DELTA, dataset=train)
    trained = model(noise_multiplier=0.0)
    with pytest.raises(gdp.BudgetExceededError):
        trained.fit(train, callbacks=[budget], verbose=0)


def test_epsilon_does_not_depend_on_the_clip_norm():
    spent = []
    for clip in (0.1, 10.0):
        network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        network.compile(gdp.DPSGD(0.1, l2_norm_clip=clip, noise_multiplier=2.0), "mse")
        train = poisson()
        budget = gdp.PrivacyBudget(None, DELTA, dataset=train)
        network.fit(train, callbacks=[budget], verbose=0)
        spent.append(budget.spent())
    assert spent[0] == spent[1]


# Statement ---------------------------------------------------------------------------


def test_the_statement_names_everything_the_guarantee_rests_on():
    trained, train = model(), poisson()
    budget = gdp.PrivacyBudget(3.0, DELTA, dataset=train)
    trained.fit(train, callbacks=[budget], verbose=0)
    statement = budget.statement()
    text = " ".join(str(statement).split())
    for part in (
        f"({budget.spent():.4g}, 1e-05)-differential privacy",
        "one training example",
        "adding or removing one example",
        "independently with probability 0.1",
        "L2 norm 1",
        "at most 1 when one example",
        "noise multiplier 2",
        "10 noised updates",
        "epsilon <= 3",
        "'exact' (chosen)",
        "'rdp'",
        "'moments'",
        "'clt'",
        "estimate",
        "metrics and losses shown during training",
        "validation",
        "hyper-parameters",
    ):
        assert part in text, part
    record = json.loads(statement.to_json())
    assert record == json.loads(json.dumps(statement.to_dict()))
    assert record["steps"] == 10
    assert record["epsilons"]["exact"] == record["epsilon"]


def test_the_statement_says_that_clipping_and_noise_are_those_of_the_last_phase():
    trained, train = model(), poisson()
    trained.fit(train, steps_per_epoch=1, verbose=0)
    first = gdp.PrivacyBudget(None, DELTA, optimizer=trained.optimizer)
    text = " ".join(str(first.statement()).split())
    assert "1 step with" in text
    assert "1 noised update " in text
    assert "last phase" not in text
    trained.compile(gdp.DPSGD(0.1, l2_norm_clip=0.5, noise_multiplier=3.0), "mse")
    trained.fit(train, steps_per_epoch=2, verbose=0)
    second = gdp.PrivacyBudget(None, DELTA, optimizer=trained.optimizer)
    text = " ".join(str(second.statement()).split())
    for part in (
        "1 step with noise multiplier 2",
        "2 steps with noise multiplier 3",
        "Clipping, in the last phase",
        "Noise, in the last phase",
        "3 noised updates",
    ):
        assert part in text, part


def test_seeds_are_reported():
    network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = gdp.DPSGD(0.1, l2_norm_clip=1.0, noise_multiplier=2.0, noise_seed=42)
    network.compile(optimizer, "mse")
    train = poisson(seed=7)
    budget = gdp.PrivacyBudget(None, DELTA, dataset=train)
    network.fit(train, callbacks=[budget], verbose=0)
    text = " ".join(str(budget.statement()).split())
    assert "noise_seed=42" in text
    assert "seed=7" in text


# Bad input and mismatches ------------------------------------------------------------

BAD = [
    ({"epsilon": 0.0}, "epsilon"),
    ({"epsilon": -1.0}, "epsilon"),
    ({"epsilon": math.nan}, "epsilon"),
    ({"delta": None}, "delta"),
    ({"delta": 0.0}, "delta"),
    ({"delta": 1.0}, "delta"),
    ({"delta": -0.1}, "delta"),
    ({"accountant": "prv"}, "'exact' or 'rdp' or 'moments' or 'clt'.*tightest"),
    ({"accountant": "Exact"}, "`accountant`.*Did you mean 'exact'"),
    ({"relation": "both"}, "`relation`.*one example"),
    ({"relation": "addremove"}, "Did you mean 'add_remove'"),
    ({"optimizer": "adam"}, "`optimizer`.*leave it out"),
    ({"sampling": "poisson", "num_examples": 100}, "batch_size"),
    ({"sampling": "poisson"}, "num_examples"),
    ({"sampling": "cyclic", "num_examples": 100, "batch_size": 10}, "sampling"),
    ({"sampling": "poisson", "num_examples": 10, "batch_size": 100}, "batch_size"),
    ({"dataset": [1, 2]}, "dataset"),
    ({"dataset": poisson(), "batch_size": 10}, "batch_size.*Leave them out"),
]


@pytest.mark.parametrize(("bad", "named"), BAD, ids=range(len(BAD)))
def test_bad_arguments_are_named(bad, named):
    with pytest.raises(ValueError, match=named):
        gdp.PrivacyBudget(**{"epsilon": 1.0, "delta": DELTA, **bad})


def assert_mismatch(budget, *data, error=gdp.SamplingMismatchError, **kwargs):
    trained = model()
    weights = trained.get_weights()
    with pytest.raises(error):
        trained.fit(*data, callbacks=[budget], verbose=0, **kwargs)
    assert steps_of(trained) == 0
    for a, b in zip(trained.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_fitting_other_data_than_the_callback_accounts_for_is_refused():
    assert_mismatch(gdp.PrivacyBudget(3, DELTA, dataset=poisson()), poisson())
    assert_mismatch(gdp.PrivacyBudget(3, DELTA, dataset=poisson()), X, Y, batch_size=10)
    declared = {"num_examples": 100, "batch_size": 10}
    assert_mismatch(
        gdp.PrivacyBudget(3, DELTA, sampling="poisson", **declared), X, Y, batch_size=10
    )
    assert_mismatch(
        gdp.PrivacyBudget(3, DELTA, sampling="shuffle", **declared), poisson()
    )
    assert_mismatch(
        gdp.PrivacyBudget(
            3, DELTA, sampling="shuffle", num_examples=1000, batch_size=10
        ),
        X,
        Y,
        batch_size=10,
    )
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10, drop_remainder=True)
    assert_mismatch(gdp.PrivacyBudget(3, DELTA), data, error=ValueError)
    assert_mismatch(gdp.PrivacyBudget(3, DELTA, dataset=poisson()), data)


def test_steps_that_the_dataset_did_not_serve_are_noticed():
    trained, train = model(), poisson()
    budget = gdp.PrivacyBudget(None, DELTA, dataset=train, optimizer=trained.optimizer)
    budget.set_model(trained)
    budget.on_train_begin()
    trained.train_on_batch(X[:10], Y[:10])
    with pytest.raises(gdp.SamplingMismatchError, match="1 private steps"):
        budget.on_train_batch_end(0)


def test_declared_sampling_of_other_sources_is_accepted_and_reported():
    trained = model()
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10, drop_remainder=True)
    budget = gdp.PrivacyBudget(
        None, DELTA, sampling="poisson", num_examples=100, batch_size=10
    )
    trained.fit(data, callbacks=[budget], verbose=0)
    assert budget.spent() == pytest.approx(epsilon_of(10), rel=1e-6)
    assert "declared by the user" in str(budget.statement()).replace("\n    ", " ")


def test_a_model_without_a_dp_optimizer_is_refused():
    network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    network.compile("sgd", "mse")
    with pytest.raises(gdp.PrivacyError, match="DP optimizer"):
        network.fit(
            X, Y, callbacks=[gdp.PrivacyBudget(1.0, DELTA)], batch_size=10, verbose=0
        )


# The ledger on disk ------------------------------------------------------------------


def test_the_ledger_file_follows_the_training(tmp_path):
    trained, train, path = model(), poisson(), tmp_path / "sub" / "ledger.json"
    for _ in range(2):
        budget = gdp.PrivacyBudget(3.0, DELTA, dataset=train, ledger=path)
        trained.fit(train, callbacks=[budget], verbose=0)
    content = ledger_file.read_ledger(path)
    assert content["private_steps"] == 20
    events = [
        accounting.SelfComposed(accounting.Event.from_dict(e["event"]), e["count"])
        for e in content["events"]
    ]
    assert (
        accounting.ExactAccountant().compose(*events).epsilon(DELTA) == budget.spent()
    )
    assert list(path.parent.iterdir()) == [path]


def test_a_model_behind_its_ledger_is_refused(tmp_path):
    train, path = poisson(), tmp_path / "ledger.json"
    budget = gdp.PrivacyBudget(3.0, DELTA, dataset=train, ledger=path)
    model().fit(train, callbacks=[budget], verbose=0)
    before = path.read_text()
    assert_mismatch(
        gdp.PrivacyBudget(3.0, DELTA, dataset=train, ledger=path),
        train,
        error=gdp.LedgerError,
    )
    assert path.read_text() == before


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"version": 99}', "\x00\x01"])
def test_a_damaged_ledger_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "ledger.json"
    path.write_text(content)
    train = poisson()
    assert_mismatch(
        gdp.PrivacyBudget(3.0, DELTA, dataset=train, ledger=path),
        train,
        error=gdp.LedgerError,
    )
    assert path.read_text() == content


def test_the_budget_survives_a_reload(tmp_path):
    trained, train = model(), poisson(steps_per_epoch=6)
    epsilon = 1.0001 * epsilon_of(10)
    trained.fit(
        train, callbacks=[gdp.PrivacyBudget(epsilon, DELTA, dataset=train)], verbose=0
    )
    trained.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    loaded.fit(train, epochs=3, verbose=0)
    assert steps_of(loaded) == 10


@pytest.mark.parametrize("order", [1, -1])
def test_interrupted_training_resumes_whatever_the_order_of_callbacks(tmp_path, order):
    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    def callbacks():
        budget = gdp.PrivacyBudget(
            1.0001 * epsilon_of(25), DELTA, dataset=train, ledger=tmp_path / "l.json"
        )
        return [budget, keras.callbacks.BackupAndRestore(tmp_path / "b")][::order]

    train = poisson()
    with pytest.raises(KeyboardInterrupt):
        model().fit(train, epochs=5, verbose=0, callbacks=[*callbacks(), Interrupt()])
    trained = model()
    trained.fit(train, epochs=5, verbose=0, callbacks=callbacks())
    assert steps_of(trained) == 25
    recorded = ledger_file.read_ledger(tmp_path / "l.json")
    assert recorded["private_steps"] == 25


def test_an_aborted_fit_leaves_its_steps_in_the_ledger_file(tmp_path):
    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 4:
                raise RuntimeError

    trained, train, path = model(), poisson(), tmp_path / "ledger.json"
    budget = gdp.PrivacyBudget(None, DELTA, dataset=train, ledger=path)
    with pytest.raises(RuntimeError):
        trained.fit(train, callbacks=[budget, Fail()], verbose=0)
    assert ledger_file.read_ledger(path)["private_steps"] == steps_of(trained) == 5


def test_a_ledger_file_that_cannot_be_written_is_an_error_before_the_first_step(
    tmp_path,
):
    (tmp_path / "file").write_text("")
    train = poisson()
    for path in (tmp_path / "file" / "ledger.json", tmp_path):
        assert_mismatch(
            gdp.PrivacyBudget(3, DELTA, dataset=train, ledger=path),
            train,
            error=gdp.LedgerError,
        )


def test_a_budget_without_declarations_can_be_used_for_one_source_after_another():
    trained = model()
    budget = gdp.PrivacyBudget(None, DELTA)
    trained.fit(poisson(), callbacks=[budget], verbose=0)
    trained.fit(X, Y, batch_size=50, callbacks=[budget], verbose=0)
    trained.fit(poisson(), callbacks=[budget], verbose=0)
    expected = (
        accounting.ExactAccountant()
        .compose(accounting.SampledGaussian(2.0, 0.1), 20)
        .compose(accounting.Gaussian(2.0), 1)
    )
    assert budget.spent() == pytest.approx(expected.epsilon(DELTA))


@pytest.mark.parametrize("ledger", [3, True, b"path"])
def test_a_ledger_that_is_no_path_is_refused_at_once(ledger):
    with pytest.raises(ValueError, match="`ledger` must be the path"):
        gdp.PrivacyBudget(1.0, DELTA, dataset=poisson(), ledger=ledger)


@pytest.mark.parametrize(
    ("delta", "warned"), [(0.5, True), (0.01, True), (9e-3, False)]
)
def test_a_delta_that_allows_publishing_an_example_is_pointed_out(delta, warned):
    trained, train = model(), poisson()
    budget = gdp.PrivacyBudget(None, delta, dataset=train)
    trained.fit(train, callbacks=[budget], verbose=0)
    text = " ".join(str(budget.statement()).split())
    assert ("not below one over the number of examples, 100" in text) == warned


def test_a_refused_start_says_what_the_next_pass_would_cost():
    budget = gdp.PrivacyBudget(1.0, DELTA)
    with pytest.raises(gdp.BudgetExceededError, match="pass over the data.*Poisson"):
        model(1.1).fit(X, Y, batch_size=10, callbacks=[budget], verbose=0)


def test_a_statement_needs_no_fit_with_the_callback_but_the_optimizer():
    trained = model()
    trained.fit(poisson(), verbose=0)
    with pytest.raises(gdp.PrivacyError, match="optimizer=model.optimizer"):
        gdp.PrivacyBudget(3.0, DELTA).statement()
    budget = gdp.PrivacyBudget(3.0, DELTA, optimizer=trained.optimizer)
    text = " ".join(str(budget.statement()).split())
    assert "no limit was set for the budget" in text
    assert "None" not in text
