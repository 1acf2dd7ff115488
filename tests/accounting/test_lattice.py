"""Losses on a lattice are composed without rounding: against sums over all outcomes."""

import mpmath as mp
import numpy as np
import pytest

from keras_gdp.accounting import ApproximateDP, ExactAccountant, RandomizedResponse


def outcomes(phases):
    """Returns the finite losses and probabilities of a composition, in 40 digits.

    Args:
        phases: List of `(unit, {multiple of the unit: probability}, count)`.
    """
    total = {mp.mpf(0): mp.mpf(1)}
    for unit, single, count in phases:
        sums = {0: mp.mpf(1)}
        for _ in range(count):
            longer = {}
            for a, p in sums.items():
                for b, q in single.items():
                    longer[a + b] = longer.get(a + b, 0) + p * q
            sums = longer
        total = {
            loss + unit * k: p * q for loss, p in total.items() for k, q in sums.items()
        }
    return total


def delta_of(found, epsilon):
    """Returns delta of such outcomes."""
    return mp.fsum(
        p * (1 - mp.exp(mp.mpf(epsilon) - loss))
        for loss, p in found.items()
        if loss > epsilon
    )


def responses(noise, categories, count):
    other = mp.mpf(noise) / categories
    top = 1 - noise + other
    single = {1: top, 0: 1 - top - other, -1: other}
    return mp.log(top / other), single, count


def approximate(epsilon, delta, count):
    likely = (1 - mp.mpf(delta)) / (1 + mp.exp(-mp.mpf(epsilon)))
    return mp.mpf(epsilon), {1: likely, -1: 1 - mp.mpf(delta) - likely}, count


CASES = {
    "two categories": ([(RandomizedResponse(0.9, 2), 300)], [(0.9, 2, 300)]),
    "almost private": ([(RandomizedResponse(0.99, 2), 200)], [(0.99, 2, 200)]),
    "ten categories": ([(RandomizedResponse(0.5, 10), 60)], [(0.5, 10, 60)]),
    "few": ([(RandomizedResponse(0.25, 4), 2)], [(0.25, 4, 2)]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("share", [0.0, 0.11, 0.35, 0.62, 0.8])
def test_randomized_response_is_exact_to_nine_digits(case, share):
    events, phases = CASES[case]
    run = ExactAccountant()
    for event, count in events:
        run.compose(event, count)
    with mp.workdps(40):
        found = outcomes([responses(*phase) for phase in phases])
        epsilon = float(share * max(found))
        truth = delta_of(found, epsilon)
        low, high = (mp.mpf(bound) for bound in run.delta_bounds(epsilon))
        assert low <= truth <= high
        assert high - low < 1e-9 * truth


def test_lattices_that_fit_each_other_are_exact_together():
    run = ExactAccountant()
    run.compose(ApproximateDP(0.1, 1e-7), 40).compose(ApproximateDP(0.3, 1e-8), 9)
    with mp.workdps(40):
        phases = [approximate(0.1, 1e-7, 40), approximate(0.3, 1e-8, 9)]
        infinite = 1 - (1 - mp.mpf(1e-7)) ** 40 * (1 - mp.mpf(1e-8)) ** 9
        truth = infinite + delta_of(outcomes(phases), 2.5)
        low, high = (mp.mpf(bound) for bound in run.delta_bounds(2.5))
        assert low <= truth <= high
        assert high - low < 1e-9 * truth


def test_lattices_that_do_not_fit_are_bounded_all_the_same():
    run = ExactAccountant()
    run.compose(RandomizedResponse(0.9, 2), 20).compose(RandomizedResponse(0.8, 3), 9)
    with mp.workdps(40):
        found = outcomes([responses(0.9, 2, 20), responses(0.8, 3, 9)])
        for epsilon in np.linspace(0.0, 4.0, 5):
            truth = delta_of(found, epsilon)
            low, high = (mp.mpf(bound) for bound in run.delta_bounds(epsilon))
            assert low <= truth <= high < truth * (1 + 1e-6)


def test_many_releases_on_a_lattice_keep_their_digits():
    low, high = (
        ExactAccountant()
        .compose(RandomizedResponse(0.9, 2), 10_000)
        .epsilon_bounds(1e-6)
    )
    assert high - low < 1e-10 * high
