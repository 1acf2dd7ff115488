"""Piecewise linear trade-off functions: the discrete distributions."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from keras_gdp.tradeoff._arrays import Array, probabilities
from keras_gdp.tradeoff._solve import Point
from keras_gdp.tradeoff.base import TradeOff

__all__ = [
    "PiecewiseLinear",
    "below",
    "from_pmfs",
    "from_points",
    "identity",
    "no_privacy",
]


class PiecewiseLinear(TradeOff):
    """The trade-off function of two distributions with finitely many outcomes.

    An outcome of probability `p > 0` and `q > 0` is a segment of slope `-q / p`;
    outcomes possible under one distribution only are the gaps `1 - f(0)` (under `Q`)
    and `1 - z` (under `P`), `z` being where `f` reaches 0.

    Args:
        p: probabilities under P of the outcomes that both can produce.
        q: their probabilities under Q.
        p_only: probability under P of outcomes impossible under Q.
        q_only: probability under Q of outcomes impossible under P.
        log_slopes: `log(q / p)`, where it is known better than `p` and `q` tell.
    """

    def __init__(
        self,
        p: Array,
        q: Array,
        p_only: float = 0.0,
        q_only: float = 0.0,
        log_slopes: Array | None = None,
    ) -> None:
        # With a known slope one of the two masses may be too small for doubles.
        used = (p > 0) & (q > 0) if log_slopes is None else (p > 0) | (q > 0)
        p_only = p_only + float(p[~used].sum())
        q_only = q_only + float(q[~used].sum())
        p, q = p[used], q[used]
        t = np.log(q) - np.log(p) if log_slopes is None else log_slopes[used]
        order = np.argsort(t, kind="stable")
        t, p, q = t[order], p[order], q[order]
        if t.size:
            # Outcomes of equal likelihood ratio are one segment.
            first = np.flatnonzero(np.append(True, np.diff(t) > 0))
            t, p, q = t[first], np.add.reduceat(p, first), np.add.reduceat(q, first)
        self._t, self._p, self._q = t, p, q
        self._p_only, self._q_only = p_only, q_only
        self._accuracy = 0.0
        self._known_symmetric = False
        self._name = f"piecewise_linear({t.size} segments)"

    def __repr__(self) -> str:
        return self._name

    def _renamed(self, name: str) -> PiecewiseLinear:
        self._name = name
        return self

    @property
    def accuracy(self) -> float:
        """Distance from the function that this one bounds from below; 0 if exact."""
        return self._accuracy

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PiecewiseLinear):
            return NotImplemented
        return (
            self._p_only == other._p_only
            and self._q_only == other._q_only
            and np.array_equal(self._t, other._t)
            and np.array_equal(self._p, other._p)
        )

    def __hash__(self) -> int:
        return hash((self._p_only, self._q_only, self._t.tobytes()))

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether the segments are mirror images of each other."""
        return self._known_symmetric or bool(
            self._p_only == self._q_only
            and np.allclose(self._t, -self._t[::-1], rtol=1e-14, atol=1e-15)
            and np.allclose(self._p, self._q[::-1], rtol=1e-14, atol=0)
        )

    @cached_property
    def _tails(self) -> tuple[Array, Array, Array, Array]:
        """P and Q of the segments from the k-th on, and of those before it."""
        zero = np.zeros(1)
        p_from = np.concatenate([np.cumsum(self._p[::-1])[::-1], zero])
        q_from = np.concatenate([np.cumsum(self._q[::-1])[::-1], zero])
        p_before = np.concatenate([zero, np.cumsum(self._p)])
        q_before = np.concatenate([zero, np.cumsum(self._q)])
        return p_from, q_from, p_before, q_before

    @cached_property
    def _log_p_from(self) -> Array:
        """Logarithm of P of the segments from the k-th on, without underflow."""
        p_from = self._tails[0][:-1]
        with np.errstate(divide="ignore"):
            logs = np.log(p_from)
            if (p_from < 1e-280).any():
                each = np.where(self._p > 1e-280, np.log(self._p), 0.0)
                small = self._p <= 1e-280
                each[small] = np.log(self._q[small]) - self._t[small]
                summed = np.logaddexp.accumulate(each[::-1])[::-1]
                logs = np.where(p_from < 1e-280, summed, logs)
        return logs

    @cached_property
    def _delta_at_knots(self) -> Array:
        """`delta` at every log-slope, built up from the steep end."""
        if self._t.size == 0:
            return np.zeros(0)
        rise = np.exp(self._t[1:] + self._log_p_from[1:])
        rise = -np.expm1(self._t[:-1] - self._t[1:]) * rise
        steps = np.concatenate([rise, [self._q_only]])
        return np.cumsum(steps[::-1])[::-1]

    def _point(self, t: Array) -> Point:
        k = np.searchsorted(self._t, t, side="right")
        p_from, q_from, p_before, q_before = self._tails
        return Point(
            p_from[k],
            q_before[k],
            self._p_only + p_before[k],
            self._q_only + q_from[k],
        )

    def _values(self, alpha: Array) -> Array:
        if self._t.size == 0:
            return np.zeros_like(alpha)
        p_from, _, _, q_before = self._tails
        # Segment k covers the levels from p_from[k + 1] to p_from[k].
        k = p_from.size - 1 - np.searchsorted(p_from[::-1], alpha, side="right")
        k = np.clip(k, 0, self._t.size - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.clip((p_from[k] - alpha) / self._p[k], 0.0, 1.0)
        share = np.where(self._p[k] > 0, share, 0.0)
        values = q_before[k] + self._q[k] * share
        return np.where(alpha <= 0, q_before[-1], values)

    def _delta(self, epsilon: Array) -> Array:
        if self._t.size == 0:
            return np.where(
                epsilon == -np.inf, 1.0, np.full_like(epsilon, self._q_only)
            )
        k = np.searchsorted(self._t, epsilon, side="left")
        inside = k < self._t.size
        j = np.minimum(k, self._t.size - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            rise = np.exp(self._t[j] + self._log_p_from[j])
            rise = -np.expm1(np.minimum(epsilon - self._t[j], 0.0)) * rise
        return np.where(inside, self._delta_at_knots[j] + rise, self._q_only)

    def _reverse_delta(self, epsilon: Array) -> Array:
        return self._swapped._delta(epsilon)

    def _loss_range(self) -> tuple[float, float]:
        if self._t.size == 0:
            return 0.0, 0.0
        return float(self._t[0]), float(self._t[-1])

    @cached_property
    def _swapped(self) -> PiecewiseLinear:
        name = f"{self._name}.inverse()"
        swapped = PiecewiseLinear(
            self._q, self._p, self._q_only, self._p_only, -self._t
        )
        return swapped._renamed(name)

    def inverse(self) -> TradeOff:
        """The function with P and Q swapped, exactly."""
        return self if self.is_symmetric else self._swapped

    @property
    def vertices(self) -> tuple[Array, Array]:
        """Abscissae and ordinates of the vertices, from `alpha = 0` on."""
        p_from, _, _, q_before = self._tails
        return np.minimum(p_from[::-1], 1.0), np.minimum(q_before[::-1], 1.0)


def identity() -> TradeOff:
    """`Id(alpha) = 1 - alpha`: the outputs tell nothing.

    Returns:
        The neutral element of composition.

    Example:
        >>> identity()(0.25)
        0.75
    """
    return PiecewiseLinear(np.ones(1), np.ones(1))._renamed("identity()")


def no_privacy() -> PiecewiseLinear:
    """`f = 0`: the outputs tell the two data sets apart with certainty."""
    none = np.zeros(0)
    return PiecewiseLinear(none, none, 1.0, 1.0)._renamed("no_privacy()")


def from_pmfs(p: ArrayLike, q: ArrayLike) -> PiecewiseLinear:
    """The exact trade-off function of two probability mass functions.

    Args:
        p: probabilities of the outcomes under P.
        q: probabilities of the same outcomes under Q. What is missing from a sum of 1
            counts as an outcome that gives the distribution away.

    Returns:
        The piecewise linear function through the errors of the likelihood-ratio tests
        (randomised between them).

    Raises:
        ValueError: if the arrays differ in shape or are no probabilities.

    Example:
        >>> from_pmfs([0.5, 0.5], [0.25, 0.75])(0.5)
        0.25
    """
    mass_p, mass_q = probabilities("p", p).ravel(), probabilities("q", q).ravel()
    if mass_p.shape != mass_q.shape:
        raise ValueError(
            "Arguments `p` and `q` must list the same outcomes. "
            f"Received: {mass_p.size} and {mass_q.size} probabilities. Give outcomes "
            "that are impossible under one probability 0 there."
        )
    for name, mass in (("p", mass_p), ("q", mass_q)):
        if mass.sum() > 1 + 1e-9:
            raise ValueError(
                f"Argument `{name}` must sum to at most 1. Received a sum of "
                f"{mass.sum()!r}. Divide counts by their sum."
            )
    lost = [max(0.0, 1 - mass.sum()) for mass in (mass_p, mass_q)]
    # A sum of 1 is rarely 1.0 exactly; that is rounding, not an outcome.
    lost = [0.0 if gap < 1e-14 * mass_p.size else gap for gap in lost]
    return PiecewiseLinear(mass_p, mass_q, *lost)


def from_points(
    alpha: ArrayLike, beta: ArrayLike, *, reading: str = "vertices"
) -> PiecewiseLinear:
    """A trade-off function from points in the (type I, type II) plane.

    Args:
        alpha: type I errors in [0, 1], in any order.
        beta: type II errors at these levels, in [0, 1].
        reading: `"vertices"` reads the points as the vertices of the function, and
            returns their lower convex envelope together with `(0, 1)` and `(1, 0)`.
            `"samples"` reads them as exact values of a convex function that is unknown
            in between, and returns the largest function that is certain to lie below:
            between two points the chords on either side are prolonged.

    Returns:
        The piecewise linear trade-off function.

    Raises:
        ValueError: if the arrays differ in shape or leave [0, 1].

    Example:
        >>> f = from_points([0.0, 0.2, 1.0], [1.0, 0.4, 0.0])
        >>> f(0.1), f(0.6)
        (0.7, 0.2)
    """
    from keras_gdp import _validate

    x, y = probabilities("alpha", alpha).ravel(), probabilities("beta", beta).ravel()
    _validate.one_of(
        "reading",
        reading,
        ["vertices", "samples"],
        "'samples' also is safe for points of a curve that is unknown between.",
    )
    if x.shape != y.shape or x.size == 0:
        raise ValueError(
            "Arguments `alpha` and `beta` must hold equally many points, at least one. "
            f"Received: {x.size} and {y.size}. Pass one `beta` for every `alpha`."
        )
    x = np.concatenate([x, [0.0, 1.0]])
    y = np.concatenate([np.minimum(y, 1 - x[:-2]), [1.0, 0.0]])
    x, y = _lower_hull(x, y)
    if reading == "samples":
        x, y = _prolonged_chords(x, y)
    # Right of the first zero the function stays at 0; left of 0 lies a vertical piece.
    z = float(x[np.flatnonzero(y <= 0)[0]])
    rising = y[:-1] > y[1:]
    p, q = np.diff(x)[rising], -np.diff(y)[rising]
    return PiecewiseLinear(p, q, 1.0 - z, 1.0 - float(y[0]))


def _lower_hull(x: Array, y: Array) -> tuple[Array, Array]:
    """Vertices of the lower convex envelope, by a monotone chain."""
    order = np.lexsort((y, x))
    hull: list[tuple[float, float]] = []
    for a, b in zip(x[order].tolist(), y[order].tolist(), strict=True):
        if hull and a == hull[-1][0]:
            continue
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (a - x1) < (b - y1) * (x1 - x0):
                break
            hull.pop()
        hull.append((a, b))
    vertices = np.array(hull)
    return vertices[:, 0], vertices[:, 1]


def _prolonged_chords(x: Array, y: Array) -> tuple[Array, Array]:
    """Largest convex-function bound below: chords prolonged into the next gap."""
    slope = np.diff(y) / np.diff(x)
    count = slope.size
    points_x, points_y = [], []
    for k in range(count):
        # In gap k the chords of gaps k - 1 and k + 1 are both lower bounds.
        left = slope[k - 1] if k > 0 else -np.inf
        right = slope[k + 1] if k + 1 < count else 0.0
        if k == 0:
            crossing_x = x[0]
        elif right == left:
            crossing_x = x[k]
        else:
            crossing_x = (y[k] - y[k + 1] - left * x[k] + right * x[k + 1]) / (
                right - left
            )
        crossing_x = float(np.clip(crossing_x, x[k], x[k + 1]))
        points_x.append(crossing_x)
        points_y.append(max(0.0, y[k + 1] - right * (x[k + 1] - crossing_x)))
        points_x.append(float(x[k + 1]))
        points_y.append(float(y[k + 1]))
    return _lower_hull(np.array(points_x), np.array(points_y))


def below(f: TradeOff, t: Array) -> PiecewiseLinear:
    """The highest function made of the lines that support `f` at thresholds `t`.

    Args:
        f: a trade-off function.
        t: ascending finite log-thresholds.

    Returns:
        A piecewise linear function below `f` whose log-slopes are the entries of `t`.
    """
    rates = f._point(t)
    # Masses of the losses between neighbouring thresholds, from the end where the
    # cumulative values are small.
    p = _between(rates.alpha, rates.accept)
    q = _between(rates.power, rates.beta)
    width = np.diff(t)
    # Split each mass between the two thresholds so that P and Q are both conserved:
    # x + y = p and x exp(t_k) + y exp(t_k + width) = q.
    with np.errstate(divide="ignore", invalid="ignore"):
        upper = np.where(q > 0, np.exp(np.log(q) - t[:-1]), 0.0)
    upper = np.clip((upper - p) / np.expm1(width), 0.0, p)
    mass_p = np.concatenate([p - upper, [0.0]])
    mass_p[1:] += upper
    # Beyond the ends keep one distribution's mass in the outermost loss; what the
    # other one has in excess becomes outcomes that give it away.
    with np.errstate(divide="ignore"):
        mass_p[0] += np.exp(np.log(rates.beta[0]) - t[0])
    mass_p[-1] += rates.alpha[-1]
    with np.errstate(divide="ignore"):
        mass_q = np.exp(t + np.log(mass_p))
    p_only = float(f._reverse_delta(-t[:1])[0])
    q_only = float(f._delta(t[-1:])[0])
    return PiecewiseLinear(mass_p, mass_q, p_only, q_only, t)


def _between(upper: Array, lower: Array) -> Array:
    """Differences of a decreasing tail, from whichever complement is smaller."""
    from_upper = upper[:-1] - upper[1:]
    from_lower = lower[1:] - lower[:-1]
    return np.maximum(np.where(upper[:-1] < 0.5, from_upper, from_lower), 0.0)
