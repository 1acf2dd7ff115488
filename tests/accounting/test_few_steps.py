"""Few releases with little sampling: nearly atoms, with rare jumps."""

import math

import mpmath
import pytest
from mpmath import mp, mpf

from keras_gdp.accounting import (
    Composed,
    ExactAccountant,
    Gaussian,
    Laplace,
    RandomizedResponse,
    SampledGaussian,
    SelfComposed,
    UniformSampledGaussian,
)
from keras_gdp.accounting.exact.contour import ContourDoesNotConverge
from keras_gdp.accounting.exact.pairs import dominating_pair
from keras_gdp.accounting.exact.readings import Grids, jumps_at


def exact(event, count, relation="add_remove"):
    return ExactAccountant(relation).compose(event, count)


def check(bounds, truth):
    low, high = bounds
    assert low <= truth <= high
    assert high - low <= 1e-9 * high


def two_releases(p, sigma, epsilon):
    """The average over the first release of the second's closed form, 30 digits."""
    with mpmath.workdps(30):
        p, shift, epsilon = mpmath.mpf(p), 1 / mpmath.mpf(sigma), mpmath.mpf(epsilon)

        def second(rest):
            ratio = mpmath.expm1(rest) / p
            if ratio <= -1:
                return -mpmath.expm1(rest)
            x = mpmath.log1p(ratio) / shift + shift / 2
            return p * (mpmath.ncdf(shift - x) - (1 + ratio) * mpmath.ncdf(-x))

        def integrand(x):
            loss = mpmath.log1p(p * mpmath.expm1(shift * x - shift**2 / 2))
            density = (1 - p) * mpmath.npdf(x) + p * mpmath.npdf(x - shift)
            return density * second(epsilon - loss)

        # where the second release's outcomes without a record begin to matter
        kink = mpmath.log1p((mpmath.exp(epsilon) / (1 - p) - 1) / p) / shift + shift / 2
        cuts = [mpmath.mpf(i) for i in range(-13, 14 + math.ceil(2 / sigma))]
        return float(mpmath.quad(integrand, sorted([*cuts, kink])))


@pytest.mark.parametrize(
    ("p", "sigma", "epsilon"), [(0.01, 1.0, 0.1), (1e-4, 0.4, 0.1), (0.05, 0.5, 8.0)]
)
def test_two_releases_agree_with_quadrature(p, sigma, epsilon):
    truth = two_releases(p, sigma, epsilon)
    run = exact(SampledGaussian(sigma, p), 2)
    check(run.delta_bounds(epsilon), truth)
    check(run.epsilon_bounds(truth), epsilon)


@pytest.mark.parametrize(
    ("p", "sigma", "steps", "epsilon", "truth"),
    [
        (0.01, 1.0, 2, 2.0, 3.471707782102803001e-12),
        (0.001, 0.6, 2, 0.5, 7.3105861035253997558e-7),
        (0.1, 2.0, 2, 0.5, 3.9851569809503069464e-6),
        (0.0001, 2.0, 2, 0.0002, 1.1757238389807002829e-6),
        (0.05, 1.5, 3, 0.2, 6.574080093301486e-4),  # 14 digits
    ],
)
def test_poisson_sampling(p, sigma, steps, epsilon, truth):
    # The constants are the quadrature above, and for three releases one over the plane.
    check(exact(SampledGaussian(sigma, p), steps).delta_bounds(epsilon), truth)


