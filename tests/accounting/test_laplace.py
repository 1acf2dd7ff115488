"""Laplace noise over many releases: atoms that die out along the contour."""

import math

import numpy as np
import pytest
from mpmath import mp, mpf

from keras_gdp.accounting import (
    ExactAccountant,
    Laplace,
    SampledGaussian,
    SampledLaplace,
)
from keras_gdp.accounting.exact import largest_jump
from keras_gdp.accounting.exact.composition import directions
from keras_gdp.accounting.exact.readings import jumps_at


def laplace_transform(s, shift):
    """E_P[exp(s L)] of Laplace noise, in closed form."""
    atoms = np.exp(s * shift) / 2 + math.exp(-shift) * np.exp(-s * shift) / 2
    between = np.exp((s + 1) * shift) - np.exp(-s * shift)
    return atoms + math.exp(-shift) * between / (2 * (2 * s + 1))


def gaussian_log_transform(s, p, shift):
    """log E_P[exp(s L)] of a replaced record drawn with probability p, by a sum."""
    step = 1e-4
    x = -16.0 + step * np.arange(360_001)
    first = (1 - p) * np.exp(-x * x / 2) + p * np.exp(-((x - shift) ** 2) / 2)
    second = (1 - p) * np.exp(-x * x / 2) + p * np.exp(-((x + shift) ** 2) / 2)
    loss, weight = np.log(first / second), step * first / math.sqrt(2 * math.pi)
    return np.log([weight @ np.exp(z * loss) for z in s])


def inverted(log_transform, c, epsilon, spacing, count):
    """delta by a plain trapezoid sum along a line."""
    step = 2 * math.pi / spacing
    s = c + 1j * step * np.arange(count)
    terms = np.exp(log_transform(s) - s * epsilon) / (s * (s + 1))
    terms[0] /= 2
    return float(terms.real.sum()) * step / math.pi


@pytest.mark.parametrize(
    ("noise", "steps", "epsilon", "c"),
    [(1.0, 300, 130.0, 0.3), (5.0, 1000, 46.0, 0.5), (20.0, 10_000, 33.0, 0.5)],
)
def test_many_releases_agree_with_the_closed_form(noise, steps, epsilon, c):
    truth = inverted(
        lambda s: steps * np.log(laplace_transform(s, 1 / noise)),
        c,
        epsilon,
        400,
        10**6,
    )
    run = ExactAccountant().compose(Laplace(noise), steps)
    low, high = run.delta_bounds(epsilon)
    assert high - low <= 1e-9 * high
    assert low == pytest.approx(truth, rel=1e-8, abs=0.0)
    assert run.epsilon(high) == pytest.approx(epsilon, rel=1e-9, abs=0.0)


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_many_sampled_releases_are_tight_and_add_up(relation):
    run = ExactAccountant(relation).compose(SampledLaplace(1.0, 0.01), 1000)
    low, high = run.epsilon_bounds(1e-6)
    assert high - low <= 1e-9 * high
    parts = ExactAccountant(relation).compose(SampledLaplace(1.0, 0.01), 400)
    parts.compose(SampledLaplace(1.0, 0.01), 600)
    assert parts.epsilon(1e-6) == pytest.approx(high, rel=1e-9, abs=0.0)


def mixed(noise, releases, p, sigma, steps):
    events = ((Laplace(noise), releases), (SampledGaussian(sigma, p), steps))
    return directions(events, "replace_one", 1)[0]


@pytest.mark.parametrize("steady", [largest_jump._STEADY, 0.0])
def test_atoms_come_back_beside_rare_records(monkeypatch, steady):
    monkeypatch.setattr(largest_jump, "_STEADY", steady)
    noise, sigma, p, count, epsilon = 4.9972, 1.4997, 0.0052057, 125, 23.3031
    truth = inverted(
        lambda s: (
            count * np.log(laplace_transform(s, 2 / noise))
            + count * gaussian_log_transform(s, p, 1 / sigma)
        ),
        1.0,
        epsilon,
        60,
        900,
    )
    reading = jumps_at(mixed(noise, count, p, sigma, count), epsilon).value(epsilon)
    assert reading.error < 1e-11
    assert math.exp(reading.log_value) == pytest.approx(truth, rel=3e-12, abs=0.0)


