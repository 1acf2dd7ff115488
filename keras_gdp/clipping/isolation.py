"""Checks that a fast engine is right for a model before it is used.

The fast engines assume that the loss of an example depends on that example's row
alone, and that the recorded layers are all there is. Both are tested on made-up rows:
the engine on the whole batch against each row alone, and against the same batch with
other rows in it.
"""

import contextlib

import keras
import numpy as np
import tensorflow as tf

from keras_gdp.clipping.engines.loop import LoopEngine
from keras_gdp.clipping.made_up import made_up_rows, normal, uniform
from keras_gdp.clipping.objective import leaves_of, with_leaves
from keras_gdp.clipping.rules.recurrent_cells import CELLS
from keras_gdp.clipping.state import written_state

__all__ = ["isolation_problem"]

_DISTINCT = 3
# One row many times over: what limits a batch's load on some part of the model (the
# capacity of an expert, say) is reached.
_PATTERN = [0, 1, 2, 0, 0, 0, 0, 1]
_MOST_ROWS = 512
# Relative to the largest entry, between a row alone and in a batch.
_TOLERANCE = {"float32": 1e-3, "float16": 5e-2, "bfloat16": 2e-1}
# Between two batches of one size, whose rows are computed alike.
_INFLUENCE = 1e-5
# Made-up rows that keep a row company become this much larger.
_DISTURBANCE = 1e6

_RANDOM_LAYERS = (
    keras.layers.AlphaDropout,
    keras.layers.Dropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
    keras.layers.SpatialDropout1D,
    keras.layers.SpatialDropout2D,
    keras.layers.SpatialDropout3D,
)


