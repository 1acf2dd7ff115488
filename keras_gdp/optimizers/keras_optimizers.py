"""The differentially private versions of Keras' optimizers.

Each class is its Keras parent with `PrivateOptimizer` in front: every example's
gradient is clipped, Gaussian noise is added to the sum, and the parent's update rule
is applied to the noised sum over the expected batch size. `DPSGD` is NoisySGD and
`DPAdam` is NoisyAdam, Algorithms 1 and 2 of Bu, Dong, Long, Su, "Deep Learning with
Gaussian Differential Privacy" (2020); the other rules are post-processing of the
same release and carry the same guarantee.
"""

import keras

from keras_gdp.optimizers._private import PrivateOptimizer

__all__ = [
    "DPSGD",
    "DPAdadelta",
    "DPAdafactor",
    "DPAdagrad",
    "DPAdam",
    "DPAdamW",
    "DPAdamax",
    "DPFtrl",
    "DPLamb",
    "DPLion",
    "DPNadam",
    "DPRMSprop",
    "make_private",
]

_register = keras.saving.register_keras_serializable(package="keras_gdp")


def make_private(optimizer_class):
    """Returns the DP subclass of a Keras optimizer class.

    Args:
        optimizer_class: A subclass of `keras.optimizers.Optimizer`, yours or a third
            party's, whose update rule is in `update_step`.

    Returns:
        A class named `DP<name>` that takes all arguments of `optimizer_class` and
        those of `PrivateOptimizer`, registered for saving as `keras_gdp>DP<name>`.
        Call this before a model saved with it is loaded.

    Raises:
        TypeError: If the argument is not an optimizer class.
        ValueError: If the class is private already.
    """
    if not (
        isinstance(optimizer_class, type)
        and issubclass(optimizer_class, keras.optimizers.Optimizer)
    ):
        raise TypeError(
            "Argument `optimizer_class` must be a subclass of "
            "keras.optimizers.Optimizer. Received: "
            f"optimizer_class={optimizer_class!r}. Pass the class itself, "
            "such as keras.optimizers.Adam, not an instance or a name."
        )
    if issubclass(optimizer_class, PrivateOptimizer):
        raise ValueError(
            "Argument `optimizer_class` must be a Keras optimizer without privacy. "
            f"Received: {optimizer_class.__name__}, a DP optimizer. Use it as it is."
        )
    if optimizer_class is keras.optimizers.LossScaleOptimizer:
        raise ValueError(
            "Argument `optimizer_class` must be an optimizer that updates weights. "
            "Received: LossScaleOptimizer, which wraps another. Make the inner one "
            "private; `compile` wraps it under the 'mixed_float16' policy."
        )
    for private in _private_classes:
        if private.__bases__[-1] is optimizer_class:
            return private
    name = f"DP{optimizer_class.__name__}"
    private = type(
        name,
        (PrivateOptimizer, optimizer_class),
        {
            "__doc__": f"{optimizer_class.__name__} with differential privacy.\n\n"
            "Takes all arguments of its Keras parent, and those of "
            "`PrivateOptimizer`.",
            "__module__": __name__,
        },
    )
    _private_classes.append(_register(private))
    return private


_private_classes = []

DPSGD = make_private(keras.optimizers.SGD)
DPAdam = make_private(keras.optimizers.Adam)
DPAdamW = make_private(keras.optimizers.AdamW)
DPAdagrad = make_private(keras.optimizers.Adagrad)
DPAdadelta = make_private(keras.optimizers.Adadelta)
DPAdamax = make_private(keras.optimizers.Adamax)
DPNadam = make_private(keras.optimizers.Nadam)
DPRMSprop = make_private(keras.optimizers.RMSprop)
DPFtrl = make_private(keras.optimizers.Ftrl)
DPLion = make_private(keras.optimizers.Lion)
DPAdafactor = make_private(keras.optimizers.Adafactor)
DPLamb = make_private(keras.optimizers.Lamb)
