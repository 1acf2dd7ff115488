"""Filter gradients of all examples at once.

On processors, oneDNN computes the filter gradient of a convolution in groups about as
fast as that of an ordinary one: with the channels of all examples side by side, each
example is a group.

Elsewhere they are products of shifted inputs: for each position of the filter's window,
the inputs that it meets there, times the output gradients, is a matrix product per
example. Strides are folded into the channels first, so that the shifts are contiguous.
"""

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from keras_gdp.clipping.xla import traced_for_xla

__all__ = ["Geometry"]


@dataclass(frozen=True)
class Geometry:
    """What a convolution's filter gradient depends on beside the tensors.

    Tensors have their channels last; `inputs` is what the filter slides over, and
    `gradients` has one position per place where it stops.

    Attributes:
        kernel_shape: `(*window, channels per group, filters)`.
        strides: One per spatial axis.
        dilation: One per spatial axis.
        padding: `"same"` or `"valid"`.
        groups: Number of groups of the layer.
    """

    kernel_shape: tuple
    strides: tuple
    dilation: tuple
    padding: str
    groups: int = 1

    @property
    def window(self):
        """The size of the filter along each spatial axis."""
        return tuple(self.kernel_shape[:-2])

    def stacked(self, inputs, gradients):
        """Returns the filter gradients, of shape (batch, *kernel_shape).

        Args:
            inputs: Tensor of shape (batch, *space, channels), static space.
            gradients: Tensor of shape (batch, *positions, filters), same dtype.
        """
        positions = gradients.shape[1:-1]
        if self._can_be_groups(inputs, positions) and _groups_are_fast():
            return self._grouped(inputs, gradients)
        inputs = tf.pad(inputs, [[0, 0], *self._paddings(inputs, positions), [0, 0]])
        if self._strides_can_be_folded():
            return self._folded(inputs, gradients, positions)
        return self._shifted(inputs, gradients)

    def _can_be_groups(self, inputs, positions):
        if len(self.window) != 2 or self.groups > 1 or inputs.dtype != tf.float32:
            return False
        if max(self.dilation) > 1 or inputs.shape[0] == 0:
            return False
        sizes = inputs.shape[1:-1]
        if self.padding.lower() == "valid":
            sizes = [size - k + 1 for size, k in zip(sizes, self.window, strict=True)]
        # A transposed convolution may have other outputs than its strides give.
        stops = [-(-size // s) for size, s in zip(sizes, self.strides, strict=True)]
        return stops == list(positions)

    def _grouped(self, inputs, gradients):
        rows = inputs.shape[0] or tf.shape(inputs)[0]
        channels, filters = self.kernel_shape[-2:]
        totals = tf.raw_ops.Conv2DBackpropFilter(
            input=_beside(inputs, rows),
            filter_sizes=tf.stack([*self.window, channels, rows * filters]),
            out_backprop=_beside(gradients, rows),
            strides=[1, *self.strides, 1],
            dilations=[1, *self.dilation, 1],
            padding=self.padding.upper(),
        )
        totals = tf.reshape(totals, [*self.window, channels, rows, filters])
        return tf.transpose(totals, [3, 0, 1, 2, 4])

    def _paddings(self, inputs, positions):
        paddings = []
        for size, n, k, s, d in zip(
            inputs.shape[1:-1],
            positions,
            self.window,
            self.strides,
            self.dilation,
            strict=True,
        ):
            total = (n - 1) * s + (k - 1) * d + 1 - size
            total = max(total, 0) if self.padding.lower() == "same" else 0
            paddings.append([total // 2, total - total // 2])
        return paddings

    def _strides_can_be_folded(self):
        return (
            self.groups == 1
            and max(self.strides) > 1
            and set(self.dilation) == {1}
            and all(s <= k for s, k in zip(self.strides, self.window, strict=True))
        )

    def _folded(self, inputs, gradients, positions):
        """Turns blocks of one stride each into channels: a stride of 1 is left."""
        rank, strides = len(self.window), self.strides
        window = [-(-k // s) for k, s in zip(self.window, strides, strict=True)]
        blocks = [n - 1 + k for n, k in zip(positions, window, strict=True)]
        for axis, (count, s) in enumerate(zip(blocks, strides, strict=True), 1):
            inputs = _resize(inputs, axis, count * s)
        channels, filters = self.kernel_shape[-2:]
        split = [size for pair in zip(blocks, strides, strict=True) for size in pair]
        # (batch, blocks, strides, channels), blocks and strides each in order.
        order = [0, *range(1, 2 * rank, 2), *range(2, 2 * rank + 1, 2), 2 * rank + 1]
        depth = math.prod(strides) * channels
        inputs = tf.transpose(tf.reshape(inputs, [-1, *split, channels]), order)
        inputs = tf.reshape(inputs, [-1, *blocks, depth])
        unit = (1,) * rank
        folded = Geometry((*window, depth, filters), unit, unit, "valid")
        result = folded._shifted(inputs, gradients)
        result = tf.reshape(result, [-1, *window, *strides, channels, filters])
        pairs = [axis for i in range(1, rank + 1) for axis in (i, rank + i)]
        result = tf.transpose(result, [0, *pairs, 2 * rank + 1, 2 * rank + 2])
        sizes = [k * s for k, s in zip(window, strides, strict=True)]
        result = tf.reshape(result, [-1, *sizes, channels, filters])
        return result[(slice(None), *(slice(k) for k in self.window))]

    def _shifted(self, inputs, gradients):
        positions = gradients.shape[1:-1]
        tokens = math.prod(positions)
        gradients = self._by_groups(gradients, tokens)
        products = []
        for place in itertools.product(*(range(size) for size in self.window)):
            slices = [
                slice(p * d, p * d + (n - 1) * s + 1, s)
                for p, d, n, s in zip(
                    place, self.dilation, positions, self.strides, strict=True
                )
            ]
            with tf.control_dependencies(products[-1:]):
                here = tf.identity(inputs)
            shifted = self._by_groups(here[(slice(None), *slices)], tokens)
            products.append(tf.matmul(shifted, gradients, transpose_a=True))
        stacked = tf.stack(products, axis=1)
        if self.groups > 1:
            # (batch, window, groups, channels, filters per group)
            stacked = tf.transpose(stacked, [0, 1, 3, 2, 4])
        return tf.reshape(stacked, [-1, *self.kernel_shape])

    def _by_groups(self, tensor, tokens):
        depth = tensor.shape[-1]
        if self.groups == 1:
            return tf.reshape(tensor, [-1, tokens, depth])
        tensor = tf.reshape(tensor, [-1, tokens, self.groups, depth // self.groups])
        return tf.transpose(tensor, [0, 2, 1, 3])


@functools.cache
def _groups_work():
    """Whether this TensorFlow has the kernel: it is oneDNN's, on processors alone."""
    if tf.config.list_logical_devices("GPU"):
        return False
    x = np.random.default_rng(0).normal(size=(2, 4, 4, 1)).astype("float32")
    geometry = Geometry((2, 2, 1, 1), (1, 1), (1, 1), "valid")
    with tf.init_scope():
        try:
            found = geometry._grouped(tf.constant(x), tf.constant(x[:, :3, :3]))
        except tf.errors.OpError:
            return False
        expected = geometry._shifted(tf.constant(x), tf.constant(x[:, :3, :3]))
        return bool(np.allclose(found, expected, atol=1e-5))


def _groups_are_fast():
    return not traced_for_xla() and _groups_work()


def _beside(tensor, rows):
    """Puts the channels of all rows side by side in a single row."""
    _, *space, channels = tensor.shape
    return tf.reshape(tf.transpose(tensor, [1, 2, 0, 3]), [1, *space, rows * channels])


def _resize(tensor, axis, size):
    """Cuts an axis off, or fills it up with zeros, at its end."""
    missing = size - tensor.shape[axis]
    if missing > 0:
        paddings = [[0, missing * (i == axis)] for i in range(tensor.shape.rank)]
        return tf.pad(tensor, paddings)
    return tensor[(slice(None),) * axis + (slice(size),)]
