"""Adaptive clipping against fixed clip norms, from starts that are far off.

After Figure 4 of van der Veen, Seggers, Bloem, Patrini (2018), "Three tools for
practical differential privacy". On MNIST, a network of three dense layers is trained
with fixed clip norms on a grid, then by the adaptive strategies with the bound of the
first step 100 times too large, and 100 times too small, then with fixed clip norms as
far off. All runs cost the same: their noise is chosen so that one step of each counts
as one Gaussian release of `--noise-multiplier`.

Run `python examples/adaptive_clipping.py --path mnist.npz`; without a path the data is
downloaded, `--smoke` takes a few steps on made-up images.
"""

import argparse
import json
import statistics
import time

import keras
import numpy as np

import keras_gdp as gdp
from keras_gdp.clipping import AdaptivePerLayer, AdaptiveQuantile, Automatic, Flat

DELTA = 1e-5
GRID = (0.1, 0.3, 1.0, 3.0, 10.0)
# Of the adaptive strategies, the same for all their starts.
ALPHA, QUANTILE = 2.0, 0.8


def load(path=None, smoke=False):
    if smoke:
        rng = np.random.default_rng(0)
        images = rng.integers(0, 255, (1200, 28, 28), dtype="uint8")
        labels = rng.integers(0, 10, 1200, dtype="uint8")
        train, test = (images[:1000], labels[:1000]), (images[1000:], labels[1000:])
    elif path:
        with np.load(path) as file:
            train = file["x_train"], file["y_train"]
            test = file["x_test"], file["y_test"]
    else:
        train, test = keras.datasets.mnist.load_data()
    return [(x.astype("float32") / 255, y) for x, y in (train, test)]


def network():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28)),
            layers.Flatten(),
            layers.Dense(128, activation="tanh"),
            layers.Dense(64, activation="tanh"),
            layers.Dense(10),
        ]
    )


def strategies(best):
    """Returns what is compared, given the best fixed clip norm."""
    compared = {"automatic": Automatic(0.01)}
    for factor in (100.0, 0.01):
        start = best * factor
        compared[f"fixed, {factor:g} x best"] = Flat(start)
        compared[f"adaptive per layer from {factor:g} x best"] = AdaptivePerLayer(
            ALPHA, initial_l2_norm_clip=start
        )
        compared[f"adaptive quantile from {factor:g} x best"] = AdaptiveQuantile(
            QUANTILE, 0.5, initial_l2_norm_clip=start
        )
    compared["adaptive per layer from random inputs"] = AdaptivePerLayer(ALPHA)
    return compared


def accuracy(strategy, data, options, seed):
    (x, y), (x_test, y_test) = data
    keras.utils.set_random_seed(seed)
    model = network()
    noise = strategy.noise_multiplier_for(options.noise_multiplier)
    model.compile(
        optimizer=gdp.DPSGD(
            options.learning_rate, l2_norm_clip=strategy, noise_multiplier=noise
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    train = gdp.PoissonDataset(x, y, batch_size=options.batch_size)
    budget = gdp.PrivacyBudget(delta=DELTA, dataset=train)
    model.fit(train, epochs=options.epochs, callbacks=[budget], verbose=0)
    final = float(np.asarray(model.optimizer.strategy.sensitivity))
    _, result = model.evaluate(x_test, y_test, verbose=0, batch_size=1000)
    return float(result), budget.spent(), final


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--path", help="local mnist.npz")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument("--noise-multiplier", type=float, default=1.1)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", help="names that contain this text")
    parser.add_argument("--best", type=float, help="skip the grid")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.epochs, options.batch_size, options.seeds = 1, 250, 1
        options.best, options.only = 1.0, "from 0.01"
    data = load(options.path, options.smoke)
    rows = []

    def run(name, strategy):
        started = time.perf_counter()
        runs = [
            accuracy(strategy, data, options, seed) for seed in range(options.seeds)
        ]
        row = {
            "strategy": name,
            "test_accuracy": round(statistics.mean(r[0] for r in runs), 4),
            "runs": [round(r[0], 4) for r in runs],
            "epsilon": round(runs[0][1], 4),
            "final_sensitivity": round(runs[-1][2], 4),
            "seconds": round(time.perf_counter() - started, 1),
        }
        print(json.dumps(row), flush=True)
        rows.append(row)
        return row["test_accuracy"]

    best = options.best
    if best is None:
        best = max(GRID, key=lambda clip: run(f"fixed {clip:g}", Flat(clip)))
    for name, strategy in strategies(best).items():
        if options.only is None or options.only in name:
            run(name, strategy)
    return rows


if __name__ == "__main__":
    main()
