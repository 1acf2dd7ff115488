"""A GAN whose discriminator sees real data privately.

Only the discriminator's step on real images touches the data, so only that step is
clipped, noised and charged, through `private_step`. Its step on generated images and
the generator's step are post-processing: they use ordinary optimizers, for free.

Run `python examples/gan.py`; `--smoke` takes a few steps.
"""

import argparse
import pathlib

import keras
import matplotlib
import numpy as np
import tensorflow as tf

import keras_gdp as gdp

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LATENT = 8


class PrivateGAN(keras.Model):
    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential(
            [
                keras.Input((LATENT,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(64, activation="sigmoid"),
            ]
        )
        self.discriminator = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(64, activation="leaky_relu"),
                keras.layers.Dense(1),
            ]
        )
        self.real_loss = keras.metrics.Mean(name="real_loss")
        self.built = True

    def compile(self, real_optimizer, fake_optimizer, generator_optimizer):
        super().compile()
        self.real_optimizer = real_optimizer
        self.fake_optimizer = fake_optimizer
        self.generator_optimizer = generator_optimizer
        real_optimizer.build(self.discriminator.trainable_variables)

    def train_step(self, data):
        images, _, weights = data
        critic = self.discriminator.trainable_variables

        def loss_on_real(image):  # One example, without a batch axis.
            logit = self.discriminator(image[None], training=True)
            return tf.nn.softplus(-logit[0, 0])

        losses = self.real_optimizer.private_step(
            loss_on_real, images, critic, sample_weight=weights
        )
        self.real_loss.update_state(losses, sample_weight=weights)

        noise = keras.random.normal((64, LATENT))
        with tf.GradientTape() as tape:
            logits = self.discriminator(self.generator(noise), training=True)
            loss = tf.reduce_mean(tf.nn.softplus(logits))
        self.fake_optimizer.apply(tape.gradient(loss, critic), critic)

        variables = self.generator.trainable_variables
        with tf.GradientTape() as tape:
            logits = self.discriminator(self.generator(noise), training=True)
            loss = tf.reduce_mean(tf.nn.softplus(-logits))
        self.generator_optimizer.apply(tape.gradient(loss, variables), variables)
        return {"real_loss": self.real_loss.result()}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out"))
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.epochs = 2
    from sklearn.datasets import load_digits

    images = (load_digits().data / 16).astype("float32")
    real = gdp.PoissonDataset(images, batch_size=100)
    model = PrivateGAN()
    private = gdp.DPAdam(1e-3, l2_norm_clip=1.0, noise_multiplier=1.0, batch_size=100)
    model.compile(private, keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3))
    budget = gdp.PrivacyBudget(10.0, 1e-4, dataset=real, optimizer=private)
    model.fit(real, epochs=options.epochs, callbacks=[budget], verbose=2)

    statement = budget.statement()
    print(statement)
    made = model.generator(np.random.default_rng(0).normal(size=(32, LATENT)))
    options.out.mkdir(parents=True, exist_ok=True)
    plt.imsave(
        options.out / "gan.png",
        np.concatenate(np.split(np.reshape(made, (32 * 8, 8)), 4), axis=1),
        cmap="gray",
    )
    return statement.steps


if __name__ == "__main__":
    main()
