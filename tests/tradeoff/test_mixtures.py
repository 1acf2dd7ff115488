"""Bounds for mixtures, against brute-force Neyman-Pearson on the mixtures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from keras_gdp.tradeoff import (
    advanced_mixture,
    from_pmfs,
    gaussian,
    lower_envelope,
    mixture,
    random_initialization,
    shuffled,
    shuffled_epsilon_bound,
)

ALPHA = np.linspace(0.0, 1.0, 41)


@st.composite
def discrete_mixtures(draw):
    outcomes, parts = draw(st.integers(2, 5)), draw(st.integers(2, 4))
    size = outcomes * parts
    numbers = st.lists(st.floats(0.0, 1.0), min_size=size, max_size=size)
    p = np.array(draw(numbers)).reshape(parts, outcomes) + 1e-3
    q = np.array(draw(numbers)).reshape(parts, outcomes) + 1e-3
    w = np.array(draw(st.lists(st.floats(0.01, 1), min_size=parts, max_size=parts)))
    normalize = [p / p.sum(axis=1)[:, None], q / q.sum(axis=1)[:, None], w / w.sum()]
    return normalize


@given(discrete_mixtures())
@settings(max_examples=80, deadline=None)
def test_joint_concavity_is_below_the_mixtures(case):
    p, q, w = case
    bound = mixture([from_pmfs(*pair) for pair in zip(p, q, strict=True)], w)
    exact = from_pmfs(np.minimum(w @ p, 1), np.minimum(w @ q, 1))
    assert (bound(ALPHA) <= exact(ALPHA) + 1e-12).all()


@given(discrete_mixtures())
@settings(max_examples=40, deadline=None)
def test_joint_concavity_is_tight_on_disjoint_supports(case):
    p, q, w = case
    bound = mixture([from_pmfs(*pair) for pair in zip(p, q, strict=True)], w)
    exact = from_pmfs((w[:, None] * p).ravel(), (w[:, None] * q).ravel())
    np.testing.assert_allclose(bound(ALPHA), exact(ALPHA), atol=1e-12)


@pytest.mark.parametrize(
    "means", [((0, 2), (1, 3)), ((0, 1), (1, 0)), ((0, 9), (1, 10))]
)
def test_gaussian_mixture_bound_against_discretised_densities(means):
    x = np.linspace(-10, 20, 30001)
    p, q = (sum(0.5 * np.diff(stats.norm.cdf(x, m)) for m in side) for side in means)
    exact = from_pmfs(p, q)
    bound = mixture(
        [gaussian(abs(a - b)) for a, b in zip(*means, strict=True)], [0.5, 0.5]
    )
    assert (bound(ALPHA) <= exact(ALPHA) + 1e-6).all()


@given(st.floats(0.02, 0.6), st.floats(-2, 2), st.floats(-2, 2), st.floats(-2, 2))
@settings(max_examples=20, deadline=None)
def test_advanced_mixture_is_below_the_mixtures(weight, r, p, q):
    x = np.linspace(-12, 12, 20001)
    masses = {m: np.diff(stats.norm.cdf(x, m)) for m in (r, p, q)}
    exact = from_pmfs(
        (1 - weight) * masses[r] + weight * masses[p],
        (1 - weight) * masses[r] + weight * masses[q],
    )
    bound = advanced_mixture(
        gaussian(abs(p - q)), gaussian(abs(r - p)), gaussian(abs(r - q)), weight
    )
    assert (bound(ALPHA) <= exact(ALPHA) + 1e-6).all()
    for epsilon in (0.0, 0.1, 0.5):
        assert bound.delta(epsilon) >= exact.delta(epsilon) - 1e-6


def clone_pair(n, epsilon0, rate):
    """The two clone distributions, outcome by outcome."""
    keep = 1 / (1 + np.exp(-epsilon0))
    p, q = {}, {}
    for c in range(n):
        for a in range(c + 1):
            mass = stats.binom.pmf(c, n - 1, rate) * stats.binom.pmf(a, c, 0.5)
            for d, weight in ((1, keep), (0, 1 - keep)):
                one, other = (a + d, c - a + 1 - d), (a + 1 - d, c - a + d)
                p[one] = p.get(one, 0.0) + mass * weight
                q[other] = q.get(other, 0.0) + mass * weight
    keys = sorted(set(p) | set(q))
    return from_pmfs([p.get(k, 0.0) for k in keys], [q.get(k, 0.0) for k in keys])


@pytest.mark.parametrize("n", [2, 3, 10, 25])
@pytest.mark.parametrize("epsilon0", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("clones", ["clones", "stronger"])
def test_shuffling_equals_the_clone_divergence(n, epsilon0, clones):
    rate = np.exp(-epsilon0) if clones == "clones" else 2 / (np.exp(epsilon0) + 1)
    exact, f = clone_pair(n, epsilon0, rate), shuffled(epsilon0, n, clones=clones)
    epsilon = np.linspace(0.0, epsilon0, 23)
    np.testing.assert_allclose(f.delta(epsilon), exact.delta(epsilon), atol=1e-13)
    np.testing.assert_allclose(f(ALPHA), exact(ALPHA), atol=1e-12)


@pytest.mark.parametrize("n", [10**3, 10**4, 10**5, 10**6])
@pytest.mark.parametrize("epsilon0", [0.2, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("delta", [1e-4, 1e-6, 1e-10])
def test_shuffling_is_tighter_than_the_closed_forms(n, epsilon0, delta):
    for clones, bound in (("clones", "fmt21"), ("stronger", "fmt23")):
        closed = shuffled_epsilon_bound(epsilon0, n, delta, bound=bound)
        if np.isnan(closed):
            continue
        assert shuffled(epsilon0, n, clones=clones).epsilon(delta) < closed
    other = shuffled_epsilon_bound(epsilon0, n, delta, bound="fmt23")
    if not np.isnan(other):
        assert shuffled(epsilon0, n).epsilon(delta) < other


def test_shuffling_with_failures_is_weaker_and_converges():
    alpha = ALPHA[1:-1]
    plain = shuffled(1.0, 1000)
    for delta0 in (1e-12, 1e-9, 1e-6):
        f = shuffled(1.0, 1000, delta0)
        assert (f(alpha) <= plain(alpha)).all()
        assert f.delta(0.1) > plain.delta(0.1)
        reached = 1 - f(ALPHA) - np.exp(0.1) * ALPHA
        assert reached.max() <= f.delta(0.1) + 1e-12
    np.testing.assert_allclose(
        shuffled(1.0, 1000, 1e-12)(alpha), plain(alpha), atol=1e-8
    )


def test_general_start_agrees_with_the_linear_model_and_is_safe():
    linear = random_initialization(1.0, -1.0, 1.0, 1.0)
    general = random_initialization(
        shift=lambda x: np.abs(x - 1.0), noise_stddev=1.0, l2_norm_clip=1.0
    )
    assert (general(ALPHA) <= linear(ALPHA) + 1e-13).all()
    np.testing.assert_allclose(general(ALPHA), linear(ALPHA), atol=1e-8)


def test_random_start_is_between_monte_carlo_errors():
    rng = np.random.default_rng(7)
    mu = np.minimum(np.abs(1.0 * rng.standard_normal(400_000) - 1.0), 1.0)
    from keras_gdp import _gdp

    draws = np.asarray(_gdp.delta_from_mu(0.5, mu))
    error = draws.std() / np.sqrt(draws.size)
    value = random_initialization(1.0, -1.0, 1.0, 1.0).delta(0.5)
    # Five standard errors: a false alarm in about two million seeds.
    assert abs(draws.mean() - value) < 5 * error


def test_random_start_beats_the_fixed_start():
    start = random_initialization(1.0, -1.0, 1.0, 1.0)
    assert (start(ALPHA[1:-1]) > gaussian(1.0)(ALPHA[1:-1])).all()


def test_envelope_over_records_is_below_each():
    starts = [random_initialization(x**2, -3 * x, 1.0, 1.0) for x in (0.5, 2.0, 10.0)]
    worst = lower_envelope(starts)
    for f in starts:
        assert (worst(ALPHA) <= f(ALPHA) + 1e-12).all()
