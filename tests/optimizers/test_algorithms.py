"""NoisySGD and NoisyAdam of Bu, Dong, Long, Su (2020), against a few lines of NumPy."""

import keras
import numpy as np
import tensorflow as tf

import keras_gdp as gdp
from keras_gdp.noise import NoiseStream

CLIP, SIGMA, RATE, BATCH, SEED = 0.8, 1.3, 0.15, 5, 11


def regression():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(BATCH, 3)).astype("float32")
    y = rng.normal(size=(BATCH, 1)).astype("float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.layers[0].set_weights([np.full((3, 1), 0.2), np.full(1, -0.1)])
    return model, x, y


def noisy_gradient(w, b, x, y, step):
    """Lines 3-8 of Algorithm 1 for a linear model with squared loss."""
    total_w, total_b = np.zeros((3, 1)), np.zeros(1)
    for xi, yi in zip(x.astype("float64"), y.astype("float64"), strict=True):
        residual = 2 * (xi @ w + b - yi)
        gw, gb = np.outer(xi, residual), residual
        norm = np.sqrt(np.sum(gw**2) + np.sum(gb**2))
        total_w += gw / max(1, norm / CLIP)
        total_b += gb / max(1, norm / CLIP)
    zw, zb = NoiseStream(SEED).draw([(3, 1), (1,)], [tf.float32] * 2, step)
    return (
        (total_w + SIGMA * CLIP * zw.numpy()) / BATCH,
        (total_b + SIGMA * CLIP * zb.numpy()) / BATCH,
    )


def train(optimizer_class, steps):
    model, x, y = regression()
    optimizer = optimizer_class(
        RATE, l2_norm_clip=CLIP, noise_multiplier=SIGMA, noise_seed=SEED
    )
    model.compile(optimizer, "mse")
    model.fit(x, y, batch_size=BATCH, epochs=steps, verbose=0)
    return model.get_weights(), x, y


def test_dpsgd_is_algorithm_1():
    weights, x, y = train(gdp.DPSGD, 3)
    w, b = np.full((3, 1), 0.2), np.full(1, -0.1)
    for step in range(3):
        gw, gb = noisy_gradient(w, b, x, y, step)
        w, b = w - RATE * gw, b - RATE * gb
    np.testing.assert_allclose(weights[0], w, atol=2e-6)
    np.testing.assert_allclose(weights[1], b, atol=2e-6)


def test_dpadam_is_algorithm_2():
    weights, x, y = train(gdp.DPAdam, 3)
    parameters = [np.full((3, 1), 0.2), np.full(1, -0.1)]
    m, u = [0.0, 0.0], [0.0, 0.0]
    for step in range(3):
        gradients = noisy_gradient(*parameters, x, y, step)
        for i, g in enumerate(gradients):
            m[i] = 0.9 * m[i] + 0.1 * g
            u[i] = 0.999 * u[i] + 0.001 * g**2
            m_hat = m[i] / (1 - 0.9 ** (step + 1))
            u_hat = u[i] / (1 - 0.999 ** (step + 1))
            parameters[i] = parameters[i] - RATE * m_hat / (np.sqrt(u_hat) + 1e-7)
    np.testing.assert_allclose(weights[0], parameters[0], atol=2e-5)
    np.testing.assert_allclose(weights[1], parameters[1], atol=2e-5)
