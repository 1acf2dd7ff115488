"""Cumulants with the far outcomes of a release taken out, or of these alone."""

import math

import mpmath
import numpy as np
import pytest

from keras_gdp.accounting import ExactAccountant, SampledGaussian
from keras_gdp.accounting.exact import privacy_loss
from keras_gdp.accounting.exact.band import Band
from keras_gdp.accounting.exact.largest_jump import without_jumps
from keras_gdp.accounting.exact.moments import QuadratureTooLargeError
from keras_gdp.accounting.exact.uniform import UniformLoss
from keras_gdp.accounting.exact.waves import expm1, log1p


def composition(*phases, relation="add_remove"):
    run = ExactAccountant(relation)
    for sigma, p, steps in phases:
        run.compose(SampledGaussian(sigma, p), steps)
    return run._directions()[0]


def band(whole, low, high):
    body = without_jumps(whole, low)
    pairs = zip(whole.phases, body.phases, strict=True)
    return Band(
        body,
        [
            part.far and part.far.below(all_.rest + high)
            for (all_, _), (part, _) in pairs
        ],
    )


KINDS = [
    composition((0.5, 1e-3, 10)),
    composition((1.0, 0.05, 3), (0.6, 1e-3, 40)),
    composition((0.7, 0.01, 100), relation="replace_one"),
]


@pytest.mark.parametrize("whole", KINDS)
@pytest.mark.parametrize("c", [0.1, 1.0, 8.0])
def test_bands_add_up(whole, c):
    cuts = (0.1, 0.4, 1.6)
    parts = [without_jumps(whole, cuts[0])]
    parts += [band(whole, low, high) for low, high in zip(cuts, cuts[1:], strict=False)]
    total = without_jumps(whole, cuts[-1])
    values = [part.real(c)[0] for part in parts]
    assert np.logaddexp.reduce(values) == pytest.approx(total.real(c)[0], abs=1e-12)
    lines = sum(np.exp(part.line(c, 3.0, 5, 40)[0]) for part in parts)
    expected = np.exp(total.line(c, 3.0, 5, 40)[0])
    scale = math.exp(total.real(c)[0])
    assert np.abs(lines - expected).max() < 1e-11 * scale


@pytest.mark.parametrize("whole", KINDS)
@pytest.mark.parametrize("low", [2.0**-8, 0.1, 1.6])
def test_masses_are_known_without_nodes(whole, low):
    body, jumps = without_jumps(whole, low), band(whole, low, 16.0 * low)
    assert whole.log_mass == 0.0
    assert body.log_mass == pytest.approx(body.real(0.0)[0], abs=1e-11)
    mass = jumps.real(0.0)[0]
    assert mass <= jumps.log_mass <= min(mass + 3.0, 0.0) + 1e-12


@pytest.mark.parametrize("whole", KINDS)
def test_derivatives_of_a_band(whole):
    part, c, h = band(whole, 0.1, 0.4), 2.0, 1e-4
    k0, k1, k2 = part.real(c)
    left, right = part.real(c - h), part.real(c + h)
    assert k1 == pytest.approx((right[0] - left[0]) / (2 * h), rel=1e-6, abs=0.0)
    assert k2 == pytest.approx((right[1] - left[1]) / (2 * h), rel=1e-6, abs=0.0)
    line = part.line(c, 1.0, 0, 1)[0]
    assert line[0].real == pytest.approx(k0, abs=1e-12)


def panels(cuts):
    """Ten-point Gauss-Legendre nodes and weights between cuts."""
    nodes, weights = np.polynomial.legendre.leggauss(10)
    half = np.diff(cuts) / 2.0
    x = (cuts[:-1] + half)[:, None] + half[:, None] * nodes
    return x.ravel(), (half[:, None] * weights).ravel()


@pytest.mark.parametrize(("c", "frequency"), [(0.5, 700.0), (20.0, 5000.0)])
@pytest.mark.parametrize("kind", ["poisson", "uniform"])
def test_high_frequencies_by_finer_sums(kind, c, frequency):
    p, sigma, threshold = 1e-3, 0.5, 0.02
    if kind == "poisson":
        loss = composition((sigma, p, 1)).phases[0][0].without_far(threshold)
        pair, start, atom = loss, -14.0, 0.0
    else:
        loss = UniformLoss(1 / sigma, p).without_far(threshold)
        pair, start, atom = loss._pair, 0.5 / sigma, loss.atom
    x, weight = panels(np.linspace(start, pair.fade.end, 16001))
    log_size, value = pair.log_size(x)
    s = c + 1j * np.array([0.1, 0.5, 1.0]) * frequency
    truth = np.exp(np.multiply.outer(1.0 + s, value) + log_size) @ weight + atom
    if kind == "uniform":  # the mirror image, which is not faded
        x, weight = panels(np.linspace(start, start + 14.0, 40001))
        value = pair.loss(x)
        truth += np.exp(np.multiply.outer(-s, value) + pair.log_noise(x)) @ weight
    found = np.array([loss.line(c, tau, 1, 1)[0] for tau in s.imag])
    scale = math.exp(loss.real(c)[0])
    assert np.abs(np.exp(found) - truth).max() < 1e-12 * scale


def test_orders_at_which_a_cut_fade_would_show_are_refused():
    loss = composition((0.5, 1e-3, 1)).phases[0][0].without_far(0.02)
    with pytest.raises(QuadratureTooLargeError):
        loss.line(3000.0, 1.0, 0, 4)


def test_complex_logarithms_and_exponentials_are_accurate_near_zero():
    z = np.array([1e-12 + 1e-9j, -1e-20 + 3e-20j, 0.3 - 2.0j, -1e-5 + 7j])
    with mpmath.workdps(60):
        for value, found, inverse in zip(z, expm1(z), log1p(z), strict=True):
            exact = complex(mpmath.expm1(mpmath.mpmathify(value)))
            assert found == pytest.approx(exact, rel=1e-13, abs=0.0)
            exact = complex(mpmath.log(1 + mpmath.mpmathify(value)))
            assert inverse == pytest.approx(exact, rel=1e-13, abs=0.0)


def test_what_queries_leave_in_memory_is_bounded(monkeypatch):
    kept = privacy_loss._kept_nodes
    monkeypatch.setattr(privacy_loss, "_MOST_NODES", 50_000)
    for noise in (0.5, 0.6, 0.7, 0.8):
        run = ExactAccountant().compose(SampledGaussian(noise, 1e-3), 30)
        run.epsilon(1e-6)
    largest = max(nodes.size for nodes in kept._sets.values())
    assert kept._total <= 50_000 + largest
    sizes = [nodes.size + privacy_loss._OVERHEAD for nodes in kept._sets.values()]
    assert kept._total == sum(sizes)
