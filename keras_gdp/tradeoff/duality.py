"""From (epsilon, delta) back to a trade-off function."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from keras_gdp.tradeoff._arrays import Array, finite_or_infinite, probabilities
from keras_gdp.tradeoff.piecewise import PiecewiseLinear, no_privacy

__all__ = ["from_delta"]


def from_delta(
    epsilons: ArrayLike,
    deltas: ArrayLike,
    *,
    reverse_deltas: ArrayLike | None = None,
    symmetric: bool = True,
) -> PiecewiseLinear:
    """The trade-off function of a privacy profile known at finitely many epsilons.

    By default the pairs are (epsilon, delta)-DP guarantees, each of them for both
    orders of the two data sets, and the result is `sup f_{epsilon, delta}` over them.

    Args:
        epsilons: real numbers. With `symmetric=True` a negative one is allowed and adds
            what it says about its own order.
        deltas: values (or upper bounds) of `H_{exp(epsilon)}(Q || P)` there, in [0, 1].
        reverse_deltas: values or bounds of `H_{exp(epsilon)}(P || Q)` at the same
            epsilons. If given, the profile is that of one ordered pair, and
            `symmetric` is ignored.
        symmetric: whether `deltas` bounds both orders. If false, and without
            `reverse_deltas`, only `Q` over `P` is bounded: give negative epsilons as
            well, or nothing is known about the flat end of the curve.

    Returns:
        The piecewise linear function made of the lines `1 - delta - exp(epsilon)
        alpha`: a lower bound, whatever the grid.

    Raises:
        ValueError: if the arrays differ in length or leave their ranges.

    References:
        Dong, Roth and Su, "Gaussian Differential Privacy", Propositions 2.4 and 2.12.

    Example:
        >>> f = from_delta([0.0, 1.0], [0.3, 0.01])
        >>> round(f(0.1), 6), round(f(0.5), 6)
        (0.718172, 0.2)
    """
    t = finite_or_infinite("epsilons", epsilons).ravel()
    delta = probabilities("deltas", deltas).ravel()
    reverse = delta if symmetric else None
    if reverse_deltas is not None:
        reverse = probabilities("reverse_deltas", reverse_deltas).ravel()
    for name, values in (("deltas", delta), ("reverse_deltas", reverse)):
        if values is not None and values.shape != t.shape:
            raise ValueError(
                f"Argument `{name}` must hold one number for each of the {t.size} "
                f"epsilons. Received: {values.size}. Pass arrays of one length."
            )
    keep = np.isfinite(t)
    t, delta = t[keep], delta[keep]
    mirrored_pairs = symmetric and reverse_deltas is None and bool((t >= 0).all())
    if reverse is not None:
        # 1 - delta(-e) = exp(-e) (1 - reverse(e)): the same lines seen from the side.
        mirrored = -np.expm1(-t) + np.exp(-t) * reverse[keep]
        if symmetric and reverse_deltas is None:
            mirrored = np.where(t < 0, 1.0, mirrored)
        t, delta = np.append(t, -t), np.append(delta, mirrored)
        delta = np.clip(delta, 0.0, 1.0)
    if t.size == 0:
        return no_privacy()
    result = _from_lines(t, delta)
    result._known_symmetric = mirrored_pairs
    return result


def _from_lines(t: Array, delta: Array) -> PiecewiseLinear:
    """Supremum of 0 and the lines of slope `-exp(t)` that start at `1 - delta`."""
    order = np.lexsort((delta, t))
    t, delta = t[order], delta[order]
    first = np.append(True, np.diff(t) > 0)
    # The vertical axis: at slope 0 nothing better than f >= 0 is known.
    knots = [(-np.inf, 1.0)]
    # Logarithms of the type I errors at which neighbouring lines meet.
    alphas: list[float] = []
    for height, value in zip(t[first].tolist(), delta[first].tolist(), strict=True):
        if value >= knots[-1][1]:
            continue
        meet = _meeting(*knots[-1], height, value)
        while alphas and meet >= alphas[-1]:
            knots.pop()
            alphas.pop()
            meet = _meeting(*knots[-1], height, value)
        knots.append((height, value))
        alphas.append(meet)
    if len(knots) == 1:
        return no_privacy()
    log_slopes = np.array([height for height, _ in knots[1:]])
    right = np.array(alphas)
    left = np.append(right[1:], -np.inf)
    with np.errstate(divide="ignore"):
        log_p = right + np.log(-np.expm1(np.minimum(left - right, 0.0)))
    p, q = np.exp(log_p), np.exp(log_slopes + log_p)
    zero = min(1.0, float(np.exp(alphas[0])))
    return PiecewiseLinear(p, q, 1.0 - zero, knots[-1][1], log_slopes)


def _meeting(t0: float, delta0: float, t1: float, delta1: float) -> float:
    """Logarithm of where the lines of slopes `-exp(t0)`, `-exp(t1)` meet, `t0 < t1`."""
    width = -np.expm1(t0 - t1)
    return float(np.log(delta0 - delta1) - t1 - np.log(width))