@pytest.mark.parametrize(
    ("event", "epsilon", "truth"),
    [
        (SampledGaussian(1.0, 0.01), 0.1, 2.1721859547472785226e-4),
        (SampledGaussian(0.5, 0.001), 1.0, 2.4810149689774371706e-6),
        (SampledGaussian(2.0, 0.0001), 0.0002, 5.5872084569501175322e-6),
        (UniformSampledGaussian(2.0, 100, 10000), 0.1, 1.575808161907711889e-4),
        (UniformSampledGaussian(1.0, 10, 10000), 1.0, 2.4747009964268263302e-6),
        (UniformSampledGaussian(1.6, 1000, 10000), 0.5, 0.014564464909279500681),
        (UniformSampledGaussian(4.0, 1, 10000), 0.0001, 6.2877371028359313286e-6),
        (UniformSampledGaussian(10.0, 9, 33877), 2e-6, 3.0580146183493595265e-5),
    ],
)
def test_two_replacements(event, epsilon, truth):
    # The constants are quadratures like the above, with that kind's losses.
    check(exact(event, 2, "replace_one").delta_bounds(epsilon), truth)


@pytest.mark.parametrize(
    ("p", "sigma", "epsilon", "truth"),
    [
        (0.1, 0.4, 0.1, 0.0651710433769517415),
        (0.01, 1.0, 0.005, 0.00303540701295564004),
        (0.05, 0.7, 0.06, 0.00811088158111265789),
    ],
)
def test_losses_with_an_atom_on_top(p, sigma, epsilon, truth):
    # Constants as above, by the identity between delta and the other direction's.
    _, reverse = exact(SampledGaussian(sigma, p), 2)._directions()
    value, slope, error = jumps_at(reverse, epsilon).value(epsilon)
    assert error < 1e-11
    assert math.exp(value) == pytest.approx(truth, rel=error, abs=0.0)
    step = 1e-6 * epsilon
    above = jumps_at(reverse, epsilon + step).value(epsilon + step).log_value
    assert slope == pytest.approx((above - value) / step, rel=1e-3, abs=0.0)


MIXED = [
    ("add_remove", [(SampledGaussian(0.4, 1e-3), 5), (SampledGaussian(0.8, 0.01), 5)]),
    ("add_remove", [(SampledGaussian(0.5, 1e-3), 10), (Gaussian(50.0), 1)]),
    ("add_remove", [(SampledGaussian(0.5, 1e-3), 10), (Laplace(10.0), 1)]),
    ("add_remove", [(SampledGaussian(4.0, 1e-3), 100)]),
    ("replace_one", [(SampledGaussian(0.6, 1e-3), 10)]),
    ("replace_one", [(UniformSampledGaussian(1.2, 1, 100), 30)]),
    (
        "replace_one",
        [(SampledGaussian(0.5, 1e-3), 5), (UniformSampledGaussian(1.0, 1, 1000), 5)],
    ),
]


@pytest.mark.parametrize(("relation", "phases"), MIXED)
def test_bounds_lie_within_those_of_the_grid(relation, phases):
    run = exact(Composed([SelfComposed(*phase) for phase in phases]), 1, relation)
    epsilon = run.epsilon(1e-6)
    low, high = run.delta_bounds(epsilon)
    assert high - low <= 1e-9 * high
    assert high == pytest.approx(1e-6, rel=1e-8, abs=0.0)
    grids = Grids(run._directions()[0], epsilon)
    assert grids.lower.log_delta(epsilon) <= math.log(low)
    assert math.log(high) <= grids.upper.log_delta(epsilon) + 1e-12
    assert math.log(high) >= grids.upper.log_delta(epsilon) - 0.02


@pytest.mark.parametrize("steps", [2, 7, 40])
@pytest.mark.parametrize("sigma", [0.4, 0.9, 3.0, 10.0])
@pytest.mark.parametrize("p", [1e-4, 5e-3, 0.1])
def test_bounds_are_tight(p, sigma, steps):
    for event, relation in (
        (SampledGaussian(sigma, p), "add_remove"),
        (SampledGaussian(sigma, p), "replace_one"),
        (UniformSampledGaussian(2.0 * sigma, round(1e4 * p), 10**4), "replace_one"),
    ):
        run = exact(event, steps, relation)
        low, high = run.epsilon_bounds(1e-6)
        assert high - low <= 1e-9 * high
        if high > 0.0:
            assert run.delta(high) == pytest.approx(1e-6, rel=1e-8, abs=0.0)


