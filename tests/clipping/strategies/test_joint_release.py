"""One example moves what a step releases by no more than the strategy states."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_gdp.clipping import (
    AdaptivePerLayer,
    AdaptiveQuantile,
    Automatic,
    Flat,
    PerLayer,
)
from keras_gdp.clipping.choose import ENGINES
from keras_gdp.training.objective import model_objective
from tests.zoo import build

NOISE = 1.3
STRATEGIES = {
    "flat": lambda: Flat(0.3),
    "per_layer": lambda: PerLayer(0.2),
    "per_variable": lambda: PerLayer(0.1, groups="variable"),
    "adaptive_per_layer": lambda: AdaptivePerLayer(
        1.1, 2.0, 0.9, initial_l2_norm_clip=0.15
    ),
    "adaptive_quantile": lambda: AdaptiveQuantile(
        0.4, 0.3, 0.8, initial_l2_norm_clip=0.25
    ),
    "automatic": lambda: Automatic(0.05),
}


def compiled(name, rows):
    model, loss, x, y = build(name, rows)
    model.compile(loss=loss, optimizer="sgd")
    model._symbolic_build(
        data_batch=keras.tree.map_structure(lambda a: a[:1], (x, y)) + (None,)
    )
    objective, _ = model_objective(model)
    batch = keras.tree.map_structure(tf.convert_to_tensor, (x, y)) + (None,)
    return model, objective, batch


def ready(name, model):
    strategy = STRATEGIES[name]()
    strategy.build(
        model.trainable_variables,
        lambda shape, initializer, name: keras.Variable(
            initializer, shape, dtype="float32", name=name
        ),
    )
    return strategy


def scaled_release(engine, strategy, objective, batch, present, chunk=None):
    """Returns everything that is noised, each part in units of its noise."""

    @tf.function(autograph=False)
    def run(present):
        return ENGINES[engine](strategy, chunk).clip(objective, batch, present)

    clipped = run(tf.constant(present))
    stddevs = strategy.noise_stddevs(NOISE, len(clipped.gradients))
    parts = [
        np.ravel(g).astype("float64") / float(s)
        for g, s in zip(clipped.gradients, stddevs, strict=True)
    ]
    if clipped.statistics is not None:
        statistics = clipped.statistics.numpy().astype("float64")
        parts.append(statistics / np.asarray(strategy.statistics_stddevs()))
    return np.concatenate(parts)


CASES = [("mlp", engine) for engine in ENGINES]
CASES += [(name, "bookkeeping") for name in ("cnn", "embedding")]


@pytest.mark.parametrize("name", list(STRATEGIES))
@pytest.mark.parametrize(("network", "engine"), CASES)
def test_neighbours_differ_by_at_most_one_over_the_effective_noise(
    network, name, engine
):
    model, objective, batch = compiled(network, 4)
    strategy = ready(name, model)
    allowed = 1.0 / strategy.effective_noise_multiplier(NOISE)
    whole = scaled_release(engine, strategy, objective, batch, [True] * 4)
    for removed in range(4):
        present = [row != removed for row in range(4)]
        without = scaled_release(engine, strategy, objective, batch, present)
        assert np.linalg.norm(whole - without) <= allowed * (1 + 2e-6)


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_the_stated_cost_is_reached_by_an_example_beyond_every_bound(name):
    model, objective, _ = compiled("mlp", 1)
    x = tf.fill([1, 4], 1e6)
    strategy = ready(name, model)
    batch = (x, tf.constant([1], tf.int64), None)
    release = scaled_release("loop", strategy, objective, batch, [True])
    allowed = 1.0 / strategy.effective_noise_multiplier(NOISE)
    assert np.linalg.norm(release) == pytest.approx(allowed, rel=1e-3)


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_engines_and_chunks_agree(name):
    model, objective, batch = compiled("mlp", 7)
    strategy = ready(name, model)
    expected = scaled_release("loop", strategy, objective, batch, [True] * 7)
    for engine in ENGINES:
        for chunk in (None, 3):
            actual = scaled_release(
                engine, strategy, objective, batch, [True] * 7, chunk
            )
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("name", list(STRATEGIES))
def test_absent_and_broken_rows_contribute_exactly_nothing(name, engine):
    model, objective, (x, y, _) = compiled("mlp", 4)
    strategy = ready(name, model)
    kept = scaled_release(engine, strategy, objective, (x[:2], y[:2], None), [True] * 2)
    broken = tf.tensor_scatter_nd_update(x, [[2, 0], [3, 1]], [np.nan, 7.0])
    with_others = scaled_release(
        engine, strategy, objective, (broken, y, None), [True, True, True, False]
    )
    np.testing.assert_allclose(with_others, kept, rtol=1e-5, atol=1e-6)
    nobody = scaled_release(engine, strategy, objective, (broken, y, None), [False] * 4)
    np.testing.assert_array_equal(nobody, np.zeros_like(nobody))


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_a_row_with_a_huge_norm_in_one_variable_stays_within_the_cost(name):
    strategy = STRATEGIES[name]()
    strategy.build(
        [keras.Variable(np.zeros(2), name=f"w{i}") for i in range(2)],
        lambda shape, initializer, name: keras.Variable(initializer, shape),
    )
    if name.startswith(("flat", "auto", "adaptive_q")) is False:
        for squares in ([[np.inf, 1.0]], [[np.nan, 1.0]]):
            factors = strategy.factors(tf.constant(squares))
            np.testing.assert_array_equal(factors, np.zeros((1, 2)))
    squares = np.array([[1e-30, 4.0], [1e30, 1e-4], [0.0, 0.0]], "float32")
    factors = np.broadcast_to(strategy.factors(tf.constant(squares)), (3, 2))
    clipped = np.sqrt(squares.astype("float64")) * factors
    stddevs = [float(s) for s in strategy.noise_stddevs(1.0, 2)]
    assert np.isfinite(factors).all()
    assert (np.linalg.norm(clipped / stddevs, axis=1) <= 1.0).all()
