"""The record of private steps, kept in an optimizer variable.

Being a variable, it travels with everything that saves the optimizer: `.keras`
files, weights, checkpoints. It is a small table with one row per phase of training:
all the steps that were taken with the same noise and the same sampling. Their order
does not matter to the accounting.
"""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from keras_gdp.accounting.events import Event
from keras_gdp.errors import LedgerError
from keras_gdp.sampling import KINDS, Sampling

__all__ = ["Phase", "PrivacyLedger"]

_ROWS = 64
# 1 + index of the kind, noise multiplier, batch size, examples, seeds; then steps.
_SETTINGS = 5
_SHUFFLE = 1 + KINDS.index("shuffle")
_SEEDED_NOISE, _SEEDED_SAMPLING = 1, 2


@dataclass(frozen=True)
class Phase:
    """Private steps with the same noise and sampling.

    Attributes:
        sampling: How the batches were drawn.
        noise_multiplier: Of one step as a single Gaussian release.
        steps: Number of steps charged; passes that were broken off count as whole
            where sampling shuffles.
        seeded_noise: Whether the noise can be reproduced from a seed.
    """

    sampling: Sampling
    noise_multiplier: float
    steps: int
    seeded_noise: bool = False

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
        seeded_noise: Whether the noise can be reproduced from a seed.
    """

    shape = (_ROWS, _SETTINGS + 1)

    def __init__(self, variable, noise_multiplier: float, seeded_noise: bool = False):
        self.variable = variable
        self._noise_multiplier = noise_multiplier
        self._seeded_noise = seeded_noise
        with tf.init_scope():
            # Process-local, hence in lists, which hide them from checkpoints: what the
            # next step is; the steps taken here; and the steps of the shuffled phase
            # as this process left them. A table that was restored meanwhile shows
            # another number, by which a pass that was broken off is recognised.
            self._current = [tf.Variable(self._encode(Sampling("unknown")))]
            self._taken = [tf.Variable(0, dtype=tf.int64)]
            self._left = [tf.Variable(-1.0, dtype=tf.float64)]

    def _encode(self, sampling: Sampling, noise_multiplier=None):
        if noise_multiplier is None:
            noise_multiplier = self._noise_multiplier
        seeds = _SEEDED_NOISE * self._seeded_noise + _SEEDED_SAMPLING * sampling.seeded
        return np.array(
            [
                1 + KINDS.index(sampling.kind),
                noise_multiplier,
                sampling.batch_size,
                sampling.num_examples,
                seeds,
            ],
            np.float64,
        )

    # The graph's half ---------------------------------------------------------------

    def record(self) -> None:
        """Adds one step; runs inside the graph.

        Steps over shuffled data that continue no pass of this process begin one: the
        steps so far are rounded up to whole passes.
        """
        table = tf.convert_to_tensor(self.variable)
        kind, _, batch_size, num_examples, _ = tf.unstack(self._current[0])
        row, _ = self._position(table)
        chosen = tf.equal(tf.range(_ROWS), row)
        # Not by index: XLA would compile the step anew for every table. A new row
        # holds zeros.
        steps = tf.reduce_sum(tf.where(chosen, table[:, -1], 0.0))
        shuffled = tf.equal(kind, _SHUFFLE)
        per_pass = tf.where(
            shuffled, tf.math.ceil(num_examples / tf.maximum(batch_size, 1.0)), 1.0
        )
        whole = tf.math.ceil(steps / per_pass) * per_pass
        steps = tf.where(tf.equal(steps, self._left[0]), steps, whole) + 1.0
        entry = tf.concat([self._current[0], [steps]], axis=0)
        self.variable.assign(tf.where(chosen[:, None], entry[None, :], table))
        self._left[0].assign(tf.where(shuffled, steps, self._left[0]))
        self._taken[0].assign_add(1)

    def has_room(self):
        """Scalar boolean tensor: whether one more step can be recorded."""
        row, _ = self._position(tf.convert_to_tensor(self.variable))
        return row < _ROWS

    def _position(self, table):
        """Returns the row of the current settings, and whether it is there already."""
        same = tf.reduce_all(tf.equal(table[:, :_SETTINGS], self._current[0]), axis=1)
        used = tf.reduce_sum(tf.cast(table[:, 0] > 0, tf.int32))
        known = tf.reduce_any(same)
        first = tf.argmax(tf.cast(same, tf.int32), output_type=tf.int32)
        return tf.where(known, first, used), known

    # Python's half ------------------------------------------------------------------

    def bind(self, sampling: Sampling, new_pass: bool = True) -> None:
        """Declares how the batches of the coming steps are drawn.

        Args:
            sampling: The declaration.
            new_pass: Whether a pass over the data starts here: one over shuffled data
                that was broken off is then charged whole.

        Raises:
            LedgerError: If the table has no room for another phase.
        """
        settings = self._encode(sampling)
        rows = self._rows()
        known = any(np.array_equal(row[:_SETTINGS], settings) for row in rows)
        # The last row is kept for steps of unknown sampling, which need no bind.
        if not known and len(rows) >= _ROWS - 1 and sampling.kind != "unknown":
            raise LedgerError(_full(len(rows)))
        self._current[0].assign(settings)
        if new_pass:
            self._left[0].assign(-1.0)

    @property
    def taken(self) -> int:
        """Steps that this process recorded, whatever was restored meanwhile."""
        return int(self._taken[0].numpy())

    @property
    def binding(self):
        """What `bind` declared, to be put back with `rebind`."""
        return self._current[0].numpy()

    def rebind(self, binding) -> None:
        """Puts back what `binding` returned."""
        self._current[0].assign(binding)

    def charge_as_unknown(self, steps: int) -> None:
        """Moves the last steps of the current phase to one of unknown sampling."""
        settings = self._current[0].numpy()
        rows = self._rows()
        for row in rows:
            if np.array_equal(row[:_SETTINGS], settings):
                row[-1] = max(0.0, row[-1] - steps)
        self._write(rows)
        self._add([*self._encode(Sampling("unknown")), steps])

    def charge_unprotected_step(self) -> None:
        """Adds a step that saw the data without noise."""
        self._add([*self._encode(Sampling("unknown"), noise_multiplier=0.0), 1.0])

    def clear(self) -> None:
        """Forgets all phases."""
        self._write([])

    def take_over(self, other: "PrivacyLedger") -> None:
        """Adds all phases of another ledger to this one."""
        for row in other._rows():
            self._add(row)

    def _add(self, entry) -> None:
        entry = np.asarray(entry, np.float64)
        rows = self._rows()
        for row in rows:
            if np.array_equal(row[:_SETTINGS], entry[:_SETTINGS]):
                # Each part's passes are its own.
                phase, added = self._decode(row), self._decode(entry)
                per_release = phase.sampling.steps_per_release
                row[-1] = (phase.count + added.count) * per_release
                break
        else:
            rows.append(entry)
        self._write(rows)

    def _rows(self):
        table = self.variable.numpy()
        return list(table[table[:, 0] > 0])

    def _write(self, rows) -> None:
        rows = [row for row in rows if row[-1] > 0]
        if len(rows) > _ROWS:
            raise LedgerError(_full(len(rows)))
        table = np.zeros(self.shape)
        for index, row in enumerate(rows):
            table[index] = row
        self.variable.assign(table)

    def phases(self) -> list[Phase]:
        """Returns all phases so far."""
        return [self._decode(row) for row in self._rows()]

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
        kind, noise_multiplier, batch_size, num_examples, seeds, steps = row.tolist()
        try:
            whole = batch_size.is_integer()
            sampling = Sampling(
                KINDS[int(kind) - 1],
                int(batch_size) if whole else batch_size,
                int(num_examples),
                seeded=bool(int(seeds) & _SEEDED_SAMPLING),
            )
            seeded_noise = bool(int(seeds) & _SEEDED_NOISE)
        except (ValueError, TypeError, IndexError) as error:
            raise LedgerError(
                f"The privacy ledger holds an entry that cannot be read: {row}. "
                "Restore the model from an intact file."
            ) from error
        return Phase(sampling, noise_multiplier, int(steps), seeded_noise)


def _full(rows):
    return (
        f"The privacy ledger holds {rows} phases of training, the most it can record: "
        "one for each combination of noise and sampling. Train with fewer changes, or "
        "account for this model by hand from `optimizer.phases`."
    )
