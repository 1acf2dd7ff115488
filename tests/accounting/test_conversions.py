"""The accounting kinds of tests/reference/tradeoff.json: calibration, conversions."""

import json
from pathlib import Path

import numpy as np
import pytest

from keras_gdp.accounting import (
    CLTAccountant,
    Gaussian,
    MomentsAccountant,
    RDPAccountant,
    SampledGaussian,
    log_delta_from_mu,
    mu_clt,
    mu_from_epsilon_delta,
    mu_uniform,
    noise_multiplier_for,
    noise_multiplier_for_mu,
    steps_for_mu,
    trade_noise,
)
from tests.tradeoff.test_reference_values import CASES, FUNCTIONS

REFERENCE = Path(__file__).parents[1] / "reference" / "tradeoff.json"
RECORDS = 10**9  # p is a fraction of so many records


def run(kind, i):
    return kind().compose(SampledGaussian(i["sigma"], i["p"]), i["T"])


def clt(i):
    accountant = CLTAccountant()
    for p, sigma, steps in i["phases_p_sigma_T"]:
        accountant.compose(SampledGaussian(sigma, p), steps)
    return accountant


def uniform(i):
    return mu_uniform(i["sigma"], i["p"] * RECORDS, RECORDS, i["T"])


def uniform_epsilon(i):
    return CLTAccountant().compose(Gaussian(1 / uniform(i))).epsilon(i["delta"])


def over_orders(i, kind, epsilon):
    """Best epsilon over the integer orders that the case names."""
    accountant = run(kind, i)
    first, last = map(int, i.get("orders", i.get("lambda")).split(".."))
    orders = np.arange(first, last + 1, dtype=float)
    return min(epsilon(accountant, order, np.log(i["delta"])) for order in orders)


def moments_epsilon(accountant, order, log_delta):
    return (accountant.log_moment(order) - log_delta) / order


def renyi_epsilon(accountant, order, log_delta):
    shape = np.log1p(-1 / order) - (log_delta + np.log(order)) / (order - 1)
    return accountant.renyi_divergence(order) + shape


def noise(i, accountant):
    return noise_multiplier_for(
        i["eps"],
        i["delta"],
        sampling_probability=i["p"],
        steps=i["T"],
        accountant=accountant,
    )


def noise_for_mu(i, sampling="poisson", mu=None):
    return noise_multiplier_for_mu(
        i["mu"] if mu is None else mu,
        sampling_probability=i["p"],
        steps=i["T"],
        sampling=sampling,
    )


def traded(i, accountant):
    return trade_noise(
        i["eps"],
        noise_multiplier=i["sigma"],
        sampling_probability=i["p"],
        steps=i["T"],
        accountant=accountant,
    )


def trade_at_epsilon(i):
    result = traded(i, "clt")
    mu = mu_from_epsilon_delta(i["eps"], result.delta)
    before = mu_clt(i["sigma"], i["p"], i["T"])
    return [result.delta, before, mu, result.noise_multiplier]


def trade_at_delta(i):
    epsilon = run(MomentsAccountant, i).epsilon(i["delta"])
    mu = mu_from_epsilon_delta(epsilon, i["delta"])
    result = traded(i | {"eps": epsilon}, "clt")
    assert result.delta == pytest.approx(i["delta"], rel=1e-9, abs=0.0)
    return [epsilon, mu, result.noise_multiplier]


CONVERSIONS = {
    "clt_eps_poisson": lambda i: run(CLTAccountant, i).epsilon(i["delta"]),
    "clt_eps_uniform": uniform_epsilon,
    "clt_mu_poisson_hetero": lambda i: clt(i).mu,
    "clt_mu_uniform": uniform,
    "gaussian_sigma": lambda i: (
        i["sensitivity"] * noise(i | {"p": 1.0, "T": 1}, "exact")
    ),
    "gdp_log_delta": lambda i: log_delta_from_mu(i["eps"], i["mu"]),
    "gdp_mu": lambda i: mu_from_epsilon_delta(i["eps"], i["delta"]),
    "ma_delta": lambda i: run(MomentsAccountant, i).delta(i["eps"]),
    # In the limit the loss is Gaussian, and the conversion that of a plain Gaussian.
    "ma_delta_limit": lambda i: (
        MomentsAccountant().compose(Gaussian(1 / i["mu"])).delta(i["eps"])
    ),
    "ma_eps": lambda i: run(MomentsAccountant, i).epsilon(i["delta"]),
    "ma_eps_integer": lambda i: over_orders(i, MomentsAccountant, moments_epsilon),
    "max_steps_for_mu_poisson": lambda i: steps_for_mu(
        i["mu"], noise_multiplier=i["sigma"], sampling_probability=i["p"]
    ),
    "rdp_eps_improved": lambda i: over_orders(i, RDPAccountant, renyi_epsilon),
    "sigma_for_eps_delta_clt_poisson": lambda i: noise(i, "clt"),
    "sigma_for_eps_delta_exact_poisson": lambda i: noise(i, "exact"),
    "sigma_for_eps_delta_ma": lambda i: noise(i, "moments"),
    "sigma_for_mu_poisson": noise_for_mu,
    "sigma_for_mu_uniform": lambda i: noise_for_mu(i, "uniform"),
    "trade_ma_for_noise": trade_at_epsilon,
    "trade_ma_for_noise_at_delta": trade_at_delta,
    "trade_ma_for_noise_exact": lambda i: traded(i, "exact").noise_multiplier,
}


@pytest.mark.parametrize("function", sorted(CONVERSIONS))
def test_matches_reference(function):
    cases = [case for case in CASES if case["function"] == function]
    assert cases
    for case in cases:
        np.testing.assert_allclose(
            np.array(CONVERSIONS[function](case["inputs"])),
            np.array(case["value"]),
            rtol=case["rtol"],
            atol=case["atol"],
            err_msg=case["name"],
        )


def test_no_kind_of_reference_case_is_left_unrun():
    kinds = {case["function"] for case in json.loads(REFERENCE.read_text())["cases"]}
    assert kinds == set(CONVERSIONS) | set(FUNCTIONS)
    assert not set(CONVERSIONS) & set(FUNCTIONS)