@pytest.mark.parametrize("cut", [None, 0.5])
def test_what_a_transform_may_come_back_to_is_never_exceeded(cut):
    composition = mixed(3.0, 40, 0.01, 1.0, 100)
    part = composition
    if cut is not None:
        body = largest_jump.without_jumps(composition, cut)
        jumps = [loss.far for loss, _ in body.phases]
        part = largest_jump.Band(body, jumps)
    k, back = part.line(0.7, 0.05, 0, 2000)
    size = np.exp(k.real - part.real(0.7)[0])
    later = np.maximum.accumulate(size[::-1])[::-1]
    assert (later <= back * (1 + 1e-9) + 1e-300).all()
    assert back[-1] < 1e-3


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize("group_size", [1, 3])
def test_certain_sampling_is_none(relation, group_size):
    sampled = ExactAccountant(relation, group_size=group_size)
    plain = ExactAccountant(relation, group_size=group_size)
    sampled.compose(SampledLaplace(4.0, 1.0), 20)
    plain.compose(Laplace(4.0), 20)
    assert sampled.epsilon_bounds(1e-5) == plain.epsilon_bounds(1e-5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("noise", "p", "steps"), [(0.02, 0.1, 1000), (0.026, 1.0, 30)])
def test_flat_losses_of_little_noise(noise, p, steps):
    run = ExactAccountant().compose(SampledLaplace(noise, p), steps)
    low, high = run.epsilon_bounds(1e-5)
    assert 1.0 < low <= high < steps / noise


def laplace_delta(relation, noise, p, group, epsilon):
    """Delta of one sampled Laplace release, from closed tails."""
    a, p = 1 / mpf(noise), mpf(p)
    drawn = [
        mp.binomial(group, j) * p**j * (1 - p) ** (group - j) for j in range(group + 1)
    ]
    shifted = [(w, j * a) for j, w in enumerate(drawn)]
    mirrored, plain = [(w, -b) for w, b in shifted], [(mpf(1), mpf(0))]
    pairs = [(shifted, mirrored)]
    if relation == "add_remove":
        pairs = [(shifted, plain), (plain, mirrored)]

    def log_density(parts, x):
        return mp.log(mp.fsum(w * mp.exp(-abs(x - b)) for w, b in parts))

    def beyond(parts, x):
        return mp.fsum(
            w * (mp.exp(b - x) / 2 if x > b else 1 - mp.exp(x - b) / 2)
            for w, b in parts
        )

    deltas = [mpf(0)]
    for over, under in pairs:
        low, high = -group * a - 1, group * a + 1
        if log_density(over, high) - log_density(under, high) > epsilon:
            for _ in range(150):
                x = (low + high) / 2
                above = log_density(over, x) - log_density(under, x) >= epsilon
                low, high = (low, x) if above else (x, high)
            deltas.append(
                beyond(over, high) - mp.exp(mpf(epsilon)) * beyond(under, high)
            )
    return max(deltas)


@pytest.mark.parametrize(
    ("relation", "noise", "p", "group", "epsilon"),
    [
        ("replace_one", 0.00306, 0.000699, 3, 320.62542839265654),
        ("replace_one", 0.0173, 0.00207, 3, 52.72067873175652),
        ("add_remove", 0.0641, 0.000107, 3, 7.555701011828368),
        ("replace_one", 0.0584, 1.04e-6, 6, 18.612471801427972),
        ("add_remove", 0.59, 0.0632, 3, 0.743),
        ("add_remove", 0.00461, 3.69e-5, 6, 1115.17),
        ("add_remove", 0.3, 0.2, 7, 14.0),
    ],
)
def test_one_release_for_a_group_whose_kinks_are_anywhere(
    relation, noise, p, group, epsilon
):
    run = ExactAccountant(relation, group_size=group)
    low, high = run.compose(SampledLaplace(noise, p), 1).delta_bounds(epsilon)
    with mp.workdps(50):
        truth = laplace_delta(relation, noise, p, group, epsilon)
        assert low <= truth <= high
        assert high - low <= 1e-10 * truth
