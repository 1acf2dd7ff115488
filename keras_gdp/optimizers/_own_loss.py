"""The objective of a training loop of the user's own, checked."""

import keras
import tensorflow as tf

from keras_gdp.clipping import Objective
from keras_gdp.clipping.objective import as_tensors, num_rows

__all__ = [
    "check_loss_function",
    "checked_batch",
    "checked_variables",
    "own_objective",
    "row_weights",
]


def own_objective(loss_fn, variables):
    """Returns the `Objective` of rows `(example, weight)`; its output is the loss.

    Args:
        loss_fn: Maps one example, without a batch axis, to a scalar.
        variables: List of variables.
    """

    def example_loss(row):
        example, weight = tf.nest.map_structure(
            lambda leaf: None if leaf is None else leaf[0], row
        )
        loss = _checked_loss(loss_fn(example))
        return loss * tf.cast(weight, loss.dtype), [loss[None]]

    values = [v.value if isinstance(v, keras.Variable) else v for v in variables]
    return Objective(example_loss, values)


def _checked_loss(loss):
    if loss is None:
        raise ValueError(
            "`loss_fn` must return a scalar for one example. Received: None. "
            "End it with `return loss`."
        )
    loss = tf.convert_to_tensor(loss)
    if loss.shape.num_elements() != 1 or not loss.dtype.is_floating:
        raise ValueError(
            "`loss_fn` must return a floating-point scalar for one example. "
            f"Received shape {loss.shape}, dtype {loss.dtype.name}. Reduce the "
            "loss of the example to one number."
        )
    return tf.reshape(loss, [])


def check_loss_function(loss_fn):
    """Raises if `loss_fn` cannot be called."""
    if not callable(loss_fn):
        raise ValueError(
            "Argument `loss_fn` must be a function of one example. Received: "
            f"loss_fn={loss_fn!r}. For a named Keras loss pass a function such as "
            "`lambda example: loss(example[1][None], model(example[0][None]))[0]`."
        )


def checked_variables(variables):
    """Returns the variables as a list."""
    advice = "Pass a list of Keras variables, such as `model.trainable_variables`."
    expected = "Argument `variables` must be a non-empty list of variables. Received"
    kinds = keras.Variable | tf.Variable
    if isinstance(variables, kinds):
        raise ValueError(f"{expected} a single one: {variables!r}. {advice}")
    try:
        listed = list(variables)
    except TypeError:
        raise ValueError(f"{expected}: variables={variables!r}. {advice}") from None
    for variable in listed:
        if not isinstance(variable, kinds):
            raise ValueError(f"{expected} an element {variable!r}. {advice}")
    if not listed:
        raise ValueError(
            f"{expected}: variables={variables!r}. {advice} A model has none before it "
            "is built."
        )
    return listed


def checked_batch(batch):
    """Returns the batch as tensors, and its number of rows."""
    try:
        batch = as_tensors(batch)
        return batch, num_rows(batch)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "Argument `batch` must be a dense tensor, or a nested structure of dense "
            "tensors, with a leading axis of examples, as many in each. Received one "
            f"that is not: {error} Convert lists with `np.asarray`, after padding rows "
            "of different lengths."
        ) from error


def row_weights(sample_weight, rows):
    """Returns the weights of the rows, of shape (rows,); ones for `None`."""
    if sample_weight is None:
        return tf.ones([rows])
    weights = tf.cast(tf.convert_to_tensor(sample_weight), tf.float32)
    if weights.shape.rank == 2 and weights.shape[1] == 1:
        weights = weights[:, 0]
    expected = [rows if isinstance(rows, int) else None]
    if not weights.shape.is_compatible_with(expected):
        raise ValueError(
            "Argument `sample_weight` must hold one weight per example, shape "
            f"({expected[0] or 'batch'},). Received shape {weights.shape}. Reduce "
            "weights of parts of an example to one, or use them in `loss_fn`."
        )
    return weights
