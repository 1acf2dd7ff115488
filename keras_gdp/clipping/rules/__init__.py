"""Layer rules: what enters where, one kind of layer per file."""

from keras_gdp.clipping.rules import (  # noqa: F401  (they register themselves)
    convolution,
    dense,
    einsum_dense,
    embedding,
    normalization,
    pointwise,
    recurrent,
    separable_convolution,
)
from keras_gdp.clipping.rules.registry import Rule, find_rule, register

__all__ = ["Rule", "find_rule", "register"]
