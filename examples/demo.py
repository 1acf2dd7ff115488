"""The main job: private training on real digits, from data to a served model.

`make demo` runs this on scikit-learn's handwritten digits, which need no download.
It trains until the privacy budget is spent, prints test accuracy and the privacy
statement, draws the trade-off function and the budget, and exports a SavedModel.
"""

import argparse
import pathlib

import keras
import matplotlib
import numpy as np
import tensorflow as tf

import keras_gdp as gdp
from keras_gdp import accounting, tradeoff

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def digits():
    """1,797 real 8 x 8 images of handwritten digits, 1,500 of them to train on."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    x = data.images[order, :, :, None].astype("float32") / 16
    y = data.target[order]
    return (x[:1500], y[:1500]), (x[1500:], y[1500:])


def mnist(path=None):
    if path:
        with np.load(path) as file:
            train, test = (
                (file[f"x_{part}"], file[f"y_{part}"]) for part in ("train", "test")
            )
    else:
        train, test = keras.datasets.mnist.load_data()
    return [(x[..., None].astype("float32") / 255, y) for x, y in (train, test)]


def network(shape):
    return keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Conv2D(16, 3, strides=2, padding="same", activation="tanh"),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="tanh"),
            keras.layers.Dense(10),
        ]
    )


SETTINGS = {
    "digits": {"epsilon": 4.0, "delta": 1e-4, "batch_size": 250, "epochs": 60},
    "mnist": {"epsilon": 2.0, "delta": 1e-5, "batch_size": 512, "epochs": 8},
}


def plot_trade_off(budget, path):
    spent = budget.composed().trade_off()
    mu = accounting.mu_from_epsilon_delta(budget.epsilon, budget.delta)
    _, axes = plt.subplots(figsize=(5, 5))
    alpha = np.linspace(0, 1, 501)
    curves = {
        "this training (exact)": spent,
        f"mu = {mu:.2f} Gaussian DP": tradeoff.gaussian(mu),
        "perfect privacy": tradeoff.identity(),
    }
    for (label, curve), style in zip(curves.items(), ("-", "--", ":"), strict=True):
        axes.plot(alpha, curve(alpha), style, label=label)
    axes.set_xlabel("type I error of an attacker's test")
    axes.set_ylabel("least type II error")
    axes.set_title("How well can one example's presence be tested?")
    axes.legend()
    plt.savefig(path, dpi=120, bbox_inches="tight")
    plt.close()


def plot_budget(history, budget, path):
    _, axes = plt.subplots(figsize=(6, 4))
    epochs = np.arange(1, len(history["epsilon"]) + 1)
    names = {
        "epsilon_exact": "exact",
        "epsilon_rdp": "Renyi DP",
        "epsilon_clt": "central limit theorem (estimate)",
    }
    for (key, label), style in zip(names.items(), ("-", "--", ":"), strict=True):
        axes.plot(epochs, history[key], style, label=label)
    axes.axhline(budget.epsilon, color="black", linewidth=0.8)
    axes.annotate("budget", (1, budget.epsilon), va="bottom")
    axes.set_xlabel("epoch")
    axes.set_ylabel(f"epsilon at delta = {budget.delta:g}")
    axes.set_ylim(bottom=0)
    axes.legend()
    plt.savefig(path, dpi=120, bbox_inches="tight")
    plt.close()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=list(SETTINGS), default="digits")
    parser.add_argument("--path", help="local mnist.npz, with --data mnist")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out"))
    parser.add_argument("--smoke", action="store_true", help="a few steps only")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)

    loaded = digits() if options.data == "digits" else mnist(options.path)
    (x_train, y_train), (x_test, y_test) = loaded
    settings = dict(SETTINGS[options.data])
    if options.smoke:
        settings["epochs"] = 2
    train = gdp.PoissonDataset(x_train, y_train, batch_size=settings["batch_size"])
    # Noise for a little less training than is asked for: the budget stops it.
    noise_multiplier = accounting.noise_multiplier_for(
        settings["epsilon"],
        settings["delta"],
        sampling_probability=train.sampling_probability,
        steps=max(1, int(0.95 * settings["epochs"] * train.steps_per_epoch)),
    )
    print(f"Noise multiplier for this budget: {noise_multiplier:.4f}")

    model = network(x_train.shape[1:])
    model.compile(
        optimizer=gdp.DPAdam(
            learning_rate=0.01, l2_norm_clip=1.0, noise_multiplier=noise_multiplier
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    budget = gdp.PrivacyBudget(
        settings["epsilon"],
        settings["delta"],
        dataset=train,
        ledger=options.out / f"ledger-{options.data}.json",
        verbose=1,
    )
    pathlib.Path(budget.ledger).unlink(missing_ok=True)  # This is a new model.
    history = model.fit(train, epochs=settings["epochs"], callbacks=[budget]).history

    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"\nTest accuracy: {accuracy:.4f}\n\n{budget.statement()}\n")
    plot_trade_off(budget, options.out / "tradeoff.png")
    plot_budget(history, budget, options.out / "budget.png")

    served = options.out / "served"
    model.export(served, verbose=False)
    expected = model.predict(x_test[:8], verbose=0)
    reloaded = tf.saved_model.load(served)
    answers = reloaded.serve(x_test[:8]).numpy()
    if not np.allclose(answers, expected, atol=1e-4):
        raise SystemExit("The exported model answers differently.")
    print(
        f"Exported to {served}, reloaded, and checked. Pictures are in {options.out}."
    )
    return accuracy


if __name__ == "__main__":
    main()
