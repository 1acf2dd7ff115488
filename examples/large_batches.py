"""Larger batches with the noise and the learning rate that fit one budget.

After the figure on noise per example and Table 1 of van der Veen, Seggers, Bloem,
Patrini (2018), "Three tools for practical differential privacy": the noise per example
as a function of the batch size, for 60,000 examples and 10 epochs; then training on
MNIST with growing batches, with the learning rate scaled along and without.

Run `python examples/large_batches.py --path mnist.npz`; without a path the data is
downloaded, `--smoke` takes a few steps on made-up images.
"""

import argparse
import json
import statistics
from pathlib import Path

import keras
import numpy as np

from keras_gdp.tuning import large_batch

EPSILON, DELTA = 2.0, 1e-5


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


def figure(path, batch_sizes):
    """Draws the noise per example for two accountants."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(layout="constrained")
    for accountant in ("exact", "moments"):
        table = large_batch(
            EPSILON,
            DELTA,
            num_examples=60_000,
            epochs=10,
            base_learning_rate=1.0,
            batch_sizes=batch_sizes,
            accountant=accountant,
        )
        print(f"{accountant} accountant\n{table}")
        table.plot(axes)
        axes.get_lines()[-1].set_label(accountant)
    axes.legend(frameon=False)
    axes.set_title(f"epsilon = {EPSILON:g}, 10 epochs of 60,000 examples")
    axes.figure.savefig(path)


def accuracy(row, data, seed):
    (x, y), (x_test, y_test) = data
    keras.utils.set_random_seed(seed)
    model = network()
    train = row.dataset(x, y)
    budget = row.budget(train)
    model.compile(
        optimizer=row.optimizer(l2_norm_clip=1.0, physical_batch_size=2048),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(train, epochs=row.epochs, callbacks=[budget], verbose=0)
    _, result = model.evaluate(x_test, y_test, verbose=0, batch_size=1000)
    return float(result), budget.spent()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--path", help="local mnist.npz")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=0.25)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("noise_per_example.png"))
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args(arguments)
    sizes, factors = [64 * 4**k for k in range(5)], (1, 2, 4, 8, 16)
    if options.smoke:
        options.epochs, options.seeds, sizes, factors = 1, 1, [64, 4096], (1, 2)
    figure(options.out, sizes)
    data = load(options.path, options.smoke)
    rows = []
    for scaling in ("linear", "none"):
        table = large_batch(
            EPSILON,
            DELTA,
            num_examples=len(data[0][0]),
            epochs=options.epochs,
            base_learning_rate=options.learning_rate,
            base_batch_size=128,
            batch_sizes=[128 * k for k in factors],
            scaling=scaling,
        )
        for row in table:
            runs = [accuracy(row, data, seed) for seed in range(options.seeds)]
            rows.append(
                {
                    "scaling": scaling,
                    "batch_size": row.batch_size,
                    "learning_rate": row.learning_rate,
                    "noise_multiplier": round(row.noise_multiplier, 4),
                    "test_accuracy": round(statistics.mean(r[0] for r in runs), 4),
                    "epsilon": round(runs[0][1], 4),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


if __name__ == "__main__":
    main()
