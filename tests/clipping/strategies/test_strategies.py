"""What the strategies state about themselves, and what they refuse."""

import math

import keras
import numpy as np
import pytest
from scipy import integrate, stats

import keras_gdp as gdp
from keras_gdp import accounting
from keras_gdp.clipping import (
    AdaptivePerLayer,
    AdaptiveQuantile,
    Automatic,
    Flat,
    PerLayer,
)

ALL = [
    Flat(0.5),
    PerLayer([0.5, 0.25]),
    PerLayer({"kernel": 1.0, "": 0.1}),
    PerLayer(0.5, groups=["kernel", "bias"]),
    AdaptivePerLayer(1.1, 2.5, 3.0, groups="variable", initial_l2_norm_clip=[1.0] * 4),
    AdaptiveQuantile(0.3, 0.1, 4.0, initial_l2_norm_clip=2.0),
    Automatic(0.02),
]


def variables():
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, name="one"),
            keras.layers.Dense(2, name="two"),
        ]
    )
    return model.trainable_variables


def built(strategy):
    strategy.build(
        variables(),
        lambda shape, initializer, name: keras.Variable(
            initializer, shape, dtype="float32", name=name
        ),
    )
    return strategy


@pytest.mark.parametrize("strategy", ALL, ids=repr)
@pytest.mark.parametrize("argument", ["l2_norm_clip", "clipping"])
def test_an_optimizer_with_a_strategy_survives_its_config(strategy, argument):
    optimizer = gdp.DPSGD(0.1, **{argument: strategy}, noise_multiplier=1.0)
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(restored.strategy) is type(strategy)
    assert restored.strategy.get_config() == strategy.get_config()


def test_sensitivities():
    assert Flat(0.5).sensitivity == 0.5
    assert PerLayer([3.0, 4.0]).sensitivity == 5.0
    assert built(PerLayer(2.0)).sensitivity == pytest.approx(2 * math.sqrt(2))
    assert built(PerLayer({"kernel": 3.0, "bias": 4.0})).sensitivity == 5.0
    assert Automatic().sensitivity == 1.0
    assert AdaptiveQuantile(initial_l2_norm_clip=0.3).sensitivity == 0.3
    adaptive = built(AdaptivePerLayer(initial_l2_norm_clip=[3.0, 4.0]))
    assert float(adaptive.sensitivity) == pytest.approx(5.0)


def test_strategies_without_a_side_release_cost_what_the_noise_says():
    for strategy in (Flat(1.0), PerLayer(1.0), Automatic()):
        assert strategy.effective_noise_multiplier(1.1) == 1.1


@pytest.mark.parametrize(
    "strategy", [AdaptivePerLayer(1.0, 2.0, 2.5), AdaptiveQuantile(0.5, 0.2, 2.5)]
)
def test_a_side_release_is_composed_as_by_hand(strategy):
    effective = strategy.effective_noise_multiplier(0.9)
    assert effective == pytest.approx((0.9**-2 + 2.5**-2) ** -0.5, rel=1e-12)
    # Two Gaussian releases of the same batch, one after the other.
    event = strategy.event(0.9)
    joint = accounting.ExactAccountant().compose(event)
    parts = accounting.ExactAccountant()
    parts.compose(accounting.Gaussian(0.9)).compose(accounting.Gaussian(2.5))
    for epsilon in (0.1, 1.0, 4.0):
        assert joint.delta(epsilon) == pytest.approx(parts.delta(epsilon), rel=1e-9)
    assert strategy.effective_noise_multiplier(0.0) == 0.0


def test_a_sampled_joint_release_is_what_a_two_dimensional_integral_says():
    # Both parts see the same sample: the pair of N(0, I) and
    # (1-p) N(0, I) + p N((1/a, 1/b), I), in two dimensions.
    a, b, p, epsilon = 0.9, 2.5, 0.1, 0.5
    strategy = AdaptiveQuantile(0.5, 0.2, b)
    effective = strategy.effective_noise_multiplier(a)
    accountant = accounting.ExactAccountant()
    accountant.compose(accounting.SampledGaussian(effective, p))

    def excess(y, x):
        base = stats.norm.pdf(x) * stats.norm.pdf(y)
        moved = stats.norm.pdf(x - 1 / a) * stats.norm.pdf(y - 1 / b)
        return max((1 - p) * base + p * moved - math.exp(epsilon) * base, 0.0)

    expected, _ = integrate.dblquad(excess, -6, 9, -6, 8, epsabs=1e-7)
    assert accountant.delta(epsilon) == pytest.approx(expected, rel=1e-3)


