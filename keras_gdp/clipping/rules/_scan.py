"""The loop over time of recurrent layers, with a backward pass of its own."""

import tensorflow as tf

__all__ = ["scan"]


def scan(step, inputs, states, weights, record):
    """Runs a step over time.

    The backward pass runs the step again at each time, and writes down the gradient of
    the inputs there. TensorFlow's own would keep all that a step computes, and add up
    gradients of the whole sequence at each time.

    Args:
        step: Maps `(time, inputs at that time, states, weights)` to new states.
        inputs: Tensor of shape (T, batch, m).
        states: List of the first states, of shape (batch, units).
        weights: List of tensors.
        record: The recording. Other variables that the step uses, in an activation
            say, get no gradient; if they are trained, it is refused.

    Returns:
        `(outputs, final states)`; the outputs are the first state after each step, of
        shape (T, batch, units).
    """
    count = inputs.shape[0] or tf.shape(inputs)[0]
    held = record.holds

    @tf.custom_gradient
    def run(inputs, states, weights):
        arrays = [_array(state.dtype, count, state.shape) for state in states]

        def forward(time, arrays, states):
            arrays = [a.write(time, s) for a, s in zip(arrays, states, strict=True)]
            return time + 1, arrays, step(time, inputs[time], states, weights)

        _, arrays, final = _while(count, 0, forward, arrays, list(states))
        before = [array.stack() for array in arrays]
        outputs = tf.concat([before[0][1:], final[0][None]], axis=0)

        def backward(d_outputs, *d_final, variables=None):
            record.check_outside(variables)

            def at(time, d_inputs, d_states, d_weights):
                here, old = inputs[time], [states[time] for states in before]
                with tf.GradientTape(watch_accessed_variables=False) as tape:
                    sources = [here, *old, *([] if held else weights)]
                    tape.watch(sources)
                    new = step(time, here, old, weights)
                d_new = [d_states[0] + d_outputs[time], *d_states[1:]]
                d_here, *rest = tape.gradient(
                    new,
                    sources,
                    d_new,
                    unconnected_gradients=tf.UnconnectedGradients.ZERO,
                )
                d_old, more = rest[: len(old)], rest[len(old) :]
                d_weights = [d + m for d, m in zip(d_weights, more, strict=True)]
                return time - 1, d_inputs.write(time, d_here), d_old, d_weights

            _, d_inputs, d_states, d_weights = _while(
                count,
                count - 1,
                at,
                _array(inputs.dtype, count, inputs.shape[1:]),
                list(d_final),
                [] if held else [tf.zeros_like(weight) for weight in weights],
            )
            d_weights = [None] * len(weights) if held else d_weights
            d_all = (d_inputs.stack(), d_states, d_weights)
            return (d_all, [None] * len(variables)) if variables else d_all

        return (outputs, *final), backward

    outputs, *final = run(inputs, list(states), list(weights))
    return outputs, final


def _array(dtype, count, shape):
    return tf.TensorArray(dtype, count, element_shape=shape)


def _while(count, start, body, *variables):
    return tf.while_loop(
        lambda time, *_: (time >= 0) & (time < count),
        body,
        (start, *variables),
        maximum_iterations=count,
        parallel_iterations=32,
    )
