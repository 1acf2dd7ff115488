"""How batches are drawn, and what that costs. Imports no TensorFlow."""

from keras_gdp.sampling.draws import poisson_capacity, poisson_draw, uniform_draw
from keras_gdp.sampling.scheme import KINDS, Sampling

__all__ = ["KINDS", "Sampling", "poisson_capacity", "poisson_draw", "uniform_draw"]
