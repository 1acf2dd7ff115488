"""Sampling schemes: what each step sees of the data, as accounting events."""

import math
from dataclasses import dataclass, field

from keras_gdp import _validate
from keras_gdp.accounting.events import (
    Event,
    Gaussian,
    SampledGaussian,
    UniformSampledGaussian,
)

__all__ = ["KINDS", "Sampling"]

KINDS = ("unknown", "poisson", "uniform", "shuffle")


@dataclass(frozen=True)
class Sampling:
    """A declared way to draw batches.

    Attributes:
        kind: `"poisson"` (each example independently with probability
            `batch_size / num_examples`), `"uniform"` (subsets of fixed size without
            replacement), `"shuffle"` (each example once per pass over the data), or
            `"unknown"` (every step may see every example).
        batch_size: Expected batch size, > 0; 0 for `"unknown"`.
        num_examples: Declared size of the data set, >= batch_size; 0 for `"unknown"`.
        seeded: Whether the draws can be reproduced from a seed, which voids the
            amplification against those who know it. Not part of equality.
    """

    kind: str
    batch_size: float = 0
    num_examples: int = 0
    seeded: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        _validate.one_of("sampling", self.kind, KINDS)
        if self.kind == "unknown":
            return
        batch_size = _validate.positive("batch_size", self.batch_size)
        if self.kind != "poisson":
            _validate.count("batch_size", self.batch_size, minimum=1)
        num_examples = _validate.count("num_examples", self.num_examples, minimum=1)
        if batch_size > num_examples:
            raise ValueError(
                "Argument `batch_size` must not exceed the number of examples. "
                f"Received: batch_size={self.batch_size!r}, "
                f"num_examples={num_examples}. Choose a smaller batch size."
            )

    @property
    def sampling_probability(self) -> float:
        """Share of the data that one step sees, in (0, 1]."""
        if self.kind in ("poisson", "uniform"):
            return self.batch_size / self.num_examples
        return 1.0

    @property
    def relation(self) -> str:
        """Neighbouring relation under which this scheme is accounted."""
        return "replace_one" if self.kind == "uniform" else "add_remove"

    @property
    def steps_per_release(self) -> int:
        """Steps that together make one accounting event: a pass when shuffling."""
        if self.kind != "shuffle":
            return 1
        return math.ceil(self.num_examples / self.batch_size)

    def releases(self, steps: int) -> int:
        """Number of accounting events of `steps` steps; a started pass is whole."""
        return -(-steps // self.steps_per_release)

    def event(self, noise_multiplier: float) -> Event:
        """One release, as an accounting event.

        Args:
            noise_multiplier: Noise standard deviation over the L2 sensitivity of the
                clipped sum to adding or removing one example.
        """
        if self.kind == "poisson":
            return SampledGaussian(noise_multiplier, self.sampling_probability)
        if self.kind == "uniform":
            return UniformSampledGaussian(
                noise_multiplier, int(self.batch_size), self.num_examples
            )
        # Without random inclusion there is nothing to amplify: an example is seen
        # once per pass (shuffle), or possibly at every step (unknown).
        return Gaussian(noise_multiplier)

    def describe(self) -> str:
        """One sentence for the privacy statement."""
        if self.kind == "poisson":
            return (
                "each step includes every example independently with probability "
                f"{self.sampling_probability:.6g} (expected batch size "
                f"{self.batch_size:g} of {self.num_examples} examples)"
            )
        if self.kind == "uniform":
            return (
                f"each step uses {self.batch_size:g} of {self.num_examples} examples, "
                "drawn without replacement, every subset equally likely"
            )
        if self.kind == "shuffle":
            return (
                f"the {self.num_examples} examples are split into batches of "
                f"{self.batch_size:g}, so that each is used once per pass; no "
                "amplification is claimed for shuffling"
            )
        return "unknown: every step is charged as if it had used every example"
