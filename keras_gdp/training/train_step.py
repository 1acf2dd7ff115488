"""The private training step."""

import weakref

import keras
import tensorflow as tf

from keras_gdp.clipping.objective import as_tensors, num_rows, same_rows, specs_of
from keras_gdp.errors import PrivacyError
from keras_gdp.training import _keras
from keras_gdp.training.objective import (
    model_objective,
    present_rows,
    regularizer_gradients,
)
from keras_gdp.training.validate import checked_engine

__all__ = ["forget_engines", "train_step"]


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
    _check_targets(model, batch[1])
    rows = num_rows(batch)
    optimizer.resolve_batch_size(rows if isinstance(rows, int) else None)
    _keras.build(model, batch)
    if not model.trainable_variables:
        raise ValueError(
            f"Model {model.name!r} must have trainable weights. Received: none. Add "
            "layers with weights, or set `layer.trainable = True`."
        )
    objective, outputs = model_objective(model, _loss_scale(model, optimizer))
    specs = specs_of(batch)
    optimizer.prepare_clipping(model.trainable_variables, objective, specs)
    engine = _validated_engine(model, optimizer, objective, outputs, specs)
    present = present_rows(batch[2], rows)
    if (same := same_rows(batch)) is not None:
        present = _refused_unless(same, present)
    clipped = engine.clip(objective, batch, present)
    penalty, penalty_gradients = regularizer_gradients(model)
    optimizer.apply_clipped_sum(clipped, model.trainable_variables, penalty_gradients)
    return _metrics(model, batch, present, clipped, outputs, penalty)


def _refused_unless(same, present):
    """Returns the present rows: none, where the step cannot fail, of an odd batch."""
    message = (
        "All tensors of a batch must have the same number of rows. Check that inputs, "
        "targets and sample weights are batched alike."
    )
    with tf.control_dependencies([tf.debugging.Assert(same, [message])]):
        return tf.logical_and(present, same)


def _check_targets(model, y):
    """Raises if the compiled loss needs targets and there are none."""
    losses = [loss for loss in keras.tree.flatten(model.loss) if loss is not None]
    own = type(model).compute_loss is not keras.Model.compute_loss
    if y is None and losses and not own:
        raise ValueError(
            f"Argument `y` of `fit` is missing: model {model.name!r} is compiled with "
            f"loss={model.loss!r}, which compares predictions with targets. Received: "
            "y=None. Pass `y=`, or serve `(x, y)` batches; for a loss without targets "
            "use `add_loss` in the model, and compile without `loss`."
        )


def _validated_engine(model, optimizer, objective, outputs, specs):
    """Returns the engine for this model and batch, checked once per kind of batch."""
    key = (
        id(model),
        str(specs),
        tuple(id(variable) for variable in model.trainable_variables),
        tuple(layer.trainable for layer in _keras.layers_of(model)),
    )
    engines = _ENGINES.setdefault(optimizer, {})
    if key not in engines:
        engines[key], _ = checked_engine(optimizer, objective, specs, model, outputs)
    return engines[key]


_ENGINES = weakref.WeakKeyDictionary()


def forget_engines(optimizer):
    """Has every kind of batch checked again, as the loss or the model may differ."""
    _ENGINES.pop(optimizer, None)


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
    losses = clipped.losses if penalty is None else clipped.losses + penalty
    _keras.update_loss_tracker(model, losses, tf.cast(present, tf.float32))
    y_pred, updates = outputs.unflatten(clipped.outputs)
    shown = (*batch, y_pred, [(args, kwargs) for _, args, kwargs in updates])
    if batch[2] is not None:
        # Keras' unweighted metrics would count padding rows.
        shown = keras.tree.map_structure(
            lambda leaf: None if leaf is None else _select(leaf, present), shown
        )
    x, y, sample_weight, y_pred, values = shown
    for (metric, _, _), (args, kwargs) in zip(updates, values, strict=True):
        metric.update_state(*args, **kwargs)
    return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def _select(leaf, present):
    selected = tf.boolean_mask(leaf, present)
    mask = _keras.keras_mask(leaf)
    if mask is not None:
        _keras.set_keras_mask(selected, tf.boolean_mask(mask, present))
    return selected
