"""delta by tilted Fourier convolution of grid losses: the path that always works.

Every grid loss is multiplied by exp(theta L) and normalised, composed by FFT, and
tilted back when delta is read. With theta at the saddle point the rounding error of
the transform is relative to delta itself. What the finite window cuts off, or folds
back, is bounded by Chernoff and added, as is the rounding.
"""

import math

import numpy as np

from keras_gdp.accounting.exact.composition import Composition
from keras_gdp.accounting.exact.discretize import GridLoss, optimistic, pessimistic

__all__ = ["GridSum"]

_TOLERANCE = 1e-8  # relative error of delta that the grid step aims at
_COARSE, _FINE = 2**14, 2**20
_FACTORS = (0.03, 0.1, 0.3, 1.0, 3.0, 6.0, 9.0, 12.0, 20.0)
_EPS = float(np.finfo(np.float64).eps)


class GridSum:
    """A composition on a grid, rounded up or down.

    Args:
        composition: One direction of a composition.
        theta: The tilt. Near -d log delta/d epsilon it costs no accuracy.
        upper: Whether to round up (an upper bound on delta) or down.
        rate: -d log delta/d epsilon, which sets the grid step; None for a coarse
            first look.
        log_cut: The tilted sum is kept up to tails of exp(log_cut).
    """

    def __init__(
        self,
        composition: Composition,
        theta: float,
        *,
        upper: bool,
        rate: float | None = None,
        log_cut: float = -40.0,
    ) -> None:
        self._theta, self._upper = theta, upper
        self._counts = [n for _, n in composition.phases]
        low, high, left, right = self._window(composition, log_cut)
        ranges = [
            loss.largest(theta) - loss.smallest(theta) for loss, _ in composition.phases
        ]
        points = _COARSE if rate is None else _FINE
        floor = max((high - low) / points, max(ranges) / (2 * points))
        if rate is None:
            step, grids = floor, self._discretize(composition, floor)
        else:
            step, grids = self._refine(composition, rate, (high - low) / 4096.0, floor)
        log_moment = self._log_moment(grids, theta)
        self._log_moment_theta = log_moment
        self.infinite_mass = -math.expm1(
            math.fsum(
                n * (math.log1p(-g.infinite_mass) if g.infinite_mass < 1 else -math.inf)
                for g, n in zip(grids, self._counts, strict=True)
            )
        )
        outside = 0.0
        for end, d in ((low, left), (high, right)):
            tail = self._log_moment(grids, theta + d) - log_moment - d * end
            outside += math.exp(min(tail, 0.0))
        self._outside = outside
        self._convolve(grids, step, low, high)

    def _refine(
        self, composition: Composition, rate: float, step: float, floor: float
    ) -> tuple[float, list[GridLoss]]:
        """A step so fine that rounding moves log delta by about _TOLERANCE.

        Rounding multiplies delta by about exp(K_grid(s) - K(s)) at s = `rate`.
        """
        exact = composition.real(rate)[0]
        # The chord adds step^2/6 to the variance of each loss, at most step^2/4.
        smooth = math.sqrt(8.0 * _TOLERANCE / (composition.steps * rate * (rate + 1)))
        step = max(min(step, smooth), floor)
        while True:
            grids = self._discretize(composition, step)
            moved = abs(self._log_moment(grids, rate) - exact)
            if step <= floor or moved <= _TOLERANCE:
                return step, grids
            step = max(step / (2.0 if moved < 4.0 * _TOLERANCE else 8.0), floor)

    def _window(
        self, composition: Composition, log_cut: float
    ) -> tuple[float, float, float, float]:
        """Interval of the tilted sum up to exp(log_cut), and the Chernoff shifts."""
        k0, k1, k2 = composition.real(self._theta)
        deviation = math.sqrt(max(k2, 1e-300))
        ends, shifts = [], []
        for sign in (-1.0, 1.0):
            best = (math.inf, 0.0)
            for factor in _FACTORS:
                d = sign * factor / deviation
                if self._theta + d > -0.9 and abs(d) < 1e6:
                    k = composition.real(self._theta + d)[0]
                    best = min(best, ((k - k0 - d * k1 - log_cut) / abs(d), d))
            if best[0] == math.inf:
                d = -0.5 * (self._theta + 0.9)
                k = composition.real(self._theta + d)[0]
                best = ((k - k0 - d * k1 - log_cut) / abs(d), d)
            ends.append(k1 + sign * best[0])
            shifts.append(best[1])
        return ends[0], ends[1], shifts[0], shifts[1]

    def _discretize(self, composition: Composition, step: float) -> list[GridLoss]:
        make = pessimistic if self._upper else optimistic
        return [make(loss, step, self._theta) for loss, _ in composition.phases]

    def _log_moment(self, grids: list[GridLoss], theta: float) -> float:
        pairs = zip(grids, self._counts, strict=True)
        return math.fsum(n * grid.log_moment(theta) for grid, n in pairs)

    def _convolve(
        self, grids: list[GridLoss], step: float, low: float, high: float
    ) -> None:
        from scipy import fft

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
        work = sum(self._counts) + math.log2(size)
        self._rounding = 16.0 * _EPS * work * float(modulus.mean())

    def log_delta(self, epsilon: float) -> float:
        """Log of the bound on delta(epsilon), without the mass at infinity."""
        theta = self._theta
        if epsilon >= self._losses[-1]:
            # Nothing but the tail: Chernoff's bound, or nothing for the lower side.
            tail = math.log(self._outside + 1e-26) + self._log_moment_theta
            return tail - theta * epsilon if self._upper else -math.inf
        first = int(np.searchsorted(self._losses, epsilon, "right"))
        last = int(np.searchsorted(self._losses, epsilon + 60.0 / theta, "right"))
        gap = self._losses[first:last] - epsilon
        kept = self._density[first:last] * np.exp(-theta * gap)
        total = float(kept @ -np.expm1(-gap))
        count = min(1.0 / (theta * self._step) + 1.0, float(self._losses.size))
        error = self._outside + self._rounding * count + 1e-26
        total = total + error if self._upper else total - error
        if total <= 0.0:
            return -math.inf
        return math.log(total) + self._log_moment_theta - theta * epsilon

    def rate(self, epsilon: float) -> float:
        """-d log delta/d epsilon, roughly."""
        span = max(4.0 * self._step, 1e-3 * epsilon)
        fall = self.log_delta(epsilon) - self.log_delta(epsilon + span)
        if not math.isfinite(fall):
            return self._theta
        return min(max(fall / span, 1e-3), 10.0 * self._theta)
