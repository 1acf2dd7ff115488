"""Any other layer with weights: its own vector-Jacobian product, example by example."""

import keras
import tensorflow as tf

from keras_gdp.clipping.contributions import Local, Stacked
from keras_gdp.clipping.contributions.base import fits
from keras_gdp.clipping.rules.registry import Rule
from keras_gdp.clipping.vectorize import vectorized_map
from keras_gdp.errors import UnsupportedLayerError

__all__ = ["fallback_for"]


def fallback_for(layer, reason):
    """Returns the rule for a layer without one.

    Args:
        layer: A layer whose output for one example depends on that example only; the
            isolation check tests this.
        reason: Why no other rule covers it.

    Raises:
        UnsupportedLayerError: If a second run of the layer could differ from the first.
    """
    if any("seed_generator_state" in v.path for v in layer.non_trainable_variables):
        raise UnsupportedLayerError(
            f"layer {layer.name!r} ({type(layer).__name__}) has weights and draws "
            f"random numbers ({reason})"
        )
    return Rule(_call, lambda layer: "", f"differentiated by itself ({reason})")


def _call(layer, record, *args, **kwargs):
    leaves = tf.nest.flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if tf.is_tensor(leaf)]
    rows = tensors[0].shape[0]
    if any(t.shape.rank == 0 or t.shape[0] != rows for t in tensors):
        raise UnsupportedLayerError(
            f"layer {layer.name!r} takes a tensor without a leading axis of examples"
        )
    variables = layer.trainable_variables

    def run(values, tensors):
        tensors = iter(tensors)
        inner_args, inner_kwargs = tf.nest.pack_sequence_as(
            (args, kwargs),
            [next(tensors) if tf.is_tensor(leaf) else leaf for leaf in leaves],
        )
        mapping = list(zip(variables, values, strict=True))
        with keras.StatelessScope(mapping, collect_losses=True) as scope:
            outputs = type(layer).call(layer, *inner_args, **inner_kwargs)
        if scope.losses:
            raise UnsupportedLayerError(f"layer {layer.name!r} adds losses in its call")
        return outputs

    values = [record.fixed(variable) for variable in variables]
    outputs = run(values, tensors)
    # All outputs of a layer are tapped together, through their concatenation.
    flat = [t for t in tf.nest.flatten(outputs) if tf.is_tensor(t)]
    floating = [t for t in flat if t.dtype.is_floating]
    batch = tf.shape(floating[0])[0]
    joined = tf.concat(
        [
            tf.reshape(tf.cast(t, floating[0].dtype), [batch, _size(t)])
            for t in floating
        ],
        axis=1,
    )
    joined = record.tap(
        joined,
        lambda gradients: _contributions(gradients, tensors, variables, values, run),
    )
    pieces = iter(tf.split(joined, [_size(t) for t in floating], axis=1))
    rebuilt = [
        tf.cast(tf.reshape(next(pieces), tf.shape(t)), t.dtype)
        if tf.is_tensor(t) and t.dtype.is_floating
        else t
        for t in tf.nest.flatten(outputs)
    ]
    for new, old in zip(rebuilt, tf.nest.flatten(outputs), strict=True):
        if new is not old:
            new.set_shape(old.shape)
    return tf.nest.pack_sequence_as(outputs, rebuilt)


def _size(tensor):
    size = tensor.shape[1:].num_elements()
    if size is None:
        raise UnsupportedLayerError(
            "a layer without a rule has outputs of unknown size"
        )
    return size


def _contributions(gradients, tensors, variables, values, run):
    def products(gradients, tensors, wanted):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(wanted)
            outputs = run(wanted, tensors)
            floating = [
                t
                for t in tf.nest.flatten(outputs)
                if tf.is_tensor(t) and t.dtype.is_floating
            ]
        pieces = tf.split(gradients, [_size(t) for t in floating], axis=1)
        pieces = [
            tf.cast(tf.reshape(piece, tf.shape(t)), t.dtype)
            for piece, t in zip(pieces, floating, strict=True)
        ]
        result = tape.gradient(
            floating, wanted, pieces, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return [tf.cast(tf.convert_to_tensor(g), gradients.dtype) for g in result]

    watched = [tf.identity(value) for value in values]
    total = sum(variable.shape.num_elements() for variable in watched)
    if fits(total, gradients.shape[0]):
        stacked = vectorized_map(
            lambda row: products(row[0][None], [t[None] for t in row[1:]], watched),
            (gradients, *tensors),
        )
        return [
            (variable, lambda s=s, v=v: Stacked(tf.ensure_shape(s, [None, *v.shape])))
            for variable, s, v in zip(variables, stacked, watched, strict=True)
        ]

    def one(index):
        return Local(
            gradients,
            tensors,
            values[index].shape,
            lambda g, *rows: products(g, rows, watched)[index],
        )

    return [(v, lambda i=i: one(i)) for i, v in enumerate(variables)]
