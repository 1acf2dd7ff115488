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

import functools
import math
from abc import ABC, abstractmethod

import numpy as np

from keras_gdp.accounting.exact.moments import (
    Array,
    ComplexArray,
    Nodes,
    QuadratureTooLargeError,
)

_LOG_TINY = -90.0
_PANEL, _PANEL_WEIGHT = np.polynomial.legendre.leggauss(20)


class Loss(ABC):
    """Privacy loss of one release, from P against Q."""

    smooth: bool = True  # False: the loss has atoms, its transform need not decay
    infinite_mass: float = 0.0  # P(L = inf)
    max_loss: float = math.inf  # largest finite value of L
    largest_order: float = math.inf  # up to which s the cumulant can be computed

    @abstractmethod
    def line(self, c: float, step: float, start: int, count: int) -> ComplexArray:
        """K at c + i step (start, ..., start + count - 1), modulo 2 pi i."""

    @abstractmethod
    def real(self, s: float) -> tuple[float, float, float]:
        """K(s), K'(s), K''(s) for real s > -1."""

    def rounding(self, s: float) -> float:
        """Rough size of the rounding error of K(s)."""
        return 4e-16 * (abs(self.real(s)[0]) + abs(s * self.real(s)[1]))

    @abstractmethod
    def masses(self, edges: Array, tilt: float) -> tuple[Array, Array, float]:
        """Masses of P and Q in the cells cut by increasing thresholds of L.

        Args:
            edges: Thresholds e_0 < ... < e_n.
            tilt: Exponent s up to which exp(s L) will be summed.

        Returns:
            `(p, q, slack)`: n + 2 masses each, for L <= e_0, (e_0, e_1], ...,
            L > e_n (finite), and by how much a threshold may be off.
        """

    @abstractmethod
    def largest(self, tilt: float) -> float:
        """A loss beyond which exp(tilt L) has negligible mass under P."""

    @abstractmethod
    def smallest(self, tilt: float) -> float:
        """A loss below which exp(tilt L) has negligible mass under P."""


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

    def masses(self, edges: Array, tilt: float) -> tuple[Array, Array, float]:
        z = np.concatenate([[-np.inf], edges, [np.inf]]) / self.mu
        p = _normal_mass(z - self.mu / 2.0)
        return p, _normal_mass(z + self.mu / 2.0), 0.0

    def largest(self, tilt: float) -> float:
        return (tilt + 0.5) * self.mu**2 + 13.0 * self.mu

    def smallest(self, tilt: float) -> float:
        return (tilt + 0.5) * self.mu**2 - 13.0 * self.mu


