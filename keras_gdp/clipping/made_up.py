"""Made-up rows: what can be learned about a model without any data."""

import numpy as np
import tensorflow as tf

from keras_gdp.clipping.aside import run_aside
from keras_gdp.clipping.engines.loop import LoopEngine
from keras_gdp.clipping.strategies import Flat

__all__ = ["made_up_rows", "normal", "start_strategy", "uniform"]

_UNKNOWN_SIZE = 8
_START_ROWS = 16


def normal(generator, shape):
    """Draws from the standard normal distribution."""
    return generator.normal(size=shape)


def uniform(generator, shape):
    """Draws probabilities away from 0 and 1."""
    return generator.uniform(0.05, 0.95, size=shape)


def made_up_rows(row_specs, count, draw):
    """Returns random rows, always the same ones.

    Args:
        row_specs: Nested `tf.TensorSpec`s of a batch `(x, ...)`; `None` is kept.
        count: Number of rows.
        draw: `normal` or `uniform`, for the floating-point inputs.
    """
    generator = np.random.default_rng(1)

    def rows(spec, draw):
        if spec is None:
            return None
        shape = [count] + [
            _UNKNOWN_SIZE if size is None else size for size in spec.shape[1:]
        ]
        if spec.dtype.is_floating:
            values = draw(generator, shape)
        elif spec.dtype.is_integer or spec.dtype == tf.bool:
            # The only integers that are certain to be valid ids and labels.
            values = generator.integers(0, 2, shape)
        else:
            return tf.fill(shape, "")
        return tf.cast(tf.constant(values), spec.dtype)

    if not isinstance(row_specs, tuple):
        return tf.nest.map_structure(lambda spec: rows(spec, draw), row_specs)
    x_specs, *other_specs = row_specs
    x = tf.nest.map_structure(lambda spec: rows(spec, draw), x_specs)
    # Targets and weights: probabilities are valid for every loss.
    others = tf.nest.map_structure(lambda spec: rows(spec, uniform), other_specs)
    return (x, *others)


def start_strategy(strategy, objective, row_specs):
    """Gives a strategy that needs it the gradients of random noise inputs.

    Args:
        strategy: A built `ClippingStrategy`.
        objective: What will be differentiated.
        row_specs: Nested `tf.TensorSpec`s of a batch.
    """
    if not strategy.needs_start:
        return

    def squared_norms():
        rows = made_up_rows(row_specs, _START_ROWS, normal)
        present = tf.ones([_START_ROWS], tf.bool)
        clipped = LoopEngine(Flat(1.0)).clip(objective, rows, present)
        return clipped.squared_norms.numpy()

    strategy.start(run_aside(squared_norms))
