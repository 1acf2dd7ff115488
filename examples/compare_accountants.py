"""The f-DP guarantee of NoisySGD beside its central limit and the moments accountant.

Regenerates the comparison of Bu, Dong, Long and Su ("Deep Learning with Gaussian
Differential Privacy", HDSR 2020) for their MNIST settings: batches of 256 out of 60,000
by Poisson sampling. For every setting it draws three trade-off functions,

- exact: min{f, f^-1}** with f = (p G_{1/sigma} + (1 - p) Id)^{tensor steps},
- CLT: its Gaussian limit, an approximation,
- MA: all that the moments accountant's (epsilon, delta) pairs say,

and prints what they mean at delta = 1e-5. The CLT lies above the moments accountant's
curve everywhere; the exact curve shows how far the CLT can be trusted.
"""

import argparse
from pathlib import Path

import numpy as np

from keras_gdp import tradeoff

# noise multiplier and epochs of the paper's MNIST experiments.
SETTINGS = [(1.3, 15), (1.1, 60), (0.7, 45), (0.6, 62), (0.55, 68), (0.5, 100)]
BATCH_SIZE, NUM_EXAMPLES, DELTA = 256, 60_000, 1e-5


def guarantees(noise_multiplier: float, epochs: int) -> dict[str, tradeoff.TradeOff]:
    p = BATCH_SIZE / NUM_EXAMPLES
    steps = round(epochs / p)
    step = tradeoff.gaussian(1 / noise_multiplier).subsample(p)
    exact = tradeoff.noisy_sgd(noise_multiplier, p, steps)
    return {
        "exact": exact,
        "CLT (approximation)": tradeoff.gaussian_limit(step, steps),
        "moments accountant": tradeoff.moments_accountant(exact),
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("compare_accountants"))
    parser.add_argument("--smoke", action="store_true", help="two settings only")
    options = parser.parse_args(arguments)
    settings = SETTINGS[:2] if options.smoke else SETTINGS

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(3, len(settings))
    rows = -(-len(settings) // columns)
    size = (4.2 * columns, 4.2 * rows)
    figure, axes = plt.subplots(
        rows, columns, figsize=size, squeeze=False, layout="constrained"
    )
    profiles, profile_axes = plt.subplots(
        rows, columns, figsize=size, squeeze=False, layout="constrained"
    )
    alpha = np.linspace(0.0, 1.0, 501)
    print(f"{'sigma':>6}{'epochs':>8}{'mu CLT':>8}{'exact':>9}{'CLT':>9}{'MA':>9}")
    cells = zip(settings, axes.flat, profile_axes.flat, strict=False)
    for (sigma, epochs), ax, profile_ax in cells:
        curves = guarantees(sigma, epochs)
        exact, clt, moments = curves.values()
        if not (clt(alpha) >= moments(alpha)).all():
            raise RuntimeError("The CLT's curve falls below the moments accountant's.")
        tradeoff.plot_tradeoffs(curves, ax=ax)
        tradeoff.plot_profiles(curves, ax=profile_ax)
        for title in (ax, profile_ax):
            title.set_title(f"noise multiplier {sigma}, {epochs} epochs")
        epsilons = [float(f.epsilon(DELTA)) for f in (exact, clt, moments)]
        print(
            f"{sigma:>6}{epochs:>8}{clt.mu:>8.3f}"
            + "".join(f"{epsilon:>9.3f}" for epsilon in epsilons)
        )
    options.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out / "tradeoff.png", dpi=120)
    profiles.savefig(options.out / "profiles.png", dpi=120)
    print(f"epsilon at delta = {DELTA}; figures in {options.out}")


if __name__ == "__main__":
    main()
