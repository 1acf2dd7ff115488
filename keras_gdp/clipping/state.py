"""Finds what a traced function writes."""

import tensorflow as tf

__all__ = ["is_random_seed", "written_variables"]

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


def is_random_seed(variable):
    """Whether a variable is the state of one of Keras' random generators."""
    return "seed_generator_state" in variable.name
