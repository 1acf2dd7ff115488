"""Every layer rule against one example at a time."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_gdp.clipping import BookkeepingEngine, Flat, LoopEngine
from keras_gdp.clipping.contributions import lookup
from keras_gdp.clipping.contributions.base import squares
from keras_gdp.clipping.recording import plan_units
from keras_gdp.errors import UnsupportedLayerError
from keras_gdp.training.objective import model_objective

L = keras.layers
RNN_OPTIONS = [
    {},
    {"return_sequences": True},
    {"go_backwards": True, "return_sequences": True},
    {"use_bias": False},
    {"return_state": True},
]

CASES = {
    "dense": (lambda: L.Dense(3, activation="tanh"), (4,)),
    "dense no bias": (lambda: L.Dense(3, use_bias=False), (4,)),
    "dense sequence, Gram": (lambda: L.Dense(9, activation="relu"), (2, 8)),
    "dense sequence, instantiated": (lambda: L.Dense(2), (9, 3)),
    "dense rank 4": (lambda: L.Dense(2), (3, 2, 5)),
    "einsum": (
        lambda: L.EinsumDense("btd,dnh->btnh", (5, 2, 3), bias_axes="nh"),
        (5, 4),
    ),
    "einsum contracting two": (
        lambda: L.EinsumDense("btnh,nhd->btd", (3, 5), bias_axes="d"),
        (3, 2, 4),
    ),
    "einsum ellipsis": (
        lambda: L.EinsumDense("...x,xy->...y", 5, bias_axes="y"),
        (3, 4),
    ),
    "einsum ellipsis bias": (
        lambda: L.EinsumDense("abc,cd->abd", (3, 5), bias_axes="bd"),
        (3, 4),
    ),
    "einsum per token": (lambda: L.EinsumDense("btd,tdm->btm", (3, 2)), (3, 4)),
    "conv1d causal": (
        lambda: L.Conv1D(3, 2, dilation_rate=2, padding="causal"),
        (7, 2),
    ),
    "conv2d": (
        lambda: L.Conv2D(3, 3, strides=2, padding="same", activation="tanh"),
        (7, 6, 2),
    ),
    "conv2d dilated, no bias": (
        lambda: L.Conv2D(2, 2, dilation_rate=2, use_bias=False),
        (6, 6, 2),
    ),
    "conv2d large kernel": (lambda: L.Conv2D(8, 3), (4, 4, 6)),
    "conv3d": (lambda: L.Conv3D(2, 2, padding="same"), (3, 4, 3, 2)),
    "depthwise1d": (lambda: L.DepthwiseConv1D(2, depth_multiplier=2), (6, 3)),
    "depthwise2d": (lambda: L.DepthwiseConv2D(3, strides=2, padding="same"), (6, 5, 3)),
    "separable1d": (lambda: L.SeparableConv1D(4, 3), (7, 2)),
    "separable2d": (lambda: L.SeparableConv2D(4, 3, padding="same"), (5, 6, 2)),
    "conv1d transpose": (lambda: L.Conv1DTranspose(3, 2, strides=2), (4, 2)),
    "conv2d transpose": (
        lambda: L.Conv2DTranspose(3, 3, strides=2, padding="same"),
        (4, 3, 2),
    ),
    "conv3d transpose": (lambda: L.Conv3DTranspose(2, 2), (2, 3, 2, 2)),
    "layer norm": (lambda: L.LayerNormalization(), (4, 5)),
    "layer norm two axes": (lambda: L.LayerNormalization(axis=[1, 2]), (3, 4)),
    "layer norm, no scale": (lambda: L.LayerNormalization(scale=False), (5,)),
    "layer norm, no center": (lambda: L.LayerNormalization(center=False), (5,)),
    "group norm": (lambda: L.GroupNormalization(2), (4, 3, 6)),
    "group norm first axis": (lambda: L.GroupNormalization(3, axis=1), (6, 3, 4)),
    "instance norm, no center": (
        lambda: L.GroupNormalization(-1, center=False),
        (4, 3),
    ),
    "rms norm": (lambda: L.RMSNormalization(), (4, 5)),
    "prelu": (lambda: L.PReLU(alpha_initializer="uniform"), (4, 3)),
    "prelu shared": (lambda: L.PReLU("uniform", shared_axes=[1]), (4, 3)),
    "time distributed": (lambda: L.TimeDistributed(L.Conv1D(2, 2)), (3, 4, 2)),
    **{
        f"{cls.__name__} {options}": (lambda c=cls, o=options: c(3, **o), (5, 2))
        for cls in (L.SimpleRNN, L.LSTM, L.GRU)
        for options in RNN_OPTIONS
    },
    "LSTM unrolled, implementation 1": (
        lambda: L.RNN(L.LSTMCell(3), unroll=True),
        (4, 2),
    ),
    "GRU resetting before": (lambda: L.GRU(3, reset_after=False), (5, 2)),
    "bidirectional": (lambda: L.Bidirectional(L.GRU(2, return_sequences=True)), (4, 3)),
    "bidirectional sum": (lambda: L.Bidirectional(L.LSTM(2), merge_mode="sum"), (4, 3)),
    "stacked cells": (
        lambda: L.RNN(
            [L.LSTMCell(3), L.GRUCell(2), L.SimpleRNNCell(4)], return_state=True
        ),
        (4, 3),
    ),
}


def tensors_of(outputs):
    return [t for t in keras.tree.flatten(outputs)]


def compare(model, x, y, clip=0.3, jit=None):
    model.compile(loss="mse", optimizer="sgd")
    objective, _ = model_objective(model)
    batch = keras.tree.map_structure(tf.convert_to_tensor, (x, y)) + (None,)
    rows = len(keras.tree.flatten(x)[0])
    present = tf.ones([rows], tf.bool)

    def run(engine):
        return engine(Flat(clip)).clip(objective, batch, present)

    expected = run(LoopEngine)
    fast = (
        tf.function(run, autograph=False, jit_compile=jit) if jit is not None else run
    )
    result = fast(BookkeepingEngine)
    for one, other in zip(expected.outputs, result.outputs, strict=True):
        np.testing.assert_allclose(other, one, atol=2e-5)
    norms = np.sqrt(expected.squared_norms.numpy())
    if norms.size:
        np.testing.assert_allclose(
            np.sqrt(result.squared_norms), norms, rtol=1e-5, atol=1e-5 * norms.max()
        )
    scale = max(np.abs(g).max() for g in expected.gradients)
    for one, other in zip(expected.gradients, result.gradients, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5 * scale, rtol=0)
    return objective


def model_of(layer, shape):
    inputs = keras.Input(shape)
    outputs = layer(L.Dense(shape[-1], name="before")(inputs))
    outputs = [L.Flatten()(t) for t in tensors_of(outputs)]
    joined = L.Concatenate()(outputs) if len(outputs) > 1 else outputs[0]
    return keras.Model(inputs, joined)


def data_for(model, rows):
    generator = np.random.default_rng(3)
    x = generator.normal(size=(rows, *model.input_shape[1:])).astype("float32")
    y = generator.normal(size=(rows, *model.output_shape[1:])).astype("float32")
    return x, y


@pytest.mark.parametrize("name", CASES)
def test_rule_equals_one_example_at_a_time(name, seeded):
    make, shape = CASES[name]
    model = model_of(make(), shape)
    for variable in model.trainable_variables:
        variable.assign_add(keras.random.normal(variable.shape, stddev=0.2, seed=5))
    for rows in (1, 4):
        objective = compare(model, *data_for(model, rows))
    texts = [unit.rule.text for unit in plan_units(objective)]
    assert not any("differentiated by itself" in text for text in texts)


@pytest.mark.parametrize("name", ["conv2d", "LSTM {}", "layer norm", "stacked cells"])
@pytest.mark.parametrize("jit", [False, True])
def test_rule_in_a_compiled_graph(name, jit, seeded):
    make, shape = CASES[name]
    model = model_of(make(), shape)
    compare(model, *data_for(model, 3), jit=jit)


@pytest.mark.parametrize("jit", [None, True])
@pytest.mark.parametrize("length", [1, 5, 50])
@pytest.mark.parametrize("large", [False, True])
def test_embedding_adds_up_repeated_ids_before_the_norm(
    length, jit, large, seeded, monkeypatch
):
    if large:  # As for a table too large to mark its rows for every example.
        monkeypatch.setattr(lookup, "fits", lambda *_: False)
    inputs = keras.Input((length,), dtype="int32")
    model = keras.Model(inputs, L.Dense(2)(L.Flatten()(L.Embedding(6, 3)(inputs))))
    generator = np.random.default_rng(0)
    x = generator.integers(0, 6, (4, length)).astype("int32")
    compare(model, x, generator.normal(size=(4, 2)).astype("float32"), jit=jit)


@pytest.mark.parametrize("cls", [L.SimpleRNN, L.LSTM, L.GRU])
@pytest.mark.parametrize("options", [{}, {"zero_output_for_mask": True}])
def test_masked_sequences(cls, options, seeded):
    inputs = keras.Input((6,), dtype="int32")
    x = L.Embedding(5, 3, mask_zero=True)(inputs)
    x = L.Bidirectional(cls(2, return_sequences=True, **options))(x)
    x = cls(2, **options)(x)
    model = keras.Model(inputs, L.Dense(1)(x))
    tokens = np.array(
        [[1, 2, 3, 0, 0, 0], [0, 0, 4, 0, 1, 1], [1, 1, 1, 1, 1, 1]], "int32"
    )
    compare(model, tokens, np.ones((3, 1), "float32"))


def recurrent_with_weights_in_the_activation(trainable):
    activation = L.PReLU(trainable=trainable, alpha_initializer="ones")
    activation.build((None, 3))
    layers = [keras.Input((4, 2)), L.SimpleRNN(3, activation=activation), L.Dense(1)]
    return keras.Sequential(layers)


def test_activations_of_recurrent_layers_may_have_frozen_weights(seeded):
    model = recurrent_with_weights_in_the_activation(trainable=False)
    compare(model, *data_for(model, 3))


def test_trained_weights_in_activations_of_recurrent_layers_are_refused(seeded):
    model = recurrent_with_weights_in_the_activation(trainable=True)
    with pytest.raises(UnsupportedLayerError, match="alpha.* is used outside"):
        compare(model, *data_for(model, 3))


@pytest.mark.parametrize("cls", [L.LSTM, L.GRU])
def test_initial_states_are_differentiated(cls, seeded):
    first, second = keras.Input((4, 2)), keras.Input((3, 2))
    _, *states = cls(3, return_state=True)(first)
    outputs = cls(3)(second, initial_state=states)
    model = keras.Model([first, second], L.Dense(1)(outputs))
    generator = np.random.default_rng(0)
    x = [generator.normal(size=(3, n, 2)).astype("float32") for n in (4, 3)]
    compare(model, x, np.ones((3, 1), "float32"))


@pytest.mark.parametrize("groups", [1, 2])
def test_attention_through_its_projections(groups, seeded):
    inputs = keras.Input((5, 6))
    attention = (
        L.MultiHeadAttention(2, 3, dropout=0.0)
        if groups == 1
        else L.GroupQueryAttention(3, 4, 2)
    )
    x = attention(inputs, inputs, use_causal_mask=True)
    model = keras.Model(inputs, L.Dense(1)(L.LayerNormalization()(x + inputs)))
    compare(model, *data_for(model, 3))


def test_a_layer_used_twice_has_the_norm_of_the_sum():
    layer = L.Dense(
        1, use_bias=False, kernel_initializer=keras.initializers.Constant(3)
    )
    inputs = keras.Input((1,))
    model = keras.Model(inputs, layer(layer(inputs)))
    model.compile(loss=lambda y, p: keras.ops.sum(p, -1), optimizer="sgd")
    objective, _ = model_objective(model)
    batch = (tf.ones([1, 1]), tf.ones([1, 1]), None)
    result = BookkeepingEngine(Flat(1.0)).clip(objective, batch, tf.constant([True]))
    np.testing.assert_allclose(result.squared_norms, [[36.0]], rtol=1e-6)
    np.testing.assert_allclose(result.gradients[0], [[1.0]], rtol=2e-6)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: L.Dense(3), (3,)),
        (lambda: L.Conv1D(3, 3, padding="same"), (5, 3)),
        (lambda: L.LSTM(3, return_sequences=True), (4, 3)),
        (lambda: L.GRU(3, return_sequences=True, reset_after=False), (4, 3)),
        (lambda: L.LayerNormalization(), (5,)),
    ],
)
def test_layers_used_twice(make, shape, seeded):
    layer = make()
    inputs = keras.Input(shape)
    model = keras.Model(inputs, layer(L.Activation("tanh")(layer(inputs))))
    compare(model, *data_for(model, 3))


def test_an_embedding_tied_to_the_output(seeded):
    inputs = keras.Input((4,), dtype="int32")
    table = L.ReversibleEmbedding(7, 3)
    model = keras.Model(inputs, table(L.Dense(3)(table(inputs)), reverse=True))
    x = np.array([[1, 1, 2, 6], [0, 3, 3, 3], [5, 4, 0, 0]], "int32")
    y = np.random.default_rng(0).normal(size=(3, 4, 7)).astype("float32")
    compare(model, x, y)


class Scaled(L.Layer):
    """Two outputs, and variables of its own."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="random_normal")
        self.inner = L.Dense(2)
        self.inner.build(shape)

    def call(self, inputs):
        return keras.ops.sin(inputs * self.scale), self.inner(inputs)


