"""Differential privacy for Keras 3 on TensorFlow.

```python
import keras_gdp as gdp

model.compile(optimizer=gdp.DPAdam(l2_norm_clip=1.0, noise_multiplier=1.1), loss=...)
train = gdp.PoissonDataset(x_train, y_train, batch_size=256)
budget = gdp.PrivacyBudget(epsilon=3.0, delta=1e-5, dataset=train)
model.fit(train, epochs=60, callbacks=[budget])
print(budget.statement())
```

Names are loaded when they are first used, so `keras_gdp.accounting` and
`keras_gdp.tradeoff` work without importing TensorFlow.
"""

from importlib import import_module

from keras_gdp._on_keras_import import when_keras_is_imported
from keras_gdp.errors import (
    BudgetExceededError,
    LedgerError,
    PrivacyError,
    SamplingMismatchError,
    UnclippedGradientsError,
    UnsupportedEventError,
    UnsupportedLayerError,
)

__version__ = "0.1.0"

_SUBMODULES = ("accounting", "audit", "clipping", "tradeoff", "tuning")

_HOMES = {
    "keras_gdp.callbacks": ("PrivacyBudget", "PrivacyStatement"),
    "keras_gdp.data": ("PoissonDataset", "UniformDataset"),
    "keras_gdp.optimizers": (
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
    ),
    "keras_gdp.training": ("explain_clipping",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "BudgetExceededError",
    "LedgerError",
    "PrivacyError",
    "SamplingMismatchError",
    "UnclippedGradientsError",
    "UnsupportedEventError",
    "UnsupportedLayerError",
    *_HOME_OF,
    *_SUBMODULES,
]


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return import_module(f"keras_gdp.{name}")
    if name in _HOME_OF:
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'keras_gdp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def _register_optimizers() -> None:
    import keras

    if keras.backend.backend() == "tensorflow":
        import_module("keras_gdp.optimizers")


when_keras_is_imported(_register_optimizers)
