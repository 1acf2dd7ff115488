"""Every reference number of the trade-off functions, within its own tolerance.

`tests/reference/tradeoff.json` says for each case how it was verified by a second
route. Calibration and accountants' conversions: tests/accounting/test_conversions.py.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from keras_gdp import _gdp, tradeoff
from keras_gdp.tradeoff import approximate_dp, from_pmfs, gaussian, identity, laplace

REFERENCE = Path(__file__).parents[1] / "reference" / "tradeoff.json"
CASES = json.loads(REFERENCE.read_text())["cases"]


class NormalMixture:
    """A mixture of unit normals, with the methods of a frozen SciPy distribution."""

    def __init__(self, means, weights):
        self.terms = list(zip(means, weights, strict=True))

    def logpdf(self, x):
        logs = [np.log(w) + stats.norm.logpdf(x, m) for m, w in self.terms]
        return np.logaddexp.reduce(logs, axis=0)

    def cdf(self, x):
        return sum(w * stats.norm.cdf(x, m) for m, w in self.terms)

    def sf(self, x):
        return sum(w * stats.norm.sf(x, m) for m, w in self.terms)


def sampled(i):
    return gaussian(1 / i["sigma"]).subsample(i["p"])


def sampled_mu(i):
    return gaussian(i["mu"]).subsample(i["p"])


def phases(i):
    f = identity()
    for p, sigma, steps in i["phases_p_sigma_T"]:
        f = f.compose(gaussian(1 / sigma).subsample(p).self_compose(steps))
    return f


def pmfs(i):
    return from_pmfs(i["p"], i["q"])


def normal_mixture_pair(i):
    return tradeoff.from_distributions(
        NormalMixture(i["means0"], i["weights"]),
        NormalMixture(i["means1"], i["weights"]),
    )


def joint_concavity(i):
    pairs = zip(i["means0"], i["means1"], strict=True)
    return tradeoff.mixture([gaussian(abs(a - b)) for a, b in pairs], i["weights"])


def gaussian_mixture(i):
    return tradeoff.mixture([gaussian(mu) for mu in i["mus"]], i["weights"])


def gaussians(i):
    f = identity()
    for mu in i["mus"]:
        f = f.compose(gaussian(mu))
    return f


def shuffled(i):
    return tradeoff.shuffled(i["eps0"], i["n"], clones=i["clones"])


def linear_start(i):
    return tradeoff.random_initialization(i["a"], i["b"], i["sigma"], i["clip"])


def unclipped_start(i):
    return tradeoff.random_initialization(i["a"], i["b"], i["sigma"])


def linear_step(i):
    """Exact output distributions of one unclipped step of the linear model."""
    laws = []
    for extra in (0.0, 1.0):
        a = i["sum_x2"] + extra * i["x"] ** 2
        b = i["sum_xy"] + extra * i["x"] * i["y"]
        laws.append(stats.norm(b, np.hypot(1 - a, i["sigma"])))
    bound = tradeoff.random_initialization(i["x"] ** 2, -i["x"] * i["y"], i["sigma"])
    alpha = i["alpha"]
    return [tradeoff.from_distributions(*laws)(alpha), bound(alpha)]


def shuffled_randomized_response(i):
    keep = 1 / (1 + np.exp(-i["eps0"]))

    def counts(ones):
        true = stats.binom.pmf(np.arange(ones + 1), ones, keep)
        zeros = i["n"] - ones
        false = stats.binom.pmf(np.arange(zeros + 1), zeros, 1 - keep)
        return np.minimum(np.convolve(true, false), 1.0)

    return from_pmfs(counts(i["ones"]), counts(i["ones"] + 1))


def advanced_joint(i):
    """[exact, advanced bound, plain bound]."""
    p, q, r, w = i["mean_P"], i["mean_Q"], i["mean_R"], i["w"]
    pair = gaussian(abs(p - q))
    sides = gaussian(abs(r - p)), gaussian(abs(r - q))
    advanced = tradeoff.advanced_mixture(pair, *sides, w, plain=False)
    plain = tradeoff.mixture([identity(), pair], [1 - w, w])
    exact = tradeoff.from_distributions(
        NormalMixture([r, p], [1 - w, w]), NormalMixture([r, q], [1 - w, w])
    )
    return [f.delta(i["eps"]) for f in (exact, advanced, plain)]


KINDS = {
    "gdp": lambda i: gaussian(i["mu"]),
    "poisson": sampled_mu,
    "eps_delta": lambda i: approximate_dp(i["eps"], i["delta"]),
    "eps": lambda i: approximate_dp(i["eps"]),
    "laplace": lambda i: laplace(i["mu"]),
    "uniform_Cp": lambda i: gaussian(i["mu"]).subsample(i["p"], "uniform"),
}


def kind(i):
    return KINDS[i["f"]](i)


def moments(i):
    return tradeoff.loss_moments(kind(i))


GRID = np.linspace(0.0, 12.0, 120001)

FUNCTIONS = {
    "gdp_tradeoff": lambda i: gaussian(i["mu"])(i["alpha"]),
    "gdp_log_tradeoff": lambda i: gaussian(i["mu"]).log(i["log_alpha"]),
    "gdp_conjugate": lambda i: gaussian(i["mu"]).convex_conjugate(i["y"]),
    "eps_delta_tradeoff": lambda i: approximate_dp(i["eps"], i["delta"])(i["alpha"]),
    "eps_delta_profile": lambda i: approximate_dp(i["eps"], i["delta"]).delta(
        i["eps_query"]
    ),
    "eps_composed_tradeoff": lambda i: approximate_dp(i["eps"]).self_compose(i["T"])(
        i["alpha"]
    ),
    "eps_delta_composed_delta": lambda i: (
        approximate_dp(i["eps"], i["delta"]).self_compose(i["T"]).delta(i["eps_query"])
    ),
    "laplace_tradeoff": lambda i: laplace(i["mu"])(i["alpha"]),
    "laplace_delta": lambda i: laplace(i["mu"]).delta(i["eps"]),
    "two_gaussian_tradeoff": lambda i: tradeoff.from_distributions(
        stats.norm(i["m0"], i["s0"]), stats.norm(i["m1"], i["s1"])
    )(i["alpha"]),
    "binomial_tradeoff": lambda i: tradeoff.from_distributions(
        stats.binom(i["n"], i["p0"]), stats.binom(i["n"], i["p1"])
    )(i["alpha"]),
    "pmf_tradeoff": lambda i: pmfs(i)(i["alpha"]),
    "pmf_tradeoff_inverse": lambda i: pmfs(i).inverse()(i["alpha"]),
    "pmf_symmetrized": lambda i: pmfs(i).symmetrize()(i["alpha"]),
    "tradeoff_from_delta_curve": lambda i: tradeoff.from_delta(
        GRID, _gdp.delta_from_mu(GRID, i["mu"])
    )(i["alpha"]),
    "gdp_delta": lambda i: gaussian(i["mu"]).delta(i["eps"]),
    "gdp_eps": lambda i: gaussian(i["mu"]).epsilon(i["delta"]),
    "gdp_compose": lambda i: gaussians(i).mu,
    "gdp_composed_delta": lambda i: gaussians(i).delta(i["eps"]),
    "gdp_group_tradeoff": lambda i: gaussian(i["mu"]).group(i["k"])(i["alpha"]),
    "eps_group_tradeoff_exact": lambda i: approximate_dp(i["eps"]).group(i["k"])(
        i["alpha"]
    ),
    "gdp_mu_of_eps_dp": lambda i: approximate_dp(i["eps"]).gaussian_mu(),
    "poisson_tradeoff": lambda i: sampled_mu(i)(i["alpha"]),
    "poisson_tradeoff_inverse": lambda i: sampled_mu(i).inverse()(i["alpha"]),
    "poisson_delta": lambda i: sampled_mu(i).delta(i["eps"]),
    "poisson_delta_rev": lambda i: sampled_mu(i).inverse().delta(i["eps"]),
    "uniform_tradeoff_Cp": lambda i: KINDS["uniform_Cp"](i)(i["alpha"]),
    "uniform_tradeoff_Cp_eps_delta": lambda i: approximate_dp(
        i["eps"], i["delta"]
    ).subsample(i["p"], "uniform")(i["alpha"]),
    "clt_mu_poisson": lambda i: tradeoff.gaussian_limit(sampled(i), i["T"]).mu,
    "functional_kl": lambda i: -moments(i).mean,
    "functional_kappa2": lambda i: moments(i).second,
    "functional_kappa3": lambda i: moments(i).absolute_third,
    "functional_kappabar3": lambda i: moments(i).absolute_central_third,
    "poisson_loss_moments": lambda i: tradeoff.loss_moments(
        sampled_mu(i), under=i["under"]
    )[:5],
    "berry_esseen_uniform": lambda i: tradeoff.berry_esseen_symmetric(
        gaussian(1 / i["sigma"]).subsample(i["p"], "uniform"), i["T"]
    ),
    "berry_esseen_eps": lambda i: tradeoff.berry_esseen_symmetric(
        approximate_dp(i["eps"]), i["T"]
    ),
    "berry_esseen_poisson": lambda i: tradeoff.berry_esseen(
        sampled(i), i["T"], i["alpha"], constant=i["C"]
    ),
    "edgeworth_tradeoff": lambda i: tradeoff.edgeworth(sampled(i), i["T"], i["alpha"]),
    "poisson_composed_delta": lambda i: sampled(i).self_compose(i["T"]).delta(i["eps"]),
    "poisson_composed_delta_rev": lambda i: (
        sampled(i).self_compose(i["T"]).inverse().delta(i["eps"])
    ),
    "poisson_hetero_composed_delta": lambda i: [
        phases(i).delta(i["eps"]),
        phases(i).inverse().delta(i["eps"]),
    ],
    "poisson_composed_tradeoff": lambda i: sampled(i).self_compose(i["T"])(i["alpha"]),
    "poisson_composed_eps": lambda i: tradeoff.noisy_sgd(
        i["sigma"], i["p"], i["T"]
    ).epsilon(i["delta"]),
    "uniform_composed_delta": lambda i: (
        gaussian(1 / i["sigma"])
        .subsample(i["p"], "uniform")
        .self_compose(i["T"])
        .delta(i["eps"])
    ),
    "ma_log_moment": lambda i: (
        i["lambda"] * sampled(i).renyi(i["lambda"] + 1, reverse=True)
    ),
    "mixture_gdp_tradeoff": lambda i: gaussian_mixture(i)(i["alpha"]),
    "mixture_gdp_delta": lambda i: gaussian_mixture(i).delta(i["eps"]),
    "mixture_eps_delta_tradeoff": lambda i: tradeoff.mixture(
        [approximate_dp(*pair) for pair in i["eps_delta"]], i["weights"]
    )(i["alpha"]),
    "mixture_exact_vs_bound": lambda i: [
        normal_mixture_pair(i)(i["alpha"]),
        joint_concavity(i)(i["alpha"]),
    ],
    "advanced_joint_delta": advanced_joint,
    "poisson_replace_one_delta_bound": lambda i: tradeoff.advanced_mixture(
        gaussian(2 / i["sigma"]),
        gaussian(1 / i["sigma"]),
        gaussian(1 / i["sigma"]),
        i["p"],
    ).delta(i["eps"]),
    "divergence_kl_PQ": lambda i: kind(i).kl(),
    "divergence_kl_QP": lambda i: kind(i).kl(reverse=True),
    "divergence_chi2_PQ": lambda i: kind(i).chi2(),
    "divergence_chi2_QP": lambda i: kind(i).chi2(reverse=True),
    "divergence_renyi3_PQ": lambda i: kind(i).renyi(3),
    "divergence_renyi3_QP": lambda i: kind(i).renyi(3, reverse=True),
    "divergence_tv": lambda i: kind(i).total_variation(),
    "renyi_joint_convexity": lambda i: [
        np.exp((i["order"] - 1) * f.renyi(i["order"]))
        for f in (normal_mixture_pair(i), joint_concavity(i))
    ],
    "shuffle_tradeoff": lambda i: shuffled(i)(i["alpha"]),
    "shuffle_delta": lambda i: shuffled(i).delta(i["eps"]),
    "shuffle_eps": lambda i: shuffled(i).epsilon(i["delta"]),
    "shuffle_delta_approx_ldp": lambda i: tradeoff.shuffled(
        i["eps0"], i["n"], i["delta0"]
    ).delta(i["eps"]),
    "shuffle_binary_rr_exact": lambda i: shuffled_randomized_response(i)(i["alpha"]),
    "fmt21_closed_form": lambda i: tradeoff.shuffled_epsilon_bound(
        i["eps0"], i["n"], i["delta"], bound="fmt21"
    ),
    "fmt23_closed_form": lambda i: tradeoff.shuffled_epsilon_bound(
        i["eps0"], i["n"], i["delta"], bound="fmt23"
    ),
    "random_init_delta": lambda i: linear_start(i).delta(i["eps"]),
    "random_init_tradeoff": lambda i: linear_start(i)(i["alpha"]),
    "random_init_renyi_scaled_exp": lambda i: np.exp(
        (i["order"] - 1) * unclipped_start(i).renyi(i["order"])
    ),
    "dpgd_linear_unclipped": linear_step,
}


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_matches_reference(function):
    cases = [case for case in CASES if case["function"] == function]
    assert cases
    for case in cases:
        value = np.array(FUNCTIONS[function](case["inputs"]))
        np.testing.assert_allclose(
            value,
            np.array(case["value"]),
            rtol=case["rtol"],
            atol=case["atol"],
            err_msg=case["name"],
        )
