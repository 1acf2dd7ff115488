"""Cumulants of one release against sums that are finer than needed."""

import math

import numpy as np
import pytest
from mpmath import mp, mpf

from keras_gdp.accounting import (
    ApproximateDP,
    CLTAccountant,
    ExactAccountant,
    Gaussian,
    SampledGaussian,
    SampledLaplace,
    UniformSampledGaussian,
    sampling_probability_for,
)
from keras_gdp.accounting.exact.pairs import dominating_pair
from keras_gdp.accounting.exact.quadrature import alive
from keras_gdp.errors import BudgetExceededError


def uniform_cumulant(mu, p, c, taus):
    """K of C_p(G_mu) by Gauss-Legendre panels of a hundredth."""
    nodes, weights = np.polynomial.legendre.leggauss(8)
    x = mu / 2 + 0.01 * np.arange(100 * math.ceil(16 + (1 + c) * mu))[:, None]
    x = (x + 0.005 * (1 + nodes)).ravel()
    log_base = np.log(np.resize(0.005 * weights, x.size)) - x * x / 2
    log_base -= 0.5 * math.log(2 * math.pi)
    loss = np.logaddexp(math.log1p(-p), math.log(p) + mu * (x - mu / 2))
    atom = (1 - p) * math.erf(mu / 2 / math.sqrt(2))
    size = np.concatenate([log_base + (1 + c) * loss, log_base - c * loss])
    loss = np.concatenate([loss, -loss])
    top = max(float(size.max()), 0.0)
    weight = np.exp(size - top)
    waves = [(weight * np.exp(1j * tau * loss)).sum() for tau in taus]
    return top + np.log(np.array(waves) + atom * math.exp(-top))


