"""One reading serves all deltas around an anchor: epsilon must not notice."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_gdp.accounting import (
    ApproximateDP,
    ExactAccountant,
    Gaussian,
    Laplace,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
    UniformSampledGaussian,
)
from keras_gdp.accounting.exact import anchor, epsilon
from keras_gdp.accounting.exact.composition import directions
from keras_gdp.accounting.exact.pairs import dominating_pair

DELTAS = [0.4, 0.11, 3e-2, 4e-4, 3.3e-6, 10**-5.5, 9.9e-7, 5e-12, 4e-33]
RUNS = [
    (SampledGaussian(1.0, 0.01), 1000),
    (SampledGaussian(0.6, 0.3), 150),
    (SampledGaussian(2.0, 0.001), 1000),  # rare jumps
    (SampledGaussian(8.0, 0.001), 100),
    (SampledGaussian(1.0, 0.001), 3),
    (Laplace(1.0), 200),
]


def run(event, count, relation):
    return ExactAccountant(relation).compose(event, count)


def forget():
    for cache in (dominating_pair, directions, anchor._at_anchor):
        cache.cache_clear()


@pytest.mark.parametrize(("event", "count"), RUNS)
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_answers_do_not_depend_on_earlier_ones(event, count, relation):
    forget()
    down = [run(event, count, relation).epsilon_bounds(delta) for delta in DELTAS]
    forget()
    up = [run(event, count, relation).epsilon_bounds(delta) for delta in DELTAS[::-1]]
    assert up[::-1] == down
    for delta, bounds in list(zip(DELTAS, down, strict=True))[::3]:
        forget()
        assert run(event, count, relation).epsilon_bounds(delta) == bounds


@pytest.mark.parametrize(("event", "count"), RUNS)
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_a_reading_made_for_delta_itself_says_the_same(
    event, count, relation, monkeypatch
):
    anchored = [run(event, count, relation).epsilon_bounds(delta) for delta in DELTAS]
    monkeypatch.setattr(epsilon, "epsilon_from_anchor", lambda *_: None)
    forget()
    for delta, (low, high) in zip(DELTAS, anchored, strict=True):
        own_low, own_high = run(event, count, relation).epsilon_bounds(delta)
        assert low <= own_high
        assert own_low <= high
        assert high == pytest.approx(own_high, rel=1e-9, abs=1e-300)


def test_deltas_above_total_variation_of_the_anchor_cost_nothing():
    accountant = run(SampledGaussian(8.0, 0.001), 100, "add_remove")
    variation = accountant.delta(0.0)
    assert accountant.epsilon_bounds(variation * 1.01) == (0.0, 0.0)
    low, high = accountant.epsilon_bounds(variation * 0.99)
    assert 0.0 < low <= high < 1e-3


def test_neighbouring_deltas_share_a_reading(monkeypatch):
    forget()
    accountant = run(SampledGaussian(2.0, 0.001), 1000, "add_remove")
    first = accountant.epsilon(1.1e-6)

    def fail(*_):
        raise AssertionError("a new reading was made")

    monkeypatch.setattr(anchor, "by_contours", fail)
    values = [accountant.epsilon(delta) for delta in (1.6e-6, 1e-6, 9e-7, 6e-7)]
    assert values[0] < first < values[1] < values[2] < values[3] < math.inf


@settings(max_examples=60, deadline=None)
@given(
    st.floats(-0.4, 1.3).map(lambda x: 10**x),
    st.floats(-4.0, 0.0).map(lambda x: 10**x),
    st.floats(0.3, 5.0).map(lambda x: round(10**x)),
    st.floats(-20.0, -2.0).map(lambda x: 10**x),
    st.sampled_from(["add_remove", "replace_one"]),
)
def test_delta_at_epsilon_never_exceeds_delta(sigma, p, steps, delta, relation):
    accountant = run(SampledGaussian(sigma, p), steps, relation)
    assert accountant.delta(accountant.epsilon(delta)) <= delta


@pytest.mark.parametrize(
    ("relation", "releases", "delta"),
    [
        ("add_remove", [(SampledGaussian(3.125567, 0.000367245), 17)], 2.6143e-19),
        ("add_remove", [(SampledGaussian(0.7454195, 0.00345948), 509)], 3.8088e-19),
        ("add_remove", [(Laplace(20.4), 890)], 7.1e-11),
        ("replace_one", [(SampledGaussian(1.487981, 0.006729986), 158)], 10**-15.5),
        ("add_remove", [(SampledGaussian(1.01318, 1.89827e-05), 17)], 10**-14.5),
        ("replace_one", [(SampledGaussian(0.2534271, 0.01777508), 3114)], 0.999996),
        ("replace_one", [(SampledGaussian(0.8, 0.01), 1)], 3.3e-6),
        ("replace_one", [(Laplace(1.68), 16)], 2.26e-6),
        ("add_remove", [(SampledLaplace(20.4147, 0.02757582), 637)], 1.155e-13),
        ("add_remove", [(RandomizedResponse(0.4361, 3), 67)], 4.2963e-07),
        ("replace_one", [(UniformSampledGaussian(1.0, 10, 1000), 50)], 1e-6),
        ("add_remove", [(Gaussian(2.0), 3)], 3.3e-6),
        ("add_remove", [(SampledGaussian(0.8, 0.01), 1)], 3.3e-6),
        (
            "replace_one",
            [(SampledGaussian(1.0, 0.1), 30), (ApproximateDP(0.1, 1e-6), 1)],
            3e-6,
        ),
    ],
)
def test_nor_where_readings_for_delta_and_epsilon_differ(relation, releases, delta):
    accountant = ExactAccountant(relation)
    for event, count in releases:
        accountant.compose(event, count)
    epsilon = accountant.epsilon(delta)
    assert 0.0 < epsilon < math.inf
    assert accountant.delta(epsilon) <= delta
