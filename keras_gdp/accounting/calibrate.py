"""What a budget allows: noise, steps, batch size, sampling probability.

Every answer is on the safe side and checked: at the returned value the accountant's
epsilon(delta) is at most the target.
"""

import functools
import math
from collections.abc import Callable, Iterable

import numpy as np

from keras_gdp import _validate
from keras_gdp._gdp import mu_from_epsilon_delta
from keras_gdp.accounting.accountant import Accountant, make_accountant
from keras_gdp.accounting.events import NO_NOISE, Event, SampledGaussian
from keras_gdp.errors import BudgetExceededError, UnsupportedEventError

__all__ = [
    "batch_size_for",
    "max_steps",
    "noise_multiplier_for",
    "sampling_probability_for",
    "steps_for",
]

_MAX_STEPS = 10**12
_FARTHEST = 60.0  # logarithm up to which brackets grow
_SMALLEST_SPREAD = 1e-250  # of mu over p sqrt(T): noise beyond is no number to use


def _target(epsilon: float, delta: float) -> tuple[float, float]:
    return _validate.positive("epsilon", epsilon), _validate.delta("delta", delta)


def _within(
    base: Accountant, event: Event, count: int, epsilon: float, delta: float
) -> bool:
    return bool(base.copy().compose(event, count).epsilon(delta) <= epsilon)


def _base(accountant: str, relation: str, history: Iterable[Event]) -> Accountant:
    base = make_accountant(accountant, relation)
    if not isinstance(history, Iterable):
        advice = "Pass [event] for a single one, and leave it out for none."
        raise TypeError(
            _validate.message("history", history, "a list of events", advice)
        )
    for index, event in enumerate(history):
        if not isinstance(event, Event):
            raise TypeError(
                "Argument `history` must hold events such as SampledGaussian(1.1, "
                f"0.01). Received: history[{index}]={event!r}. Repeat one with "
                "SelfComposed(event, count)."
            )
        base.compose(event)
    return base


def max_steps(
    event: Event,
    *,
    epsilon: float,
    delta: float,
    accountant: str = "exact",
    relation: str = "add_remove",
    history: Iterable[Event] = (),
) -> int:
    """Largest number of further releases of an event within a budget.

    Args:
        event: What one step releases.
        epsilon: The budget, > 0.
        delta: Its failure probability, in (0, 1).
        accountant: `"exact"`, `"rdp"`, `"clt"` or `"moments"`.
        relation: `"add_remove"` or `"replace_one"`.
        history: What was released before.

    Returns:
        The largest T such that `history` and T events together keep
        epsilon(delta) <= epsilon by the accountant's (upper) value; 0 if none, at
        most 10^12.

    Example:
        >>> step = SampledGaussian(1.1, 256 / 60000)
        >>> max_steps(step, epsilon=3.0, delta=1e-5)
        21364
    """
    epsilon, delta = _target(epsilon, delta)
    base = _base(accountant, relation, history)
    base.copy().compose(event)
    if base.epsilon(delta) > epsilon:
        return 0

    def overspend(count: int) -> float:
        """Log of epsilon spent over epsilon allowed: smooth in log count."""
        spent = base.copy().compose(event, count).epsilon(delta)
        if spent <= 0.0:
            return -math.inf
        return math.log(spent / epsilon) if spent < math.inf else math.inf

    low, high = 0, _first_guess(event, epsilon, delta, relation)
    low_gap, high_gap = -math.inf, overspend(high)
    while high_gap > 0.0 and high > 1:  # down to a count that fits
        if math.isfinite(high_gap):  # epsilon grows at least like the square root
            below = int(high * max(math.exp(-2.2 * high_gap) * 0.99, 1e-4))
        else:
            below = high // 100
        below = max(1, min(below, high - 1))
        gap = overspend(below)
        if gap <= 0.0:
            low, low_gap = below, gap
            break
        high, high_gap = below, gap
    while high_gap <= 0.0:  # up to a count that does not fit
        low, low_gap = high, high_gap
        if high >= _MAX_STEPS:
            return _MAX_STEPS
        growth = 64.0 if low_gap == -math.inf else math.exp(-2.1 * low_gap) * 1.01
        high = min(_MAX_STEPS, max(high + 1, int(high * min(growth, 1e4))))
        high_gap = overspend(high)
    while high - low > 1:
        middle = (low + high) // 2
        if math.isfinite(low_gap) and math.isfinite(high_gap) and low > 0:
            share = low_gap / (low_gap - high_gap)
            span = math.log(high / low)
            guess = low * math.exp(span * share)
            if guess - low > 0.1 * (high - low) < high - guess or high - low > 64:
                middle = round(guess)
            # Step to the far side of the interpolated root, to close both ends.
            pad = max(1, round(1e-4 * (high - low)))
            middle = middle + pad if -low_gap < high_gap else middle - pad
            middle = min(max(middle, low + 1), high - 1)
        gap = overspend(middle)
        if gap <= 0.0:
            low, low_gap = middle, gap
        else:
            high, high_gap = middle, gap
    return low


