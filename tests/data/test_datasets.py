import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_gdp as gdp

X = np.arange(100, dtype="float32").reshape(50, 2)
Y = np.arange(50)


def members(dataset, index=0):
    x, _, weights = dataset[index]
    return x[weights > 0, 0].astype(int) // 2, weights


def test_poisson_batches_have_a_static_shape_and_weightless_padding():
    dataset = gdp.PoissonDataset(X, Y, batch_size=10)
    shapes = {tuple(a.shape for a in dataset[0]) for _ in range(50)}
    rows = dataset.padded_batch_size
    assert shapes == {((rows, 2), (rows,), (rows,))}
    drawn, weights = members(dataset)
    assert set(weights.tolist()) <= {0.0, 1.0}
    assert len(set(drawn.tolist())) == len(drawn)


def test_poisson_inclusion_frequency_through_the_dataset():
    dataset = gdp.PoissonDataset(X, Y, batch_size=10, seed=3, steps_per_epoch=3000)
    counts = np.zeros(50)
    for step in range(3000):
        counts[members(dataset, step)[0]] += 1
    deviation = np.abs(counts / 3000 - 0.2) / np.sqrt(0.16 / 3000)
    assert deviation.max() < 5  # Fails by chance once in 30,000 seeds.


def test_rows_of_x_y_and_weights_stay_together():
    dataset = gdp.PoissonDataset(
        {"a": X}, [Y, 2 * Y], sample_weight=Y + 1.0, batch_size=20
    )
    x, y, weights = dataset[0]
    real = weights > 0
    np.testing.assert_array_equal(x["a"][real, 0] / 2, y[0][real])
    np.testing.assert_array_equal(2 * y[0], y[1])
    np.testing.assert_array_equal(weights[real], y[0][real] + 1)


def test_empty_draws_are_batches_of_padding():
    dataset = gdp.PoissonDataset(X, Y, batch_size=0.01, seed=0)
    _, weights = members(dataset)
    assert weights.shape == (dataset.padded_batch_size,)
    assert not weights.any()


def test_a_draw_beyond_the_padded_size_is_kept_whole():
    dataset = gdp.PoissonDataset(X, Y, batch_size=25)
    dataset.padded_batch_size = 4
    drawn, weights = members(dataset)
    assert len(drawn) > 4
    assert len(weights) % 4 == 0


def test_unseeded_datasets_draw_differently_and_seeded_ones_alike():
    def first(seed):
        return members(gdp.PoissonDataset(X, Y, batch_size=25, seed=seed))[0].tolist()

    assert first(None) != first(None)
    assert first(4) == first(4)
    assert first(4) != first(5)


def test_seeded_datasets_draw_anew_every_epoch_and_step():
    dataset = gdp.PoissonDataset(X, Y, batch_size=25, seed=1)
    draws = []
    for _ in range(3):
        dataset.on_epoch_begin()
        draws += [tuple(members(dataset, i)[0]) for i in range(len(dataset))]
    assert len(set(draws)) == len(draws)


def test_the_nominal_epoch_is_the_nearest_number_of_steps():
    assert len(gdp.PoissonDataset(X, Y, batch_size=20)) == 2
    assert len(gdp.PoissonDataset(X, Y, batch_size=50)) == 1
    dataset = gdp.PoissonDataset(X, Y, batch_size=20, steps_per_epoch=7)
    assert dataset.steps_per_epoch == dataset.num_batches == 7


def test_declared_facts():
    dataset = gdp.PoissonDataset(X, Y, batch_size=5)
    assert (dataset.num_examples, dataset.batch_size) == (50, 5)
    assert dataset.sampling_probability == 0.1


def test_uniform_batches_have_fixed_size_without_repeats():
    dataset = gdp.UniformDataset(X, Y, batch_size=10)
    x, y = dataset[0]
    assert len(set(y.tolist())) == 10
    np.testing.assert_array_equal(x[:, 0] / 2, y)


class Items:
    def __init__(self, *arrays):
        self.arrays = arrays

    def __len__(self):
        return len(self.arrays[0])

    def __getitem__(self, index):
        item = tuple(a[index] for a in self.arrays)
        return item if len(item) > 1 else item[0]


@pytest.mark.parametrize("size", [0.001, 20])
def test_item_sources_are_fetched_one_by_one(size):
    dataset = gdp.PoissonDataset(Items(X, Y), batch_size=size, seed=2)
    x, y, weights = dataset[0]
    assert x.shape == (dataset.padded_batch_size, 2)
    np.testing.assert_array_equal(x[weights > 0, 0] / 2, y[weights > 0])
    dataset = gdp.PoissonDataset(Items(X), Y, batch_size=20)
    x, y, weights = dataset[0]
    np.testing.assert_array_equal(x[weights > 0, 0] / 2, y[weights > 0])


