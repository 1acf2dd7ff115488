"""Datasets whose sampling is what the accounting assumes."""

from keras_gdp.data.datasets import (
    PoissonDataset,
    SampledDataset,
    UniformDataset,
    verified_sampling,
)

__all__ = ["PoissonDataset", "SampledDataset", "UniformDataset", "verified_sampling"]
