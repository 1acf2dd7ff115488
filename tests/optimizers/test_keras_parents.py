"""DP optimizers do what their Keras parents do, apart from clipping and noise."""

import keras
import numpy as np
import pytest

import keras_gdp as gdp
from keras_gdp.clipping import Flat

PAIRS = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Adam": {"amsgrad": True},
    "AdamW": {"weight_decay": 0.01},
    "Adagrad": {},
    "Adadelta": {"learning_rate": 1.0},
    "Adamax": {},
    "Nadam": {},
    "RMSprop": {"centered": True},
    "Ftrl": {"l1_regularization_strength": 0.01},
    "Lion": {},
    "Adafactor": {},
    "Lamb": {},
}
EXTRAS = {
    "schedule": {
        "learning_rate": keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    },
    "weight_decay": {"weight_decay": 0.05},
    "ema": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
    "clipnorm": {"clipnorm": 0.01},
    "clipvalue": {"clipvalue": 0.01},
    "global_clipnorm": {"global_clipnorm": 0.01},
    "loss_scale_factor": {"loss_scale_factor": 3.0},
}


def network():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(
                6, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.02)
            ),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )


def trained(optimizer, **compiled):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 4)).astype("float32")
    y = rng.integers(0, 3, 24)
    model = network()
    model.compile(
        optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], **compiled
    )
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model, history.history


def assert_follows(private, parent, **compiled):
    expected, expected_logs = trained(parent)
    actual, logs = trained(private, **compiled)
    for a, b in zip(actual.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    np.testing.assert_allclose(logs["loss"], expected_logs["loss"], rtol=1e-5)
    np.testing.assert_allclose(logs["accuracy"], expected_logs["accuracy"], rtol=1e-5)


def private_and_parent(name, options):
    private = getattr(gdp, f"DP{name}")(
        **options, l2_norm_clip=1e6, noise_multiplier=0.0
    )
    return private, getattr(keras.optimizers, name)(**options)


@pytest.mark.parametrize("name", list(PAIRS))
def test_without_noise_and_with_a_huge_clip_norm_it_follows_its_parent(name):
    assert_follows(*private_and_parent(name, PAIRS[name]))


@pytest.mark.parametrize("extra", list(EXTRAS))
def test_keras_options_act_after_the_noise_as_in_keras(extra):
    assert_follows(*private_and_parent("Adam", EXTRAS[extra]))


@pytest.mark.parametrize("clipping", ["loop", "vectorized"])
@pytest.mark.parametrize(
    "compiled",
    [{"run_eagerly": True}, {"jit_compile": True}, {"steps_per_execution": 3}],
    ids=str,
)
def test_every_way_to_run_follows_the_parent(clipping, compiled):
    private = gdp.DPAdam(l2_norm_clip=1e6, noise_multiplier=0.0, clipping=clipping)
    assert_follows(private, keras.optimizers.Adam(), **compiled)


def test_a_third_party_optimizer_follows_its_parent():
    class Halving(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            super().update_step(gradient / 2, variable, learning_rate)

    private = gdp.make_private(Halving)(0.1, l2_norm_clip=1e6, noise_multiplier=0.0)
    assert type(private).__name__ == "DPHalving"
    assert_follows(private, Halving(0.1))


def test_make_private_returns_the_known_class_of_a_keras_optimizer():
    assert gdp.make_private(keras.optimizers.Adam) is gdp.DPAdam


@pytest.mark.parametrize("name", list(PAIRS))
def test_config_round_trip(name):
    optimizer = getattr(gdp, f"DP{name}")(
        **PAIRS[name],
        l2_norm_clip=0.5,
        noise_multiplier=1.5,
        batch_size=12,
        clipping="loop",
        physical_batch_size=3,
        noise_seed=9,
    )
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(restored) is type(optimizer)
    assert restored.get_config() == optimizer.get_config()


def test_config_round_trip_with_a_clipping_strategy():
    optimizer = gdp.DPSGD(0.1, clipping=gdp.clipping.Flat(0.25), noise_multiplier=1.0)
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert restored.strategy.l2_norm_clip == 0.25


BAD = [
    ({"l2_norm_clip": 0.0}, "l2_norm_clip"),
    ({"l2_norm_clip": -1.0}, "l2_norm_clip"),
    ({"l2_norm_clip": float("nan")}, "l2_norm_clip"),
    ({"l2_norm_clip": float("inf")}, "l2_norm_clip"),
    ({"l2_norm_clip": None}, "l2_norm_clip"),
    ({"noise_multiplier": -0.1}, "noise_multiplier"),
    ({"noise_multiplier": float("nan")}, "noise_multiplier"),
    ({"batch_size": 0}, "`batch_size`.*such as 256"),
    ({"physical_batch_size": 0}, "`physical_batch_size`.*leave it out"),
    ({"physical_batch_size": 2.5}, "`physical_batch_size`.*leave it out"),
    ({"clipping": "ghost"}, "Received: clipping='ghost'.*PerLayer"),
    ({"clipping": "lop"}, "Did you mean 'loop'"),
    ({"clipping": 3}, "Received: clipping=3.*passed as `l2_norm_clip=`"),
    ({"l2_norm_clip": [1.0, 2.0]}, r"Received: l2_norm_clip=\[1.0, 2.0\].*PerLayer"),
    ({"l2_norm_clip": Flat(1.0), "clipping": Flat(1.0)}, "Leave one out"),
    ({"noise_seed": -1}, "`noise_seed`.*Leave it out"),
    ({"noise_seed": 1.5}, "`noise_seed`.*=1.5.*Leave it out"),
    ({"gradient_accumulation_steps": 4}, "physical_batch_size"),
]


@pytest.mark.parametrize(("bad", "named"), BAD, ids=str)
def test_bad_arguments_are_named(bad, named):
    with pytest.raises((ValueError, TypeError), match=named):
        gdp.DPSGD(0.1, **{"l2_norm_clip": 1.0, "noise_multiplier": 1.0, **bad})


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ("sgd", "`optimizer_class`.*='sgd'.*the class itself"),
        (keras.optimizers.SGD(), "`optimizer_class`.*not an instance"),
        (gdp.DPSGD, "`optimizer_class`.*DPSGD.*Use it as it is"),
        (keras.optimizers.LossScaleOptimizer, "`optimizer_class`.*the inner one"),
    ],
    ids=["name", "instance", "private", "loss scale"],
)
def test_only_ordinary_optimizer_classes_are_made_private(bad, named):
    with pytest.raises((ValueError, TypeError), match=named):
        gdp.make_private(bad)


def test_noise_multiplier_has_no_default():
    with pytest.raises(TypeError, match="noise_multiplier"):
        gdp.DPSGD(0.1, l2_norm_clip=1.0)
