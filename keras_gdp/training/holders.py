"""Which optimizers hold the ledgers of which weights.

A ledger is about weights, and weights can be in several models: a layer that was
trained privately in one carries its cost into the next.
"""

import weakref

__all__ = ["note", "of", "take_over"]

# Keras variables cannot be keys: they compare entry by entry.
_HOLDERS: dict[int, tuple] = {}


def note(variables, optimizer):
    """Notes that the ledger of an optimizer is that of these variables from now on."""
    for variable in variables:
        key = id(variable)
        # The defaults outlive the module's names when the interpreter shuts down.
        reference = weakref.ref(
            variable, lambda _, forget=_HOLDERS.pop, key=key: forget(key, None)
        )
        _HOLDERS[key] = (reference, optimizer)


def of(variables):
    """Returns the optimizers that hold ledgers of these variables, each once."""
    found = {}
    for variable in variables:
        reference, optimizer = _HOLDERS.get(id(variable), (None, None))
        if reference is not None and reference() is variable:
            found[id(optimizer)] = optimizer
    return list(found.values())


def take_over(variables, optimizer):
    """Has an optimizer inherit the ledgers that others hold of these variables."""
    for holder in of(variables):
        if holder is not optimizer:
            optimizer.inherit(holder)
