"""Privacy accounting with NumPy and SciPy alone."""

from keras_gdp._gdp import (
    delta_from_mu as delta_from_mu,
)
from keras_gdp._gdp import (
    epsilon_from_mu as epsilon_from_mu,
)
from keras_gdp._gdp import (
    mu_from_epsilon_delta as mu_from_epsilon_delta,
)
from keras_gdp.accounting.events import (
    ApproximateDP,
    Composed,
    Event,
    Gaussian,
    Laplace,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
    SelfComposed,
    UniformSampledGaussian,
)

__all__ = [
    "ApproximateDP",
    "Composed",
    "Event",
    "Gaussian",
    "Laplace",
    "RandomizedResponse",
    "SampledGaussian",
    "SampledLaplace",
    "SelfComposed",
    "UniformSampledGaussian",
    "delta_from_mu",
    "epsilon_from_mu",
    "mu_from_epsilon_delta",
]
