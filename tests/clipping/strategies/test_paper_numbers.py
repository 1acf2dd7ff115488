"""The privacy figures of "Three tools for practical differential privacy" (2018).

Noise 0.7225 on each layer, batches of 128 of 50,000 examples, 60 epochs, and
delta = N^-1.1: the paper reports epsilon = 20, and the same for noise 0.725 with norm
noise 2.5.
"""

import math

import pytest

from keras_gdp import accounting
from keras_gdp.clipping import AdaptivePerLayer, PerLayer

N, BATCH = 50_000, 128
STEPS, DELTA = round(60 * N / BATCH), N**-1.1
# Five layers; with a kernel and a bias each, ten variables.
LAYERS, VARIABLES = 5, 10
NOISE, ADAPTIVE_NOISE, NORM_NOISE = 0.7225, 0.725, 2.5


def spent(accountant, *releases):
    accountant = accounting.make_accountant(accountant)
    for noise_multiplier, count in releases:
        event = accounting.SampledGaussian(noise_multiplier, BATCH / N)
        accountant.compose(event, count)
    return accountant.epsilon(DELTA)


@pytest.mark.parametrize(("groups", "epsilon"), [(LAYERS, 106.92), (VARIABLES, 421.03)])
def test_what_the_per_layer_release_costs(groups, epsilon):
    joint = PerLayer(2.0).effective_noise_multiplier(NOISE / math.sqrt(groups))
    assert spent("exact", (joint, STEPS)) == pytest.approx(epsilon, abs=0.01)


def test_the_papers_epsilon_is_that_of_ten_releases_with_samples_of_their_own():
    apart = spent("moments", (NOISE, VARIABLES * STEPS))
    assert apart == pytest.approx(19.27, abs=0.01)
    adaptive = spent(
        "moments", (ADAPTIVE_NOISE, VARIABLES * STEPS), (NORM_NOISE, VARIABLES * STEPS)
    )
    assert adaptive == pytest.approx(apart, rel=0.01)
    # One variable alone, or all with one sample, is nowhere near.
    assert spent("moments", (NOISE, STEPS)) < 6
    assert spent("moments", (NOISE / math.sqrt(VARIABLES), STEPS)) > 400


def test_the_adaptive_figures_as_one_release():
    root = math.sqrt(LAYERS)
    strategy = AdaptivePerLayer(1.1, 2.0, NORM_NOISE / root)
    joint = strategy.effective_noise_multiplier(ADAPTIVE_NOISE / root)
    assert joint * root == pytest.approx(0.6963, abs=1e-4)
    # With one sample for everything the norms are not as cheap as the paper has it:
    assert spent("exact", (joint, STEPS)) == pytest.approx(124.90, abs=0.01)
    # this noise on the gradients would make up for them.
    needed = strategy.noise_multiplier_for(NOISE / root)
    assert needed * root == pytest.approx(0.7547, abs=1e-4)
    same = spent("exact", (strategy.effective_noise_multiplier(needed), STEPS))
    assert same == pytest.approx(spent("exact", (NOISE / root, STEPS)), rel=1e-9)


def test_norm_noise_in_units_of_all_norms_together_makes_both_cost_the_same():
    root = math.sqrt(VARIABLES)
    strategy = AdaptivePerLayer(1.1, 2.0, NORM_NOISE)
    adaptive = strategy.effective_noise_multiplier(ADAPTIVE_NOISE / root)
    fixed = PerLayer(2.0).effective_noise_multiplier(NOISE / root)
    assert adaptive == pytest.approx(fixed, rel=1e-3)
    cost = spent("exact", (adaptive, STEPS))
    assert cost == pytest.approx(spent("exact", (fixed, STEPS)), rel=3e-3)
