"""What the training step needs of an optimizer."""

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from keras_gdp.clipping import ClippedSum
from keras_gdp.sampling import Sampling

__all__ = ["Fitted", "PrivateUpdate"]


@dataclass
class Fitted:
    """What `fit`, or a training loop, is running on.

    Attributes:
        source: The first argument of `fit`.
        sampling: How batches are drawn from it; `None` where that cannot be known.
        steps: Private steps that this process had taken before it began.
        draws: Batches that `source` had served before it began; `None` where it does
            not count them.
        padded: Whether batches carry padding rows, of sample weight 0.
        own_loop: Whether a training loop of the user's own takes the steps.
        distrusted: Steps since that turned out not to come from `source`.
        at_end: Called without arguments however `fit` ends.
    """

    source: Any
    sampling: Sampling | None
    steps: int = 0
    draws: int | None = None
    padded: bool = False
    own_loop: bool = False
    distrusted: int = 0
    at_end: list[Callable] = field(default_factory=list)


class PrivateUpdate(abc.ABC):
    """An optimizer that takes clipped sums, adds noise, and keeps the ledger.

    Attributes:
        strategy: The `ClippingStrategy`.
        engine_name: `"auto"` or the name of an engine.
        physical_batch_size: Rows to process at once, or `None`.
        fitted: What `fit` is running on, or `None` outside of `fit`.
    """

    fitted: Fitted | None = None

    @abc.abstractmethod
    def prepare_clipping(self, variables, objective, row_specs):
        """Makes the strategy ready for steps on these variables.

        Args:
            variables: The Keras variables that will be updated.
            objective: The objective of the step.
            row_specs: Nested `tf.TensorSpec`s of a batch.
        """

    @abc.abstractmethod
    def apply_clipped_sum(self, clipped: ClippedSum, variables, extra_gradients=None):
        """Adds noise to a clipped sum, divides, updates `variables`, counts the step.

        Args:
            clipped: An engine's result for `variables`.
            variables: Keras variables, as many as `clipped.gradients`.
            extra_gradients: Gradients that depend on no example (regularisers), added
                after the noise; `None`, or one entry per variable, `None` for none.
        """

    @abc.abstractmethod
    def resolve_batch_size(self, static_rows):
        """Fixes the divisor before the first step.

        Args:
            static_rows: Number of rows of the batch at hand if it is static, else
                `None`. Used only where nothing was declared.
        """

    @abc.abstractmethod
    def bind(self, sampling, batch_size=None, *, new_pass=True):
        """Declares how the batches of the coming steps are drawn.

        Args:
            sampling: A `keras_gdp.sampling.Sampling`.
            batch_size: The divisor that this implies, where none was declared.
            new_pass: Whether a pass over the data starts here.
        """

    @abc.abstractmethod
    def refresh_after_fork(self):
        """Draws a new noise key in a copy of the process that drew the last one."""

    @abc.abstractmethod
    def unbound(self):
        """Context in which steps are charged as if they saw every example."""

    @abc.abstractmethod
    def begin(self, source, sampling, **facts) -> Fitted:
        """Returns the `Fitted` of a source, as of now."""

    @abc.abstractmethod
    def check_served(self, fitted: Fitted):
        """Raises `SamplingMismatchError` if steps were taken that nobody drew.

        They are charged as if they had seen every example, before it raises.
        """

    @property
    @abc.abstractmethod
    def limit_reached(self) -> bool:
        """Whether no further step changes anything."""

    @abc.abstractmethod
    def inherit(self, previous):
        """Takes over the ledger of the model's previous private optimizer."""

    @abc.abstractmethod
    def charge_unprotected_step(self):
        """Notes that the model saw data through an optimizer without noise."""
