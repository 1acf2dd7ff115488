"""Records that are drawn hardly ever: losses near atoms, and very large orders."""

import itertools
import math
import random

import mpmath
import numpy as np
import pytest

from keras_gdp.accounting import (
    ExactAccountant,
    Gaussian,
    SampledGaussian,
    SampledLaplace,
    UniformSampledGaussian,
)
from keras_gdp.accounting.exact.contour import Value
from keras_gdp.accounting.exact.inversion import _invert
from keras_gdp.accounting.exact.jumps import Fade, _log_between
from keras_gdp.accounting.exact.mixture import MixtureLoss
from keras_gdp.accounting.exact.moments import Measure, QuadratureTooLargeError

_RECORDS = 10**7

SETTINGS = [
    ("add_remove", "poisson", 4.9e-6, 16.2, 38, 1.3e-27),
    ("add_remove", "poisson", 1.9e-9, 254.6, 47, 3.7e-60),
    ("add_remove", "poisson", 7.9e-7, 92.3, 247_144, 8.4e-57),
    ("add_remove", "poisson", 1.0e-8, 73.3, 289, 6.4e-52),
    ("add_remove", "poisson", 8.526e-8, 0.795, 378_715, 2.703e-15),
    ("replace_one", "poisson", 9.5e-6, 18.8, 8648, 1.4e-23),
    ("replace_one", "poisson", 2.9e-5, 13.1, 20_030, 1.7e-37),
    ("replace_one", "poisson", 4.3e-9, 0.36, 2023, 1.9e-67),
    ("replace_one", "poisson", 1.0e-8, 0.59, 80_752, 4.9e-13),
    ("replace_one", "fixed size", 1.9e-6, 163.0, 215_877, 1.5e-20),
    ("replace_one", "fixed size", 1.8e-7, 267.5, 243_144, 8.9e-28),
    ("replace_one", "fixed size", 1.5e-5, 1.34, 1001, 7.4e-79),
]


def run_of(relation, kind, p, noise, steps):
    event = SampledGaussian(noise, min(p, 1.0))
    if kind == "fixed size":
        batch = min(max(1, round(p * _RECORDS)), _RECORDS)
        event = UniformSampledGaussian(noise, batch, _RECORDS)
    return ExactAccountant(relation).compose(event, steps)


@pytest.mark.parametrize(("relation", "kind", "p", "noise", "steps", "delta"), SETTINGS)
def test_bounds_meet(relation, kind, p, noise, steps, delta):
    run = run_of(relation, kind, p, noise, steps)
    low, high = run.epsilon_bounds(delta)
    assert 0.0 < high < math.inf
    assert high - low <= 1e-8 * high
    least, most = run.delta_bounds(high)
    assert least <= delta * (1 + 1e-9)
    assert most == pytest.approx(delta, rel=1e-6, abs=0.0)


def test_epsilon_follows_noise_delta_probability_and_steps():
    draw = random.Random(5)
    for _ in range(80):
        relation, kind = draw.choice(["add_remove", "replace_one"]), "poisson"
        if draw.random() < 0.3:
            relation, kind = "replace_one", "fixed size"
        p, noise = 10 ** draw.uniform(-6, 0), 10 ** draw.uniform(-0.4, 1.3)
        steps, delta = int(10 ** draw.uniform(0.4, 5.5)), 10 ** draw.uniform(-40, -2)
        more = draw.uniform(1.01, 1.6)
        setting = relation, kind, p, noise, steps
        epsilon = run_of(*setting).epsilon(delta)
        above, below = epsilon * (1 + 1e-8) + 1e-14, epsilon * (1 - 1e-8) - 1e-14
        assert run_of(*setting).epsilon(min(1.0, delta * more)) <= above, setting
        setting = relation, kind, p, noise * more, steps
        assert run_of(*setting).epsilon(delta) <= above, setting
        setting = relation, kind, p * more, noise, steps
        assert run_of(*setting).epsilon(delta) >= below, setting
        setting = relation, kind, p, noise, int(steps * more) + 1
        assert run_of(*setting).epsilon(delta) >= below, setting


def test_delta_falls_with_epsilon_down_to_nothing():
    for relation in ("add_remove", "replace_one"):
        run = ExactAccountant(relation).compose(SampledGaussian(10.0, 0.001), 1000)
        deltas = [run.delta(x) for x in (0.05, 0.1, 0.12, 0.15, 0.2, 0.3, 1.0, 10.0)]
        assert all(a >= b for a, b in itertools.pairwise(deltas))
        assert deltas[0] > 1e-60
        assert deltas[-1] < 1e-300


def width(centre):
    return 0.6 / (max(centre, 1.0) + 2.0)


def test_neighbouring_fades_differ_by_what_lies_between():
    draw = random.Random(1)
    for _ in range(300):
        centre = draw.choice([draw.uniform(-12, 60), 10 ** draw.uniform(-9, 0)])
        other = centre + 10 ** draw.uniform(-9, 1.5)
        begin, end = Fade(centre, width(centre)), Fade(other, width(other))
        x = draw.choice(
            [
                draw.uniform(centre - 14 * begin.width, end.end),
                draw.gauss(centre, 3 * begin.width),
                draw.gauss(other, 3 * end.width),
            ]
        )
        found = float(_log_between(np.array([min(x, end.end)]), begin, end)[0])
        with mpmath.workdps(80):
            first, second = (
                mpmath.ncdf((mpmath.mpf(min(x, end.end)) - f.centre) / f.width)
                for f in (begin, end)
            )
            assert found == pytest.approx(float(mpmath.log(first - second)), rel=1e-12)


