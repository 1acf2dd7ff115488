"""Cumulants of a one-step privacy loss from quadrature nodes.

For a pair (P, Q) let r = dP/dQ, u = r - 1 and L = log r. Everything exact in this
package is built on the cumulant function

    K(s) = log E_P[exp(s L)] = log E_Q[(1 + u)^t],   t = 1 + s.

Since E_Q[u] = 0, E_Q[(1 + u)^t] - 1 = E_Q[(1 + u)^t - 1 - t u]. The right-hand side
has no first-order terms, so K keeps *relative* accuracy when a step reveals almost
nothing (tiny sampling probability, huge noise) and is multiplied by the number of
steps afterwards. Nodes with small |t u| enter through the moments E_Q[u^k] and the
binomial series, which costs nothing per s; the others one exponential each.
"""

import math

import numpy as np

from keras_gdp.accounting.exact.waves import Array, ComplexArray, log1p, wave_sums

_TERMS = 20
_SMALL_U = 0.05
_SMALL_TU = 0.5
_UNIT = 2.0**-53
_LOW, _HIGH = -0.5, 30.0  # outside K comes from plain sums
_NEGLIGIBLE = -38.0  # log of the largest weight at a cut over the largest


class QuadratureTooLargeError(Exception):
    """A line reaches frequencies that would need too many nodes."""


class Measure:
    """A discrete measure that integrates smooth functions of the loss under Q.

    It may have any mass: K(s) = log E_P[exp(s L)] comes from plain sums.

    Args:
        log_q: Logarithms of the weights under Q.
        loss: log(dP/dQ) at the nodes.
        edge: Log weight and loss where the measure was cut off: what is there must be
            negligible for sums over nodes to be accurate.
    """

    def __init__(
        self, log_q: Array, loss: Array, edge: tuple[float, float] | None = None
    ) -> None:
        self._log_q, self._loss = log_q, loss
        self._edge = edge or (-math.inf, 0.0)

    @property
    def size(self) -> int:
        """Number of nodes."""
        return int(self._loss.size)

    def measure(self) -> tuple[Array, Array]:
        """Weights under Q and losses of the nodes."""
        return np.exp(self._log_q), self._loss

    def _tilted(self, s: float) -> tuple[float, Array]:
        """Logarithm of a scale, and weights over it."""
        exponent = self._log_q + (1.0 + s) * self._loss
        top = float(exponent.max())
        return top, np.exp(exponent - top)

    def line(self, c: float, step: float, start: int, count: int) -> ComplexArray:
        """K at c + i step (start, ..., start + count - 1).

        Raises:
            QuadratureTooLargeError: If the cut would show.
        """
        top, weight = self._tilted(c)
        self._check_edge(c, top)
        total = wave_sums(weight, self._loss, step, start, count)
        return np.asarray(top + np.log(total + 1e-300))

    def _check_edge(self, s: float, top: float) -> None:
        if self._edge[0] + (1.0 + s) * self._edge[1] > top + _NEGLIGIBLE:
            raise QuadratureTooLargeError

    def real(self, s: float) -> tuple[float, float, float]:
        """K, K' and K'' at real s."""
        top, weight = self._tilted(s)
        mass = float(weight.sum())
        mean = float(weight @ self._loss) / mass
        variance = float(weight @ (self._loss - mean) ** 2) / mass
        return top + math.log(mass), mean, variance

    def rounding(self, s: float) -> float:
        """Rough size of the rounding error of K at real s."""
        _, weight = self._tilted(s)
        size = _operations(self._log_q, (1.0 + s) * self._loss)
        return _UNIT * float(weight @ size) / float(weight.sum())


