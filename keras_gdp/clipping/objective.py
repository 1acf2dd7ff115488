"""What one private step differentiates."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

__all__ = [
    "BatchedLoss",
    "Objective",
    "as_tensors",
    "leaves_of",
    "num_rows",
    "rows_of",
    "same_rows",
    "specs_of",
    "with_leaves",
]


@dataclass(frozen=True)
class BatchedLoss:
    """The losses of all rows from one forward pass, for engines that need no more.

    Attributes:
        losses: Maps a batch of rows to `(losses, outputs)`: a tensor of shape (rows,)
            and a list of tensors with a leading axis of rows. The loss of a row is
            meant to depend on that row alone, which is for the engine to check.
        children_of: Maps a layer to the list of its direct sublayers.
    """

    losses: Callable
    children_of: Callable


@dataclass(frozen=True)
class Objective:
    """A loss per example, and the variables it is differentiated by.

    Attributes:
        example_loss: Maps one row of the batch, with a leading axis of length 1, to
            `(loss, outputs)`: a scalar tensor, and a list of tensors that keep the
            leading axis.
        variables: The trainable variables, as `tf.Variable`s.
        loss_scale: Factor applied to the loss before and divided out after
            differentiation, against underflow in half precision.
        model: The Keras model behind `example_loss`, or `None` for a plain function.
        batched: The same losses from one forward pass of the model, or `None`.
    """

    example_loss: Callable
    variables: list
    loss_scale: float = 1.0
    model: Any = None
    batched: BatchedLoss | None = None

    def example_gradient(self, row):
        """Returns `(loss, outputs, gradients)` of one row.

        The gradients are dense, float32 or wider, and zero for a variable that the
        loss does not use.
        """
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self.variables)
            loss, outputs = self.example_loss(row)
            scaled = loss * tf.cast(self.loss_scale, loss.dtype)
        gradients = tape.gradient(scaled, self.variables)
        return (
            loss,
            outputs,
            [
                _dense(gradient, variable) / tf.cast(self.loss_scale, _wide(variable))
                for gradient, variable in zip(gradients, self.variables, strict=True)
            ],
        )


def _wide(variable):
    return tf.float64 if variable.dtype == tf.float64 else tf.float32


def _dense(gradient, variable):
    if gradient is None:
        return tf.zeros(variable.shape, _wide(variable))
    return tf.cast(tf.convert_to_tensor(gradient), _wide(variable))


def as_tensors(batch):
    """Converts the leaves of a nested batch to tensors; keeps `None`."""
    return tf.nest.map_structure(
        lambda leaf: (
            leaf
            if leaf is None or isinstance(leaf, tf.__internal__.CompositeTensor)
            else tf.convert_to_tensor(leaf)
        ),
        batch,
    )


def leaves_of(batch):
    """Returns the leaves of a nested batch as a list, without `None`."""
    return [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]


def with_leaves(batch, leaves):
    """Returns a batch nested like another one, `None` where that has `None`."""
    leaves = iter(leaves)
    return tf.nest.map_structure(
        lambda leaf: None if leaf is None else next(leaves), batch
    )


def specs_of(batch):
    """Returns the nested `tf.TensorSpec`s of a nested batch; keeps `None`."""
    return tf.nest.map_structure(
        lambda leaf: None if leaf is None else tf.TensorSpec(leaf.shape, leaf.dtype),
        batch,
    )


def num_rows(batch):
    """Returns the static number of rows of a nested batch, else a scalar tensor."""
    leaves = leaves_of(batch)
    if not leaves:
        raise ValueError(
            "A batch must hold at least one tensor with a leading axis of examples. "
            "Received none. Pass the inputs, such as `x` or `(x, y)`."
        )
    for leaf in leaves:
        if not isinstance(leaf, tf.Tensor):
            raise ValueError(
                "Private training takes batches of dense tensors. Received: "
                f"{type(leaf).__name__}. Convert ragged or sparse features to dense "
                "ones (`.to_tensor()`, `tf.sparse.to_dense`) in the data pipeline."
            )
        if leaf.shape.rank == 0:
            raise ValueError(
                "Each tensor of a batch needs a leading axis of examples. "
                f"Received a scalar: {leaf}. Repeat it for every example, or keep it "
                "out of the batch."
            )
    static = {leaf.shape[0] for leaf in leaves} - {None}
    if len(static) > 1:
        raise ValueError(
            "All tensors of a batch must have the same number of rows. "
            f"Received leading sizes {sorted(static)}. Batch inputs, targets and "
            "sample weights alike."
        )
    return static.pop() if static else tf.shape(leaves[0])[0]


def same_rows(batch):
    """Returns whether all tensors have as many rows; `None` if that is static.

    A tensor of one row, the labels say, would be broadcast to all examples.
    """
    leaves = leaves_of(batch)
    if None not in {leaf.shape[0] for leaf in leaves}:
        return None
    sizes = tf.stack([tf.shape(leaf)[0] for leaf in leaves])
    return tf.reduce_all(tf.equal(sizes, sizes[0]))


def rows_of(batch, begin, end):
    """Returns rows `begin:end` of every tensor of a nested batch; keeps `None`."""
    return tf.nest.map_structure(
        lambda leaf: None if leaf is None else leaf[begin:end], batch
    )
