"""Losses of sampled mechanisms: mixtures of shifted noise on a line."""

import cmath
import functools
import itertools
import math

import numpy as np

from keras_gdp.accounting.exact.inverse import closed_form, search
from keras_gdp.accounting.exact.jumps import Fade, FarOutcomes, settled
from keras_gdp.accounting.exact.moments import Nodes, QuadratureTooLargeError
from keras_gdp.accounting.exact.privacy_loss import (
    Loss,
    QuadratureLoss,
    laplace_mass,
    normal_mass,
)
from keras_gdp.accounting.exact.quadrature import Fading, looks, panels, trapezoid
from keras_gdp.accounting.exact.waves import Array, ComplexArray

__all__ = ["MixtureLoss"]

_LOG_TINY = -90.0  # K may be tiny, and what is cut off tinier
_STEEP = 0.1  # increase of log L over the width of a fade
_KEPT = 64  # variants of a loss without its far outcomes
_UNSHIFTED = [(1.0, 0.0)]
_MOST_EXPONENT = 700.0  # beyond, logarithms alone are finite
_VARIATION = 801  # points at which the variation of a function is read


class MixtureLoss(QuadratureLoss):
    """Mixtures of shifted noise whose loss increases along the line.

    P = sum_i p_i noise(x - a_i), Q = sum_j q_j noise(x - b_j) with every a_i >= 0
    and every b_j <= 0; the noise has unit scale and is log-concave, so that the
    likelihood ratio is monotone.

    Args:
        p: Weights and shifts (p_i, a_i) of P, shift 0 included where present.
        q: Weights and shifts (q_j, b_j) of Q.
        noise: `"gaussian"` (standard deviation 1) or `"laplace"` (scale 1).
        fade: Where outcomes are left out; None: nowhere.
        least: No outcome below it may be left out.
    """

    def __init__(
        self,
        p: list[tuple[float, float]],
        q: list[tuple[float, float]],
        noise: str = "gaussian",
        fade: Fade | None = None,
        least: float = -math.inf,
    ) -> None:
        self._least = least
        self.p, self.q, self.noise = p, q, noise
        self._a = max(shift for _, shift in p)
        self._b = min(shift for _, shift in q)
        self.jumps = noise == "gaussian" and self._a > 0.0
        if noise == "gaussian":
            shifts = [abs(shift) for _, shift in [*p, *q] if shift != 0.0]
            self.slope_of_jumps = min(shifts)
            self.settled = settled(self.slope_of_jumps, fade)
        if self._b == 0.0:  # the loss if no record of the group is drawn
            self.rest = math.log(math.fsum(w for w, shift in p if shift == 0.0) or 1.0)
        self.width = width = self._a - self._b
        # About 10^6 quadrature nodes, see `_build`.
        self.largest_order = (4e4 / max(width, 1e-100)) ** 2
        if noise == "laplace":
            self.largest_order = 1e5 / max(width, 1e-200)
        elif self._a > 0.0 and fade is None:
            self.largest_order = (1.2e6 / max(self._a * width, 1e-200)) ** (2.0 / 3.0)
        super().__init__()
        self._without: dict[float, MixtureLoss] = {}
        self._edges: dict[float, tuple[float, float]] = {}
        self._supports: dict[float, tuple[float, float]] = {}
        self.fade = fade
        if fade is not None:
            lost_p, lost_q = (
                math.fsum(w * fade.left_out(a) for w, a in parts) for parts in (p, q)
            )
            more_p, more_q = (
                math.fsum(w * fade.left_out_more(a) for w, a in parts)
                for parts in (p, q)
            )
            self.lost, self.lost_more = (lost_p, lost_q), more_p - more_q
            logs = [math.log(w) + fade.log_left_out(a) for w, a in p]
            self.log_lost = float(np.logaddexp.reduce(logs))
            self.far = FarOutcomes(self, fade)
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

    def fade_at(self, threshold: float) -> Fade | None:
        """The fade around a loss, None if no outcome has it."""
        if threshold == math.inf:
            return None
        centre = float(self.locate(np.array([threshold]))[0][0])
        if not -math.inf < centre < math.inf:
            return None
        # Narrow against the decay of the normal density there and, as losses may grow
        # exponentially there and exp(s L) doubly so, against that growth, which is
        # slower where they are large. Fades further left must nowhere keep more: from
        # 1 on they cross 14 widths right of both, or 10 widths left.
        width = 1.0 / (max(centre, 1.0) + 2.75)
        width = min(width, _STEEP * max(threshold - self.rest, 1.0) / self.width)
        width = min(width, (centre - self._least) / 14.0)
        return Fade(centre, width) if width > 1e-9 else None

    def log_weight(self, x: Array) -> Array:
        """Log of the share of each outcome that is kept."""
        return np.zeros(x.shape) if self.fade is None else self.fade.log_kept(x)

    # -- the ratio ---------------------------------------------------------------

    def _log_ratio_terms(self, x: Array, shift: float) -> Array:
        """Log noise(x - shift) - log noise(x)."""
        if self.noise == "gaussian":
            return shift * (x - shift / 2.0)
        return np.abs(x) - np.abs(x - shift)

    def _excess(self, x: Array, parts: list[tuple[float, float]]) -> tuple[Array, bool]:
        """A mixture over noise(x) less 1, and whether log1p of it is accurate.

        It is not where that is much below 1, or where exponentials are cut off.
        """
        excess, most = np.zeros(x.shape), 0.0
        for weight, shift in parts:
            if shift != 0.0:
                term = self._log_ratio_terms(x, shift)
                most = max(most, float(term.max(initial=0.0)))
                excess += weight * np.expm1(np.minimum(term, _MOST_EXPONENT))
        return excess, excess.min(initial=0.0) > -0.5 and most < _MOST_EXPONENT

    def _log_relative(self, x: Array, parts: list[tuple[float, float]]) -> Array:
        """Log of a mixture over noise(x)."""
        logs = [math.log(w) + self._log_ratio_terms(x, shift) for w, shift in parts]
        return functools.reduce(np.logaddexp, logs)

    def ratio(self, x: Array) -> tuple[Array, Array, Array]:
        """Log of Q's density over the noise's, dP/dQ - 1, and log dP/dQ."""
        excess_p, accurate_p = self._excess(x, self.p)
        excess_q, accurate_q = self._excess(x, self.q)
        if accurate_p and accurate_q:
            log_p = np.log1p(excess_p)
            if self.q == _UNSHIFTED:
                return excess_q, excess_p, log_p
            u, log_q = (excess_p - excess_q) / (1.0 + excess_q), np.log1p(excess_q)
            loss = np.log1p(np.maximum(u, -0.9))
            return log_q, u, np.where(np.abs(u) < 0.5, loss, log_p - log_q)
        log_q = self._log_relative(x, self.q)
        loss = self._log_relative(x, self.p) - log_q
        near = (np.abs(excess_p) < 0.5) & (np.abs(excess_q) < 0.5)
        apart, zero = excess_p - excess_q, np.zeros(x.shape)
        u = np.divide(apart, 1.0 + excess_q, out=zero, where=near)
        loss = np.where(near, np.log1p(u), loss)
        u = np.where(near, u, np.expm1(np.minimum(loss, _MOST_EXPONENT)))
        return np.log1p(excess_q, out=log_q, where=near), u, loss

    def loss(self, x: Array) -> Array:
        """Log dP/dQ at x."""
        return self.ratio(x)[2]

    def slope(self, x: Array) -> Array:
        """Derivative of the loss, between the kinks of Laplace noise.

        The difference of the mean shifts or, for Laplace noise, of their mean signs.
        """
        means = []
        for parts in (self.p, self.q):
            logs = [math.log(w) + self._log_ratio_terms(x, a) for w, a in parts]
            top = functools.reduce(np.maximum, logs)
            weights = [np.exp(item - top) for item in logs]
            rises = (
                a if self.noise == "gaussian" else np.sign(a - x) for _, a in parts
            )
            risen = sum(w * rise for w, rise in zip(weights, rises, strict=True))
            means.append(risen / sum(weights))
        return np.asarray(means[0] - means[1])

    def continued(self, x: Array, y: float) -> tuple[ComplexArray, ComplexArray]:
        """Log P and log Q over Gaussian noise at x + iy, less what they are at x."""
        found = []
        for parts in (self.p, self.q):
            logs = [math.log(w) + self._log_ratio_terms(x, a) for w, a in parts]
            top = functools.reduce(np.maximum, logs)
            sizes = [np.exp(item - top) for item in logs]
            waves = (
                size * cmath.exp(1j * a * y)
                for size, (_, a) in zip(sizes, parts, strict=True)
            )
            found.append(np.log(sum(waves) / sum(sizes)))
        return found[0], found[1]

    def log_size(self, x: Array) -> tuple[Array, Array]:
        """Log of the weight at x under Q, and the loss there."""
        log_q, _, loss = self.ratio(x)
        return log_q + self.log_noise(x) + self.log_weight(x), loss

    def log_noise(self, x: Array) -> Array:
        """Log density of the unshifted noise."""
        if self.noise == "gaussian":
            return -x * x / 2.0 - 0.5 * math.log(2.0 * math.pi)
        return -np.abs(x) - math.log(2.0)

    def farthest(self, t: float) -> float:
        """Right of where r^t Q has its modes."""
        if self._a > 0.0 or self.noise == "laplace":
            # It sits around t a where P ~ N(a) and Q ~ N(0) rule the ratio, and further
            # right where Q ~ N(b) does.
            a, b = self._a, self._b
            return max(max(t, 1.0) * a, t * (a - b) + b)
        # With P = N(0), (t - 1) L' = x at a mode, and L' falls.
        x = 1.0
        while (t - 1.0) * self.slope(np.array([x]))[0] > x:
            x *= 1.5
        return x

    def support(self, t: float) -> tuple[float, float]:
        """Where Q, or r^t Q, is not negligible."""
        if t not in self._supports:
            if len(self._supports) >= _KEPT:
                self._supports.clear()
            self._supports[t] = self._support(t)
        return self._supports[t]

    def _support(self, t: float) -> tuple[float, float]:
        low, high = self._b - 14.0, 14.0 + self.farthest(t)
        if self.fade is not None:
            low, high = min(low, self.fade.centre - 6.0), min(high, self.fade.end)
        x = looks(low, high, self._fades(), int(min(4.0 * (high - low), 1e6)))
        size, loss = self.log_size(x)
        # The larger the exponent the further right the mass.
        tilted = size + t * loss
        first = int(np.argmax(size > size.max() + _LOG_TINY))
        last = int(np.flatnonzero(tilted > tilted.max() + _LOG_TINY)[-1])
        return float(x[max(first - 1, 0)]), float(x[min(last + 1, x.size - 1)])

    def _fades(self) -> list[Fading]:
        return [] if self.fade is None else [Fading(*self.fade, -1.0)]

    def kinks(self) -> list[float]:
        """Where densities of Laplace noise have kinks."""
        return sorted({shift for _, shift in [*self.p, *self.q]} | {0.0})

    # -- decay of the transform for Laplace noise --------------------------------

    def lasting(self, c: float) -> float:
        return 0.0 if self.noise == "gaussian" else self._shares(c)[0]

    def decay(self, c: float, tau: Array, line: ComplexArray) -> Array:
        if self.noise == "gaussian":
            return super().decay(c, tau, line)
        atoms, bends = self._shares(c)
        if bends == math.inf:
            return np.zeros(tau.size)
        rest = np.where(tau > bends, bends / np.maximum(tau, bends), 1.0)
        return np.asarray(np.log(np.minimum(atoms + rest, 1.0)))

    def _shares(self, c: float) -> tuple[float, float]:
        """Shares in exp K(c): of the two atoms, and tau times the most of the rest.

        The rest is an integral of h exp(i tau L) and, by parts, at most the ends and
        the variation of h/L' over tau.
        """
        if c not in self._edges:
            if len(self._edges) >= _KEPT:
                self._edges.clear()
            t = 1.0 + c
            size, loss = self.log_size(np.array([self._b, self._a]))
            scale = self.real(c)[0]
            atoms = float(np.exp(size + t * loss - scale).sum())
            bends = 0.0
            for left, right in itertools.pairwise(self.kinks()):
                x = np.linspace(left, right, _VARIATION)
                size, loss = self.log_size(x)
                slope = np.gradient(loss, x, edge_order=2)
                with np.errstate(all="ignore"):  # where a loss is flat, no bound
                    height = np.exp(size + t * loss - scale) / slope
                    varied = float(np.abs(np.diff(height)).sum())
                    bends += float(height[0] + height[-1]) + varied
            bends = 1.01 * bends if bends < math.inf else math.inf
            self._edges[c] = atoms * (1.0 + 1e-12), bends
        return self._edges[c]

    # -- quadrature --------------------------------------------------------------

    def _build(self, t: float, frequency: float) -> Nodes:
        if self.noise == "laplace":
            shifts = self.kinks()
            count = max(1, math.ceil(self.width * (t + frequency) / 8.0 / len(shifts)))
            if count > 2e4:
                raise QuadratureTooLargeError
            cuts = np.unique(
                np.concatenate(
                    [
                        np.linspace(a, b, count + 1)
                        for a, b in itertools.pairwise(shifts)
                    ]
                )
            )
            x, log_h = panels(cuts)
            ends = np.array([self._b, self._a])  # beyond them the ratio is constant
            x = np.concatenate([x, ends])
            log_h = np.concatenate([log_h, [0.0, 0.0]])
        else:
            low, high = self.support(t)
            x, step = trapezoid(self, low, high, t, frequency, self._fades())
            x = x if self.fade is None else x[x <= self.fade.end]
            log_h = np.full(x.shape, math.log(step))
        log_q, u, loss = self.ratio(x)
        log_q += self.log_noise(x) + self.log_weight(x) + log_h
        cut = self.fade is not None and x[-1] > self.fade.end - 2.0 * step
        edge = (float(log_q[-1]), float(loss[-1])) if cut else None
        lost = self.lost[1], self.lost_more
        return Nodes(log_q, u, loss, math.hypot(t, frequency), lost, edge=edge)

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
        x = closed_form(self, target)
        if x is None:
            x = search(self, target, low, high)
        x = np.clip(x, low, high)
        miss = np.abs(self.loss(x) - target)
        points = np.where(below, -np.inf, np.inf)
        points[inside] = np.maximum.accumulate(x)
        return points, float(miss.max(initial=0.0))

    def _between(self, points: Array, parts: list[tuple[float, float]]) -> Array:
        mass = normal_mass if self.noise == "gaussian" else laplace_mass
        return np.asarray(sum(weight * mass(points - shift) for weight, shift in parts))

    def masses(self, edges: Array) -> tuple[Array, Array, float]:
        points, miss = self.locate(edges)
        points = np.concatenate([[-np.inf], points, [np.inf]])
        return self._between(points, self.p), self._between(points, self.q), miss
