"""What a training run guarantees, in words and numbers."""

import json
import math
import textwrap
from dataclasses import asdict, dataclass

__all__ = ["PrivacyStatement", "counted"]

_RELATIONS = {
    "add_remove": "data sets that differ by adding or removing one example",
    "replace_one": "data sets of equal size that differ in one example",
}

NOT_COVERED = (
    "metrics and losses shown during training: they are computed on the training "
    "data without noise",
    "validation and test data, and every decision that was made by looking at them",
    "other runs on the same data, such as a search over hyper-parameters",
    "several examples of one person: the unit is one example; for k examples of a "
    "person account for groups of size k",
    "attacks on the pseudo-random generator or on floating-point rounding of the noise",
)


@dataclass(frozen=True)
class PrivacyStatement:
    """A record of the guarantee of one model, to print or to archive.

    Attributes:
        epsilon: Of the chosen accountant, at `delta`.
        delta: Probability in (0, 1).
        mu: Gaussian-DP parameter by the central limit theorem, an estimate; `None`
            where it has no value.
        accountant: Name of the chosen accountant.
        epsilons: Epsilon by accountant; `None` where it cannot account this training.
        assumptions: What each accountant assumes, and whether it is a bound.
        relation: `"add_remove"` or `"replace_one"`.
        sampling: How batches were drawn, one text per phase.
        clipping: How examples were clipped, in the last phase. The noise multipliers
            of all phases, on which the guarantee rests, are in `sampling`.
        sensitivity: L2 sensitivity of the clipped sum to one example added or removed.
            Where the bounds adapt, its value after the last step.
        noise_multiplier: Noise standard deviation over the sensitivity.
        effective_noise_multiplier: The same for all that a step releases, including
            what adaptive clipping releases beside the sum; this is what is accounted.
        noise: What noise is added to what.
        steps: Number of noised updates.
        max_steps: Number of updates that the budget allows, or `None`.
        epsilon_limit: The budget, or `None`.
        noise_seed: `None`, or the seed that makes the noise reproducible.
        warnings: What weakens the guarantee in this run.
    """

    epsilon: float
    delta: float
    mu: float | None
    accountant: str
    epsilons: dict
    assumptions: dict
    relation: str
    sampling: tuple
    clipping: str
    sensitivity: float
    noise_multiplier: float
    effective_noise_multiplier: float
    noise: str
    steps: int
    max_steps: int | None
    epsilon_limit: float | None
    noise_seed: int | None
    warnings: tuple

    def to_dict(self) -> dict:
        """Returns all fields, and the fixed parts of the text, as plain values."""
        return {
            **asdict(self),
            "sampling": list(self.sampling),
            "warnings": list(self.warnings),
            "unit": "one training example",
            "neighbouring_relation": _RELATIONS[self.relation],
            "not_covered": list(NOT_COVERED),
        }

    def _within_budget(self):
        if self.epsilon_limit is None:
            return ""
        if self.max_steps is None:
            return (
                f"; no limit was set for the budget epsilon <= {self.epsilon_limit:g}, "
                "which only `fit` with the callback enforces"
            )
        return (
            f" of at most {self.max_steps} within the budget epsilon <= "
            f"{self.epsilon_limit:g}"
        )

    def to_json(self, indent=1) -> str:
        """Returns `to_dict()` as JSON; an infinite number becomes the string "inf"."""
        return json.dumps(_finite(self.to_dict()), indent=indent, allow_nan=False)

    def _noise_text(self):
        if self.effective_noise_multiplier == self.noise_multiplier:
            return self.noise
        return (
            f"{self.noise}; together one step counts as one Gaussian release of noise "
            f"multiplier {self.effective_noise_multiplier:.6g}"
        )

    def __str__(self):
        lines = [
            f"({_number(self.epsilon)}, {self.delta:g})-differential privacy",
            "",
            _item("Unit of privacy", "one training example"),
            _item("Neighbouring relation", _RELATIONS[self.relation]),
            *(_item("Sampling", text) for text in self.sampling),
            _item(
                "Clipping"
                if len(self.sampling) == 1
                else "Clipping, in the last phase",
                f"{self.clipping}; the sum over a batch then moves by at most "
                f"{self.sensitivity:g} when one example is added or removed",
            ),
            _item(
                "Noise" if len(self.sampling) == 1 else "Noise, in the last phase",
                self._noise_text(),
            ),
            _item(
                "Steps",
                counted(self.steps, "noised update") + self._within_budget(),
            ),
        ]
        for name, epsilon in self.epsilons.items():
            chosen = " (chosen)" if name == self.accountant else ""
            value = "no value" if epsilon is None else f"epsilon {_number(epsilon)}"
            lines.append(
                _item(
                    f"Accountant {name!r}{chosen}", f"{value}. {self.assumptions[name]}"
                )
            )
        if self.mu is not None:
            lines.append(
                _item(
                    "Gaussian DP",
                    f"mu {_number(self.mu)}, by the central limit theorem: an estimate",
                )
            )
        lines += [_item("WARNING", text) for text in self.warnings]
        lines.append("Not covered:")
        lines += [_item("", text) for text in NOT_COVERED]
        return "\n".join(lines)


def _item(title, text):
    start = f"- {title}: " if title else "  - "
    return textwrap.fill(
        text, 80, initial_indent=start, subsequent_indent="    ", break_long_words=False
    )


def counted(number, noun):
    """Returns "1 step" or "2 steps"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _number(value):
    return "infinity" if math.isinf(value) else f"{value:.4g}"


def _finite(value):
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
