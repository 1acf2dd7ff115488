"""Rows that are broken or do not fit must not reach other rows' gradients."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_gdp as gdp

V, TOKENS, CLIP = 50, 200, 0.5
TARGETS = np.array([[1e4], [0.0]], "float32")


def reader(kind):
    head = keras.layers.Dense(1)
    head.trainable = False  # or its gradients would bound those of the table
    ids = keras.Input((TOKENS,), dtype="int32")
    if kind == "embedding":
        read = keras.layers.Embedding(V, 3)(ids)
    else:
        read = OwnTable()(ids)
    return keras.Model(ids, head(keras.layers.GlobalAveragePooling1D()(read)))


class OwnTable(keras.layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(V, 3), name="table")

    def call(self, ids):
        return keras.ops.take(self.table, ids, axis=0)


def moved(kind, x, y, **options):
    """Returns by how much one step moves the weights, in clip norms."""
    keras.utils.set_random_seed(1)
    model = reader(kind)
    optimizer = gdp.DPSGD(
        1.0, l2_norm_clip=CLIP, noise_multiplier=0.0, batch_size=1, **options
    )
    model.compile(optimizer, loss="mse", jit_compile=True)
    before = [keras.ops.convert_to_numpy(v) for v in model.trainable_variables]
    model.train_on_batch(x, y)
    after = [keras.ops.convert_to_numpy(v) for v in model.trainable_variables]
    return [(b - a) / CLIP for a, b in zip(after, before, strict=True)]


@pytest.mark.parametrize("bad", [5 - 2 * V, V + 5, V + 7])
@pytest.mark.parametrize(
    ("kind", "clipping"),
    [
        ("embedding", "auto"),
        ("embedding", "reweight"),
        ("embedding", "vectorized"),
        ("own", "auto"),
    ],
)
def test_ids_out_of_range_stay_within_their_row_under_xla(kind, clipping, bad):
    good, broken = np.full(TOKENS, 5), np.full(TOKENS, 7)
    broken[:100] = bad
    for steep in TARGETS, TARGETS[::-1]:  # whose gradient is far beyond the bound
        alone = moved(kind, good[None].astype("int32"), steep[:1], clipping=clipping)
        for order in (1, -1):  # the broken row after the good one, or before it
            x = np.stack([good, broken][::order]).astype("int32")
            both = moved(kind, x, steep[::order], clipping=clipping)
            change = [b - a for a, b in zip(alone, both, strict=True)]
            assert np.sqrt(sum((c**2).sum() for c in change)) <= 1.0


@pytest.mark.parametrize("loss", ["mse", "hinge"])
@pytest.mark.parametrize("clipping", ["auto", "vectorized", "loop"])
def test_fewer_targets_than_inputs_are_refused(loss, clipping):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4)])
    optimizer = gdp.DPSGD(
        1.0, l2_norm_clip=1.0, noise_multiplier=0.0, batch_size=4, clipping=clipping
    )
    model.compile(optimizer, loss=loss)
    data = tf.data.Dataset.from_generator(
        lambda: iter([(np.ones((4, 5), "float32"), np.ones((1, 4), "float32"))] * 2),
        output_signature=(
            tf.TensorSpec((None, 5), tf.float32),
            tf.TensorSpec((None, 4), tf.float32),
        ),
    )
    before = [keras.ops.convert_to_numpy(v) for v in model.trainable_variables]
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.fit(data, verbose=0)
    for variable, value in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def contrastive(y_true, y_pred):
    centred = y_pred - keras.ops.mean(y_pred, axis=0, keepdims=True)
    return keras.ops.mean(keras.ops.square(centred))


def soft(y_true, y_pred):
    square = keras.ops.mean(keras.ops.square(y_true - y_pred))
    return square * keras.ops.mean(keras.ops.abs(y_pred))


def pairs(y_true, y_pred):
    """NT-Xent: an example's partner is half a batch away."""
    unit = y_pred / keras.ops.norm(y_pred, axis=-1, keepdims=True)
    count = keras.ops.shape(y_pred)[0]
    scores = keras.ops.matmul(unit, keras.ops.transpose(unit)) / 0.1
    scores -= 1e9 * keras.ops.eye(count)
    partners = keras.ops.mod(keras.ops.arange(count) + count // 2, count)
    return keras.losses.sparse_categorical_crossentropy(
        partners, scores, from_logits=True
    )


def retrieval(y_true, y_pred):
    """The other targets of the batch are the wrong answers."""
    scores = keras.ops.matmul(y_pred, keras.ops.transpose(y_true))
    return -keras.ops.diagonal(keras.ops.log_softmax(scores, axis=-1))


def ranking(y_true, y_pred):
    signs = keras.ops.sign(y_true[:, None] - y_true[None])
    return keras.ops.relu(1.0 - signs * (y_pred[:, None] - y_pred[None]))


def spread(y_true, y_pred):
    square = keras.ops.mean(keras.ops.square(y_true - y_pred))
    return square + keras.ops.mean(keras.ops.var(y_pred, axis=0))


def tokens(y_true, y_pred):
    """A mean over what is valid in the batch: another scale, no other objective."""
    valid = keras.ops.cast(y_true > 0.3, "float32")
    error = valid * keras.ops.square(y_true - y_pred)
    return keras.ops.sum(error) / keras.ops.sum(valid)


def trained(loss, targets=3, clipping="auto", dtype="float32"):
    layers = keras.layers.Dense(3, dtype=dtype), keras.layers.Softmax(dtype=dtype)
    model = keras.Sequential([keras.Input((5,)), *layers])
    optimizer = gdp.DPSGD(
        1.0, l2_norm_clip=1.0, noise_multiplier=0.0, batch_size=4, clipping=clipping
    )
    model.compile(optimizer, loss=loss)
    y = np.eye(3, dtype="float32")[[0, 1, 2, 0]]
    y = y if targets == 3 else np.array([0, 1, 2, 0])
    model.train_on_batch(np.ones((4, 5), "float32"), y)


@pytest.mark.parametrize("clipping", ["auto", "reweight", "vectorized", "loop"])
@pytest.mark.parametrize("loss", [contrastive, pairs, keras.losses.Dice()])
def test_losses_that_couple_examples_are_refused(loss, clipping):
    with pytest.raises(gdp.UnsupportedLayerError, match="loss couples the examples"):
        trained(loss, clipping=clipping)


@pytest.mark.parametrize("loss", [soft, retrieval, ranking, spread])
def test_a_coupling_is_found_wherever_it_is(loss):
    with pytest.raises(gdp.UnsupportedLayerError, match="loss couples the examples"):
        trained(loss)


def explained(loss, **kwargs):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    model.compile(gdp.DPSGD(1.0, l2_norm_clip=1.0, noise_multiplier=1.0), loss)
    return gdp.explain_clipping(model, **kwargs).splitlines()


@pytest.mark.parametrize("loss", [contrastive, pairs, keras.losses.Dice(), retrieval])
def test_explain_clipping_says_that_a_loss_would_be_refused(loss):
    assert explained(loss)[-1].startswith("Loss: refused by `fit` (told with made-up")
    batch = np.ones((4, 5), "float32"), np.eye(3, dtype="float32")[[0, 1, 2, 0]]
    assert (
        "Loss: refused by `fit`. The loss couples" in explained(loss, batch=batch)[-1]
    )


@pytest.mark.parametrize(
    "loss",
    [
        "mse",
        "categorical_hinge",
        keras.losses.SparseCategoricalCrossentropy(),
        keras.losses.CategoricalCrossentropy(from_logits=True),
        keras.losses.Dice(axis=-1),
        tokens,
        None,
    ],
)
def test_explain_clipping_says_nothing_of_a_loss_that_is_fine(loss):
    assert not any(line.startswith("Loss") for line in explained(loss))


def test_a_coupling_is_found_without_targets():
    class Centred(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, *args, **kwargs):
            return contrastive(None, y_pred)

    model = Centred([keras.Input((5,)), keras.layers.Dense(3)])
    model.compile(gdp.DPSGD(1.0, l2_norm_clip=1.0, noise_multiplier=0.0, batch_size=4))
    with pytest.raises(gdp.UnsupportedLayerError, match="loss couples the examples"):
        model.train_on_batch(np.ones((4, 5), "float32"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("loss", [contrastive, "mse", "categorical_crossentropy"])
def test_losses_of_other_types_are_told_apart(loss, dtype):
    if loss is contrastive:
        with pytest.raises(gdp.UnsupportedLayerError):
            trained(loss, dtype=dtype)
    else:
        trained(loss, dtype=dtype)


def noisy(y_true, y_pred):
    noise = keras.random.normal(keras.ops.shape(y_pred))
    return keras.ops.mean(keras.ops.square(y_true - y_pred + noise), axis=-1)


@pytest.mark.parametrize(
    "loss",
    [
        "mse",
        "hinge",
        "categorical_hinge",
        "categorical_crossentropy",
        "kl_divergence",
        "cosine_similarity",
        keras.losses.CategoricalFocalCrossentropy(label_smoothing=0.1),
        keras.losses.Huber(reduction="sum"),
        keras.losses.Dice(axis=1),
        lambda y, p: keras.ops.mean(keras.ops.abs(y - p), axis=-1),
        noisy,
        tokens,
    ],
)
def test_sums_over_examples_are_not(loss):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(loss)


def test_sums_over_examples_with_integer_labels_are_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained("sparse_categorical_crossentropy", targets=1)
