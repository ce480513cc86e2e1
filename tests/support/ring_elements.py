"""Elements of the integers modulo 2^bits, and products of them without error."""

import numpy as np

from vfl_flower.secure_aggregation.products.shares import subtract


def uniform_elements(rng, shape, bits):
    return rng.integers(2**64, size=shape, dtype="<u8") >> np.uint64(64 - bits)


def shared(rng, values, bits):
    """Return two shares of elements."""
    first = uniform_elements(rng, values.shape, bits)
    return first, subtract(values, first, bits)


def exact_product(left, right, bits):
    """Return the product by Python's integers."""
    return (left.astype(object) @ right.astype(object) % 2**bits).astype("<u8")
