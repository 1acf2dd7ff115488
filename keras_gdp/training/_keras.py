"""The only file that touches Keras' private names.

Tested with Keras 3.15 on TensorFlow 2.21. Names used: `Model._loss_tracker`,
`Model._get_own_metrics`, `Model._compute_loss`, `Model._compile_loss` with its
`_flat_losses`, a loss's `_fn_kwargs`, `Model._call_has_training_arg`,
`Model._symbolic_build`, `Layer._flatten_layers`, `Layer._metrics`, a metric's
`update_state` as an attribute of the instance, tensors' `_keras_mask`,
`LossScaleOptimizer.inner_optimizer`, `Variable.overwrite_with_gradient`.
"""

import contextlib
import functools

import keras
import tensorflow as tf

from keras_gdp.clipping.vectorize import vectorized_map
from keras_gdp.training.interface import PrivateUpdate

__all__ = [
    "all_metrics",
    "call_model",
    "children_of",
    "has_metrics_inside",
    "has_own_train_step",
    "install_hooks",
    "keras_mask",
    "layers_of",
    "loss_function",
    "loss_scale_of",
    "map_rows",
    "only_loss",
    "private_optimizer",
    "record_metric_updates",
    "set_keras_mask",
    "without_regularizers",
]


def private_optimizer(model):
    """Returns the model's private optimizer, also inside a wrapper, or `None`."""
    optimizer = getattr(model, "optimizer", None)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return optimizer if isinstance(optimizer, PrivateUpdate) else None


def has_own_train_step(model):
    """Whether the class of a model overrides `train_step`."""
    return type(model).train_step is not keras.Model.train_step


def loss_scale_of(model):
    """Returns the initial scale of the model's `LossScaleOptimizer`, or 1."""
    return float(getattr(model.optimizer, "initial_scale", 1.0))


def build(model, batch):
    """Creates the variables of model, loss, metrics and optimizer, if need be."""
    with tf.init_scope():
        model._symbolic_build(data_batch=batch)


def call_model(model, x, training=True):
    """Calls the model as Keras' training step does, or as `predict` does."""
    if model._call_has_training_arg:
        return model(x, training=training)
    return model(x)


def compute_loss(model, x, y, y_pred, sample_weight):
    """Computes the compiled loss as Keras' training step does."""
    return model._compute_loss(
        x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True
    )


def only_loss(model):
    """Returns the `Loss` that is all there is to a model's loss, or `None`.

    It is `None` where there are several, or none, or one of them is computed by code
    that is not Keras' own.
    """
    replaced = {"compute_loss", "_compute_loss"} & set(vars(model))
    own = type(model).compute_loss is not keras.Model.compute_loss
    losses = getattr(model._compile_loss, "_flat_losses", None) or []
    if own or replaced or len(losses) != 1:
        return None
    loss = losses[0].loss
    as_keras = keras.losses.MeanSquaredError
    if (
        losses[0].path
        or type(loss).call is not as_keras.call
        or type(loss).__call__ is not as_keras.__call__
        or "call" in vars(loss)
    ):
        return None
    return loss


def loss_function(loss):
    """Returns the function of targets and predictions in a loss, and its arguments."""
    return loss.fn, loss._fn_kwargs


def update_loss_tracker(model, values, sample_weight):
    """Adds per-example losses to the mean that Keras shows as `loss`."""
    model._loss_tracker.update_state(values, sample_weight=sample_weight)


def all_metrics(model):
    """Returns every metric that the training of a model may update, each once."""
    found = [*model.metrics, *model._get_own_metrics()]
    for layer in model._flatten_layers():
        found.extend(layer._metrics)
    return list({id(metric): metric for metric in found}.values())


def has_metrics_inside(model):
    """Whether the model itself or a layer keeps metrics that `call` can reach."""
    return any(layer._metrics for layer in model._flatten_layers())


@contextlib.contextmanager
def record_metric_updates(model):
    """Collects the updates of the model's metrics instead of making them.

    Inside a per-example function they would run once per example, or not at all; the
    values are collected instead and added once, outside.

    Yields:
        A list that receives `(metric, args, kwargs)` for each call of `update_state`.
    """
    recorded = []

    def recorder(metric):
        def update_state(*args, **kwargs):
            recorded.append((metric, args, kwargs))

        return update_state

    metrics = all_metrics(model)
    for metric in metrics:
        vars(metric)["update_state"] = recorder(metric)
    try:
        yield recorded
    finally:
        for metric in metrics:
            del vars(metric)["update_state"]


