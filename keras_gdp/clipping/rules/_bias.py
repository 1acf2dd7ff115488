"""Biases and other variables that enter by broadcasting."""

from keras_gdp.clipping.contributions import summed

__all__ = ["broadcast_gradient"]


def broadcast_gradient(gradients, shape):
    """Returns the contribution of a variable that was broadcast to a layer's output.

    Args:
        gradients: Gradient of the broadcast product or sum, of shape (batch, ...).
        shape: The variable's shape; it is aligned with the last axes of an example.
    """
    rank = gradients.shape.rank - 1
    aligned = [1] * (rank - len(shape)) + list(shape)
    axes = [
        axis + 1
        for axis, size in enumerate(aligned)
        if size == 1 and gradients.shape[axis + 1] != 1
    ]
    return summed(gradients, axes, shape)