@pytest.mark.parametrize(
    ("noise", "batch", "c", "step", "count"),
    [
        (0.2669, 1639, 3.691, 1.148, 24),
        (0.3365, 6542, 12.74, 0.2696, 100),
        (0.557, 36210, 18.02, 0.09486, 300),
        (1.522, 54, 17.39, 10.16, 24),
        (4.127, 8908, 89.83, 2.497, 300),
    ],
)
def test_uniform_lines_are_resolved_at_every_exponent(noise, batch, c, step, count):
    event = UniformSampledGaussian(noise, batch, 100_000)
    loss = dominating_pair(event, "replace_one", 1).forward
    line = loss.line(c, step, 0, count)[:: count // 12]
    taus = step * np.arange(count)[:: count // 12]
    exact = uniform_cumulant(2 / noise, batch / 1e5, c, taus)
    # Relative to the largest, at frequency 0; rounding grows with exponent and wave.
    assert np.abs(np.exp(line - exact[0]) - np.exp(exact - exact[0])).max() < 1e-10


@pytest.mark.parametrize(
    ("p", "noise", "order"),
    [(0.2871, 10.61, 1217.0), (0.2871, 10.61, 3000.0), (0.999, 2.0, 40.0)],
)
def test_large_orders_of_the_direction_without_the_record(p, noise, order):
    loss = dominating_pair(SampledGaussian(noise, p), "add_remove", 1).reverse
    x = np.linspace(-40.0, 60.0, 100_001)
    shifted = math.log(p) - x / noise - 0.5 / noise**2
    size = -order * np.logaddexp(math.log1p(-p), shifted) - x * x / 2
    top = size.max()
    exact = top + math.log(np.exp(size - top).sum() * 1e-3 / math.sqrt(2 * math.pi))
    assert loss.real(order)[0] == pytest.approx(exact, abs=1e-9)


def test_curvature_where_only_the_atom_is_left():
    event = UniformSampledGaussian(0.08940428608345925, 259, 100_000)
    body = dominating_pair(event, "replace_one", 1).forward.without_far(1.0)
    for order in (0.5, 1.2, 1.4, 1.65, 3.0):
        assert body.real(order)[2] >= 0.0
    run = ExactAccountant("replace_one").compose(event, 1000)
    epsilon = run.epsilon(1e-8)
    low, high = run.delta_bounds(epsilon)
    assert low <= 1e-8
    assert high == pytest.approx(1e-8, rel=1e-4, abs=0.0)
    # 1000 releases of 0.00259 each show the record at most so often.
    assert run.delta(0.3 * epsilon) <= 1 - (1 - 0.00259) ** 1000


def test_what_matters_at_any_exponent_is_alive():
    x = np.linspace(0.0, 80.0, 1601)
    size, loss = -x * x / 2, np.logaddexp(-5.0, 3.0 * (x - 4.0))
    for t in (1.0, 4.0, 16.0):
        found = alive(size, loss, t)
        for s in np.linspace(t / 4 if t > 1 else 0.0, t, 101):
            tilted = size + s * loss
            assert (found >= tilted - tilted.max() - 1e-9).all()
        assert found.min() < -50.0


def test_infinite_losses_do_not_hide_the_worse_direction():
    # Of this run the record's absence against its presence is the worse direction.
    sampled, epsilon, share = SampledLaplace(2.6575, 0.3263), 0.046, 0.02
    run = ExactAccountant().compose(sampled, 2)
    mixed = run.copy().compose(ApproximateDP(0.0, share))
    low, high = (share + (1 - share) * end for end in run.delta_bounds(epsilon))
    least, most = mixed.delta_bounds(epsilon)
    assert least <= high
    assert low <= most <= high * (1 + 1e-6)
    assert mixed.epsilon(low) >= epsilon * (1 - 1e-9)


@pytest.mark.parametrize(("noise", "share"), [(0.02, 0.1), (0.08, 0.03), (0.1, 0.05)])
def test_fixed_size_sampling_without_jumps(noise, share):
    # Without outcomes that lose 5 more, where noise is small, only the atom is left.
    event = UniformSampledGaussian(noise, round(1000 * share), 1000)
    loss = dominating_pair(event, "replace_one", 1).forward.without_far(5.0)
    for order in (0.1, 1.0, 5.0):
        assert loss.real(order)[0] == pytest.approx(
            math.log1p(-share), rel=1e-8, abs=0.0
        )


@pytest.mark.parametrize("noise", [1e-320, 1e-200, 1e-3])
@pytest.mark.parametrize("steps", [1, 3])
def test_hardly_any_noise(noise, steps):
    for event in (
        Gaussian(noise),
        SampledGaussian(noise, 0.1),
        UniformSampledGaussian(noise, 10, 100),
    ):
        run = ExactAccountant("replace_one").compose(event, steps)
        assert run.epsilon(1e-5) > 1000.0
        assert run.delta(1.0) >= (1 - 0.9**steps) * (1 - 1e-9)
    estimate = CLTAccountant().compose(SampledGaussian(noise, 0.1), steps)
    assert estimate.epsilon(1e-5) == math.inf
    if noise < 1e-100:  # accounted as no noise
        with pytest.raises(BudgetExceededError):
            sampling_probability_for(1.0, 1e-5, noise_multiplier=noise, steps=steps)


def test_a_poor_contour_bounds_nothing():
    # Its error bound said 5 %, it was off by a factor of 2. Inversion in 70 digits:
    # 6.8908e-58 and five digits of that.
    run = ExactAccountant()
    run.compose(SampledGaussian(12.623605723615764, 0.0025958207902681977), 101)
    run.compose(SampledGaussian(2.570488566398051, 0.0003630895464069158), 3)
    run.compose(SampledGaussian(16.339992380644368, 0.3174374927177662), 2)
    low, high = run.delta_bounds(0.535944)
    assert low <= 6.8908e-58 <= high < 6.8918e-58


def mixtures(event, relation):
    """P and Q over noise(x), in 60 digits, as functions of x."""
    p, a = mpf(event.sampling_probability), 1 / mpf(event.noise_multiplier)

    def shifted(x, shift):
        return (1 - p) + p * mp.exp(shift * (x - shift / 2))

    return {
        "added": (lambda x: shifted(x, a), lambda x: mpf(1)),
        "removed": (lambda x: mpf(1), lambda x: shifted(x, -a)),
        "replaced": (lambda x: shifted(x, a), lambda x: shifted(x, -a)),
    }[relation]


def loss_of(event, relation):
    kind = "replace_one" if relation == "replaced" else "add_remove"
    pair = dominating_pair(event, kind, 1)
    return pair.reverse if relation == "removed" else pair.forward


@pytest.mark.parametrize("relation", ["added", "removed", "replaced"])
@pytest.mark.parametrize("p", [1e-9, 0.01, 0.7, 1 - 1e-9])
@pytest.mark.parametrize("noise", [0.04, 1.0, 300.0])
def test_likelihood_ratios_are_accurate_at_any_size(relation, p, noise):
    event = SampledGaussian(noise, p)
    x = np.linspace(-60.0, 60.0, 61)  # with all but the largest in one array, and not
    top, bottom = mixtures(event, relation)
    with mp.workdps(60):
        ratios = [top(mpf(y)) / bottom(mpf(y)) for y in x.tolist()]
        exact = np.array([float(mp.log(r)) for r in ratios])
        excess = np.array([float(r - 1) if r < 1e304 else math.inf for r in ratios])
    for inside in (exact > -math.inf, np.abs(exact) < 600.0, np.abs(exact) < 0.1):
        _, u, loss = loss_of(event, relation).ratio(x[inside])
        size = np.abs(x[inside]) / noise + noise**-2.0 + 1.0
        assert (np.abs(loss - exact[inside]) <= 1e-15 * size + 1e-14 * abs(loss)).all()
        known = inside & (exact < 690.0)
        error = np.abs(u[known[inside]] - excess[known]) / (1 + np.abs(excess[known]))
        assert (error <= 1e-13 * size[known[inside]]).all()


@pytest.mark.parametrize("p", [1e-9, 0.01, 0.999])
@pytest.mark.parametrize("noise", [0.05, 1.0, 100.0])
def test_outcomes_of_a_loss_under_replacement(p, noise):
    loss = loss_of(SampledGaussian(noise, p), "replaced")
    x = np.linspace(-9.0, 9.0, 19)
    found, miss = loss.locate(loss.loss(x))
    moved = np.abs(loss.loss(found) - loss.loss(x))
    assert (moved <= 1e-15 * (np.abs(x) / noise + noise**-2.0 + 1.0)).all()
    assert miss <= 1e-12
    edges = np.array([-1e-12, 0.0, 1e-12, 800.0])
    near = loss.locate(edges)[0]
    assert near[1] == 0.0
    assert near[2] == -near[0] > 0.0
    assert near[3] > 0.0


@pytest.mark.parametrize(
    ("relation", "p", "noise", "c", "step", "count"),
    [
        ("added", 0.01, 1.0, 15.5, 2.0, 40),
        ("added", 1e-5, 8.0, 60.0, 300.0, 24),
        ("removed", 0.2, 0.7, 3.2, 0.5, 64),
        ("replaced", 0.003, 0.4, 2.5, 0.3, 200),
        ("replaced", 0.01, 3.0, 200.0, 30.0, 40),
    ],
)
def test_lines_are_as_accurate_as_they_claim(relation, p, noise, c, step, count):
    event = SampledGaussian(noise, p)
    loss = loss_of(event, relation)
    top, bottom = mixtures(event, relation)
    line = loss.line(c, step, 0, count)
    claimed = loss.rounding(c, step * count)
    assert claimed < 1e-14 * max(1.0, abs(line[0]))
    mode = (1 + c) / noise if relation != "removed" else 0.0
    with mp.workdps(40):
        # Trapezoid sums of analytic functions: twice as fine, and twice as far.
        nodes = [mpf(-30) + mpf(k) / 64 for k in range(64 * int(60 + mode))]
        rows = []
        for x in nodes:
            q = mp.npdf(x) * bottom(x)
            rows.append((q, mp.log(top(x) / bottom(x))))
        for k in (0, count // 2, count - 1):
            t = 1 + mp.mpc(c, step * k)
            # The mass and the mean of the ratio are known: they are left out.
            total = mp.fsum(q * (mp.exp(t * x) - 1 - t * mp.expm1(x)) for q, x in rows)
            exact = mp.log(1 + total / 64)
            error = complex(exact - mp.mpc(line[k]))
            error -= 2j * math.pi * round(error.imag / (2 * math.pi))
            largest = float(abs(mp.exp(exact - line[0].real)))
            assert abs(error) * largest <= claimed + 2.0**-49 * abs(line[k] - line[0])
