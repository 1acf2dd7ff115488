"""Gaussian noise for clipped gradient sums."""

from keras_gdp.noise.gaussian import NoiseStream

__all__ = ["NoiseStream"]
