"""Recurrent layers: one tap on the input projection of all time steps.

The pre-activation of a gate at step t is `z_t + h_(t-1) U` with `z_t = x_t W + b`. The
gradient with respect to `z_t` is therefore that of the pre-activation, and with the
recorded states it gives the gradients of W, U and b, by outer products over time. The
loop over time itself needs no gradient of any parameter, unless a second backward pass
asks for it.
"""

import keras
import tensorflow as tf

from keras_gdp.clipping.rules._scan import scan
from keras_gdp.clipping.rules.recurrent_cells import CELLS
from keras_gdp.clipping.rules.registry import register

__all__ = []

L = keras.layers


def _cells(layer):
    cell = layer.cell
    return list(cell.cells) if type(cell) is L.StackedRNNCells else [cell]


def _declines(layer):
    if layer.stateful:
        return "it is stateful: its state would carry data from one batch to the next"
    for cell in _cells(layer):
        if type(cell) not in CELLS:
            return f"its cell {type(cell).__name__} has no rule"
        if "call" in vars(cell):
            return "its cell's `call` was replaced"
        reason = CELLS[type(cell)].declines(cell)
        if reason:
            return reason
    return ""


@register(
    L.SimpleRNN,
    L.LSTM,
    L.GRU,
    L.RNN,
    text="outer products over time",
    declines=_declines,
)
def recurrent(layer, record, sequences, initial_state=None, mask=None, training=False):
    """Runs the cells over time, one after the other over the whole sequence."""
    if initial_state is None:
        batch = sequences.shape[0] or tf.shape(sequences)[0]
        initial_state = layer.get_initial_state(batch_size=batch)
    if not keras.tree.is_nested(initial_state):
        initial_state = [initial_state]
    cells = _cells(layer)
    stacked = type(layer.cell) is L.StackedRNNCells
    per_cell = list(initial_state) if stacked else [list(initial_state)]
    mask = _single(mask)
    if layer.go_backwards:
        sequences = tf.reverse(sequences, [1])
        mask = None if mask is None else tf.reverse(mask, [1])
    outputs, final_states = sequences, []
    for cell, states in zip(cells, per_cell, strict=True):
        nested = keras.tree.is_nested(states)
        states = [tf.cast(s, cell.compute_dtype) for s in keras.tree.flatten(states)]
        outputs, states = _run(
            CELLS[type(cell)](cell, training), record, outputs, states, mask
        )
        final_states.append(states if nested else states[0])
    outputs = _visible(outputs, mask, layer.zero_output_for_mask)
    outputs = tf.cast(outputs, layer.compute_dtype)
    states = keras.tree.map_structure(
        lambda state: tf.cast(state, layer.compute_dtype),
        final_states if stacked else final_states[0],
    )
    result = outputs if layer.return_sequences else outputs[:, -1]
    return (result, *states) if layer.return_state else result


def _single(mask):
    leaves = [leaf for leaf in keras.tree.flatten(mask) if leaf is not None]
    return tf.cast(leaves[0], tf.bool) if leaves else None


def _run(cell, record, inputs, states, mask):
    """Returns `(states over time, final states)` of one cell; masked steps change none.

    The state over time is of shape (batch, T, units).
    """
    inputs = cell.prepare_inputs(inputs)
    projected = tf.matmul(inputs, record.fixed(cell.kernel))
    if cell.input_bias(record) is not None:
        projected = projected + cell.input_bias(record)
    kept = {}
    projected = record.tap(
        projected,
        lambda gradients: cell.contributions(
            gradients, inputs, kept["projected"], kept["previous"]
        ),
    )
    kept["projected"] = projected
    masks = None if mask is None else tf.transpose(mask)[:, :, None]

    def step(time, projected, states, weights):
        new = cell.step(projected, states, weights)
        if masks is None:
            return new
        keep = masks[time]
        return [tf.where(keep, n, old) for n, old in zip(new, states, strict=True)]

    hidden, final = scan(
        step,
        tf.transpose(projected, [1, 0, 2]),
        states,
        cell.weights(record),
        record,
    )
    hidden = tf.transpose(hidden, [1, 0, 2])
    first = tf.cast(states[0], hidden.dtype)[:, None]
    kept["previous"] = tf.concat([first, hidden[:, :-1]], axis=1)
    return hidden, final


def _visible(hidden, mask, zero_output_for_mask):
    """Returns what Keras shows at masked steps: the last output, or zeros."""
    if mask is None:
        return hidden
    if not zero_output_for_mask:
        # Before the first step that counts, Keras shows zeros, not the first state.
        mask = tf.cumsum(tf.cast(mask, tf.int32), axis=1) > 0
    return tf.where(mask[:, :, None], hidden, tf.zeros([], hidden.dtype))
