"""The record of private steps, kept in an optimizer variable.

Being a variable, it travels with everything that saves the optimizer: `.keras`
files, weights, checkpoints. It is a small table with one row per phase of training;
a phase ends where the noise or the sampling changes.
"""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from keras_gdp.accounting.events import Event
from keras_gdp.errors import LedgerError
from keras_gdp.sampling import KINDS, Sampling

__all__ = ["Phase", "PrivacyLedger"]

_ROWS = 64
# Columns: 1 + index of the kind, noise multiplier, batch size, examples, steps.
_COLUMNS = 5


@dataclass(frozen=True)
class Phase:
    """Consecutive private steps with the same noise and sampling.

    Attributes:
        sampling: How the batches were drawn.
        noise_multiplier: Of one step as a single Gaussian release.
        steps: Number of steps charged; whole passes where sampling shuffles.
    """

    sampling: Sampling
    noise_multiplier: float
    steps: int

    @property
    def event(self) -> Event:
        """One release of this phase."""
        return self.sampling.event(self.noise_multiplier)

    @property
    def count(self) -> int:
        """Number of releases of this phase."""
        return self.sampling.releases(self.steps)


class PrivacyLedger:
    """Reads and writes the table.

    Args:
        variable: Float64 Keras variable of shape `PrivacyLedger.shape`, zeros at first.
        noise_multiplier: Of one step, as a single Gaussian release.
    """

    shape = (_ROWS, _COLUMNS)

    def __init__(self, variable, noise_multiplier: float):
        self.variable = variable
        self._noise_multiplier = noise_multiplier
        with tf.init_scope():
            # What the next step is: process-local, hence hidden from checkpoints.
            self._current = [tf.Variable(self._encode(Sampling("unknown")))]

    def _encode(self, sampling: Sampling):
        return np.array(
            [
                1 + KINDS.index(sampling.kind),
                self._noise_multiplier,
                sampling.batch_size,
                sampling.num_examples,
            ],
            np.float64,
        )

    def bind(self, sampling: Sampling, new_pass: bool = True) -> None:
        """Declares how the batches of the coming steps are drawn.

        With `new_pass`, a pass over shuffled data that was broken off is charged
        whole, because a new one starts from the beginning.
        """
        self._current[0].assign(self._encode(sampling))
        if new_pass:
            self._close_pass()

    def _close_pass(self) -> None:
        table = self.variable.numpy()
        used = int(np.sum(table[:, 0] > 0))
        if used >= _ROWS - 1:
            raise LedgerError(
                f"The privacy ledger holds {used} phases of training, the most it can "
                "record. Phases end where noise or sampling change; train with fewer "
                "changes, or account for this model by hand from `optimizer.phases`."
            )
        if used:
            last = self._decode(table[used - 1])
            per_release = last.sampling.steps_per_release
            table[used - 1, 4] = last.count * per_release
            self.variable.assign(table)

    def record(self) -> None:
        """Adds one step; runs inside the graph."""
        table = tf.convert_to_tensor(self.variable)
        used, same = self._position(table)
        row = tf.where(same, used - 1, used)
        steps = tf.where(same, table[tf.maximum(used - 1, 0), 4], 0.0) + 1.0
        entry = tf.concat([self._current[0], [steps]], axis=0)
        chosen = tf.equal(tf.range(_ROWS), row)[:, None]
        self.variable.assign(tf.where(chosen, entry[None, :], table))

    def has_room(self):
        """Scalar boolean tensor: whether one more step can be recorded."""
        used, same = self._position(tf.convert_to_tensor(self.variable))
        return tf.logical_or(same, used < _ROWS)

    def _position(self, table):
        used = tf.reduce_sum(tf.cast(table[:, 0] > 0, tf.int32))
        last = table[tf.maximum(used - 1, 0), :4]
        same = tf.logical_and(used > 0, tf.reduce_all(tf.equal(last, self._current[0])))
        return used, same

    def phases(self) -> list[Phase]:
        """Returns all phases so far."""
        table = self.variable.numpy()
        used = int(np.sum(table[:, 0] > 0))
        return [self._decode(row) for row in table[:used]]

    def check(self, private_steps: int) -> None:
        """Raises `LedgerError` if the table contradicts the step counter."""
        recorded = sum(phase.steps for phase in self.phases())
        if recorded < private_steps:
            raise LedgerError(
                f"The optimizer counts {private_steps} private steps but its ledger "
                f"explains only {recorded}. The state was damaged or loaded in part; "
                "restore the model from an intact file."
            )

    @staticmethod
    def _decode(row) -> Phase:
        kind, noise_multiplier, batch_size, num_examples, steps = row.tolist()
        try:
            whole = batch_size.is_integer()
            sampling = Sampling(
                KINDS[int(kind) - 1],
                int(batch_size) if whole else batch_size,
                int(num_examples),
            )
        except (ValueError, TypeError, IndexError) as error:
            raise LedgerError(
                f"The privacy ledger holds an entry that cannot be read: {row}. "
                "Restore the model from an intact file."
            ) from error
        return Phase(sampling, noise_multiplier, int(steps))
