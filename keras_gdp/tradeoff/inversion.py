"""Composition by inverting the moment generating function of the privacy loss.

Let `L` be the sum of the losses `log(q / p)` and `M(z) = E_P exp(z L)`, the product of
the factors' functions. With a line `Re z = c` between or beyond the poles,

    P(L > t) = 1/(2 pi i) int M(z) e^{-z t} / z dz                (c > 0)
    Q(L > t) = 1/(2 pi i) int M(z) e^{-(z-1) t} / (z - 1) dz      (c > 1)
    H_{e^eps}(Q || P) = 1/(2 pi i) int M(z) e^{-(z-1) eps} / (z (z-1)) dz   (c > 1)
    H_{e^eps}(P || Q) = 1/(2 pi i) int M(z) e^{z eps} / (z (z-1)) dz        (c < 0)

and on the other side of a pole the complement. The trapezoid rule converges
exponentially; a line near the saddle point of the integrand keeps the error relative
to the result. Lines are shared by all thresholds whose saddle point is near.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_gdp.tradeoff._arrays import Array
from keras_gdp.tradeoff._solve import Point, lower_values
from keras_gdp.tradeoff.base import TradeOff
from keras_gdp.tradeoff.loss_mgf import LogMGF, log_mgf

__all__ = ["LossInversion", "invertible"]

Factors = tuple[tuple[TradeOff, int], ...]

# Where the integrand has fallen to this fraction of its value at the saddle point the
# sum stops; with more nodes than this a lattice is the better method.
_NEGLIGIBLE = 1e-19
_MOST_NODES = 4096
_BLOCK = 64


def invertible(factors: Factors) -> bool:
    """Whether all factors have a known function `M` and their product decays fast."""
    if any(log_mgf(f) is None for f, _ in factors):
        return False
    return LossInversion(factors).converges


class _Line(NamedTuple):
    c: float
    height: float  # log M(c)
    y: Array
    log_m: Array  # log M(c + i y) - log M(c), complex
    step: float


class LossInversion(TradeOff):
    """The composition of factors whose loss has a smooth density.

    Reported values are lowered (deltas raised) by a relative 1e-10, several times the
    error seen when the nodes are doubled.

    Args:
        factors: pairs of a trade-off function and how often it occurs.
    """

    margin = 1e-10

    def __init__(self, factors: Factors) -> None:
        functions: list[tuple[LogMGF, int]] = []
        for f, n in factors:
            function = log_mgf(f)
            if function is None:
                raise ValueError(
                    "Argument `factors` must have known moment generating functions. "
                    f"Received: {f!r}. Use `f.compose`, which picks a method that can."
                )
            functions.append((function, n))
        self._functions = functions
        self._lines: dict[int, _Line | None] = {}
        self._abscissae, self._heights, self._widths = self._table()

    @property
    def accuracy(self) -> float:
        """The margin by which values are lowered."""
        return self.margin

    @property
    def converges(self) -> bool:
        """Whether few enough nodes suffice on the line in the middle."""
        middle = int(np.argmin(np.abs(self._abscissae - 0.5)))
        c, height = float(self._abscissae[middle]), float(self._heights[middle])
        last = self._node_step(middle) * _MOST_NODES
        probe = self._log_m(c, np.array([0.25, 0.5, 0.75, 1.0]) * last)
        return bool((probe.real - height < np.log(_NEGLIGIBLE)).all())

    def _log_m(self, c: float, y: Array) -> Array:
        total = np.zeros(y.shape, dtype=np.complex128)
        for function, n in self._functions:
            total += n * function(c, y)
        return total

    def _real(self, c: float) -> float:
        return float(self._log_m(c, np.zeros(1)).real[0])

    def _width(self, c: float) -> float:
        """One over the standard deviation of the tilted loss."""
        d = 1e-2 * (1 + abs(c))
        second = (self._real(c + d) - 2 * self._real(c) + self._real(c - d)) / d**2
        return float(1 / np.sqrt(max(second, 1e-12)))

    def _table(self) -> tuple[Array, Array, Array]:
        """Abscissae for the lines: two widths apart, half a width from the poles."""
        abscissae: list[float] = []
        for pole, sign in ((0.0, -1.0), (1.0, 1.0)):
            c = pole + sign * 0.5 * self._width(pole)
            for _ in range(60):
                width, height = self._width(c), self._real(c)
                slope = (self._real(c + 1e-3 * width) - height) / (1e-3 * width)
                abscissae.append(c)
                # Beyond this the probabilities underflow.
                exhausted = height - (c - pole) * slope < -800
                if exhausted or not np.isfinite(height) or abs(c) > 1e4:
                    break
                c += sign * 2 * width
        inside = min(self._width(0.5), 1.0)
        count = int(np.ceil(0.5 / inside))
        abscissae.extend((np.arange(count) + 0.5) / count)
        table = np.sort(np.array(abscissae))
        heights = np.array([self._real(x) for x in table])
        widths = np.array([self._width(x) for x in table])
        keep = np.isfinite(heights)
        return table[keep], heights[keep], widths[keep]

    def _node_step(self, index: int) -> float:
        c = float(self._abscissae[index])
        distance = min(abs(c), abs(c - 1.0))
        return float(min(2 * np.pi * distance / 45, self._widths[index] / 8))

    def _line(self, index: int) -> _Line | None:
        if index not in self._lines:
            self._lines[index] = self._make_line(index)
        return self._lines[index]

    def _make_line(self, index: int) -> _Line | None:
        c, height = float(self._abscissae[index]), float(self._heights[index])
        step = self._node_step(index)
        y_parts, m_parts = [], []
        for start in range(0, _MOST_NODES, _BLOCK):
            y = step * np.arange(start, start + _BLOCK)
            log_m = self._log_m(c, y) - height
            y_parts.append(y)
            m_parts.append(log_m)
            if (log_m.real < np.log(_NEGLIGIBLE)).all():
                y, log_m = np.concatenate(y_parts), np.concatenate(m_parts)
                return _Line(c, height, y, log_m, step)
        return None

    def _integrate(
        self,
        t: Array,
        power: Array,
        kernel: Callable[[Array], Array],
        usable: Array,
    ) -> tuple[Array, Array]:
        """`1/(2 pi i) int M(z) exp(-(z - power) t) kernel(z) dz` on the best line.

        Returns:
            The integral and the abscissa of the line used, for each threshold.
        """
        allowed = usable.copy()
        result, used = np.zeros(t.size), np.zeros(t.size)
        todo = np.arange(t.size)
        while todo.size:
            if not allowed.any():
                raise ArithmeticError(
                    "The loss distribution is too rough to invert at some threshold. "
                    "Please report the mechanism; a coarser bound is "
                    "`keras_gdp.tradeoff.from_delta` of its accountant."
                )
            exponent = self._heights - np.multiply.outer(t[todo], self._abscissae)
            exponent = np.where(allowed, exponent, np.inf)
            choice = exponent.argmin(axis=1)
            left = []
            for index in np.unique(choice):
                line = self._line(int(index))
                mine = todo[choice == index]
                if line is None:
                    allowed[index] = False
                    left.append(mine)
                    continue
                z = line.c + 1j * line.y
                weight = kernel(z) * line.step / np.pi
                weight[0] *= 0.5
                scale = line.height - (line.c - power[mine]) * t[mine]
                phase = line.log_m - 1j * np.multiply.outer(t[mine], line.y)
                total = (np.exp(phase) * weight).real.sum(axis=1)
                with np.errstate(over="ignore"):
                    result[mine] = total * np.exp(scale)
                used[mine] = line.c
            todo = np.concatenate(left) if left else np.zeros(0, dtype=np.int64)
        return result, used

    def _point(self, t: Array) -> Point:
        finite = np.isfinite(t)
        rates = [np.where(t > 0, low, high) for low, high in ((0.0, 1.0), (1.0, 0.0))]
        alpha, beta = rates[0].copy(), rates[1].copy()
        accept, power = rates[1].copy(), rates[0].copy()
        if finite.any():
            s = t[finite]
            everywhere = np.ones(self._abscissae.size, dtype=bool)
            zero, one = np.zeros(s.size), np.ones(s.size)
            tail, c = self._integrate(s, zero, lambda z: 1 / z, everywhere)
            alpha[finite] = np.clip(np.where(c > 0, tail, 1 + tail), 0, 1)
            accept[finite] = np.clip(np.where(c > 0, 1 - tail, -tail), 0, 1)
            tail, c = self._integrate(s, one, lambda z: 1 / (z - 1), everywhere)
            power[finite] = np.clip(np.where(c > 1, tail, 1 + tail), 0, 1)
            beta[finite] = np.clip(np.where(c > 1, 1 - tail, -tail), 0, 1)
        return Point(alpha, beta, accept, power)

    def _values(self, alpha: Array) -> Array:
        values = lower_values(self._point, alpha, tolerance=1e-12)
        return values * (1 - self.margin)

    def _delta(self, epsilon: Array) -> Array:
        return self._profile(epsilon, reverse=False)

    def _reverse_delta(self, epsilon: Array) -> Array:
        return self._profile(epsilon, reverse=True)

    def _profile(self, epsilon: Array, *, reverse: bool) -> Array:
        result = np.where(epsilon > 0, 0.0, 1.0)
        positive = (epsilon >= 0) & np.isfinite(epsilon)
        negative = (epsilon < 0) & np.isfinite(epsilon)
        if positive.any():
            e = epsilon[positive]
            if reverse:
                t, power, side = -e, np.zeros(e.size), self._abscissae < 0
            else:
                t, power, side = e, np.ones(e.size), self._abscissae > 1
            values, _ = self._integrate(t, power, lambda z: 1 / (z * (z - 1)), side)
            result[positive] = np.clip(values * (1 + self.margin), 0.0, 1.0)
        if negative.any():
            # H_g(Q || P) = 1 - g + g H_{1/g}(P || Q): only positive terms for g < 1.
            e = epsilon[negative]
            other = self._profile(-e, reverse=not reverse)
            result[negative] = -np.expm1(e) + np.exp(e) * other
        return result
