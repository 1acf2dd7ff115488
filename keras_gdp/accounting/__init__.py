"""Privacy accounting with NumPy and SciPy alone.

```python
from keras_gdp import accounting

run = accounting.ExactAccountant()
run.compose(accounting.SampledGaussian(1.1, 256 / 60000), count=14062)
run.epsilon(1e-5), run.delta(2.0), run.epsilon_bounds(1e-5)
```

Events say what was released, accountants say what it costs.
"""

from keras_gdp._gdp import (
    delta_from_mu,
    epsilon_from_mu,
    log_delta_from_mu,
    mu_from_epsilon_delta,
)
from keras_gdp.accounting.accountant import Accountant, make_accountant
from keras_gdp.accounting.calibrate import (
    batch_size_for,
    max_steps,
    noise_multiplier_for,
    sampling_probability_for,
    steps_for,
)
from keras_gdp.accounting.clt import CLTAccountant, mu_clt, mu_uniform
from keras_gdp.accounting.events import (
    ApproximateDP,
    Composed,
    Event,
    Gaussian,
    Laplace,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
    SelfComposed,
    UniformSampledGaussian,
)
from keras_gdp.accounting.exact.accountant import ExactAccountant
from keras_gdp.accounting.expansions import (
    berry_esseen_trade_off,
    edgeworth_trade_off,
    loss_moments,
)
from keras_gdp.accounting.rdp import MomentsAccountant, RDPAccountant
from keras_gdp.accounting.trade import (
    NoiseTrade,
    noise_multiplier_for_mu,
    sampling_probability_for_mu,
    steps_for_mu,
    trade_noise,
)

__all__ = [
    "Accountant",
    "ApproximateDP",
    "CLTAccountant",
    "Composed",
    "Event",
    "ExactAccountant",
    "Gaussian",
    "Laplace",
    "MomentsAccountant",
    "NoiseTrade",
    "RDPAccountant",
    "RandomizedResponse",
    "SampledGaussian",
    "SampledLaplace",
    "SelfComposed",
    "UniformSampledGaussian",
    "batch_size_for",
    "berry_esseen_trade_off",
    "delta_from_mu",
    "edgeworth_trade_off",
    "epsilon_from_mu",
    "log_delta_from_mu",
    "loss_moments",
    "make_accountant",
    "max_steps",
    "mu_clt",
    "mu_from_epsilon_delta",
    "mu_uniform",
    "noise_multiplier_for",
    "noise_multiplier_for_mu",
    "sampling_probability_for",
    "sampling_probability_for_mu",
    "steps_for",
    "steps_for_mu",
    "trade_noise",
]
