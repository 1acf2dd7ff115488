"""The filter gradients of convolutions, over drawn shapes."""

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_gdp.clipping.rules._filters import Geometry


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
        expected[row] = tape.gradient(outputs, kernel, gradients[row : row + 1])
    result = geometry.stacked(tf.constant(inputs), tf.constant(gradients))
    np.testing.assert_allclose(result, expected, atol=1e-10)
