"""A rough epsilon for a delta where jumps lead saddle points astray.

Either one jump takes the loss beyond epsilon, the other releases adding what they do
on average; or the sum of losses does, of which those less likely than delta are left
out. The larger of the two epsilons is a start for Newton's iteration.
"""

import math

import numpy as np

from keras_gdp.accounting.exact.composition import Composition
from keras_gdp.accounting.exact.far_jumps import WithoutFar, deviation
from keras_gdp.accounting.exact.saddle import saddle_for_delta
from keras_gdp.accounting.exact.waves import Array

__all__ = ["rough_epsilon"]

_RUNGS, _OCTAVE = 192, 16
_HIGHEST = 4096.0  # losses beyond are not looked at


def rough_epsilon(composition: Composition, log_delta: float) -> float:
    """About the epsilon of a composition whose losses may jump."""
    delta, epsilon = math.exp(log_delta), 0.0
    scale = max(deviation(composition), 1e-12)
    rung = math.floor(_OCTAVE * math.log2(scale))
    ladder, jumps, deltas = _ladder(composition, rung)
    while max(jumps[-1], deltas[-1]) > delta and ladder[-1] < _HIGHEST:
        rung += _RUNGS - 1
        ladder, jumps, deltas = _ladder(composition, rung)
    likelier = int(np.count_nonzero(jumps > delta))
    if likelier < _RUNGS:
        without = WithoutFar(composition, float(ladder[likelier]))
        if without.rare:
            epsilon = saddle_for_delta(without.body, log_delta).epsilon
    costly = int(np.count_nonzero(deltas > delta))
    if 0 < costly < _RUNGS and deltas[costly] > 0.0:
        ends = slice(costly - 1, costly + 1)
        jump = float(np.interp(-log_delta, -np.log(deltas[ends]), ladder[ends]))
        rest = WithoutFar(composition, float(ladder[costly - 1])).body
        epsilon = max(epsilon, jump + min(rest.real(0.0)[1], 0.0))
    return epsilon if epsilon > 0.0 else scale


def _ladder(composition: Composition, rung: int) -> tuple[Array, Array, Array]:
    """Thresholds, the expected number of jumps beyond each, and what these cost.

    The latter is the sum of the single releases' deltas. Thresholds are from one
    geometric ladder, so that neighbouring queries share them.
    """
    ladder = 2.0 ** (np.arange(rung, rung + _RUNGS) / _OCTAVE)
    jumps, deltas = np.zeros(_RUNGS), np.zeros(_RUNGS)
    scale = np.exp(np.minimum(ladder, 700.0))
    for loss, n in composition.phases:
        if loss.jumps:
            p_masses, q_masses, _ = loss.masses(ladder)
            p, q = (np.cumsum(x[:0:-1])[::-1] for x in (p_masses, q_masses))
            jumps += n * p
            deltas += n * np.maximum(p - scale * q, 0.0)
    return ladder, jumps, deltas
