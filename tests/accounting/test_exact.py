"""Independent oracles, laws and extremes of the exact accountant."""

import copy
import itertools
import math
import warnings

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_gdp.accounting import (
    ApproximateDP,
    Composed,
    ExactAccountant,
    Gaussian,
    Laplace,
    RandomizedResponse,
    RDPAccountant,
    SampledGaussian,
    SampledLaplace,
    SelfComposed,
    UniformSampledGaussian,
    delta_from_mu,
    epsilon_from_mu,
)
from keras_gdp.errors import UnsupportedEventError


def exact(event, count=1, relation="add_remove", **options):
    return ExactAccountant(relation, **options).compose(event, count)


def inverted_with_mpmath(p, sigma, steps, epsilon, abscissa, height, nodes):
    """Forward delta of the sampled Gaussian: the same integral in 40 digits."""
    with mpmath.workdps(40):
        one = mpmath.mpf(1)
        p, sigma, epsilon = mpmath.mpf(p), mpmath.mpf(sigma), mpmath.mpf(epsilon)
        step = mpmath.mpf(1) / 16
        high = 14 + (abscissa + 1) / float(sigma)
        xs = [k * step for k in range(int(-14 * 16), int(high * 16))]
        weight = [step * mpmath.npdf(x) for x in xs]
        loss = [
            mpmath.log(1 - p + p * mpmath.exp(x / sigma - one / (2 * sigma**2)))
            for x in xs
        ]
        h = mpmath.mpf(height) / nodes
        total = mpmath.mpf(0)
        for k in range(nodes):
            s = mpmath.mpc(abscissa, k * h)
            moment = mpmath.fsum(
                w * mpmath.exp((1 + s) * value)
                for w, value in zip(weight, loss, strict=True)
            )
            term = mpmath.exp(steps * mpmath.log(moment) - s * epsilon) / (s * (s + 1))
            total += mpmath.re(term) * (one / 2 if k == 0 else one)
        return float(total * h / mpmath.pi)


@pytest.mark.parametrize(
    ("p", "sigma", "steps", "epsilon", "abscissa", "height", "nodes"),
    [
        (0.01, 1.0, 1000, 2.0, 4.0, 30.0, 190),
        (0.1, 2.0, 100, 6.0, 11.0, 36.0, 200),
    ],
)
def test_delta_agrees_with_forty_digit_quadrature(
    p, sigma, steps, epsilon, abscissa, height, nodes
):
    truth = inverted_with_mpmath(p, sigma, steps, epsilon, abscissa, height, nodes)
    low, high = exact(SampledGaussian(sigma, p), steps).delta_bounds(epsilon)
    assert high == pytest.approx(truth, rel=1e-9, abs=0.0)
    assert low * (1 - 1e-13) <= truth <= high * (1 + 1e-13)


@pytest.mark.parametrize(
    ("p", "sigma", "steps", "epsilon", "truth"),
    [
        (0.01, 1.0, 1000, 2.0, 2.66557192476179118e-6),
        (0.1, 0.6, 10**5, 3874.9569610956596, 9.99999999734200124e-11),
        (0.001, 1.0, 10**4, 4.11979, 1.00004913475095265e-25),
        (0.004, 2.0, 1000, 0.9, 4.19378852206395103e-30),
        (0.01, 1.3, 1000, 6.0, 1.47558518652906892e-35),
        (0.001, 1.3, 10**4, 3.6957, 1.01231607768831612e-40),
        (0.001, 2.0, 1000, 0.583497, 1.00000780576868587e-40),
        (0.001, 4.0, 1000, 0.107993, 1.00052708232316934e-40),
        (0.001, 2.0, 10**4, 0.8, 3.01468090464553446e-43),
    ],
)
def test_far_tails_agree_with_quadrature_in_fifty_digits(
    p, sigma, steps, epsilon, truth
):
    # The constants are the same integral as above in 50 to 75 digits, at the abscissa
    # of the whole cumulant, with 36 to 760 nodes until the terms fall below 1e-17.
    low, high = exact(SampledGaussian(sigma, p), steps).delta_bounds(epsilon)
    assert low <= truth <= high
    assert high - low <= 1e-9 * high