def test_atoms_alone_have_no_contour():
    for event in (Laplace(3.0), RandomizedResponse(0.3, 4)):
        composition = exact(event, 4)._directions()[0]
        with pytest.raises(ContourDoesNotConverge):
            jumps_at(composition, 0.3)


def test_rounding_of_many_randomized_responses_is_counted():
    # K is 3e-4 and made of terms of size 1; it is multiplied by 400000 releases.
    loss = exact(RandomizedResponse(0.9907371519452983, 5), 1)._directions()[0].phases
    loss, order = loss[0][0], 0.4392720604320309
    with mpmath.workdps(40):
        noise = mpmath.mpf(0.9907371519452983)
        other, top, s = noise / 5, 1 - 4 * noise / 5, mpmath.mpf(order)
        odds = top / other
        truth = mpmath.log(top * odds**s + other * odds**-s + 3 * other)
        assert abs(loss.real(order)[0] - truth) <= loss.rounding(order)
        assert loss.rounding(order) < 1e-15


def drawn(noise, p, steps, epsilon):
    """Delta as a mixture over how often the record was drawn, for tiny noise.

    Drawn, a release loses log p + a x - a^2/2, and else log(1 - p), but for a share of
    about exp(-a^2/8) of the outcomes.
    """
    a, total = 1 / mpf(noise), mpf(0)
    p, epsilon = mpf(p), mpf(epsilon)
    for k in range(1, steps + 1):
        mean = k * (mp.log(p) + a * a / 2) + (steps - k) * mp.log(1 - p)
        spread = mp.sqrt(k) * a
        share = mp.binomial(steps, k) * p**k * (1 - p) ** (steps - k)
        low = mp.exp(epsilon - mean + spread**2 / 2)
        total += share * (
            mp.ncdf((mean - epsilon) / spread)
            - low * mp.ncdf((mean - spread**2 - epsilon) / spread)
        )
    return total


@pytest.mark.parametrize(
    ("noise", "p", "steps", "delta"),
    [
        (0.02, 0.1, 100, 1e-5),
        (0.03, 0.1, 100, 1e-5),
        (0.04, 0.1, 100, 1e-5),
        (0.05, 0.1, 50, 1e-20),
        (0.05, 0.3, 50, 1e-5),
        (0.02, 0.3, 100, 1e-5),
        (0.07, 0.1, 100, 1e-20),
    ],
)
def test_transforms_that_come_back_are_followed(noise, p, steps, delta):
    # They fall far down where jumps of one size are out of phase, and rise again.
    run = exact(SampledGaussian(noise, p), steps)
    low, high = run.epsilon_bounds(delta)
    with mp.workdps(40):
        assert drawn(noise, p, steps, high) <= delta * (1 + 1e-12)
        assert drawn(noise, p, steps, low) >= delta * (1 - 1e-12)
    assert high - low <= 5e-5 * high


