"""The record of private steps, kept in an optimizer variable.

Being a variable, it travels with everything that saves the optimizer: `.keras`
files, weights, checkpoints. It is a small table with one row per phase of training:
all the steps that were taken with the same noise and the same sampling. Their order
does not matter to the accounting.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

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


class Place(NamedTuple):
    """Where a step will be recorded: tensors of one step's graph.

    Attributes:
        table: The table before the step.
        steps: Its last column.
        chosen: Boolean column that marks the row.
        there_is_room: Whether there is one.
    """

    table: Any
    steps: Any
    chosen: Any
    there_is_room: Any


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
            # next step is; how many make a pass over shuffled data; the steps taken
            # here; and the steps of the shuffled phase as this process left them. A
            # table that was restored meanwhile shows another number, by which a pass
            # that was broken off is recognised.
            self._current = [tf.Variable(self._encode(Sampling("unknown")))]
            self._per_pass = [tf.Variable(1.0, dtype=tf.float64)]
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

    def place(self) -> Place:
        """Where the next step will be recorded; runs inside the graph.

        That is the row of the current settings or, if there is none, the first row
        that holds no steps.
        """
        table = tf.convert_to_tensor(self.variable)
        settings, steps = tf.split(table, [_SETTINGS, 1], axis=1)
        known = tf.reduce_all(tf.equal(settings, self._current[0]), 1, keepdims=True)
        usable = tf.logical_or(known, tf.less_equal(steps, 0.0))
        first = tf.argmax(tf.cast(usable, tf.int32), output_type=tf.int32)
        # Not by index: XLA would compile the step anew for every table.
        chosen = tf.equal(np.arange(_ROWS, dtype=np.int32)[:, None], first)
        return Place(table, steps, chosen, tf.reduce_any(usable))

    def record(self, place: Place, allowed) -> None:
        """Adds one step if it is allowed; runs inside the graph.

        Steps over shuffled data that continue no pass of this process begin one: the
        steps so far are rounded up to whole passes.

        Args:
            place: What `place` returned in this step.
            allowed: Boolean scalar tensor, false where `there_is_room` is.
        """
        per_pass, left = (
            tf.convert_to_tensor(v[0]) for v in (self._per_pass, self._left)
        )
        steps = tf.reduce_sum(tf.where(place.chosen, place.steps, 0.0))
        whole = tf.math.ceil(steps / per_pass) * per_pass
        steps = tf.where(tf.equal(steps, left), steps, whole) + 1.0
        entry = tf.concat([self._current[0], [steps]], axis=0)
        written = tf.logical_and(place.chosen, allowed)
        self.variable.assign(tf.where(written, entry, place.table))
        shuffled = tf.logical_and(per_pass > 1.0, allowed)
        self._left[0].assign(tf.where(shuffled, steps, left))
        self._taken[0].assign_add(tf.cast(allowed, tf.int64))

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
        # The last row is kept for steps of unknown sampling, which need no bind.
        self._check_room(settings, _ROWS - (sampling.kind != "unknown"))
        self.rebind(settings)
        if new_pass:
            self._left[0].assign(-1.0)

    def check_room(self) -> None:
        """Raises `LedgerError` if steps as declared now could not be recorded."""
        self._check_room(self._current[0].numpy(), _ROWS)

    def _check_room(self, settings, most) -> None:
        rows = self._rows()
        known = any(np.array_equal(row[:_SETTINGS], settings) for row in rows)
        if not known and len(rows) >= most:
            raise LedgerError(_full(len(rows)))

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
        kind, _, batch_size, num_examples, _ = np.asarray(binding).tolist()
        per_pass = 1.0
        if kind == _SHUFFLE:
            per_pass = float(math.ceil(num_examples / max(batch_size, 1.0)))
        self._current[0].assign(binding)
        self._per_pass[0].assign(per_pass)

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
