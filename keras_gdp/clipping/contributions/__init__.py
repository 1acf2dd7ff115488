"""What one call of a layer adds to the per-example gradients of its variables."""

from keras_gdp.clipping.contributions.base import Contribution
from keras_gdp.clipping.contributions.columns import Columns
from keras_gdp.clipping.contributions.combined import Combined, combine
from keras_gdp.clipping.contributions.local import Local
from keras_gdp.clipping.contributions.lookup import Lookup, lookup_of
from keras_gdp.clipping.contributions.outer import Outer
from keras_gdp.clipping.contributions.stacked import Stacked, summed

__all__ = [
    "Columns",
    "Combined",
    "Contribution",
    "Local",
    "Lookup",
    "lookup_of",
    "Outer",
    "Stacked",
    "combine",
    "summed",
]
