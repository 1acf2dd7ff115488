"""Trade-off functions of distributions, points and profiles."""

import numpy as np
import pytest
from scipy import stats

from keras_gdp.tradeoff import (
    from_delta,
    from_distributions,
    from_points,
    gaussian,
    laplace,
)

ALPHA = np.array([0.0, 1e-300, 1e-9, 0.01, 0.2, 0.5, 0.9, 0.999, 1.0])


def discretised(p, q, x):
    """Binning is post-processing: what is left of the trade-off lies above."""
    from keras_gdp.tradeoff import from_pmfs

    return from_pmfs(np.diff(p.cdf(x)), np.diff(q.cdf(x)))


def test_recognises_closed_forms():
    assert from_distributions(stats.norm(1, 2), stats.norm(4, 2)) == gaussian(1.5)
    assert from_distributions(stats.laplace(0, 2), stats.laplace(-2, 2)) == laplace(1.0)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (stats.laplace(0, 1), stats.laplace(1, 2)),
        (stats.norm(0, 1), stats.laplace(0, 1)),
        (stats.cauchy(0, 1), stats.cauchy(1, 1)),
        (stats.logistic(0, 1), stats.logistic(0.5, 1)),
        (stats.t(3), stats.t(3, loc=1)),
        (stats.gamma(2), stats.gamma(3)),
    ],
    ids=lambda d: d.dist.name,
)
def test_densities_lie_just_below_their_discretisation(p, q):
    f = from_distributions(p, q)
    x = np.concatenate([[-np.inf], np.linspace(-200, 200, 200001), [np.inf]])
    upper = discretised(p, q, x)
    values = f(ALPHA)
    # Further out the differences of the distribution functions have no digits left.
    assert (values[3:] <= upper(ALPHA)[3:] + 1e-12).all()
    np.testing.assert_allclose(values[3:], upper(ALPHA)[3:], atol=1e-5)
    swapped = from_distributions(q, p)
    np.testing.assert_allclose(f.inverse()(ALPHA), swapped(ALPHA), atol=1e-12)


def test_exponential_scale_family_has_the_power_law():
    f = from_distributions(stats.expon(), stats.expon(scale=2))
    np.testing.assert_allclose(f(ALPHA), 1 - np.sqrt(ALPHA), atol=1e-13)
    # int q^2 / p diverges; int p^2 / q = 4 / 3.
    assert f.chi2(reverse=True) == np.inf
    assert f.chi2() == pytest.approx(1 / 3, rel=1e-8, abs=0.0)


def test_supports_that_differ_leave_gaps():
    f = from_distributions(stats.uniform(0, 1), stats.uniform(0.25, 1))
    np.testing.assert_allclose(f([0.0, 0.1, 0.75, 0.8]), [0.75, 0.65, 0.0, 0.0])
    assert f.epsilon(0.1) == np.inf
    assert f.kl() == np.inf


def test_divergences_of_two_normals():
    f = from_distributions(stats.norm(0, 1), stats.norm(1, 1.5))
    kl = np.log(1.5) + (1 + 1) / (2 * 1.5**2) - 0.5
    assert f.kl() == pytest.approx(kl, rel=1e-8, abs=0.0)


def test_discrete_distributions_are_exact():
    f = from_distributions(stats.poisson(3), stats.poisson(5))
    k = np.arange(200)
    p, q = stats.poisson.pmf(k, 3), stats.poisson.pmf(k, 5)
    for gamma in (0.5, 1.0, 2.0):
        exact = np.maximum(q - gamma * p, 0).sum()
        assert f.delta(np.log(gamma)) == pytest.approx(exact, rel=1e-12, abs=0.0)
    values = stats.rv_discrete(values=([0, 1, 4], [0.5, 0.3, 0.2]))
    others = stats.rv_discrete(values=([0, 2, 4], [0.3, 0.3, 0.4]))
    assert from_distributions(values, others)(0.0) == pytest.approx(0.7)


