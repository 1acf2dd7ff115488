"""Plots of guarantees; needs matplotlib (`pip install keras_gdp[plots]`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_gdp import _validate
from keras_gdp.tradeoff.base import TradeOff, checked_tradeoff

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_profiles", "plot_tradeoffs"]

# Okabe and Ito's palette, told apart by readers with any colour vision; line styles
# repeat the distinction for print.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")


def plot_tradeoffs(
    tradeoffs: Mapping[str, TradeOff], *, ax: Axes | None = None, **kwargs: Any
) -> Axes:
    """Draws type II against type I errors; higher curves are more private.

    Args:
        tradeoffs: labels and trade-off functions.
        ax: axes to draw on; None for new ones.
        kwargs: passed on to `Axes.plot`.

    Returns:
        The axes.
    """
    tradeoffs = _labelled(tradeoffs)
    ax = _axes(ax)
    # Most of the structure sits in the corners.
    score = np.linspace(-6, 6, 401)
    alpha = np.unique(
        np.concatenate([[0.0], 0.5 * (1 + np.tanh(score)), np.linspace(0, 1, 201)])
    )
    alpha = np.clip(alpha, 0.0, 1.0)
    ax.plot([0, 1], [1, 0], color="0.7", linewidth=1, label="_perfect privacy")
    for i, (label, f) in enumerate(tradeoffs.items()):
        ax.plot(alpha, f(alpha), label=label, **_style(i, kwargs))
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.set_xlabel("type I error")
    ax.set_ylabel("type II error")
    ax.legend(loc="upper right", frameon=False)
    return ax


def plot_profiles(
    tradeoffs: Mapping[str, TradeOff],
    *,
    epsilons: Any = None,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Draws `delta(epsilon)` on a logarithmic axis; lower curves are more private.

    Args:
        tradeoffs: labels and trade-off functions.
        epsilons: where to evaluate; by default up to a delta of 1e-10.
        ax: axes to draw on; None for new ones.
        kwargs: passed on to `Axes.plot`.

    Returns:
        The axes.
    """
    tradeoffs = _labelled(tradeoffs)
    ax = _axes(ax)
    if epsilons is None:
        ends = [float(f.epsilon(1e-10)) for f in tradeoffs.values()]
        finite = [end for end in ends if 0 < end < np.inf]
        epsilons = np.linspace(0.0, max(finite, default=5.0), 201)
    for i, (label, f) in enumerate(tradeoffs.items()):
        delta = np.asarray(f.delta(epsilons))
        shown = np.where(delta > 0, delta, np.nan)
        ax.plot(epsilons, shown, label=label, **_style(i, kwargs))
    ax.set_yscale("log")
    ax.set_xlabel("epsilon")
    ax.set_ylabel("delta")
    ax.legend(loc="upper right", frameon=False)
    return ax


def _style(index: int, given: Mapping[str, Any]) -> dict[str, Any]:
    style = {
        "color": _COLORS[index % len(_COLORS)],
        "linestyle": _STYLES[index % len(_STYLES)],
        "linewidth": 1.8,
    }
    return {**style, **given}


def _labelled(tradeoffs: Mapping[str, TradeOff]) -> Mapping[str, TradeOff]:
    if not isinstance(tradeoffs, Mapping):
        advice = "Pass {'label': f}, or call `f.plot()` for a single one."
        expected = "a dictionary of trade-off functions by label"
        raise TypeError(_validate.message("tradeoffs", tradeoffs, expected, advice))
    for label, f in tradeoffs.items():
        checked_tradeoff(f"tradeoffs[{label!r}]", f)
    return tradeoffs


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "Plotting needs matplotlib. Install it with `pip install keras_gdp[plots]`."
        ) from error
    return plt.subplots(figsize=(5, 5), layout="constrained")[1]
