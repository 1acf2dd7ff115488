"""The loss of fixed-size sampling under replacement of a record."""

import math

import numpy as np
from numpy.typing import NDArray

from keras_gdp.accounting.exact.jumps import Fade
from keras_gdp.accounting.exact.mixture import MixtureLoss
from keras_gdp.accounting.exact.moments import Nodes, QuadratureTooLargeError
from keras_gdp.accounting.exact.privacy_loss import Loss, QuadratureLoss
from keras_gdp.accounting.exact.quadrature import alive, divided, panels
from keras_gdp.accounting.exact.waves import Array

__all__ = ["UniformLoss"]

_KEPT = 64  # variants of a loss without its far outcomes
_LOG_TINY = -60.0
_MOST_PANELS = 2e4


class UniformLoss(QuadratureLoss):
    """Fixed-size sampling under replacement: the symmetric C_p(G_mu).

    Its positive losses are those of (1-p) N(0,1) + p N(mu,1) against N(0,1), its
    negative ones their mirror image, and the rest is an atom at 0 (Dong, Roth and
    Su, section 4; Bu et al. section 2.4).
    """

    jumps = True

    def __init__(self, mu: float, p: float, fade: Fade | None = None) -> None:
        self.mu, self.p, self.fade = mu, p, fade
        parts = [(1.0 - p, 0.0), (p, mu)]
        self._start = mu / 2.0
        self._pair = MixtureLoss(parts, [(1.0, 0.0)], fade=fade, least=self._start)
        self.lost, self.far = self._pair.lost, self._pair.far
        self.log_lost = self._pair.log_lost
        self.settled = self._pair.settled
        self.largest_order = self._pair.largest_order
        if fade is None:  # outcomes matter up to order mu
            panels = _MOST_PANELS * min(1.0, 2.0 / mu)
            self.largest_order = min(self.largest_order, 0.6 * panels / mu)
        self._without: dict[float, UniformLoss] = {}
        self.atom = (1.0 - p) * math.erf(mu / 2.0 / math.sqrt(2.0))
        super().__init__()

    def without_far(self, threshold: float) -> Loss:
        if threshold not in self._without:
            fade = self._pair.fade_at(threshold)
            if fade is None:
                return self
            if len(self._without) >= _KEPT:
                self._without.clear()
            self._without[threshold] = UniformLoss(self.mu, self.p, fade)
        return self._without[threshold]

    def _build(self, t: float, frequency: float) -> Nodes:
        pair = self._pair
        # The mirror image is not faded: there Q has its mass around mu.
        high = max(pair.support(t)[1], self.mu + 14.0)
        panel = min(1.0, 2.0 / self.mu)
        if not (high - self._start) / panel < _MOST_PANELS:
            raise QuadratureTooLargeError
        count = math.ceil((high - self._start) / panel)
        cuts = np.linspace(self._start, high, count + 1)
        middle = np.convolve(cuts, [0.5, 0.5], "valid")
        if self.fade is not None:
            # Panels shrink towards the fade, down to two of its widths.
            centre, width = self.fade
            while True:
                away = np.maximum(np.abs(middle - centre) - 8.0 * width, 0.0)
                size = np.diff(cuts)
                large = size > 2.0 * width + 0.25 * np.maximum(away - size, 0.0)
                if not large.any():
                    break
                cuts = divided(cuts, np.where(large, 2, 1))
                middle = np.convolve(cuts, [0.5, 0.5], "valid")
        sides = []
        for sign in (1.0, -1.0):
            parts = self._oscillations(cuts, t, frequency, sign)
            if parts.sum() > _MOST_PANELS:
                raise QuadratureTooLargeError
            ends = divided(cuts, parts)
            if sign > 0.0 and self.fade is not None:
                ends = np.append(ends[ends < self.fade.end], self.fade.end)
            x, log_h = panels(ends)
            _, u, loss = pair.ratio(x)
            log_base = pair.log_noise(x) + log_h
            if sign > 0.0:
                sides.append((log_base + pair.log_weight(x), u, loss))
            else:
                sides.append((log_base + loss, -u / (1.0 + u), -loss))
        last = (float(sides[0][0][-1]), float(sides[0][2][-1]))
        edge = last if self.fade is not None else None
        log_q, u, loss = (np.concatenate(rows) for rows in zip(*sides, strict=True))
        lost = self.lost[1], self._pair.lost_more
        largest_t = math.hypot(t, frequency)
        return Nodes(log_q, u, loss, largest_t, lost, self.atom, edge)

    def _oscillations(
        self, cuts: Array, t: float, frequency: float, sign: float
    ) -> NDArray[np.int64]:
        """In how many parts panels must be cut to resolve the oscillation there."""
        x = np.unique(np.concatenate([cuts, np.convolve(cuts, [0.5, 0.5], "valid")]))
        log_size, loss = self._pair.log_size(x)
        if sign < 0.0:
            log_size, loss = self._pair.log_noise(x) + loss, -loss
        size = alive(log_size, loss, t)
        size = np.maximum(np.maximum(size[:-2:2], size[1:-1:2]), size[2::2])
        turned = frequency * np.abs(np.diff(loss[::2]))
        # How far exp(t L) is from an exponential function.
        turned += np.sqrt(t * np.abs(np.diff(self._pair.slope(x[::2]))) * np.diff(cuts))
        parts = np.ceil(np.where(size > _LOG_TINY, turned / 4.0, 1.0))
        return np.maximum(parts, 1.0).astype(np.int64)

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
