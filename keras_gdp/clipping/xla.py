"""Whether a graph is traced for XLA, where other operations are fast.

Beside `vectorize.py` the only file that touches TensorFlow's private names:
`GraphOrParentsInXlaContext`, which TensorFlow itself asks before it builds loops.
"""

import tensorflow as tf

__all__ = ["traced_for_xla"]


def traced_for_xla() -> bool:
    """Whether the current graph is part of a `tf.function(jit_compile=True)`."""
    from tensorflow.python.ops import control_flow_util

    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))
