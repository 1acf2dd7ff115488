"""A lower bound on epsilon from one training run."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from keras_gdp import _validate
from keras_gdp.audit.intervals import checked_confidence

__all__ = ["OneRunAudit", "epsilon_lower_bound", "one_run_audit"]


def _p_value(canaries, guesses, correct, epsilon, delta):
    """Bounds the probability of so many correct guesses under (epsilon, delta)-DP."""
    q = 1.0 / (1.0 + math.exp(-epsilon))
    beta = stats.binom.sf(correct - 1, guesses, q)
    alpha = 0.0
    if delta > 0.0 and correct > 0:
        # The failures of delta can add up to i correct guesses with chance delta / i.
        gained = np.cumsum(stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, q))
        alpha = float(np.max(gained / np.arange(1, correct + 1)))
    return min(1.0, float(beta + 2.0 * canaries * delta * alpha))


def epsilon_lower_bound(
    canaries: int, guesses: int, correct: int, *, delta: float, confidence: float = 0.95
) -> float:
    """Returns the epsilon that a number of correct guesses rules out.

    Each of `canaries` examples was included in the training set independently with
    probability 1/2. The auditor, who sees the result, guesses for some of them, chosen
    by any rule, whether they were.

    Args:
        canaries: Number of examples that were included or not.
        guesses: For how many of them a guess was made.
        correct: How many guesses were right.
        delta: The delta of the guarantee that is tested, in [0, 1).
        confidence: Level in (0, 1).

    Returns:
        The largest epsilon >= 0 such that, if training were (epsilon, delta)-DP, so
        many correct guesses would have probability at most `1 - confidence`; 0 if none.

    References:
        Steinke, Nasr, Jagielski (2023), "Privacy auditing with one (1) training run",
        Theorem 5.2.

    Example:
        >>> round(epsilon_lower_bound(1000, 100, 95, delta=1e-5), 3)
        2.165
    """
    m = _validate.count(
        "canaries", canaries, "It is how many were drawn, in or out.", minimum=1
    )
    r = _validate.count("guesses", guesses, "It is how many were guessed in or out.")
    v = _validate.count("correct", correct, "It is how many guesses were right.")
    if not v <= r <= m:
        raise ValueError(
            "The numbers must satisfy correct <= guesses <= canaries. Received: "
            f"correct={v}, guesses={r}, canaries={m}. Check the order of the arguments."
        )
    delta = _validate.probability("delta", delta)
    allowed = 1.0 - checked_confidence(confidence)
    if _p_value(m, r, v, 0.0, delta) > allowed:
        return 0.0
    low, high = 0.0, 1.0
    while _p_value(m, r, v, high, delta) <= allowed:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        if _p_value(m, r, v, middle, delta) <= allowed:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True)
class OneRunAudit:
    """What one run with canaries shows.

    Attributes:
        epsilon: Lower bound: with probability `confidence` over the run, training is
            not (e, delta)-DP for any e below it. 0 if nothing was found.
        delta: Of the guarantee that was tested.
        confidence: Of the bound, all numbers of guesses that were tried together.
        canaries: Number of canaries.
        included: How many were in the training set.
        guesses: Number of guesses with which the bound was reached.
        correct: How many of them were right.
    """

    epsilon: float
    delta: float
    confidence: float
    canaries: int
    included: int
    guesses: int
    correct: int

    def contradicts(self, epsilon: float) -> bool:
        """Whether a claimed epsilon, at `delta`, is ruled out."""
        return epsilon < self.epsilon

    def __str__(self):
        return (
            f"epsilon >= {self.epsilon:.3g} at delta={self.delta:g} with confidence "
            f"{self.confidence:g}: {self.correct} of {self.guesses} guesses about "
            f"{self.canaries} canaries were right"
        )


def one_run_audit(
    train,
    canaries,
    *,
    delta: float,
    guesses=None,
    confidence: float = 0.95,
    score=None,
    seed=None,
) -> OneRunAudit:
    """Audits training with a single run.

    Every canary is put into the training set with probability 1/2, independently. After
    training, the canaries of highest score are guessed to have been in, as many of
    lowest score to have been out. Under (epsilon, delta)-DP, adding or removing one
    example, the guesses cannot be right too often.

    Args:
        train: Called as `train(x, y)` with the canaries that are in, to be added to
            the training data. Trains by the procedure that is audited and returns the
            compiled model. The canaries must be treated as any other example.
        canaries: A pair `(x, y)` of arrays with a leading axis of canaries. The more
            a canary stands out, the stronger the bound: wrong labels, or inputs unlike
            the data.
        delta: The delta of the guarantee that is tested, in [0, 1).
        guesses: How many canaries to guess about, fixed before the run; `None` tries
            all, a half, a quarter ... down to 8, and pays for the choice in confidence.
        confidence: Level in (0, 1).
        score: Called as `score(model, x, y)`, returns one number per canary, high for
            those that look trained on; by default minus the loss.
        seed: Of the choice of canaries; `None` for the operating system's entropy.

    Returns:
        A `OneRunAudit`.

    References:
        Steinke, Nasr, Jagielski (2023), "Privacy auditing with one (1) training run",
        Algorithm 1 and Theorem 5.2.

    Raises:
        ValueError: For values out of range, or if `train` or `score` does not return
            what it should.
    """
    from keras_gdp.audit.losses import checked_pair, per_example_losses

    x, y = (np.asarray(part) for part in checked_pair("canaries", canaries))
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y) or len(x) < 2:
        raise ValueError(
            "Argument `canaries` must be a pair of arrays of one length, at least 2. "
            f"Received shapes {x.shape} and {y.shape}. Pass (inputs, targets), a row "
            "for each canary."
        )
    for name, function, call, advice in (
        ("train", train, "train(x, y)", "Return the trained model."),
        ("score", score, "score(model, x, y)", "Leave it out for minus the loss."),
    ):
        if not callable(function) and not (name == "score" and function is None):
            raise ValueError(
                f"Argument `{name}` must be a function, called as `{call}`. Received: "
                f"{name}={function!r}. {advice}"
            )
    delta = _validate.probability("delta", delta)
    confidence = checked_confidence(confidence)
    tried = _numbers_of_guesses(guesses, len(x))
    member = np.random.default_rng(seed).random(len(x)) < 0.5
    model = train(x[member], y[member])
    if score is None:
        scores = -per_example_losses(model, x, y, source="What `train` returns")
    else:
        scores = np.asarray(score(model, x, y), "float64")
    if scores.shape != (len(x),):
        raise ValueError(
            f"`score` must return one number per canary, of shape ({len(x)},). "
            f"Received shape {scores.shape}. Return, say, minus the loss of each."
        )
    # A model that broke down tells nothing.
    scores = np.nan_to_num(scores, nan=0.0, posinf=np.inf, neginf=-np.inf)
    order = np.argsort(scores, kind="stable")
    level = 1.0 - (1.0 - confidence) / len(tried)
    results = []
    for number in tried:
        out = number // 2
        correct = np.sum(~member[order[:out]]) + np.sum(
            member[order[len(x) - (number - out) :]]
        )
        bound = epsilon_lower_bound(
            len(x), number, int(correct), delta=delta, confidence=level
        )
        results.append((bound, -number, int(correct)))
    bound, number, correct = max(results)
    return OneRunAudit(
        epsilon=bound,
        delta=delta,
        confidence=confidence,
        canaries=len(x),
        included=int(np.sum(member)),
        guesses=-number,
        correct=correct,
    )


def _numbers_of_guesses(guesses, canaries):
    if guesses is not None:
        guesses = _validate.count(
            "guesses",
            guesses,
            "It is how many canaries to guess; pass None to try several numbers.",
            minimum=1,
        )
        if guesses > canaries:
            raise ValueError(
                "Argument `guesses` must not exceed the number of canaries. Received: "
                f"guesses={guesses} with {canaries} canaries. Guess fewer, or pass "
                "None to try several numbers."
            )
        return [guesses]
    tried, number = [canaries], canaries // 2
    while number >= 8:
        tried.append(number)
        number //= 2
    return tried