class TwiceDense(L.Dense):
    def call(self, inputs, training=None):
        return 2 * super().call(inputs)


@pytest.mark.parametrize("make", [Scaled, lambda: TwiceDense(3, activation="tanh")])
@pytest.mark.parametrize("jit", [None, False, True])
def test_any_other_layer_is_differentiated_by_itself(make, jit, seeded):
    model = model_of(make(), (4,))
    objective = compare(model, *data_for(model, 3), jit=jit)
    texts = [unit.rule.text for unit in plan_units(objective)]
    assert sum("differentiated by itself" in text for text in texts) == 1


def test_lora_is_left_to_the_fallback(seeded):
    layer = L.Dense(3)
    model = model_of(layer, (4,))
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(np.ones((2, 3)))
    objective = compare(model, *data_for(model, 3))
    (text,) = [u.rule.text for u in plan_units(objective) if u.layer is layer]
    assert "LoRA" in text


@pytest.mark.parametrize("frozen", ["kernel", "bias", "layer"])
def test_partly_frozen_layers(frozen, seeded):
    layer = L.Dense(3)
    model = model_of(layer, (4,))
    if frozen == "layer":
        layer.trainable = False
    else:
        getattr(layer, "_kernel" if frozen == "kernel" else "bias").trainable = False
    compare(model, *data_for(model, 3))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float64"])
