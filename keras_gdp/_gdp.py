"""Gaussian differential privacy: mu against (epsilon, delta).

A mechanism is mu-GDP when telling two neighbouring data sets apart is at least as
hard as telling N(0, 1) from N(mu, 1). Such a mechanism is (epsilon, delta)-DP for

    delta(epsilon; mu) = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2)

(Dong, Roth and Su, "Gaussian Differential Privacy", Corollary 1; Balle and Wang,
"Improving the Gaussian Mechanism", Theorem 8). Written down as it stands the
formula loses all digits in the tail and overflows at epsilon = 709; with
u = (epsilon/mu - mu/2)/sqrt(2) and v = u + mu/sqrt(2) it becomes

    delta = exp(-u^2) (erfcx(u) - erfcx(v)) / 2,

which keeps relative accuracy at every delta, also as a logarithm.

All functions broadcast over arrays and return a float for scalar arguments.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_gdp import _validate

__all__ = [
    "delta_from_mu",
    "epsilon_from_mu",
    "log_delta_from_mu",
    "mu_from_epsilon_delta",
]

Array = NDArray[np.float64]

_SQRT2 = np.sqrt(2.0)
_SQRT_PI = np.sqrt(np.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


def _array(name: str, value: ArrayLike, low: float, high: float) -> Array:
    numbers = _validate.array(name, value)
    if np.isnan(numbers).any() or (numbers < low).any() or (numbers > high).any():
        if low == -np.inf:
            expected = "not NaN"
        elif high == np.inf:
            expected = f">= {low:g}"
        else:
            expected = f"in [{low:g}, {high:g}]"
        raise ValueError(_validate.message(name, value, expected))
    return numbers


def _scalar(value: Array) -> float | Array:
    return float(value) if value.ndim == 0 else value


def _scaled_difference(u: Array, length: Array) -> Array:
    """erfcx(u) - erfcx(u + length) for u >= -5, without cancellation."""
    from scipy.special import erfcx

    v = u + length
    short = length < 0.1
    far = u > 50.0
    result = erfcx(u) - erfcx(np.minimum(v, 1e300))
    if short.any():
        # Integrate -erfcx'; the interval's length is known more exactly than v - u.
        where = short & ~far
        s = u[where, None] + length[where, None] * (_NODES + 1.0) / 2.0
        slope = 2.0 / _SQRT_PI - 2.0 * s * erfcx(s)
        result[where] = length[where] * (slope @ _WEIGHTS) / 2.0
    if far.any():
        # The slope cancels here; difference of the asymptotic series term by term.
        a, b = 1.0 / u[far], 1.0 / v[far]
        ratio = length[far] / v[far]
        square = a * a + a * b + b * b
        fifth = a**4 + a**3 * b + a * a * b * b + a * b**3 + b**4
        result[far] = a * ratio * (1.0 - square / 2.0 + 0.75 * fifth) / _SQRT_PI
    return result


def _log_delta(epsilon: Array, mu: Array) -> Array:
    """Log delta for 0 <= epsilon < inf and 0 < mu < inf (flat arrays)."""
    from scipy.special import erfcx, ndtr

    with np.errstate(all="ignore"):
        u = (epsilon / mu - mu / 2.0) / _SQRT2
        length = mu / _SQRT2
        result = np.full(u.shape, -np.inf)
        inner = (u >= -5.0) & (u < 1e150)
        near = u < -5.0
        ui = u[inner]
        result[inner] = np.log(_scaled_difference(ui, length[inner]) / 2.0) - ui * ui
        un, vn = u[near], u[near] + length[near]
        result[near] = np.log(ndtr(-un * _SQRT2) - np.exp(-un * un) * erfcx(vn) / 2.0)
    return result


def log_delta_from_mu(epsilon: ArrayLike, mu: ArrayLike) -> float | Array:
    """Natural logarithm of the smallest delta of a mu-GDP mechanism at epsilon.

    Args:
        epsilon: Any real numbers; negative ones give the whole privacy curve.
        mu: GDP parameters >= 0 (`inf` allowed).

    Returns:
        log delta(epsilon; mu), `-inf` where delta is 0. Accurate to about 1e-12
        relative to max(1, |log delta|), far below the smallest float as well.

    Raises:
        ValueError: If mu is negative or an argument is NaN.

    Example:
        >>> round(log_delta_from_mu(50.0, 1.0), 6)
        -1233.869083
    """
    eps, mus = np.broadcast_arrays(
        _array("epsilon", epsilon, -np.inf, np.inf), _array("mu", mu, 0.0, np.inf)
    )
    shape = eps.shape
    eps, mus = eps.ravel(), mus.ravel()
    size = np.abs(eps)
    result = np.full(eps.shape, -np.inf)
    plain = (mus > 0) & (mus < np.inf) & (size < np.inf)
    result[plain] = _log_delta(size[plain], mus[plain])
    result[(mus == np.inf) & (size < np.inf)] = 0.0
    negative = eps < 0
    if negative.any():
        # delta(-e) = 1 - exp(-e) (1 - delta(e)): only positive terms when expanded.
        with np.errstate(divide="ignore"):
            result[negative] = np.log(
                -np.expm1(eps[negative])
                + np.exp(eps[negative]) * np.exp(result[negative])
            )
    return _scalar(np.minimum(result, 0.0).reshape(shape))


def delta_from_mu(epsilon: ArrayLike, mu: ArrayLike) -> float | Array:
    """Smallest delta for which a mu-GDP mechanism is (epsilon, delta)-DP.

    Args:
        epsilon: Any real numbers (`inf` allowed).
        mu: GDP parameters >= 0 (`inf` allowed).

    Returns:
        delta in [0, 1], with about 1e-12 relative accuracy.

    Raises:
        ValueError: If mu is negative or an argument is NaN.

    References:
        Dong, Roth and Su, "Gaussian Differential Privacy", Corollary 1.

    Example:
        >>> round(delta_from_mu(1.0, 1.0), 10)
        0.1269367375
    """
    return _scalar(np.exp(np.asarray(log_delta_from_mu(epsilon, mu))))


def epsilon_from_mu(delta: ArrayLike, mu: ArrayLike) -> float | Array:
    """Smallest epsilon >= 0 for which a mu-GDP mechanism is (epsilon, delta)-DP.

    log delta is concave in epsilon, so Newton's iteration started on the right of
    the root stays there: what is returned is never below the root by more than
    rounding.

    Args:
        delta: Failure probabilities in [0, 1].
        mu: GDP parameters >= 0 (`inf` allowed).

    Returns:
        epsilon; 0 where delta(0; mu) is already small enough, `inf` for delta = 0
        with mu > 0.

    Raises:
        ValueError: If an argument is out of range or NaN.

    Example:
        >>> round(epsilon_from_mu(1e-5, 1.0), 10)
        4.3771780957
    """
    from scipy.special import log_ndtr

    deltas, mus = np.broadcast_arrays(
        _array("delta", delta, 0.0, 1.0), _array("mu", mu, 0.0, np.inf)
    )
    shape = deltas.shape
    deltas, mus = deltas.ravel(), mus.ravel()
    result = np.zeros(deltas.shape)
    with np.errstate(divide="ignore"):
        target = np.log(deltas)
    at_zero = np.asarray(log_delta_from_mu(0.0, mus))
    infinite = ((deltas == 0) & (mus > 0)) | ((mus == np.inf) & (deltas < 1))
    result[infinite] = np.inf
    where = (target < at_zero) & ~infinite
    m, t = mus[where], target[where]
    eps = m * m / 2.0 + m * np.sqrt(-2.0 * t)
    with np.errstate(all="ignore"):
        for _ in range(60):
            log_d = _log_delta(eps, m)
            slope = np.exp(eps + log_ndtr(-eps / m - m / 2.0) - log_d)
            step = (t - log_d) / slope
            step = np.where(np.isfinite(step), step, 0.0)
            eps = np.maximum(eps - step, 0.0)
            if (np.abs(step) <= 2e-16 * eps).all():
                break
    result[where] = eps
    return _scalar(result.reshape(shape))


def mu_from_epsilon_delta(epsilon: ArrayLike, delta: ArrayLike) -> float | Array:
    """Largest mu such that every mu-GDP mechanism is (epsilon, delta)-DP.

    Args:
        epsilon: Numbers >= 0 (`inf` allowed).
        delta: Failure probabilities in [0, 1].

    Returns:
        The root mu of delta(epsilon; mu) = delta: 0 for delta = 0, `inf` for
        delta = 1 or epsilon = inf.

    Raises:
        ValueError: If an argument is out of range or NaN.

    Example:
        >>> round(mu_from_epsilon_delta(1.0, 1e-5), 10)
        0.2680511232
    """
    eps, deltas = np.broadcast_arrays(
        _array("epsilon", epsilon, 0.0, np.inf), _array("delta", delta, 0.0, 1.0)
    )
    shape = eps.shape
    eps, deltas = eps.ravel(), deltas.ravel()
    result = np.zeros(eps.shape)
    result[(deltas == 1) | ((eps == np.inf) & (deltas > 0))] = np.inf
    where = (deltas > 0) & (deltas < 1) & (eps < np.inf)
    e, t = eps[where], np.log(deltas[where])
    # In y = log mu the function is increasing and smooth: bisection guards Newton.
    low, high = np.full(e.shape, -745.0), np.zeros(e.shape)
    while (short := _log_delta(e, np.exp(high)) < t).any():
        high[short] += 4.0
    y = np.minimum(np.log(np.maximum(e, 1e-300) / np.sqrt(-2.0 * t) + 1e-300), high)
    with np.errstate(all="ignore"):
        for _ in range(200):
            mu = np.exp(y)
            log_d = _log_delta(e, mu)
            above = log_d >= t
            high, low = np.where(above, y, high), np.where(above, low, y)
            a = -e / mu + mu / 2.0
            slope = mu * np.exp(-a * a / 2.0 - log_d) / np.sqrt(2.0 * np.pi)
            guess = y - (log_d - t) / slope
            inside = (guess > low) & (guess < high)
            new = np.where(inside, guess, (low + high) / 2.0)
            done = np.abs(new - y) <= 2e-16 * np.maximum(1.0, np.abs(y))
            y = new
            if done.all():
                break
    result[where] = np.exp(y)
    return _scalar(result.reshape(shape))
