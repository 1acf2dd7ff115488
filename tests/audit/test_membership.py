"""Membership inference: its statistics, and against models of known privacy."""

import keras
import numpy as np
import pytest
from scipy import stats

import keras_gdp as gdp
from keras_gdp.audit import loss_threshold_attack, membership_inference
from keras_gdp.audit.intervals import clopper_pearson
from keras_gdp.audit.losses import per_example_losses


def test_auc_is_the_mann_whitney_statistic():
    rng = np.random.default_rng(0)
    inside, outside = rng.integers(0, 9, 70), rng.integers(1, 10, 50)
    attack = loss_threshold_attack(inside, outside)
    u = stats.mannwhitneyu(outside, inside).statistic
    assert attack.auc == pytest.approx(u / (70 * 50))
    false_rates, true_rates = attack.roc
    assert np.trapezoid(true_rates, false_rates) == pytest.approx(attack.auc)


def test_intervals_cover_the_truth():
    # N(0, 1) against N(1, 1): AUC = Phi(1 / sqrt 2), best advantage 2 Phi(1/2) - 1.
    # 200 runs at 90 %: 20 misses expected; more than 37 has chance 1e-4.
    auc, advantage = stats.norm.cdf(0.5**0.5), 2 * stats.norm.cdf(0.5) - 1
    missed = above = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        attack = loss_threshold_attack(
            rng.normal(size=300), rng.normal(size=400) + 1, confidence=0.9, seed=seed
        )
        missed += not attack.auc_interval[0] <= auc <= attack.auc_interval[1]
        # A threshold's advantage is at most the best: the lower end must hold.
        above += attack.advantage_interval[0] > advantage
    assert missed <= 37
    assert above <= 37


def test_the_bounds_of_a_guarantee():
    rng = np.random.default_rng(1)
    losses = rng.normal(size=(2, 100))
    f = gdp.tradeoff.gaussian(1.0)
    attack = loss_threshold_attack(*losses, guarantee=f)
    assert attack.advantage_bound == pytest.approx(2 * stats.norm.cdf(0.5) - 1)
    assert attack.auc_bound == pytest.approx(stats.norm.cdf(0.5**0.5), abs=1e-3)
    assert attack.auc_bound >= stats.norm.cdf(0.5**0.5)
    pair = loss_threshold_attack(*losses, guarantee=(1.0, 0.0))
    assert pair.advantage_bound == pytest.approx(np.tanh(0.5))
    assert not pair.suggests_violation
    told_apart = loss_threshold_attack(
        losses[0], losses[1] + 9, guarantee=gdp.tradeoff.gaussian(0.5)
    )
    assert told_apart.suggests_violation
    assert "evidence against it, not a refutation" in str(told_apart)
    assert "the guarantee allows" in str(told_apart)


def test_clopper_pearson_holds_its_level_exactly():
    for successes, trials in ((0, 10), (3, 10), (10, 10)):
        low, high = clopper_pearson(successes, trials, 0.9)
        if successes:
            tail = stats.binom.sf(successes - 1, trials, low)
            assert tail == pytest.approx(0.05)
        if successes < trials:
            assert stats.binom.cdf(successes, trials, high) == pytest.approx(0.05)


def overfitted(optimizer, epochs):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 20)).astype("float32"), rng.integers(0, 2, 200)
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((20,)),
            keras.layers.Dense(64, "relu", kernel_regularizer="l2"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(2),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    model.fit(x[:100], y[:100], batch_size=20, epochs=epochs, verbose=0)
    return model, (x[:100], y[:100]), (x[100:], y[100:])


def test_losses_are_those_of_one_example_at_a_time():
    model, members, _ = overfitted(keras.optimizers.Adam(0.01), 1)
    losses = per_example_losses(model, *members, batch_size=33)
    logits = model.predict(members[0], verbose=0).astype("float64")
    expected = np.log(np.sum(np.exp(logits), 1)) - logits[range(100), members[1]]
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-6)