@contextlib.contextmanager
def without_regularizers(model):
    """Hides the weight regularisers from `model.losses`.

    They depend on no example: their gradient is added after the noise.
    """
    hidden = [
        (variable, variable.regularizer)
        for variable in model.trainable_variables
        if variable.regularizer is not None
    ]
    for variable, _ in hidden:
        variable.regularizer = None
    try:
        yield
    finally:
        for variable, regularizer in hidden:
            variable.regularizer = regularizer


def keras_mask(tensor):
    """Returns the mask that Keras attached to a tensor, or `None`."""
    return getattr(tensor, "_keras_mask", None)


def set_keras_mask(tensor, mask):
    """Attaches a mask to a tensor, as Keras does."""
    tensor._keras_mask = mask


def layers_of(model):
    """Returns the model itself and all layers inside, at any depth."""
    return list(model._flatten_layers())


def children_of(layer):
    """Returns the direct sublayers of a layer."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


def map_rows(function, batch):
    """Applies a function of one row, with a leading axis of length 1, to all rows.

    Masks that Keras attached to the tensors of the batch are there for each row.

    Args:
        function: Takes the rows of the elements of `batch` and returns nested tensors.
        batch: Tuple of nested tensors with a leading axis of rows; keeps `None`.

    Returns:
        The results, stacked along a leading axis.
    """
    leaves = keras.tree.flatten(batch)
    tensors = [leaf for leaf in leaves if leaf is not None]
    masks = [keras_mask(tensor) for tensor in tensors]

    def one_row(elements):
        rows, row_masks = elements
        row_masks = iter(row_masks)
        rows = [row[None] for row in rows]
        for row, mask in zip(rows, masks, strict=True):
            if mask is not None:
                set_keras_mask(row, next(row_masks)[None])
        rows = iter(rows)
        return function(
            *keras.tree.pack_sequence_as(
                batch, [None if leaf is None else next(rows) for leaf in leaves]
            )
        )

    return vectorized_map(
        one_row, (tensors, [mask for mask in masks if mask is not None])
    )


def overwritten_with_gradient(variable) -> bool:
    """Whether Keras assigns the gradient itself to this variable (float8 scales)."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def install_hooks(train_step, fitting, stepping, compiled, training_without_privacy):
    """Makes `keras.Model` take the private step for private optimizers.

    Args:
        train_step: Called as `train_step(model, data)` instead of Keras' own where
            the model's optimizer is private.
        fitting: Context manager around a private `fit`, called as
            `fitting(model, optimizer, x, y, batch_size, ...)` with its arguments.
        stepping: Context manager around a private `train_on_batch`, called as
            `stepping(model, optimizer)`.
        compiled: Called as `compiled(model, previous)` after `compile`, with the
            private optimizer that the model had before, or `None`.
        training_without_privacy: Called as `training_without_privacy(model)` before
            a `fit` or `train_on_batch` with an ordinary optimizer.
    """
    if getattr(keras.Model.train_step, "keras_gdp", False):
        return
    keras_train_step = keras.Model.train_step

    @functools.wraps(keras_train_step)
    def private_or_plain_step(self, data):
        if private_optimizer(self) is None:
            return keras_train_step(self, data)
        return train_step(self, data)

    def within(keras_method, context):
        @functools.wraps(keras_method)
        def private_or_plain(self, *args, **kwargs):
            optimizer = private_optimizer(self)
            if optimizer is None:
                training_without_privacy(self)
                return keras_method(self, *args, **kwargs)
            with context(self, optimizer, *args, **kwargs):
                return keras_method(self, *args, **kwargs)

        return private_or_plain

    # Loading compares `compile` with that of the class that defines it.
    definer = next(c for c in keras.Model.__mro__ if "compile" in vars(c))
    keras_compile = definer.compile

    @functools.wraps(keras_compile)
    def inheriting_compile(self, *args, **kwargs):
        previous = private_optimizer(self)
        keras_compile(self, *args, **kwargs)
        compiled(self, previous)

    definer.compile = inheriting_compile
    keras.Model.train_step = tf.autograph.experimental.do_not_convert(
        private_or_plain_step
    )
    keras.Model.train_step.keras_gdp = True
    keras.Model.fit = within(keras.Model.fit, fitting)
    keras.Model.train_on_batch = within(
        keras.Model.train_on_batch,
        lambda model, optimizer, *_, **__: stepping(model, optimizer),
    )
