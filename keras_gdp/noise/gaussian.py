"""A stream of Gaussian noise that never repeats.

Whoever knows the noise can subtract it, so the key of the stream is drawn from the
operating system's entropy, lives outside of everything that is saved with a model,
and is replaced after every step. A model that is reloaded, or a checkpoint that is
restored twice, therefore never meets the same noise again. Only a stream with an
explicit `seed` is a function of public numbers: the seed and the step counter.

The generator is TensorFlow's counter-based Philox, which is not a cryptographic
generator, and the samples are floating-point numbers: neither attacks on the
generator nor on floating-point rounding (Mironov 2012) are covered.
"""

import os

import tensorflow as tf

__all__ = ["NoiseStream"]


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

    def draw(self, shapes, dtypes, step):
        """Returns one standard normal tensor per shape.

        Args:
            shapes: Shapes of the tensors.
            dtypes: Their floating dtypes.
            step: Scalar integer tensor, the number of steps taken so far. It is the
                position in a stream with a seed.

        Returns:
            A list of dense tensors.
        """
        key = self._key[0]
        seed = tf.convert_to_tensor(key)
        if self.seed is not None:
            seed = tf.stack([seed[0], tf.cast(step, tf.int64)])
        # Keys of full length for the next step and for every tensor of this one.
        keys = tf.random.stateless_uniform(
            [1 + len(shapes), 2], seed, minval=None, maxval=None, dtype=tf.int64
        )
        if self.seed is None:
            key.assign(keys[0])
        return [
            tf.random.stateless_normal(shape, keys[index], dtype=dtype)
            for index, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True), 1)
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