def test_groups():
    names = [name.split("/")[1] for name in built(PerLayer(1.0)).group_names]
    assert names == ["one", "two"]
    assert built(PerLayer(1.0, groups="variable")).num_groups == 4
    strategy = built(PerLayer({"two/": 1.0, "kernel": 2.0, "": 3.0}))
    np.testing.assert_array_equal(
        strategy.per_variable(strategy.bounds), [2.0, 3.0, 1.0, 1.0]
    )


BUILD_ERRORS = [
    (PerLayer([1.0, 2.0, 3.0]), "one bound per layer: 2 of them.*a single number"),
    (PerLayer({"kernel": 1.0}), "leaves out variable '.*bias'"),
    (PerLayer({"": 1.0, "kernel": 1.0}), "no variable belongs to.*to the front"),
    (AdaptivePerLayer(initial_l2_norm_clip=[1.0]), "`initial_l2_norm_clip`.*single"),
]


@pytest.mark.parametrize(("strategy", "message"), BUILD_ERRORS, ids=str)
def test_groups_that_do_not_fit_the_model_are_named(strategy, message):
    with pytest.raises(ValueError, match=message):
        built(strategy)


BAD = [
    (Flat, {"l2_norm_clip": 0.0}, "l2_norm_clip"),
    (Flat, {"l2_norm_clip": 1e-13}, "too small for float32"),
    (PerLayer, {"l2_norm_clips": []}, "l2_norm_clips"),
    (PerLayer, {"l2_norm_clips": [1.0, -1.0]}, "l2_norm_clips"),
    (PerLayer, {"l2_norm_clips": 1.0, "groups": "neuron"}, "`groups`.*Try"),
    (PerLayer, {"l2_norm_clips": 1.0, "groups": []}, "groups"),
    (
        PerLayer,
        {"l2_norm_clips": {"a": 1.0}, "groups": "variable"},
        "Leave `groups` out",
    ),
    (Flat, {"l2_norm_clip": 1e300}, "too large for float32"),
    (PerLayer, {"l2_norm_clips": {"(": 1.0}}, "`l2_norm_clips`.*re.escape"),
    (PerLayer, {"l2_norm_clips": {}}, "`l2_norm_clips` must hold at least one"),
    (PerLayer, {"l2_norm_clips": {1: 1.0}}, "`l2_norm_clips`.*keys"),
    (PerLayer, {"l2_norm_clips": 1.0, "groups": ["("]}, "`groups`.*re.escape"),
    (PerLayer, {"l2_norm_clips": [1, 2], "groups": ["", ""]}, "`groups`.*twice"),
    (AdaptivePerLayer, {"initial_l2_norm_clip": []}, "`initial_l2_norm_clip`"),
    (AdaptivePerLayer, {"groups": ["a", "a"]}, "`groups`.*twice"),
    (AdaptivePerLayer, {"alpha": 0.0}, "`alpha`.*try 1"),
    (AdaptivePerLayer, {"beta": 0.0}, "`beta`.*try 2"),
    (AdaptivePerLayer, {"alpha": 0.5, "beta": 2.0}, "beta"),
    (AdaptivePerLayer, {"norm_noise_multiplier": 0.0}, "norm_noise_multiplier"),
    (AdaptivePerLayer, {"initial_l2_norm_clip": -1.0}, "one per group, or None"),
    (AdaptiveQuantile, {"target_quantile": 1.0}, "target_quantile"),
    (AdaptiveQuantile, {"learning_rate": 0.0}, "`learning_rate`.*try 0.2"),
    (AdaptiveQuantile, {"count_noise_multiplier": 0.0}, "count_noise_multiplier"),
    (AdaptiveQuantile, {"initial_l2_norm_clip": math.inf}, "start with 1.0"),
    (Automatic, {"gamma": 0.0}, "gamma"),
    (Automatic, {"gamma": 1e-13}, "gamma"),
]


@pytest.mark.parametrize(("strategy", "bad", "named"), BAD, ids=str)
def test_bad_arguments_are_named(strategy, bad, named):
    with pytest.raises(ValueError, match=named):
        strategy(**bad)


