"""The compositions whose largest jump lies in a band, as one cumulant.

With exp M = E_P[w exp(s L)] over the outcomes of a release below the band and exp J
over those in it, n_i releases of kind i, it is the logarithm of

    prod (exp M_i + exp J_i)^n_i - prod exp(n_i M_i)
        = exp(B) expm1(sum_i n_i log1p(exp(J_i - M_i))),   B = sum_i n_i M_i.
"""

import math

import numpy as np

from keras_gdp.accounting.exact.composition import Composition
from keras_gdp.accounting.exact.privacy_loss import Jump
from keras_gdp.accounting.exact.waves import Array, ComplexArray, expm1, log1p

__all__ = ["Band"]

_LARGE = 40.0  # log of odds to which 1 adds nothing


class Band:
    """The cumulant of compositions whose largest jump lies in a band.

    Args:
        body: The composition without the jumps of the band and those beyond.
        jumps: For each of its phases the jumps of the band, or None.
    """

    smooth = True

    def __init__(self, body: Composition, jumps: list[Jump | None]) -> None:
        self._body = body
        self._phases = [
            (n, loss, jump) for (loss, n), jump in zip(body.phases, jumps, strict=True)
        ]
        self._jumps = [
            (n, loss, jump) for n, loss, jump in self._phases if jump is not None
        ]
        self.largest_order = body.largest_order
        self.settled = max(body.settled, *(jump.settled for _, _, jump in self._jumps))

    def _odds(self, s: float) -> tuple[float, float, list[tuple[float, ...]]]:
        """Log expm1 of the sum of n log1p(odds), and that sum.

        Also, per jump, the derivative of the former in log odds, the log odds, and how
        their first two derivatives in s differ from the body's.
        """
        rows, logs = [], []
        for n, loss, jump in self._jumps:
            log_odds, first, second = (
                a - b for a, b in zip(jump.real(s), loss.real(s), strict=True)
            )
            kept = max(log_odds, -_LARGE)  # below it log1p(odds) is odds
            logs.append(math.log(n) + math.log(_softplus(kept)) + log_odds - kept)
            log_chance = math.log(n) - _softplus(-log_odds)
            rows.append((log_chance, log_odds, first, second))
        log_sum = float(np.logaddexp.reduce(logs)) if len(logs) > 1 else logs[0]
        total = math.exp(min(log_sum, 700.0))
        if total < 1e-9:
            value, log_slope = log_sum, -log_sum
        else:
            log_slope = -math.log(-math.expm1(-total))
            value = total - log_slope
        return value, total, [(math.exp(x + log_slope), *rest) for x, *rest in rows]

    def real(self, s: float) -> tuple[float, float, float]:
        """K, K', K'' at real s."""
        value, total, rows = self._odds(s)
        slope = bend = 0.0
        for weight, log_odds, first, second in rows:
            slope += weight * first
            missed = math.exp(-_softplus(log_odds))
            bend += weight * (second + missed * first * first)
        k0, k1, k2 = self._body.real(s)
        curvature = k2 + bend - slope * slope * math.exp(-total)
        return k0 + value, k1 + slope, max(curvature, 1e-300)

    @property
    def log_mass(self) -> float:
        """K(0), or a little more: one of the releases jumps."""
        logs = [math.log(n) + jump.log_mass for n, _, jump in self._jumps]
        return min(float(np.logaddexp.reduce(logs)), 0.0)

    def line(
        self, c: float, step: float, start: int, count: int
    ) -> tuple[ComplexArray, Array]:
        """K on a vertical line, and what |exp K| / exp K(c) may come back to."""
        k = np.zeros(count, dtype=np.complex128)
        rows, top, back = [], -math.inf, np.zeros(count)
        tau = step * np.arange(start, start + count, dtype=np.float64)
        for n, loss, jump in self._phases:
            base = loss.line(c, step, start, count)
            k += n * base
            back += n * (loss.decay(c, tau, base) - base.real + loss.real(c)[0])
            if jump is not None:
                odds = jump.line(c, step, start, count) - base
                rows.append((n, odds))
                top = max(top, float(odds.real.max()))
        if top < -_LARGE:  # log1p and expm1 do nothing, and exp may underflow
            total = sum(n * _exp(odds - top) for n, odds in rows)
            k += top + np.log(total + 1e-300)
        else:
            total = np.zeros(count, dtype=np.complex128)
            for n, odds in rows:
                total += n * np.where(
                    odds.real > _LARGE, odds, log1p(_exp(odds) + 1e-300)
                )
            much = np.log(expm1(_capped(total)) + 1e-300)
            k += np.where(total.real > _LARGE, total, much)
        return k, np.exp(np.minimum(k.real - self.real(c)[0] + back, 0.0))

    def lasting(self, c: float) -> float:
        """A jump has no atoms."""
        return 0.0

    def rounding(self, s: float, frequency: float = 1.0) -> float:
        """Rough size of the rounding error of K at s and up to a frequency."""
        _, _, rows = self._odds(s)
        return self._body.rounding(s, frequency) + math.fsum(
            weight * (jump.rounding(s, frequency) + loss.rounding(s, frequency))
            for (weight, *_), (_, loss, jump) in zip(rows, self._jumps, strict=True)
        )


def _softplus(x: float) -> float:
    """log(1 + exp(x))."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _capped(z: ComplexArray) -> ComplexArray:
    return np.asarray(np.minimum(z.real, _LARGE) + 1j * z.imag)


def _exp(z: ComplexArray) -> ComplexArray:
    return np.asarray(np.exp(_capped(z)))
