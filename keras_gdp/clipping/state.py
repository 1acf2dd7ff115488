"""Finds what a traced function writes."""

import tensorflow as tf

__all__ = ["random_seeds", "written_state"]

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


def written_state(graph, allowed=()):
    """Returns the outer handles of the variables that a `FuncGraph` may write.

    The state of Keras' random generators is left out.

    Args:
        graph: The graph of a traced function.
        allowed: Variables that it may write.
    """
    free = [variable.handle for variable in (*random_seeds(graph), *allowed)]
    return [
        handle
        for handle in _written(graph)
        if not any(handle is other for other in free)
    ]


def _written(graph):
    """The same with all variables."""
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


def random_seeds(graph):
    """Returns the states of Keras' random generators in a graph, as variables."""
    return [v for v in graph.variables if "seed_generator_state" in v.name]
