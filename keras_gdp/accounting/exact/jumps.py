"""Far outcomes of a sampled release, and the smooth fade that takes them out.

An outcome x of a mixture whose loss increases along the line is no jump with weight
w(x) = Phi((centre - x)/width), a jump with weight 1 - w(x). The fade is smooth, so that
both parts have transforms that decay as fast as the loss's own. Beyond 14 widths, where
w < exp(-98), it is cut off: as exp(s L) may grow doubly exponentially it would come
back. Where that cut would show, quadratures refuse (see `Measure.line`).
"""

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from keras_gdp.accounting.exact.moments import Measure
from keras_gdp.accounting.exact.privacy_loss import SETTLED, Jump, normal_mass
from keras_gdp.accounting.exact.quadrature import Fading, trapezoid
from keras_gdp.accounting.exact.waves import Array, ComplexArray

if TYPE_CHECKING:
    from keras_gdp.accounting.exact.mixture import MixtureLoss

__all__ = ["Fade", "FarOutcomes", "settled"]

_NEIGHBOURS = 0.0025  # squared distance, in widths and in slopes of log Phi
_ENDS = 14.0  # widths after which a fade is over


class Fade(NamedTuple):
    """Where outcomes are left out, and over which width."""

    centre: float
    width: float

    @property
    def end(self) -> float:
        """Beyond it nothing is kept."""
        return self.centre + _ENDS * self.width

    def log_kept(self, x: Array) -> Array:
        """Log of the share of each outcome that is kept."""
        from scipy.special import log_ndtr

        kept = log_ndtr((self.centre - x) / self.width)
        return np.where(x <= self.end, kept, -np.inf)

    def left_out(self, shift: float) -> float:
        """Mass that the fade leaves out of a standard normal around `shift`."""
        from scipy.special import ndtr

        return float(ndtr((shift - self.centre) / math.hypot(1.0, self.width)))

    def log_left_out(self, shift: float) -> float:
        """Logarithm of that mass."""
        from scipy.special import log_ndtr

        return float(log_ndtr((shift - self.centre) / math.hypot(1.0, self.width)))

    def left_out_more(self, shift: float) -> float:
        """By how much that exceeds the mass left out around 0."""
        ends = np.sort([0.0, shift]) - self.centre
        mass = normal_mass(ends / math.hypot(1.0, self.width))
        return math.copysign(float(mass[0]), shift)


def settled(slope: float, *fades: Fade | None) -> float:
    """Frequency from which on the transform of jumps is below exp(-SETTLED).

    Their losses are spread by the noise, or by where a fade cuts them off.

    Args:
        slope: Of the loss, where there are jumps.
        fades: At which jumps may pile up.
    """
    widths = [fade.width for fade in fades if fade is not None]
    return math.sqrt(2.0 * SETTLED) / (slope * min([1.0, *widths]))


def _log_between(x: Array, begin: Fade, end: Fade) -> Array:
    """Log of Phi at the end's fade less Phi at the begin's, both exact in their tails.

    The fades' arguments are a and b = a + apart on the side where Phi is small.
    """
    from scipy.special import erfcx, log_ndtr

    (c, v), (d, w) = begin, end
    apart = (d - c) / w + (c - x) * ((v - w) / (v * w))
    a = np.where(x > d, (x - d) / w, (c - x) / v)
    b = a + apart
    tails = np.maximum(a, -3.0), np.maximum(b, -3.0)
    ratio = np.divide(*(erfcx(z / math.sqrt(2.0)) for z in reversed(tails)))
    less = np.log(ratio) - apart * (a + b) / 2.0
    share, near = log_ndtr(-a), a <= -3.0
    less[near] = log_ndtr(-b[near]) - share[near]
    share += np.log(-np.expm1(np.minimum(less, -1e-300)))
    # Where they are neighbours, the density in the middle times the distance.
    z, h = (a + b) ** 2 / 4.0, np.clip(apart, 1e-150, 0.1) ** 2
    bend = h * (z - 1.0) / 24.0 + h * h * (z * z - 6.0 * z + 3.0) / 1920.0
    density = -z / 2.0 + 0.5 * np.log(h / (2.0 * math.pi)) + np.log1p(bend)
    return np.where(h * (1.0 + z) < _NEIGHBOURS, density, share)


class FarOutcomes(Jump):
    """What a fade leaves out of a mixture: the cumulant of a rare far jump.

    Args:
        pair: The faded mixture of Gaussian noise.
        begin: The fade.
        end: A fade further out, beyond which outcomes are not counted; None: all are.
    """

    def __init__(
        self, pair: "MixtureLoss", begin: Fade, end: Fade | None = None
    ) -> None:
        super().__init__()
        self._pair, self._begin, self._end = pair, begin, end
        self._below: dict[float, FarOutcomes] = {}
        self.width = pair.width
        self.settled = settled(pair.slope_of_jumps, begin, end)
        self.log_mass = pair.log_lost  # those beyond the end are few

    def below(self, threshold: float) -> "FarOutcomes":
        if threshold not in self._below:
            end = self._pair.fade_at(threshold)
            self._below[threshold] = FarOutcomes(self._pair, self._begin, end)
        return self._below[threshold]

    def _log_share(self, x: Array) -> Array:
        """Log of the share of each outcome that counts."""
        from scipy.special import log_ndtr

        if self._end is None:
            return np.asarray(log_ndtr((x - self._begin.centre) / self._begin.width))
        return np.where(
            x <= self._end.end, _log_between(x, self._begin, self._end), -np.inf
        )

    def log_size(self, x: Array) -> tuple[Array, Array]:
        """Log of the weight at x under Q, and the loss there."""
        log_q, _, loss = self._pair.ratio(x)
        return log_q + self._pair.log_noise(x) + self._log_share(x), loss

    def slope(self, x: Array) -> Array:
        """Derivative of the loss."""
        return self._pair.slope(x)

    def continued(self, x: Array, y: float) -> tuple[ComplexArray, ComplexArray]:
        """Log P and log Q over the noise at x + iy, less what they are at x."""
        return self._pair.continued(x, y)

    def _build(self, t: float, frequency: float) -> Measure:
        fades = [Fading(*self._begin, 1.0)]
        if self._end is not None:
            fades.append(Fading(*self._end, -1.0))
        centre, width = self._begin
        low = centre - _ENDS * width
        high = max(centre, self._pair.farthest(t)) + 14.0
        if self._end is not None:
            high = min(high, self._end.end)
        x, step = trapezoid(self, low, high, t, frequency, fades, trim=True)
        log_size, loss = self.log_size(x)
        log_size += math.log(step)
        cut = self._end is not None and x[-1] > self._end.end - 2.0 * step
        return Measure(log_size, loss, (log_size[-1], loss[-1]) if cut else None)