@pytest.mark.parametrize(
    ("sigma", "steps", "delta"),
    [(0.6, 100, 1e-25), (1.3, 100, 1e-40), (2.0, 100, 1e-25), (4.0, 10**4, 1e-25)],
)
def test_rare_far_jumps_leave_bounds_tight(sigma, steps, delta):
    run = exact(SampledGaussian(sigma, 0.001), steps)
    epsilon = run.epsilon(delta)
    low, high = run.delta_bounds(epsilon)
    assert high - low <= 1e-9 * high
    assert delta * (1 - 2e-9) <= low <= high <= delta * (1 + 2e-9)


def test_tail_below_double_precision_of_fft_methods():
    run = exact(SampledGaussian(1.0, 0.1), 1000)
    low, high = run.delta_bounds(90.0)
    assert 0 < high < 1e-40
    assert high - low <= 1e-9 * high


@settings(max_examples=40, deadline=None)
@given(
    st.floats(-1.5, 2.5).map(lambda x: 10**x),
    st.integers(1, 10**6),
    st.floats(-12, -1).map(lambda x: 10**x),
)
def test_full_sampling_is_the_gaussian_closed_form(sigma, steps, delta):
    mu = math.sqrt(steps) / sigma
    run = exact(SampledGaussian(sigma, 1.0), steps)
    assert run.epsilon(delta) == pytest.approx(
        epsilon_from_mu(delta, mu), rel=1e-10, abs=0.0
    )
    replaced = exact(SampledGaussian(sigma, 1.0), steps, "replace_one")
    expected = epsilon_from_mu(delta, 2 * mu)
    assert replaced.epsilon(delta) == pytest.approx(expected, rel=1e-10, abs=0.0)


@settings(max_examples=25, deadline=None)
@given(
    st.floats(0.5, 8.0),
    st.floats(-3, -0.1).map(lambda x: 10**x),
    st.integers(100, 20000),
    st.integers(1, 20000),
    st.floats(-12, -3).map(lambda x: 10**x),
    st.sampled_from(["add_remove", "replace_one"]),
)
def test_laws_of_composition(sigma, p, first, second, delta, relation):
    step = SampledGaussian(sigma, p)
    whole = exact(step, first + second, relation)
    parts = exact(Composed([SelfComposed(step, first)]), 1, relation)
    parts.compose(step, second)
    epsilon = whole.epsilon(delta)
    assert math.isfinite(epsilon)
    assert parts.epsilon(delta) == epsilon
    low, high = whole.epsilon_bounds(delta)
    assert low <= high
    assert exact(step, first, relation).epsilon(delta) <= epsilon * (1 + 1e-9)
    assert whole.epsilon(delta * 0.5) >= epsilon
    more_noise = exact(SampledGaussian(sigma * 1.2, p), first + second, relation)
    assert more_noise.epsilon(delta) <= epsilon * (1 + 1e-9)
    sampled = SampledGaussian(sigma, min(1.0, 1.1 * p))
    more_sampling = exact(sampled, first + second, relation)
    assert more_sampling.epsilon(delta) >= epsilon * (1 - 1e-9)
    if epsilon > 0:
        assert whole.delta_bounds(epsilon)[0] <= delta * (1 + 1e-9)


@settings(max_examples=20, deadline=None)
@example(2.5, 0.001, 101, 1e-9, "add_remove")
@example(1.3, 0.001, 10**4, 1e-25, "add_remove")
@example(4.0, 0.001, 1000, 1e-40, "replace_one")
@given(
    st.floats(0.5, 8.0),
    st.floats(-3, -0.1).map(lambda x: 10**x),
    st.integers(100, 40000),
    st.floats(-30, -3).map(lambda x: 10**x),
    st.sampled_from(["add_remove", "replace_one"]),
)
def test_delta_inverts_epsilon(sigma, p, steps, delta, relation):
    whole = exact(SampledGaussian(sigma, p), steps, relation)
    epsilon = whole.epsilon(delta)
    if epsilon > 0:
        assert whole.delta(epsilon) <= delta * (1 + 2e-7)


