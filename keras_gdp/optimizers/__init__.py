"""DP optimizers: Keras' optimizers with clipping, noise and a ledger."""

from keras_gdp.optimizers._private import PrivateOptimizer
from keras_gdp.optimizers.keras_optimizers import (
    DPSGD,
    DPAdadelta,
    DPAdafactor,
    DPAdagrad,
    DPAdam,
    DPAdamax,
    DPAdamW,
    DPFtrl,
    DPLamb,
    DPLion,
    DPNadam,
    DPRMSprop,
    make_private,
)

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
    "PrivateOptimizer",
    "make_private",
]
