"""Time and memory of the clipping engines against the plain Keras step.

    python benchmarks/clipping.py                  # every model, about ten minutes
    python benchmarks/clipping.py --models mlp lstm --xla --json results.json
    python benchmarks/clipping.py --models long_embedding large_images --batch 32 \\
        --engines bookkeeping              # whether they fit into memory

Every engine and the plain step of the same model run in the same process, in turns,
so that other load on the machine meets all of them. Reported are medians, their ratio
to the plain step, and the peak memory of the process, measured in one of its own.
"""

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import keras_gdp as gdp

L = keras.layers
ENGINES = ("plain", "bookkeeping", "reweight", "vectorized", "loop")
SLOW = ("vectorized", "loop")


def mlp():
    model = keras.Sequential(
        [
            keras.Input((784,)),
            L.Dense(256, activation="relu"),
            L.Dense(256, activation="relu"),
            L.Dense(10),
        ]
    )
    return model, lambda r, n: r.normal(size=(n, 784)).astype("float32")


def cnn():
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            L.Conv2D(16, 8, strides=2, padding="same", activation="tanh"),
            L.MaxPooling2D(2, 1),
            L.Conv2D(32, 4, strides=2, activation="tanh"),
            L.MaxPooling2D(2, 1),
            L.Flatten(),
            L.Dense(32, activation="tanh"),
            L.Dense(10),
        ]
    )
    return model, lambda r, n: r.normal(size=(n, 28, 28, 1)).astype("float32")


def embedding():
    model = keras.Sequential(
        [
            keras.Input((256,), dtype="int32"),
            L.Embedding(10_000, 16),
            L.GlobalAveragePooling1D(),
            L.Dense(10),
        ]
    )
    return model, lambda r, n: r.integers(0, 10_000, (n, 256)).astype("int32")


def lstm():
    model = keras.Sequential([keras.Input((64, 32)), L.LSTM(64), L.Dense(10)])
    return model, lambda r, n: r.normal(size=(n, 64, 32)).astype("float32")


def transformer():
    inputs = keras.Input((64,), dtype="int32")
    x = L.Embedding(5_000, 64)(inputs)
    for _ in range(2):
        x = L.LayerNormalization()(x + L.MultiHeadAttention(4, 16)(x, x))
        hidden = L.Dense(64)(L.Dense(128, activation="relu")(x))
        x = L.LayerNormalization()(x + hidden)
    model = keras.Model(inputs, L.Dense(10)(L.GlobalAveragePooling1D()(x)))
    return model, lambda r, n: r.integers(0, 5_000, (n, 64)).astype("int32")


def resnet():
    inputs = keras.Input((32, 32, 3))
    x = L.Conv2D(16, 3, padding="same")(inputs)
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        y = L.Activation("relu")(L.GroupNormalization(8)(x))
        shortcut = L.Conv2D(filters, 1, strides=strides)(y)
        y = L.Conv2D(filters, 3, strides=strides, padding="same")(y)
        y = L.Activation("relu")(L.GroupNormalization(8)(y))
        x = shortcut + L.Conv2D(filters, 3, padding="same")(y)
    model = keras.Model(inputs, L.Dense(10)(L.GlobalAveragePooling2D()(x)))
    return model, lambda r, n: r.normal(size=(n, 32, 32, 3)).astype("float32")


def long_embedding():
    model = keras.Sequential(
        [
            keras.Input((4096,), dtype="int32"),
            L.Embedding(50_000, 64),
            L.GlobalAveragePooling1D(),
            L.Dense(10),
        ]
    )
    return model, lambda r, n: r.integers(0, 50_000, (n, 4096)).astype("int32")


def large_images():
    model = keras.Sequential(
        [
            keras.Input((224, 224, 3)),
            L.Conv2D(32, 3, activation="relu"),
            L.MaxPooling2D(),
            L.Conv2D(64, 3, activation="relu"),
            L.GlobalAveragePooling2D(),
            L.Dense(10),
        ]
    )
    return model, lambda r, n: r.normal(size=(n, 224, 224, 3)).astype("float32")


SMALL = {f.__name__: f for f in (mlp, cnn, embedding, lstm, transformer, resnet)}
MODELS = SMALL | {f.__name__: f for f in (long_embedding, large_images)}


class Clock(keras.callbacks.Callback):
    """Times from the end of each step of an epoch to that of the next."""

    def on_epoch_begin(self, epoch, logs=None):
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(time.perf_counter())

    @property
    def times(self):
        return [after - before for before, after in itertools.pairwise(self.ends)]


