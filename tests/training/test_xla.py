"""What XLA compiles of a private step, and that it compiles it once."""

import re
from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_gdp as gdp
from keras_gdp.clipping import AdaptiveQuantile

BATCH = 6


def dense():
    layers = [keras.Input((5,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(3)]
    return keras.Sequential(layers), (BATCH, 5), "float32"


def convolution():
    layers = [
        keras.Input((6, 6, 2)),
        keras.layers.Conv2D(4, 3, strides=2),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]
    return keras.Sequential(layers), (BATCH, 6, 6, 2), "float32"


def recurrent():
    layers = [keras.Input((4, 2)), keras.layers.LSTM(3), keras.layers.Dense(3)]
    return keras.Sequential(layers), (BATCH, 4, 2), "float32"


def text():
    layers = [
        keras.Input((40,), dtype="int32"),
        keras.layers.Embedding(50, 4),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(3),
    ]
    return keras.Sequential(layers), (BATCH, 40), "int32"


def compiled(build, **options):
    """Returns a trained model and a batch for it."""
    model, shape, dtype = build()
    settings = {"l2_norm_clip": 1.0, "noise_multiplier": 1.0, "batch_size": BATCH}
    model.compile(
        gdp.DPAdam(0.1, **(settings | options)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    x = np.random.default_rng(0).integers(0, 9, shape).astype(dtype)
    batch = tf.constant(x), tf.range(BATCH) % 3
    model.train_on_batch(*batch)  # creates all variables
    return model, batch


def described(tensor):
    kind = {"float32": "f32", "float64": "f64", "int32": "s32", "int64": "s64"}
    shape = ",".join(str(size) for size in tensor.shape)
    return f"{kind[tf.as_dtype(tensor.dtype).name]}[{shape}]"


def check_arguments(step, batch, variables):
    """Checks that XLA makes no constant of a tensor or variable."""
    step = tf.function(step, jit_compile=True, autograph=False)
    program = step.experimental_get_compiler_ir(*batch)(stage="hlo")
    entry = program[program.index("\nENTRY ") :]
    taken = Counter(re.findall(r"= (\w+\[[\d,]*\])\S* parameter\(", entry))
    needed = Counter(described(tensor) for tensor in (*batch, *variables))
    assert not needed - taken


@pytest.mark.parametrize("build", [dense, convolution, recurrent, text])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clipping": "reweight"},
        {"clipping": "loop"},
        {"physical_batch_size": 3},
        {"l2_norm_clip": AdaptiveQuantile(0.5, 0.2)},
    ],
    ids=["bookkeeping", "reweight", "loop", "chunks", "adaptive"],
)
def test_a_training_step_is_not_compiled_anew_for_other_values(build, options):
    model, batch = compiled(build, **options)
    variables = [*model.trainable_variables, *model.optimizer.variables]
    check_arguments(
        lambda *data: model.train_step(data), batch, [v.value for v in variables]
    )


def test_a_private_step_is_not_compiled_anew_for_other_values():
    model, batch = compiled(dense)

    def loss(example):
        x, y = example
        logits = model(x[None])
        return tf.reduce_sum(
            keras.losses.sparse_categorical_crossentropy(y[None], logits, True)
        )

    def step(*data):
        return model.optimizer.private_step(loss, data, model.trainable_variables)

    variables = [*model.trainable_variables, *model.optimizer.variables]
    check_arguments(step, batch, [v.value for v in variables])