class QuadratureLoss(Loss):
    """A loss whose cumulant is summed over nodes, kept for every range of requests."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], Nodes] = {}

    @abstractmethod
    def _build(self, t: float, frequency: float) -> Nodes:
        """Makes the nodes for exponents up to t, frequencies up to `frequency`."""

    def nodes(self, t: float, frequency: float) -> Nodes:
        """Nodes good for exponents up to t, frequencies up to `frequency`."""
        key = (_bucket(t), _bucket(frequency))
        if key not in self._nodes:
            self._nodes[key] = self._build(2.0 ** key[0], 2.0 ** key[1])
        return self._nodes[key]

    def rounding(self, s: float) -> float:
        return self.nodes(1.0 + s, 1.0).rounding(s)

    def line(self, c: float, step: float, start: int, count: int) -> ComplexArray:
        nodes = self.nodes(1.0 + c, step * (start + count))
        return nodes.line(c, step, start, count)

    def real(self, s: float) -> tuple[float, float, float]:
        return self.nodes(1.0 + s, 1.0).real(s)


class MixtureLoss(QuadratureLoss):
    """Mixtures of shifted noise whose loss increases along the line.

    P = sum_i p_i noise(x - a_i), Q = sum_j q_j noise(x - b_j) with every a_i >= 0
    and every b_j <= 0; the noise has unit scale and is log-concave, so that the
    likelihood ratio is monotone.

    Args:
        p: Weights and shifts (p_i, a_i) of P, shift 0 included where present.
        q: Weights and shifts (q_j, b_j) of Q.
        noise: `"gaussian"` (standard deviation 1) or `"laplace"` (scale 1).
    """

    def __init__(
        self,
        p: list[tuple[float, float]],
        q: list[tuple[float, float]],
        noise: str = "gaussian",
    ) -> None:
        self.p, self.q, self.noise = p, q, noise
        self.smooth = noise == "gaussian"
        self._a = max(shift for _, shift in p)
        self._b = min(shift for _, shift in q)
        width = self._a - self._b
        # About 10^6 quadrature nodes, see `_build`.
        self.largest_order = (4e4 / width) ** 2
        if self._a > 0.0:
            self.largest_order = (1.2e6 / (self._a * width)) ** (2.0 / 3.0)
        super().__init__()
        if noise == "laplace":
            self.max_loss = float(self.loss(np.array([self._a + 1.0]))[0])
        elif self._a == 0.0:  # Q alone is shifted: far right only its weight at 0
            weight = sum(w for w, shift in q if shift == 0.0)
            self.max_loss = -math.log(weight) if weight > 0 else math.inf

    # -- the ratio ---------------------------------------------------------------

    def _log_ratio_terms(self, x: Array, shift: float) -> Array:
        """Log noise(x - shift) - log noise(x)."""
        if self.noise == "gaussian":
            return shift * (x - shift / 2.0)
        return np.abs(x) - np.abs(x - shift)

    def _relative(
        self, x: Array, parts: list[tuple[float, float]]
    ) -> tuple[Array, Array]:
        """Log of the mixture over noise(x), and the mixture's excess over it."""
        log_ratio, excess = np.full(x.shape, -np.inf), np.zeros(x.shape)
        for weight, shift in parts:
            term = self._log_ratio_terms(x, shift)
            log_ratio = np.logaddexp(log_ratio, math.log(weight) + term)
            excess += weight * np.expm1(np.minimum(term, 300.0))
        return log_ratio, excess

    def ratio(self, x: Array) -> tuple[Array, Array, Array]:
        """Log of Q's density over the noise's, dP/dQ - 1, and log dP/dQ."""
        log_p, excess_p = self._relative(x, self.p)
        log_q, excess_q = self._relative(x, self.q)
        loss = log_p - log_q
        near = (np.abs(excess_p) < 0.5) & (np.abs(excess_q) < 0.5)
        u = np.where(near, (excess_p - excess_q) / (1.0 + excess_q), 0.0)
        loss = np.where(near, np.log1p(u), loss)
        u = np.where(near, u, np.expm1(np.minimum(loss, 700.0)))
        return np.where(near, np.log1p(excess_q), log_q), u, loss

    def loss(self, x: Array) -> Array:
        """Log dP/dQ at x."""
        return self.ratio(x)[2]

    def slope(self, x: Array) -> Array:
        """Derivative of the loss for Gaussian noise: difference of mean shifts."""
        means = []
        for parts in (self.p, self.q):
            logs = [math.log(w) + self._log_ratio_terms(x, a) for w, a in parts]
            top = functools.reduce(np.maximum, logs)
            weights = [np.exp(item - top) for item in logs]
            shifted = sum(w * a for w, (_, a) in zip(weights, parts, strict=True))
            means.append(shifted / sum(weights))
        return np.asarray(means[0] - means[1])

    def log_noise(self, x: Array) -> Array:
        """Log density of the unshifted noise."""
        if self.noise == "gaussian":
            return -x * x / 2.0 - 0.5 * math.log(2.0 * math.pi)
        return -np.abs(x) - math.log(2.0)

    def support(self, t: float) -> tuple[float, float]:
        """Where Q, or r^t Q, is not negligible."""
        # r^t Q sits around t a where P ~ N(a) and Q ~ N(0) rule the ratio.
        low, high = self._b - 14.0, 14.0 + max(t, 1.0) * self._a
        x = np.linspace(low, high, int(min(2000.0 + 4.0 * (high - low), 1e6)))
        log_q, _, loss = self.ratio(x)
        size = self.log_noise(x) + log_q + np.maximum(0.0, t * loss)
        kept = np.flatnonzero(size > _LOG_TINY)
        step = x[1] - x[0]
        return x[kept[0]] - step, x[kept[-1]] + step

    # -- quadrature --------------------------------------------------------------

    def _build(self, t: float, frequency: float) -> Nodes:
        width = self._a - self._b
        if self.noise == "laplace":
            shifts = sorted({a for _, a in self.p} | {b for _, b in self.q} | {0.0})
            panels = max(1, math.ceil(width * (t + frequency) / 8.0 / len(shifts)))
            cuts = np.unique(
                np.concatenate(
                    [
                        np.linspace(a, b, panels + 1)
                        for a, b in zip(shifts, shifts[1:], strict=False)
                    ]
                )
            )
            x, log_h = _panels(cuts)
            ends = np.array([self._b, self._a])  # beyond them the ratio is constant
            x = np.concatenate([x, ends])
            log_h = np.concatenate([log_h, [0.0, 0.0]])
        else:
            # The integrand is analytic in the strip |Im x| < pi/width (first zero of
            # the mixtures) and grows there at most like exp(curvature Im^2/2) times
            # the oscillation's exp(frequency width Im): trapezoid sums converge
            # geometrically.
            curvature = 1.0 + t * width**2 / 4.0
            strip = min(0.85 * math.pi / width, math.sqrt(100.0 / curvature))
            rate = 50.0 / strip + curvature * strip / 2.0 + frequency * width
            low, high = self.support(t)
            step = 2.0 * math.pi / rate
            if (high - low) / step > (3e6 if frequency <= 1.0 else 3e5):
                raise QuadratureTooLargeError
            x = np.arange(low, high + step, step)
            log_h = np.full(x.shape, math.log(step))
        log_q, u, loss = self.ratio(x)
        return Nodes(self.log_noise(x) + log_q + log_h, u, loss)

    # -- masses ------------------------------------------------------------------

    def largest(self, tilt: float) -> float:
        high = self._a if self.noise == "laplace" else self.support(1.0 + tilt)[1]
        return float(self.loss(np.array([high]))[0])

    def smallest(self, tilt: float) -> float:
        low = self._b if self.noise == "laplace" else self.support(1.0)[0]
        return float(self.loss(np.array([low]))[0])

    def locate(self, edges: Array, tilt: float) -> tuple[Array, float]:
        """Points where the loss crosses the edges, and the largest miss."""
        if self.noise == "gaussian":
            low, high = self.support(1.0 + tilt)
        else:
            low, high = self._b, self._a
        size = 20001 if edges.size > 100 else 2001
        table = np.linspace(low, high, size)
        losses = np.maximum.accumulate(self.loss(table))
        below, above = edges < losses[0], edges >= losses[-1]
        inside = ~(below | above)
        target = edges[inside]
        index = np.clip(np.searchsorted(losses, target, "right") - 1, 0, size - 2)
        left, right = table[index], table[index + 1]
        x = np.interp(target, losses, table)
        for _ in range(3):
            if self.noise == "gaussian":
                slope = self.slope(x)
            else:
                slope = (losses[index + 1] - losses[index]) / (right - left)
            with np.errstate(divide="ignore", invalid="ignore"):
                new = x - (self.loss(x) - target) / slope
            x = np.where(np.isfinite(new), np.clip(new, left, right), x)
        miss = np.abs(self.loss(x) - target)
        points = np.where(below, -np.inf, np.inf)
        points[inside] = x
        return points, float(miss.max(initial=0.0))

    def _between(self, points: Array, parts: list[tuple[float, float]]) -> Array:
        mass = _normal_mass if self.noise == "gaussian" else _laplace_mass
        return np.asarray(sum(weight * mass(points - shift) for weight, shift in parts))

    def masses(self, edges: Array, tilt: float) -> tuple[Array, Array, float]:
        points, miss = self.locate(edges, tilt)
        points = np.concatenate([[-np.inf], points, [np.inf]])
        return self._between(points, self.p), self._between(points, self.q), miss


