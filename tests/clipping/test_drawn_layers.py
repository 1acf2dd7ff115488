"""Layer rules against one example at a time, over drawn options, shapes and sizes."""

import keras
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clipping.test_rules import compare, model_of

L = keras.layers
SIZES = st.integers(1, 5)
ACTIVATIONS = st.sampled_from([None, "tanh", "relu", "gelu"])


@st.composite
def dense(draw):
    shape = draw(st.lists(SIZES, min_size=1, max_size=3))
    options = {"use_bias": draw(st.booleans()), "activation": draw(ACTIVATIONS)}
    return L.Dense(draw(SIZES), **options), shape


@st.composite
def convolution(draw):
    rank = draw(st.integers(1, 2))
    kind = draw(st.sampled_from(["Conv", "DepthwiseConv", "SeparableConv"]))
    size, stride = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    options = {
        "strides": stride,
        "padding": draw(st.sampled_from(["same", "valid"])),
        "use_bias": draw(st.booleans()),
        "activation": draw(ACTIVATIONS),
    }
    if stride == 1:
        options["dilation_rate"] = draw(st.integers(1, 2))
    if kind == "Conv" and draw(st.booleans()):
        kind, options["dilation_rate"] = "ConvTranspose", 1
        name = f"Conv{rank}DTranspose"
    else:
        name = f"{kind}{rank}D"
    shape = [draw(st.integers(5, 7)) for _ in range(rank)] + [draw(st.integers(1, 3))]
    first = (size,) if kind == "DepthwiseConv" else (draw(st.integers(1, 3)), size)
    return getattr(L, name)(*first, **options), shape


@st.composite
def normalization(draw):
    groups = draw(st.integers(1, 3))
    shape = [*draw(st.lists(SIZES, max_size=2)), groups * draw(st.integers(1, 3))]
    scaled = {"scale": draw(st.booleans()), "center": draw(st.booleans())}
    layer = draw(
        st.sampled_from(
            [
                lambda: L.LayerNormalization(**scaled),
                lambda: L.GroupNormalization(groups, **scaled),
                lambda: L.RMSNormalization(),
                lambda: L.UnitNormalization(),
                lambda: L.PReLU("uniform"),
            ]
        )
    )
    return layer(), shape


@st.composite
def recurrent(draw):
    cls = draw(st.sampled_from([L.SimpleRNN, L.LSTM, L.GRU]))
    options = {
        name: draw(st.booleans())
        for name in ("use_bias", "return_sequences", "return_state", "go_backwards")
    }
    shape = [draw(SIZES), draw(SIZES)]
    return cls(draw(SIZES), **options), shape


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.one_of(dense(), convolution(), normalization(), recurrent()),
    st.integers(0, 4),
    st.integers(0, 99),
)
def test_rules_equal_one_example_at_a_time(drawn, rows, seed):
    layer, shape = drawn
    keras.utils.set_random_seed(seed)
    model = model_of(layer, tuple(shape))
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, *shape)).astype("float32")
    y = np.zeros((rows, *model.output_shape[1:]), "float32")
    compare(model, x, y)
