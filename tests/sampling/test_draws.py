import numpy as np
import pytest
from scipy import special

from keras_gdp.sampling import poisson_capacity, poisson_draw, uniform_draw

N, P, DRAWS = 200, 0.05, 20000


@pytest.fixture(scope="module")
def inclusion():
    rng = np.random.default_rng(5)
    table = np.zeros((DRAWS, N), bool)
    for row in table:
        row[poisson_draw(rng, N, P)] = True
    return table


def test_every_index_is_included_with_the_given_probability(inclusion):
    deviation = np.abs(inclusion.mean(axis=0) - P) / np.sqrt(P * (1 - P) / DRAWS)
    # The largest of 200 normal deviations exceeds 5 once in 8,000 runs.
    assert deviation.max() < 5


def test_indices_are_included_independently_of_each_other(inclusion):
    pairs = np.corrcoef(inclusion.T.astype(float)) - np.eye(N)
    assert np.abs(pairs).max() * np.sqrt(DRAWS) < 6
    sizes = inclusion.sum(axis=1)
    assert abs(sizes.var() / (N * P * (1 - P)) - 1) < 6 * np.sqrt(2 / DRAWS)


def test_consecutive_draws_are_independent(inclusion):
    first, second = inclusion[:-1].ravel(), inclusion[1:].ravel()
    assert abs(np.corrcoef(first, second)[0, 1]) * np.sqrt(first.size) < 5


def test_empty_draws_happen_as_often_as_they_should():
    rng = np.random.default_rng(6)
    empty = np.mean([len(poisson_draw(rng, 20, 0.05)) == 0 for _ in range(20000)])
    expected = 0.95**20
    assert abs(empty - expected) < 5 * np.sqrt(expected * (1 - expected) / 20000)


def test_uniform_draws_have_fixed_size_distinct_members_and_equal_shares():
    rng = np.random.default_rng(7)
    counts = np.zeros(50)
    for _ in range(20000):
        drawn = uniform_draw(rng, 50, 10)
        assert len(set(drawn.tolist())) == 10
        counts[drawn] += 1
    deviation = np.abs(counts / 20000 - 0.2) / np.sqrt(0.2 * 0.8 / 20000)
    assert deviation.max() < 5


@pytest.mark.parametrize(
    ("n", "p"), [(60000, 256 / 60000), (10, 0.4), (1000, 0.5), (5, 1.0)]
)
def test_capacity_is_the_smallest_size_that_is_rarely_exceeded(n, p):
    capacity = poisson_capacity(n, p, 1e-5)

    def tail(k):
        return special.bdtrc(k, n, p) if k < n else 0.0

    assert tail(capacity) <= 1e-5
    assert capacity == 1 or tail(capacity - 1) > 1e-5
