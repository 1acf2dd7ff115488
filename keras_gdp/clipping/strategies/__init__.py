"""Clipping strategies: how far each example's gradient is scaled down."""

from keras_gdp.clipping.strategies.adaptive_per_layer import AdaptivePerLayer
from keras_gdp.clipping.strategies.adaptive_quantile import AdaptiveQuantile
from keras_gdp.clipping.strategies.automatic import Automatic
from keras_gdp.clipping.strategies.base import ClippingStrategy, clip_factors
from keras_gdp.clipping.strategies.flat import Flat
from keras_gdp.clipping.strategies.per_layer import PerLayer

__all__ = [
    "AdaptivePerLayer",
    "AdaptiveQuantile",
    "Automatic",
    "ClippingStrategy",
    "Flat",
    "PerLayer",
    "clip_factors",
]
