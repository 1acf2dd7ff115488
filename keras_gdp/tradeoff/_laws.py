"""One view of SciPy's and TensorFlow Probability's one-dimensional distributions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from keras_gdp.tradeoff._arrays import Array

__all__ = ["Law", "law"]

_TAIL_LEVELS = 10.0 ** -np.linspace(1.0, 300.0, 600)
_DISCRETE_TFP = {
    "Bernoulli",
    "Binomial",
    "Categorical",
    "FiniteDiscrete",
    "Geometric",
    "NegativeBinomial",
    "Poisson",
}


def law(name: str, distribution: Any) -> Law:
    """Wraps a distribution, or refuses what is not one."""
    if hasattr(distribution, "log_prob") and hasattr(distribution, "parameters"):
        return _TFPLaw(name, distribution)
    if hasattr(distribution, "cdf") and (
        hasattr(distribution, "logpdf") or hasattr(distribution, "logpmf")
    ):
        return _SciPyLaw(distribution)
    raise TypeError(
        f"Argument `{name}` must be a frozen SciPy distribution or a TensorFlow "
        f"Probability distribution. Received: {name}={distribution!r}. Pass, say, "
        "`scipy.stats.norm(0, 1)`."
    )


class Law(ABC):
    """A distribution on the line."""

    name: str
    discrete: bool
    family: str = ""
    parameters: tuple[float, float] = (0.0, 1.0)

    @abstractmethod
    def log_density(self, x: Array) -> Array:
        """Logarithm of the density or of the probability."""

    @abstractmethod
    def cdf(self, x: Array) -> Array:
        """`P(X <= x)`."""

    @abstractmethod
    def sf(self, x: Array) -> Array:
        """`P(X > x)`."""

    @abstractmethod
    def outcomes(self) -> Array:
        """Outcomes of a discrete distribution, all but a mass of about 1e-18."""

    def between(self, low: Array, high: Array) -> Array:
        """Probability of `(low, high]`, from the nearer tail."""
        from_left = self.cdf(high) - self.cdf(low)
        from_right = self.sf(low) - self.sf(high)
        nearer = np.where(self.cdf(high) < 0.5, from_left, from_right)
        return np.maximum(nearer, 0.0)

    def masses(self, x: Array) -> Array:
        """Probabilities of the cells between ascending points.

        The first and the last cell include what lies beyond.
        """
        mass = self.between(x[:-1], x[1:])
        mass[0] += self.cdf(x[:1])[0]
        mass[-1] += self.sf(x[-1:])[0]
        return mass

    def quantile_grid(self) -> Array:
        """Quantiles from 1e-300 to 1 - 1e-300, by bisection."""
        middle = np.linspace(0.1, 0.9, 801)
        lower = self._solve(np.concatenate([_TAIL_LEVELS, middle]), self.cdf, 1.0)
        upper = self._solve(_TAIL_LEVELS, self.sf, -1.0)
        return np.unique(np.concatenate([lower, upper]))

    def _solve(self, level: Array, function: Any, sign: float) -> Array:
        low, high = np.full(level.size, -1.0), np.full(level.size, 1.0)
        for side, step in ((low, -1.0), (high, 1.0)):
            for _ in range(1000):
                short = sign * step * (level - function(side)) > 0
                short &= np.abs(side) < 1e300
                if not short.any():
                    break
                side[short] *= 2
        for _ in range(200):
            middle = low + (high - low) / 2
            above = sign * (function(middle) - level) >= 0
            low, high = np.where(above, low, middle), np.where(above, middle, high)
            if (high - low <= 1e-12 * np.abs(high)).all():
                break
        return np.asarray((low + high) / 2)


class _SciPyLaw(Law):
    def __init__(self, distribution: Any) -> None:
        self._distribution = distribution
        generator = getattr(distribution, "dist", distribution)
        self.discrete = hasattr(distribution, "logpmf")
        kind = getattr(generator, "name", None) or type(generator).__name__
        self.name = str(kind)
        self._listed = getattr(generator, "xk", None)
        if kind in ("norm", "laplace") and hasattr(distribution, "kwds"):
            _, loc, scale = generator._parse_args(
                *distribution.args, **distribution.kwds
            )
            self.family = "normal" if kind == "norm" else "laplace"
            self.parameters = (float(loc), float(scale))

    def log_density(self, x: Array) -> Array:
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            if self.discrete:
                return np.asarray(self._distribution.logpmf(x))
            return np.asarray(self._distribution.logpdf(x))

    def cdf(self, x: Array) -> Array:
        return np.asarray(self._distribution.cdf(x), dtype=np.float64)

    def sf(self, x: Array) -> Array:
        return np.asarray(self._distribution.sf(x), dtype=np.float64)

    def outcomes(self) -> Array:
        if self._listed is not None:
            loc = 0.0
            if hasattr(self._distribution, "kwds"):
                _, loc, _ = self._distribution.dist._parse_args(
                    *self._distribution.args, **self._distribution.kwds
                )
            return np.asarray(self._listed, dtype=np.float64) + loc
        low, high = self._distribution.support()
        if not np.isfinite(low):
            low = -1.0
            while self.cdf(np.array(low)) > 1e-18 and low > -(2.0**24):
                low *= 2
        if not np.isfinite(high):
            high = max(1.0, float(low) + 1)
            while self.sf(np.array(high)) > 1e-18 and high < 2.0**24:
                high *= 2
        return np.arange(np.floor(low), np.ceil(high) + 1.0)


class _TFPLaw(Law):
    def __init__(self, name: str, distribution: Any) -> None:
        if distribution.batch_shape.rank or distribution.event_shape.rank:
            raise TypeError(
                f"Argument `{name}` must be a scalar distribution. Received: shapes "
                f"{distribution.batch_shape} and {distribution.event_shape}. Compose "
                "the trade-off functions of its independent parts."
            )
        # TFP computes in float32 by default; seven digits are too few here.
        self._distribution = _in_float64(distribution)
        self.name = type(distribution).__name__
        self.discrete = _is_discrete(distribution)
        if self.name in ("Normal", "Laplace"):
            self.family = self.name.lower()
            self.parameters = (float(distribution.loc), float(distribution.scale))

    def _call(self, method: str, x: Array) -> Array:
        import tensorflow as tf

        target = self._distribution.dtype
        for inner in ("components_distribution",):
            target = getattr(getattr(self._distribution, inner, None), "dtype", target)
        values = getattr(self._distribution, method)(tf.cast(x, target))
        return np.asarray(values, dtype=np.float64)

    def log_density(self, x: Array) -> Array:
        values = self._call("log_prob", x)
        return np.where(np.isnan(values), -np.inf, values)

    def cdf(self, x: Array) -> Array:
        return np.clip(self._call("cdf", x), 0.0, 1.0)

    def sf(self, x: Array) -> Array:
        return np.clip(self._call("survival_function", x), 0.0, 1.0)

    def outcomes(self) -> Array:
        return _tfp_outcomes(self._distribution)


def _is_discrete(distribution: Any) -> bool:
    inner = getattr(distribution, "components_distribution", None)
    if inner is not None:
        return _is_discrete(inner)
    parts = getattr(distribution, "components", None)
    if parts:
        return all(_is_discrete(part) for part in parts)
    return type(distribution).__name__ in _DISCRETE_TFP


def _in_float64(distribution: Any) -> Any:
    """The same distribution with double precision parameters, where it can be built."""
    import tensorflow as tf

    given = {}
    for key, value in distribution.parameters.items():
        if value is None or key == "name":
            continue
        if hasattr(value, "log_prob"):
            value = _in_float64(value)
        elif isinstance(value, list | tuple) and all(
            hasattr(part, "log_prob") for part in value
        ):
            value = [_in_float64(part) for part in value]
        elif not isinstance(value, bool | str | int | type(tf.float32)):
            try:
                tensor = tf.convert_to_tensor(value)
                if tensor.dtype.is_floating:
                    # A Python float was given in double precision.
                    value = tf.constant(np.asarray(value, dtype=np.float64))
            except (TypeError, ValueError):
                pass
        given[key] = value
    try:
        return type(distribution)(**given)
    except (TypeError, ValueError):
        return distribution


def _tfp_outcomes(distribution: Any) -> Array:
    inner = getattr(distribution, "components_distribution", None)
    parts = [inner] if inner is not None else getattr(distribution, "components", None)
    if parts:
        return np.unique(np.concatenate([_tfp_outcomes(part) for part in parts]))
    kind = type(distribution).__name__
    if kind == "FiniteDiscrete":
        return np.unique(np.asarray(distribution.outcomes, dtype=np.float64))
    if kind == "Bernoulli":
        return np.arange(2.0)
    if kind == "Categorical":
        return np.arange(float(distribution.logits_parameter().shape[-1]))
    if kind == "Binomial":
        return np.arange(float(np.max(np.asarray(distribution.total_count))) + 1)
    mean = float(np.max(np.asarray(distribution.mean())))
    spread = float(np.max(np.asarray(distribution.stddev())))
    # The tails of these three fall at least geometrically.
    return np.arange(np.ceil(mean + 45 * spread + 45) + 1.0)
