r"""Random Maclaurin features of the polynomial kernel (x^T y + c)^g.

For f(u) = sum_n a_n u^n, a_n >= 0, [1] draws an order n with probability P_n and n
vectors w of independent signs: sqrt(a_n / P_n) prod_j w_j^T x is an unbiased feature of
f(x^T y), since E[w^T x w^T y] = x^T y. Here

    (x^T y + c)^g = ([x, sqrt(c)]^T [y, sqrt(c)])^g,

a series whose one term, n = g, is drawn with probability 1: the order adds no variance,
and phi(x) = prod_{j=1..g} w_j^T [x, sqrt(c)].

References
----------
[1] P. Kar and H. Karnick, "Random Feature Maps for Dot Product Kernels", AISTATS 2012,
Algorithm 1.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Philox

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.random_features import CHUNK
from vfl_flower.typing import Array


class MaclaurinFeatures:
    """Random features phi_1, phi_2, ... of the kernel (x^T y + c)^g.

    x and y have d columns, g is at least 1, and c, the `offset`, at least 0, in the
    unit of x^T y. Whoever knows the seed, from 0 to 2^128 - 1, knows all signs.

    Features 64 c to 64 c + 63 come from the Philox generator with the seed as its key
    and c in the second word of its counter, bit j of each word for feature 64 c + j. So
    ranges can be made in any order, each at the cost of its features alone (rounded up
    to 64).
    """

    def __init__(self, n_columns: int, degree: int, offset: float, seed: int) -> None:
        self.n_columns = n_columns
        self.degree = degree
        self.offset = offset
        self._seed = seed

    def signs(self, chunk: int) -> Array:
        """Return the signs w, +1 or -1, of features 64 c to 64 c + 63.

        The result is float64 of the shape (g, d + 1, 64), and c is `chunk`, from 0. The
        last of the d + 1 signs is that of the square root of the offset.
        """
        shape = self.degree, self.n_columns + 1
        words = Philox(key=self._seed, counter=chunk << 64).random_raw(math.prod(shape))
        bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")
        return 1.0 - 2.0 * bits.reshape(*shape, CHUNK)

    def features(self, X: Array, start: int, stop: int) -> Array:
        """Return phi_j(x) for j = start .. stop - 1, float64, shape (n, stop - start).

        X has the shape (n, d), real numbers of any type and layout; it may be a
        read-only memory map. E[phi_j(x) phi_j(y)] = (x^T y + c)^g, without the factor
        1 / sqrt(D) of a mean over D features. Other memory: a few MB and 64 g (d + 1)
        signs. Raises ValueError if a feature is not finite.
        """
        blocks = RowBlocks(X)
        out = np.ones((len(X), stop - start))
        for chunk in range(start // CHUNK, -(-stop // CHUNK)):
            low, high = max(start, chunk * CHUNK), min(stop, (chunk + 1) * CHUNK)
            W = self.signs(chunk)[:, :, low - chunk * CHUNK : high - chunk * CHUNK]
            begin = 0
            for rows in blocks:
                part = out[begin : begin + len(rows), low - start : high - start]
                for w in W:
                    part *= rows @ w[:-1] + math.sqrt(self.offset) * w[-1]
                begin += len(rows)
        if not np.isfinite(out).all():
            raise ValueError("X must be finite, and so must its features")
        return out