class UniformLoss(QuadratureLoss):
    """Fixed-size sampling under replacement: the symmetric C_p(G_mu).

    Its positive losses are those of (1-p) N(0,1) + p N(mu,1) against N(0,1), its
    negative ones their mirror image, and the rest is an atom at 0 (Dong, Roth and
    Su, section 4; Bu et al. section 2.4).
    """

    def __init__(self, mu: float, p: float) -> None:
        self._pair = MixtureLoss([(1.0 - p, 0.0), (p, mu)], [(1.0, 0.0)])
        self.largest_order = self._pair.largest_order
        self._start = mu / 2.0
        self.atom = (1.0 - p) * math.erf(mu / 2.0 / math.sqrt(2.0))
        super().__init__()

    def _build(self, t: float, frequency: float) -> Nodes:
        high = max(self._pair.support(t)[1], self._start + 14.0)
        width = 2.0 * self._start
        rate = 1.0 + (frequency + math.sqrt(t)) * width
        panel = min(4.0 / rate, 1.2, 2.5 / width)
        count = math.ceil((high - self._start) / panel)
        if count > 2e4:
            raise QuadratureTooLargeError
        x, log_h = _panels(np.linspace(self._start, high, count + 1))
        _, u, loss = self._pair.ratio(x)
        log_base = self._pair.log_noise(x) + log_h
        return Nodes(
            np.concatenate([log_base, log_base + loss]),
            np.concatenate([u, -u / (1.0 + u)]),
            np.concatenate([loss, -loss]),
        )

    def real(self, s: float) -> tuple[float, float, float]:
        value, mean, second = super().real(s)
        # The atom at zero carries mass but no cumulant excess.
        share = 1.0 - self.atom * math.exp(-value)
        square = share * (second + mean * mean)
        return value, share * mean, square - (share * mean) ** 2

    def largest(self, tilt: float) -> float:
        return self._pair.largest(tilt)

    def smallest(self, tilt: float) -> float:
        return -self._pair.largest(0.0)

    def masses(self, edges: Array, tilt: float) -> tuple[Array, Array, float]:
        def half(thresholds: Array) -> tuple[Array, Array, float]:
            points, miss = self._pair.locate(thresholds, tilt)
            points = np.concatenate([[-np.inf], points, [np.inf]])
            points = np.maximum(points, self._start)
            pair = self._pair
            return pair._between(points, pair.p), pair._between(points, pair.q), miss

        p, q, miss = half(edges)
        mirrored_q, mirrored_p, mirrored_miss = half(-edges[::-1])
        p, q = p + mirrored_p[::-1], q + mirrored_q[::-1]
        cell = int(np.searchsorted(edges, 0.0, "left"))
        p[cell] += self.atom
        q[cell] += self.atom
        return p, q, max(miss, mirrored_miss)


