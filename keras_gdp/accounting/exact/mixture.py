"""Losses of sampled mechanisms: mixtures of shifted noise on a line."""

import functools
import math

import numpy as np

from keras_gdp.accounting.exact.moments import (
    Array,
    Measure,
    Nodes,
    QuadratureTooLargeError,
)
from keras_gdp.accounting.exact.privacy_loss import (
    Jump,
    Loss,
    QuadratureLoss,
    laplace_mass,
    normal_mass,
)

__all__ = ["MixtureLoss", "UniformLoss"]

_LOG_TINY = -90.0
_KEPT = 64  # variants of a loss without its far outcomes
_PANEL, _PANEL_WEIGHT = np.polynomial.legendre.leggauss(20)


class MixtureLoss(QuadratureLoss):
    """Mixtures of shifted noise whose loss increases along the line.

    P = sum_i p_i noise(x - a_i), Q = sum_j q_j noise(x - b_j) with every a_i >= 0
    and every b_j <= 0; the noise has unit scale and is log-concave, so that the
    likelihood ratio is monotone.

    Args:
        p: Weights and shifts (p_i, a_i) of P, shift 0 included where present.
        q: Weights and shifts (q_j, b_j) of Q.
        noise: `"gaussian"` (standard deviation 1) or `"laplace"` (scale 1).
        fade: Where outcomes are left out, and over which width: the weight of x is
            the normal distribution function of (centre - x)/width. None: nowhere.
    """

    def __init__(
        self,
        p: list[tuple[float, float]],
        q: list[tuple[float, float]],
        noise: str = "gaussian",
        fade: tuple[float, float] | None = None,
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
        self._without: dict[float, MixtureLoss] = {}
        self.fade = fade
        if fade is not None:
            self.lost = (self._faded(p), self._faded(q))
            self.far = FarOutcomes(self)
        if noise == "laplace":
            self.max_loss = float(self.loss(np.array([self._a + 1.0]))[0])
        elif self._a == 0.0:  # Q alone is shifted: far right only its weight at 0
            weight = sum(w for w, shift in q if shift == 0.0)
            self.max_loss = -math.log(weight) if weight > 0 else math.inf

    # -- far outcomes ------------------------------------------------------------

    def without_far(self, threshold: float) -> Loss:
        if self.noise == "laplace" or self.max_loss <= threshold:
            return self
        if threshold not in self._without:
            fade = self.fade_at(threshold)
            if fade is None:
                return self
            if len(self._without) >= _KEPT:
                self._without.clear()
            self._without[threshold] = MixtureLoss(self.p, self.q, self.noise, fade)
        return self._without[threshold]

    def fade_at(self, threshold: float) -> tuple[float, float] | None:
        """The fade around a loss, None if no outcome has it."""
        centre = float(self.locate(np.array([threshold]))[0][0])
        # Narrow against the decay of the normal density there.
        return (centre, 0.6 / (max(centre, 0.0) + 2.0)) if centre < math.inf else None

    def _faded(self, parts: list[tuple[float, float]]) -> float:
        """Mass that the fade leaves out of a mixture."""
        from scipy.special import ndtr

        centre, width = self.fade or (math.inf, 1.0)
        scale = math.hypot(1.0, width)
        return math.fsum(w * float(ndtr((a - centre) / scale)) for w, a in parts)

    def log_weight(self, x: Array) -> Array:
        """Log of the share of each outcome that is kept."""
        if self.fade is None:
            return np.zeros(x.shape)
        from scipy.special import log_ndtr

        centre, width = self.fade
        return np.asarray(log_ndtr((centre - x) / width))

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

    def farthest(self, t: float) -> float:
        """Right of where r^t Q has its modes."""
        # It sits around t a where P ~ N(a) and Q ~ N(0) rule the ratio.
        return max(t, 1.0) * self._a

    def support(self, t: float) -> tuple[float, float]:
        """Where Q, or r^t Q, is not negligible."""
        low, high = self._b - 14.0, 14.0 + self.farthest(t)
        if self.fade is not None:
            high = min(high, self.fade[0] + 12.0 * self.fade[1])
        x = np.linspace(low, high, int(min(2000.0 + 4.0 * (high - low), 1e6)))
        log_q, _, loss = self.ratio(x)
        size = self.log_noise(x) + log_q + np.maximum(0.0, t * loss)
        size += self.log_weight(x)
        kept = np.flatnonzero(size > _LOG_TINY)
        step = x[1] - x[0]
        return x[kept[0]] - step, x[kept[-1]] + step

    # -- quadrature --------------------------------------------------------------

    def _build(self, t: float, frequency: float) -> Nodes:
        width = self._a - self._b
        if self.noise == "laplace":
            shifts = sorted({a for _, a in self.p} | {b for _, b in self.q} | {0.0})
            panels = max(1, math.ceil(width * (t + frequency) / 8.0 / len(shifts)))
            if panels > 2e4:
                raise QuadratureTooLargeError
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
            low, high = self.support(t)
            step = self.trapezoid(t, frequency)
            if (high - low) / step > (3e6 if frequency <= 1.0 else 3e5):
                raise QuadratureTooLargeError
            x = _equidistant(low, high + step, step)
            log_h = np.full(x.shape, math.log(step))
        log_q, u, loss = self.ratio(x)
        log_q += self.log_noise(x) + self.log_weight(x) + log_h
        return Nodes(log_q, u, loss, self.lost)

    def trapezoid(self, t: float, frequency: float) -> float:
        """Step of a trapezoid sum of Gaussian noise that is exact to rounding."""
        # The integrand is analytic in the strip |Im x| < pi/width (first zero of the
        # mixtures) and grows there at most like exp(curvature Im^2/2) times the
        # oscillation's exp(frequency width Im): trapezoid sums converge geometrically.
        width = self._a - self._b
        curvature = 1.0 + t * width**2 / 4.0
        if self.fade is not None:
            curvature += self.fade[1] ** -2.0
        strip = min(0.85 * math.pi / width, math.sqrt(100.0 / curvature))
        rate = 50.0 / strip + curvature * strip / 2.0 + frequency * width
        return 2.0 * math.pi / rate

    # -- masses ------------------------------------------------------------------

    def largest(self, tilt: float) -> float:
        high = self._a if self.noise == "laplace" else self.support(1.0 + tilt)[1]
        return float(self.loss(np.array([high]))[0])

    def smallest(self) -> float:
        low = self._b if self.noise == "laplace" else self.support(1.0)[0]
        return float(self.loss(np.array([low]))[0])

    def _ends(self, largest: float) -> tuple[float, float]:
        """Points between which the loss goes through all values that matter."""
        if self.noise == "laplace":
            return self._b, self._a
        low, high = self.support(1.0)
        if self._a > 0.0:
            # L >= log w + a (x - a/2), for the weight w of the largest shift a.
            weight = sum(w for w, shift in self.p if shift == self._a)
            reach = (largest - math.log(weight)) / self._a + self._a / 2.0
            high = max(high, reach + 1.0)
        return low, high

    def locate(self, edges: Array) -> tuple[Array, float]:
        """Points where the loss crosses the edges, and the largest miss."""
        low, high = self._ends(float(edges[-1]))
        ends = self.loss(np.array([low, high]))
        below, above = edges < ends[0], edges >= ends[1]
        inside = ~(below | above)
        target = edges[inside]
        x = self._closed_form(target)
        if x is None:
            x = self._search(target, low, high)
        x = np.clip(x, low, high)
        miss = np.abs(self.loss(x) - target)
        points = np.where(below, -np.inf, np.inf)
        points[inside] = x
        return points, float(miss.max(initial=0.0))

    def _closed_form(self, target: Array) -> Array | None:
        """Inverse of the loss of one sampled record under addition and removal."""
        if self.noise != "gaussian":
            return None
        for sign, parts, other in ((1.0, self.p, self.q), (-1.0, self.q, self.p)):
            if len(other) == 1 and other[0][1] == 0.0 and len(parts) == 2:
                (_, zero), (w, shift) = parts
                if zero == 0.0:
                    # log((exp(y) - 1)/w + 1), also where exp(y) overflows
                    y = sign * target
                    odds = np.maximum(np.expm1(np.minimum(y, 600.0)) / w, -1.0 + 1e-16)
                    large = np.where(y > 600.0, y - math.log(w), 0.0)
                    log_odds = np.where(y > 600.0, large, np.log1p(odds))
                    return np.asarray(log_odds / shift + shift / 2.0)
        return None

    def _search(self, target: Array, low: float, high: float) -> Array:
        """Inverse of the loss by a table and Newton's iteration."""
        size = 20001 if target.size > 100 else 2001
        table = np.linspace(low, high, size)
        losses = np.maximum.accumulate(self.loss(table))
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
        return np.asarray(x)

    def _between(self, points: Array, parts: list[tuple[float, float]]) -> Array:
        mass = normal_mass if self.noise == "gaussian" else laplace_mass
        return np.asarray(sum(weight * mass(points - shift) for weight, shift in parts))

    def masses(self, edges: Array) -> tuple[Array, Array, float]:
        points, miss = self.locate(edges)
        points = np.concatenate([[-np.inf], points, [np.inf]])
        return self._between(points, self.p), self._between(points, self.q), miss


class UniformLoss(QuadratureLoss):
    """Fixed-size sampling under replacement: the symmetric C_p(G_mu).

    Its positive losses are those of (1-p) N(0,1) + p N(mu,1) against N(0,1), its
    negative ones their mirror image, and the rest is an atom at 0 (Dong, Roth and
    Su, section 4; Bu et al. section 2.4).
    """

    def __init__(
        self, mu: float, p: float, fade: tuple[float, float] | None = None
    ) -> None:
        self._mu, self._p, self._fade = mu, p, fade
        parts = [(1.0 - p, 0.0), (p, mu)]
        self._pair = MixtureLoss(parts, [(1.0, 0.0)], fade=fade)
        self.lost = self._pair.lost
        self.largest_order = self._pair.largest_order
        self._without: dict[float, UniformLoss] = {}
        self._start = mu / 2.0
        self.atom = (1.0 - p) * math.erf(mu / 2.0 / math.sqrt(2.0))
        super().__init__()
        if fade is not None:
            self.far = FarOutcomes(self._pair)

    def without_far(self, threshold: float) -> Loss:
        if threshold not in self._without:
            fade = self._pair.fade_at(threshold)
            if fade is None or fade[0] < self._start + 14.0 * fade[1]:
                return self  # the fade would reach the atom
            if len(self._without) >= _KEPT:
                self._without.clear()
            self._without[threshold] = UniformLoss(self._mu, self._p, fade)
        return self._without[threshold]

    def _build(self, t: float, frequency: float) -> Nodes:
        high = max(self._pair.support(t)[1], self._start + 14.0)
        width = 2.0 * self._start
        rate = 1.0 + (frequency + math.sqrt(t)) * width
        panel = min(4.0 / rate, 1.2, 2.5 / width)
        if self._fade is not None:
            panel = min(panel, 2.0 * self._fade[1])
        count = math.ceil((high - self._start) / panel)
        if count > 2e4:
            raise QuadratureTooLargeError
        x, log_h = _panels(np.linspace(self._start, high, count + 1))
        _, u, loss = self._pair.ratio(x)
        log_base = self._pair.log_noise(x) + log_h
        return Nodes(
            np.concatenate([log_base + self._pair.log_weight(x), log_base + loss]),
            np.concatenate([u, -u / (1.0 + u)]),
            np.concatenate([loss, -loss]),
            self.lost,
        )

    def real(self, s: float) -> tuple[float, float, float]:
        value, mean, second = super().real(s)
        # The atom at zero carries mass but no cumulant excess.
        share = 1.0 - self.atom * math.exp(-value)
        square = share * (second + mean * mean)
        return value, share * mean, square - (share * mean) ** 2

    def largest(self, tilt: float) -> float:
        return self._pair.largest(tilt)

    def smallest(self) -> float:
        return -self._pair.largest(0.0)

    def masses(self, edges: Array) -> tuple[Array, Array, float]:
        def half(thresholds: Array) -> tuple[Array, Array, float]:
            points, miss = self._pair.locate(thresholds)
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


class FarOutcomes(Jump):
    """What a fade leaves out of a mixture: the cumulant of a rare far jump.

    Args:
        pair: The faded mixture of Gaussian noise.
        end: A fade further out, beyond which outcomes are not counted; None: all are.
    """

    def __init__(
        self, pair: MixtureLoss, end: tuple[float, float] | None = None
    ) -> None:
        super().__init__()
        self._pair, self._end = pair, end
        self._below: dict[float, FarOutcomes] = {}

    def below(self, threshold: float) -> "FarOutcomes":
        if threshold not in self._below:
            end = self._pair.fade_at(threshold)
            self._below[threshold] = FarOutcomes(self._pair, end)
        return self._below[threshold]

    def _build(self, t: float, frequency: float) -> Measure:
        from scipy.special import log_ndtr

        pair, step = self._pair, self._pair.trapezoid(t, frequency)
        centre, width = pair.fade or (math.inf, 1.0)
        low, high = centre - 13.0 * width, max(centre, pair.farthest(t)) + 14.0
        if self._end is not None:
            high = min(high, self._end[0] + 13.0 * self._end[1])
        if (high - low) / step > 3e5:
            raise QuadratureTooLargeError
        x = _equidistant(low, high, step)
        log_q, _, loss = pair.ratio(x)
        log_q += pair.log_noise(x) + math.log(step)
        begun = (x - centre) / width
        log_far = np.asarray(log_ndtr(begun))
        if self._end is not None:
            ended = (x - self._end[0]) / self._end[1]
            late = ended > 0.0  # there the difference of the complements is exact
            log_far = np.where(late, log_ndtr(-ended), log_far)
            less = np.where(late, log_ndtr(-begun), log_ndtr(ended)) - log_far
            log_far += np.log(-np.expm1(np.minimum(less, -1e-300)))
        return Measure(log_q + log_far, loss)


def _equidistant(low: float, high: float, step: float) -> Array:
    """Points whose distance is the step itself, not the rounded one of np.arange."""
    return np.asarray(low + step * np.arange(math.ceil((high - low) / step)))


def _panels(cuts: Array) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and log weights on consecutive panels."""
    half = np.diff(cuts) / 2.0
    x = (cuts[:-1] + half)[:, None] + half[:, None] * _PANEL
    weight = half[:, None] * _PANEL_WEIGHT
    return x.ravel(), np.log(weight).ravel()
