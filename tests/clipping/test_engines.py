"""Every engine against a Python loop over single examples."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_gdp.clipping import Flat
from keras_gdp.clipping.choose import ENGINES
from keras_gdp.training.objective import model_objective
from tests.zoo import ZOO, build


def clipped_sum(engine, model, loss, x, y, present=None, clip=1.0, chunk=None):
    model.compile(loss=loss, optimizer="sgd")
    model._symbolic_build(data_batch=(_row(x), _row(y), None))
    objective, _ = model_objective(model)
    rows = len(keras.tree.flatten(x)[0])
    batch = keras.tree.map_structure(tf.convert_to_tensor, (x, y)) + (None,)
    present = tf.ones([rows], tf.bool) if present is None else tf.constant(present)

    @tf.function(autograph=False)
    def run():
        return ENGINES[engine](Flat(clip), chunk).clip(objective, batch, present)

    return run()


def _row(data):
    return keras.tree.map_structure(
        lambda a: np.zeros((1, *a.shape[1:]), a.dtype), data
    )


def one_by_one(model, loss, x, y, clip=1.0):
    """Clips each example's gradient with NumPy, and adds them up in float64."""
    model.compile(loss=loss, optimizer="sgd")
    total, norms = None, []
    for index in range(len(keras.tree.flatten(x)[0])):
        row_x, row_y = keras.tree.map_structure(
            lambda a, i=index: tf.constant(a[i : i + 1]), (x, y)
        )
        with tf.GradientTape() as tape:
            value = model.compute_loss(
                x=row_x, y=row_y, y_pred=model(row_x, training=True)
            )
            for variable in model.trainable_variables:
                if variable.regularizer is not None:
                    value = value - variable.regularizer(variable)
        gradients = tape.gradient(value, [v.value for v in model.trainable_variables])
        gradients = [
            np.zeros(v.shape)
            if g is None
            else tf.convert_to_tensor(g).numpy().astype("float64")
            for g, v in zip(gradients, model.trainable_variables, strict=True)
        ]
        norm = np.sqrt(sum(np.sum(g**2) for g in gradients))
        norms.append(norm)
        scaled = [g * min(1.0, clip / norm) if norm else g for g in gradients]
        total = (
            scaled
            if total is None
            else [a + b for a, b in zip(total, scaled, strict=True)]
        )
    return total, np.array(norms)


def flat(arrays):
    return np.concatenate([np.ravel(a) for a in arrays]).astype("float64")


# Losses that layers add are known for a whole batch only.
CASES = [
    (engine, name)
    for name in ZOO
    for engine in ENGINES
    if name != "with_activity_loss" or engine in ("loop", "vectorized")
]


@pytest.mark.parametrize(("engine", "name"), CASES)
def test_engine_equals_one_example_at_a_time(engine, name):
    model, loss, x, y = build(name, 5)
    expected, norms = one_by_one(model, loss, x, y, clip=0.7)
    result = clipped_sum(engine, model, loss, x, y, clip=0.7)
    scale = np.abs(flat(expected)).max()
    np.testing.assert_allclose(
        flat(result.gradients), flat(expected), atol=1e-5 * scale, rtol=0
    )
    measured = np.sqrt(np.sum(result.squared_norms.numpy(), axis=1))
    np.testing.assert_allclose(measured, norms, rtol=1e-5)


@pytest.mark.parametrize(("engine", "name"), CASES)
def test_neighbouring_batches_differ_by_at_most_the_clip_norm(engine, name):
    clip = 0.05
    model, loss, x, y = build(name, 4)
    whole = flat(clipped_sum(engine, model, loss, x, y, clip=clip).gradients)
    for removed in range(4):
        present = [row != removed for row in range(4)]
        without = clipped_sum(engine, model, loss, x, y, present, clip=clip)
        difference = np.linalg.norm(whole - flat(without.gradients))
        assert difference <= clip * (1 + 1e-6)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
@pytest.mark.parametrize("engine", list(ENGINES))
def test_physical_batch_size_does_not_change_the_result(engine, chunk):
    model, loss, x, y = build("mlp", 7)
    whole = clipped_sum(engine, model, loss, x, y)
    parts = clipped_sum(engine, model, loss, x, y, chunk=chunk)
    np.testing.assert_allclose(flat(parts.gradients), flat(whole.gradients), atol=1e-6)
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=1e-6)
    np.testing.assert_allclose(parts.outputs[0], whole.outputs[0], rtol=1e-5)


@pytest.mark.parametrize("engine", list(ENGINES))
def test_an_empty_batch_gives_exact_zeros(engine):
    model, loss, x, y = build("mlp", 0)
    result = clipped_sum(engine, model, loss, x, y)
    assert not flat(result.gradients).any()
    assert result.losses.shape == (0,)


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_non_finite_example_contributes_exactly_zero(engine, poison):
    model, loss, x, y = build("mlp", 4)
    present = [True, True, False, True]
    expected = clipped_sum(engine, model, loss, x, y, present)
    x[2] = poison
    result = clipped_sum(engine, model, loss, x, y)
    if engine == "reweight":  # It hands such a chunk to bookkeeping, which rounds anew.
        np.testing.assert_allclose(
            flat(result.gradients), flat(expected.gradients), atol=3e-7, rtol=0
        )
    else:
        np.testing.assert_array_equal(flat(result.gradients), flat(expected.gradients))


@pytest.mark.parametrize("engine", list(ENGINES))
def test_zero_gradients_stay_zero(engine):
    model, _, x, y = build("subclassed", 3)
    loss = lambda y_true, y_pred: 0.0 * keras.ops.sum(y_pred, axis=-1)  # noqa: E731
    assert not flat(clipped_sum(engine, model, loss, x, y).gradients).any()


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_variable_without_gradient_counts_as_zero(engine):
    inputs = keras.Input((3,))
    unused = keras.layers.Dense(2)(inputs)
    model = keras.Model(inputs, [keras.layers.Dense(1)(inputs), unused])
    x = np.ones((2, 3), "float32")
    y = [np.ones((2, 1), "float32"), np.ones((2, 2), "float32")]
    result = clipped_sum(engine, model, ["mse", None], x, y)
    sizes = [float(np.abs(g).max()) for g in result.gradients]
    assert sum(size == 0 for size in sizes) == 2
    assert sum(size > 0 for size in sizes) == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_the_sums_have_the_variables_shapes_where_sizes_are_not_known(engine, seeded):
    L = keras.layers
    model = keras.Sequential(
        [keras.Input((None, 2)), L.Dense(4), L.GlobalMaxPooling1D(), L.Dense(3)]
    )
    x = np.random.default_rng(0).normal(size=(4, 5, 2)).astype("float32")
    y = np.ones((4, 3), "float32")
    total, _ = one_by_one(model, "mse", x, y)
    objective, _ = model_objective(model)

    @tf.function(input_signature=[tf.TensorSpec([None, None, 2])], autograph=False)
    def run(x):
        batch = x, tf.constant(y), None
        clipped = ENGINES[engine](Flat(1.0)).clip(objective, batch, tf.fill([4], True))
        for part, variable in zip(clipped.gradients, objective.variables, strict=True):
            assert part.shape == variable.shape
        return clipped.gradients

    for part, expected in zip(run(x), total, strict=True):
        np.testing.assert_allclose(part, expected, atol=1e-5)
