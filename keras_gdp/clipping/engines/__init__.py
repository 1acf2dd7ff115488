"""Engines: four ways to compute the same clipped sum."""

from keras_gdp.clipping.engines.base import Engine
from keras_gdp.clipping.engines.bookkeeping import BookkeepingEngine
from keras_gdp.clipping.engines.loop import LoopEngine
from keras_gdp.clipping.engines.reweight import ReweightEngine
from keras_gdp.clipping.engines.vectorized import VectorizedEngine

__all__ = [
    "BookkeepingEngine",
    "Engine",
    "LoopEngine",
    "ReweightEngine",
    "VectorizedEngine",
]
