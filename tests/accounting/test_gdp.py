import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_gdp._gdp import (
    delta_from_mu,
    epsilon_from_mu,
    log_delta_from_mu,
    mu_from_epsilon_delta,
)


def exact_log_delta(epsilon, mu):
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)

        def tail(x):
            return mpmath.erfc(x / mpmath.sqrt(2)) / 2

        value = tail(e / m - m / 2) - mpmath.exp(e) * tail(e / m + m / 2)
        return float(mpmath.log(value)), float(value)


def test_values_with_known_digits():
    assert delta_from_mu(1, 1) == pytest.approx(0.1269367375, abs=6e-11)
    assert delta_from_mu(0.5, 0.25) == pytest.approx(0.002708880218, rel=2e-10, abs=0.0)
    assert delta_from_mu(1e-8, 1e-8) == pytest.approx(
        8.331547100e-10, rel=2e-10, abs=0.0
    )
    assert log_delta_from_mu(1, 0.01) == pytest.approx(-5014.2347614837, abs=6e-10)
    assert epsilon_from_mu(1e-5, 1) == pytest.approx(4.3771780957, abs=6e-11)
    assert epsilon_from_mu(1e-6, 4) == pytest.approx(26.3569639253, abs=6e-11)
    assert epsilon_from_mu(1e-300, 1) == pytest.approx(37.4488479121, abs=6e-11)
    assert epsilon_from_mu(1e-5, 40) == pytest.approx(969.6455919324, abs=6e-10)
    assert mu_from_epsilon_delta(1, 1e-5) == pytest.approx(0.2680511232, abs=6e-11)
    assert mu_from_epsilon_delta(0, 0.1) == pytest.approx(0.2513226937, abs=6e-11)
    assert mu_from_epsilon_delta(50, 1e-10) == pytest.approx(5.5464894198, abs=6e-11)
    assert mu_from_epsilon_delta(0.1, 1e-7) == pytest.approx(0.02419582068, abs=6e-12)


@settings(max_examples=150, deadline=None)
@given(
    st.floats(-8, 1.6).map(lambda x: 10**x),
    st.floats(-3, 9),
)
def test_delta_has_relative_accuracy(mu, u):
    epsilon = max(mu * (u + mu / 2), 0.0)
    log_exact, exact = exact_log_delta(epsilon, mu)
    assert delta_from_mu(epsilon, mu) == pytest.approx(exact, rel=1e-12, abs=0.0)
    assert log_delta_from_mu(epsilon, mu) == pytest.approx(
        log_exact, rel=1e-12, abs=1e-12
    )
    negative = exact_log_delta(-epsilon, mu)[1]
    assert delta_from_mu(-epsilon, mu) == pytest.approx(negative, rel=1e-12, abs=0.0)


@settings(max_examples=100, deadline=None)
@given(st.floats(-300, -0.2), st.floats(-6, 2.5).map(lambda x: 10**x))
def test_epsilon_and_mu_invert_delta(log10_delta, mu):
    delta = 10**log10_delta
    epsilon = epsilon_from_mu(delta, mu)
    if epsilon > 1e-6 * mu:
        assert log_delta_from_mu(epsilon, mu) == pytest.approx(np.log(delta), abs=1e-9)
        assert mu_from_epsilon_delta(epsilon, delta) == pytest.approx(
            mu, rel=1e-9, abs=0.0
        )
    else:
        assert log_delta_from_mu(epsilon, mu) <= np.log(delta) + 1e-5


def test_edges():
    assert delta_from_mu(1.0, 0.0) == 0.0
    assert delta_from_mu(-1.0, 0.0) == pytest.approx(1 - np.exp(-1))
    assert delta_from_mu(np.inf, 3.0) == 0.0
    assert delta_from_mu(3.0, np.inf) == 1.0
    assert epsilon_from_mu(0.9, 1.0) == 0.0
    assert epsilon_from_mu(0.0, 1.0) == np.inf
    assert epsilon_from_mu(0.0, 0.0) == 0.0
    assert mu_from_epsilon_delta(1.0, 0.0) == 0.0
    assert mu_from_epsilon_delta(1.0, 1.0) == np.inf
    assert np.isfinite(log_delta_from_mu(700.0, 1e-6))
    with pytest.raises(ValueError, match="mu"):
        delta_from_mu(1.0, -1.0)
    with pytest.raises(ValueError, match="delta"):
        epsilon_from_mu(np.nan, 1.0)
    for bad in ("a", {}, [[1.0], [1.0, 2.0]]):
        with pytest.raises(TypeError, match="`mu`.*Received.*such as 1.0"):
            delta_from_mu(1.0, bad)


def test_arguments_broadcast():
    table = delta_from_mu(np.array([[0.5], [1.0]]), np.array([0.0, 1.0, np.inf]))
    assert table.shape == (2, 3)
    assert table[1, 1] == delta_from_mu(1.0, 1.0)
    assert mu_from_epsilon_delta([1.0, 2.0], 1e-5).shape == (2,)
