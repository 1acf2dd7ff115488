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
        with tf.init_scope():
            # The plain list keeps Keras and tf.train.Checkpoint from saving the key.
            self._key = [tf.Variable(_fresh_key(seed), trainable=False)]

    def __deepcopy__(self, memo):
        del memo
        return NoiseStream(self.seed)

    def __reduce__(self):
        return NoiseStream, (self.seed,)

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
        if self.seed is None:
            step_key = fold(key, 0)
            key.assign(fold(key, 1))
        else:
            step_key = fold(key, step)
        return [
            tf.random.stateless_normal(shape, fold(step_key, index), dtype=dtype)
            for index, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
        ]


def fold(key, data):
    """Returns a key derived from a key of shape (2,) and an integer."""
    return tf.random.experimental.stateless_fold_in(
        tf.convert_to_tensor(key), tf.cast(data, tf.int64)
    )


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
    return tf.constant([seed % 2**63, 0x6B676470], tf.int64)
