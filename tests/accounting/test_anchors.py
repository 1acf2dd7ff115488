"""One reading serves all deltas around a power of ten: epsilon must not notice."""

import math

import pytest

from keras_gdp.accounting import ExactAccountant, Laplace, SampledGaussian
from keras_gdp.accounting.exact import inversion
from keras_gdp.accounting.exact.composition import directions
from keras_gdp.accounting.exact.pairs import dominating_pair

DELTAS = [0.4, 0.11, 3e-2, 4e-4, 3.3e-6, 2.9e-6, 9.9e-7, 5e-12, 4e-33]
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
    for cache in (dominating_pair, directions, inversion._at_anchor):
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
    monkeypatch.setattr(inversion, "_from_anchor", lambda *_: None)
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

    monkeypatch.setattr(inversion, "_by_contours", fail)
    values = [accountant.epsilon(delta) for delta in (3e-6, 1e-6, 9e-7, 4e-7)]
    assert values[0] < first < values[1] < values[2] < values[3] < math.inf