class Nodes(Measure):
    """A measure of mass about 1: K keeps relative accuracy near 0.

    Args:
        log_q: Logarithms of the weights under Q.
        u: dP/dQ - 1 at the nodes.
        loss: log(dP/dQ) at the nodes.
        largest_t: Exponents t are at most that large.
        lost: Mass under Q that the weights leave out, and by how much that under P
            exceeds it: E_Q[1 + t u] over the nodes would be 1 without that.
        atom: Mass of an atom of loss 0, which is no node.
        edge: As above.
    """

    def __init__(
        self,
        log_q: Array,
        u: Array,
        loss: Array,
        largest_t: float,
        lost: tuple[float, float] = (0.0, 0.0),
        atom: float = 0.0,
        edge: tuple[float, float] | None = None,
    ) -> None:
        self._lost_q, self._lost_linear = lost
        self._atom = atom
        self._light = max(lost[0], sum(lost)) > 0.5  # K is far from 0 anyway
        near = np.abs(u) <= min(_SMALL_U, _SMALL_TU / largest_t)
        far = ~near
        count = int(np.count_nonzero(near))
        # The near nodes come first.
        log_q = np.concatenate([log_q[near], log_q[far]])
        super().__init__(log_q, np.concatenate([loss[near], loss[far]]), edge)
        self._near = count
        q, u = np.exp(log_q), np.concatenate([u[near], u[far]])
        powers = np.cumprod(np.broadcast_to(u[:count], (_TERMS, count)), axis=0)
        self._moments: list[float] = (powers[1:] @ q[:count]).tolist()  # from u^2 on
        self._q, u = q[count:], u[count:]
        large = np.exp(log_q[count:] + self._loss[count:]) - self._q
        self._linear = np.where(np.abs(u) < 1.0, self._q * u, large)
        self._rest = float(self._q.sum()), float(self._linear.sum())

    def _series(self, t: ComplexArray) -> ComplexArray:
        """E_Q[(1 + u)^t - 1 - t u] over the near nodes."""
        binomial = t * (t - 1.0) / 2.0
        total = binomial * self._moments[0]
        for k, moment in enumerate(self._moments[1:], 3):
            binomial = binomial * (t - (k - 1)) / k
            total = total + binomial * moment
        return np.asarray(total)

    def _real_series(self, t: float) -> float:
        """The same at one real t."""
        binomial, total = t, 0.0
        for k, moment in enumerate(self._moments, 2):
            binomial *= (t - (k - 1)) / k
            total += binomial * moment
        return total

    def line(self, c: float, step: float, start: int, count: int) -> ComplexArray:
        """K at c + i step (start, ..., start + count - 1)."""
        if self._far(c):
            k = super().line(c, step, start, count)
            return k if self._atom == 0.0 else k + np.log1p(self._atom * np.exp(-k))
        t: ComplexArray = np.asarray(
            1.0 + c + 1j * step * np.arange(start, start + count), dtype=np.complex128
        )
        near = self._near
        excess = self._series(t) - (self._lost_q + t * self._lost_linear)
        if near == self.size:
            return log1p(excess)
        loss = self._loss[near:]
        exponent = self._log_q[near:] + (1.0 + c) * loss
        peak = float(exponent.max())
        top = peak if peak > 30.0 else 0.0
        self._check_edge(c, peak)
        total = wave_sums(np.exp(exponent - top), loss, step, start, count)
        rest = self._rest[0] + t * self._rest[1]
        scale = math.exp(-top)
        excess = scale * (excess - rest) + total
        return (
            log1p(excess)
            if top == 0.0
            else np.asarray(top + np.log(scale + excess + 1e-300))
        )

    def _far(self, s: float) -> bool:
        """Whether K is far below 0, so that plain sums are better."""
        return self._light or self.real(s)[0] <= _LOW

    def real(self, s: float) -> tuple[float, float, float]:
        """K, K' and K'' at real s."""
        t = 1.0 + s
        top, weight = self._tilted(s)
        mass = float(weight.sum())
        mean = float(weight @ self._loss) / mass
        second = float(weight @ (self._loss * self._loss)) / mass
        variance = max(second - mean * mean, 1e-300)
        log_mass = value = top + math.log(mass)
        if self._atom > 0.0:
            value = float(np.logaddexp(value, math.log(self._atom)))
            # The atom at 0 pulls the mean there, and is apart from the rest.
            share = math.exp(log_mass - value)
            variance += self._atom * math.exp(-value) * mean * mean
            mean, variance = share * mean, share * variance
        if self._light or not _LOW < value < _HIGH:
            return value, mean, variance
        excess = self._real_series(t) - (self._lost_q + t * self._lost_linear)
        if self._near < self.size:
            excess += math.exp(top) * float(weight[self._near :].sum())
            excess -= self._rest[0] + t * self._rest[1]
        return math.log1p(excess), mean, variance

    def rounding(self, s: float) -> float:
        """Rough size of the rounding error of K at real s."""
        if self._far(s):
            return super().rounding(s)
        t = 1.0 + s
        value = self.real(s)[0]
        lost = self._lost_q + t * abs(self._lost_linear)
        lost *= 16.0 * _UNIT * math.exp(-value)
        if self._near == self.size:
            return lost + 4e-15 * abs(value)
        loss, log_q = self._loss[self._near :], self._log_q[self._near :]
        size = np.exp(log_q + t * loss - value) * _operations(log_q, t * loss)
        rest = self._q + t * np.abs(self._linear)
        rest *= math.exp(-value) * _operations(log_q, 0.0 * loss)
        return _UNIT * float(size.sum() + rest.sum()) + lost + 4e-15 * abs(value)


def _operations(log_q: Array, exponent: Array) -> Array:
    """By how many rounding units the exponential of the sum may be off."""
    # Two operations make log_q of size |log_q|, up to four the exponent.
    return np.asarray(4.0 + 2.0 * np.abs(log_q) + 4.0 * np.abs(exponent))