def test_an_overfitted_model_is_attacked_and_a_private_one_is_not():
    attack = membership_inference(
        *overfitted(keras.optimizers.Adam(0.01), 60), guarantee=(0.5, 1e-5)
    )
    assert attack.auc > 0.8
    assert attack.suggests_violation
    private = gdp.DPAdam(0.01, l2_norm_clip=1.0, noise_multiplier=4.0)
    guarantee = gdp.tradeoff.gaussian(3**0.5 / 4)  # Three passes over the data.
    attack = membership_inference(*overfitted(private, 3), guarantee=guarantee)
    assert not attack.suggests_violation
    assert attack.auc_interval[0] < attack.auc_bound


def test_the_roc_curve_is_drawn():
    import matplotlib

    matplotlib.use("Agg")
    attack = loss_threshold_attack(np.arange(10.0), np.arange(10.0) + 3)
    line = attack.plot().get_lines()[0]
    np.testing.assert_array_equal(line.get_xdata(), attack.roc[0])


def test_bad_arguments_are_named():
    good = np.arange(10.0)
    with pytest.raises(ValueError, match="member_losses"):
        loss_threshold_attack(good[:3], good)
    with pytest.raises(ValueError, match="`non_member_losses`.*broke down"):
        loss_threshold_attack(good, np.full(10, np.nan))
    for losses in (["a"] * 10, None, [[1.0], [1.0, 2.0]]):
        with pytest.raises(ValueError, match="`member_losses`"):
            loss_threshold_attack(losses, good)


@pytest.mark.parametrize("guarantee", [1.0, (1, 2, 3), "ab", (1.0,)], ids=str)
def test_a_guarantee_is_a_tradeoff_or_a_pair(guarantee):
    good = np.arange(10.0)
    with pytest.raises(ValueError, match="`guarantee`.*pair"):
        loss_threshold_attack(good, good, guarantee=guarantee)
    with pytest.raises(ValueError, match="`guarantee`.*pair"):
        membership_inference(None, (good, good), (good, good), guarantee=guarantee)


def test_models_and_pairs_that_are_none_are_named():
    pair = np.zeros((10, 2)), np.zeros(10)
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    for model, received in ((plain, "not compiled"), (None, "None"), ("m", "'m'")):
        with pytest.raises(ValueError, match=f"`model`.*compiled.*{received}"):
            membership_inference(model, pair, pair)
    plain.compile("sgd", "mse")
    for bad in (3, pair[0], (1, 2, 3)):
        with pytest.raises(ValueError, match="`members` must be a pair"):
            membership_inference(plain, bad, pair)
        with pytest.raises(ValueError, match="`non_members` must be a pair"):
            membership_inference(plain, pair, bad)


def test_a_private_mechanism_can_be_above_the_bound_in_single_runs():
    # With probability 0.3 randomised response with epsilon log 4 on all examples, else
    # nothing: f = 0.3 f_RR + 0.7 Id lies above 1-GDP. Yet whenever it answers, the
    # advantage is near 0.6, and 1-GDP allows 0.383: this is why `suggests_violation` is
    # not a refutation. 40 runs, each above the bound with probability 0.3: fewer than
    # 3, as 5 % would allow, has probability 1e-4.
    f = gdp.tradeoff.gaussian(1.0)
    alpha = np.linspace(0.0, 1.0, 201)
    response = np.maximum(np.maximum(1 - 4 * alpha, (1 - alpha) / 4), 0.0)
    # Any level may be spent on the answered runs: the best split for the attacker.
    split = np.minimum(alpha[:, None] / 0.3, 1.0) * np.linspace(0, 1, 201)
    rest = np.clip((alpha[:, None] - 0.3 * split) / 0.7, 0.0, 1.0)
    answered = np.interp(split, alpha, response)
    mixed = np.min(0.3 * answered + 0.7 * (1 - rest), axis=1)
    assert np.all(mixed >= f(alpha) - 1e-3)
    above = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        losses = np.zeros((2, 400))
        if rng.random() < 0.3:
            true = np.array([[0.0], [1.0]])
            losses = np.abs(true - (rng.random((2, 400)) < 0.2))
        above += loss_threshold_attack(*losses, guarantee=f).suggests_violation
    assert above >= 3