@pytest.mark.parametrize("strategy", ALL, ids=repr)
@pytest.mark.parametrize("bad", [0, -1, math.nan, "a"], ids=str)
def test_noise_multipliers_out_of_range_are_named(strategy, bad):
    errors = (ValueError, TypeError)
    with pytest.raises(errors, match="`effective_noise_multiplier`"):
        strategy.noise_multiplier_for(bad)
    if bad != 0:
        with pytest.raises(errors, match="`noise_multiplier`"):
            strategy.effective_noise_multiplier(bad)


def test_no_noise_is_lost_where_squares_overflow():
    for side, effective in ((1e200, 1.0), (10.0, 1e-200), (10.0, 9.9999999)):
        strategy = AdaptiveQuantile(count_noise_multiplier=side)
        noise = strategy.noise_multiplier_for(effective)
        assert noise >= effective
        assert effective <= strategy.effective_noise_multiplier(noise)


def test_what_an_optimizer_saves_is_its_own_copy():
    strategy = AdaptiveQuantile(count_noise_multiplier=10.0)
    for argument in ("l2_norm_clip", "clipping"):
        optimizer = gdp.DPSGD(noise_multiplier=1.0, **{argument: strategy})
        strategy.count_noise_multiplier = 0.01
        restored = gdp.DPSGD.from_config(optimizer.get_config())
        assert restored.strategy.count_noise_multiplier == 10.0
        assert getattr(optimizer, argument).count_noise_multiplier == 10.0
        strategy.count_noise_multiplier = 10.0


def owned(strategy):
    return gdp.DPSGD(l2_norm_clip=strategy, noise_multiplier=1.0).strategy


@pytest.mark.parametrize(
    ("strategy", "name", "key"),
    [
        (PerLayer([1.0, 2.0]), "l2_norm_clips", 0),
        (PerLayer({"": 1.0}), "l2_norm_clips", ""),
        (PerLayer(1.0, groups=["a", "b"]), "groups", 0),
        (AdaptivePerLayer(initial_l2_norm_clip=[1.0]), "initial_l2_norm_clip", 0),
    ],
    ids=str,
)
def test_nothing_inside_an_optimizers_strategy_can_be_changed(strategy, name, key):
    copy = owned(strategy)
    before = copy.get_config()
    with pytest.raises(TypeError, match="item assignment"):
        getattr(copy, name)[key] = 70.0
    with pytest.raises(AttributeError, match="cannot be changed"):
        setattr(copy, name, 70.0)
    config = copy.get_config()
    config[name][key] = 70.0
    assert copy.get_config() == before == strategy.get_config()


def test_bounds_may_be_arrays():
    assert PerLayer(np.array(0.5)).l2_norm_clips == 0.5
    assert PerLayer(np.array([0.5, 1.0])).l2_norm_clips == (0.5, 1.0)
    assert (
        AdaptivePerLayer(initial_l2_norm_clip=np.array(0.5)).initial_l2_norm_clip == 0.5
    )


def test_the_users_list_is_copied():
    clips, groups = [1.0, 2.0], ["kernel", "bias"]
    strategy = PerLayer(clips, groups=groups)
    clips[0], groups[0] = 70.0, "x"
    assert strategy.get_config() == {
        "l2_norm_clips": [1.0, 2.0],
        "groups": ["kernel", "bias"],
    }


def test_the_quantile_scheme_settles_at_the_quantile():
    # The fixed point of the update is where the share within the bound is the target.
    strategy = built(AdaptiveQuantile(0.8, 0.5, 1e-6, initial_l2_norm_clip=30.0))
    norms = np.random.default_rng(0).lognormal(size=(400, 1)).astype("float32")
    squares = np.concatenate([norms**2, np.zeros((400, 3))], axis=1).astype("float32")
    for _ in range(200):
        count = strategy.statistics(squares, np.ones(400, bool))
        strategy.update(count, np.float32(400.0))
    share = np.mean(norms <= float(strategy.sensitivity))
    assert share == pytest.approx(0.8, abs=0.01)


def test_the_noise_for_a_budget_can_be_found_with_a_side_release():
    strategy = AdaptivePerLayer(1.0, 2.0, 5.0)
    needed = accounting.noise_multiplier_for(
        2.0, 1e-5, sampling_probability=0.01, steps=200
    )
    noise = strategy.noise_multiplier_for(needed)
    assert noise > needed
    assert needed <= strategy.effective_noise_multiplier(noise) <= needed * 1.000001
    assert Flat(1.0).noise_multiplier_for(needed) == needed
    with pytest.raises(ValueError, match="norm_noise_multiplier=5.0"):
        strategy.noise_multiplier_for(5.0)
