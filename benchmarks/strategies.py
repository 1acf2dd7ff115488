"""Time of a private step with each clipping strategy against `Flat`.

    python benchmarks/strategies.py
    python benchmarks/strategies.py --models mlp lstm --engine reweight --json out.json

All strategies of a model run in one process, in turns, so that other load on the
machine meets all of them alike. Reported are medians and their ratio to `Flat`.
"""

import argparse
import json
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from clipping import MODELS

import keras_gdp as gdp
from keras_gdp.clipping import (
    AdaptivePerLayer,
    AdaptiveQuantile,
    Automatic,
    Flat,
    PerLayer,
)

STRATEGIES = {
    "flat": lambda: Flat(1.0),
    "per_layer": lambda: PerLayer(1.0),
    "adaptive_per_layer": AdaptivePerLayer,
    "adaptive_quantile": AdaptiveQuantile,
    "automatic": Automatic,
}


def stepper(name, strategy, engine, batch):
    """Returns a function that takes one training step, after having taken three."""
    keras.utils.set_random_seed(0)
    model, data = MODELS[name]()
    generator = np.random.default_rng(0)
    x, y = data(generator, batch), generator.integers(0, 10, batch)
    optimizer = gdp.DPSGD(
        0.01,
        l2_norm_clip=STRATEGIES[strategy](),
        noise_multiplier=1.0,
        batch_size=batch,
        clipping=engine,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss)
    for _ in range(3):
        model.train_on_batch(x, y)
    return lambda: model.train_on_batch(x, y)


def measure(name, engine, batch, seconds):
    """Returns the median step times by strategy."""
    steps = {s: stepper(name, s, engine, batch) for s in STRATEGIES}
    times = {s: [] for s in STRATEGIES}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["flat"]) < 9:
        for strategy, step in steps.items():
            started = time.perf_counter()
            step()
            times[strategy].append(time.perf_counter() - started)
    return {s: statistics.median(t) for s, t in times.items()}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=15.0, help="per model")
    parser.add_argument("--json", help="write all numbers to this file")
    options = parser.parse_args(arguments)
    results = {}
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    print(f"{'model':>12} {'flat':>9}  " + "  ".join(list(STRATEGIES)[1:]))
    for name in options.models:
        medians = measure(name, options.engine, options.batch, options.seconds)
        results[name] = medians
        ratios = "  ".join(
            f"{medians[s] / medians['flat']:>{len(s)}.2f}" for s in list(STRATEGIES)[1:]
        )
        print(f"{name:>12} {1e3 * medians['flat']:>6.1f} ms  {ratios}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    return results


if __name__ == "__main__":
    main()