def isolation_problem(engine, objective, row_specs, rows=None):
    """Returns why an engine must not be used for a model, or "".

    Runs eagerly. The model's weights are moved by random numbers for the duration of
    the check, since fresh ones may be zero and hide a path, and put back.

    Args:
        engine: The engine.
        objective: What will be differentiated.
        row_specs: Nested `tf.TensorSpec`s of a batch.
        rows: Number of rows that the engine will see at once; `None` if unknown.
    """
    if objective.batched is None:
        return "the loss is a function of one example, not a compiled model"
    if any(spec.dtype == tf.string for spec in leaves_of(row_specs)):
        return "strings that a model tells apart cannot be made up"
    count = min(max(rows or 0, len(_PATTERN)), _MOST_ROWS)
    pattern = (_PATTERN * (1 + count // len(_PATTERN)))[:count]
    problem = ""
    with _moved_weights(objective), _without_randomness(objective):
        # Where the made-up rows have no finite gradient, others may.
        for draw in (normal, uniform):
            made_up = made_up_rows(row_specs, _DISTINCT, draw)
            try:
                problem = _difference(engine, objective, made_up, pattern)
            except Exception as error:  # Any failure at all means that it cannot.
                text = " ".join(str(error).split()).split(" defined at")[0]
                return text[:300] or type(error).__name__
            if problem != _NOT_FINITE:
                break
    return problem


_NOT_FINITE = "its gradients on made-up rows are not finite, so it cannot be checked"


def _difference(engine, objective, rows, pattern):
    alone = LoopEngine(engine.strategy).clip(
        objective, rows, tf.ones([_DISTINCT], tf.bool)
    )
    if not _finite(alone.squared_norms, alone.losses):
        return _NOT_FINITE
    repeated = tf.nest.map_structure(
        lambda leaf: None if leaf is None else tf.gather(leaf, pattern), rows
    )
    # Each distinct row is present once; the others are only there as company.
    present = tf.range(len(pattern)) < _DISTINCT

    # Compiled, as in training: some models are recorded eagerly only.
    @tf.function(autograph=False)
    def clip(*leaves):
        return engine.clip(objective, with_leaves(repeated, leaves), present)

    compiled = clip.get_concrete_function(*leaves_of(repeated))
    if written_state(compiled.graph):
        return "a layer writes a variable when it sees several rows"
    together = compiled(*leaves_of(repeated))
    other = compiled(*leaves_of(_disturbed(repeated, present)))
    return (
        _unlike_alone(alone, together, pattern, _tolerance(objective))
        or _influenced(together, other)
        or ""
    )


def _disturbed(batch, present):
    """Returns the batch with other inputs in all rows that are not present."""
    x, *others = batch

    def disturb(leaf):
        if leaf is None:
            return None
        if leaf.dtype == tf.bool:
            changed = ~leaf
        elif leaf.dtype.is_integer:
            changed = 1 - leaf
        else:
            # Half precision has no such numbers.
            changed = leaf * tf.cast(min(_DISTURBANCE, leaf.dtype.max / 64), leaf.dtype)
        shape = [-1] + [1] * (leaf.shape.rank - 1)
        return tf.where(tf.reshape(present, shape), leaf, changed)

    return (tf.nest.map_structure(disturb, x), *others)


def _unlike_alone(alone, together, pattern, tolerance):
    for one, other in zip(
        [alone.losses, *alone.outputs],
        [together.losses, *together.outputs],
        strict=True,
    ):
        if not _close(tf.gather(one, pattern), other, tolerance):
            return _COUPLED
    norms = tf.sqrt(tf.gather(alone.squared_norms, pattern))
    if not _close(norms, tf.sqrt(together.squared_norms), tolerance):
        return (
            "an example's gradient depends on the other examples of its batch, or is "
            "not covered by the layer rules"
        )
    scale = max(float(tf.reduce_max(tf.abs(g))) for g in alone.gradients)
    for one, other in zip(alone.gradients, together.gradients, strict=True):
        if not _close(one, other, tolerance, scale):
            return "its clipped sum differs from that of one example at a time"
    return ""


def _influenced(together, other):
    for one, disturbed in zip(
        [together.losses, together.squared_norms, *together.outputs],
        [other.losses, other.squared_norms, *other.outputs],
        strict=True,
    ):
        if not _close(one[:_DISTINCT], disturbed[:_DISTINCT], _INFLUENCE):
            return _COUPLED
    scale = max(float(tf.reduce_max(tf.abs(g))) for g in together.gradients)
    for one, disturbed in zip(together.gradients, other.gradients, strict=True):
        if not _close(one, disturbed, _INFLUENCE, scale):
            return _COUPLED
    return ""


_COUPLED = (
    "an example's loss, prediction or gradient depends on the other examples of its "
    "batch"
)


def _tolerance(objective):
    kinds = {layer.compute_dtype for layer in _layers(objective)}
    for kind in ("bfloat16", "float16"):
        if kind in kinds:
            return _TOLERANCE[kind]
    return _TOLERANCE["float32"]


def _finite(*tensors):
    return all(bool(tf.reduce_all(tf.math.is_finite(t))) for t in tensors)


def _close(one, other, tolerance, scale=None):
    kind = "complex128" if np.iscomplexobj(one) else "float64"
    one, other = np.asarray(one, kind), np.asarray(other, kind)
    if one.shape != other.shape:
        return False
    if not one.size:
        return True
    scale = np.abs(one).max() if scale is None else scale
    difference = np.abs(one - other).max()
    return bool(np.isfinite(difference) and difference <= tolerance * scale + 1e-30)


def _layers(objective):
    layers = [objective.model]
    for layer in layers:
        known = {id(other) for other in layers}
        layers.extend(
            child
            for child in objective.batched.children_of(layer)
            if id(child) not in known
        )
    return layers


@contextlib.contextmanager
def _moved_weights(objective):
    generator = np.random.default_rng(0)
    saved = [variable.numpy() for variable in objective.variables]
    seeds = [
        variable.value
        for variable in objective.model.variables
        if "seed_generator_state" in variable.path
    ]
    states = [seed.numpy() for seed in seeds]
    try:
        for variable, value in zip(objective.variables, saved, strict=True):
            spread = 0.1 * max(float(np.std(value)), 0.1)
            variable.assign(value + spread * generator.normal(size=value.shape))
        yield
    finally:
        for variable, value in zip(
            [*objective.variables, *seeds], [*saved, *states], strict=True
        ):
            variable.assign(value)


@contextlib.contextmanager
def _without_randomness(objective):
    """Makes dropout and noise layers do nothing.

    They act on each entry on its own; their draws would differ between a row alone
    and in a batch.
    """
    with contextlib.ExitStack() as stack:
        for layer in _layers(objective):
            if type(layer) in _RANDOM_LAYERS and "call" not in vars(layer):
                vars(layer)["call"] = lambda inputs, training=False: inputs
                stack.callback(vars(layer).pop, "call")
            if type(layer) in CELLS:
                stack.callback(setattr, layer, "dropout", layer.dropout)
                layer.dropout = 0.0
        yield
