"""Every row of the table spends the budget, and trains within it."""

import math

import keras
import numpy as np
import pytest

import keras_gdp as gdp
from keras_gdp import accounting
from keras_gdp.tuning import large_batch

SETTINGS = {
    "num_examples": 60_000,
    "epochs": 10,
    "base_learning_rate": 0.1,
    "base_batch_size": 100,
}


def test_every_row_spends_the_budget_and_no_more():
    for row in large_batch(2.0, 1e-5, **SETTINGS, batch_sizes=[100, 1600, 60_000]):
        accountant = accounting.ExactAccountant()
        event = accounting.SampledGaussian(
            row.noise_multiplier, row.batch_size / 60_000
        )
        accountant.compose(event, row.steps)
        assert accountant.epsilon(1e-5) <= 2.0
        assert accountant.epsilon(1e-5) == pytest.approx(2.0, rel=1e-6)
        assert row.steps == 10 * round(60_000 / row.batch_size)


def test_noise_per_example_falls_as_batches_grow():
    table = large_batch(2.0, 1e-5, **SETTINGS)
    assert [row.batch_size for row in table] == [100 * 2**k for k in range(10)]
    noise = [row.noise_multiplier for row in table]
    per_example = [row.noise_per_example for row in table]
    assert noise == sorted(noise)
    assert per_example == sorted(per_example, reverse=True)
    assert per_example[3] == noise[3] / 800


@pytest.mark.parametrize(
    ("scaling", "factor"), [("linear", 16.0), ("sqrt", 4.0), ("none", 1.0)]
)
def test_the_learning_rate_is_scaled_along(scaling, factor):
    table = large_batch(2.0, 1e-5, **SETTINGS, batch_sizes=[1600], scaling=scaling)
    assert table[0].learning_rate == pytest.approx(0.1 * factor)


def test_the_table_prints_and_finds_its_rows():
    table = large_batch(2.0, 1e-5, **SETTINGS, batch_sizes=[1600, 100])
    assert len(str(table).splitlines()) == 3
    assert table.row(1600) is table[1]
    with pytest.raises(ValueError, match="no row for batch_size=7.*Take one"):
        table.row(7)


def test_the_figure_shows_the_rows():
    import matplotlib

    matplotlib.use("Agg")
    table = large_batch(2.0, 1e-5, **SETTINGS, batch_sizes=[100, 1600])
    (line,) = table.plot().get_lines()
    np.testing.assert_allclose(line.get_ydata(), [r.noise_per_example for r in table])


@pytest.mark.parametrize(
    "clip", [1.0, gdp.clipping.AdaptiveQuantile(count_noise_multiplier=20.0)], ids=str
)
def test_a_row_becomes_a_training_that_ends_with_the_budget(clip):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(400, 3)).astype("float32"), rng.integers(0, 2, 400)
    row = large_batch(
        3.0,
        1e-4,
        num_examples=400,
        epochs=3,
        base_learning_rate=0.05,
        base_batch_size=20,
        batch_sizes=[100],
        warmup_epochs=1,
    )[0]
    optimizer = row.optimizer(gdp.DPAdam, l2_norm_clip=clip, physical_batch_size=50)
    train = row.dataset(x, y)
    budget = row.budget(train)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    model.fit(train, epochs=row.epochs, callbacks=[budget], verbose=0)
    assert int(optimizer.private_steps) == row.steps == 12
    assert budget.spent() == pytest.approx(3.0, rel=1e-6)
    assert budget.spent() <= 3.0
    assert budget.remaining_steps() == 0


def test_the_warm_up_rises_linearly_and_survives_its_config():
    row = large_batch(2.0, 1e-5, **SETTINGS, batch_sizes=[6000], warmup_epochs=1)[0]
    assert row.warmup_steps == 10
    optimizer = row.optimizer(l2_norm_clip=1.0)
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    for schedule in (optimizer._learning_rate, restored._learning_rate):
        rates = [float(schedule(step)) for step in (0, 4, 9, 10, 1000)]
        np.testing.assert_allclose(rates, [0.6, 3.0, 6.0, 6.0, 6.0], rtol=1e-6)


@pytest.mark.parametrize("bad", [keras.optimizers.SGD, "sgd", gdp.PoissonDataset])
def test_only_private_optimizers_are_made(bad):
    row = large_batch(2.0, 1e-5, **SETTINGS, batch_sizes=[6000])[0]
    with pytest.raises(ValueError, match="`optimizer_class`.*make_private"):
        row.optimizer(bad, l2_norm_clip=1.0)


def test_data_of_another_size_is_refused():
    row = large_batch(2.0, 1e-5, **SETTINGS, batch_sizes=[100])[0]
    with pytest.raises(ValueError, match="num_examples=60000"):
        row.dataset(np.zeros((5000, 2)), np.zeros(5000))


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"batch_sizes": [70_000]}, "`batch_sizes`.*Leave it out"),
        ({"batch_sizes": [0]}, "batch_sizes"),
        ({"batch_sizes": 128}, "`batch_sizes` must be a list.*Received"),
        ({"batch_sizes": []}, "`batch_sizes` must be a list.*Received"),
        ({"batch_sizes": "128"}, "`batch_sizes` must be a list.*Received"),
        ({"batch_sizes": None, "num_examples": 50}, "`base_batch_size`.*=100"),
        ({"epochs": 0}, "`epochs`.*such as 10"),
        ({"scaling": "cubic"}, "`scaling`.*'sqrt' Adam"),
        ({"accountant": "exactly"}, "Did you mean 'exact'"),
        ({"warmup_epochs": -1}, "`warmup_epochs`.*no warm-up"),
        ({"base_learning_rate": 0.0}, "`base_learning_rate`.*such as 0.1"),
        ({"warmup_epochs": 11}, "warmup_epochs"),
        ({"base_batch_size": math.inf}, "base_batch_size"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(bad, named):
    with pytest.raises(ValueError, match=named):
        large_batch(2.0, 1e-5, **{**SETTINGS, "batch_sizes": [100], **bad})
