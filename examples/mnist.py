"""MNIST with the convolutional network and the first row of Bu et al. (2020).

NoisySGD with noise multiplier 1.3, clip norm 1.0, learning rate 0.15, expected batch
size 256, 15 epochs. The paper reports mu 0.23, epsilon 0.83 by the central limit
theorem, 1.19 by the moments accountant (delta 1e-5), and 95.0 % test accuracy.

Run `python examples/mnist.py`; `--path mnist.npz` reads a local copy instead of
downloading, `--smoke` takes a few steps on made-up images.
"""

import argparse
import json

import keras
import numpy as np

import keras_gdp as gdp

DELTA = 1e-5


def load(path=None, smoke=False):
    if smoke:
        rng = np.random.default_rng(0)
        images = rng.integers(0, 255, (2000, 28, 28), dtype="uint8")
        labels = rng.integers(0, 10, 2000, dtype="uint8")
        train, test = (images[:1500], labels[:1500]), (images[1500:], labels[1500:])
    elif path:
        with np.load(path) as file:
            train = file["x_train"], file["y_train"]
            test = file["x_test"], file["y_test"]
    else:
        train, test = keras.datasets.mnist.load_data()
    # Centred without looking at the data: clipped gradients learn faster so.
    return [(x[..., None].astype("float32") / 127.5 - 1, y) for x, y in (train, test)]


def network(activation):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 8, strides=2, padding="same", activation=activation),
            layers.MaxPooling2D(2, strides=1),
            layers.Conv2D(32, 4, strides=2, activation=activation),
            layers.MaxPooling2D(2, strides=1),
            layers.Flatten(),
            layers.Dense(32, activation=activation),
            layers.Dense(10),
        ]
    )


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", help="local mnist.npz")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seed", type=int, default=None, help="of weights only")
    parser.add_argument("--clipping", default="auto")
    parser.add_argument("--activation", default="relu", help="or tanh")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.epochs = 1
    if options.seed is not None:
        keras.utils.set_random_seed(options.seed)

    (x_train, y_train), (x_test, y_test) = load(options.path, options.smoke)
    model = network(options.activation)
    model.compile(
        optimizer=gdp.DPSGD(
            learning_rate=0.15,
            l2_norm_clip=1.0,
            noise_multiplier=1.3,
            clipping=options.clipping,
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    print(gdp.explain_clipping(model, batch=(x_train[:1], y_train[:1])))
    train = gdp.PoissonDataset(x_train, y_train, batch_size=256)
    budget = gdp.PrivacyBudget(delta=DELTA, dataset=train)
    model.fit(
        train,
        epochs=options.epochs,
        validation_data=(x_test, y_test),
        validation_freq=max(1, options.epochs // 5),
        callbacks=[budget],
        verbose=2,
    )
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    statement = budget.statement()
    print(statement)
    result = {
        "test_accuracy": round(float(accuracy), 4),
        "steps": statement.steps,
        "mu": round(statement.mu, 4),
        "delta": DELTA,
        **{f"epsilon_{k}": round(v, 4) for k, v in statement.epsilons.items()},
    }
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main()
