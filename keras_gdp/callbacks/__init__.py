"""The privacy budget as a Keras callback, and the statement of what it bought."""

from keras_gdp.callbacks.budget import PrivacyBudget
from keras_gdp.callbacks.statement import PrivacyStatement

__all__ = ["PrivacyBudget", "PrivacyStatement"]
