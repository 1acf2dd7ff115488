"""Laws that every trade-off function obeys."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_gdp.tradeoff import (
    advanced_mixture,
    approximate_dp,
    berry_esseen_symmetric,
    from_delta,
    from_pmfs,
    from_points,
    gaussian,
    gaussian_limit,
    identity,
    laplace,
    loss_moments,
    lower_envelope,
    mixture,
    moments_accountant,
    no_privacy,
    noisy_sgd,
    plot_profiles,
    plot_tradeoffs,
    random_initialization,
    shuffled,
)

ALPHA = np.concatenate(
    [[0.0, 1e-300, 1e-20, 1e-6], np.linspace(0.001, 0.999, 97), [1 - 1e-12, 1.0]]
)

mus = st.floats(0.05, 4.0)
probabilities = st.floats(0.01, 0.99)


@st.composite
def pmf_pairs(draw):
    size = draw(st.integers(2, 6))
    masses = st.lists(st.floats(0.0, 1.0), min_size=size, max_size=size)
    p, q = np.array(draw(masses)) + 1e-3, np.array(draw(masses)) + 1e-3
    if draw(st.booleans()):
        p[draw(st.integers(0, size - 1))] = 0.0
    return from_pmfs(p / p.sum(), q / q.sum())


simple = st.one_of(
    mus.map(gaussian),
    mus.map(laplace),
    st.builds(approximate_dp, st.floats(0.0, 4.0), st.floats(0.0, 0.3)),
    pmf_pairs(),
)
tradeoffs = st.one_of(
    simple,
    st.builds(lambda f, p: f.subsample(p), simple, probabilities),
    st.builds(lambda f, p: f.subsample(p, "uniform"), simple, probabilities),
    st.builds(lambda f, p: f.subsample(p).symmetrize(), simple, probabilities),
    st.builds(lambda f: f.inverse(), simple),
    st.builds(
        lambda f, g, w: mixture([f, g], [w, 1 - w]), simple, simple, probabilities
    ),
    st.builds(shuffled, st.floats(0.1, 4.0), st.integers(1, 40)),
    st.builds(lambda f, g: lower_envelope([f, g]), simple, simple),
    st.builds(lambda f: f.group(2), simple),
)


def assert_is_tradeoff(f):
    values = f(ALPHA)
    assert (values >= 0).all()
    assert (values <= 1 - ALPHA).all()
    assert (np.diff(values) <= 1e-12).all()
    slopes = np.diff(values[4:-2]) / np.diff(ALPHA[4:-2])
    assert (np.diff(slopes) >= -1e-9 * np.maximum(1, np.abs(slopes[1:]))).all()


@given(tradeoffs)
@settings(max_examples=150, deadline=None)
def test_values_are_convex_decreasing_and_below_identity(f):
    assert_is_tradeoff(f)


@pytest.mark.parametrize(
    "f",
    [
        identity(),
        no_privacy(),
        gaussian(30.0),
        laplace(1.0).self_compose(4),
        gaussian(1.0).subsample(0.2).self_compose(3),
        gaussian(1.0).compose(laplace(0.5)),
        noisy_sgd(1.0, 0.01, 500),
        noisy_sgd(0.5, 1e-4, 100),
        random_initialization(1.0, -1.0, 1.0, 1.0),
        shuffled(2.0, 1000, 1e-9),
        shuffled(1.0, 50, clones="stronger"),
    ],
    ids=repr,
)
def test_numeric_objects_are_tradeoff_functions(f):
    assert_is_tradeoff(f)
    assert_is_tradeoff(f.inverse())


@given(tradeoffs)
@settings(max_examples=80, deadline=None)
def test_inverse_of_inverse_is_the_function(f):
    np.testing.assert_allclose(f.inverse().inverse()(ALPHA), f(ALPHA), atol=1e-12)


@given(tradeoffs)
@settings(max_examples=80, deadline=None)
def test_inverse_undoes_the_function(f):
    # f^-1(f(a)) is the smallest x with f(x) <= f(a).
    levels = ALPHA[4:-2]
    back = f.inverse()(np.clip(f(levels), 0, 1))
    assert (back <= levels + 1e-9).all()
    strict = f(levels) > 1e-6
    np.testing.assert_allclose(back[strict], levels[strict], atol=1e-6)


@given(tradeoffs)
@settings(max_examples=80, deadline=None)
def test_symmetrization_is_symmetric_and_below_both(f):
    g = f.symmetrize()
    assert g.is_symmetric
    assert (g(ALPHA) <= np.minimum(f(ALPHA), f.inverse()(ALPHA)) + 1e-12).all()
    epsilon = np.array([-2.0, -0.5, 0.0, 0.3, 2.0])
    larger = np.maximum(f.delta(epsilon), f.inverse().delta(epsilon))
    np.testing.assert_allclose(g.delta(epsilon), larger, atol=1e-12)


@given(tradeoffs)
@settings(max_examples=60, deadline=None)
def test_profile_is_the_conjugate_of_the_curve(f):
    for epsilon in (-1.0, 0.0, 0.7, 3.0):
        # The supremum is reached where a line of slope -exp(epsilon) touches.
        touching = np.clip(f._point(np.array([epsilon])).alpha, 0.0, 1.0)
        alpha = np.concatenate([ALPHA, touching])
        reached = (1 - f(alpha) - np.exp(epsilon) * alpha).max()
        assert reached == pytest.approx(f.delta(epsilon), abs=1e-9)


@given(tradeoffs)
@settings(max_examples=60, deadline=None)
def test_duality_round_trip_stays_below_and_close(f):
    epsilon = np.linspace(0.0, 40.0, 8001)
    back = from_delta(
        epsilon, f.delta(epsilon), reverse_deltas=f.inverse().delta(epsilon)
    )
    assert (back(ALPHA) <= f(ALPHA) + 1e-12).all()
    np.testing.assert_allclose(back(ALPHA), f(ALPHA), atol=2e-3)


@given(tradeoffs, st.floats(1e-9, 0.5))
@settings(max_examples=60, deadline=None)
def test_epsilon_inverts_delta(f, delta):
    epsilon = f.epsilon(delta)
    if np.isfinite(epsilon):
        assert f.delta(epsilon) <= delta * (1 + 1e-9)
        if epsilon > 1e-6:
            assert f.delta(epsilon * (1 - 1e-6)) >= delta * (1 - 1e-3) - 1e-12
    else:
        assert f.delta(np.inf) > delta * (1 - 1e-9)


@given(simple, simple)
@settings(max_examples=25, deadline=None)
def test_composition_commutes(f, g):
    one, other = f.compose(g), g.compose(f)
    np.testing.assert_allclose(one(ALPHA), other(ALPHA), atol=1e-9)


@given(mus, mus, pmf_pairs())
@settings(max_examples=12, deadline=None)
def test_composition_associates(mu, nu, h):
    f, g = gaussian(mu), laplace(nu)
    left, right = f.compose(g).compose(h), f.compose(g.compose(h))
    np.testing.assert_allclose(left(ALPHA), right(ALPHA), atol=1e-9)


@given(simple)
@settings(max_examples=25, deadline=None)
def test_identity_is_neutral(f):
    assert f.compose(identity()) == f
    assert identity().compose(f) == f
    assert f.self_compose(1) == f
    assert f.self_compose(0) == identity()


@given(simple)
@settings(max_examples=40, deadline=None)
def test_sampling_everything_or_nothing(f):
    assert f.subsample(1.0) is f
    assert f.subsample(0.0) == identity()


@given(simple, probabilities)
@settings(max_examples=60, deadline=None)
def test_poisson_sampling_mixes_with_identity(f, p):
    expected = p * f(ALPHA) + (1 - p) * (1 - ALPHA)
    np.testing.assert_allclose(f.subsample(p)(ALPHA), expected, atol=1e-12)


@given(pmf_pairs(), pmf_pairs())
@settings(max_examples=40, deadline=None)
def test_composition_of_pmfs_is_the_product_distribution(f, g):
    p = np.multiply.outer(np.append(f._p, f._p_only), np.append(g._p, g._p_only))
    q = np.multiply.outer(np.append(f._q, 0.0), np.append(g._q, 0.0))
    lost = max(0.0, 1 - q.sum())
    exact = from_pmfs(np.append(p.ravel(), 0.0), np.append(q.ravel(), lost))
    np.testing.assert_allclose(f.compose(g)(ALPHA), exact(ALPHA), atol=1e-9)


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5])
def test_lattice_composition_lies_below_the_closed_form(mu):
    from keras_gdp.tradeoff.lattice import lattice_composition

    composed = lattice_composition(((gaussian(mu), 3),))
    exact = gaussian(mu * np.sqrt(3))
    assert (composed(ALPHA) <= exact(ALPHA) + 1e-13).all()
    np.testing.assert_allclose(composed(ALPHA), exact(ALPHA), atol=1e-7)


@pytest.mark.parametrize("epsilon", [0.37, 1.0, 3.0])
@pytest.mark.parametrize("n", [2, 10, 100])
def test_lattice_keeps_the_atoms_at_the_ends(epsilon, n):
    from keras_gdp.tradeoff.lattice import lattice_composition

    composed = lattice_composition(((approximate_dp(epsilon), n),))
    exact = approximate_dp(epsilon).self_compose(n)
    assert (composed(ALPHA) <= exact(ALPHA) + 1e-13).all()
    np.testing.assert_allclose(composed(ALPHA), exact(ALPHA), atol=2e-4)
    near_the_end = (n - 0.5) * epsilon
    assert composed.delta(near_the_end) >= (1 - 1e-10) * exact.delta(near_the_end)
    assert composed.delta(near_the_end) <= 1.01 * exact.delta(near_the_end) + 2e-13


@pytest.mark.parametrize("steps", [1, 3, 40])
def test_inversion_agrees_with_the_lattice(steps):
    from keras_gdp.tradeoff.inversion import LossInversion
    from keras_gdp.tradeoff.lattice import lattice_composition

    factors = ((gaussian(1.0).subsample(0.3), steps), (gaussian(0.5), 1))
    inverted, lattice = LossInversion(factors), lattice_composition(factors)
    assert (lattice(ALPHA) <= inverted(ALPHA) + 2e-10).all()
    np.testing.assert_allclose(lattice(ALPHA), inverted(ALPHA), atol=1e-6)


@given(simple, st.floats(1.1, 8.0))
@settings(max_examples=40, deadline=None)
def test_divergences_order_and_reverse(f, order):
    assert f.kl() <= f.renyi(order) * (1 + 1e-9) + 1e-12
    assert f.renyi(order) == pytest.approx(
        f.inverse().renyi(order, reverse=True), rel=1e-7, abs=1e-12
    )
    assert f.chi2() == pytest.approx(np.expm1(f.renyi(2.0)), rel=1e-7, abs=1e-12)


@given(pmf_pairs())
@settings(max_examples=40, deadline=None)
def test_divergences_match_sums_over_outcomes(f):
    if f.epsilon(0.0) == np.inf:
        return
    p, q = f._p, f._q
    assert f.kl() == pytest.approx((p * np.log(p / q)).sum(), abs=1e-10)
    assert f.chi2(reverse=True) == pytest.approx((q**2 / p).sum() - 1, abs=1e-9)
    assert f.total_variation() == pytest.approx(np.abs(p - q).sum() / 2, abs=1e-12)


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_generic_quadrature_of_divergences_matches_closed_forms(mu):
    from keras_gdp.tradeoff.inverse import Inverse

    wrapped = Inverse(gaussian(mu))
    assert wrapped.kl() == pytest.approx(mu**2 / 2, rel=1e-9, abs=0.0)
    assert laplace(mu).kl() == pytest.approx(mu + np.exp(-mu) - 1, rel=1e-9, abs=0.0)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda f: f.compose(1.0), "`other`.*such as gaussian"),
        (lambda f: mixture([f, 3], [0.5, 0.5]), r"`tradeoffs\[1\]`.*trade_off"),
        (lambda f: mixture(f, [1.0]), "`tradeoffs` must be a list"),
        (lambda f: lower_envelope(f), "`tradeoffs` must be a list"),
        (lambda f: advanced_mixture(f, f, None, 0.5), "`common_q`.*=None"),
        (lambda f: loss_moments(3), "`f`.*=3"),
        (lambda f: gaussian_limit("f", 3), "`f`.*='f'"),
        (lambda f: berry_esseen_symmetric(None, 3), "`f`.*=None"),
        (lambda f: moments_accountant(1.0), "`f`.*=1.0"),
        (lambda f: plot_tradeoffs([f]), "`tradeoffs` must be a dict.*f.plot"),
        (lambda f: plot_profiles({"a": 3}), r"`tradeoffs\['a'\]`.*=3"),
        (lambda f: f("a"), "`alpha` must be a number or an array of numbers"),
        (lambda f: from_delta([0.0], ["a"]), "`deltas`.*Convert it"),
        (lambda f: shuffled("a", 10), "`epsilon0`.*local report"),
    ],
)
def test_what_is_no_trade_off_function_or_number_is_named(call, named):
    with pytest.raises(TypeError, match=named):
        call(gaussian(1.0))


def test_wrong_arguments_name_the_argument():
    f = gaussian(1.0)
    for call, name in (
        (lambda: f(1.5), "alpha"),
        (lambda: f(np.nan), "alpha"),
        (lambda: f.log(0.5), "log_alpha`.*`numpy.log.alpha."),
        (lambda: f.epsilon(-1.0), "delta"),
        (lambda: f.subsample(2.0), "p`.*`batch_size / num_examples"),
        (lambda: f.subsample(0.1, "shuffle"), "sampling`.*`UniformDataset"),
        (lambda: gaussian(-1.0), "mu"),
        (lambda: approximate_dp(-1.0), "epsilon"),
        (lambda: mixture([f], [0.5]), "weights`.*Divide them by it"),
        (lambda: mixture([f], [0.5, 0.5]), "weights`.*lists of one length"),
        (lambda: lower_envelope([]), "tradeoffs`.*Pass `.f.`"),
        (lambda: from_points([0.0], [1.0, 0.5]), "beta`.*for every `alpha"),
        (lambda: from_pmfs([0.7, 0.7], [0.5, 0.5]), "p`.*Divide counts"),
        (lambda: loss_moments(approximate_dp(1.0, 0.1)), "f`.*f.self_compose"),
        (
            lambda: berry_esseen_symmetric(from_pmfs([0.5, 0.5], [0.1, 0.9]), 3),
            "f`.*f.symmetrize",
        ),
        (lambda: shuffled(1.0, 10, clones="clone"), "clones`.*Did you mean"),
        (
            lambda: random_initialization(1.0, 1.0, 1.0, shift=np.abs),
            "a` and `b`.*or leave out `shift",
        ),
        (
            lambda: random_initialization(noise_stddev=1.0, shift=lambda x: x),
            "shift` must map an array",
        ),
        (lambda: f.renyi(0.0), "order"),
        (lambda: random_initialization(1.0, None, 1.0), "a` and `b"),
        (lambda: random_initialization(1.0, 1.0, -1.0), "noise_stddev"),
        (lambda: from_delta([0.0], [0.1, 0.2]), "deltas`.*arrays of one length"),
        (lambda: from_pmfs([0.5], [0.5, 0.5]), "q`.*probability 0 there"),
        (
            lambda: shuffled(1.0, 10, 1e-3, clones="stronger"),
            "clones`.*Leave `clones` out",
        ),
    ):
        with pytest.raises(ValueError, match=f"`{name}"):
            call()