def test_refuses_what_it_cannot_compare():
    with pytest.raises(TypeError, match="`p` and `q`.*no_privacy"):
        from_distributions(stats.norm(), stats.poisson(3))
    with pytest.raises(TypeError, match="`q`.*scipy.stats.norm"):
        from_distributions(stats.norm(), 3.0)


def test_tensorflow_probability_distributions():
    tfd = pytest.importorskip("tensorflow_probability").distributions
    assert from_distributions(tfd.Normal(0.0, 1.0), tfd.Normal(1.0, 1.0)) == gaussian(1)
    f = from_distributions(tfd.Binomial(10, probs=0.5), tfd.Binomial(10, probs=0.25))
    exact = from_distributions(stats.binom(10, 0.5), stats.binom(10, 0.25))
    np.testing.assert_allclose(f(ALPHA), exact(ALPHA), atol=1e-12)

    def mixture(means):
        return tfd.MixtureSameFamily(
            tfd.Categorical(probs=[0.5, 0.5]), tfd.Normal(means, 1.0)
        )

    f = from_distributions(mixture([0.0, 2.0]), mixture([1.0, 3.0]))
    # The reference value for this mixture, by supremum over slopes.
    assert f(0.1) == pytest.approx(0.7039887301543075, abs=1e-8)


def test_points_as_vertices_give_their_envelope():
    f = from_points([0.0, 0.2, 0.5, 1.0], [1.0, 0.4, 0.5, 0.0])
    np.testing.assert_allclose(f([0.1, 0.2, 0.6]), [0.7, 0.4, 0.2])
    assert from_points([0.3], [0.3])(0.0) == 1.0


def test_points_as_samples_stay_below_the_sampled_curve():
    g = gaussian(1.0)
    alpha = np.linspace(0, 1, 41)
    fine = np.linspace(0, 1, 2001)
    below = from_points(alpha, g(alpha), reading="samples")
    above = from_points(alpha, g(alpha))
    assert (below(fine) <= g(fine) + 1e-12).all()
    assert (above(fine) >= g(fine) - 1e-12).all()
    np.testing.assert_allclose(below(fine), g(fine), atol=0.1)


def test_one_sided_profiles_know_nothing_of_the_other_side():
    g = gaussian(1.0).subsample(0.2)
    epsilon = np.linspace(-6, 6, 2401)
    one_sided = from_delta(epsilon, g.delta(epsilon), symmetric=False)
    np.testing.assert_allclose(one_sided(ALPHA[3:]), g(ALPHA[3:]), atol=1e-5)
    assert (one_sided(ALPHA) <= g(ALPHA) + 1e-12).all()
    positive = epsilon[epsilon >= 0]
    steep = from_delta(positive, g.delta(positive), symmetric=False)
    assert (steep(ALPHA) <= one_sided(ALPHA) + 1e-12).all()


def test_symmetric_profile_of_a_gaussian_is_the_gaussian():
    epsilon = np.linspace(0, 12, 24001)
    f = from_delta(epsilon, gaussian(1.0).delta(epsilon))
    assert f.is_symmetric
    np.testing.assert_allclose(f(ALPHA), gaussian(1.0)(ALPHA), atol=1e-7)


def test_large_epsilons_do_not_overflow():
    epsilon = np.linspace(600, 1500, 901)
    f = from_delta(epsilon, gaussian(40.0).delta(epsilon))
    assert f.epsilon(1e-5) == pytest.approx(gaussian(40.0).epsilon(1e-5), abs=1.0)


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_gaussian_mu_of_composed_guarantees(mu):
    assert gaussian(mu).gaussian_mu() == mu
    f = laplace(mu)
    nu = f.gaussian_mu()
    assert (gaussian(nu)(ALPHA) <= f(ALPHA) + 1e-12).all()
    assert not (
        gaussian(nu * 0.99)(np.linspace(0, 1, 2001)) <= f(np.linspace(0, 1, 2001))
    ).all()
    assert gaussian(mu).subsample(0.1).gaussian_mu() == np.inf