def _first_guess(event: Event, epsilon: float, delta: float, relation: str) -> int:
    """Steps by the central limit theorem where it has a formula, else 1."""
    try:
        mu = make_accountant("clt", relation).compose(event).mu  # type: ignore[attr-defined]
    except UnsupportedEventError:
        return 1
    target = float(mu_from_epsilon_delta(epsilon, delta))
    if mu <= 0.0:
        return _MAX_STEPS
    return int(min(max((target / mu) ** 2, 1.0), float(_MAX_STEPS)))


def steps_for(
    epsilon: float,
    delta: float,
    *,
    noise_multiplier: float,
    sampling_probability: float,
    accountant: str = "exact",
    relation: str = "add_remove",
) -> int:
    """Largest number of DP-SGD steps within (epsilon, delta).

    Args:
        epsilon: The budget, > 0.
        delta: Its failure probability, in (0, 1).
        noise_multiplier: Noise standard deviation over `l2_norm_clip`.
        sampling_probability: Probability of each record to be in a batch.
        accountant: `"exact"`, `"rdp"`, `"clt"` or `"moments"`.
        relation: `"add_remove"` or `"replace_one"`.

    Returns:
        The number of steps, 0 if not even one fits.
    """
    event = SampledGaussian(noise_multiplier, sampling_probability)
    return max_steps(
        event, epsilon=epsilon, delta=delta, accountant=accountant, relation=relation
    )


def _safe_root(
    spent: Callable[[float], float], epsilon: float, start: float, rising: bool
) -> float:
    """Root y of log spent(y) = log epsilon in y = log x, on the side <= epsilon.

    Looked for from `start`; NaN if there is none.
    """

    @functools.cache
    def gap(y: float) -> float:
        value = spent(y)
        ratio = max(value, 1e-12 * epsilon) / epsilon
        return math.log(ratio) if ratio < math.inf else 700.0

    sign = 1.0 if rising else -1.0
    root = _interpolated(gap, start, sign)
    if root is None:
        root = _bracketed(gap, start, sign)
    step = 2e-12
    while not math.isnan(root) and gap(root) > 0.0:
        root -= sign * step
        step *= 4.0
    return root


def _interpolated(
    gap: Callable[[float], float], start: float, sign: float
) -> float | None:
    """Root near `start` by inverse interpolation; `None` where that does not serve.

    It is off by about 1e-11 at most, to the side where the gap is negative.
    """
    ys, values = [start], [gap(start)]
    ys.append(start - sign * math.copysign(min(0.4 * abs(values[0]), 0.4), values[0]))
    for _ in range(12):
        if ys[-1] == ys[-2]:
            return ys[-1]
        values.append(gap(ys[-1]))
        slope = sign * (values[-1] - values[-2]) / (ys[-1] - ys[-2])
        if -1e-11 * slope <= values[-1] <= 0.0:
            return ys[-1]
        if not (0.1 < slope < 100.0 and abs(values[-1]) < 20.0):
            return None
        ys.append(_inverse_at_zero(ys[-4:], values[-4:]) - sign * 3e-12)
        step, last = abs(ys[-1] - ys[-2]), abs(ys[-2] - ys[-3])
        if step * last <= 1e-19:  # what the next step would be like
            return ys[-1]
        if step > 1.0:
            return None
    return None


