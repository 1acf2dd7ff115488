"""Refuses what would carry raw data past the noise."""

import tensorflow as tf

from keras_gdp.clipping.choose import choose_engine
from keras_gdp.errors import UnsupportedLayerError
from keras_gdp.training import _keras

__all__ = [
    "checked_engine",
    "validate_state_writes",
    "validate_variables",
    "written_variables",
]

_READS = {
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "VariableShape",
    "VarIsInitializedOp",
    "LookupTableFind",
    "LookupTableFindV2",
    "LookupTableSizeV2",
}

_ADVICE = {
    "BatchNormalization": (
        "Its moving statistics would store features of single examples without "
        "noise, and its batch statistics mix examples. Use "
        "keras.layers.GroupNormalization or LayerNormalization instead, or freeze "
        "it (`layer.trainable = False`)."
    ),
}
_STATE_ADVICE = (
    "Such state would store data without clipping and noise. Remove the layer, make "
    "it stateless (`stateful=False`), or freeze it (`layer.trainable = False`)."
)


def checked_engine(optimizer, objective, row_specs, model=None, strategy=None):
    """Refuses what cannot be trained privately, then chooses the engine.

    Args:
        optimizer: The `PrivateUpdate` whose settings count.
        objective: What will be differentiated.
        row_specs: Nested `tf.TensorSpec`s of a batch.
        model: The model behind the objective; `None` for a plain function.
        strategy: The clipping strategy where it is not the optimizer's own.

    Returns:
        `(engine, reason)`, as `choose_engine`.
    """
    if model is not None:
        validate_variables(model)
    validate_state_writes(objective, row_specs, model)
    return choose_engine(
        optimizer.engine_name,
        strategy or optimizer.strategy,
        optimizer.physical_batch_size,
        objective,
        row_specs,
    )


def validate_variables(model):
    """Raises if Keras would write gradients into a variable directly."""
    for variable in model.trainable_variables:
        if _keras.overwritten_with_gradient(variable):
            raise UnsupportedLayerError(
                f"Variable {variable.path!r} is overwritten with its raw gradient "
                "(float8 training), which bypasses clipping and noise. Use the "
                "'float32', 'mixed_bfloat16' or 'mixed_float16' dtype policy."
            )


def validate_state_writes(objective, row_specs, model=None):
    """Raises if computing the loss of one example writes a variable.

    The forward pass is traced on one row, and the graph is searched for writes to
    anything but random seeds and metrics.

    Args:
        objective: What will be differentiated.
        row_specs: Nested `tf.TensorSpec`s of a batch.
        model: Names the layer in the message; `None` for a plain function.

    Raises:
        UnsupportedLayerError: Naming the layer and variable, and the way out.
    """
    leaves = tf.nest.flatten(row_specs)

    @tf.function(autograph=False)
    def forward(*tensors):
        tensors = iter(tensors)
        row = tf.nest.pack_sequence_as(
            row_specs, [None if leaf is None else next(tensors) for leaf in leaves]
        )
        return objective.example_loss(row)[0]

    with tf.init_scope():
        graph = forward.get_concrete_function(
            *(
                tf.TensorSpec([1, *leaf.shape[1:]], leaf.dtype)
                for leaf in leaves
                if leaf is not None
            )
        ).graph
    allowed = [v for v in graph.variables if _is_random_seed(v)]
    if model is not None:
        allowed += [variable.value for variable in model.metrics_variables]
    for handle in written_variables(graph):
        if not any(handle is variable.handle for variable in allowed):
            raise UnsupportedLayerError(_describe(handle, graph, model))


def written_variables(graph):
    """Returns the outer handles of all variables that a `FuncGraph` may write."""
    written = []
    inner_to_outer = {id(inner): outer for outer, inner in graph.captures}
    for operation in graph.get_operations():
        if operation.type in _READS:
            continue
        read_only = set()
        if "_read_only_resource_inputs" in operation.node_def.attr:
            read_only = set(operation.get_attr("_read_only_resource_inputs"))
        for index, tensor in enumerate(operation.inputs):
            if tensor.dtype == tf.resource and index not in read_only:
                outer = inner_to_outer.get(id(tensor))
                if outer is not None:
                    written.append(outer)
    return written


def _is_random_seed(variable):
    return "seed_generator_state" in variable.name


def _describe(handle, graph, model):
    if model is not None:
        for layer in reversed(_keras.layers_of(model)):
            for variable in [
                *layer.non_trainable_variables,
                *layer.trainable_variables,
            ]:
                if variable.value.handle is handle:
                    advice = _STATE_ADVICE
                    for cls in type(layer).__mro__:
                        advice = _ADVICE.get(cls.__name__, advice)
                    return (
                        f"Layer {layer.name!r} ({type(layer).__name__}) writes its "
                        f"variable {variable.path!r} from the training data. {advice}"
                    )
    return (
        "Computing the loss writes a variable from the training data "
        f"(resource {handle!r}). {_STATE_ADVICE}"
    )
