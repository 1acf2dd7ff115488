"""Privacy-loss distributions of single releases: one class per shape.

Each class describes an ordered pair (P, Q) of output distributions that dominates
one release in one direction. L = log dP/dQ under P is its privacy loss. A loss
offers its cumulants K(s) = log E_P[exp(s L)] (for the contour path, RDP and saddle
points) and the masses of P and Q between thresholds of L (for the grid path).

Why one-dimensional pairs suffice. Given a batch with j of the k records in which
two data sets differ, the output is N(u_J, sigma^2 I) with |u_J| <= j clip norms. Fix
a test S and let alpha be its probability under the output without those records. By
Neyman and Pearson N(u_J)(S) is at most 1 - G_{j/sigma}(alpha), or at least
1 - G_{j/sigma}(1 - alpha) for the other side, and one half-space attains all these
bounds at once. So no choice of the u_J is worse than all of them aligned (opposed,
under replacement): shifts j on a line, with binomial weights under Poisson sampling.
Averaging over the other records' draws only helps (joint convexity).
"""

import math
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from keras_gdp.accounting.exact.moments import Measure, QuadratureTooLargeError
from keras_gdp.accounting.exact.waves import Array, ComplexArray

SETTLED = 21.0  # minus the log of a negligible transform
LEAST_MASS = 1e-300  # masses below it have lost digits
_KEPT = 256  # values of K at real s
_MOST_NODES = 3_000_000  # kept of all losses together, some 600 MB
_ROUNDED = 1e-15  # the sum of some masses
_OVERHEAD = 500  # of a set of nodes, in nodes
_MOST_WORK = 1.5e9  # exponentials on one line: beyond, a grid is faster


class Loss(ABC):
    """Privacy loss of one release, from P against Q."""

    smooth: bool = True  # False: there are atoms alone, the transform need not decay
    atom: float = 0.0  # mass of an atom at 0 beside the rest
    infinite_mass: float = 0.0  # P(L = inf)
    max_loss: float = math.inf  # largest finite value of L
    largest_order: float = math.inf  # up to which s the cumulant can be computed
    lattice: float = 0.0  # the finite losses differ by multiples of it; 0: they do not
    lost: tuple[float, float] = (0.0, 0.0)  # masses under P and Q that were left out
    log_lost: float = -math.inf  # logarithm of the former, which may underflow
    lost_more: float = 0.0  # the former minus the latter, without cancellation
    far: "Jump | None" = None  # what was left out
    jumps: bool = False  # whether rare outcomes lose far more than others,
    rest: float = 0.0  # which lose about this much
    settled: float = 0.0  # frequency from which on |exp K| is below exp(-SETTLED)

    @abstractmethod
    def line(self, c: float, step: float, start: int, count: int) -> ComplexArray:
        """K at c + i step (start, ..., start + count - 1), modulo 2 pi i."""

    @abstractmethod
    def real(self, s: float) -> tuple[float, float, float]:
        """K(s), K'(s), K''(s) for real s > -1."""

    @property
    def log_mass(self) -> float:
        """K(0), or a little more: log of the mass under P that was not left out."""
        missing = self.infinite_mass + self.lost[0]
        return math.log(min(1.0 + _ROUNDED - missing, 1.0)) if missing > 0.0 else 0.0

    def lasting(self, c: float) -> float:
        """The share of atoms in exp K(c): |exp K| / exp K(c) stays about above it."""
        return self.atom * math.exp(-self.real(c)[0])

    def decay(self, c: float, tau: Array, line: ComplexArray) -> Array:
        """Log of |exp K| / exp K(c) at frequencies tau, or what it may come back to.

        Args:
            c: Abscissa of the line.
            tau: Increasing frequencies.
            line: K there.
        """
        return line.real - self.real(c)[0]

    def rounding(self, s: float, frequency: float = 1.0) -> float:
        """Rough size of the rounding error of K at s and up to a frequency."""
        return 4e-16 * (abs(self.real(s)[0]) + abs(s * self.real(s)[1]))

    def without_far(self, threshold: float) -> "Loss":
        """The loss without its outcomes beyond about `threshold`, for line and real.

        What is left has less mass than 1; `lost` says how much less. A loss whose
        cumulant no rare outcome can rule is returned as it is.
        """
        return self

    @abstractmethod
    def masses(self, edges: Array) -> tuple[Array, Array, float]:
        """Masses of P and Q in the cells cut by increasing thresholds of L.

        Args:
            edges: Thresholds e_0 < ... < e_n.

        Returns:
            `(p, q, slack)`: n + 2 masses each, for L <= e_0, (e_0, e_1], ...,
            L > e_n (finite), and by how much a threshold may be off.
        """

    @abstractmethod
    def largest(self, tilt: float) -> float:
        """A loss beyond which exp(tilt L) has negligible mass under P."""

    @abstractmethod
    def smallest(self) -> float:
        """A loss below which there is negligible mass under P."""


