import pytest

from keras_gdp.accounting import (
    ExactAccountant,
    Gaussian,
    Laplace,
    SampledGaussian,
    SelfComposed,
    batch_size_for,
    berry_esseen_trade_off,
    edgeworth_trade_off,
    loss_moments,
    make_accountant,
    max_steps,
    mu_clt,
    mu_uniform,
    noise_multiplier_for,
    noise_multiplier_for_mu,
    sampling_probability_for,
    sampling_probability_for_mu,
    steps_for,
    steps_for_mu,
    trade_noise,
)
from keras_gdp.errors import BudgetExceededError, UnsupportedEventError

P = 256 / 60000


@pytest.mark.parametrize(
    ("epsilon", "delta", "p", "steps", "clt", "exact", "moments"),
    [
        (1, 1e-5, P, 3516, 1.1526872602, 1.1851071563, 1.4597455865),
        (2, 1e-6, 0.01, 1000, 0.9526170843, 1.0290210048, 1.1932583024),
        (8, 1e-5, 0.02, 2500, 0.8675749774, 0.8936313878, 0.9788742607),
    ],
)
def test_noise_for_a_budget(epsilon, delta, p, steps, clt, exact, moments):
    for name, value in (("clt", clt), ("exact", exact), ("moments", moments)):
        noise = noise_multiplier_for(
            epsilon, delta, sampling_probability=p, steps=steps, accountant=name
        )
        assert noise == pytest.approx(value, rel=1e-8, abs=0.0)
        run = make_accountant(name).compose(SampledGaussian(noise, p), steps)
        assert run.epsilon(delta) <= epsilon
        assert run.epsilon(delta) > epsilon * (1 - 1e-8)


@pytest.mark.parametrize("accountant", ["exact", "rdp", "clt", "moments"])
def test_max_steps_is_the_last_that_fits(accountant):
    event, budget = SampledGaussian(1.1, P), {"epsilon": 3.0, "delta": 1e-5}
    history = [Gaussian(20.0), SelfComposed(event, 500)]
    count = max_steps(event, accountant=accountant, history=history, **budget)
    base = make_accountant(accountant)
    for item in history:
        base.compose(item)
    assert base.copy().compose(event, count).epsilon(1e-5) <= 3.0
    assert base.copy().compose(event, count + 1).epsilon(1e-5) > 3.0


def test_max_steps_at_the_ends():
    step = SampledGaussian(1.1, P)
    spent = [Gaussian(0.1)]
    assert max_steps(step, epsilon=1.0, delta=1e-5, history=spent) == 0
    assert max_steps(Gaussian(0.5), epsilon=1.0, delta=1e-5) == 0
    assert max_steps(SampledGaussian(1.0, 0.0), epsilon=1.0, delta=1e-5) == 10**12
    assert max_steps(Laplace(10.0), epsilon=1.01, delta=1e-9) >= 10
    many = max_steps(SampledGaussian(4.0, 1e-3), epsilon=8.0, delta=1e-5)
    assert many > 10**7


def test_steps_probability_and_batch_size_are_safe_and_tight():
    steps = steps_for(2.0, 1e-5, noise_multiplier=1.0, sampling_probability=0.01)
    p = sampling_probability_for(2.0, 1e-5, noise_multiplier=1.0, steps=steps)
    assert 0.01 <= p < 0.0101
    size = batch_size_for(
        2.0, 1e-5, noise_multiplier=1.0, num_examples=60000, steps=steps
    )
    assert 600 <= size <= 606
    run = ExactAccountant().compose(SampledGaussian(1.0, size / 60000), steps)
    assert run.epsilon(1e-5) <= 2.0
    bigger = SampledGaussian(1.0, (size + 1) / 60000)
    assert ExactAccountant().compose(bigger, steps).epsilon(1e-5) > 2.0
    assert sampling_probability_for(9.0, 1e-5, noise_multiplier=50.0, steps=3) == 1.0


def test_unreachable_budgets_are_named_errors():
    with pytest.raises(BudgetExceededError, match="history|before"):
        noise_multiplier_for(
            1.0, 1e-5, sampling_probability=P, steps=10, history=[Gaussian(0.5)]
        )
    with pytest.raises(BudgetExceededError, match="one record"):
        batch_size_for(0.1, 1e-9, noise_multiplier=1.0, num_examples=50, steps=1000)
    with pytest.raises(BudgetExceededError, match="`noise_multiplier`.*=0.0. Start"):
        sampling_probability_for(1.0, 1e-5, noise_multiplier=0.0, steps=5)
    with pytest.raises(ValueError, match="epsilon"):
        steps_for(0.0, 1e-5, noise_multiplier=1.0, sampling_probability=P)


