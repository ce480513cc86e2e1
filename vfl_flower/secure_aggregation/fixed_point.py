"""Real numbers as integers modulo 2^k, wide enough for sums of products.

A number v becomes the integer nearest to ``2^f v``, with f fraction bits. A product of
two such integers has 2 f fraction bits, and no bits are ever cut off: truncating shares
locally fails with a probability that grows with the numbers (P. Mohassel and Y. Zhang,
"SecureML", IEEE S&P 2017). So the ring must hold the largest sum of products with all
its fraction bits, and the width of the ring follows from a bound on the numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from vfl_flower.secure_aggregation.groups import clipped_to
from vfl_flower.typing import Array

WIDTHS = (48, 56, 63)
"""Widths k of the ring. Sums of squares are computed modulo 2^(k + 1) in 64 bits."""

MOST_FRACTION_BITS = 50
"""Maximum f: float64 has 53 bits, so further bits would carry no information."""


@dataclass(frozen=True)
class FixedPoint:
    """An encoding of real numbers as integers modulo 2^k."""

    bits: int
    """Width k of the ring: 48, 56 or 63."""
    fraction: int
    """Fraction bits f, from 0 to 50."""
    bound: float
    """Largest absolute value; larger numbers are clipped and counted."""

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.bits not in WIDTHS:
            raise ValueError(f"bits must be one of {WIDTHS}, got {self.bits}")
        if not 0 <= self.fraction <= MOST_FRACTION_BITS:
            raise ValueError(
                f"fraction must be between 0 and {MOST_FRACTION_BITS}, "
                f"got {self.fraction}"
            )
        _check_bound("bound", self.bound)
        object.__setattr__(self, "bound", float(self.bound))
        if self.largest >= 2 ** (self.bits - 1):
            raise ValueError(
                f"bound must be below 2^{self.bits - 1 - self.fraction} in a ring of "
                f"{self.bits} bits with {self.fraction} fraction bits, "
                f"got {self.bound}"
            )

    @property
    def largest(self) -> Fraction:
        """Exact bound on the absolute value of an encoded number, 2^f bound + 1/2."""
        return Fraction(self.bound) * (1 << self.fraction) + Fraction(1, 2)

    def encode(self, values: Array) -> tuple[Array, int]:
        """Return elements, uint64 below 2^k, and how many numbers were clipped.

        Raises ValueError if a number is NaN or infinite.
        """
        exact, clipped = clipped_to(self.bound, values)
        exact *= 2.0**self.fraction
        signed = np.rint(exact, out=exact).astype("<i8")
        return reduce(signed.view("<u8"), self.bits), clipped


def reduce(elements: Array, bits: int) -> Array:
    """Reduce integers modulo 2^bits, uint64; an array of uint64 is changed in place."""
    if bits < 64:
        np.bitwise_and(elements, np.uint64(2**bits - 1), out=elements)
    return elements


def decode(elements: Array, bits: int, fraction: int) -> Array:
    """Return the real numbers that elements modulo 2^bits encode, as float64.

    `bits` is at most 64; higher bits are ignored. `fraction` is the number of fraction
    bits; for a product it is the sum of the fraction bits of both factors.
    """
    unused = 64 - bits
    signed = (np.asarray(elements, "<u8") << np.uint64(unused)).view("<i8")
    return np.ldexp((signed >> unused).astype(np.float64), -fraction)


def gram_fixed_point(
    rows: int, bound: float, fraction: int, *, square_sum: float | None = None
) -> FixedPoint:
    """Return the narrowest ring that holds a Gram matrix of encoded columns.

    An entry of F^T F is the scalar product of two columns, so it is no larger than the
    largest sum of squares of a column (Cauchy and Schwarz). Rounding moves a column by
    at most sqrt(rows) / 2 units. So the ring must satisfy

    .. code-block:: text

        (2^f sqrt(square_sum) + sqrt(rows) / 2)^2 < 2^(k - 1),

    which is ``k > 2 f + log2(square_sum) + 1`` apart from the rounding. For cosines
    (bound 1.006) and f = 16, a ring of 48 bits is wide enough for 32,000 rows.

    `bound` is the maximum absolute value in F, which has f fraction bits. `square_sum`,
    the largest sum of squares of a column, is ``rows * bound^2`` by default. Raises
    ValueError if no ring is wide enough, or if an argument is out of range.
    """
    for bits in WIDTHS:
        if fraction <= _most_fraction(rows, bound, bits, square_sum):
            return FixedPoint(bits, fraction, bound)
    most = _most_fraction(rows, bound, WIDTHS[-1], square_sum)
    raise ValueError(
        f"fraction must be at most {most} for a Gram matrix over {rows} rows with "
        f"numbers up to {bound:.6g} in the widest ring ({WIDTHS[-1]} bits), got "
        f"{fraction}"
    )


def finest_gram_fixed_point(
    rows: int, bound: float, bits: int = WIDTHS[-1], *, square_sum: float | None = None
) -> FixedPoint:
    """Return the finest encoding that :func:`gram_fixed_point` allows in a ring.

    Raises ValueError if not even integers fit, or if an argument is out of range.
    """
    fraction = _most_fraction(rows, bound, bits, square_sum)
    if fraction < 0:
        raise ValueError(
            f"{rows} rows are too many for a {bits}-bit ring and numbers up to "
            f"{bound:.6g}"
        )
    return FixedPoint(bits, fraction, bound)


def weights_fixed_point(features: FixedPoint, columns: int) -> FixedPoint:
    """Return the finest encoding of weights w for products F w in the ring of F.

    The encoding satisfies

    .. code-block:: text

        (2^f B + 1/2) (2^g |w|_1 + columns / 2) < 2^(k - 1)

    where B is a bound on F, F has f fraction bits, w has g fraction bits, and
    |w|_1 <= 1 for each output. Raises ValueError if not even integers fit.
    """
    most = 2 ** (features.bits - 1) / features.largest - Fraction(columns, 2)
    fraction = MOST_FRACTION_BITS
    while fraction >= 0 and 2**fraction >= most:
        fraction -= 1
    if fraction < 0:
        raise ValueError(
            f"{columns} columns are too many for a {features.bits}-bit ring and "
            f"features with {features.fraction} fraction bits"
        )
    return FixedPoint(features.bits, fraction, 1.0)


def _most_fraction(rows: int, bound: float, bits: int, square_sum: float | None) -> int:
    """Return the maximum number of fraction bits of F; negative if no integers fit."""
    _check_bound("bound", bound)
    if square_sum is None:
        square_sum = rows * bound**2
    _check_bound("square_sum", square_sum)
    # In units of 2^-f: the length of a column is below sqrt(limit).
    length = math.sqrt(2.0 ** (bits - 1)) * (1 - 2.0**-40) - math.sqrt(rows) / 2
    if length <= 0:
        return -1
    fraction = math.floor(math.log2(length / math.sqrt(square_sum)))
    return min(MOST_FRACTION_BITS, fraction)


def _check_bound(argument: str, bound: float) -> None:
    if not 1e-100 <= bound <= 1e100:
        raise ValueError(f"{argument} must be between 1e-100 and 1e100, got {bound}")