class GaussianLoss(Loss):
    """N(mu, 1) against N(0, 1): L is N(mu^2/2, mu^2)."""

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def line(self, c: float, step: float, start: int, count: int) -> ComplexArray:
        s = c + 1j * step * np.arange(start, start + count)
        return np.asarray(s * (s + 1.0) * (self.mu**2 / 2.0), dtype=np.complex128)

    def real(self, s: float) -> tuple[float, float, float]:
        square = self.mu**2
        return s * (s + 1.0) * square / 2.0, (s + 0.5) * square, square

    def masses(self, edges: Array) -> tuple[Array, Array, float]:
        z = np.concatenate([[-np.inf], edges, [np.inf]]) / self.mu
        p = normal_mass(z - self.mu / 2.0)
        return p, normal_mass(z + self.mu / 2.0), 0.0

    def largest(self, tilt: float) -> float:
        return (tilt + 0.5) * self.mu**2 + 13.0 * self.mu

    def smallest(self) -> float:
        return 0.5 * self.mu**2 - 13.0 * self.mu


class _KeptNodes:
    """The nodes of all quadratures, as many as memory should hold; the last used stay.

    Calibration meets other losses, with nodes of their own, at every evaluation.
    """

    def __init__(self) -> None:
        self._sets: OrderedDict[tuple[Quadrature, int, int], Measure] = OrderedDict()
        self._total = 0
        self._lock = threading.Lock()

    def get(
        self, key: tuple["Quadrature", int, int], build: Callable[[], Measure]
    ) -> Measure:
        """The nodes of a key, built if they are not there."""
        with self._lock:
            found = self._sets.get(key)
            if found is not None:
                self._sets.move_to_end(key)
                return found
        found = build()
        with self._lock:
            if key not in self._sets:
                self._sets[key] = found
                self._total += found.size + _OVERHEAD
            while self._total > _MOST_NODES and len(self._sets) > 1:
                _, dropped = self._sets.popitem(last=False)
                self._total -= dropped.size + _OVERHEAD
        return found


_kept_nodes = _KeptNodes()


class Quadrature(ABC):
    """A cumulant summed over nodes, kept for every range of requests."""

    def __init__(self) -> None:
        self._real: dict[float, tuple[float, float, float]] = {}

    @abstractmethod
    def _build(self, t: float, frequency: float) -> Measure:
        """Makes the nodes for exponents up to t, frequencies up to `frequency`."""

    def nodes(self, t: float, frequency: float) -> Measure:
        """Nodes good for exponents up to t, frequencies up to `frequency`."""
        power, rate = _bucket(t), _bucket(frequency)
        if power > 2:  # smaller exponents suit large losses, whose nodes are many
            power += power % 2
        return _kept_nodes.get(
            (self, power, rate), lambda: self._build(2.0**power, 2.0**rate)
        )

    def line(self, c: float, step: float, start: int, count: int) -> ComplexArray:
        """K at c + i step (start, ..., start + count - 1), modulo 2 pi i."""
        nodes = self.nodes(1.0 + c, step * (start + count))
        if nodes.size * (start + count) > _MOST_WORK:
            raise QuadratureTooLargeError
        return nodes.line(c, step, start, count)

    def real(self, s: float) -> tuple[float, float, float]:
        """K(s), K'(s), K''(s) for real s > -1."""
        if s not in self._real:
            if len(self._real) >= _KEPT:
                self._real.clear()
            self._real[s] = self.nodes(1.0 + s, 1.0).real(s)
        return self._real[s]

    def rounding(self, s: float, frequency: float = 1.0) -> float:
        """Rough size of the rounding error of K at s and up to a frequency."""
        return self.nodes(1.0 + s, frequency).rounding(s)


class Jump(Quadrature):
    """The cumulant of far outcomes, E_P[exp(s L)] over them alone."""

    settled: float = 0.0  # frequency from which on |exp K| is below exp(-SETTLED)
    log_mass: float  # K(0), or a little more

    @abstractmethod
    def below(self, threshold: float) -> "Jump":
        """Those of them with losses up to about a threshold."""


class QuadratureLoss(Quadrature, Loss):
    """A loss whose cumulant is summed over nodes."""