def test_closed_forms_under_the_central_limit_theorem():
    assert mu_clt(1.3, P, 3516) == pytest.approx(0.2272862883, abs=6e-11)
    assert mu_clt(0.02, P, 10) > 1e300
    assert mu_clt([1.0, 0.0], 0.1, 100).tolist()[1] == float("inf")
    uniform = mu_uniform(1.3, 256, 60000, 3516)
    assert uniform == pytest.approx(0.2847258665, abs=6e-11)
    assert mu_uniform(1e8, 1, 100, 1000) == pytest.approx(
        3.162277673e-09, rel=1e-9, abs=0.0
    )
    noise = noise_multiplier_for_mu(1.0, sampling_probability=0.01, steps=10**4)
    assert noise == pytest.approx(1.2011224088, abs=6e-11)
    assert mu_clt(noise, 0.01, 10**4) == pytest.approx(1.0, rel=1e-12, abs=0.0)
    p = sampling_probability_for_mu(1.0, noise_multiplier=noise, steps=10**4)
    assert p == pytest.approx(0.01, rel=1e-12, abs=0.0)
    assert steps_for_mu(1.0, noise_multiplier=noise, sampling_probability=p) == 10**4


@pytest.mark.parametrize(
    ("p", "sigma", "steps", "epsilon", "delta", "paper", "sound"),
    [
        (P, 1.3, 3516, 1.0, 2.161557127e-04, 0.9945635509, 1.0210378647),
        (0.01, 1.0, 1000, 2.5, 1.298913465e-05, 0.7958528225, 0.8654954357),
    ],
)
def test_trading_the_moments_accountants_slack(
    p, sigma, steps, epsilon, delta, paper, sound
):
    run = {"noise_multiplier": sigma, "sampling_probability": p, "steps": steps}
    estimate = trade_noise(epsilon, accountant="clt", **run)
    assert estimate.delta == pytest.approx(delta, rel=1e-8, abs=0.0)
    assert estimate.noise_multiplier == pytest.approx(paper, rel=1e-8, abs=0.0)
    traded = trade_noise(epsilon, **run)
    assert traded.noise_multiplier == pytest.approx(sound, rel=1e-8, abs=0.0)
    assert traded.noise_multiplier < sigma


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"steps": 0}, "`steps`.*`epochs . steps_per_epoch`"),
        ({"sampling_probability": 0.0}, "`sampling_probability`.*`batch_size / num"),
        ({"epsilon": 1e-9}, "`epsilon`.*Raise epsilon"),
        ({"accountant": "rdp"}, "`accountant` must be 'exact' or 'clt'"),
    ],
    ids=str,
)
def test_bad_arguments_of_a_trade_are_named(bad, named):
    run = {"epsilon": 1.0, "noise_multiplier": 1.3, "steps": 100}
    with pytest.raises(ValueError, match=named):
        trade_noise(**{**run, "sampling_probability": P, **bad})


def test_edgeworth_and_berry_esseen():
    step = SampledGaussian(1.3, P)
    under_p, under_q = loss_moments(step)
    assert under_p.mean == pytest.approx(-7.283591442e-06, rel=1e-8, abs=0.0)
    assert under_q.mean == pytest.approx(7.314689353e-06, rel=1e-8, abs=0.0)
    assert edgeworth_trade_off(step, 3516, 0.3) == pytest.approx(0.6167726266, abs=1e-9)
    alphas = [0.0, 0.1, 0.3, 0.9, 1.0]
    lower, upper = berry_esseen_trade_off(step, 3516, alphas)
    assert (lower <= upper).all()
    assert lower[2] < 0.6167716907 < upper[2]
    assert upper[2] - lower[2] < 0.15
    with pytest.raises(UnsupportedEventError):
        loss_moments(Gaussian(1.0))


def test_noise_for_tiny_budgets_is_found():
    # Without sampling it is in closed form; it needs no bracket.
    noise = noise_multiplier_for(1e-30, 1e-300, sampling_probability=1.0, steps=10**9)
    for factor, within in ((1.0, True), (1.0 - 1e-9, False)):
        run = ExactAccountant().compose(Gaussian(noise * factor), 10**9)
        assert (run.epsilon(1e-300) <= 1e-30) == within


def test_history_of_anything_but_events_is_refused_by_its_place():
    with pytest.raises(TypeError, match="`history` must be a list.*leave it out"):
        max_steps(Gaussian(1.0), epsilon=1.0, delta=1e-5, history=3)
    with pytest.raises(TypeError, match=r"history\[1\]=3.*SelfComposed"):
        noise_multiplier_for(
            1.0, 1e-5, sampling_probability=P, steps=100, history=[Gaussian(9.0), 3]
        )
