"""Every case of tests/reference/accounting.json (its origin: see README there)."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from keras_gdp.accounting import (
    CLTAccountant,
    ExactAccountant,
    Gaussian,
    Laplace,
    MomentsAccountant,
    RDPAccountant,
    SampledGaussian,
    UniformSampledGaussian,
)

CASES = json.loads(
    (Path(__file__).parents[1] / "reference" / "accounting.json").read_text()
)["cases"]
RELATION = {
    "add_remove": "add_remove",
    "add_remove_disjoint_batches": "add_remove",
    "replace_one_poisson": "replace_one",
    "replace_one_wor": "replace_one",
}


def event(phase):
    if phase["mechanism"] == "poisson_gaussian":
        return SampledGaussian(phase["sigma"], phase["p"])
    if phase["mechanism"] == "gaussian":
        return Gaussian(phase["sigma"])
    if phase["mechanism"] == "laplace":
        return Laplace(phase["scale"])
    # Here sigma is over the sensitivity of replacement, which is 2 clip norms.
    ratio = Fraction(phase["p"]).limit_denominator(10**6)
    return UniformSampledGaussian(
        2 * phase["sigma"], ratio.numerator, ratio.denominator
    )


def composed(case, kind):
    accountant = kind(RELATION[case["relation"]])
    for phase in case["phases"]:
        accountant.compose(event(phase), phase["steps"])
    return accountant


def check(bounds, enclosure):
    (low, high), (lower_end, upper_end) = bounds, enclosure
    assert low <= high
    assert high >= lower_end, "claims more privacy than there is"
    assert high <= upper_end * (1 + 1e-9)
    assert low <= upper_end


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_exact_lies_in_the_enclosures(case):
    run = composed(case, ExactAccountant)
    for delta, enclosure in case["eps_at_delta"].items():
        check(run.epsilon_bounds(float(delta)), enclosure)
        point = case["eps_point"][delta]
        if point is not None:
            assert run.epsilon(float(delta)) == pytest.approx(point, rel=1e-8, abs=0.0)
    for epsilon, enclosure in case["delta_at_eps"].items():
        check(run.delta_bounds(float(epsilon)), enclosure)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_other_accountants_agree(case):
    rdp, moments = composed(case, RDPAccountant), composed(case, MomentsAccountant)
    for delta in case["eps_at_delta"]:
        for run, key in ((rdp, "eps_rdp_at_delta"), (moments, "eps_ma_at_delta")):
            # Never below the optimum over all orders, up to rounding.
            value = run.epsilon(float(delta))
            assert value == pytest.approx(case[key][delta], rel=1e-7, abs=0.0)
        assert moments.epsilon(float(delta)) >= rdp.epsilon(float(delta))
    plain = all(p["mechanism"] == "gaussian" for p in case["phases"])
    sampled = all(p.get("p", 1.0) < 1.0 for p in case["phases"])
    mixed = any(p["mechanism"] in ("gaussian", "laplace") for p in case["phases"])
    if case["mu_clt"] and not plain and sampled and not mixed:
        clt = composed(case, CLTAccountant)
        assert clt.mu == pytest.approx(case["mu_clt"], rel=1e-12, abs=0.0)
        for delta, value in case["eps_clt_at_delta"].items():
            assert clt.epsilon(float(delta)) == pytest.approx(value, rel=1e-9, abs=0.0)
        assert not clt.is_upper_bound
        assert "ESTIMATE" in clt.assumption
