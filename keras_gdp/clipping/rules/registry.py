"""The layer rules, by exact class."""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Rule", "find_rule", "register"]


@dataclass(frozen=True)
class Rule:
    """How the gradient of one kind of layer is clipped.

    Attributes:
        call: Stands in for the layer's `call` while a step is recorded: `call(layer,
            record, *args, **kwargs)` returns what the layer returns, reads trainable
            variables by `record.fixed` only, and announces every place where they
            enter by `record.tap`.
        declines: Maps a layer to the reason why this rule does not cover it, or "".
        text: What it does, for people.
    """

    call: Callable
    declines: Callable
    text: str


_RULES: dict[type, Rule] = {}


def register(*classes, text, declines=lambda layer: ""):
    """Registers the decorated function as the rule of these classes.

    Args:
        *classes: Layer classes. Subclasses are not included: their `call` may differ.
        text: What the rule does, a few words for `explain_clipping`.
        declines: See `Rule`.
    """

    def decorator(call):
        for cls in classes:
            _RULES[cls] = Rule(call, declines, text)
        return call

    return decorator


def find_rule(layer):
    """Returns `(rule, reason)`: a layer's rule, or `None` and why there is none."""
    rule = _RULES.get(type(layer))
    if rule is None:
        return None, "no rule for this class"
    if "call" in vars(layer):
        return None, "its `call` was replaced"
    if getattr(layer, "quantization_mode", None) is not None:
        return None, "it is quantized"
    if getattr(layer, "lora_enabled", False):
        return None, "it has LoRA weights"
    reason = rule.declines(layer)
    return (None, reason) if reason else (rule, "")
