"""The filter gradients of convolutions, over drawn shapes."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_gdp.clipping.rules._filters import Geometry
from keras_gdp.clipping.rules._filters import _groups_work as groups_work


@st.composite
def convolutions(draw):
    rank = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    window = draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    # TensorFlow has no convolution with strides and dilation both.
    dilated = draw(st.booleans())
    factors = st.lists(st.integers(1, 3), min_size=rank, max_size=rank)
    strides = [1] * rank if dilated else draw(factors)
    dilation = draw(factors) if dilated else [1] * rank
    padding = draw(st.sampled_from(["same", "valid"]))
    space = [
        draw(st.integers((k - 1) * d + 1, (k - 1) * d + 5))
        for k, d in zip(window, dilation, strict=True)
    ]
    channels, filters = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel = (*window, channels, filters * groups)
    geometry = Geometry(kernel, tuple(strides), tuple(dilation), padding, groups)
    rows = draw(st.integers(0, 3))
    return geometry, (rows, *space, channels * groups)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(convolutions())
def test_filter_gradients_are_those_of_each_example(convolution):
    geometry, shape = convolution
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=shape)

    def convolve(rows, kernel):
        parts = zip(
            tf.split(rows, geometry.groups, axis=-1),
            tf.split(kernel, geometry.groups, axis=-1),
            strict=True,
        )
        return tf.concat(
            [
                tf.nn.convolution(
                    part,
                    filters,
                    strides=geometry.strides,
                    dilations=geometry.dilation,
                    padding=geometry.padding.upper(),
                    data_format=["NWC", "NHWC", "NDHWC"][len(geometry.window) - 1],
                )
                for part, filters in parts
            ],
            axis=-1,
        )

    kernel = tf.zeros(geometry.kernel_shape, tf.float64)
    outputs = convolve(tf.zeros([1, *shape[1:]], tf.float64), kernel)
    gradients = generator.normal(size=(shape[0], *outputs.shape[1:]))
    expected = np.zeros((shape[0], *geometry.kernel_shape))
    for row in range(shape[0]):
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            outputs = convolve(tf.constant(inputs[row : row + 1]), kernel)
        upstream = tf.constant(gradients[row : row + 1])
        expected[row] = tape.gradient(outputs, kernel, upstream)
    # In single precision they may come from another kernel.
    for dtype, tolerance in ((tf.float64, 1e-10), (tf.float32, 1e-4)):
        result = geometry.stacked(
            tf.constant(inputs, dtype), tf.constant(gradients, dtype)
        )
        np.testing.assert_allclose(result, expected, atol=tolerance)


def test_unknown_numbers_of_rows_have_the_same_gradients():
    geometry = Geometry((3, 3, 2, 3), (2, 2), (1, 1), "same")
    generator = np.random.default_rng(0)
    inputs = tf.constant(generator.normal(size=(4, 9, 9, 2)), tf.float32)
    gradients = tf.constant(generator.normal(size=(4, 5, 5, 3)), tf.float32)
    stacked = tf.function(
        geometry.stacked,
        input_signature=[
            tf.TensorSpec([None, 9, 9, 2]),
            tf.TensorSpec([None, 5, 5, 3]),
        ],
    )
    result = stacked(inputs, gradients)
    assert result.shape == (4, 3, 3, 2, 3)
    np.testing.assert_allclose(result, geometry.stacked(inputs, gradients), atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_groups_are_left_to_the_kernel_that_is_fast_at_them(compiled):
    """XLA would compute every pair of examples: a thousand times the work."""
    geometry = Geometry((3, 3, 2, 3), (1, 1), (1, 1), "same")
    types = set()

    @tf.function(jit_compile=compiled)
    def stacked(inputs, gradients):
        result = geometry.stacked(inputs, gradients)
        graph = tf.compat.v1.get_default_graph()
        types.update(operation.type for operation in graph.get_operations())
        return result

    stacked(tf.ones([4, 6, 6, 2]), tf.ones([4, 6, 6, 3]))
    assert ("Conv2DBackpropFilter" in types) == (not compiled and groups_work())


def test_a_refused_kernel_leaves_the_products(monkeypatch):
    geometry = Geometry((2, 2, 2, 3), (1, 1), (1, 1), "valid")
    inputs = tf.random.stateless_normal([3, 5, 5, 2], [0, 1])
    gradients = tf.random.stateless_normal([3, 4, 4, 3], [2, 3])
    expected = geometry.stacked(inputs, gradients)

    def refuse(self, inputs, gradients):
        raise tf.errors.InvalidArgumentError(None, None, "no such kernel")

    monkeypatch.setattr(Geometry, "_grouped", refuse)
    groups_work.cache_clear()
    try:
        np.testing.assert_allclose(
            geometry.stacked(inputs, gradients), expected, atol=1e-5
        )
    finally:
        groups_work.cache_clear()
