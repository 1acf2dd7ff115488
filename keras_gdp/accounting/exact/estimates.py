"""A rough epsilon for a delta where jumps lead saddle points astray.

Either one jump alone takes the loss beyond epsilon, or many losses without jumps do:
the larger of the two epsilons is a start for Newton's iteration.
"""

import math

import numpy as np

from keras_gdp.accounting.exact.composition import Composition
from keras_gdp.accounting.exact.far_jumps import WithoutFar, deviation
from keras_gdp.accounting.exact.moments import Array
from keras_gdp.accounting.exact.saddle import saddle_for_delta

__all__ = ["rough_epsilon"]

_RUNGS, _OCTAVE = 192, 16
_TWO_JUMPS = 24.0  # their probability is exp(-24) of delta


def rough_epsilon(composition: Composition, log_delta: float) -> float:
    """About the epsilon of a composition whose losses may jump."""
    ladder, jumps = _ladder(composition)
    likelier = int(np.count_nonzero(jumps > math.exp(log_delta)))
    alone = float(ladder[likelier - 1]) if likelier else 0.0
    target = math.exp(max(0.5 * (log_delta + math.log(2.0) - _TWO_JUMPS), -700.0))
    for i in np.flatnonzero((jumps < target) & (jumps > 0.0))[:1].tolist():
        without = WithoutFar(composition, float(ladder[i]))
        if without.changes and without.rare:
            return max(alone, saddle_for_delta(without.body, log_delta).epsilon)
    return alone


def _ladder(composition: Composition) -> tuple[Array, Array]:
    """Thresholds, and the expected number of jumps beyond each.

    They are from one geometric ladder, so that neighbouring queries share them.
    """
    rung = math.floor(_OCTAVE * math.log2(max(deviation(composition), 1e-12)))
    ladder = 2.0 ** (np.arange(rung, rung + _RUNGS) / _OCTAVE)
    jumps = np.zeros(_RUNGS)
    for loss, n in composition.phases:
        if loss.jumps:
            masses = loss.masses(ladder)[0][1:]
            jumps += n * np.cumsum(masses[::-1])[::-1]
    return ladder, jumps