def _inverse_at_zero(ys: list[float], values: list[float]) -> float:
    """Value at 0 of the polynomial in `values` that gives `ys`."""
    total = 0.0
    for i, y in enumerate(ys):
        for j, value in enumerate(values):
            y *= value / (value - values[i]) if j != i else 1.0
        total += y
    return total


def _bracketed(gap: Callable[[float], float], start: float, sign: float) -> float:
    """Root in a bracket that grows from `start`; NaN if there is none."""
    from scipy.optimize import brentq

    y, value, width = start, gap(start), 0.08
    while True:
        other = y - sign * math.copysign(width, value)
        if abs(other) > _FARTHEST:
            return math.nan
        other_value = gap(other)
        if (other_value > 0) != (value > 0):
            break
        y, value, width = other, other_value, width * 1.7
    return float(brentq(gap, min(y, other), max(y, other), xtol=1e-11, rtol=1e-12))


def noise_multiplier_for(
    epsilon: float,
    delta: float,
    *,
    sampling_probability: float,
    steps: int,
    accountant: str = "exact",
    relation: str = "add_remove",
    history: Iterable[Event] = (),
) -> float:
    """Smallest noise multiplier with which a run stays within (epsilon, delta).

    Args:
        epsilon: The budget, > 0.
        delta: Its failure probability, in (0, 1).
        sampling_probability: Probability of each record to be in a batch.
        steps: Number of noised updates.
        accountant: `"exact"`, `"rdp"`, `"clt"` or `"moments"`.
        relation: `"add_remove"` or `"replace_one"`.
        history: What was released before.

    Returns:
        The noise multiplier, 1e-11 relative above the root at most; 0 if nothing is
        released.

    Raises:
        BudgetExceededError: If no noise is enough, for instance because the history
            has spent the budget.

    Example:
        >>> sigma = noise_multiplier_for(1.0, 1e-5, sampling_probability=256 / 60000,
        ...     steps=3516)
        >>> round(sigma, 8)
        1.18510716
    """
    epsilon, delta = _target(epsilon, delta)
    p = _validate.probability("sampling_probability", sampling_probability)
    count = _validate.count("steps", steps)
    if p == 0.0 or count == 0:
        return 0.0
    base = _base(accountant, relation, history)
    if base.epsilon(delta) >= epsilon:
        raise BudgetExceededError(
            f"What was released before already costs epsilon={base.epsilon(delta):.6g} "
            f"of {epsilon:.6g} at delta={delta:g}: no noise makes room for more steps. "
            "Raise epsilon or delta."
        )
    mu = float(mu_from_epsilon_delta(epsilon, delta))
    sensitivity = 2.0 if relation == "replace_one" else 1.0
    ratio = mu / (p * math.sqrt(count))
    spread = ratio if p == 1.0 or ratio < 1e-8 else math.sqrt(math.log1p(ratio**2))

    def spent(y: float) -> float:
        event = SampledGaussian(math.exp(y), p)
        return float(base.copy().compose(event, count).epsilon(delta))

    root = math.nan
    if spread > _SMALLEST_SPREAD:
        start = math.log(sensitivity) - math.log(spread) + 0.03
        root = _safe_root(spent, epsilon, start, rising=False)
    if math.isnan(root):
        # Without any noise a record shows only if it is ever sampled.
        raise BudgetExceededError(
            f"No noise multiplier reaches epsilon={epsilon:g}, delta={delta:g} with "
            f"sampling_probability={p:g}, steps={count}. Change one of these."
        )
    return math.exp(root)


