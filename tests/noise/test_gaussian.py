import copy
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import keras_gdp as gdp
from keras_gdp.noise import NoiseStream


def draws(stream, steps, shape=(100, 100), variables=2):
    return np.array(
        [
            [
                t.numpy()
                for t in stream.draw([shape] * variables, [tf.float32] * variables, s)
            ]
            for s in range(steps)
        ]
    )


def largest_correlation(samples):
    rows = samples.reshape(-1, samples.shape[-1] * samples.shape[-2])
    correlation = np.corrcoef(rows)
    return np.abs(correlation - np.eye(len(rows))).max()


@pytest.mark.parametrize("seed", [None, 7])
def test_noise_is_standard_normal_and_independent_across_steps_and_variables(seed):
    samples = draws(NoiseStream(seed), steps=4)
    # 80,000 samples: the standard error of the deviation is 0.0025, of a correlation
    # of 10,000 pairs 0.01. Six standard errors fail once in 1e9 runs.
    assert abs(samples.std() - 1) < 6 * 0.0025
    assert abs(samples.mean()) < 6 * 0.0036
    assert abs((samples**4).mean() - 3) < 6 * 0.035
    assert largest_correlation(samples) < 6 * 0.01


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_noise_has_the_normal_distribution_function_up_to_its_tails(dtype, xla):
    stream = NoiseStream(3)

    @tf.function(jit_compile=xla, autograph=False)
    def draw(step):
        return stream.draw([(1000, 1001)], [tf.as_dtype(dtype)], step)[0]

    samples, others = draw(tf.constant(0)), draw(tf.constant(1))
    assert samples.dtype == dtype
    samples, others = np.ravel(samples), np.ravel(others)
    assert abs(np.corrcoef(samples, others)[0, 1]) < 6e-3
    # Asymptotic p-value; a right generator falls below once in 1e6 seeds.
    assert stats.kstest(samples, "norm").pvalue > 1e-6
    for bound in (3, 4, 4.5):
        expected = samples.size * 2 * stats.norm.sf(bound)
        beyond = np.sum(np.abs(samples) > bound)
        assert abs(beyond - expected) < 6 * np.sqrt(expected)
    assert np.isfinite(samples).all()


def test_every_entry_of_odd_shapes_is_drawn_once():
    shapes = [(3,), (), (2, 5), (0, 4), (7, 1)]
    drawn = NoiseStream().draw(shapes, [tf.float32] * 5, 0)
    assert [tuple(d.shape) for d in drawn] == shapes
    values = np.concatenate([np.ravel(d) for d in drawn])
    assert len(np.unique(values)) == 21


def test_two_streams_without_seed_are_independent():
    samples = np.concatenate([draws(NoiseStream(), 1), draws(NoiseStream(), 1)])
    assert largest_correlation(samples) < 0.06


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda s: s.__reduce__()[0](*s.__reduce__()[1])]
)
def test_a_copy_has_its_own_noise(copied):
    stream = NoiseStream()
    samples = np.concatenate([draws(copied(stream), 1), draws(stream, 1)])
    assert largest_correlation(samples) < 0.06


def test_going_back_to_an_earlier_step_does_not_repeat_noise():
    stream = NoiseStream()
    samples = np.concatenate([draws(stream, 1), draws(stream, 1)])
    assert largest_correlation(samples) < 0.06


def test_refresh_changes_the_noise_of_unseeded_streams_only():
    stream = NoiseStream(3)
    first = draws(stream, 1)
    stream.refresh()
    np.testing.assert_array_equal(draws(stream, 1), first)


def test_a_seed_makes_noise_a_function_of_seed_and_step():
    np.testing.assert_array_equal(draws(NoiseStream(3), 2), draws(NoiseStream(3), 2))
    assert (
        largest_correlation(
            np.concatenate([draws(NoiseStream(3), 1), draws(NoiseStream(4), 1)])
        )
        < 0.06
    )


def test_noise_is_fresh_at_every_call_of_a_compiled_function():
    stream = NoiseStream()

    @tf.function(jit_compile=True)
    def step(index):
        return stream.draw([(100, 100)], [tf.float32], index)[0]

    samples = np.array([[step(tf.constant(0)).numpy()] for _ in range(3)])
    assert largest_correlation(samples) < 0.06


@pytest.mark.parametrize("how", ["fit", "train_on_batch", "private_step"])
def test_a_forked_process_draws_noise_of_its_own(monkeypatch, how):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = gdp.DPSGD(0.1, l2_norm_clip=1.0, noise_multiplier=1.0, batch_size=4)
    model.compile(optimizer, "mse")
    x, y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")

    def loss(example):
        return tf.reduce_sum(model(example[None]))

    def step():
        if how == "private_step":
            optimizer.private_step(loss, x, model.trainable_variables)
        elif how == "fit":
            model.fit(x, y, batch_size=4, verbose=0)
        else:
            model.train_on_batch(x, y)

    step()
    # Two processes that go on from the same key.
    key, following = optimizer._noise._key[0], []
    start = key.numpy()
    for _ in range(2):
        key.assign(start)
        following.append((step(), key.numpy())[1])
    np.testing.assert_array_equal(*following)
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    key.assign(start)
    step()
    assert not np.isin(key.numpy(), following).any()


@pytest.mark.parametrize("stddevs", [[2.0] * 2, [2.0, 3.0]])
def test_standard_deviations_scale_the_same_draws(stddevs):
    shapes, dtypes = [(3, 2), (5,)], [tf.float32] * 2
    standard = NoiseStream(3).draw(shapes, dtypes, 0)
    for stddev, z, noise in zip(
        stddevs, standard, NoiseStream(3).draw(shapes, dtypes, 0, stddevs), strict=True
    ):
        np.testing.assert_array_equal(noise, stddev * z)


def test_all_words_of_a_key_count_with_and_without_xla():
    def draw(seed, step, jit):
        stream = NoiseStream(seed)
        function = tf.function(
            lambda step: stream.draw([(8,)], [tf.float32], step)[0], jit_compile=jit
        )
        return function(tf.constant(step)).numpy()

    for jit in (False, True):
        draws = [
            draw(seed, step, jit)
            for seed in (7, 7 + 2**32, 7 + 2**40)
            for step in (0, 1, 2**33)
        ]
        for i, one in enumerate(draws):
            for other in draws[:i]:
                assert not np.isclose(one, other).any()
    np.testing.assert_allclose(draw(7, 3, False), draw(7, 3, True), rtol=1e-5)