def test_other_dtypes(policy, seeded):
    layers = [
        lambda: L.Conv1D(4, 2, dtype=policy),
        lambda: L.LayerNormalization(dtype=policy),
        lambda: L.LSTM(3, return_sequences=True, dtype=policy),
        lambda: L.Dense(2, dtype=policy),
    ]
    model = keras.Sequential([keras.Input((6, 3)), *(make() for make in layers)])
    x, y = data_for(model, 3)
    model.compile(loss="mse", optimizer="sgd")
    objective, _ = model_objective(model)
    batch = (tf.constant(x), tf.constant(y), None)
    results = [
        engine(Flat(0.3)).clip(objective, batch, tf.ones([3], tf.bool))
        for engine in (LoopEngine, BookkeepingEngine)
    ]
    tolerance = {"float64": 1e-6, "mixed_float16": 1e-2, "mixed_bfloat16": 6e-2}[policy]
    norms = [np.sqrt(r.squared_norms) for r in results]
    assert results[1].squared_norms.dtype == tf.float32
    np.testing.assert_allclose(norms[1], norms[0], rtol=tolerance, atol=tolerance)
    for one, other in zip(results[0].gradients, results[1].gradients, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(other, one, atol=tolerance)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("entries", [1000, 2048, 4096, 2**16, 2**20])
def test_norms_of_equal_entries_are_not_too_small(entries, jit):
    norms = tf.function(lambda t: tf.sqrt(squares(t)), jit_compile=jit)
    for value in np.random.default_rng(0).uniform(0.01, 1.0, 20).astype("float32"):
        norm = float(norms(tf.fill((1, entries), value))[0])
        assert norm / (np.sqrt(entries) * float(value)) - 1.0 > -1e-6 + 1e-7