def stepper(name, engine, batch, xla, in_fit=False):
    """Returns a function that trains and returns the times of its steps, once warm.

    It takes one step by `train_on_batch`, or a short epoch by `fit`.
    """
    keras.utils.set_random_seed(0)
    model, data = MODELS[name]()
    generator = np.random.default_rng(0)
    rows = batch * ((4 if engine in SLOW else 20) if in_fit else 1)
    x, y = data(generator, rows), generator.integers(0, 10, rows)
    optimizer = (
        keras.optimizers.SGD(0.01)
        if engine == "plain"
        else gdp.DPSGD(
            0.01,
            l2_norm_clip=1.0,
            noise_multiplier=1.0,
            batch_size=batch,
            clipping=engine,
        )
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, jit_compile=xla)
    clock = Clock()

    def epoch():
        model.fit(x, y, batch_size=batch, verbose=0, callbacks=[clock])
        return clock.times

    def step():
        started = time.perf_counter()
        model.train_on_batch(x, y)
        return [time.perf_counter() - started]

    run = epoch if in_fit else step
    started = time.perf_counter()
    run()
    tracing = time.perf_counter() - started
    run()
    return run, tracing


def high_water_mark():
    """Returns the peak memory of this process in MiB."""
    try:
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    except (OSError, StopIteration):
        # Counts what the parent process had when it started this one.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def peak_memory(name, engine, batch, xla):
    """Returns the peak memory in MiB of a process that takes three steps."""
    command = [sys.executable, __file__, "--peak", name, engine, str(batch)]
    if xla:
        command.append("--xla")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def measure(name, engines, batch, xla, budget, in_fit):
    """Returns one row per engine; takes about `budget` seconds for the steps."""
    steps, rows = {}, {}
    for engine in engines:
        try:
            steps[engine], tracing = stepper(name, engine, batch, xla, in_fit)
            rows[engine] = {"first_step_s": tracing, "times": []}
        except Exception as error:  # An engine that cannot run this model.
            rows[engine] = {"error": " ".join(str(error).split())[:200]}
    rounds, end = 0, time.perf_counter() + budget
    while time.perf_counter() < end or rounds < 3:
        rounds += 1
        for engine, step in steps.items():
            # The slow ones need fewer repetitions than the fast ones need steps.
            for _ in range(1 if engine in SLOW or in_fit else 3):
                rows[engine]["times"].extend(step())
    for row in rows.values():
        times = row.pop("times", None)
        if times:
            row["median_ms"] = 1e3 * statistics.median(times)
            row["steps"] = len(times)
    for row in rows.values():
        if "median_ms" in row:
            row["ratio"] = row["median_ms"] / rows["plain"]["median_ms"]
    return rows


def table(results):
    """Returns a Markdown table of the ratios, with memory where it was measured."""
    engines = list(dict.fromkeys(e for rows in results.values() for e in rows))
    lines = [
        "| model | " + " | ".join(engines) + " |",
        "|---" * (len(engines) + 1) + "|",
    ]
    for name, rows in results.items():
        cells = []
        for engine in engines:
            row = rows.get(engine, {})
            if "median_ms" not in row:
                cells.append("-")
                continue
            text = f"{row['ratio']:.2f}x ({row['median_ms']:.1f} ms"
            if row.get("peak_mib"):
                text += f", {row['peak_mib']:.0f} MiB"
            cells.append(text + ")")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    ratios = [
        rows["bookkeeping"]["ratio"]
        for rows in results.values()
        if "ratio" in rows.get("bookkeeping", {})
    ]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        lines.append(f"\nGeometric mean of bookkeeping: {mean:.2f}x")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(SMALL), choices=MODELS)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=20, help="per model")
    parser.add_argument("--xla", action="store_true")
    parser.add_argument(
        "--fit", action="store_true", help="steps inside `fit`, not `train_on_batch`"
    )
    parser.add_argument("--gpu", action="store_true", help="require a GPU")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        name, engine, batch = arguments.peak
        step, _ = stepper(name, engine, int(batch), arguments.xla)
        step()
        print(high_water_mark())
        return
    import tensorflow as tf

    if arguments.gpu and not tf.config.list_physical_devices("GPU"):
        raise SystemExit("--gpu was given, but TensorFlow sees no GPU.")
    engines = list(dict.fromkeys(["plain", *arguments.engines]))
    results = {}
    for name in arguments.models:
        rows = measure(
            name,
            engines,
            arguments.batch,
            arguments.xla,
            arguments.seconds,
            arguments.fit,
        )
        if not arguments.no_memory:
            for engine in ("plain", "bookkeeping", "reweight"):
                if "median_ms" in rows.get(engine, {}):
                    rows[engine]["peak_mib"] = peak_memory(
                        name, engine, arguments.batch, arguments.xla
                    )
        results[name] = rows
        print(name, json.dumps(rows), file=sys.stderr, flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(
                {"arguments": vars(arguments), "results": results}, file, indent=1
            )
    print(table(results))


if __name__ == "__main__":
    main()