def sampling_probability_for(
    epsilon: float,
    delta: float,
    *,
    noise_multiplier: float,
    steps: int,
    accountant: str = "exact",
    relation: str = "add_remove",
) -> float:
    """Largest sampling probability with which a run stays within (epsilon, delta).

    Args:
        epsilon: The budget, > 0.
        delta: Its failure probability, in (0, 1).
        noise_multiplier: Noise standard deviation over `l2_norm_clip`.
        steps: Number of noised updates.
        accountant: `"exact"`, `"rdp"`, `"clt"` or `"moments"`.
        relation: `"add_remove"` or `"replace_one"`.

    Returns:
        The probability, 1 if no sampling is needed.

    Raises:
        BudgetExceededError: If the noise is 0, so that no sampling is private.
    """
    epsilon, delta = _target(epsilon, delta)
    noise = _validate.non_negative("noise_multiplier", noise_multiplier)
    count = _validate.count("steps", steps)
    base = make_accountant(accountant, relation)
    if count == 0 or _within(base, SampledGaussian(noise, 1.0), count, epsilon, delta):
        return 1.0
    if noise == 0.0:
        raise BudgetExceededError(
            "Argument `noise_multiplier` must be > 0: without noise no sampling "
            "probability > 0 is private. Received: "
            f"noise_multiplier={noise_multiplier!r}. Start with 1.0."
        )
    mu = max(float(mu_from_epsilon_delta(epsilon, delta)), 1e-300)
    growth = max(noise, NO_NOISE) ** -2.0
    log_p = math.log(mu) - 0.5 * (math.log(count) + growth)
    if growth < 30.0:
        log_p = math.log(mu) - 0.5 * math.log(count * math.expm1(growth))

    def spent(y: float) -> float:
        event = SampledGaussian(noise, math.exp(min(y, 0.0)))
        return float(base.copy().compose(event, count).epsilon(delta))

    start = min(max(log_p, -_FARTHEST + 1.0), -1e-3) - 0.1
    root = _safe_root(spent, epsilon, start, rising=True)
    if math.isnan(root):
        raise BudgetExceededError(
            f"No sampling probability above 1e-26 reaches epsilon={epsilon:g}, "
            f"delta={delta:g} with noise_multiplier={noise:g}, steps={count}. Use more "
            "noise."
        )
    return min(1.0, math.exp(root))


def batch_size_for(
    epsilon: float,
    delta: float,
    *,
    noise_multiplier: float,
    num_examples: int,
    steps: int,
    accountant: str = "exact",
    relation: str = "add_remove",
) -> int:
    """Largest expected batch size with which a run stays within (epsilon, delta).

    Args:
        epsilon: The budget, > 0.
        delta: Its failure probability, in (0, 1).
        noise_multiplier: Noise standard deviation over `l2_norm_clip`.
        num_examples: Number of records in the data set.
        steps: Number of noised updates.
        accountant: `"exact"`, `"rdp"`, `"clt"` or `"moments"`.
        relation: `"add_remove"` or `"replace_one"`.

    Returns:
        The expected batch size, 1 to `num_examples`.

    Raises:
        BudgetExceededError: If not even an expected batch size of 1 fits.
    """
    total = _validate.count("num_examples", num_examples, minimum=1)
    p = sampling_probability_for(
        epsilon,
        delta,
        noise_multiplier=noise_multiplier,
        steps=steps,
        accountant=accountant,
        relation=relation,
    )
    size = int(np.floor(p * total * (1.0 + 1e-9)))
    base = make_accountant(accountant, relation)
    while size >= 1:
        event = SampledGaussian(noise_multiplier, size / total)
        if _within(base, event, steps, epsilon, delta):
            return size
        size -= 1
    raise BudgetExceededError(
        f"Not even one record per batch (of {total}) stays within epsilon={epsilon:g}, "
        f"delta={delta:g} for {steps} steps at noise_multiplier={noise_multiplier:g}. "
        f"Needed: a sampling probability of at most {p:.3g}, more noise, or fewer "
        "steps."
    )
