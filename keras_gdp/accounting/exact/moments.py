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

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]

_TERMS = 20
_SMALL_U = 0.05
_SMALL_TU = 0.5


@dataclasses.dataclass(frozen=True)
class Nodes:
    """A discrete measure that integrates smooth functions of the loss under Q.

    Args:
        log_q: Logarithms of the weights under Q.
        u: dP/dQ - 1 at the nodes (`inf` where it overflows).
        loss: log(dP/dQ) at the nodes.
    """

    log_q: Array
    u: Array
    loss: Array

    def cumulant(self, s: ComplexArray) -> ComplexArray:
        """K at complex s (one-dimensional array), imaginary part modulo 2 pi."""
        t = 1.0 + s
        bound = float(np.max(np.abs(t)))
        small = np.abs(self.u) <= min(_SMALL_U, _SMALL_TU / max(bound, 1e-300))
        excess = np.zeros(t.shape, dtype=np.complex128)
        if small.any():
            u = self.u[small]
            power = np.exp(self.log_q[small]) * u
            binomial = t.copy()
            for k in range(2, _TERMS + 1):
                power = power * u
                binomial = binomial * (t - (k - 1)) / k
                excess += binomial * power.sum()
        log_q, loss = self.log_q[~small], self.loss[~small]
        if log_q.size == 0:
            return _log1p(excess)
        q = np.exp(log_q)
        linear = np.exp(log_q + loss) - q
        peak = float(np.max(log_q + np.max(t.real) * loss))
        top = max(peak, 0.0) if peak > 30.0 else 0.0
        scale = np.exp(-top)
        exponent = np.multiply.outer(t, loss)
        exponent += log_q - top
        total = np.exp(exponent, out=exponent).sum(axis=1)
        excess = scale * (excess - q.sum() - t * linear.sum()) + total
        if top == 0.0:
            return _log1p(excess)
        return top + np.log(scale + excess)

    def rounding(self, s: float) -> float:
        """Rough size of the rounding error of K at real s."""
        t = 1.0 + s
        small = np.abs(self.u) <= min(_SMALL_U, _SMALL_TU / t)
        log_q, loss = self.log_q[~small], self.loss[~small]
        if log_q.size == 0:
            return 1e-17
        value = float(self.cumulant(np.array([s + 0j]))[0].real)
        size = np.exp(log_q + t * loss - value) * (1.0 + np.abs(t * loss))
        rest = np.exp(log_q) + t * np.abs(np.exp(log_q + loss) - np.exp(log_q))
        return 4e-16 * float(size.sum() + math.exp(-value) * rest.sum())

    def real(self, s: float) -> tuple[float, float, float]:
        """K, K' and K'' at real s."""
        t = 1.0 + s
        exponent = self.log_q + t * self.loss
        top = float(exponent.max())
        weight = np.exp(exponent - top)
        mass = weight.sum()
        weight /= mass
        mean = float(weight @ self.loss)
        variance = float(weight @ (self.loss - mean) ** 2)
        value = float(self.cumulant(np.array([s + 0j]))[0].real)
        return value, mean, variance


def _log1p(z: ComplexArray) -> ComplexArray:
    """log(1 + z) accurate for small |z| (NumPy's is not)."""
    x, y = z.real, z.imag
    with np.errstate(divide="ignore", invalid="ignore"):
        modulus = np.where(
            np.abs(z) < 0.5,
            0.5 * np.log1p(x * (2.0 + x) + y * y),
            np.log(np.abs(1.0 + z)),
        )
    return modulus + 1j * np.arctan2(y, 1.0 + x)