def test_fades_further_left_keep_less_everywhere():
    loss = MixtureLoss([(0.9, 0.0), (0.1, 0.5)], [(1.0, 0.0)])
    thresholds = [loss.rest + 2.0**k for k in np.arange(-12.0, 6.0, 0.25)]
    fades = [fade for fade in map(loss.fade_at, thresholds) if fade]
    for left, right in itertools.pairwise(fades):
        x = np.linspace(left.centre - 10.0, left.end, 4001)
        assert (right.log_kept(x) >= left.log_kept(x) - 1e-13).all()
        assert left.end <= right.end


@pytest.mark.parametrize("seed", range(4))
def test_nodes_sum_to_what_many_more_do(seed):
    draw = random.Random(seed)
    compared = 0
    while compared < 60:
        p, shift = 10 ** draw.uniform(-9, 0), 10 ** draw.uniform(-2.5, 1)
        parts, origin = [(1 - p, 0.0), (p, shift)], [(1.0, 0.0)]
        mirrored = [(weight, -a) for weight, a in parts]
        loss = MixtureLoss(
            *draw.choice([(parts, origin), (origin, mirrored), (parts, mirrored)])
        )
        part = loss
        if loss.jumps and draw.random() < 0.8:
            octave = 2.0 ** draw.randint(-35, 8)
            part = loss.without_far(loss.rest + octave)
            if part.fade is not None and draw.random() < 0.6:
                part = part.far.below(loss.rest + 4.0 * octave)
        t = 2.0 ** draw.randint(0, 12)
        frequency = 2.0 ** draw.choice([0, draw.randint(0, 18)])
        try:
            nodes: Measure = part._build(t, frequency)
        except QuadratureTooLargeError:
            continue
        s = draw.uniform(t / 2 if t > 1 else 0.01, t) - 1.0
        log_q, losses = nodes._log_q, nodes._loss
        exponent = log_q + (1 + s) * losses
        top = exponent.max()
        shows = nodes._edge[0] + (1 + s) * nodes._edge[1] > top - 38.0
        if nodes.size > 2e4 or top < -300.0 or shows:
            continue  # too many for a test, nearly nothing, or refused
        x, step = np.linspace(-45.0, 45.0 + t * shift, 400_001, retstep=True)
        narrow = part.fade.width if getattr(part, "fade", None) else 1.0
        if step * (frequency * loss.width + 50.0 / narrow) > 1.0:
            continue
        size, all_losses = part.log_size(x)
        many = size + (1 + s) * all_losses + math.log(step)
        tau = draw.uniform(0.0, frequency)
        truth = np.exp(many - top) @ np.exp(1j * tau * all_losses)
        found = np.exp(exponent - top) @ np.exp(1j * tau * losses)
        whole = np.exp(many - top).sum()
        rounding = 1.0 + abs(top) + s * abs(losses).max() + tau * abs(losses).max()
        assert abs(found - truth) <= (1e-12 + 1e-15 * rounding) * whole
        compared += 1


def test_epsilon_near_total_variation_falls_with_delta():
    event = UniformSampledGaussian(1.612457200815234, 7, 10**7)
    run = ExactAccountant("replace_one").compose(event, 6)
    epsilons = [run.epsilon(delta) for delta in (1.1e-6, 1.4e-6, 1.7e-6, 1.95e-6)]
    assert all(a >= b for a, b in itertools.pairwise(epsilons))
    assert epsilons[-1] < 1e-7


@pytest.mark.parametrize(
    ("noise", "p", "steps", "delta"),
    [(1.41081, 0.00213127, 17, 5.12e-49), (1.30841, 3.0645e-5, 13, 1.6476e-6)],
)
def test_groups_with_laplace_noise(noise, p, steps, delta):
    # Losses of groups are found by search: thresholds must stay in order.
    run = ExactAccountant(group_size=3).compose(SampledLaplace(noise, p), steps)
    low, high = run.epsilon_bounds(delta)
    assert high - low <= 1e-3 * high
    least, most = run.delta_bounds(low)
    assert least <= most
    assert most >= delta * (1 - 1e-9)


def test_readings_right_of_the_target_bound_epsilon_however_large_it_is():
    class Falling:
        def value(self, epsilon):
            return Value(-epsilon / 10.0, -0.1, 1e-12 if epsilon > 950.0 else 1.0)

        def most(self, epsilon):
            return 10.0 - epsilon / 10.0

    def read(epsilon):
        return Falling()

    found = _invert(read, -90.0, 1000.0, 1e-2, -5.0)
    low, high = found.bounds
    assert low <= 900.0 <= high <= 1000.0
    assert high < math.inf
    assert found.error == math.inf


def test_certain_loss_of_privacy():
    run = ExactAccountant("replace_one")
    run.compose(UniformSampledGaussian(1.1716034454055095, 148_634, 264_086), 21_582)
    run.compose(UniformSampledGaussian(8.815476857699656, 1, 1959), 1)
    run.compose(Gaussian(3.0797734020413907), 14_575)
    low, high = run.delta_bounds(1.0)
    assert low > 0.999
    assert high == 1.0
