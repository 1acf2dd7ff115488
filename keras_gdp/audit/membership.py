"""Membership inference by the loss, against what the guarantee allows."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from keras_gdp import tradeoff as _tradeoff
from keras_gdp.audit.intervals import checked_confidence, clopper_pearson

__all__ = ["MembershipInference", "loss_threshold_attack", "membership_inference"]


@dataclass(frozen=True)
class MembershipInference:
    """How well members of the training set can be told from others.

    Attributes:
        auc: Area under the ROC curve: the probability that a random member has a
            smaller loss than a random non-member, ties counting half.
        auc_interval: Its asymptotic confidence interval (DeLong et al. 1988), for
            independent examples, as both intervals.
        advantage: True positive minus false positive rate of a threshold that was
            chosen on one half of the losses and evaluated on the other.
        advantage_interval: Its confidence interval, from exact binomial intervals of
            the two rates.
        threshold: That threshold on the loss; smaller losses are guessed members.
        confidence: Level of each interval, if the examples were independent.
        members: Number of members.
        non_members: Number of non-members.
        auc_bound: Largest AUC that the guarantee allows, or `None` without one.
        advantage_bound: Largest advantage that the guarantee allows (its total
            variation), or `None`.
        roc: Pair of arrays, false and true positive rates of all thresholds.
    """

    auc: float
    auc_interval: tuple[float, float]
    advantage: float
    advantage_interval: tuple[float, float]
    threshold: float
    confidence: float
    members: int
    non_members: int
    auc_bound: float | None
    advantage_bound: float | None
    roc: tuple = field(repr=False, compare=False)

    @property
    def suggests_violation(self) -> bool:
        """Whether the advantage's interval lies above what the guarantee allows.

        Evidence against the guarantee, not a refutation: a guarantee limits the attack
        on one example over fresh runs, and the examples of one run share its
        randomness. A mechanism that answers everything at once, but rarely, keeps its
        guarantee and can be far above the bound in the runs in which it answers. Repeat
        the training, or see `one_run_audit`, whose bound assumes no independence.
        """
        return (
            self.advantage_bound is not None
            and self.advantage_interval[0] > self.advantage_bound
        )

    def __str__(self):
        text = (
            f"AUC {self.auc:.4f} [{self.auc_interval[0]:.4f}, "
            f"{self.auc_interval[1]:.4f}], advantage {self.advantage:.4f} "
            f"[{self.advantage_interval[0]:.4f}, {self.advantage_interval[1]:.4f}]"
        )
        if self.advantage_bound is not None:
            text += (
                f"; the guarantee allows AUC {self.auc_bound:.4f}, advantage "
                f"{self.advantage_bound:.4f}"
            )
        text += (
            f" ({self.confidence:g} confidence, if the examples of one run were "
            "independent)"
        )
        if self.suggests_violation:
            text += "; above the guarantee: evidence against it, not a refutation"
        return text

    def plot(self, ax=None):
        """Draws the ROC curve; needs matplotlib. Returns the axes."""
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        ax.plot(*self.roc, label=f"loss threshold, AUC {self.auc:.3f}")
        ax.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        ax.set_xlabel("false positive rate")
        ax.set_ylabel("true positive rate")
        ax.legend(loc="lower right", frameon=False)
        return ax


def membership_inference(
    model,
    members,
    non_members,
    *,
    guarantee=None,
    confidence: float = 0.95,
    seed: int = 0,
) -> MembershipInference:
    """Attacks a model by the losses of examples (Yeom et al. 2018).

    Args:
        model: A compiled Keras model.
        members: Pair `(x, y)` that the model was trained on.
        non_members: Pair `(x, y)` from the same distribution that it was not trained
            on. Draw both at random from one pool, or differences of distribution are
            mistaken for membership.
        guarantee: What to compare with: a `keras_gdp.tradeoff.TradeOff`, or a pair
            `(epsilon, delta)`; `None` for no comparison.
        confidence: Level of the intervals, in (0, 1).
        seed: Of the split on which the threshold is chosen.

    Returns:
        A `MembershipInference`. The guarantee limits the attack on each single example,
        over fresh runs; the intervals treat the examples of one run as independent,
        which they are not: they share the randomness of the run. A guarantee that is
        beaten here is under suspicion, not refuted. `one_run_audit` makes no such
        assumption.

    Raises:
        ValueError: For values out of range, or a model that is not compiled.
    """
    from keras_gdp.audit.losses import checked_pair, per_example_losses

    members = checked_pair("members", members)
    non_members = checked_pair("non_members", non_members)
    guarantee = _as_tradeoff(guarantee)
    confidence = checked_confidence(confidence)
    return loss_threshold_attack(
        per_example_losses(model, *members),
        per_example_losses(model, *non_members),
        guarantee=guarantee,
        confidence=confidence,
        seed=seed,
    )


def loss_threshold_attack(
    member_losses: Any,
    non_member_losses: Any,
    *,
    guarantee=None,
    confidence: float = 0.95,
    seed: int = 0,
) -> MembershipInference:
    """As `membership_inference`, from losses that are known already.

    Args:
        member_losses: Array of shape (members,), at least 4.
        non_member_losses: Array of shape (non_members,), at least 4.
        guarantee: As for `membership_inference`.
        confidence: As for `membership_inference`.
        seed: As for `membership_inference`.

    Example:
        >>> import numpy as np
        >>> losses = np.arange(100.0)
        >>> attack = loss_threshold_attack(losses, losses + 50.0)
        >>> attack.auc
        0.875
    """
    inside, outside = (
        _checked_losses(name, losses)
        for name, losses in (
            ("member_losses", member_losses),
            ("non_member_losses", non_member_losses),
        )
    )
    confidence = checked_confidence(confidence)
    f = _as_tradeoff(guarantee)
    auc, deviation = _auc(inside, outside)
    width = float(stats.norm.isf((1.0 - confidence) / 2.0)) * deviation
    threshold, advantage, interval = _split_advantage(
        inside, outside, confidence, np.random.default_rng(seed)
    )
    return MembershipInference(
        auc=auc,
        auc_interval=(max(0.0, auc - width), min(1.0, auc + width)),
        advantage=advantage,
        advantage_interval=interval,
        threshold=threshold,
        confidence=confidence,
        members=len(inside),
        non_members=len(outside),
        auc_bound=None if f is None else _largest_auc(f),
        advantage_bound=None if f is None else float(f.total_variation()),
        roc=_roc(inside, outside),
    )


def _checked_losses(name, losses):
    try:
        losses = np.asarray(losses, "float64")
    except (TypeError, ValueError):
        raise ValueError(
            f"Argument `{name}` must be an array of numbers, one loss per example. "
            f"Received: {name}={losses!r}. `membership_inference` computes the losses "
            "of a compiled model."
        ) from None
    if losses.ndim != 1 or len(losses) < 4 or np.isnan(losses).any():
        raise ValueError(
            f"Argument `{name}` must be an array of at least 4 losses without NaN. "
            f"Received shape {losses.shape}, {np.isnan(losses).sum()} NaN. Pass the "
            "losses of more examples; NaN means that training broke down."
        )
    return losses


def _auc(inside, outside):
    """Returns the AUC and its standard deviation, by placements (DeLong et al.)."""

    def placements(values, others):
        others = np.sort(others)
        below = np.searchsorted(others, values, side="left")
        up_to = np.searchsorted(others, values, side="right")
        return 0.5 * (below + up_to) / len(others)

    members = 1.0 - placements(inside, outside)
    non_members = placements(outside, inside)
    variance = np.var(members, ddof=1) / len(members) + np.var(
        non_members, ddof=1
    ) / len(non_members)
    return float(np.mean(members)), float(np.sqrt(variance))


def _roc(inside, outside):
    thresholds = np.unique(np.concatenate([inside, outside]))
    rates = [
        np.searchsorted(np.sort(losses), thresholds, side="right") / len(losses)
        for losses in (outside, inside)
    ]
    return tuple(np.concatenate([[0.0], rate]) for rate in rates)


def _split_advantage(inside, outside, confidence, rng):
    """Chooses a threshold on one half and evaluates it on the other."""
    chosen, tested = [], []
    for losses in (inside, outside):
        order = rng.permutation(len(losses))
        half = len(losses) // 2
        chosen.append(losses[order[:half]])
        tested.append(losses[order[half:]])
    false_rates, true_rates = _roc(*chosen)
    best = int(np.argmax(true_rates - false_rates))
    thresholds = np.concatenate([[-np.inf], np.unique(np.concatenate(chosen))])
    threshold = float(thresholds[best])
    hits = [int(np.sum(losses <= threshold)) for losses in tested]
    # Both intervals hold together with the confidence that is asked for.
    each = 1.0 - (1.0 - confidence) / 2.0
    (true_low, true_high), (false_low, false_high) = (
        clopper_pearson(k, len(losses), each)
        for k, losses in zip(hits, tested, strict=True)
    )
    advantage = hits[0] / len(tested[0]) - hits[1] / len(tested[1])
    return threshold, advantage, (true_low - false_high, true_high - false_low)


def _as_tradeoff(guarantee):
    if guarantee is None or isinstance(guarantee, _tradeoff.TradeOff):
        return guarantee
    if not isinstance(guarantee, tuple | list) or len(guarantee) != 2:
        raise ValueError(
            "Argument `guarantee` must be a keras_gdp.tradeoff.TradeOff or a pair "
            f"(epsilon, delta). Received: guarantee={guarantee!r}. Give what the "
            "training promises, such as (1.0, 1e-5)."
        )
    return _tradeoff.approximate_dp(*guarantee)


def _largest_auc(f):
    """One minus the area under the trade-off function, rounded towards 1."""
    alpha = np.concatenate(
        [[0.0], np.logspace(-9, -2, 400), np.linspace(0.01, 1, 2000)]
    )
    alpha = np.unique(alpha)
    # f decreases: its right ends give a lower sum.
    area = np.sum(np.diff(alpha) * f(alpha)[1:])
    return float(min(1.0, 1.0 - area))
