"""Which engine computes the clipped sum, and why."""

import warnings

import tensorflow as tf

from keras_gdp import _validate
from keras_gdp.clipping.aside import run_aside
from keras_gdp.clipping.engines import (
    BookkeepingEngine,
    Engine,
    LoopEngine,
    ReweightEngine,
    VectorizedEngine,
)
from keras_gdp.clipping.isolation import isolation_problem
from keras_gdp.clipping.made_up import made_up_rows, normal
from keras_gdp.clipping.objective import leaves_of, num_rows, with_leaves
from keras_gdp.clipping.state import random_seeds
from keras_gdp.clipping.vectorize import quiet
from keras_gdp.errors import UnsupportedLayerError

__all__ = ["ENGINES", "choose_engine"]

ENGINES: dict[str, type[Engine]] = {
    engine.name: engine
    for engine in (BookkeepingEngine, ReweightEngine, VectorizedEngine, LoopEngine)
}

# Stacked per-example gradients beyond this many entries fall out of the processor's
# caches, and one example at a time is faster as well as smaller.
_MAX_STACKED_ENTRIES_CPU = 2**24
_MAX_STACKED_ENTRIES_GPU = 2**28


def choose_engine(name, strategy, physical_batch_size, objective, row_specs):
    """Returns `(engine, reason)`.

    Args:
        name: `"auto"` or a key of `ENGINES`.
        strategy: The clipping strategy.
        physical_batch_size: Rows to process at once, or `None`.
        objective: What will be differentiated.
        row_specs: Nested `tf.TensorSpec`s of a batch; a leading size of `None` is
            an unknown number of rows.

    Raises:
        UnsupportedLayerError: If an engine was named that is not valid for the model.
    """
    _validate.one_of("clipping", name, ["auto", *ENGINES], "'auto' fits all models.")
    _leave_tensor_float_32()
    rows = physical_batch_size or tf.nest.flatten(row_specs)[0].shape[0]

    def problem_of(kind):
        return run_aside(isolation_problem, kind(strategy), objective, row_specs, rows)

    if name != "auto":
        engine = ENGINES[name](strategy, physical_batch_size)
        if engine.needs_isolation:
            # The bookkeeping pass alone sees variables used outside of their layer.
            problem = problem_of(BookkeepingEngine)
            if not problem and name != BookkeepingEngine.name:
                problem = problem_of(ENGINES[name])
        elif name == VectorizedEngine.name:
            problem, certain = run_aside(
                _vectorization_problem, strategy, objective, row_specs
            )
            # Who names the engine may know rows that it can be tried on.
            problem = problem if certain else ""
        else:
            problem = ""
        if problem:
            raise UnsupportedLayerError(
                f"clipping={name!r} cannot be used with this model: {problem}. "
                "Use clipping='auto', which picks an engine that can."
            )
        return engine, "chosen explicitly"
    problem = problem_of(BookkeepingEngine)
    if not problem:
        return BookkeepingEngine(
            strategy, physical_batch_size
        ), "every layer has a rule, and examples do not affect each other"
    engine, reason = _slow_engine(strategy, physical_batch_size, objective, row_specs)
    return engine, f"{reason}; bookkeeping is not possible: {problem}"


def _leave_tensor_float_32():
    """Has GPUs multiply in float32: with ten bits the clip norm could not be kept."""
    settings = tf.config.experimental
    if tf.config.list_logical_devices("GPU") and (
        settings.tensor_float_32_execution_enabled()
    ):
        settings.enable_tensor_float_32_execution(False)
        warnings.warn(
            "TensorFloat-32 is switched off for this process: its products have ten "
            "bits, too few to keep to a clip norm.",
            stacklevel=2,
        )


def _slow_engine(strategy, physical_batch_size, objective, row_specs):
    entries = sum(variable.shape.num_elements() for variable in objective.variables)
    leading = tf.nest.flatten(row_specs)[0].shape[0]
    rows = physical_batch_size or leading or 256
    limit = (
        _MAX_STACKED_ENTRIES_GPU
        if tf.config.list_logical_devices("GPU")
        else _MAX_STACKED_ENTRIES_CPU
    )
    if entries * rows > limit:
        return LoopEngine(strategy), (
            f"{rows} stacked gradients of {entries} entries each would be slower than "
            "one example at a time"
        )
    problem, _ = run_aside(_vectorization_problem, strategy, objective, row_specs)
    if problem:
        return LoopEngine(strategy), problem
    return VectorizedEngine(strategy, physical_batch_size), (
        f"stacked gradients of {entries} entries per example fit into memory"
    )


def _vectorization_problem(strategy, objective, row_specs):
    """Returns `(problem, certain)`.

    Why `tf.vectorized_map` fails on made-up rows, or ""; and whether the rows are not
    to blame: one example at a time gets through them.
    """
    rows = made_up_rows(row_specs, 3, normal)
    problem = _failure(VectorizedEngine(strategy), objective, rows)
    if not problem:
        return "", True
    if _failure(LoopEngine(strategy), objective, rows):
        return f"tf.vectorized_map cannot be tried on made-up rows ({problem})", False
    return f"tf.vectorized_map cannot convert it ({problem})", True


def _failure(engine, objective, rows):
    """Returns the error of an engine on some rows, or "".

    Some operations fail when they are converted, others only when they run.
    """
    leaves = leaves_of(rows)

    @tf.function(autograph=False)
    def probe(*tensors):
        packed = with_leaves(rows, tensors)
        return engine.clip(objective, packed, tf.ones([num_rows(rows)], tf.bool))

    try:
        with quiet():
            traced = probe.get_concrete_function(*leaves)
            seeds = random_seeds(traced.graph)
            states = [seed.numpy() for seed in seeds]
            try:
                traced(*leaves)
            finally:
                for seed, state in zip(seeds, states, strict=True):
                    seed.assign(state)
    except Exception as error:  # Any failure at all means that it cannot.
        text = " ".join(str(error).split()).split(" defined at")[0]
        return f"{type(error).__name__}: {text[:160]}"
    return ""
