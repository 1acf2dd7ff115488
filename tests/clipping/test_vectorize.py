import numpy as np
import pytest
import tensorflow as tf

from keras_gdp.clipping.vectorize import vectorized_map

ROWS = 5


def values(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


@pytest.mark.parametrize(
    ("shape", "other", "stacked"),
    [
        ((1, 4, 6), (6, 3), False),
        ((1, 4, 6), (1, 6, 3), False),
        ((1, 1, 4, 6), (6, 3), False),
        ((2, 4, 6), (6, 3), False),
        ((1, 4, 6), (1, 6, 3), True),
        ((4, 6), (1, 6, 3), True),
        ((2, 1, 4, 6), (2, 1, 6, 3), True),
    ],
    ids=str,
)
@pytest.mark.parametrize("adjoint", [False, True])
def test_products_are_those_of_each_row(shape, other, stacked, adjoint):
    x = values(ROWS, *shape)
    y = values(*((ROWS,) if stacked else ()), *other)
    y = np.swapaxes(y, -1, -2) if adjoint else y

    @tf.function
    def product():
        if stacked:
            return vectorized_map(
                lambda row: tf.matmul(row[0], row[1], transpose_b=adjoint), (x, y)
            )
        return vectorized_map(lambda row: tf.matmul(row, y, transpose_b=adjoint), x)

    for _ in range(20):  # A product that writes beyond its buffer fails in the end.
        result = product()
    right = np.swapaxes(y, -1, -2) if adjoint else y
    rows = [x[i] @ (right[i] if stacked else right) for i in range(ROWS)]
    np.testing.assert_allclose(result, np.stack(rows), rtol=1e-5, atol=1e-5)
