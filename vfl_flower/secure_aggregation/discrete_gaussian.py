r"""Gaussian noise on the integers, from a key stream and without floating point.

A discrete Gaussian has the probabilities :math:`\exp(-x^2 / (2 \sigma^2))` up to their
sum. Added to integers it protects as Gaussian noise of the same sigma does: it differs
from the rounding of a normal number, whose sum with an integer is the rounding of the
noisy integer, by a factor within ``1 +- 17 / sigma^2`` for whatever is below 20 sigma,
and sigma is `LEAST` at least. A normal number of float64 would have no such guarantee:
its low bits tell what it was added to (I. Mironov, CCS 2012).

Wide ones are made of narrow ones (D. Micciancio and M. Walter, "Gaussian Sampling over
the Integers: Efficient, Generic, Constant-Time", CRYPTO 2017): with independent Y and Z
of deviations s and t, Y + B Z has the deviation ``sqrt(s^2 + B^2 t^2)``, up to a factor
of 1 + e, where e < 2^-100 if ``s t / sqrt(s^2 + B^2 t^2)`` is 1.9 at least (their
Theorem 3.1 and the smoothing parameter of Z). Narrow ones come from a table of their
distribution with 128 bits.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np

from vfl_flower.secure_aggregation.groups import Take
from vfl_flower.typing import Array

BASE, NARROW = 32, 64.0
"""B, and the deviation of the narrow ones."""

TAIL = 13.0
"""No narrow number is larger, in deviations: such ones have a probability of 2^-121."""

LEAST = 2.0**20
"""Smallest deviation: see the factor above."""

BLOCK = 2**18
"""Numbers that are made at once."""

_BITS = 192
"""Fraction bits with which the table is computed, of which 128 are kept."""


def discrete_gaussian(take: Take, sigma: float, count: int) -> Array:
    """Return independent numbers of a discrete Gaussian, int64, shape (count,).

    `take` returns so many uniform bytes, such as from a key stream. Raises ValueError
    unless sigma, the standard deviation, is from `LEAST` to 2^57.
    """
    if not LEAST <= sigma <= 2.0**57:
        raise ValueError(f"sigma must be between 2^20 and 2^57, got {sigma:.6g}")
    levels, left = 0, Fraction(sigma) ** 2
    while left > Fraction(NARROW * BASE) ** 2:
        left = (left - Fraction(NARROW) ** 2) / BASE**2
        levels += 1
    numbers = np.empty(count, np.int64)
    for start in range(0, count, BLOCK):
        block = numbers[start : start + BLOCK]
        block[:] = _narrow(take, math.sqrt(left), len(block))
        for _ in range(levels):
            block *= BASE
            block += _narrow(take, NARROW, len(block))
    return numbers


def _narrow(take: Take, sigma: float, count: int) -> Array:
    """Return numbers of a narrow discrete Gaussian, by its distribution."""
    high, low = table(sigma)
    words = np.frombuffer(take(16 * count), "<u8").reshape(2, count)
    found = np.searchsorted(high, words[0], "right")
    while True:  # of thresholds with the same first word the second one decides
        last = np.maximum(found - 1, 0)
        above = (found > 0) & (high[last] == words[0]) & (low[last] > words[1])
        if not above.any():
            return np.asarray(found - len(high) // 2)
        found -= above


@cache
def table(sigma: float) -> tuple[Array, Array]:
    """Return the distribution function of a discrete Gaussian, in two words of 64 bits.

    Both have the shape (2 t,). Threshold k is ``P[X < k - t + 1] 2^128``: X is as large
    as the number of thresholds at or below a uniform integer, minus t.
    """
    weights = _weights(sigma)
    both = weights[:0:-1] + weights
    total, below, thresholds = sum(both), 0, []
    for weight in both[:-1]:
        below += weight
        thresholds.append((below << 128) // total)
    words = np.array([divmod(t, 1 << 64) for t in thresholds], dtype="<u8")
    return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])


def _weights(sigma: float) -> list[int]:
    """Return exp(-x^2 / (2 sigma^2)) of x = 0, 1, .., as integers times 2^192."""
    step = Fraction(1, 2) / Fraction(sigma) ** 2
    ratio, square = _exp(step), _exp(2 * step)  # of x and x + 1, and how that changes
    weights = [1 << _BITS]
    for _ in range(math.ceil(TAIL * sigma)):
        weights.append(weights[-1] * ratio >> _BITS)
        ratio = ratio * square >> _BITS
    return weights


def _exp(x: Fraction) -> int:
    """Return exp(-x) 2^192, of 0 < x < 1, from its series."""
    total, term, k = Fraction(0), Fraction(1), 0
    while term > Fraction(1, 1 << (_BITS + 8)):
        total += term if k % 2 == 0 else -term
        k += 1
        term *= x / k
    return int(total * (1 << _BITS))
