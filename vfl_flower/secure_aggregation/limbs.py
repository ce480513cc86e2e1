"""Exact sums of numbers of any size, without a bound that would lose small numbers.

A fixed-point sum has the same resolution for all its entries, but sums of columns can
differ by any factor. So a number is split into limbs at fixed places, like digits, and
each limb is a small integer that is added exactly.
"""

from __future__ import annotations

import numpy as np

from vfl_flower.typing import Array

LIMB = 2.0**40
"""Bound on a limb's absolute value, the same at all places."""

PLACES = tuple(2.0**power for power in (80, 40, 0, -40, -80))
"""Weights of the limbs, which represent numbers up to 2^120 to within 2^-80."""


def split_limbs(values: Array) -> Array:
    """Split numbers into limbs: float64 integers of absolute value < 2^40, (5, ...).

    The sum of the limbs, weighted by `PLACES`, is the number truncated at 2^-80. Raises
    ValueError if a number is not finite, or not below 2^120 in absolute value.
    """
    if not (np.abs(values) < PLACES[0] * LIMB).all():
        raise ValueError("absolute values must be finite and below 2^120")
    remainder, limbs = np.asarray(values, dtype=np.float64), []
    for place in PLACES:
        limbs.append(np.trunc(remainder / place))
        remainder = remainder - limbs[-1] * place  # exact: this only removes bits
    return np.stack(limbs)


def join_limbs(sums: Array) -> Array:
    """Return the sums of numbers from the sums of their limbs, (5, ...)."""
    places = zip(np.rint(sums)[::-1], PLACES[::-1], strict=True)
    return np.asarray(sum(limb * place for limb, place in places))
