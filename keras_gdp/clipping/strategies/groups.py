"""Groups of variables that are clipped together."""

import re

import numpy as np
import tensorflow as tf

from keras_gdp.clipping.strategies.base import ClippingStrategy, clip_factors

__all__ = ["GroupedStrategy", "checked_groups", "checked_patterns"]

_EXPECTED = '"layer", "variable", or a list of regular expressions'


def checked_groups(groups):
    """Returns `groups` if it is a valid choice."""
    if isinstance(groups, str) and groups in ("layer", "variable"):
        return groups
    if (
        isinstance(groups, list | tuple)
        and groups
        and all(isinstance(pattern, str) for pattern in groups)
    ):
        return checked_patterns("groups", groups)
    raise ValueError(
        f"Argument `groups` must be {_EXPECTED} that are searched for in the paths of "
        f'the variables. Received: groups={groups!r}. Try ["embedding", ""], where '
        '"" is for all others.'
    )


def checked_patterns(name, patterns) -> tuple[str, ...]:
    """Returns distinct regular expressions as a tuple, which nobody can change."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"Argument `{name}` must hold regular expressions. Received "
                f"{pattern!r}, which is none: {error}. Escape what is meant literally "
                "with `re.escape`."
            ) from error
    if len(set(patterns)) < len(patterns):
        raise ValueError(
            f"Argument `{name}` must not hold a pattern twice: a variable belongs to "
            f"the first that is found, so the second would have none. Received: "
            f"{name}={list(patterns)!r}. Leave the repetition out."
        )
    return tuple(patterns)


class GroupedStrategy(ClippingStrategy):
    """Base of the strategies with one bound per group of variables.

    Args:
        groups: `"layer"` (the variables of a layer), `"variable"`, or a list of
            regular expressions: a variable belongs to the first one that is found in
            its path, and every variable must belong to one.
    """

    def __init__(self, groups):
        self.groups = checked_groups(groups)
        self._group_names = None
        self._variables = None

    def build(self, variables, add_variable):
        del add_variable
        self._variables = [_identity(variable) for variable in variables]
        self._group_names, self._group_of = _assign(self.groups, variables)

    def check_variables(self, variables):
        if [_identity(variable) for variable in variables] != self._variables:
            raise ValueError(
                f"{type(self).__name__} has one bound per {self.unit} of the "
                "variables that the optimizer was built with, and needs all of them in "
                "the same order in every step. Received: "
                f"{[_path(v) for v in variables]}. Use one optimizer per set of "
                "variables, or a strategy with one bound for all of them."
            )

    def check_count(self, name, bounds):
        """Raises if a tuple of bounds does not hold one per group."""
        if isinstance(bounds, tuple) and len(bounds) != self.num_groups:
            raise ValueError(
                f"Argument `{name}` must hold one bound per {self.unit}: "
                f"{self.num_groups} of them, {self.group_names}. Received: "
                f"{name}={bounds!r}. Give as many, or a single number for all."
            )

    @property
    def unit(self) -> str:
        """What a group is, for messages."""
        return self.groups if isinstance(self.groups, str) else "group"

    @property
    def group_names(self) -> list[str]:
        """Names of the groups, in the order of the bounds."""
        return list(self._group_names)

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return len(self.group_names)

    def group_norms(self, squared_norms):
        """Returns norms of shape (batch, groups)."""
        sums = tf.math.unsorted_segment_sum(
            tf.transpose(squared_norms), self._group_of, self.num_groups
        )
        return tf.sqrt(tf.transpose(sums))

    def per_variable(self, values):
        """Spreads values of shape (..., groups) to shape (..., variables)."""
        return tf.gather(values, self._group_of, axis=-1)

    def factors(self, squared_norms):
        norms = self.group_norms(squared_norms)
        finite = tf.reduce_all(tf.math.is_finite(norms), axis=1, keepdims=True)
        factors = clip_factors(norms, self.bounds)
        return self.per_variable(tf.where(finite, factors, tf.zeros_like(factors)))

    def _groups_config(self):
        return self.groups if isinstance(self.groups, str) else list(self.groups)

    @property
    def bounds(self):
        """The bounds of this step, of shape (groups,)."""
        raise NotImplementedError


def _identity(variable):
    return id(getattr(variable, "value", variable))


def _path(variable):
    return getattr(variable, "path", variable.name)


def _assign(groups, variables):
    """Returns `(names, index of each variable's group)`."""
    paths = [_path(variable) for variable in variables]
    if groups == "variable":
        return paths, np.arange(len(paths), dtype=np.int32)
    if groups == "layer":
        owners = [path.rpartition("/")[0] or path for path in paths]
    else:
        owners = [_first_match(groups, path) for path in paths]
        unused = [pattern for pattern in groups if pattern not in owners]
        if unused:
            raise ValueError(
                f"Argument `groups` holds patterns that no variable belongs to: "
                f"{unused}. The variables are {paths}; the first pattern found in a "
                "path decides. Leave these out, or move them to the front."
            )
    names = list(dict.fromkeys(owners)) if groups == "layer" else list(groups)
    return names, np.array([names.index(owner) for owner in owners], np.int32)


def _first_match(patterns, path):
    for pattern in patterns:
        if re.search(pattern, path):
            return pattern
    raise ValueError(
        f"Argument `groups` leaves out variable {path!r}: none of {patterns} is found "
        'in its path. Add a pattern, such as "" for all others, at the end.'
    )
