"""Moment generating functions `M(z) = E_P (q / p)^z` of privacy losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from keras_gdp.tradeoff._arrays import Array
from keras_gdp.tradeoff.base import TradeOff
from keras_gdp.tradeoff.envelope import LowerEnvelope
from keras_gdp.tradeoff.gaussian import Gaussian
from keras_gdp.tradeoff.inverse import Inverse
from keras_gdp.tradeoff.laplace import Laplace
from keras_gdp.tradeoff.subsample import PoissonSubsampled

__all__ = ["LogMGF", "log_mgf"]

Complex: TypeAlias = NDArray[Any]
# (c, y) -> log M(c + i y), for a real c and an array y.
LogMGF: TypeAlias = Callable[[float, Array], Complex]


def log_mgf(f: TradeOff) -> LogMGF | None:
    """`log M` of the loss of `f`, or None where it is not known."""
    if isinstance(f, Gaussian):
        mu = f.mu
        return lambda c, y: _gaussian(c + 1j * y, mu)
    if isinstance(f, Laplace):
        distance = f.mu
        return lambda c, y: _laplace(c + 1j * y, distance)
    if isinstance(f, PoissonSubsampled) and isinstance(f.f, Gaussian):
        p, mu = f.p, f.f.mu
        return lambda c, y: _sampled_gaussian(c, y, p, mu)
    if isinstance(f, Inverse):
        inner = log_mgf(f.f)
        # The loss of the swapped pair is -L under Q: E_Q e^{-z L} = M(1 - z).
        return None if inner is None else lambda c, y: inner(1.0 - c, -y)
    if isinstance(f, LowerEnvelope) and f.is_symmetric and len(f.parts) == 2:
        sampled = [g for g in f.parts if isinstance(g, PoissonSubsampled)]
        if len(sampled) == 1 and isinstance(sampled[0].f, Gaussian):
            p, mu = sampled[0].p, sampled[0].f.mu
            return lambda c, y: _uniformly_sampled_gaussian(c, y, p, mu)
    return None


def _gaussian(z: Complex, mu: float) -> Complex:
    return np.asarray(z * (z - 1) * (mu**2 / 2))


def _laplace(z: Complex, mu: float) -> Complex:
    # Half of P has loss -mu, exp(-mu) / 2 of it has loss mu, the rest lies between.
    size = np.abs(z.real - 0.5) * mu
    low, high = np.exp(-z * mu - size), np.exp((z - 1) * mu - size)
    rate = 2 * z - 1
    near = np.abs(rate) * mu < 1e-6
    between = np.where(near, mu * low, (high - low) / np.where(near, 1.0, rate))
    return np.asarray(size + np.log((low + high + between) / 2))


def _sampled_gaussian(c: float, y: Array, p: float, mu: float) -> Complex:
    """`(1 - p) N(0, 1) + p N(mu, 1)` against `N(0, 1)`, by the trapezoid rule.

    The integrand is analytic in a strip of half-width `pi / mu` and oscillates with
    frequency up to `y mu`; the step below leaves an error under 1e-17.
    """
    fastest = float(np.abs(y).max())
    step = 2 * np.pi / (1.2 * fastest * mu + 18 + 20 * mu)
    # Tilting by c < 0 moves no mass beyond the bounded end of the loss.
    x = np.arange(-13.0, 13.0 + (max(c, 0.0) + 1) * mu + step, step)
    loss = np.logaddexp(np.log1p(-p), np.log(p) + mu * x - mu**2 / 2)
    log_weight = -0.5 * x**2 + np.log(step / np.sqrt(2 * np.pi)) + c * loss
    return _log_sum(log_weight, loss, y)


def _uniformly_sampled_gaussian(c: float, y: Array, p: float, mu: float) -> Complex:
    """`C_p(G_mu)`: symmetric, with an atom at 0 between the two curved ends."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    fastest = float(np.abs(y).max())
    end = mu / 2 + 13.0 + (abs(c) + 2) * mu
    panels = int(np.ceil((end - mu / 2) * max(1.0, mu, 0.2 * fastest * mu)))
    edges = np.linspace(mu / 2, end, panels + 1)
    half = np.diff(edges) / 2
    x = (edges[:-1] + half)[:, None] + half[:, None] * nodes
    log_w = (np.log(half)[:, None] + np.log(weights)).ravel()
    x = x.ravel()
    loss = np.logaddexp(np.log1p(-p), np.log(p) + mu * x - mu**2 / 2)
    density = log_w - 0.5 * x**2 - 0.5 * np.log(2 * np.pi)
    steep = _log_sum(density + c * loss, loss, y)
    flat = _log_sum(density + (1 - c) * loss, -loss, y)
    atom = np.log1p(-p) + np.log(1 - 2 * ndtr(-mu / 2))
    largest = np.maximum(np.maximum(steep.real, flat.real), atom)
    total = np.exp(steep - largest) + np.exp(flat - largest) + np.exp(atom - largest)
    return np.asarray(largest + np.log(total))


def _log_sum(log_weight: Array, loss: Array, y: Array) -> Complex:
    peak = log_weight.max()
    keep = log_weight > peak - 45
    weight = np.exp(log_weight[keep] - peak)
    phase = np.multiply.outer(y, loss[keep])
    total = np.cos(phase) @ weight + 1j * (np.sin(phase) @ weight)
    return np.asarray(peak + np.log(total))
