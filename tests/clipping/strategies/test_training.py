"""Strategies inside of `fit`: followed in NumPy, saved, accounted."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_gdp as gdp
from keras_gdp.clipping import AdaptivePerLayer, AdaptiveQuantile, Automatic, PerLayer
from keras_gdp.noise import NoiseStream

SEED, RATE, BATCH, ROWS = 17, 0.05, 6.0, 8
ALPHA, BETA, SIGMA, SIGMA_NORM, START = 1.1, 2.0, 0.6, 0.4, 0.3
# The last two rows are padding.
WEIGHT = np.array([1, 1, 1, 1, 1, 1, 0, 0], "float32")


def data():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(ROWS, 3)).astype("float32")
    y = rng.normal(size=(ROWS, 1)).astype("float32")
    return x, y


def network(policy=None):
    keras.utils.set_random_seed(4)
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(2, dtype=policy),
            keras.layers.Dense(1, dtype=policy),
        ]
    )


def example_gradients(weights, x, y):
    """Gradients of the squared error of one example, two linear layers."""
    w1, b1, w2, b2 = weights
    hidden = x @ w1 + b1
    error = 2 * (hidden @ w2 + b2 - y)
    back = w2 @ error
    return [np.outer(x, back), back, np.outer(hidden, error), error]


def norm(*arrays):
    return np.sqrt(sum(np.sum(a**2) for a in arrays))


def fitted(strategy, *, steps, noise_multiplier=SIGMA, **options):
    compiled = {
        k: options.pop(k)
        for k in ("jit_compile", "steps_per_execution", "run_eagerly")
        if k in options
    }
    x, y = data()
    model = network()
    optimizer = gdp.DPSGD(
        RATE,
        clipping=options.pop("engine", "auto"),
        l2_norm_clip=strategy,
        noise_multiplier=noise_multiplier,
        batch_size=BATCH,
        noise_seed=SEED,
        **options,
    )
    model.compile(optimizer, "mse", **compiled)
    start = [w.astype("float64") for w in model.get_weights()]
    rows = tf.data.Dataset.from_tensors((x, y, WEIGHT)).repeat(steps)
    model.fit(rows, epochs=1, verbose=0)
    return model, start


def noise_of(step, shapes):
    return [
        z.numpy().astype("float64")
        for z in NoiseStream(SEED).draw(shapes, [tf.float32] * len(shapes), step)
    ]


def adaptive_per_layer_in_numpy(weights, steps, sigma=SIGMA, norm_sigma=SIGMA_NORM):
    x, y = (a[WEIGHT > 0].astype("float64") for a in data())
    bounds = np.full(2, START)
    history = []
    for step in range(steps):
        sums, norms = [np.zeros(w.shape) for w in weights], np.zeros(2)
        for xi, yi in zip(x, y, strict=True):
            gradients = example_gradients(weights, xi, yi)
            for layer in range(2):
                pair = slice(2 * layer, 2 * layer + 2)
                size = norm(*gradients[pair])
                norms[layer] += min(size, BETA * bounds[layer])
                for index in range(2 * layer, 2 * layer + 2):
                    sums[index] += gradients[index] / max(1, size / bounds[layer])
        *noise, norm_noise = noise_of(step, [*(w.shape for w in weights), (2,)])
        share = np.sqrt(2)  # Of two layers.
        norms += norm_sigma * share * BETA * bounds * norm_noise
        following = ALPHA / BATCH * norms
        for index, weight in enumerate(weights):
            layer = index // 2
            noised = sums[index] + sigma * share * bounds[layer] * noise[index]
            if following[layer] >= bounds[layer] / 2:
                weights[index] = weight - RATE * noised / BATCH
        bounds = np.maximum(following, bounds / 5)
        history.append(bounds)
    return weights, history


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "loop"},
        {"engine": "vectorized"},
        {"engine": "bookkeeping"},
        {"engine": "reweight"},
        {"physical_batch_size": 3},
        {"steps_per_execution": 4},
        {"run_eagerly": True},
    ],
    ids=str,
)
def test_adaptive_per_layer_follows_its_formulas_step_by_step(options):
    steps = 4
    strategy = AdaptivePerLayer(ALPHA, BETA, SIGMA_NORM, initial_l2_norm_clip=START)
    model, start = fitted(strategy, steps=steps, **options)
    weights, bounds = adaptive_per_layer_in_numpy(start, steps)
    np.testing.assert_allclose(
        model.optimizer.strategy.bounds, bounds[-1], rtol=1e-4, atol=1e-6
    )
    for actual, expected in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_adaptive_per_layer_follows_its_formulas_under_xla():
    # XLA draws other noise from the same key: compared where noise does not matter.
    strategy = AdaptivePerLayer(ALPHA, BETA, 1e-7, initial_l2_norm_clip=START)
    model, start = fitted(strategy, steps=4, noise_multiplier=0.0, jit_compile=True)
    weights, bounds = adaptive_per_layer_in_numpy(start, 4, sigma=0.0, norm_sigma=0.0)
    np.testing.assert_allclose(model.optimizer.strategy.bounds, bounds[-1], rtol=1e-4)
    for actual, expected in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_layer_is_left_alone_while_its_bound_is_far_too_large():
    # Only the bound of the first layer is; the update of the second one is kept.
    strategy = AdaptivePerLayer(1.0, 2.0, 1e-3, initial_l2_norm_clip=[1e4, 1.0])
    model, start = fitted(strategy, steps=1)
    moved = [
        bool(np.any(after != before.astype("float32")))
        for after, before in zip(model.get_weights(), start, strict=True)
    ]
    assert moved == [False, False, True, True]
    assert model.optimizer.strategy.bounds.numpy()[0] == pytest.approx(2e3)


def test_adaptive_quantile_follows_its_formulas_step_by_step():
    target, rate, count_noise, bound = 0.6, 0.4, 0.7, 0.5
    model, weights = fitted(
        AdaptiveQuantile(target, rate, count_noise, initial_l2_norm_clip=bound), steps=4
    )
    x, y = (a[WEIGHT > 0].astype("float64") for a in data())
    for step in range(4):
        sums, within = [np.zeros(w.shape) for w in weights], 0.0
        for xi, yi in zip(x, y, strict=True):
            gradients = example_gradients(weights, xi, yi)
            size = norm(*gradients)
            within += 0.5 if size <= bound else -0.5
            sums = [
                s + g / max(1, size / bound)
                for s, g in zip(sums, gradients, strict=True)
            ]
        *noise, count = noise_of(step, [*(w.shape for w in weights), (1,)])
        weights = [
            w - RATE * (s + SIGMA * bound * z) / BATCH
            for w, s, z in zip(weights, sums, noise, strict=True)
        ]
        share = (within + 0.5 * count_noise * count[0]) / BATCH + 0.5
        bound *= np.exp(-rate * (share - target))
    assert float(model.optimizer.strategy.sensitivity) == pytest.approx(bound, rel=1e-4)
    for actual, expected in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "strategy", [PerLayer([0.3, 0.2]), Automatic(0.05)], ids=lambda s: type(s).__name__
)
def test_strategies_without_state_follow_their_formulas(strategy):
    model, weights = fitted(strategy, steps=3)
    x, y = (a[WEIGHT > 0].astype("float64") for a in data())
    for step in range(3):
        sums = [np.zeros(w.shape) for w in weights]
        for xi, yi in zip(x, y, strict=True):
            gradients = example_gradients(weights, xi, yi)
            sizes = [norm(*gradients[:2]), norm(*gradients[2:])]
            for index, gradient in enumerate(gradients):
                if isinstance(strategy, Automatic):
                    factor = 1 / (norm(*gradients) + 0.05)
                else:
                    layer = index // 2
                    factor = min(1.0, strategy.l2_norm_clips[layer] / sizes[layer])
                sums[index] += factor * gradient
        std = SIGMA * (1.0 if isinstance(strategy, Automatic) else np.hypot(0.3, 0.2))
        noise = noise_of(step, [w.shape for w in weights])
        weights = [
            w - RATE * (s + std * z) / BATCH
            for w, s, z in zip(weights, sums, noise, strict=True)
        ]
    for actual, expected in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


ADAPTIVE = [
    lambda: AdaptivePerLayer(1.0, 2.0, 3.0),
    lambda: AdaptiveQuantile(0.5, 0.2, 3.0),
]


@pytest.mark.parametrize("make", ADAPTIVE)
def test_bounds_travel_with_the_model_and_not_with_the_strategy(make, tmp_path):
    strategy = make()
    model, _ = fitted(strategy, steps=3)
    bounds = np.array(model.optimizer.strategy.sensitivity)
    other, _ = fitted(strategy, steps=1)
    assert np.array(other.optimizer.strategy.sensitivity) != bounds
    np.testing.assert_array_equal(model.optimizer.strategy.sensitivity, bounds)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded.optimizer.strategy.sensitivity, bounds)
    for trained in (model, loaded):
        x, y = data()
        trained.train_on_batch(x, y, sample_weight=WEIGHT)
    np.testing.assert_allclose(
        loaded.optimizer.strategy.sensitivity,
        model.optimizer.strategy.sensitivity,
        rtol=1e-5,
    )


def test_the_first_bounds_do_not_come_from_the_data():
    x, y = data()
    started = []
    for scale in (1e3, 1e6):
        model = network()
        optimizer = gdp.DPSGD(
            0.0,
            clipping=AdaptivePerLayer(1.0, 2.0, 1e-6),
            noise_multiplier=1e-6,
            batch_size=ROWS,
        )
        model.compile(optimizer, "mse")
        text = gdp.explain_clipping(model, batch=(scale * x, scale * y))
        # Every gradient is beyond twice the first bounds: these are doubled.
        model.train_on_batch(scale * x, scale * y)
        started.append(optimizer.strategy.bounds.numpy() / 2)
        assert all(f"{bound:.3g} (" in text for bound in started[-1])
    np.testing.assert_allclose(started[0], started[1], rtol=1e-3)


def test_no_bound_changes_once_the_limit_of_steps_is_reached():
    model, _ = fitted(AdaptiveQuantile(initial_l2_norm_clip=0.7), steps=2)
    model.optimizer.max_private_steps.assign(2)
    before = float(model.optimizer.strategy.sensitivity)
    x, y = data()
    model.train_on_batch(x, y)
    assert float(model.optimizer.strategy.sensitivity) == before


@pytest.mark.parametrize("make", ADAPTIVE)
def test_an_empty_batch_still_releases_noised_statistics(make):
    seen = set()
    for seed in (1, 2):
        model = network()
        optimizer = gdp.DPSGD(
            0.1,
            clipping=make(),
            noise_multiplier=1.0,
            batch_size=2,
            noise_seed=seed,
        )
        model.compile(optimizer, "mse")
        x, y = data()
        model.train_on_batch(x, y, sample_weight=np.zeros(ROWS, "float32"))
        seen.add(tuple(np.ravel(optimizer.strategy.sensitivity)))
    assert len(seen) == 2


@pytest.mark.parametrize("make", ADAPTIVE)
def test_the_budget_and_the_ledger_count_the_side_release(make):
    x, y = data()
    model = network()
    optimizer = gdp.DPSGD(0.1, clipping=make(), noise_multiplier=1.5)
    model.compile(optimizer, "mse")
    train = gdp.PoissonDataset(x, y, batch_size=2)
    budget = gdp.PrivacyBudget(delta=1e-3, dataset=train)
    model.fit(train, epochs=3, callbacks=[budget], verbose=0)
    effective = (1.5**-2 + 3.0**-2) ** -0.5
    (phase,) = optimizer.phases
    assert phase.noise_multiplier == pytest.approx(effective, rel=1e-12)
    by_hand = gdp.accounting.ExactAccountant()
    by_hand.compose(gdp.accounting.SampledGaussian(effective, 0.25), 12)
    assert budget.spent() == pytest.approx(by_hand.epsilon(1e-3), rel=1e-9)
    statement = budget.statement()
    assert statement.noise_multiplier == 1.5
    assert statement.effective_noise_multiplier == phase.noise_multiplier
    assert f"noise multiplier {effective:.6g}" in " ".join(str(statement).split())
    assert statement.to_dict()["sensitivity"] > 0
    # The limit follows as well.
    limited = gdp.PrivacyBudget(epsilon=budget.spent() * 1.2, delta=1e-3, dataset=train)
    model.fit(train, epochs=50, callbacks=[limited], verbose=0)
    total = int(optimizer.private_steps)
    by_hand = gdp.accounting.max_steps(
        gdp.accounting.SampledGaussian(effective, 0.25),
        epsilon=limited.epsilon,
        delta=1e-3,
    )
    assert total == by_hand


def test_noise_on_the_statistics_is_independent_of_that_on_the_gradient():
    # One weight, no data: the update and the new bound are the two noises.
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    optimizer = gdp.DPSGD(
        1.0,
        clipping=AdaptiveQuantile(0.5, 0.1, 1.0, initial_l2_norm_clip=1.0),
        noise_multiplier=1.0,
        batch_size=1,
        noise_seed=3,
    )
    model.compile(optimizer, "mse")
    zero = np.zeros((1, 1), "float32")
    updates, moves = [], []
    for _ in range(400):
        weight = float(model.weights[0].numpy().item())
        bound = float(optimizer.strategy.sensitivity)
        model.train_on_batch(zero, zero, sample_weight=np.zeros(1))
        updates.append((weight - float(model.weights[0].numpy().item())) / bound)
        moves.append(np.log(float(optimizer.strategy.sensitivity) / bound) / -0.05)
    # Standard errors: 0.05 for the correlation, 0.035 for the deviations; five of them.
    assert abs(np.corrcoef(updates, moves)[0, 1]) < 0.25
    assert np.std(updates) == pytest.approx(1.0, abs=0.18)
    assert np.std(moves) == pytest.approx(1.0, abs=0.18)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize(
    "make", [*ADAPTIVE, lambda: PerLayer(0.1), Automatic], ids=range(4)
)
def test_strategies_work_under_mixed_precision(make, policy):
    keras.config.set_dtype_policy(policy)
    try:
        x, y = data()
        model = network()
        optimizer = gdp.DPAdam(0.1, clipping=make(), noise_multiplier=0.1, noise_seed=1)
        model.compile(optimizer, "mse")
        model.fit(x, y, batch_size=4, epochs=2, verbose=0)
    finally:
        keras.config.set_dtype_policy("float32")
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert int(optimizer.private_steps) == 4


def test_private_step_adapts_as_fit_does():
    x, y = data()
    model = network()
    optimizer = gdp.DPSGD(
        0.1, clipping=AdaptivePerLayer(1.0, 2.0, 1.0), noise_multiplier=1.0
    )

    def loss(example):
        return tf.reduce_mean((model(example["x"][None]) - example["y"]) ** 2)

    variables = model.trainable_variables
    optimizer.private_step(loss, {"x": x, "y": y}, variables)
    before = optimizer.strategy.bounds.numpy()
    optimizer.private_step(loss, {"x": x, "y": y}, variables)
    assert (optimizer.strategy.bounds.numpy() != before).all()
    with pytest.raises(ValueError, match="one bound per layer"):
        optimizer.private_step(loss, {"x": x, "y": y}, variables[:2])


def test_the_strategy_of_an_optimizer_cannot_be_changed_behind_the_ledgers_back():
    strategy = AdaptiveQuantile()
    optimizer = gdp.DPSGD(0.1, clipping=strategy, noise_multiplier=1.0)
    with pytest.raises(AttributeError, match="new optimizer"):
        optimizer.strategy.count_noise_multiplier = 1e9
    strategy.count_noise_multiplier = 1e9
    assert optimizer.strategy.effective_noise_multiplier(1.0) < 0.996


def test_a_start_that_gradients_of_noise_cannot_give_is_refused():
    model = network()
    optimizer = gdp.DPSGD(0.1, clipping=AdaptivePerLayer(), noise_multiplier=1.0)
    model.compile(optimizer, lambda y, p: 0.0 * p[:, 0])
    with pytest.raises(ValueError, match="initial_l2_norm_clip"):
        model.train_on_batch(*data())