@pytest.mark.parametrize(
    ("sigma", "p", "steps", "epsilon", "log_delta"),
    [
        # Small losses and a jump together: two thresholds for the jump agree.
        (2.0, 0.001, 10**5, 4.0, -208.66060537),
        (2.0, 0.0001, 10**5, 0.5, -153.60481175),
        # The same integral in 80 digits, 800 nodes of height 3200 at abscissa 100.
        (4.0, 0.001, 1000, 0.12, -110.261639751107),
    ],
)
def test_far_tails_lie_above_one_jump_and_below_renyi(
    sigma, p, steps, epsilon, log_delta
):
    event = SampledGaussian(sigma, p)
    low, high = exact(event, steps).delta_bounds(epsilon)
    assert math.log(high) == pytest.approx(log_delta, abs=1e-8)
    assert math.log(low) <= log_delta + 1e-8
    assert high - low <= 1e-8 * high
    assert high <= RDPAccountant().compose(event, steps).delta(epsilon)
    assert low >= exact(event, 1).delta(epsilon) * steps * 0.5


def test_order_does_not_matter():
    a, b = SampledGaussian(1.0, 0.01), SampledGaussian(2.0, 0.05)
    one = exact(Composed([SelfComposed(a, 700), SelfComposed(b, 300)]))
    other = exact(b, 300).compose(a, 700)
    assert one.epsilon(1e-6) == pytest.approx(other.epsilon(1e-6), rel=1e-12, abs=0.0)


def test_nothing_costs_nothing_and_no_noise_costs_everything():
    assert exact(SampledGaussian(1.0, 0.5), 0).epsilon(1e-5) == 0.0
    assert exact(SampledGaussian(0.0, 0.0), 10).epsilon(1e-5) == 0.0
    assert exact(Composed()).delta(0.0) == 0.0
    for event in (
        Gaussian(0.0),
        SampledGaussian(0.0, 0.1),
        UniformSampledGaussian(0.0, 1, 10),
    ):
        run = exact(event, 1, "replace_one")
        assert run.epsilon(1e-5) == math.inf
        assert run.delta(1.0) == 1.0


def _extremes():
    for sigma in (0.05, 1.0, 1e4):
        for p in (1e-9, 1e-3, 0.5):
            for steps in (1, 10**4, 10**9):
                heavy = steps == 10**4 and (sigma == 0.05 or p == 1e-9)
                marks = [pytest.mark.slow] if heavy else []
                yield pytest.param(sigma, p, steps, marks=marks)


@pytest.mark.parametrize(("sigma", "p", "steps"), list(_extremes()))
def test_extremes_give_bounds_without_warnings(sigma, p, steps):
    run = exact(SampledGaussian(sigma, p), steps)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for low, high in (
            run.epsilon_bounds(1e-5),
            run.epsilon_bounds(1e-300),
            run.delta_bounds(0.0),
            run.delta_bounds(700.0),
        ):
            assert 0.0 <= low <= high
            assert not math.isnan(high)


def test_replacement_doubles_the_sensitivity():
    assert exact(Gaussian(1.0)).epsilon(1e-5) == pytest.approx(4.37718, abs=1e-5)
    replaced = exact(Gaussian(1.0), 1, "replace_one").epsilon(1e-5)
    assert replaced == pytest.approx(9.99726, abs=1e-5)


def test_groups_of_plain_gaussians_multiply_mu():
    run = exact(Gaussian(2.0), 9, group_size=4)
    assert run.delta(3.0) == pytest.approx(delta_from_mu(3.0, 6.0), rel=1e-12, abs=0.0)


