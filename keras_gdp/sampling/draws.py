"""Random index sets: Poisson and fixed-size without replacement."""

import numpy as np
from numpy.typing import NDArray
from scipy import special

__all__ = ["poisson_capacity", "poisson_draw", "uniform_draw"]


def poisson_draw(
    rng: np.random.Generator, num_examples: int, sampling_probability: float
) -> NDArray[np.int64]:
    """Includes each of `num_examples` indices independently.

    A binomial count followed by a uniform subset of that size has exactly the law of
    independent inclusion, at a cost of the order of the batch.

    Returns:
        Distinct indices, sorted, of shape (k,), k binomial.
    """
    size = rng.binomial(num_examples, sampling_probability)
    return uniform_draw(rng, num_examples, size)


def uniform_draw(
    rng: np.random.Generator, num_examples: int, batch_size: int
) -> NDArray[np.int64]:
    """Draws `batch_size` distinct indices, every subset equally likely; sorted."""
    indices = rng.choice(num_examples, size=batch_size, replace=False, shuffle=False)
    return np.sort(indices).astype(np.int64)


def poisson_capacity(
    num_examples: int, sampling_probability: float, overflow: float = 1e-5
) -> int:
    """Returns the smallest size that a draw exceeds with probability <= `overflow`.

    >>> poisson_capacity(60000, 256 / 60000)
    327
    """

    def exceeds(size: int) -> float:
        # P(Binomial(n, p) > size) is a regularised incomplete beta function.
        return float(
            special.betainc(size + 1, num_examples - size, sampling_probability)
        )

    low, high = 0, num_examples
    while low < high:
        middle = (low + high) // 2
        if middle == num_examples or exceeds(middle) <= overflow:
            high = middle
        else:
            low = middle + 1
    return max(low, 1)