@pytest.mark.parametrize(
    ("relation", "noise", "p", "group", "epsilon"),
    [
        ("replace_one", 0.05, 0.1, 1, 650.0),
        ("replace_one", 0.05, 0.1, 1, 800.0),
        ("add_remove", 0.05, 0.1, 2, 900.0),
        ("add_remove", 0.02, 0.3, 3, 9000.0),
        ("replace_one", 0.02, 0.3, 1, 5000.0),
    ],
)
def test_one_release_beyond_what_exponentials_can_tell(
    relation, noise, p, group, epsilon
):
    run = ExactAccountant(relation, group_size=group)
    low, high = run.compose(SampledGaussian(noise, p), 1).delta_bounds(epsilon)
    with mp.workdps(60):
        a, p = 1 / mpf(noise), mpf(p)
        sign = -1 if relation == "replace_one" else 0
        weights = [
            mp.binomial(group, j) * p**j * (1 - p) ** (group - j)
            for j in range(group + 1)
        ]

        def log_density(x, side):
            shifts = [side * j * a for j in range(group + 1)]
            return mp.log(
                mp.fsum(
                    w * mp.exp(b * x - b * b / 2)
                    for w, b in zip(weights, shifts, strict=True)
                )
            )

        def beyond(x, side):
            return mp.fsum(w * mp.ncdf(side * j * a - x) for j, w in enumerate(weights))

        at = mp.findroot(
            lambda x: log_density(x, 1) - log_density(x, sign) - epsilon,
            (0, 400),
            solver="anderson",
        )
        truth = beyond(at, 1) - mp.exp(mpf(epsilon)) * beyond(at, sign)
        assert low <= truth <= high or truth < 5e-324
        if truth > 1e-300:
            assert high - low <= 1e-11 * truth


@pytest.mark.parametrize("epsilon", [1770.0, 1780.9078919497, 1790.0])
def test_grids_hold_beyond_what_exponentials_can_tell(epsilon):
    # exp(epsilon) Q(J) of the jumps beyond the grid, where both factors are out of
    # range. The truth at 1780.9 was checked by convolving the untruncated losses.
    run = ExactAccountant(group_size=3)
    run.compose(SampledGaussian(0.12772859486476254, 0.0004696339171425819), 61)
    composition = run._directions()[0]
    truth = jumps_at(composition, epsilon).value(epsilon)
    assert truth.error < 1e-9
    if epsilon == 1780.9078919497:
        assert truth.log_value == pytest.approx(-132.6065401, abs=1e-6)
    grids = Grids(composition, epsilon)
    assert grids.lower.log_delta(epsilon) <= truth.log_value + 1e-9
    assert grids.upper.log_delta(epsilon) >= truth.log_value - 1e-9
    assert grids.upper.log_delta(epsilon) <= truth.log_value + 0.1


@pytest.mark.parametrize(
    ("noise", "p", "group", "order", "truth"),
    [(5.0, 0.999999999, 1, 254.9, 5149.733), (2.0, 0.999999999, 2, 14.999, 479.683)],
)
def test_the_mode_of_large_orders_is_found_where_both_are_shifted(
    noise, p, group, order, truth
):
    loss = dominating_pair(SampledGaussian(noise, p), "replace_one", group).forward
    assert loss.real(order)[0] == pytest.approx(truth, abs=1e-3)


def test_tiny_cumulants_are_not_cut_off():
    # K is about s (s + 1)/2 p^2 (exp(a^2) - 1).
    loss = dominating_pair(SampledGaussian(1 / 3, 1e-12), "add_remove", 1).forward
    with mp.workdps(40):
        t, a, p = mpf(1.9999), mpf(1 / (1 / 3)), mpf(1e-12)

        def integrand(x):
            u = p * mp.expm1(a * x - a * a / 2)
            return mp.npdf(x) * ((1 + u) ** t - 1 - t * u)

        exact_value = mp.log1p(mp.quad(integrand, range(-12, 25)))
    assert loss.real(0.9999)[0] == pytest.approx(float(exact_value), rel=1e-13)


def test_transforms_may_vanish_where_they_are_looked_at():
    # Far along the line nothing is left of the many releases beside a jump.
    for noise, p, steps, delta in (
        (23.11401831020391, 0.262747350612374, 51568, 5.4285699858332845e-75),
        (59.82922369494259, 0.054892944019197386, 226449, 8.923684841502523e-49),
    ):
        run = ExactAccountant("replace_one")
        run.compose(SampledGaussian(noise, p), steps)
        run.compose(SampledGaussian(1.7 * noise, 3 * p), 2 * steps)
        low, high = run.epsilon_bounds(delta)  # warnings are errors
        assert low <= high <= low * (1 + 1e-9)
