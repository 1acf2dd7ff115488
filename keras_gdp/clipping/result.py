"""What a clipping engine hands to the noise."""

from typing import Any, NamedTuple

__all__ = ["ClippedSum"]


class ClippedSum(NamedTuple):
    """The sum over a batch of per-example gradients, each clipped.

    Attributes:
        gradients: One dense tensor per variable, float32 or wider. Adding or
            removing one example changes the whole list by at most the strategy's
            sensitivity in L2 norm.
        squared_norms: Tensor of shape (batch, variables): the squared L2 norm of
            each example's unclipped gradient, per variable. Depends on the raw data:
            not private to publish.
        losses: Tensor of shape (batch,): unclipped per-example losses. Not private.
        outputs: List of by-products of the forward pass (such as predictions),
            stacked along the batch. Not private.
        statistics: Tensor of shape (statistics,): what the strategy releases beside
            the sum, before its noise; `None` for nothing.
    """

    gradients: list
    squared_norms: Any
    losses: Any
    outputs: list
    statistics: Any = None