class DiscreteLoss(Loss):
    """Finitely many outcomes, possibly some that only P can produce.

    Args:
        p: Probabilities under P.
        q: Probabilities under Q.
        losses: log(p/q), which the probabilities do not tell to all digits near 0.
    """

    smooth = False

    def __init__(self, p: list[float], q: list[float], losses: list[float]) -> None:
        rows = [row for row in zip(losses, p, q, strict=True) if row[1] > 0]
        self.infinite_mass = sum(a for loss, a, _ in rows if loss == math.inf)
        finite = sorted(row for row in rows if row[0] < math.inf)
        self._loss = np.array([item[0] for item in finite])
        self._p = np.array([item[1] for item in finite])
        self._q = np.array([item[2] for item in finite])
        self.max_loss = float(self._loss.max(initial=-math.inf))
        gaps = np.diff(self._loss)
        spacing = float(gaps[gaps > 1e-9].min(initial=math.inf))
        if are_multiples(gaps, spacing):
            self.lattice = spacing

    def line(self, c: float, step: float, start: int, count: int) -> ComplexArray:
        s = c + 1j * step * np.arange(start, start + count)
        top = c * self.max_loss
        exponent = np.multiply.outer(s, self._loss) - top
        return np.asarray(top + np.log((self._p * np.exp(exponent)).sum(axis=1)))

    def real(self, s: float) -> tuple[float, float, float]:
        exponent = np.log(self._p) + s * self._loss
        top = float(exponent.max())
        weight = np.exp(exponent - top)
        mass = float(weight.sum())
        weight /= mass
        mean = float(weight @ self._loss)
        return top + math.log(mass), mean, float(weight @ (self._loss - mean) ** 2)

    @property
    def points(self) -> tuple[Array, Array]:
        """The finite losses and their probabilities under P."""
        return self._loss, self._p

    def log_delta(self, epsilon: float) -> float:
        """Log of delta at an epsilon, without the mass of infinite loss."""
        above = self._loss > epsilon
        delta = self._p[above] @ -np.expm1(epsilon - self._loss[above])
        return math.log(delta) if delta > 0.0 else -math.inf

    def lasting(self, c: float) -> float:
        return 1.0

    def decay(self, c: float, tau: Array, line: ComplexArray) -> Array:
        return np.zeros(tau.size)

    def rounding(self, s: float, frequency: float = 1.0) -> float:
        # K is the log of a sum near 1 whose terms are off by units of 1, however
        # small K itself is.
        exponent = s * self._loss
        weight = self._p * np.exp(exponent - self.real(s)[0])
        size = 4.0 + np.abs(np.log(self._p)) + 2.0 * np.abs(exponent)
        return 1.2e-16 * float(weight @ size) + super().rounding(s, frequency)

    def largest(self, tilt: float) -> float:
        return self.max_loss

    def smallest(self) -> float:
        return float(self._loss.min(initial=math.inf))

    def masses(self, edges: Array) -> tuple[Array, Array, float]:
        cell = np.searchsorted(edges, self._loss, "left")
        p, q = np.zeros(edges.size + 1), np.zeros(edges.size + 1)
        np.add.at(p, cell, self._p)
        np.add.at(q, cell, self._q)
        return p, q, 0.0


def are_multiples(values: Array, unit: float) -> bool:
    """Whether values are multiples of a finite unit, to rounding."""
    ratios = np.asarray(values) / unit
    return unit < math.inf and bool(np.all(np.abs(ratios - np.rint(ratios)) < 1e-12))


def _bucket(value: float) -> int:
    """The exponent of the least power of two from 1 on that reaches a value."""
    if value <= 1.0:
        return 0
    if not value < math.inf:
        raise OverflowError
    fraction, power = math.frexp(value)
    return power - (fraction == 0.5)


def normal_mass(points: Array) -> Array:
    """Standard normal mass between consecutive points, without cancellation."""
    from scipy.special import ndtr

    left, right = points[:-1], points[1:]
    positive = left > 0
    low = np.where(positive, -right, left)
    high = np.where(positive, -left, right)
    return np.asarray(ndtr(high) - ndtr(low))


def laplace_mass(points: Array) -> Array:
    """Standard Laplace mass between consecutive points."""

    def cdf(x: Array) -> Array:
        return np.where(
            x < 0, 0.5 * np.exp(np.minimum(x, 0)), 1 - 0.5 * np.exp(-np.maximum(x, 0))
        )

    left, right = points[:-1], points[1:]
    positive = left > 0
    low = np.where(positive, -right, left)
    high = np.where(positive, -left, right)
    return np.asarray(cdf(high) - cdf(low))
