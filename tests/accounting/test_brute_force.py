"""Two releases of every kind, off the reference's grid, by sums over the plane."""

import math

import numpy as np
import pytest
from scipy import stats

from keras_gdp.accounting import (
    Composed,
    ExactAccountant,
    Gaussian,
    Laplace,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
    UniformSampledGaussian,
)

SIGMA, P, SCALE = 1.1, 0.07, 1.7
X = np.linspace(-13.0, 15.0, 3001)
WIDE = np.linspace(-18.0, 18.0, 3001)


def group(noise, x, size, unit, p=P):
    return sum(
        math.comb(size, j) * p**j * (1 - p) ** (size - j) * noise(x - j * unit)
        for j in range(size + 1)
    )


def laplace(x):
    return 0.5 * np.exp(-np.abs(x))


def atoms(density, x):
    return density * (x[1] - x[0])


def pair(noise, x, size, unit, p, replaced):
    """Masses of one release with and without a group of records."""
    upper = group(noise, x, size, unit, p)
    lower = group(noise, x, size, -unit, p) if replaced else noise(x)
    return atoms(upper, x), atoms(lower, x)


def uniform(mu, p):
    """C_p(G_mu): mixture against noise right of mu/2, mirrored, and an atom."""
    x = mu / 2 + (np.arange(1500) + 0.5) * 0.01
    noise = stats.norm.pdf(x) * 0.01
    mixture = (1 - p) * noise + p * stats.norm.pdf(x - mu) * 0.01
    rest = 1 - noise.sum() - mixture.sum()
    return np.append(np.append(mixture, noise), rest), np.append(
        np.append(noise, mixture), rest
    )


def delta(first, second, epsilon):
    """The worse direction's delta of two releases with finitely many outcomes."""
    p = np.multiply.outer(first[0], second[0])
    q = np.multiply.outer(first[1], second[1])
    scale = math.exp(epsilon)
    return max(
        np.maximum(p - scale * q, 0.0).sum(), np.maximum(q - scale * p, 0.0).sum()
    )


def gaussian_case(size, replaced):
    masses = pair(stats.norm.pdf, X, size, 1 / SIGMA, P, replaced)
    return SampledGaussian(SIGMA, P), masses, size, replaced


def laplace_case(event, p):
    return event, pair(laplace, WIDE, 1, 1 / SCALE, p, False), 1, False


CASES = {
    "poisson": gaussian_case(1, False),
    "poisson-replaced": gaussian_case(1, True),
    "poisson-group": gaussian_case(3, False),
    "poisson-group-replaced": gaussian_case(3, True),
    "gaussian": (
        Gaussian(SIGMA),
        pair(stats.norm.pdf, X, 1, 1 / SIGMA, 1.0, False),
        1,
        False,
    ),
    "uniform": (UniformSampledGaussian(3.1, 7, 100), uniform(2 / 3.1, P), 1, True),
    "laplace": laplace_case(Laplace(SCALE), 1.0),
    "sampled-laplace": laplace_case(SampledLaplace(SCALE, P), P),
    "randomized-response": (
        RandomizedResponse(0.37, 5),
        (
            np.array([0.63 + 0.074, 0.074, 3 * 0.074]),
            np.array([0.074, 0.63 + 0.074, 3 * 0.074]),
        ),
        1,
        False,
    ),
}


def run(event, count, size, replaced):
    relation = "replace_one" if replaced else "add_remove"
    return ExactAccountant(relation, group_size=size).compose(event, count)


@pytest.mark.parametrize("name", CASES)
def test_two_releases(name):
    event, masses, size, replaced = CASES[name]
    spent = run(event, 2, size, replaced)
    for epsilon in (0.04, 0.3):
        truth = delta(masses, masses, epsilon)
        low, high = spent.delta_bounds(epsilon)
        # The sums over the plane have kinks: four to five digits.
        assert high == pytest.approx(truth, rel=2e-4, abs=0.0)
        assert low == pytest.approx(truth, rel=3e-4, abs=0.0)
        if truth > 1e-12:
            assert spent.epsilon(high) == pytest.approx(epsilon, rel=1e-5, abs=0.0)


@pytest.mark.parametrize("other", ["laplace", "gaussian", "randomized-response"])
def test_two_kinds_together(other):
    sampled, masses, *_ = CASES["poisson"]
    event, others, *_ = CASES[other]
    spent = run(Composed([sampled, event]), 1, 1, False)
    truth = delta(masses, others, 0.25)
    low, high = spent.delta_bounds(0.25)
    assert high == pytest.approx(truth, rel=2e-4, abs=0.0)
    assert low == pytest.approx(truth, rel=3e-4, abs=0.0)
