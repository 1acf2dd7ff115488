"""The private training step, and what `fit` declares before it."""

import inspect
import weakref

import keras
import tensorflow as tf

from keras_gdp.clipping.objective import as_tensors, num_rows, specs_of
from keras_gdp.data import SampledDataset
from keras_gdp.errors import PrivacyError
from keras_gdp.sampling import Sampling
from keras_gdp.training import _keras
from keras_gdp.training.interface import Fitted
from keras_gdp.training.objective import (
    model_objective,
    present_rows,
    regularizer_gradients,
)
from keras_gdp.training.validate import checked_engine

__all__ = ["after_fit", "before_fit", "train_step"]


def train_step(model, data):
    """Runs one private step; stands in for `keras.Model.train_step`.

    One forward pass per example gives loss, metrics and gradients; the clipped sum
    goes to the optimizer, which adds the noise.
    """
    optimizer = _keras.private_optimizer(model)
    batch = as_tensors(keras.utils.unpack_x_y_sample_weight(data))
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        raise PrivacyError(
            "Private training runs on one replica: several would each add their own "
            "noise and clip their own part. Received a distribution strategy with "
            f"{tf.distribute.get_strategy().num_replicas_in_sync} replicas. Train "
            "outside of `strategy.scope()`."
        )
    rows = num_rows(batch)
    optimizer.resolve_batch_size(rows if isinstance(rows, int) else None)
    _keras.build(model, batch)
    if not model.trainable_variables:
        raise ValueError(
            f"Model {model.name!r} has no trainable weights: there is nothing to train."
        )
    objective, outputs = model_objective(model, _loss_scale(model, optimizer))
    specs = specs_of(batch)
    optimizer.prepare_clipping(model.trainable_variables, objective, specs)
    engine = _validated_engine(model, optimizer, objective, specs)
    present = present_rows(batch[2], rows)
    clipped = engine.clip(objective, batch, present)
    penalty, penalty_gradients = regularizer_gradients(model)
    optimizer.apply_clipped_sum(clipped, model.trainable_variables, penalty_gradients)
    return _metrics(model, batch, present, clipped, outputs, penalty)


def _validated_engine(model, optimizer, objective, specs):
    """Returns the engine for this model and batch, checked once per kind of batch."""
    key = (
        id(model),
        str(specs),
        tuple(id(variable) for variable in model.trainable_variables),
        tuple(layer.trainable for layer in _keras.layers_of(model)),
    )
    engines = _ENGINES.setdefault(optimizer, {})
    if key not in engines:
        engines[key], _ = checked_engine(optimizer, objective, specs, model)
    return engines[key]


_ENGINES = weakref.WeakKeyDictionary()


def _loss_scale(model, optimizer):
    """Returns the fixed factor on each example's loss under 'mixed_float16'.

    A scale that adapts to overflows would depend on the data without noise. The
    start value over the batch size gives each example the weight that it has in
    Keras' mean; an example that overflows nevertheless counts as zero.
    """
    scale = _keras.loss_scale_of(model) / optimizer.nominal_batch_size()
    return min(max(scale, 1.0), _MAX_LOSS_SCALE)


_MAX_LOSS_SCALE = 256.0


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
        _declare(optimizer, x, x.sampling)
        return
    length = _array_length(x)
    if length is None:
        _declare(optimizer, x, None)
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
    _declare(optimizer, x, Sampling("shuffle", batch_size, length))


def _declare(optimizer, source, sampling):
    optimizer.fitted = Fitted(source, sampling)
    if sampling is None:
        optimizer.bind(Sampling("unknown"))
    else:
        optimizer.bind(sampling, sampling.batch_size)


def after_fit(optimizer):
    """Steps outside of `fit` are charged as if they saw every example."""
    optimizer.fitted = None
    optimizer.bind(Sampling("unknown"))


def _array_length(x):
    leaves = [leaf for leaf in keras.tree.flatten(x) if leaf is not None]
    if leaves and all(hasattr(leaf, "shape") for leaf in leaves):
        return int(leaves[0].shape[0])
    return None
