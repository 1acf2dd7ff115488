"""Per-example gradient clipping: strategies (how far) and engines (how)."""

from keras_gdp.clipping.engines import (
    BookkeepingEngine,
    Engine,
    LoopEngine,
    ReweightEngine,
    VectorizedEngine,
)
from keras_gdp.clipping.objective import Objective
from keras_gdp.clipping.result import ClippedSum
from keras_gdp.clipping.strategies import (
    AdaptivePerLayer,
    AdaptiveQuantile,
    Automatic,
    ClippingStrategy,
    Flat,
    PerLayer,
)

__all__ = [
    "AdaptivePerLayer",
    "AdaptiveQuantile",
    "Automatic",
    "BookkeepingEngine",
    "ClippedSum",
    "ClippingStrategy",
    "Engine",
    "Flat",
    "LoopEngine",
    "Objective",
    "PerLayer",
    "ReweightEngine",
    "VectorizedEngine",
]
