"""Records one forward pass of a model so that its clipped sum can be computed.

While a pass is recorded, the `call` of every layer that owns trainable variables is
replaced by its rule's version. The variables are held fixed there, and the places
where they enter are tapped: the gradients at the taps, with what the rules kept of
the layers' inputs, give the gradient of each example separately.
"""

import contextlib
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_gdp.clipping.contributions import combine
from keras_gdp.clipping.rules import Rule, find_rule
from keras_gdp.clipping.rules.fallback import fallback_for
from keras_gdp.errors import UnsupportedLayerError

__all__ = ["Recording", "Unit", "plan_units", "refuse_outside"]


@dataclass(frozen=True)
class Unit:
    """A layer whose variables are handled together, and the rule that does it."""

    layer: Any
    rule: Rule


def plan_units(objective):
    """Returns the units of a model, one for every layer that owns variables.

    Args:
        objective: The objective; its `batched` part names the layers.

    Raises:
        UnsupportedLayerError: If a layer can be covered by no rule.
    """
    wanted = {id(variable) for variable in objective.variables}
    children_of = objective.batched.children_of
    units, seen = [], set()

    def visit(layer, is_model=False):
        if id(layer) in seen:
            return
        seen.add(id(layer))
        owned = {id(v.value) for v in layer.trainable_variables} & wanted
        if not owned:
            return
        rule, reason = find_rule(layer)
        children = children_of(layer)
        direct = owned - {
            id(v.value) for child in children for v in child.trainable_variables
        }
        if rule is None and direct:
            if is_model:
                raise UnsupportedLayerError(
                    f"model {layer.name!r} has weights of its own, outside of layers"
                )
            rule = fallback_for(layer, reason)
        if rule is not None:
            units.append(Unit(layer, rule))
            return
        for child in children:
            visit(child)

    visit(objective.model, is_model=True)
    return units


class Recording:
    """One recorded forward and backward pass; a context manager.

    Args:
        objective: The objective, with a `batched` part.
        rows: Number of rows of the batch, or a scalar tensor.
        hold: Whether to hold the variables fixed in the forward pass. Then only the
            taps receive gradients, and a variable that still does was used outside
            of the recorded layers.

    Attributes:
        holds: The same.
    """

    def __init__(self, objective, rows, hold=True):
        self._objective = objective
        self._rows = rows if isinstance(rows, int) else None
        self.holds = hold
        self._taps = []
        self._names = {id(v): i for i, v in enumerate(objective.variables)}
        self._graph = None
        self.tape = tf.GradientTape(persistent=not hold, watch_accessed_variables=False)

    def __enter__(self):
        self._graph = _current_graph()
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            for unit in plan_units(self._objective):
                stack.enter_context(_replaced_call(unit, self))
            stack.enter_context(self.tape)
            self.tape.watch(self._objective.variables)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        return self._stack.__exit__(*error)

    def fixed(self, variable):
        """Returns a variable's value, not to be differentiated."""
        if not self.holds:
            return tf.convert_to_tensor(variable)
        with self.tape.stop_recording():
            return tf.convert_to_tensor(variable)

    def tap(self, tensor, contributions):
        """Announces a place where variables enter the computation.

        Args:
            tensor: Tensor of shape (batch, ...) that depends on the variables.
            contributions: Maps the gradient of the summed loss with respect to
                `tensor` to a list of pairs of a Keras variable, or `None`, and a
                function that returns its `Contribution`.

        Returns:
            The tensor, to be used from here on.
        """
        if _graph_of(tensor) is not self._graph:
            raise UnsupportedLayerError(
                "a layer with weights is called inside of a loop, a condition, or a "
                "function of its own, where its gradients cannot be recorded"
            )
        leading = tensor.shape[0]
        if self._rows is not None and leading is not None and leading != self._rows:
            raise UnsupportedLayerError(
                f"a layer with weights is called on {leading} rows where the batch has "
                f"{self._rows} examples"
            )
        # A tensor of its own: the same one may be tapped twice.
        tensor = tf.identity(tensor)
        self.tape.watch(tensor)
        self._taps.append((tensor, contributions))
        return tensor

    def contributions(self, losses, scale):
        """Differentiates, and returns one contribution per variable.

        Args:
            losses: Per-example losses, of shape (batch,), of the recorded pass.
            scale: Factor on the losses against underflow, divided out again.

        Returns:
            List of contributions, `None` for a variable without gradient.

        Raises:
            UnsupportedLayerError: If a variable is used outside of its layer's call.
        """
        variables = self._objective.variables if self.holds else []
        gradients = self.tape.gradient(
            losses,
            [*(tensor for tensor, _ in self._taps), *variables],
            tf.fill(tf.shape(losses), tf.cast(scale, losses.dtype)),
        )
        outside = zip(variables, gradients[len(self._taps) :], strict=True)
        self.check_outside([v for v, gradient in outside if gradient is not None])
        found = [[] for _ in self._objective.variables]
        for (_, contributions), gradient in zip(self._taps, gradients, strict=False):
            if gradient is None:
                continue
            gradient = tf.convert_to_tensor(gradient)
            if gradient.dtype.size < 4:
                gradient = tf.cast(gradient, tf.float32)
            if scale != 1.0:
                gradient = gradient / tf.cast(scale, gradient.dtype)
            for variable, contribution in contributions(gradient):
                index = (
                    None if variable is None else self._names.get(id(variable.value))
                )
                if index is not None:
                    found[index].append(contribution())
        return [combine(parts) if parts else None for parts in found]

    @property
    def half_precision(self):
        """Whether a tapped tensor has less than 32 bits."""
        return any(tensor.dtype.size < 4 for tensor, _ in self._taps)

    def gradients(self, losses, factors, scale):
        """Returns the gradients of the losses weighed by constant factors, dense.

        Args:
            losses: Per-example losses of the recorded pass, which held nothing.
            factors: Tensor of shape (batch,).
            scale: As for `contributions`.
        """
        factors = tf.cast(factors, losses.dtype)
        with self.tape:
            kept = tf.where(factors > 0, losses, tf.zeros([], losses.dtype))
            total = tf.reduce_sum(kept * factors * tf.cast(scale, losses.dtype))
        gradients = self.tape.gradient(
            total,
            self._objective.variables,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return [g / tf.cast(scale, g.dtype) for g in gradients]

    def check_outside(self, used):
        """Raises if a variable that is trained is among those used."""
        refuse_outside(used, self._objective.variables)


def refuse_outside(used, variables):
    """Raises if one of the variables was used where no layer rule sees it.

    Args:
        used: List of `tf.Variable`s, or `None`.
        variables: The variables that are trained.

    Raises:
        UnsupportedLayerError: If so.
    """
    trained = {id(variable) for variable in variables}
    for variable in used or []:
        if id(variable) in trained:
            raise UnsupportedLayerError(
                f"variable {variable.name!r} is used outside of the call of the "
                "layer that owns it"
            )


@contextlib.contextmanager
def _replaced_call(unit, recording):
    layer = unit.layer
    replaced = vars(layer).get("call")
    if replaced is not None:
        raise UnsupportedLayerError(f"the `call` of layer {layer.name!r} was replaced")

    def call(*args, **kwargs):
        return unit.rule.call(layer, recording, *args, **kwargs)

    vars(layer)["call"] = call
    try:
        yield
    finally:
        del vars(layer)["call"]


def _current_graph():
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _graph_of(tensor):
    return None if hasattr(tensor, "numpy") else tensor.graph
