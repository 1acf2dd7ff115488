"""Choosing what a private training run needs; imports without TensorFlow."""

from keras_gdp.tuning.large_batch import LargeBatchRow, LargeBatchTable, large_batch

__all__ = ["LargeBatchRow", "LargeBatchTable", "large_batch"]
