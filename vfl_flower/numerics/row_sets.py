"""The difference between two sets of rows, used to guard sums over these sets.

Whoever knows the sums of x_i v_i over one set and of x_i w_i over another set can
compute their difference at any scale c, sum_i (v_i - c w_i) x_i. The difference is
almost a single row if a few coefficients v_i - c w_i dominate. So the guard uses the
effective number of these coefficients (Kish, 1965) at the scale c that minimises the
effective number. Without weights, the effective number equals the number of rows that
are in only one of the two sets.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from vfl_flower.typing import Array

BLOCKS = 256
"""Number of blocks whose sums bound a difference; row i is in block i mod 256."""


def text_tags(texts: Iterable[object], coefficients: Array) -> Array:
    """Return tags of n strings, uint64, (n,).

    Two different strings have equal tags with probability 2^-64. A tag joins the high
    halves of m_0 + sum_i m_i s_i mod 2^64 for two vectors m. Each half is strongly
    universal (Lemire and Kaser, 2014) if the m_i are uniform and secret.
    `coefficients`, (2, length), are the two vectors m; only the beginning of a longer
    string is used.
    """
    remaining, parts = iter(texts), [np.zeros(0, "<u8")]
    most = coefficients.shape[1] - 1
    while block := [str(text) for text in itertools.islice(remaining, 2**14)]:
        letters = np.array(block).view("<u4").reshape(len(block), -1)[:, :most]
        m = coefficients[:, 1 : letters.shape[1] + 1]
        high = (letters @ m.T + coefficients[:, 0]) >> np.uint64(32)
        parts.append(high[:, 0] << np.uint64(32) | high[:, 1])
    return np.concatenate(parts)


def block_sums(mask: Array, weights: Array | None = None) -> Array:
    """Return the sum of the weights in each block, of shape (256,).

    `mask`, bool, (n,), marks the m rows of the set; `weights`, (m,), are 1 by default.
    """
    if weights is not None:
        places = np.flatnonzero(mask) % BLOCKS
        return np.bincount(places, weights=weights, minlength=BLOCKS)
    whole = len(mask) // BLOCKS * BLOCKS
    # Sums of up to 255 truth values at a time fit into a byte.
    rows = mask[:whole].view(np.uint8).reshape(-1, BLOCKS)
    sums = np.zeros(BLOCKS)
    for start in range(0, len(rows), 255):
        sums += rows[start : start + 255].sum(axis=0, dtype=np.uint8)
    sums[: len(mask) - whole] += mask[whole:]
    return sums


def most_leverage(
    v: Array, w: Array, v_squares: float, w_squares: float, rest: float
) -> float:
    """Return the largest share of a row in the squares of any combination of v and w.

    The largest d_i^2 / |d|^2 over all d = a v + b w is the leverage of row i in the
    span of v and w. The result is 1 if v and w are equal up to scale and rounding. `v`
    and `w`, (m,), are the weights of the two sets for the rows of the second set.
    `v_squares` and `w_squares` are |v|^2 and |w|^2 over all rows, and `rest` is the
    largest weight of the other rows in v.
    """
    product = float(v @ w)
    determinant = v_squares * w_squares - product**2
    if determinant <= 1e-13 * v_squares * w_squares:
        return 1.0
    adjugate = v * v * w_squares - 2 * product * v * w + w * w * v_squares
    largest = max(float(adjugate.max(initial=0.0)), rest * rest * w_squares)
    return largest / determinant


def sure_number(n: Array | float, m: Array | int, share: Array | float) -> Any:
    """Return a lower bound on 1 / :func:`most_leverage` from the sizes of two sets.

    One set has n rows without weights. The other set has m rows with weights v, and the
    square of one of these weights is `share` times |v|^2. The share of a row is then at
    most (share n + 1) / (n - m), since (sum v)^2 <= m |v|^2.
    """
    return (n - m) / (share * n + 1)
