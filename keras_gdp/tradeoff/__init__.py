"""Trade-off functions: what f-differential privacy guarantees, as objects.

```python
from keras_gdp import tradeoff

f = tradeoff.noisy_sgd(1.1, 256 / 60000, 14062)
f(0.05)              # least type II error of any attack at 5 % type I error
f.epsilon(1e-5)      # the same guarantee as (epsilon, delta)-DP
f.compose(tradeoff.gaussian(0.5)).plot()
```
"""

from keras_gdp.tradeoff.advanced_mixture import advanced_mixture
from keras_gdp.tradeoff.base import TradeOff
from keras_gdp.tradeoff.central_limit import (
    LossMoments,
    berry_esseen,
    berry_esseen_symmetric,
    edgeworth,
    gaussian_limit,
    loss_moments,
)
from keras_gdp.tradeoff.distributions import from_distributions
from keras_gdp.tradeoff.duality import from_delta
from keras_gdp.tradeoff.envelope import lower_envelope
from keras_gdp.tradeoff.epsilon_delta import approximate_dp
from keras_gdp.tradeoff.gaussian import gaussian
from keras_gdp.tradeoff.laplace import laplace
from keras_gdp.tradeoff.mixture import mixture
from keras_gdp.tradeoff.noisy_sgd import moments_accountant, noisy_sgd
from keras_gdp.tradeoff.piecewise import (
    from_pmfs,
    from_points,
    identity,
    no_privacy,
)
from keras_gdp.tradeoff.plot import plot_profiles, plot_tradeoffs
from keras_gdp.tradeoff.random_init import random_initialization
from keras_gdp.tradeoff.shuffling import shuffled, shuffled_epsilon_bound

__all__ = [
    "LossMoments",
    "TradeOff",
    "advanced_mixture",
    "approximate_dp",
    "berry_esseen",
    "berry_esseen_symmetric",
    "edgeworth",
    "from_delta",
    "from_distributions",
    "from_pmfs",
    "from_points",
    "gaussian",
    "gaussian_limit",
    "identity",
    "laplace",
    "loss_moments",
    "lower_envelope",
    "mixture",
    "moments_accountant",
    "no_privacy",
    "noisy_sgd",
    "plot_profiles",
    "plot_tradeoffs",
    "random_initialization",
    "shuffled",
    "shuffled_epsilon_bound",
]