@pytest.mark.parametrize("dataset_class", [gdp.PoissonDataset, gdp.UniformDataset])
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"x": X, "y": Y, "batch_size": 51}, "batch_size"),
        ({"x": X, "y": Y, "batch_size": 0}, "`batch_size`.*such as 256"),
        ({"x": X, "y": Y[:-1], "batch_size": 5}, "`y`.*how the data was loaded"),
        ({"x": X, "y": Y, "batch_size": 5, "steps_per_epoch": 0}, "Leave it out"),
        ({"x": X[:0], "y": Y[:0], "batch_size": 5}, "`x`.*none.*was loaded"),
        ({"x": None, "batch_size": 5}, "`x`.*none.*was loaded"),
        ({"x": X, "batch_size": 5, "seed": -1}, "`seed`.*Pass None"),
        ({"x": np.array([{}, 1]), "batch_size": 1}, "`x`.*objects. Pad"),
        ({"x": [[1], [1, 2]], "batch_size": 1}, "`x`"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_arguments_are_named(dataset_class, arguments, named):
    with pytest.raises(ValueError, match=named):
        dataset_class(**arguments)


def test_batch_size_is_required():
    with pytest.raises(TypeError, match="batch_size"):
        gdp.PoissonDataset(X, Y)


def compiled(**kwargs):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = gdp.DPSGD(0.0, l2_norm_clip=1.0, noise_multiplier=1.0)
    model.compile(optimizer, "mse", metrics=["mae"], **kwargs)
    return model


@pytest.mark.parametrize(
    "kwargs", [{}, {"jit_compile": True}, {"run_eagerly": True}], ids=str
)
def test_padding_counts_neither_in_loss_nor_in_metrics(kwargs):
    dataset = gdp.PoissonDataset(X, Y, batch_size=10, seed=1, steps_per_epoch=1)
    model = compiled(**kwargs)
    dataset.on_epoch_begin()
    x, y, weights = dataset[0]
    dataset._epoch = 0
    logs = model.fit(dataset, verbose=0).history
    errors = model.predict(x, verbose=0)[weights > 0, 0] - y[weights > 0]
    assert logs["mae"][0] == pytest.approx(np.abs(errors).mean(), rel=1e-5)
    assert logs["loss"][0] == pytest.approx((errors**2).mean(), rel=1e-5)


def test_fit_divides_by_the_expected_batch_size():
    model = compiled()
    model.fit(gdp.PoissonDataset(X, Y, batch_size=7), verbose=0)
    assert float(model.optimizer._divisor) == 7


def test_empty_batches_are_noise_only_updates_and_are_charged():
    dataset = gdp.PoissonDataset(X, Y, batch_size=1e-6, seed=0, steps_per_epoch=2)
    model = compiled()
    model.optimizer.learning_rate = 1e-9
    before = model.get_weights()[0]
    model.fit(dataset, verbose=0)
    assert int(model.optimizer.private_steps) == 2
    assert not np.array_equal(model.get_weights()[0], before)


def test_class_weight_with_a_dataset_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match="sample_weight="):
        compiled().fit(
            gdp.PoissonDataset(X, Y, batch_size=7), class_weight={0: 1.0}, verbose=0
        )


@pytest.mark.parametrize("workers", [{"workers": 2}, {"workers": 1}])
def test_threads_can_fetch(workers):
    dataset = gdp.PoissonDataset(X, Y, batch_size=10, **workers)
    compiled().fit(dataset, verbose=0)


def test_targets_may_be_absent():
    class Loss(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **_):
            return keras.ops.mean(y_pred)

    model = Loss()
    model.compile(gdp.DPSGD(0.1, l2_norm_clip=1.0, noise_multiplier=1.0))
    model.fit(gdp.PoissonDataset(X, batch_size=10), verbose=0)
    assert int(model.optimizer.private_steps) == 5


def test_datasets_are_usable_outside_of_fit():
    x, y, weights = next(iter(gdp.PoissonDataset(X, Y, batch_size=10)))
    assert len(x) == len(y) == len(weights)
    assert tf.convert_to_tensor(x).shape[1] == 2


@pytest.mark.parametrize("kind", [gdp.PoissonDataset, gdp.UniformDataset])
@pytest.mark.parametrize(
    "name",
    ["batch_size", "num_examples", "sampling", "sampling_probability", "seed", "draws"],
)
def test_what_the_accounting_rests_on_cannot_be_changed(kind, name):
    dataset = kind(np.ones((20, 2)), batch_size=5)
    with pytest.raises(AttributeError):
        setattr(dataset, name, 20)
    assert len(dataset[0][0]) < 20


def test_sources_of_batches_are_refused_as_they_would_be_the_unit_of_privacy():
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return np.ones((5, 2)), np.ones(5)

    for source in (
        Batches(),
        tf.data.Dataset.from_tensor_slices(np.ones((20, 2))).batch(5),
        (np.ones((5, 2)) for _ in range(4)),
    ):
        with pytest.raises(ValueError, match="single examples"):
            gdp.PoissonDataset(source, batch_size=2)
