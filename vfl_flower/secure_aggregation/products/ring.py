"""Exact matrix products modulo 2^k with the float64 routines of BLAS.

NumPy multiplies integer matrices without BLAS, which is tens of times slower. So each
element is split into limbs of w <= 17 bits. With few enough terms, a sum of products of
two limbs is an integer below 2^53, so float64 holds it exactly, whatever the order of
the additions. Pairs of limbs whose product is a multiple of 2^k are omitted: 6 of 9
products are computed for 48 bits in three limbs, and 10 of 16 products for 64 bits in
four limbs.
"""

from __future__ import annotations

import numpy as np

from vfl_flower.secure_aggregation.fixed_point import reduce
from vfl_flower.typing import Array

_WIDEST = 17
"""Bits of the widest limb; three limbs hold 49 bits, and four limbs hold 64."""

_TERMS = 1 << 17
"""Number of rows for which the squares of sums of two 17-bit limbs add up to less than
2^53."""


def product(left: Array, right: Array, bits: int) -> Array:
    """Return the product of two matrices modulo 2^bits, of shape (m, p).

    `left`, (m, n), and `right`, (n, p), have uint64 elements below 2^bits <= 2^64.
    """
    total = np.zeros((left.shape[0], right.shape[1]), "<u8")
    width = limb_width(bits)
    for start in range(0, left.shape[1], _TERMS):
        stop = start + _TERMS
        first = split(left[:, start:stop], bits)
        second = split(right[start:stop], bits)
        for i, limb in enumerate(first):
            for j, other in enumerate(second[: len(first) - i]):
                term = (limb @ other).astype("<u8")
                total += term << np.uint64(width * (i + j))
    return reduce(total, bits)


class SquareSum:
    """The sum of A^T A over blocks of rows of A, modulo 2^bits.

    With A = sum_i 2^(w i) L_i, the limbs i < j contribute 2^(w (i + j)) (X + X^T) for
    X = L_i^T L_j. For i = 0 and j = 1, X + X^T is (L_0 + L_1)^T (L_0 + L_1) minus the
    squares of both limbs. BLAS computes a square in half the time of a product: 48 bits
    take two and a half products instead of six, and 64 bits take four and a half
    instead of ten.

    `bits` is from 35 to 64, which means three or four limbs.
    """

    def __init__(self, columns: int, bits: int) -> None:
        self.bits = bits
        self._total = np.zeros((columns, columns), "<u8")
        self._sums: dict[str, Array] = {}
        self._rows = 0

    def add(self, block: Array) -> None:
        """Add A^T A of a block A, uint64, (n, columns), with n at most 131,072."""
        if self._rows + len(block) > _TERMS:
            self._carry()
        self._rows += len(block)
        first, second, third, *fourth = split(block, self.bits)
        for name, square in (("0", first), ("1", second), ("01", first + second)):
            self._add(name, square.T @ square)
        self._add("2", first.T @ third)
        for limb in fourth:
            self._add("3", first.T @ limb)
            self._add("3", second.T @ third)

    def total(self) -> Array:
        """Return the symmetric sum so far, uint64, of shape (columns, columns)."""
        self._carry()
        return reduce(self._total.copy(), self.bits)

    def _add(self, name: str, term: Array) -> None:
        """Add integers to one of the float64 sums."""
        if name in self._sums:
            self._sums[name] += term
        else:
            self._sums[name] = term

    def _carry(self) -> None:
        """Move the float64 sums to the total before they reach 2^53."""
        sums = {name: term.astype("<u8") for name, term in self._sums.items()}
        self._sums, self._rows = {}, 0
        if not sums:
            return
        width = limb_width(self.bits)
        self._total += sums["0"]
        self._total += (sums["01"] - sums["0"] - sums["1"]) << np.uint64(width)
        self._total += (sums["1"] + sums["2"] + sums["2"].T) << np.uint64(2 * width)
        if "3" in sums:
            self._total += (sums["3"] + sums["3"].T) << np.uint64(3 * width)


def limb_width(bits: int) -> int:
    """Return the width of the limbs of integers with `bits` bits."""
    return -(-bits // limbs(bits))


def limbs(bits: int) -> int:
    """Return the number of limbs of integers with `bits` bits."""
    return -(-bits // _WIDEST)


def split(elements: Array, bits: int) -> list[Array]:
    """Return the limbs of elements, lowest first, as float64 in the same shape."""
    width = limb_width(bits)
    low = np.uint64(2**width - 1)
    return [
        ((elements >> np.uint64(width * i)) & low).astype(np.float64)
        for i in range(limbs(bits))
    ]
