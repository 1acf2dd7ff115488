"""Runs code right after Keras was imported, without importing it.

Saved models name their optimizer `keras_gdp>DPAdam`; Keras finds it only if it was
registered. `import keras_gdp` must suffice for that, yet must not import TensorFlow
for those who only account. So registration waits until Keras itself is imported.
"""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable

__all__ = ["when_keras_is_imported"]


def when_keras_is_imported(action: Callable[[], None]) -> None:
    """Calls `action` now if Keras is loaded, else as soon as it is."""
    module = sys.modules.get("keras")
    if module is None:
        sys.meta_path.insert(0, _Watcher(action))
    elif not getattr(module.__spec__, "_initializing", False):
        action()


class _Watcher(importlib.abc.MetaPathFinder):
    """Finds Keras as the other finders do, and appends the action to its loading."""

    def __init__(self, action):
        self._action = action

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "keras":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load, action = spec.loader.exec_module, self._action

            def exec_module(module):
                load(module)
                action()

            spec.loader.exec_module = exec_module
        return spec
