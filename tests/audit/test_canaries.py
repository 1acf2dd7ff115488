"""Auditing with one run: right for mechanisms whose epsilon is known."""

import math

import keras
import numpy as np
import pytest
from scipy import optimize, stats

import keras_gdp as gdp
from keras_gdp.audit import epsilon_lower_bound, one_run_audit


def test_without_delta_it_inverts_the_binomial_tail():
    bound = epsilon_lower_bound(500, 200, 150, delta=0.0, confidence=0.95)
    accuracy = optimize.brentq(lambda q: stats.binom.sf(149, 200, q) - 0.05, 0.5, 0.999)
    assert bound == pytest.approx(math.log(accuracy / (1 - accuracy)), abs=1e-6)


def test_delta_is_a_sum_over_single_failures():
    # The definition, in plain loops.
    m, r, v, delta, confidence = 60, 30, 26, 1e-4, 0.9
    epsilon = epsilon_lower_bound(m, r, v, delta=delta, confidence=confidence)
    q = 1 / (1 + math.exp(-epsilon))
    pmf = [math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
    alpha = max(sum(pmf[v - i : v]) / i for i in range(1, v + 1))
    assert sum(pmf[v:]) + 2 * m * delta * alpha == pytest.approx(0.1, rel=1e-6)


def test_guessing_at_random_shows_nothing():
    assert epsilon_lower_bound(1000, 1000, 500, delta=1e-5) == 0.0
    assert epsilon_lower_bound(10, 0, 0, delta=1e-5) == 0.0


def test_the_bound_grows_with_right_guesses_and_falls_with_delta():
    bounds = [epsilon_lower_bound(200, 100, v, delta=1e-5) for v in (60, 80, 100)]
    assert bounds == sorted(bounds)
    assert bounds[0] < bounds[2]
    assert epsilon_lower_bound(200, 100, 90, delta=1e-3) < epsilon_lower_bound(
        200, 100, 90, delta=1e-6
    )


@pytest.mark.parametrize("numbers", [(10, 11, 5), (10, 5, 6)])
def test_impossible_counts_are_refused(numbers):
    with pytest.raises(ValueError, match="correct <= guesses <= canaries.*the order"):
        epsilon_lower_bound(*numbers, delta=0.0)


class Answers:
    """Stands for a model: holds one randomised answer per canary."""


def randomised_response(epsilon, rng):
    """A mechanism that is exactly (epsilon, 0)-DP, and the best attack on it."""
    seen = {}

    def train(x, y):
        seen["in"] = set(x[:, 0].tolist())
        return Answers()

    def score(model, x, y):
        truth = np.array([i in seen["in"] for i in x[:, 0].tolist()])
        keep = rng.random(len(x)) < 1 / (1 + math.exp(-epsilon))
        return np.where(truth == keep, 1.0, 0.0) + 1e-3 * rng.random(len(x))

    return train, score


def audit(epsilon, seed, **options):
    rng = np.random.default_rng(seed)
    train, score = randomised_response(epsilon, rng)
    canaries = np.arange(2000.0)[:, None], np.zeros(2000)
    return one_run_audit(
        train, canaries, delta=0.0, score=score, seed=seed + 10_000, **options
    )


def test_the_bound_is_valid_and_close_for_randomised_response():
    # 200 runs at 95 %: 10 failures expected at most; more than 22 has chance 2e-4.
    bounds = [audit(1.0, seed).epsilon for seed in range(200)]
    assert sum(bound > 1.0 for bound in bounds) <= 22
    assert np.mean(bounds) > 0.8
    fixed = [audit(1.0, seed, guesses=2000).epsilon for seed in range(200)]
    assert sum(bound > 1.0 for bound in fixed) <= 22


def test_no_run_contradicts_a_mechanism_that_ignores_the_canaries():
    result = audit(0.0, 3)
    assert result.epsilon < 0.3
    assert not result.contradicts(0.3)
    assert 900 < result.included < 1100
    assert f"{result.guesses} guesses" in str(result)


def memorising(optimizer, epochs, batch_size):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 30)).astype("float32"), rng.integers(0, 2, 60)

    def train(canary_x, canary_y):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [keras.Input((30,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(2)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss)
        both = np.concatenate([x, canary_x]), np.concatenate([y, canary_y])
        model.fit(*both, batch_size=batch_size, epochs=epochs, verbose=0)
        return model

    canaries = rng.normal(size=(100, 30)).astype("float32"), rng.integers(0, 2, 100)
    return train, canaries


def test_a_model_without_privacy_gives_its_canaries_away():
    train, canaries = memorising(keras.optimizers.Adam(0.01), 40, 16)
    result = one_run_audit(train, canaries, delta=1e-5, seed=1)
    assert result.epsilon > 1.0


def test_a_private_model_does_not_contradict_its_guarantee():
    optimizer = gdp.DPAdam(0.01, l2_norm_clip=1.0, noise_multiplier=3.0)
    train, canaries = memorising(optimizer, 3, 16)
    result = one_run_audit(train, canaries, delta=1e-5, seed=1)
    accountant = gdp.accounting.ExactAccountant()
    accountant.compose(gdp.accounting.Gaussian(3.0), 3)
    assert not result.contradicts(accountant.epsilon(1e-5))


def test_bad_arguments_are_named():
    train, score = randomised_response(1.0, np.random.default_rng(0))
    x, y = np.zeros((10, 1)), np.zeros(10)
    for bad, named in (
        ({"guesses": 11}, "`guesses`.*Guess fewer"),
        ({"guesses": 0}, "`guesses`.*pass None"),
        ({"confidence": 1.0}, "confidence"),
        ({"delta": -1.0}, "delta"),
        ({"score": lambda *_: np.zeros(3)}, "one number per canary"),
    ):
        options = {"delta": 0.0, "score": score, **bad}
        with pytest.raises(ValueError, match=named):
            one_run_audit(train, (x, y), **options)
    for canaries in ((x, y[:5]), 3, x, (x, y, y), (x, 1.0)):
        with pytest.raises(ValueError, match=r"`canaries` must be a pair[\s\S]*Pass"):
            one_run_audit(train, canaries, delta=0.0)
    for bad in ({"train": 3}, {"score": "loss"}):
        options = {"train": train, "score": score, **bad}
        with pytest.raises(ValueError, match=f"`{next(iter(bad))}` must be a function"):
            one_run_audit(canaries=(x, y), delta=0.0, **options)
    plain = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    for returned in (None, plain):
        with pytest.raises(ValueError, match="`train` returns must be a compiled"):
            one_run_audit(lambda x, y, m=returned: m, (x, y), delta=0.0)
