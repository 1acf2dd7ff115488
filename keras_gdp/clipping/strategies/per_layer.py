"""A fixed bound per layer."""

from types import MappingProxyType

import keras
import numpy as np

from keras_gdp.clipping.strategies.base import checked_bound, root_of_squares
from keras_gdp.clipping.strategies.groups import GroupedStrategy, checked_patterns

__all__ = ["PerLayer"]


@keras.saving.register_keras_serializable(package="keras_gdp")
class PerLayer(GroupedStrategy):
    """Clips each example's gradient layer by layer (McMahan et al. 2018).

    The clipped gradient of an example is at most `sqrt(sum of squared bounds)` long:
    this is the sensitivity, and the noise on every entry has `noise_multiplier` times
    this standard deviation. The cost of a step therefore depends on `noise_multiplier`
    alone, not on the number of layers. Where each layer has noise `sigma C` of its own,
    as in some papers, that is `noise_multiplier = sigma / sqrt(layers)` here.

    Args:
        l2_norm_clips: A number > 0 for all layers; or one per layer, in the order of
            `model.trainable_variables`; or a dict from a regular expression, searched
            for in the variables' paths, to the bound of the variables that it finds
            first.
        groups: `"layer"`, `"variable"`, or a list of regular expressions: what one
            bound is for. Not together with a dict.
    """

    def __init__(self, l2_norm_clips, *, groups="layer"):
        advice = (
            "Give the bound on the L2 norm of an example's gradient per layer, such as "
            "0.5, [0.5, 1.0], or {'dense': 0.5, '': 1.0}."
        )
        self._by_pattern = isinstance(l2_norm_clips, dict)
        if self._by_pattern:
            if groups not in ("layer", list(l2_norm_clips)):
                raise ValueError(
                    "Argument `groups` cannot be combined with a dict of "
                    f"`l2_norm_clips`, whose keys are the groups. Received: "
                    f"groups={groups!r}. Leave `groups` out."
                )
            if not all(isinstance(pattern, str) for pattern in l2_norm_clips):
                raise ValueError(
                    "Argument `l2_norm_clips`, a dict, must have regular expressions "
                    f"as keys. Received: l2_norm_clips={l2_norm_clips!r}. {advice}"
                )
            groups = checked_patterns("l2_norm_clips", list(l2_norm_clips))
            bounds = list(l2_norm_clips.values())
        elif isinstance(l2_norm_clips, list | tuple) or np.ndim(l2_norm_clips):
            bounds = list(l2_norm_clips)
        else:
            bounds = l2_norm_clips
        if isinstance(bounds, list):
            if not bounds:
                raise ValueError(
                    "Argument `l2_norm_clips` must hold at least one bound. Received: "
                    f"l2_norm_clips={l2_norm_clips!r}. {advice}"
                )
            bounds = tuple(checked_bound("l2_norm_clips", b, advice) for b in bounds)
        else:
            bounds = checked_bound("l2_norm_clips", bounds, advice)
        super().__init__(groups)
        self._given = bounds
        self._bounds = None

    @property
    def l2_norm_clips(self):
        """The bounds: a number, a tuple, or a read-only mapping."""
        if self._by_pattern:
            return MappingProxyType(dict(zip(self.groups, self._given, strict=True)))
        return self._given

    def build(self, variables, add_variable):
        super().build(variables, add_variable)
        given = self._given
        self.check_count("l2_norm_clips", given)
        self._bounds = np.broadcast_to(np.float64(given), [self.num_groups])

    @property
    def bounds(self):
        return self._bounds

    @property
    def sensitivity(self) -> float:
        if self._bounds is not None:
            return root_of_squares(self._bounds)
        # A single bound for all layers of a model that is not known yet.
        if isinstance(self._given, tuple):
            return root_of_squares(self._given)
        return np.nan

    def describe(self) -> str:
        if self._bounds is None:
            bounds = f"L2 norm {self.get_config()['l2_norm_clips']}"
        else:
            bounds = "L2 norms " + ", ".join(
                f"{bound:g} ({name})"
                for name, bound in zip(self.group_names, self._bounds, strict=True)
            )
        return (
            f"the gradient of each example is clipped {self.unit} by {self.unit}, "
            f"to {bounds}"
        )

    def get_config(self) -> dict:
        if self._by_pattern:
            return {"l2_norm_clips": dict(self.l2_norm_clips)}
        given = self._given
        return {
            "l2_norm_clips": list(given) if isinstance(given, tuple) else given,
            "groups": self._groups_config(),
        }
