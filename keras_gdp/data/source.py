"""Random access to examples: arrays, nested structures of arrays, or item by item."""

import keras
import numpy as np
import tensorflow as tf

__all__ = ["Source"]


class Source:
    """Fetches rows of `(x, y, sample_weight)` by index.

    Args:
        x: Arrays with a leading axis of examples, nested in dicts, lists or tuples;
            or any object with `__len__` and `__getitem__` that returns one example
            per index: `x`, or `(x, y)`, or `(x, y, sample_weight)` when `y` is `None`.
        y: Targets: arrays, nested or not, or `None`.
        sample_weight: Weights: arrays, nested or not, or `None`.
    """

    def __init__(self, x, y=None, sample_weight=None):
        if isinstance(x, keras.utils.PyDataset | tf.data.Dataset) or hasattr(
            x, "__next__"
        ):
            raise ValueError(
                "Argument `x` must give random access to single examples: arrays, or "
                "an object with `__len__` and `__getitem__` for one example. "
                f"Received: {type(x).__name__}, which serves a sequence of batches. "
                "Stack its examples into arrays first, for a tf.data.Dataset with "
                "`numpy.stack(list(dataset.unbatch().as_numpy_iterator()))`."
            )
        self._items = None
        if _is_item_source(x):
            self._items = x
            x = None
        arrays = keras.tree.map_structure(
            lambda leaf: None if leaf is None else _as_array(leaf),
            (x, y, sample_weight),
        )
        for leaf in keras.tree.flatten(arrays):
            if leaf is not None and leaf.ndim == 0:
                raise ValueError(
                    "Arguments `x`, `y` and `sample_weight` are read as nested "
                    "structures of arrays, each with a leading axis of examples. "
                    f"Received a scalar inside: {leaf}. Convert lists of numbers with "
                    "`numpy.asarray`; pad sequences to one length first."
                )
        self._arrays = arrays
        lengths = [len(leaf) for leaf in keras.tree.flatten(arrays) if leaf is not None]
        if self._items is not None:
            lengths.append(len(self._items))
        if len(set(lengths)) > 1:
            raise ValueError(
                "Arguments `x`, `y` and `sample_weight` must hold the same number of "
                f"examples. Received lengths, in this order: {lengths}. Check how the "
                "data was loaded and split."
            )
        self._length = lengths[0] if lengths else 0
        if self._length < 1:
            raise ValueError(
                "Argument `x` must hold at least one example. Received: none. Check "
                "how the data was loaded and split."
            )

    def __len__(self):
        return self._length

    def fetch(self, indices):
        """Returns `(x, y, sample_weight)` for an array of distinct indices."""
        x, y, sample_weight = keras.tree.map_structure(
            lambda leaf: None if leaf is None else leaf[indices], self._arrays
        )
        if self._items is None:
            return x, y, sample_weight
        # Item sources cannot be asked for zero rows: take one for its shapes.
        wanted = [int(index) for index in indices] or [0]
        items = [self._items[index] for index in wanted]
        stacked = keras.tree.map_structure(
            lambda *leaves: np.stack([_as_array(leaf) for leaf in leaves])[
                : len(indices)
            ],
            *items,
        )
        if y is None and isinstance(stacked, tuple):
            if len(stacked) not in (2, 3):
                raise ValueError(
                    "An item of `x` that is a tuple must be (x, y) or "
                    f"(x, y, sample_weight). Received {len(stacked)} elements. Nest "
                    "several inputs: ((a, b), y)."
                )
            x, y, *weights = stacked
            return x, y, weights[0] if weights else sample_weight
        return stacked, y, sample_weight


def _is_item_source(x):
    if isinstance(x, dict | list | tuple) or hasattr(x, "shape"):
        return False
    return hasattr(x, "__len__") and hasattr(x, "__getitem__")


def _as_array(leaf):
    array = leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)
    if array.dtype == object:
        raise ValueError(
            "Arguments `x`, `y` and `sample_weight` must hold dense arrays of one "
            "dtype. Received an array of Python objects. Pad sequences to one length, "
            "or encode strings."
        )
    if array.dtype == np.float64:
        # What Keras does with arrays that are passed to `fit` directly.
        return array.astype(keras.config.floatx(), copy=False)
    return array
