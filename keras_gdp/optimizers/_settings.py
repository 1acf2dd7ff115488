"""The settings of a private optimizer, checked."""

from keras_gdp import _validate
from keras_gdp.clipping import ClippingStrategy, Flat
from keras_gdp.clipping.choose import ENGINES

__all__ = ["check_noise_range", "checked_settings", "refuse_accumulation"]

# Noise of this standard deviation, times any draw and any loss scale, is a float32
# number, also where adaptive bounds have grown by 1e12 and a model has many layers.
_SMALLEST_STDDEV, _LARGEST_STDDEV = 1e-36, 1e34
_LARGEST_ADAPTIVE_MULTIPLIER = 1e15


def checked_settings(
    *,
    l2_norm_clip,
    noise_multiplier,
    batch_size,
    clipping,
    physical_batch_size,
    noise_seed,
):
    """Returns the settings, with the `strategy` and `engine_name` that they mean.

    Args:
        l2_norm_clip: As for `PrivateOptimizer`, like all others.
        noise_multiplier: A number >= 0.
        batch_size: A number > 0 or `None`.
        clipping: A name or a strategy.
        physical_batch_size: A whole number >= 1 or `None`.
        noise_seed: A whole number >= 0 or `None`.

    Raises:
        ValueError: For values out of range.
    """
    strategy, engine_name = _resolve_clipping(l2_norm_clip, clipping)
    noise_multiplier = _validate.non_negative(
        "noise_multiplier",
        noise_multiplier,
        "It is the noise's standard deviation in units of `l2_norm_clip`; "
        "`keras_gdp.accounting.noise_multiplier_for` finds it for a budget.",
    )
    check_noise_range(strategy, noise_multiplier)
    if batch_size is not None:
        batch_size = _validate.positive("batch_size", batch_size)
    if physical_batch_size is not None:
        physical_batch_size = _validate.count(
            "physical_batch_size",
            physical_batch_size,
            "It is the number of rows to process at once, such as 32; leave it out "
            "for all.",
            minimum=1,
        )
    if noise_seed is not None:
        noise_seed = _validate.count(
            "noise_seed",
            noise_seed,
            "Leave it out for noise that protects; an int such as 0 is for tests.",
        )
    # The state of a strategy belongs to one optimizer, as do its arguments: whoever
    # changes theirs later must not change what is saved.
    strategy = strategy.owned_copy()
    if isinstance(l2_norm_clip, ClippingStrategy):
        l2_norm_clip = strategy
    if isinstance(clipping, ClippingStrategy):
        clipping = strategy
    return {
        "l2_norm_clip": l2_norm_clip,
        "noise_multiplier": noise_multiplier,
        "batch_size": batch_size,
        "clipping": clipping,
        "physical_batch_size": physical_batch_size,
        "noise_seed": noise_seed,
        "strategy": strategy,
        "engine_name": engine_name,
    }


def refuse_accumulation(arguments):
    """Raises if Keras is asked to accumulate gradients."""
    steps = arguments.get("gradient_accumulation_steps")
    if steps:
        raise ValueError(
            "Argument `gradient_accumulation_steps` would add noise to every part "
            f"of a batch. Received: gradient_accumulation_steps={steps}. Use "
            "`physical_batch_size` instead: it splits the batch inside the step, "
            "noise is added once."
        )


def check_noise_range(strategy, noise_multiplier):
    """Raises if the noise would over- or underflow in float32."""
    # Not known before the strategy is built, or started, where it is NaN or 0.
    sensitivity = float(strategy.sensitivity)
    stddev = noise_multiplier * (sensitivity if sensitivity > 0 else 1.0)
    adaptive = strategy.side_noise_multiplier is not None
    largest = max(noise_multiplier, strategy.side_noise_multiplier or 0.0)
    if (
        stddev > _LARGEST_STDDEV
        or 0 < stddev < _SMALLEST_STDDEV
        or (adaptive and largest > _LARGEST_ADAPTIVE_MULTIPLIER)
    ):
        raise ValueError(
            "Argument `noise_multiplier` times the sensitivity is the noise's standard "
            f"deviation, which must be 0 or lie in [{_SMALLEST_STDDEV:g}, "
            f"{_LARGEST_STDDEV:g}] to be drawn in float32, and multipliers of adaptive "
            f"strategies must be at most {_LARGEST_ADAPTIVE_MULTIPLIER:g}. Received: "
            f"noise_multiplier={noise_multiplier:g} with {strategy!r}. Clip to about "
            "1.0 and scale the learning rate instead."
        )


def _resolve_clipping(l2_norm_clip, clipping):
    """Returns `(strategy, engine_name)` of the two arguments."""
    given = [s for s in (l2_norm_clip, clipping) if isinstance(s, ClippingStrategy)]
    if len(given) == 2:
        raise ValueError(
            "Give one clipping strategy, either as `l2_norm_clip` or as `clipping`. "
            f"Received: l2_norm_clip={l2_norm_clip!r}, clipping={clipping!r}. "
            "Leave one out."
        )
    engine_name = "auto"
    if not isinstance(clipping, ClippingStrategy):
        engine_name = _validate.one_of(
            "clipping",
            clipping,
            ["auto", *ENGINES],
            "A strategy such as gdp.clipping.PerLayer(0.5) may stand here too; a clip "
            "norm is passed as `l2_norm_clip=`.",
        )
    elif l2_norm_clip is not None:
        raise ValueError(
            "Argument `l2_norm_clip` has no effect beside a clipping strategy, which "
            f"holds its own bounds. Received: l2_norm_clip={l2_norm_clip!r}, "
            f"clipping={clipping!r}. Leave `l2_norm_clip` out."
        )
    if given:
        return given[0], engine_name
    if l2_norm_clip is None:
        raise ValueError(
            "Argument `l2_norm_clip` is missing. Give a bound on the L2 norm of each "
            "example's gradient, such as `l2_norm_clip=1.0`, or a clipping strategy."
        )
    return Flat(l2_norm_clip), engine_name
