"""delta by tilted Fourier convolution of grid losses: the path that always works.

Every grid loss, cut off where its outcomes are far jumps, is multiplied by
exp(theta L) and normalised, composed by FFT, and tilted back when delta is read. With
theta at the saddle point the rounding error of the transform is relative to delta
itself. What the finite window cuts off, or folds back, is bounded by Chernoff and
added, as are the rounding and the far jumps. Losses on a lattice need no rounding: the
grid is the lattice.
"""

import math
from collections.abc import Callable
from typing import cast

import numpy as np

from keras_gdp.accounting.exact.composition import Composition
from keras_gdp.accounting.exact.contour import Value
from keras_gdp.accounting.exact.discretize import (
    GridLoss,
    on_lattice,
    optimistic,
    pessimistic,
)
from keras_gdp.accounting.exact.far_jumps import Far, FarJumps, WithoutFar
from keras_gdp.accounting.exact.privacy_loss import DiscreteLoss
from keras_gdp.accounting.exact.saddle import saddle_for_epsilon

__all__ = ["GridSum"]

_TOLERANCE = 1e-9  # relative error of delta that the grid step aims at
_COARSE, _FINE, _WINDOW = 2**14, 2**20, 2**21  # grid points at most
_FACTORS = (0.03, 0.1, 0.3, 1.0, 3.0, 6.0, 9.0, 12.0, 20.0)
_LOG_CUT = -25.0  # what the window leaves out, relative to delta
_TILTS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)  # of the saddle point
_SPARE = 7.0  # logarithm of the accuracy that a smaller tilt may cost
_EPS = float(np.finfo(np.float64).eps)


