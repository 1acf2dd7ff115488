"""Trade-off functions: what f-differential privacy guarantees, as objects."""

from keras_gdp.tradeoff.base import TradeOff
from keras_gdp.tradeoff.duality import from_delta
from keras_gdp.tradeoff.envelope import lower_envelope
from keras_gdp.tradeoff.epsilon_delta import approximate_dp
from keras_gdp.tradeoff.gaussian import gaussian
from keras_gdp.tradeoff.laplace import laplace
from keras_gdp.tradeoff.piecewise import (
    from_pmfs,
    from_points,
    identity,
    no_privacy,
)

__all__ = [
    "TradeOff",
    "approximate_dp",
    "from_delta",
    "from_pmfs",
    "from_points",
    "gaussian",
    "identity",
    "laplace",
    "lower_envelope",
    "no_privacy",
]