class DiscreteLoss(Loss):
    """Finitely many outcomes, possibly some that only P can produce.

    Args:
        p: Probabilities under P.
        q: Probabilities under Q.
    """

    smooth = False

    def __init__(self, p: list[float], q: list[float]) -> None:
        pairs = [(a, b) for a, b in zip(p, q, strict=True) if a > 0]
        self.infinite_mass = sum(a for a, b in pairs if b == 0)
        finite = sorted((math.log(a / b), a, b) for a, b in pairs if b > 0)
        self._loss = np.array([item[0] for item in finite])
        self._p = np.array([item[1] for item in finite])
        self._q = np.array([item[2] for item in finite])
        self.max_loss = float(self._loss.max(initial=-math.inf))

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

    def largest(self, tilt: float) -> float:
        return self.max_loss

    def smallest(self, tilt: float) -> float:
        return float(self._loss.min(initial=math.inf))

    def masses(self, edges: Array, tilt: float) -> tuple[Array, Array, float]:
        cell = np.searchsorted(edges, self._loss, "left")
        p, q = np.zeros(edges.size + 1), np.zeros(edges.size + 1)
        np.add.at(p, cell, self._p)
        np.add.at(q, cell, self._q)
        return p, q, 0.0


def _bucket(value: float) -> int:
    return max(0, math.ceil(math.log2(max(value, 1.0))))


def _panels(cuts: Array) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and log weights on consecutive panels."""
    half = np.diff(cuts) / 2.0
    x = (cuts[:-1] + half)[:, None] + half[:, None] * _PANEL
    weight = half[:, None] * _PANEL_WEIGHT
    return x.ravel(), np.log(weight).ravel()


def _normal_mass(points: Array) -> Array:
    """Standard normal mass between consecutive points, without cancellation."""
    from scipy.special import ndtr

    left, right = points[:-1], points[1:]
    positive = left > 0
    low = np.where(positive, -right, left)
    high = np.where(positive, -left, right)
    return np.asarray(ndtr(high) - ndtr(low))


def _laplace_mass(points: Array) -> Array:
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
