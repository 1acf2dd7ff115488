"""Says what the private step will do with a model, and why."""

import keras
import tensorflow as tf

from keras_gdp.clipping.made_up import start_strategy
from keras_gdp.clipping.recording import plan_units
from keras_gdp.errors import PrivacyError, UnsupportedLayerError
from keras_gdp.training import _keras
from keras_gdp.training.coupled_loss import validate_loss
from keras_gdp.training.interface import PrivateUpdate
from keras_gdp.training.objective import model_objective
from keras_gdp.training.validate import checked_engine

__all__ = ["explain_clipping"]


def explain_clipping(model, optimizer=None, *, batch=None) -> str:
    """Describes the clipping of a compiled model, layer by layer.

    Args:
        model: A compiled and built Keras model.
        optimizer: The DP optimizer; by default the one the model was compiled with.
        batch: A batch `(x, y)` or `(x, y, sample_weight)` as `fit` would see it;
            needed for models whose input shapes Keras does not know. Without one,
            the loss is looked at with made-up targets, on which not every loss runs.

    Returns:
        A text of several lines: the engine and the reason for it, the clipping, and
        for every layer with trainable weights how its gradient is clipped. A last
        one says why `fit` refuses the loss, where it does.

    Raises:
        UnsupportedLayerError: If the model cannot be trained privately.
        ValueError: If the model is not compiled with a DP optimizer and none is given.
    """
    if not isinstance(model, keras.Model):
        raise ValueError(
            "Argument `model` must be a compiled Keras model. Received: "
            f"model={model!r}. Pass the model itself, after `model.compile(...)`."
        )
    if optimizer is None:
        optimizer = _keras.private_optimizer(model)
    if not isinstance(optimizer, PrivateUpdate):
        if optimizer is None:
            optimizer = getattr(model, "optimizer", None)
        raise ValueError(
            "Argument `optimizer` must be a DP optimizer, such as keras_gdp.DPAdam, or "
            f"`model` compiled with one. Received: optimizer={optimizer!r}. Compile "
            "with one, or pass it."
        )
    loss, guessed = _keras.compute_loss, batch is None
    if guessed:
        batch, loss = (_symbolic_inputs(model),), _stand_in_loss
    specs = keras.tree.map_structure(
        lambda leaf: (
            None
            if leaf is None
            else tf.TensorSpec([None, *leaf.shape[1:]], tf.as_dtype(leaf.dtype))
        ),
        keras.utils.unpack_x_y_sample_weight(batch),
    )
    objective, _ = model_objective(model, compute_loss=loss)
    strategy = _ready_strategy(optimizer, model, objective, specs)
    engine, reason = checked_engine(
        optimizer, objective, specs, model, strategy=strategy
    )
    lines = [
        f"Engine: {engine.name} ({reason}).",
        f"Clipping: {strategy.describe()}.",
    ]
    for layer, how in _handled_layers(model, engine, objective):
        size = sum(v.value.shape.num_elements() for v in layer.trainable_variables)
        lines.append(f"  {layer.name} ({type(layer).__name__}): {size} weights, {how}")
    frozen = sum(v.value.shape.num_elements() for v in model.non_trainable_variables)
    if frozen:
        lines.append(f"  {frozen} frozen or non-trainable weights get no gradient")
    targets = _likely_targets(model, specs[0]) if guessed else [specs[1]]
    refusal = _refusal_of_loss(model, specs[0], targets)
    if refusal:
        how = " (told with made-up targets)" if guessed else ""
        lines.append(f"Loss: refused by `fit`{how}. {refusal}")
    return "\n".join(lines)


def _refusal_of_loss(model, x_specs, targets):
    """Returns why `fit` would refuse the compiled loss, or an empty text."""
    for y_specs in targets:
        try:
            validate_loss(model, (x_specs, y_specs, None))
        except UnsupportedLayerError as error:
            return str(error)
    return ""


def _likely_targets(model, x_specs):
    """Returns specs of targets like the predictions, of labels, and of none.

    The check moves predictions alone, so that targets of another shape than the loss
    is meant for do not make it couple examples; where it fails, it says nothing.
    """
    try:
        y_pred = model.compute_output_spec(
            keras.tree.map_structure(
                lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), x_specs
            )
        )
    except Exception:  # Its predictions are not known without data.
        return [None]
    return [
        keras.tree.map_structure(
            lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), y_pred
        ),
        keras.tree.map_structure(lambda leaf: tf.TensorSpec([None], tf.int32), y_pred),
        None,
    ]


def _ready_strategy(optimizer, model, objective, specs):
    """Returns the optimizer's strategy, or a copy that is ready for the model."""
    if optimizer.built:
        optimizer.prepare_clipping(model.trainable_variables, objective, specs)
        return optimizer.strategy
    strategy = optimizer.strategy.owned_copy()
    strategy.build(
        model.trainable_variables,
        lambda shape, initializer, name: keras.Variable(
            initializer, shape, dtype="float32", trainable=False, name=name
        ),
    )
    start_strategy(strategy, objective, specs)
    return strategy


_HOW = {
    "loop": "differentiated one example at a time",
    "vectorized": "differentiated for all examples at once (tf.vectorized_map)",
}


def _handled_layers(model, engine, objective):
    """Returns pairs of a layer and a text."""
    if engine.needs_isolation:
        return [(unit.layer, unit.rule.text) for unit in plan_units(objective)]
    return [
        (layer, _HOW[engine.name])
        for layer in _keras.layers_of(model)
        if any(_owned_by(layer, v) for v in layer.trainable_variables)
    ]


def _owned_by(layer, variable):
    return not any(
        variable is inner
        for child in _keras.layers_of(layer)[1:]
        for inner in child.trainable_variables
    )


def _stand_in_loss(model, x, y, y_pred, sample_weight):
    """Uses all predictions; targets are not known without a batch."""
    del x, y, sample_weight
    return tf.add_n(
        [
            tf.reduce_sum(tf.square(tf.cast(p, "float32")))
            for p in tf.nest.flatten(y_pred)
        ]
        + [tf.cast(loss, "float32") for loss in model.losses]
    )


def _symbolic_inputs(model):
    try:
        inputs = keras.tree.map_structure(
            lambda t: keras.KerasTensor([None, *t.shape[1:]], t.dtype), model.inputs
        )
        struct = getattr(model, "_inputs_struct", None)
    except (AttributeError, ValueError) as error:
        raise PrivacyError(
            "The input shapes of this model are not known. Pass `batch=` with one "
            "batch of training data."
        ) from error
    x = inputs if struct is None else keras.tree.pack_sequence_as(struct, inputs)
    return x[0] if isinstance(x, list) and len(x) == 1 else x
