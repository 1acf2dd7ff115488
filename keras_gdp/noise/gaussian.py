"""A stream of Gaussian noise that never repeats.

Whoever knows the noise can subtract it, so the key of the stream is drawn from the
operating system's entropy, lives outside of everything that is saved with a model,
and is replaced after every step. A model that is reloaded, or a checkpoint that is
restored twice, therefore never meets the same noise again. Only a stream with an
explicit `seed` is a function of public numbers: the seed and the step counter.

The generator is TensorFlow's counter-based Philox, which is not a cryptographic
generator, and the samples are floating-point numbers, none beyond 6.7 standard
deviations in float32: neither attacks on the generator nor on floating-point rounding
(Mironov 2012) are covered.
"""

import math
import os

import tensorflow as tf

__all__ = ["NoiseStream"]

_PHILOX = 1


class NoiseStream:
    """Draws independent standard normal tensors, step after step.

    Args:
        seed: `None` for a key from the operating system's entropy (the only choice
            that protects privacy), or an int for noise that can be reproduced.

    Guarantees:
        Tensors of one step, and of different steps, come from different positions
        of the generator. Without a seed this holds across copies, reloads and
        restored checkpoints as well.
    """

    def __init__(self, seed: int | None = None):
        self.seed = seed
        self._process = os.getpid()
        with tf.init_scope():
            # The plain list keeps Keras and tf.train.Checkpoint from saving the key.
            self._key = [tf.Variable(_fresh_key(seed), trainable=False)]

    def __deepcopy__(self, memo):
        del memo
        return NoiseStream(self.seed)

    def __reduce__(self):
        return NoiseStream, (self.seed,)

    def refresh_after_fork(self) -> None:
        """Draws a new key if this is a copy of the process that drew the last one."""
        if self._process != os.getpid():
            self.refresh()
            self._process = os.getpid()

    def refresh(self) -> None:
        """Draws a new key, unless the stream has a seed."""
        if self.seed is None:
            self._key[0].assign(_fresh_key(None))

    def draw(self, shapes, dtypes, step, stddevs=None):
        """Returns one normal tensor of mean zero per shape.

        Args:
            shapes: Static shapes of the tensors.
            dtypes: Their floating dtypes.
            step: Scalar integer tensor, the number of steps taken so far. It is the
                position in a stream with a seed.
            stddevs: Their standard deviations, floats or scalar tensors; `None` for 1.

        Returns:
            A list of dense tensors; all float64 if one of them is.
        """
        key = self._key[0]
        seed = tf.convert_to_tensor(key)
        if self.seed is not None:
            seed = tf.stack([seed[0], tf.cast(step, tf.int64)])
        # Keys of full length for the next step and for this one.
        following, current = tf.unstack(_words([2, 2], seed))
        if self.seed is None:
            key.assign(following)
        normals = _standard_normal(shapes, dtypes, current)
        if stddevs is None:
            return _split(normals, shapes)
        first, *others = stddevs
        if all(stddev is first for stddev in others):
            return _split(tf.cast(first, normals.dtype) * normals, shapes)
        return [
            tf.cast(stddev, piece.dtype) * piece
            for stddev, piece in zip(stddevs, _split(normals, shapes), strict=True)
        ]


def _words(shape, key):
    """Returns random words of 64 bits; the key's two words are all used.

    XLA would cut both to 32 bits on their way through `tf.random.stateless_uniform`.
    """
    first, second = tf.unstack(tf.bitcast(key, tf.uint64))
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=shape,
        key=tf.expand_dims(first, 0),
        # The lower word counts the numbers drawn.
        counter=tf.stack([tf.zeros([], tf.uint64), second]),
        alg=_PHILOX,
        dtype=tf.int64,
    )


def _standard_normal(shapes, dtypes, key):
    """Returns one long vector of normals, in the widest of the dtypes."""
    dtype = tf.float64 if tf.float64 in dtypes else tf.float32
    pairs = (sum(math.prod(shape) for shape in shapes) + 1) // 2
    # Words of 64 bits: XLA is slow at others. Each gives two numbers of 32 bits, or
    # one of 64, and these, two by two, two normals (Box and Muller 1958). TensorFlow's
    # own normals come from the same formula, one at a time and with 23 bits.
    words = _words([pairs if dtype == tf.float32 else 2 * pairs], key)
    bits = 63
    if dtype == tf.float32:
        words, bits = tf.bitcast(words, tf.int32), 31
    first, second = tf.unstack(tf.cast(tf.reshape(words, [2, -1]), dtype))
    # In (0, 1], the smallest value a quarter of the resolution.
    uniform = tf.abs(first) * 2.0**-bits + 2.0 ** -(bits + 2)
    radius = tf.sqrt(-2.0 * tf.math.log(tf.minimum(uniform, 1.0)))
    angle = second * (math.pi * 2.0**-bits)
    return tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], axis=0)


def _split(vector, shapes):
    sizes = [math.prod(shape) for shape in shapes]
    *pieces, _ = tf.split(vector, [*sizes, vector.shape[0] - sum(sizes)])
    return [
        piece if len(shape) == 1 else tf.reshape(piece, shape)
        for piece, shape in zip(pieces, shapes, strict=True)
    ]


def _fresh_key(seed):
    if seed is None:
        words = os.urandom(16)
        return tf.constant(
            [
                int.from_bytes(words[:8], "little", signed=True),
                int.from_bytes(words[8:], "little", signed=True),
            ],
            tf.int64,
        )
    return tf.constant([seed % 2**63, 0], tf.int64)
