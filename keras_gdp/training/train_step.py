"""The private training step, and what `fit` declares before it."""

import inspect

import keras
import tensorflow as tf

from keras_gdp.clipping.choose import choose_engine
from keras_gdp.clipping.objective import num_rows
from keras_gdp.data import SampledDataset
from keras_gdp.errors import PrivacyError
from keras_gdp.sampling import Sampling
from keras_gdp.training import _keras
from keras_gdp.training.objective import (
    model_objective,
    present_rows,
    regularizer_gradients,
)
from keras_gdp.training.validate import validate_state_writes, validate_variables

__all__ = ["after_fit", "before_fit", "train_step"]


def train_step(model, data):
    """Runs one private step; stands in for `keras.Model.train_step`.

    One forward pass per example gives loss, metrics and gradients; the clipped sum
    goes to the optimizer, which adds the noise.
    """
    optimizer = _keras.private_optimizer(model)
    x, y, sample_weight = batch = keras.utils.unpack_x_y_sample_weight(data)
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        raise PrivacyError(
            "Private training runs on one replica: several would each add their own "
            "noise and clip their own part. Received a distribution strategy with "
            f"{tf.distribute.get_strategy().num_replicas_in_sync} replicas. Train "
            "outside of `strategy.scope()`."
        )
    batch = _to_tensors(batch)
    x, y, sample_weight = batch
    rows = num_rows(batch)
    optimizer.resolve_batch_size(rows if isinstance(rows, int) else None)
    _keras.build_optimizer(model)
    scale = _keras.loss_scale_of(model) / optimizer.nominal_batch_size()
    objective, outputs = model_objective(model, max(scale, 1.0))
    validate_variables(model)
    specs = _specs(batch)
    validate_state_writes(objective, specs, model)
    engine, _ = choose_engine(
        optimizer.engine_name,
        optimizer.strategy,
        optimizer.physical_batch_size,
        objective,
        specs,
    )
    present = present_rows(sample_weight, rows)
    clipped = engine.clip(objective, batch, present)
    penalty, penalty_gradients = regularizer_gradients(model)
    optimizer.apply_clipped_sum(clipped, model.trainable_variables, penalty_gradients)
    return _metrics(model, batch, present, clipped, outputs, penalty)


def _metrics(model, batch, present, clipped, outputs, penalty):
    y_pred, single_losses = outputs.unflatten(clipped.outputs)
    weight = tf.cast(present, tf.float32)
    _keras.update_loss_tracker(model, clipped.losses + penalty, weight)
    for metric, losses in zip(
        _keras.single_loss_metrics(model), single_losses, strict=True
    ):
        metric.update_state(losses, sample_weight=weight)
    x, y, sample_weight = batch
    if sample_weight is not None:
        # Keras' unweighted metrics would count padding rows.
        x, y, y_pred, sample_weight = keras.tree.map_structure(
            lambda leaf: None if leaf is None else _select(leaf, present),
            (x, y, y_pred, sample_weight),
        )
    return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def _select(leaf, present):
    selected = tf.boolean_mask(leaf, present)
    mask = _keras.keras_mask(leaf)
    if mask is not None:
        _keras.set_keras_mask(selected, tf.boolean_mask(mask, present))
    return selected


def _to_tensors(batch):
    return keras.tree.map_structure(
        lambda leaf: (
            leaf
            if leaf is None or isinstance(leaf, tf.__internal__.CompositeTensor)
            else tf.convert_to_tensor(leaf)
        ),
        batch,
    )


def _specs(batch):
    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else tf.TensorSpec(leaf.shape, leaf.dtype),
        batch,
    )


def before_fit(model, optimizer, *args, **kwargs):
    """Declares to the optimizer how `fit` is going to draw its batches."""
    call = inspect.signature(keras.Model.fit).bind(model, *args, **kwargs)
    call.apply_defaults()
    x, batch_size = call.arguments["x"], call.arguments["batch_size"]
    if isinstance(x, SampledDataset):
        if call.arguments["class_weight"] is not None:
            raise ValueError(
                "Argument `class_weight` of `fit` cannot be combined with a "
                f"{type(x).__name__}, whose batches carry sample weights. Pass "
                "`sample_weight=` to the dataset instead, one weight per example."
            )
        optimizer.bind(x.sampling, x.batch_size, source=x)
        return
    length = _array_length(x)
    if length is None:
        optimizer.bind(Sampling("unknown"), source=x)
        return
    split = call.arguments["validation_split"]
    if split and call.arguments["validation_data"] is None:
        length = int(length * (1.0 - split))
    steps = call.arguments["steps_per_epoch"]
    if batch_size is None:
        batch_size = -(-length // steps) if steps else 32
    if batch_size > length:
        if optimizer.batch_size is None:
            raise ValueError(
                "Argument `batch_size` must not exceed the number of examples. "
                f"Received: batch_size={batch_size} with {length} examples (`fit` "
                "takes 32 when none is given). Pass `fit(..., batch_size=...)`, or "
                "declare the divisor with `batch_size=` on the optimizer."
            )
        batch_size = length
    optimizer.bind(Sampling("shuffle", batch_size, length), batch_size, source=x)


def after_fit(optimizer):
    """Steps outside of `fit` are charged as if they saw every example."""
    optimizer.bind(Sampling("unknown"))


def _array_length(x):
    leaves = [leaf for leaf in keras.tree.flatten(x) if leaf is not None]
    if leaves and all(hasattr(leaf, "shape") for leaf in leaves):
        return int(leaves[0].shape[0])
    return None