class GridSum:
    """A composition on a grid, rounded up or down, for epsilons around one.

    Args:
        composition: One direction of a composition.
        without: The same without its far jumps.
        epsilon: Where delta will be read.
        upper: Whether to round up (an upper bound on delta) or down.
        coarse: A first look at the same; None to take that look. It tells how fine
            the grid and how wide its window must be.
    """

    def __init__(
        self,
        composition: Composition,
        without: WithoutFar,
        epsilon: float,
        *,
        upper: bool,
        coarse: "GridSum | None" = None,
    ) -> None:
        self._composition, self._upper = composition, upper
        self._counts = [n for _, n in composition.phases]
        self._theta = theta = saddle_for_epsilon(without.body, epsilon).c
        self._tops = []
        for loss, _ in composition.phases:
            top = min(loss.max_loss, loss.largest(theta))
            if loss.without_far(without.threshold) is not loss:
                top = without.threshold
            self._tops.append(top)
        ranges = [
            top - loss.smallest()
            for top, (loss, _) in zip(self._tops, composition.phases, strict=True)
        ]
        widest = max(ranges)
        self._lattice = 0.0
        grids = self._discretize(widest / _COARSE)
        log_cut = _LOG_CUT
        if coarse is None:
            first = self._window(grids, log_cut)
            span = first[1] - first[0]
            if span <= _WINDOW * composition.lattice:
                self._lattice = composition.lattice
            grids = self._discretize(max(span, widest) / _COARSE)
        else:
            self._lattice = coarse._lattice
            self._theta, log_cut = self._narrow(grids, epsilon, coarse)
            theta = self._theta
            first = self._window(grids, log_cut)
            span = first[1] - first[0]
            floor = max(span / _WINDOW, widest / _FINE)
            grids = self._refine(span / 1024.0, floor)
        low, high, left, right = self._window(grids, log_cut)
        if not (high - low) / grids[0].step <= 2 * _WINDOW:
            low, high, left, right = first  # what that leaves out is in `outside`
        self._log_moment_theta = self._log_moment(grids, theta)
        outside = 0.0
        for end, d in ((low, left), (high, right)):
            tail = self._log_moment(grids, theta + d) - self._log_moment_theta - d * end
            outside += math.exp(min(tail, 0.0))
        self._outside = outside
        fars = [
            Far(n, *grid.lost, _beyond(grid))
            for grid, n in zip(grids, self._counts, strict=True)
        ]
        self._added = FarJumps(without, fars)
        self._convolve(grids, low, high)

    def _narrow(
        self, grids: list[GridLoss], epsilon: float, coarse: "GridSum"
    ) -> tuple[float, float]:
        """The tilt with the narrowest window, and the tails that it may cut off.

        At the saddle point many jumps just below the threshold are likely. A smaller
        tilt makes them rare, for digits that are not needed.
        """
        saddle, best = self._theta, (math.inf, 0.0, 0.0)
        for factor in _TILTS:
            self._theta = theta = factor * saddle
            # exp(log_moment - theta epsilon) lies above delta by this factor.
            excess = self._log_moment(grids, theta) - theta * epsilon
            excess = max(excess - coarse.log_delta(epsilon), 0.0)
            if factor < 1.0 and excess > _SPARE:
                break
            log_cut = _LOG_CUT - excess
            low, high, _, _ = self._window(grids, log_cut)
            best = min(best, (high - low, theta, log_cut))
        return best[1], best[2]

    def _refine(self, step: float, floor: float) -> list[GridLoss]:
        """Grids so fine that rounding moves log delta by about _TOLERANCE.

        Rounding multiplies delta by about exp(K_grid - K) at the tilt, and is of
        second order in the step once that resolves the loss.
        """
        theta = self._theta
        # The chord adds step^2/6 to the variance of each loss, at most step^2/4.
        smooth = math.sqrt(8.0 * _TOLERANCE / (sum(self._counts) * theta * (theta + 1)))
        step = max(min(step, smooth), floor)
        grids = self._discretize(step)
        while step > floor:
            finer = self._discretize(0.5 * step)
            moved = abs(self._log_moment(finer, theta) - self._log_moment(grids, theta))
            if moved <= 3.0 * _TOLERANCE:
                return finer
            shrink = math.sqrt(2.0 * _TOLERANCE / moved)
            smaller = max(step * min(max(shrink, 1.0 / 16.0), 0.5), floor)
            grids = finer if smaller == 0.5 * step else self._discretize(smaller)
            step = smaller
        return grids

    def _window(
        self, grids: list[GridLoss], log_cut: float
    ) -> tuple[float, float, float, float]:
        """Interval of the tilted sum up to exp(log_cut), and the Chernoff shifts."""
        theta = self._theta
        weights = [np.exp(g.tilted(theta) - g.log_moment(theta)) for g in grids]
        mean = variance = 0.0
        for grid, weight, n in zip(grids, weights, self._counts, strict=True):
            losses = grid.losses()
            centre = float(weight @ losses)
            mean += n * centre
            variance += n * float(weight @ (losses - centre) ** 2)
        deviation = max(math.sqrt(max(variance, 0.0)), grids[0].step)
        k0 = self._log_moment(grids, theta)
        ends, shifts = [], []
        for sign in (-1.0, 1.0):
            best = (math.inf, 0.0)
            for factor in _FACTORS:
                d = sign * factor / deviation
                k = self._log_moment(grids, theta + d)
                best = min(best, ((k - k0 - d * mean - log_cut) / abs(d), d))
            ends.append(mean + sign * best[0])
            shifts.append(best[1])
        return ends[0], ends[1], shifts[0], shifts[1]

    def _discretize(self, step: float) -> list[GridLoss]:
        if self._lattice:
            losses = cast(list[DiscreteLoss], [x for x, _ in self._composition.phases])
            return [on_lattice(loss, self._lattice, self._upper) for loss in losses]
        pairs = zip(self._composition.phases, self._tops, strict=True)
        if self._upper:
            return [pessimistic(loss, step, top) for (loss, _), top in pairs]
        return [optimistic(loss, step, top, self._theta) for (loss, _), top in pairs]

    def _log_moment(self, grids: list[GridLoss], theta: float) -> float:
        pairs = zip(grids, self._counts, strict=True)
        return math.fsum(n * grid.log_moment(theta) for grid, n in pairs)

    def _convolve(self, grids: list[GridLoss], low: float, high: float) -> None:
        from scipy import fft

        step = grids[0].step
        offset = math.fsum(
            n * grid.offset for grid, n in zip(grids, self._counts, strict=True)
        )
        start = math.floor((low - offset) / step) - 1
        size = fft.next_fast_len(math.ceil((high - offset) / step) + 2 - start, True)
        modulus, angle = np.ones(size // 2 + 1), np.zeros(size // 2 + 1)
        for grid, n in zip(grids, self._counts, strict=True):
            tilted = np.exp(grid.tilted(self._theta) - grid.log_moment(self._theta))
            index = (grid.first + np.arange(tilted.size)) % size
            folded = np.bincount(index, weights=tilted, minlength=size)
            transform = fft.rfft(folded)
            modulus *= np.abs(transform) ** n
            angle += np.angle(transform) * n % (2.0 * math.pi)
        density = fft.irfft(modulus * np.exp(1j * angle), size)
        self._density = np.maximum(np.roll(density, -(start % size)), 0.0)
        self._losses = offset + step * (start + np.arange(size))
        self._step = step
        # Each frequency is off by some units, independently: see Parseval.
        self._units = 16.0 * _EPS * (sum(self._counts) + math.log2(size))
        self._rounding = self._units * float(np.linalg.norm(modulus)) / modulus.size

    @property
    def size(self) -> int:
        """Number of losses."""
        return int(self._losses.size)

    def log_delta(self, epsilon: float) -> float:
        """Log of the bound on delta(epsilon), without the mass at infinity."""
        return self.value(epsilon).log_value

    def most(self, epsilon: float) -> float:
        """No bound but the value."""
        return math.inf

    def value(self, epsilon: float) -> Value:
        """The bound's logarithm, its slope, and which part of it allows for errors.

        The error is relative and does not include the rounding of the losses.
        """
        theta = self._theta
        jump = self._added(epsilon)
        scale = self._log_moment_theta - theta * epsilon
        first = int(np.searchsorted(self._losses, epsilon, "right"))
        last = int(np.searchsorted(self._losses, epsilon + 60.0 / theta, "right"))
        gap = self._losses[first:last] - epsilon
        kept = self._density[first:last] * np.exp(-theta * gap)
        total = float(kept @ -np.expm1(-gap))
        fall = float(kept @ np.exp(-gap))  # minus the derivative in epsilon
        count = min(1.0 / (theta * self._step) + 1.0, float(self._losses.size))
        error = self._outside + self._rounding * count + self._units * total + 1e-26
        body = total + error if self._upper else max(total - error, 0.0)
        parts = [
            math.log(part) + logarithm
            for part, logarithm in ((body, scale), (jump[self._upper], 0.0))
            if part > 0.0
        ]
        if not parts:
            return Value(-math.inf, -theta, math.inf)
        log_delta = float(np.logaddexp.reduce(parts))
        share = math.exp(min(scale - log_delta, 700.0))
        relative = error * share + (jump[1] - jump[0]) * math.exp(
            min(-log_delta, 700.0)
        )
        return Value(log_delta, -max(fall * share, 1e-3), relative)


def _beyond(grid: GridLoss) -> Callable[[float], float]:
    """Log of E_P[exp(-s L)] over the outcomes above a grid, at most."""
    log_p = math.log(grid.lost[0]) if grid.lost[0] > 0.0 else -math.inf
    return lambda s: log_p - s * grid.cut
