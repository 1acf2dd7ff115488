"""The private training step inside `keras.Model.fit`."""

from keras_gdp.training import _keras
from keras_gdp.training.explain import explain_clipping
from keras_gdp.training.fit import (
    compiled,
    fitting,
    stepping,
    training_without_privacy,
)
from keras_gdp.training.interface import PrivateUpdate
from keras_gdp.training.train_step import train_step

__all__ = ["PrivateUpdate", "explain_clipping"]

_keras.install_hooks(train_step, fitting, stepping, compiled, training_without_privacy)