def test_a_group_under_poisson_sampling_is_between_one_record_and_all_or_nothing():
    step = SampledGaussian(1.0, 0.01)
    single = exact(step, 1000).epsilon(1e-5)
    group = exact(step, 1000, group_size=3).epsilon(1e-5)
    # At worst the three records always enter together: a triple-sized single record.
    together = exact(SampledGaussian(1.0 / 3.0, 0.03), 1000).epsilon(1e-5)
    assert single < group < together


@pytest.mark.parametrize("steps", [1, 4])
def test_randomized_response_by_enumeration(steps):
    event = RandomizedResponse(0.5, 3)
    p, q = [2 / 3, 1 / 6, 1 / 6], [1 / 6, 2 / 3, 1 / 6]
    many_p, many_q = np.array([1.0]), np.array([1.0])
    for _ in range(steps):
        many_p, many_q = np.outer(many_p, p).ravel(), np.outer(many_q, q).ravel()
    truth = np.maximum(many_p - math.exp(0.7) * many_q, 0).sum()
    low, high = exact(event, steps).delta_bounds(0.7)
    assert low <= truth * (1 + 1e-12)
    assert truth * (1 - 1e-12) <= high <= truth * (1 + 1e-4)


def test_mass_at_infinity_remains():
    run = exact(ApproximateDP(0.5, 0.01), 5)
    assert run.delta(1.0) == pytest.approx(0.2240852462, rel=1e-4, abs=0.0)
    assert run.delta(1.0) >= 0.2240852461
    assert run.delta(math.inf) == pytest.approx(1 - 0.99**5, rel=1e-9, abs=0.0)
    assert run.epsilon(0.04) == math.inf


def test_laplace_closed_form():
    run = exact(Laplace(1.0))
    assert run.delta(0.5) == pytest.approx(-math.expm1(-0.25), rel=1e-12, abs=0.0)
    assert run.epsilon(1e-9) == pytest.approx(1.0, abs=1e-8)


def test_sampled_laplace_by_quadrature():
    p, epsilon = 0.3, 0.2
    x = np.linspace(-40, 41, 2_000_001)
    base = 0.5 * np.exp(-np.abs(x))
    mix = (1 - p) * base + p * 0.5 * np.exp(-np.abs(x - 1))
    truth = np.trapezoid(np.maximum(mix - math.exp(epsilon) * base, 0), x)
    assert exact(SampledLaplace(1.0, p)).delta(epsilon) == pytest.approx(
        truth, rel=1e-6
    )


def test_unsupported_events_are_named_and_nothing_is_counted():
    run = exact(Gaussian(1.0))
    bad = Composed([Gaussian(1.0), UniformSampledGaussian(1.0, 5, 10)])
    with pytest.raises(UnsupportedEventError, match="UniformSampledGaussian"):
        run.compose(bad)
    assert run.events == ((Gaussian(1.0), 1),)


def test_reading_is_pure_and_copies_are_independent():
    run = exact(SampledGaussian(1.0, 0.01), 500)
    before = run.events
    first = run.epsilon(1e-5)
    other = run.copy().compose(Gaussian(1.0))
    assert run.events == before
    assert run.epsilon(1e-5) == first < other.epsilon(1e-5)


def test_arrays_keep_their_shape():
    run = exact(SampledGaussian(1.0, 0.01), 500)
    table = run.epsilon(np.array([[1e-5, 1e-6]]))
    assert table.shape == (1, 2)
    assert table[0, 0] == run.epsilon(1e-5)


@pytest.mark.parametrize("bad", [0.0, 1.0, -1.0, float("nan")])
def test_bad_delta_is_refused(bad):
    with pytest.raises(ValueError, match="delta"):
        exact(Gaussian(1.0)).epsilon(bad)


def test_trade_off_is_below_the_reference():
    tradeoff = pytest.importorskip("keras_gdp.tradeoff")
    del tradeoff
    curve = exact(SampledGaussian(1.3, 256 / 60000), 3516).trade_off()
    for alpha, truth in ((0.01, 0.9819147040), (0.3, 0.6167716907)):
        assert curve(alpha) <= truth + 1e-9
        assert curve(alpha) == pytest.approx(truth, abs=2e-3)


