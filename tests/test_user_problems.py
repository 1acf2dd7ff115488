"""What users of other libraries ran into, as checks that it does not happen here."""

import keras
import numpy as np
import pytest

import keras_gdp as gdp
from keras_gdp import accounting

L = keras.layers


def one_weight(**kwargs):
    model = keras.Sequential(
        [keras.Input((1,)), L.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    options = {"l2_norm_clip": 1.0, "noise_multiplier": 0.0, **kwargs}
    model.compile(gdp.DPSGD(1.0, **options), "mse")
    return model


def weight(model):
    return float(model.get_weights()[0][0, 0])


@pytest.mark.parametrize("num_examples", [9, 10])
def test_the_update_does_not_depend_on_the_size_of_the_data_set(num_examples):
    model = one_weight(batch_size=4)
    x, y = np.ones((num_examples, 1)), -10 * np.ones((num_examples, 1))
    train = gdp.PoissonDataset(x, y, batch_size=4)
    train._batch = lambda rng: (x[:2], y[:2], np.ones(2, "float32"))
    model.fit(train, steps_per_epoch=1, verbose=0)
    assert weight(model) == pytest.approx(-0.5, abs=1e-6)


@pytest.mark.parametrize("clipping", ["loop", "vectorized"])
def test_the_noise_has_the_claimed_size_everywhere_and_no_correlation(clipping):
    """sigma 2, clip norm 0.5, batch 10: standard deviation 0.1 (C squared: 0.05)."""

    def update_pair(steps):
        model = keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                L.Embedding(200, 50),
                L.Flatten(),
                L.Dense(60, use_bias=False),
            ]
        )
        model.compile(
            gdp.DPSGD(
                1.0,
                l2_norm_clip=0.5,
                noise_multiplier=2.0,
                batch_size=10,
                clipping=clipping,
            ),
            lambda y_true, y_pred: 0.0 * keras.ops.sum(y_pred, axis=-1),
        )
        ids = np.random.default_rng(0).integers(0, 5, (10, 3))
        updates = []
        for _ in range(steps):
            before = [w.copy() for w in model.get_weights()]
            model.train_on_batch(ids, np.zeros((10, 60)))
            updates += [
                (a - b).ravel()[:9000]
                for a, b in zip(model.get_weights(), before, strict=True)
            ]
        return updates

    samples = np.array(update_pair(2) + update_pair(2))
    # 9,000 entries: a standard deviation has standard error 0.75 %, a correlation
    # 0.0105; eight deviations and 28 correlations stay within these bounds except
    # once in 10,000 runs.
    np.testing.assert_allclose(samples.std(axis=1), 0.1, rtol=0.035)
    correlations = np.corrcoef(samples) - np.eye(len(samples))
    assert np.abs(correlations).max() < 0.05
    # Rows of the embedding that no example used get noise as well.
    assert samples[0][50 * 50 :].std() == pytest.approx(0.1, rel=0.05)


def test_executed_updates_are_counted():
    model = one_weight()
    model.fit(np.ones((10, 1)), np.ones((10, 1)), batch_size=4, epochs=3, verbose=0)
    assert int(model.optimizer.private_steps) == 9


def test_accuracy_falls_to_chance_with_huge_noise():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 2000)
    x = (rng.normal(size=(2000, 20)) + 2 * y[:, None]).astype("float32")

    def accuracy(noise_multiplier):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((20,)), L.Dense(8, "tanh"), L.Dense(2)])
        model.compile(
            gdp.DPSGD(
                0.5, l2_norm_clip=1.0, noise_multiplier=noise_multiplier, noise_seed=3
            ),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        model.fit(x[:1500], y[:1500], batch_size=250, epochs=3, verbose=0)
        guesses = model.predict(x[1500:], verbose=0).argmax(axis=1)
        return np.mean(guesses == y[1500:])

    assert accuracy(0.5) > 0.9
    assert 0.2 < accuracy(1000.0) < 0.8


CASES = {
    "A": (3.0, 0.2, 50, 1 / 48000, 1.8385, 1.9608, 2.1690),
    "B": (1.3, 250 / 15000, 900, 1e-5, 1.7687, 1.8915, 2.0847),
    "C": (1.1, 256 / 60000, 14063, 1e-5, 2.3244, 2.3818, 2.5967),
    "D": (4.0, 0.01, 10000, 1e-5, 0.9424, 0.9470, 1.0355),
    "E": (0.35, 256 / 60000, 2344, 1e-5, 126.2, 33.95, 39.1),
}


@pytest.mark.parametrize("case", list(CASES))
def test_accountants_agree_with_dp_accounting(case):
    """Values of dp-accounting 0.6.0 (PLD grid 1e-4, for E 1e-3)."""
    sigma, p, steps, delta, clt, exact, rdp = CASES[case]
    event = accounting.SampledGaussian(sigma, p)

    def epsilon(name):
        return accounting.make_accountant(name).compose(event, steps).epsilon(delta)

    assert epsilon("clt") == pytest.approx(clt, rel=5e-4)
    assert epsilon("exact") == pytest.approx(exact, rel=2e-3)
    assert epsilon("exact") <= epsilon("rdp") <= rdp * 1.002
    assert accounting.mu_clt(3.0, 0.2, 50) == pytest.approx(0.48481, abs=1e-5)
    assert not accounting.CLTAccountant().compose(event).is_upper_bound


def test_replacing_one_example_costs_twice_the_sensitivity():
    for relation, exact in (("add_remove", 4.37718), ("replace_one", 9.99726)):
        values = {
            name: accounting.make_accountant(name, relation)
            .compose(accounting.Gaussian(1.0))
            .epsilon(1e-5)
            for name in ("exact", "clt", "rdp", "moments")
        }
        assert values["exact"] == pytest.approx(exact, abs=1e-5)
        assert values["clt"] == pytest.approx(exact, abs=1e-5)
        assert values["rdp"] >= exact
        assert values["moments"] >= exact


def test_the_grid_follows_the_answer():
    event = accounting.SampledGaussian(7.0, 256 / 60000)
    exact = accounting.ExactAccountant().compose(event, 2344).epsilon(1e-5)
    rdp = accounting.RDPAccountant().compose(event, 2344).epsilon(1e-5)
    assert exact <= 0.0911 * 1.01
    assert exact <= rdp
    tiny = accounting.ExactAccountant().compose(event, 2344)
    lower, upper = tiny.epsilon_bounds(1e-18)
    assert 0 < lower <= upper < 1


def test_epsilon_is_never_negative_and_zero_where_it_truly_is():
    event = accounting.SampledGaussian(100.0, 0.001)
    for name in ("exact", "rdp", "moments", "clt"):
        value = accounting.make_accountant(name).compose(event, 10).epsilon(1e-3)
        assert value >= 0
        if name == "exact":
            assert value == 0


def test_full_participation_equals_the_plain_gaussian():
    for name in ("exact", "rdp", "moments", "clt"):
        sampled, plain = (
            accounting.make_accountant(name).compose(event, 3).epsilon(1e-5)
            for event in (
                accounting.SampledGaussian(2.0, 1.0),
                accounting.Gaussian(2.0),
            )
        )
        assert sampled == pytest.approx(plain, rel=1e-6)


def test_no_noise_costs_infinity_without_an_error():
    for name in ("exact", "rdp", "moments", "clt"):
        accountant = accounting.make_accountant(name)
        accountant.compose(accounting.SampledGaussian(0.0, 0.01), 5)
        assert accountant.epsilon(1e-5) == np.inf
