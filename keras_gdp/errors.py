"""Exceptions of keras_gdp.

```
PrivacyError
├── UnclippedGradientsError   gradients without clipping and noise reach an optimizer
├── UnsupportedLayerError     a layer or loss mixes examples, or state stores data
├── BudgetExceededError       no further private step fits into the budget
├── SamplingMismatchError     the data is not drawn the way the accounting assumes
├── LedgerError               the record of past steps is missing or contradictory
└── UnsupportedEventError     an accountant cannot account an event in its relation
```

Bad argument values raise `ValueError` (or `TypeError`), not a `PrivacyError`.
"""

__all__ = [
    "BudgetExceededError",
    "LedgerError",
    "PrivacyError",
    "SamplingMismatchError",
    "UnclippedGradientsError",
    "UnsupportedEventError",
    "UnsupportedLayerError",
]


class PrivacyError(Exception):
    """Root of all errors by which keras_gdp refuses to weaken a guarantee."""


class UnclippedGradientsError(PrivacyError):
    """Gradients without per-example clipping and noise reached a DP optimizer."""


class UnsupportedLayerError(PrivacyError):
    """A layer or loss couples the examples of a batch, or stores data without noise."""


class BudgetExceededError(PrivacyError):
    """The privacy budget does not allow another private step."""


class SamplingMismatchError(PrivacyError):
    """The batches are not drawn the way that the accounting assumes."""


class LedgerError(PrivacyError):
    """The record of past private steps is missing, damaged or contradictory."""


class UnsupportedEventError(PrivacyError):
    """An accountant has no sound analysis for an event under its relation."""