def test_renyi_bounds_what_nothing_else_can():
    # A few rare jumps beside very many tiny losses: neither contours nor grids do.
    run, renyi = ExactAccountant("replace_one"), RDPAccountant("replace_one")
    for accountant in (run, renyi):
        accountant.compose(SampledGaussian(1.6, 2.9e-4), 5)
        accountant.compose(SampledGaussian(1e6, 0.0923), 46046)
    assert run.epsilon(6.75e-10) <= renyi.epsilon(6.75e-10) < 1.0


@pytest.mark.parametrize("releases", [1, 4])
@pytest.mark.parametrize("event", [ApproximateDP(1e-8), RandomizedResponse(1 - 1e-9)])
def test_tiny_losses_of_discrete_mechanisms_keep_their_digits(event, releases):
    def truth(epsilon):
        with mpmath.workdps(60):
            if isinstance(event, ApproximateDP):
                one = mpmath.mpf(event.epsilon)
            else:
                one = mpmath.log1p(2 * (1 / mpmath.mpf(event.noise_probability) - 1))
            p = 1 / (1 + mpmath.exp(-one))
            return mpmath.fsum(
                mpmath.binomial(releases, k)
                * p ** (releases - k)
                * (1 - p) ** k
                * max(-mpmath.expm1(epsilon - (releases - 2 * k) * one), 0)
                for k in range(releases + 1)
            )

    run = exact(event, releases)
    most = run.epsilon(1e-300)
    for share in (0.1, 0.6, 0.99):
        low, high = run.delta_bounds(share * most)
        assert low <= truth(share * most) <= high
        assert high - low <= 1e-7 * high + (2e-13 if releases > 1 else 0.0)
    assert truth(most) <= 1e-300


def test_single_releases_at_their_total_variation_are_answered():
    run = exact(Laplace(0.26156446323534127), 1, "replace_one")
    low, high = run.epsilon_bounds(0.9781411481598992)
    assert 0.0 <= low <= high < 1e-11


@pytest.mark.parametrize("missing", [8.1e-11, 1e-9, 1e-8, 1e-7, 1e-5])
def test_epsilon_of_a_delta_next_to_one_is_enclosed(missing):
    run = exact(SampledGaussian(0.8038231563052864, 0.12126325128331708), 5021)
    low, high = run.epsilon_bounds(1.0 - missing)
    assert low <= high
    # Readings for epsilon itself, made where log delta bends less.
    assert 1.0 - run.delta_bounds(low)[0] <= missing * 1.1 + 1e-10
    assert run.delta(high) <= 1.0 - missing


def test_order_of_composition_does_not_matter_to_the_last_digit():
    events = [
        (SampledGaussian(1.1, 0.01), 300),
        (Laplace(9.0), 2),
        (SampledGaussian(0.9, 0.02), 50),
        (Gaussian(7.0), 3),
    ]
    for deltas in (1e-5, 2.7e-8):
        found = set()
        for order in itertools.permutations(events, 4):
            run = ExactAccountant()
            for event, count in order:
                run.compose(event, count)
            found.add(run.epsilon_bounds(deltas))
        assert len(found) == 1


@pytest.mark.parametrize("event", [Laplace(3.0), SampledGaussian(1.0, 1e-4)])
def test_epsilon_and_delta_are_the_upper_ends_of_bounds(event):
    run = exact(event, 3)
    for delta in (1e-3, 3e-7):
        assert run.epsilon(delta) == run.epsilon_bounds(delta)[1]
    for epsilon in (0.0, 0.1):
        assert run.delta(epsilon) == run.delta_bounds(epsilon)[1]


def test_copies_are_independent():
    run = exact(SampledGaussian(1.0, 0.01), 100)
    other = copy.copy(run)
    other.compose(SampledGaussian(1.0, 0.01), 100)
    assert run.events == ((SampledGaussian(1.0, 0.01), 100),)
    assert other.epsilon(1e-5) > run.epsilon(1e-5)
