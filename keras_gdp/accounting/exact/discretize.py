"""One privacy loss on a grid, rounded so that it dominates or is dominated.

Pessimistic ("connect the dots", Doroshenko et al. 2022): the P- and Q-mass of each
cell is split between the cell's two ends so that both masses are kept. The privacy
curve becomes its chord: an upper bound, off by the square of the grid step.

Optimistic: each cell's outcomes are merged (post-processing, so dominated), which
puts the cell at log(P mass / Q mass), about its middle; from there the loss is
rounded *down* to a grid through the middles, shifted slightly so that nearly all
cells lose only a second-order amount.
"""

import math
from typing import NamedTuple

import numpy as np

from keras_gdp.accounting.exact.privacy_loss import LEAST_MASS, DiscreteLoss, Loss
from keras_gdp.accounting.exact.waves import Array

__all__ = ["GridLoss", "on_lattice", "optimistic", "pessimistic"]

_LOOK = 2**16  # cells in which the mode of a loss is looked for


class GridLoss(NamedTuple):
    """P-masses at losses `offset + step * (first + i)`.

    `log_mass` holds logarithms: far tails matter once they are tilted. `lost` has
    the masses under P and Q of the finite losses above `cut`, which are not in it.
    """

    log_mass: Array
    first: int
    offset: float
    step: float
    cut: float
    lost: tuple[float, float]

    def tilted(self, theta: float) -> Array:
        """Logarithms of exp(theta L) times the masses."""
        return self.log_mass + theta * self.losses()

    def losses(self) -> Array:
        """The grid's points."""
        index = self.first + np.arange(self.log_mass.size)
        return np.asarray(self.offset + self.step * index)

    def log_moment(self, theta: float) -> float:
        """Log of the sum of exp(theta L) over the finite losses."""
        exponent = self.tilted(theta)
        top = float(exponent.max())
        return top + math.log(float(np.exp(exponent - top).sum()))


def _edges(loss: Loss, step: float, top: float, offset: float) -> tuple[Array, int]:
    first = math.floor((loss.smallest() - offset) / step) - 1
    last = max(math.ceil((top - offset) / step), first + 1) + 1
    edges = offset + step * np.arange(first, last + 1, dtype=np.float64)
    return edges, first


def _centre(loss: Loss, step: float, top: float) -> float:
    """Where most single losses sit: a grid point there costs them nothing."""
    coarse = max(step, (top - loss.smallest()) / _LOOK)
    edges, _ = _edges(loss, coarse, top, 0.0)
    p, q, _ = loss.masses(edges)
    cell = int(np.argmax(p[1:-1])) + 1
    if q[cell] <= 0.0:
        return 0.0
    return math.log(p[cell] / q[cell])


def pessimistic(loss: Loss, step: float, top: float) -> GridLoss:
    """A grid loss that dominates `loss` up to about `top`.

    Args:
        loss: The loss of one release.
        step: Grid step.
        top: Above this loss (rounded up to the grid) outcomes are left out.

    Returns:
        The grid loss.
    """
    offset = _centre(loss, step, top)
    edges, first = _edges(loss, step, top, offset)
    p, q, miss = loss.masses(edges)
    low, inner_p, inner_q = p[0], p[1:-1], q[1:-1]
    # Share of each cell's P-mass that goes to its upper end.
    with np.errstate(divide="ignore"):
        exact = np.where(inner_q > LEAST_MASS, inner_q, 0.0)
        scaled = np.exp(np.minimum(np.log(exact) + edges[:-1], 0.0))
    up = (inner_p - scaled) / -math.expm1(-step)
    up = np.clip(up, 0.0, inner_p)
    mass = np.zeros(edges.size)
    mass[0] = low
    mass[:-1] += inner_p - up
    mass[1:] += up
    with np.errstate(divide="ignore"):
        log_mass = np.log(mass)
    lost = (float(p[-1]), float(q[-1]))
    return GridLoss(log_mass, first, offset + miss, step, float(edges[-1]) - miss, lost)


def optimistic(loss: Loss, step: float, top: float, tilt: float) -> GridLoss:
    """A grid loss dominated by `loss` up to about `top`.

    Args:
        loss: The loss of one release.
        step: Grid step.
        top: Above this loss (rounded up to the grid) outcomes are left out.
        tilt: Exponent s for which exp(s L) will be summed: rounds least there.

    Returns:
        The grid loss.
    """
    centre = _centre(loss, step, top)
    edges, first = _edges(loss, step, top, centre + step / 2.0)
    p, q, miss = loss.masses(edges)
    lost, cut = (float(p[-1]), float(q[-1])), float(edges[-1]) - miss
    p, q, edges = p[1:-1], q[1:-1], edges[:-1]  # both tails are left out
    middle = edges - step / 2.0 + step  # middle of the cell above each edge
    with np.errstate(divide="ignore", invalid="ignore"):
        log_p = np.log(p)
        merged = log_p - np.log(q)
    used = p > 0
    # Where Q's mass underflows, all that is known is that the lower edge is below.
    low = np.where(q > LEAST_MASS, merged - middle, -step / 2.0)
    low = np.where(used, low, 0.0)
    tilted = log_p + tilt * middle
    weight = np.exp(tilted - tilted.max())
    shift = _best_shift(low, weight, step)
    drop = np.ceil(np.maximum(-(low + shift), 0.0) / step).astype(np.int64)
    drop = np.where(used, drop, 0)
    index = np.maximum(np.arange(edges.size) - drop, 0)
    mass = np.zeros(edges.size)
    np.add.at(mass, index, np.where(used, p, 0.0))
    with np.errstate(divide="ignore"):
        log_mass = np.log(mass)
    offset = centre + step - shift - miss
    return GridLoss(log_mass, first, offset, step, cut, lost)


def on_lattice(loss: DiscreteLoss, step: float, upper: bool) -> GridLoss:
    """A loss whose values lie on a grid: nothing is rounded.

    Args:
        loss: The loss of one release.
        step: Grid step of which its values' differences are multiples.
        upper: Whether values that are off by rounding are moved up.

    Returns:
        The grid loss.
    """
    values, p = loss.points
    offset = float(values[p.argmax()])
    index = np.rint((values - offset) / step).astype(np.int64)
    miss = float(np.abs(values - (offset + step * index)).max())
    first = int(index.min())
    mass = np.bincount(index - first, weights=p)
    with np.errstate(divide="ignore"):
        log_mass = np.log(mass)
    offset += miss if upper else -miss
    return GridLoss(log_mass, first, offset, step, float(values.max()), (0.0, 0.0))


def _best_shift(low: Array, weight: Array, step: float) -> float:
    """Shift of the grid that costs least: all cells move by it, stragglers by step."""
    total = float(weight.sum())
    best, cost = step / 2.0, math.inf
    for shift in step * np.concatenate([[0.0], np.geomspace(1e-14, 0.5, 44)]):
        late = float(weight[low < -shift].sum()) / total
        price = shift + step * late
        if price < cost:
            best, cost = float(shift), price
    return best
