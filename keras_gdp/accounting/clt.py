"""The central limit theorem of f-DP: mu of a whole training run in closed form.

Bu, Dong, Long and Su ("Deep Learning with Gaussian Differential Privacy", eq. (2)):
T steps of the Poisson-sampled Gaussian mechanism are, in the limit p sqrt(T) ->
const, mu-GDP with mu = p sqrt(T (exp(1/sigma^2) - 1)). At finite T that is an
*estimate*, and in the tail usually below the truth.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_gdp import _validate
from keras_gdp._gdp import delta_from_mu, epsilon_from_mu
from keras_gdp.accounting.accountant import Accountant
from keras_gdp.accounting.events import (
    NO_NOISE,
    Event,
    Gaussian,
    SampledGaussian,
    UniformSampledGaussian,
)
from keras_gdp.errors import UnsupportedEventError

__all__ = ["CLTAccountant", "mu_clt", "mu_uniform"]

Array = NDArray[np.float64]


def _checked(name: str, value: ArrayLike, high: float = math.inf) -> Array:
    numbers = _validate.array(name, value)
    if not ((numbers >= 0) & (numbers <= high)).all():
        expected = ">= 0" if high == math.inf else f"in [0, {high:g}]"
        raise ValueError(_validate.message(name, value, expected))
    return numbers


def _result(value: Array) -> Any:
    return float(value) if value.ndim == 0 else value


def mu_clt(
    noise_multiplier: ArrayLike, sampling_probability: ArrayLike, steps: ArrayLike
) -> Any:
    """GDP parameter of Poisson-sampled DP-SGD under the central limit theorem.

    `mu = p sqrt(T (exp(1/sigma^2) - 1))`, relation add_remove. An estimate for
    p < 1; for p = 1 there is no sampling and the exact value sqrt(T)/sigma is
    returned.

    Args:
        noise_multiplier: Noise standard deviation over `l2_norm_clip`, >= 0.
        sampling_probability: Probability of each record to be in a batch.
        steps: Number of noised updates, >= 0 (fractions allowed).

    Returns:
        mu >= 0 (`inf` for zero noise), broadcast over the arguments.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Bu, Dong, Long and Su (2020), equation (2).

    Example:
        >>> round(mu_clt(1.3, 256 / 60000, 3516), 10)
        0.2272862883
    """
    sigma, p, count = np.broadcast_arrays(
        _checked("noise_multiplier", noise_multiplier),
        _checked("sampling_probability", sampling_probability, 1.0),
        _checked("steps", steps),
    )
    with np.errstate(all="ignore"):
        square = 1.0 / (sigma * sigma)
        log_growth = np.where(square < 30, np.log(np.expm1(square)), square)
        mu = np.exp(np.log(p) + 0.5 * (np.log(count) + log_growth))
        mu = np.where(p == 1.0, np.sqrt(count) / sigma, mu)
    return _result(np.where((p == 0) | (count == 0), 0.0, mu))


def uniform_growth(u: Array) -> Array:
    """h(u) = exp(u^2) Phi(1.5 u) + 3 Phi(-0.5 u) - 2 without cancellation."""
    from scipy.special import erf, ndtr

    small = np.minimum(u, 0.2)
    series = small**3 + 0.375 * small**5 + 0.1078125 * small**7
    series = series + 0.0239428323413 * small**9
    near = np.expm1(small**2) / 2.0 + series / math.sqrt(2.0 * math.pi)
    with np.errstate(over="ignore", invalid="ignore"):
        far = np.expm1(u * u) * ndtr(1.5 * u) + erf(1.5 * u / math.sqrt(2.0)) / 2.0
        far = far - 1.5 * erf(0.5 * u / math.sqrt(2.0))
    return np.asarray(np.where(u <= 0.2, near, far))


def mu_uniform(
    noise_multiplier: ArrayLike,
    batch_size: ArrayLike,
    num_examples: ArrayLike,
    steps: ArrayLike,
    *,
    sensitivity: float = 1.0,
) -> Any:
    """GDP parameter of fixed-size sampling under the central limit theorem.

    `mu = sqrt(2) p sqrt(T h(s/sigma))` with `p = batch_size/num_examples`, `h(u) =
    exp(u^2) Phi(1.5 u) + 3 Phi(-0.5 u) - 2` and s the sensitivity. An estimate,
    relation replace_one.

    The formula is usually printed, and compared with `mu_clt`, for sensitivity 1,
    which is the default here. Replacing one record moves a clipped sum by up to 2
    clip norms: for a training run pass `sensitivity=2.0`, as `CLTAccountant` does.

    Args:
        noise_multiplier: Noise standard deviation over `l2_norm_clip`, >= 0.
        batch_size: Records per batch.
        num_examples: Records in the data set.
        steps: Number of noised updates, >= 0.
        sensitivity: How far one step's sum moves, in clip norms.

    Returns:
        mu >= 0, broadcast over the arguments.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Dong, Roth and Su, "Gaussian Differential Privacy", section 5.

    Example:
        >>> round(mu_uniform(3.0, 9600, 48000, 50), 5)
        0.54469
    """
    size = _checked("batch_size", batch_size)
    total = _checked("num_examples", num_examples)
    if (size > total).any() or (total == 0).any():
        raise ValueError(
            "Argument `batch_size` must not exceed `num_examples`. Received: "
            f"batch_size={batch_size!r}, num_examples={num_examples!r}. Choose a "
            "smaller batch size."
        )
    moved = _checked("sensitivity", sensitivity)
    with np.errstate(divide="ignore", invalid="ignore"):
        u = moved / _checked("noise_multiplier", noise_multiplier)
        p, count = size / total, _checked("steps", steps)
        mu = np.sqrt(2.0) * p * np.sqrt(count * uniform_growth(u))
        mu = np.where(p == 1.0, np.sqrt(count) * u, mu)
    return _result(np.asarray(np.where((p == 0) | (count == 0), 0.0, mu)))


class CLTAccountant(Accountant):
    """Gaussian differential privacy by the central limit theorem.

    Exact for plain Gaussian releases; an estimate as soon as there is sampling.

    Example:
        >>> run = CLTAccountant().compose(SampledGaussian(1.3, 256 / 60000), 3516)
        >>> round(run.mu, 4), round(run.epsilon(1e-5), 4), run.is_upper_bound
        (0.2273, 0.8345, False)
    """

    name = "clt"

    @property
    def mu(self) -> float:
        """GDP parameter of everything composed so far."""
        total = math.fsum(n * self._square(event) for event, n in self.events)
        return math.sqrt(total)

    @property
    def is_upper_bound(self) -> bool:  # type: ignore[override]
        """Whether everything composed so far is exactly Gaussian."""
        return all(self._is_gaussian(event) for event, _ in self.events)

    @property
    def _method(self) -> str:
        if self.is_upper_bound:
            return "Exact composition of Gaussian releases (mu adds up in squares)."
        return (
            "ESTIMATE, not a guarantee: central limit theorem of Gaussian differential "
            "privacy (Bu et al. 2020), accurate for many steps with little sampling; "
            "the true epsilon is often higher."
        )

    @staticmethod
    def _is_gaussian(event: Event) -> bool:
        if isinstance(event, SampledGaussian):
            return event.sampling_probability in (0.0, 1.0)
        if isinstance(event, UniformSampledGaussian):
            return event.batch_size == event.num_examples
        return isinstance(event, Gaussian)

    def _square(self, event: Event) -> float:
        """Contribution of one release to mu^2."""
        sensitivity = self.group_size * (2.0 if self.relation == "replace_one" else 1.0)
        noise = getattr(event, "noise_multiplier", 0.0)
        if isinstance(event, SampledGaussian) and event.sampling_probability == 0.0:
            return 0.0
        if noise < NO_NOISE:
            return math.inf
        if self._is_gaussian(event):
            return (sensitivity / noise) ** 2
        if isinstance(event, UniformSampledGaussian):
            size, total = event.batch_size, event.num_examples
            return float(mu_uniform(noise, size, total, 1, sensitivity=2.0)) ** 2
        if isinstance(event, SampledGaussian):
            p, square = event.sampling_probability, noise**-2.0
            if self.relation == "add_remove":
                return float(mu_clt(noise, p, 1)) ** 2
            # chi-square of the pair (1-p) N(0) + p N(+-1) to leading order in p.
            return 4.0 * p * p * math.sinh(square) if square < 700 else math.inf
        raise UnsupportedEventError(
            "only Gaussian noise has a closed form here; use the exact accountant."
        )

    def _check(self, event: Event) -> None:
        if isinstance(event, UniformSampledGaussian):
            if self.relation != "replace_one":
                raise UnsupportedEventError(
                    "a fixed batch size has no add-or-remove analysis; use "
                    'relation="replace_one".'
                )
        elif not isinstance(event, Gaussian | SampledGaussian):
            raise UnsupportedEventError(
                "only Gaussian noise has a closed form here; use the exact accountant."
            )
        if self.group_size > 1 and not self._is_gaussian(event):
            raise UnsupportedEventError(
                "sampling has no group formula here; use the exact accountant."
            )

    def _epsilon_bounds(self, delta: float) -> tuple[float, float]:
        value = float(epsilon_from_mu(delta, self.mu))
        return (value if self.is_upper_bound else 0.0), value

    def _delta_bounds(self, epsilon: float) -> tuple[float, float]:
        value = float(delta_from_mu(epsilon, self.mu))
        return (value if self.is_upper_bound else 0.0), value
