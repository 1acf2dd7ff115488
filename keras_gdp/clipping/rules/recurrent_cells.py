"""The arithmetic of Keras' recurrent cells, split at the input projection."""

import keras
import tensorflow as tf

from keras_gdp.clipping.contributions import Columns, Outer, summed

__all__ = ["CELLS"]

L = keras.layers


class _Cell:
    """One cell during one recorded pass.

    Args:
        cell: The Keras cell.
        training: Whether dropout is on.
    """

    def __init__(self, cell, training):
        self.cell = cell
        self.training = training
        self.kernel = cell.kernel

    @staticmethod
    def declines(cell):
        """Returns why a cell is not covered, or ""."""
        if cell.recurrent_dropout:
            return "it has recurrent dropout"
        if cell.dropout and getattr(cell, "implementation", 2) == 1:
            return "it has a dropout mask for every gate (implementation=1)"
        return ""

    def prepare_inputs(self, inputs):
        """Applies dropout: one mask for all time steps, as in Keras."""
        inputs = tf.cast(inputs, self.cell.compute_dtype)
        if self.training and self.cell.dropout:
            mask = self.cell.get_dropout_mask(inputs[:, 0])
            self.cell.reset_dropout_mask()
            inputs = inputs * mask[:, None]
        return inputs

    def weights(self, record):
        """Returns the list of weights that `step` needs."""
        return [record.fixed(self.cell.recurrent_kernel)]

    def input_bias(self, record):
        """Returns the bias added to the input projection, or `None`."""
        return record.fixed(self.cell.bias) if self.cell.use_bias else None

    def step(self, projected, states, weights):
        """Returns the list of states after one step, the output first."""
        raise NotImplementedError

    def contributions(self, gradients, inputs, projected, previous):
        """Returns the contributions, for `Recording.tap`."""
        del projected
        cell = self.cell
        return [
            (cell.kernel, lambda: Outer(gradients, inputs)),
            (cell.recurrent_kernel, lambda: Outer(gradients, previous)),
            (cell.bias, lambda: summed(gradients, [1], gradients.shape[2:])),
        ]


class _Simple(_Cell):
    """`h' = act(z + h U)`."""

    def step(self, projected, states, weights):
        (hidden,) = states
        pre = projected + tf.matmul(hidden, weights[0])
        return [pre if self.cell.activation is None else self.cell.activation(pre)]


class _LSTM(_Cell):
    """`i, f, g, o = z + h U`; `c' = f c + i g`; `h' = o act(c')`."""

    def step(self, projected, states, weights):
        hidden, carry = states
        cell = self.cell
        pre = projected + tf.matmul(hidden, weights[0])
        i, f, g, o = tf.split(pre, 4, axis=-1)
        carry = cell.recurrent_activation(f) * carry + cell.recurrent_activation(
            i
        ) * cell.activation(g)
        return [cell.recurrent_activation(o) * cell.activation(carry), carry]


class _GRU(_Cell):
    """`h' = u h + (1 - u) act(z_h + r (h U_h + b_h))`, or with `(r h) U_h`."""

    def input_bias(self, record):
        if not self.cell.use_bias:
            return None
        bias = record.fixed(self.cell.bias)
        return bias[0] if self.cell.reset_after else bias

    def weights(self, record):
        self._weights = super().weights(record)
        if self.cell.use_bias and self.cell.reset_after:
            self._weights.append(record.fixed(self.cell.bias)[1])
        return self._weights

    def _inner(self, hidden, columns, weights):
        """Returns the recurrent projection of some gates."""
        recurrent, *bias = weights
        inner = tf.matmul(hidden, recurrent[:, columns])
        return inner + bias[0][columns] if bias else inner

    def step(self, projected, states, weights):
        (hidden,) = states
        cell, units = self.cell, self.cell.units
        if cell.reset_after:
            inner = self._inner(hidden, slice(None), weights)
            update, reset = tf.split(
                cell.recurrent_activation(
                    projected[..., : 2 * units] + inner[..., : 2 * units]
                ),
                2,
                axis=-1,
            )
            candidate = reset * inner[..., 2 * units :]
        else:
            gates = projected[..., : 2 * units] + self._inner(
                hidden, slice(None, 2 * units), weights
            )
            update, reset = tf.split(cell.recurrent_activation(gates), 2, axis=-1)
            candidate = self._inner(reset * hidden, slice(2 * units, None), weights)
        candidate = cell.activation(projected[..., 2 * units :] + candidate)
        return [update * hidden + (1 - update) * candidate]

    def contributions(self, gradients, inputs, projected, previous):
        cell, units = self.cell, self.cell.units
        columns = slice(units, 2 * units)
        reset = cell.recurrent_activation(
            projected[..., columns] + self._inner(previous, columns, self._weights)
        )
        gates, candidate = gradients[..., : 2 * units], gradients[..., 2 * units :]
        if cell.reset_after:
            candidate = candidate * tf.cast(reset, candidate.dtype)
            inner = tf.concat([gates, candidate], axis=-1)
            recurrent = lambda: Outer(inner, previous)  # noqa: E731
            bias = lambda: summed(  # noqa: E731
                tf.stack([gradients, inner], axis=2), [1], cell.bias.shape
            )
        else:
            recurrent = lambda: Columns(  # noqa: E731
                [Outer(gates, previous), Outer(candidate, reset * previous)]
            )
            bias = lambda: summed(gradients, [1], gradients.shape[2:])  # noqa: E731
        return [
            (cell.kernel, lambda: Outer(gradients, inputs)),
            (cell.recurrent_kernel, recurrent),
            (cell.bias, bias),
        ]


CELLS = {L.SimpleRNNCell: _Simple, L.LSTMCell: _LSTM, L.GRUCell: _GRU}
