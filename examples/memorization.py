"""Choosing the budget: can the model memorise random labels?

After Figure 1 of van der Veen, Seggers, Bloem, Patrini (2018), "Three tools for
practical differential privacy". A network is trained on images with random labels, and
on noise images with random labels, without privacy and at several budgets. Without
privacy it memorises them; a budget under which it does is too large. The smallest and
the largest budget are then audited, by guessing which canaries were trained on.

Run `python examples/memorization.py --path cifar10_test.npz` with a file that holds
images as `x`, `x_test` or `x_train`; without a path CIFAR-10 is downloaded, `--smoke`
takes a few steps on made-up images.
"""

import argparse
import math
from pathlib import Path

import keras
import numpy as np

import keras_gdp as gdp

NAMES = ("x", "x_train", "x_test", "images")


def load(path, examples, smoke):
    if smoke:
        x = np.random.default_rng(0).integers(0, 255, (examples, 8, 8, 3))
    elif path:
        with np.load(path) as file:
            x = file[next(name for name in NAMES if name in file)]
    else:
        x = keras.datasets.cifar10.load_data()[0][0]
    x = x[:examples].astype("float32") / 255
    return (x - x.mean()) / x.std()


def network(shape):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Flatten(),
            layers.Dense(512, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )


def optimizer_fn(noise_multiplier):
    if noise_multiplier == 0:
        return keras.optimizers.Adam(1e-3)
    return gdp.DPAdam(1e-3, l2_norm_clip=1.0, noise_multiplier=noise_multiplier)


def audit(x, noise_multiplier, steps_per_epoch, options):
    """Lower bound on epsilon from canaries: images with random labels."""
    labels = np.random.default_rng(1).integers(0, 10, len(x))
    half = len(x) // 2

    def train(canary_x, canary_y):
        keras.utils.set_random_seed(0)
        both = (
            np.concatenate([x[half:], canary_x]),
            np.concatenate([labels[half:], canary_y]),
        )
        train = gdp.PoissonDataset(
            *both, batch_size=options.batch_size, steps_per_epoch=steps_per_epoch
        )
        model = network(x.shape[1:])
        model.compile(optimizer_fn(noise_multiplier), "sparse_categorical_crossentropy")
        model.fit(train, epochs=options.epochs, verbose=0)
        return model

    canaries = x[:half], labels[:half]
    return gdp.audit.one_run_audit(train, canaries, delta=options.delta, seed=2)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--path", help="local .npz file with images")
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument(
        "--budgets", type=float, nargs="+", default=[1, 4, 20, 100, math.inf]
    )
    parser.add_argument("--results", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path("memorization.png"))
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.examples, options.epochs, options.batch_size = 200, 2, 50
        options.budgets = [2.0, math.inf]
    x = load(options.path, options.examples, options.smoke)
    result = gdp.audit.label_memorization(
        lambda: network(x.shape[1:]),
        optimizer_fn,
        x,
        10,
        options.budgets,
        delta=options.delta,
        epochs=options.epochs,
        batch_size=options.batch_size,
        path=options.results,
    )
    print(f"\n{result}")

    import matplotlib

    matplotlib.use("Agg")
    result.plot().figure.savefig(options.out)
    audits = {}
    # About three quarters of the images are in the training set of an audit.
    steps_per_epoch = max(1, round(0.75 * len(x) / options.batch_size))
    for run in (result.runs[0], result.runs[-1]):
        noise = run.noise_multiplier
        audits[run.epsilon] = audit(x, noise, steps_per_epoch, options)
        print(f"noise multiplier {noise:.4g}: {audits[run.epsilon]}")
    return result, audits


if __name__ == "__main__":
    main()
