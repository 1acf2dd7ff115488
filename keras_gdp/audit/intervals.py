"""Confidence intervals for shares."""

from scipy import stats

from keras_gdp import _validate

__all__ = ["checked_confidence", "clopper_pearson"]


def checked_confidence(confidence: float) -> float:
    """Returns a confidence level as a float in (0, 1)."""
    value = _validate.probability(
        "confidence",
        confidence,
        "It is the probability of a right answer; 0.95 is common.",
    )
    if value in (0.0, 1.0):
        raise ValueError(
            "Argument `confidence` must be a number in (0, 1). Received: "
            f"confidence={confidence!r}. 0.95 is common."
        )
    return value


def clopper_pearson(successes: int, trials: int, confidence: float):
    """Returns the exact two-sided interval of a binomial proportion.

    Args:
        successes: Number of successes.
        trials: Number of trials; with none the interval is (0, 1).
        confidence: Level in (0, 1).
    """
    tail = (1.0 - confidence) / 2.0
    lower, upper = 0.0, 1.0
    if successes > 0:
        lower = float(stats.beta.ppf(tail, successes, trials - successes + 1))
    if successes < trials:
        upper = float(stats.beta.isf(tail, successes + 1, trials - successes))
    return lower, upper
