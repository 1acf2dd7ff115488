"""Refuses what would carry raw data past the noise."""

import tensorflow as tf

from keras_gdp.clipping.choose import choose_engine
from keras_gdp.clipping.objective import leaves_of, with_leaves
from keras_gdp.clipping.state import written_state
from keras_gdp.errors import UnsupportedLayerError
from keras_gdp.training import _keras
from keras_gdp.training.coupled_loss import validate_loss

__all__ = [
    "checked_engine",
    "validate_state",
    "validate_variables",
]

_ADVICE = {
    "BatchNormalization": (
        "Its moving statistics would store features of single examples without "
        "noise, and its batch statistics mix examples. Use "
        "keras.layers.GroupNormalization or LayerNormalization instead, or freeze "
        "it (`layer.trainable = False`)."
    ),
}
_STATE_ADVICE = (
    "Such state would store data without clipping and noise. Remove the layer, make "
    "it stateless (`stateful=False`), or freeze it (`layer.trainable = False`)."
)


def checked_engine(
    optimizer, objective, row_specs, model=None, outputs=None, *, strategy=None
):
    """Refuses what cannot be trained privately, then chooses the engine.

    Args:
        optimizer: The `PrivateUpdate` whose settings count.
        objective: What will be differentiated.
        row_specs: Nested `tf.TensorSpec`s of a batch.
        model: The model behind the objective; `None` for a plain function.
        outputs: The `ModelOutputs` of the objective, to trace the model's metrics as
            well; `None` where targets are not known.
        strategy: The clipping strategy where it is not the optimizer's own.

    Returns:
        `(engine, reason)`, as `choose_engine`.
    """
    if model is not None:
        validate_variables(model)
    validate_state(objective, row_specs, model, outputs)
    if outputs is not None:
        validate_loss(model, row_specs)
    return choose_engine(
        optimizer.engine_name,
        strategy or optimizer.strategy,
        optimizer.physical_batch_size,
        objective,
        row_specs,
    )


def validate_variables(model):
    """Raises if Keras would write gradients into a variable directly."""
    for variable in model.trainable_variables:
        if _keras.overwritten_with_gradient(variable):
            raise UnsupportedLayerError(
                f"Variable {variable.path!r} is overwritten with its raw gradient "
                "(float8 training), which bypasses clipping and noise. Use the "
                "'float32', 'mixed_bfloat16' or 'mixed_float16' dtype policy."
            )


def validate_state(objective, row_specs, model=None, outputs=None):
    """Raises if data could leave the step other than through the noised gradient.

    Loss and metrics of one example are traced, and the graph is searched for writes
    to anything but random seeds and metrics, and for metrics that the loss or the
    predictions read.

    Args:
        objective: What will be differentiated.
        row_specs: Nested `tf.TensorSpec`s of a batch.
        model: The model behind it; `None` for a plain function.
        outputs: The `ModelOutputs` of the objective, to trace the model's metrics as
            well; `None` where targets are not known.

    Raises:
        UnsupportedLayerError: Naming the layer and variable, and the way out.
    """

    def training(row):
        loss, tensors = objective.example_loss(row)
        if outputs is not None:
            x, y, sample_weight = row
            y_pred, _ = outputs.unflatten(tensors)
            model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return [loss, *tensors]

    def prediction(row):
        y_pred = _keras.call_model(model, row[0], training=False)
        return tf.nest.flatten(y_pred)

    graph = _graph_of_one_row(training, row_specs)
    metrics = [] if model is None else _metric_variables(model)
    for handle in written_state(graph, metrics):
        raise UnsupportedLayerError(_describe(handle, graph, model))
    _validate_unread(metrics, graph)
    if model is not None and _keras.has_metrics_inside(model):
        _validate_unread(metrics, _graph_of_one_row(prediction, row_specs))


def _graph_of_one_row(function, row_specs):
    """Returns the graph of a function of one row, which returns a list of tensors."""

    @tf.function(autograph=False)
    def of_tensors(*tensors):
        return function(with_leaves(row_specs, tensors))

    with tf.init_scope():
        return of_tensors.get_concrete_function(
            *(
                tf.TensorSpec([1, *leaf.shape[1:]], leaf.dtype)
                for leaf in leaves_of(row_specs)
            )
        ).graph


def _metric_variables(model):
    return [
        variable.value
        for metric in _keras.all_metrics(model)
        for variable in metric.variables
    ]


def _validate_unread(metrics, graph):
    """Raises if an output of the graph depends on a metric, as on hidden state."""
    handles = {id(variable.handle): variable for variable in metrics}
    captured = {
        inner.name: handles[id(outer)]
        for outer, inner in graph.captures
        if id(outer) in handles
    }
    waiting, seen = list(graph.outputs), set()
    while captured and waiting:
        tensor = waiting.pop()
        if tensor.name in captured:
            raise UnsupportedLayerError(
                "The loss or the predictions read the metric variable "
                f"{captured[tensor.name].name!r}. Metrics hold training data without "
                "noise, so nothing that is trained or predicted may depend on one. "
                "Use metrics for display only."
            )
        if tensor.op.name not in seen:
            seen.add(tensor.op.name)
            waiting.extend(tensor.op.inputs)


def _describe(handle, graph, model):
    if model is not None:
        for layer in reversed(_keras.layers_of(model)):
            for variable in [
                *layer.non_trainable_variables,
                *layer.trainable_variables,
            ]:
                if variable.value.handle is handle:
                    advice = _STATE_ADVICE
                    for cls in type(layer).__mro__:
                        advice = _ADVICE.get(cls.__name__, advice)
                    return (
                        f"Layer {layer.name!r} ({type(layer).__name__}) writes its "
                        f"variable {variable.path!r} from the training data. {advice}"
                    )
    return (
        "Computing the loss writes a variable from the training data "
        f"(resource {handle!r}). {_STATE_ADVICE}"
    )
