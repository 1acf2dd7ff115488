"""Trade-off functions of given one-dimensional distributions."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_gdp.tradeoff._arrays import Array
from keras_gdp.tradeoff._laws import Law, law
from keras_gdp.tradeoff._solve import Point
from keras_gdp.tradeoff.base import TradeOff
from keras_gdp.tradeoff.gaussian_pair import gaussian_pair
from keras_gdp.tradeoff.laplace import laplace
from keras_gdp.tradeoff.piecewise import from_pmfs

__all__ = ["from_distributions"]


def from_distributions(p: Any, q: Any) -> TradeOff:
    """`T(P, Q)` by the Neyman-Pearson lemma, from the likelihood ratio.

    Two normal or two equally scaled Laplace distributions give the closed forms.
    Discrete distributions give the exact piecewise linear function; probability beyond
    1e-18 in a tail counts as giving the distribution away. For densities the region
    where `log(q / p)` exceeds a threshold is found cell by cell on a grid of quantiles
    of both distributions, with the cells that it cuts bisected.

    Args:
        p: a frozen SciPy distribution or a scalar TensorFlow Probability distribution
            (mixtures included) of the outcome under the null hypothesis.
        q: the distribution under the alternative; discrete exactly if `p` is.

    Returns:
        The trade-off function. For densities the grid (some 4000 quantiles, down to
        1e-300) must see every change of direction of the likelihood ratio; structure
        finer than that is missed.

    Raises:
        TypeError: if an argument is no such distribution, or only one is discrete.

    Example:
        >>> from scipy import stats
        >>> f = from_distributions(stats.norm(0, 1), stats.norm(1, 1.5))
        >>> round(f(0.1), 6)
        0.572578
    """
    law_p, law_q = law("p", p), law("q", q)
    if law_p.discrete != law_q.discrete:
        raise TypeError(
            "Arguments `p` and `q` must both be discrete or both have densities: a "
            "mixed pair is told apart with certainty. "
            f"Received: p={p!r}, q={q!r}. Use "
            "`keras_gdp.tradeoff.no_privacy()`."
        )
    if law_p.discrete:
        outcomes = np.union1d(law_p.outcomes(), law_q.outcomes())
        return from_pmfs(
            np.exp(law_p.log_density(outcomes)), np.exp(law_q.log_density(outcomes))
        )
    if law_p.family == law_q.family == "normal":
        return gaussian_pair(*law_p.parameters, *law_q.parameters)
    if law_p.family == law_q.family == "laplace":
        (loc_p, scale_p), (loc_q, scale_q) = law_p.parameters, law_q.parameters
        if scale_p == scale_q:
            return laplace(abs(loc_q - loc_p) / scale_p)
    return DensityPair(law_p, law_q)


class DensityPair(TradeOff):
    """Two densities on the line; see `from_distributions`."""

    def __init__(self, law_p: Law, law_q: Law) -> None:
        self._laws = (law_p, law_q)
        x = np.union1d(law_p.quantile_grid(), law_q.quantile_grid())
        x = self._with_boundaries(x)
        x = self._with_extrema(x)
        self._x, self._loss = x, self._log_ratio(x)
        # Cells: left and right ends; masses include everything beyond the last ones.
        self._p, self._q = law_p.masses(x), law_q.masses(x)

    def __repr__(self) -> str:
        return f"from_distributions({self._laws[0].name}, {self._laws[1].name})"

    def _log_ratio(self, x: Array) -> Array:
        """`log(q / p)`; NaN where neither distribution has a density."""
        log_p, log_q = (side.log_density(x) for side in self._laws)
        with np.errstate(invalid="ignore"):
            return np.asarray(log_q - log_p)

    def _with_boundaries(self, x: Array) -> Array:
        """Adds both sides of each point where a density starts or ends."""

        def kind(points: Array) -> Array:
            log_p, log_q = (side.log_density(points) for side in self._laws)
            return 2 * np.isfinite(log_p) + np.isfinite(log_q)

        codes = kind(x)
        changes = np.flatnonzero(codes[1:] != codes[:-1])
        low, high = x[changes].copy(), x[changes + 1].copy()
        for _ in range(200):
            middle = low + (high - low) / 2
            same = kind(middle) == codes[changes]
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        return np.unique(np.concatenate([x, low, high]))

    def _with_extrema(self, x: Array) -> Array:
        """Adds the turning points of the log-likelihood ratio."""
        loss = self._log_ratio(x)
        with np.errstate(invalid="ignore"):
            rise = np.diff(loss)
            turn = np.flatnonzero(
                (rise[:-1] * rise[1:] < 0) & np.isfinite(rise[:-1] * rise[1:])
            )
        low, high = x[turn].copy(), x[turn + 2].copy()
        sign = np.where(rise[turn] > 0, 1.0, -1.0)
        ratio = (np.sqrt(5) - 1) / 2
        for _ in range(80):
            a, b = high - ratio * (high - low), low + ratio * (high - low)
            left = sign * self._log_ratio(a) > sign * self._log_ratio(b)
            low, high = np.where(left, low, a), np.where(left, b, high)
        return np.unique(np.concatenate([x, (low + high) / 2]))

    def _renyi_closed(self, order: float) -> float | None:
        """Gauss quadrature in every cell of the grid."""
        nodes, weights = np.polynomial.legendre.leggauss(12)
        half = np.diff(self._x) / 2
        x = (self._x[:-1] + half)[:, None] + half[:, None] * nodes
        log_p, log_q = (side.log_density(x.ravel()) for side in self._laws)
        p_only = np.isfinite(log_p) & ~np.isfinite(log_q)
        if order >= 1 and p_only.any():
            return np.inf
        both = np.isfinite(log_p) & np.isfinite(log_q)
        with np.errstate(invalid="ignore", over="ignore"):
            if order == 1:
                terms = np.exp(log_p) * (log_p - log_q)
            else:
                terms = np.exp(order * log_p + (1 - order) * log_q)
        terms = np.where(both, terms, 0.0).reshape(x.shape)
        cells = half * (terms @ weights)
        total = float(cells.sum())
        # A divergent integral shows in cells of probability below 1e-200.
        for end in (slice(None, 100), slice(-100, None)):
            mass = max(float(self._p[end].sum()), float(self._q[end].sum()))
            share = float(np.abs(cells[end]).sum())
            if mass < 1e-200 and not share <= 1e-10 * abs(total):
                return np.inf
        if order == 1:
            return max(0.0, total)
        return float(np.log(total) / (order - 1))

    @property
    def _most_thresholds(self) -> int:
        return 2**12

    def inverse(self) -> TradeOff:
        """The pair with the roles exchanged."""
        return DensityPair(self._laws[1], self._laws[0])

    def _point(self, t: Array) -> Point:
        chunks = [self._chunk_point(t[i : i + 256]) for i in range(0, t.size, 256)]
        return Point(*(np.concatenate(part) for part in zip(*chunks, strict=True)))

    def _chunk_point(self, t: Array) -> Point:
        above = _exceeds(self._loss, t[:, None])
        left, right = above[:, :-1], above[:, 1:]
        reject, accept = left & right, ~(left | right)
        rates = [
            (side @ mass)
            for mass in (self._p, self._q)
            for side in (reject.astype(np.float64), accept.astype(np.float64))
        ]
        reject_p, accept_p, reject_q, accept_q = rates
        row, cell = np.nonzero(left != right)
        if row.size:
            first_rejected = left[row, cell]
            root = self._roots(t[row], cell, first_rejected)
            ends = (self._x[cell], root, self._x[cell + 1])
            for law, reject_mass, accept_mass in (
                (self._laws[0], reject_p, accept_p),
                (self._laws[1], reject_q, accept_q),
            ):
                first = law.between(ends[0], ends[1])
                second = law.between(ends[1], ends[2])
                inside = np.where(first_rejected, first, second)
                outside = np.where(first_rejected, second, first)
                np.add.at(reject_mass, row, inside)
                np.add.at(accept_mass, row, outside)
        return Point(reject_p, accept_q, accept_p, reject_q)

    def _roots(self, t: Array, cell: Array, first_rejected: Array) -> Array:
        """Where the log-likelihood ratio crosses its threshold, by bisection."""
        low, high = self._x[cell], self._x[cell + 1]
        for _ in range(100):
            middle = low + (high - low) / 2
            same = _exceeds(self._log_ratio(middle), t) == first_rejected
            low, high = np.where(same, middle, low), np.where(same, high, middle)
            if (high - low <= 4e-16 * np.abs(high)).all():
                break
        return low


def _exceeds(loss: Array, t: Array) -> Array:
    """Whether a loss is above its threshold; infinite ones meet theirs."""
    with np.errstate(invalid="ignore"):
        above = np.where(np.isposinf(t), np.isposinf(loss), loss > t)
    return np.where(np.isneginf(t), ~np.isneginf(loss), above).astype(bool)
