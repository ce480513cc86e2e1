"""How far two sets of rows are apart, as a guard of sums over them needs to know.

Whoever has the sums of x_i w_i over two sets also has their difference at any scale c,
sum_i (v_i - c w_i) x_i. It is close to a single row where few of the v_i - c w_i have
nearly all of the size, so what counts is their effective number (Kish, 1965), at the
scale c that makes it least. For sets without weights that is, at c = 1, the number of
rows that are in one of them alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

from vfl_flower.typing import Array

BLOCKS = 256
"""Blocks of rows, row i in block i mod 256; sums over them bound a difference."""


def text_tags(texts: Iterable[object], coefficients: Array) -> Array:
    """Return tags of texts: equal ones of two texts have a probability of 2^-64.

    Twice the high half of m_0 + sum_i m_i s_i mod 2^64, which is strongly universal
    (Lemire and Kaser, 2014) where the m_i are uniform and secret.

    Parameters
    ----------
    texts : iterable of n objects
        Their texts; of longer ones than `coefficients` has room for, the beginnings.
    coefficients : Array of uint64, shape (2, length)
        m, twice.

    Returns
    -------
    Array of uint64, shape (n,)
    """
    remaining, parts = iter(texts), [np.zeros(0, "<u8")]
    most = coefficients.shape[1] - 1
    while block := [str(text) for text in itertools.islice(remaining, 2**14)]:
        letters = np.array(block).view("<u4").reshape(len(block), -1)[:, :most]
        m = coefficients[:, 1 : letters.shape[1] + 1]
        high = (letters @ m.T + coefficients[:, 0]) >> np.uint64(32)
        parts.append(high[:, 0] << np.uint64(32) | high[:, 1])
    return np.concatenate(parts)


def effective_number(weights: Array) -> float:
    """Return (sum |w|)^2 / sum w^2, shape (m,); 0 of none."""
    squares = float(np.square(weights).sum())
    return float(np.abs(weights).sum()) ** 2 / squares if squares else 0.0


def block_sums(mask: Array, weights: Array | None = None) -> Array:
    """Return the sums of the weights of each block, shape (256,).

    Parameters
    ----------
    mask : Array of bool, shape (n,)
        Which rows are in the set.
    weights : Array, shape (m,), optional
        Weights of these rows, in their order; default: 1.
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


def least_difference(
    w: Array, v: Array, w_squares: Array, v_squares: float, products: Array | float
) -> Array:
    """Return the least of (sum |v - c w|)^2 / (|v|^2 - 2 c <v, w> + c^2 |w|^2) over c.

    Between two of the ratios v_i / w_i the numerator is the square of a linear function
    and the denominator a quadratic one, so that the least value is at a ratio, at 0 or
    at infinity.

    Parameters
    ----------
    w, v : Array, shape (k, m) and (m,)
        Weights of k sets and of another one, or their sums over blocks of rows: then
        with `products` 0 the result is a lower bound.
    w_squares, v_squares : Array of shape (k,), float
        |w|^2 and |v|^2 of the single weights.
    products : Array of shape (k,), or float
        <v, w>.

    Returns
    -------
    Array, shape (k,)
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(w > 0, v / w, np.inf)
    order = np.argsort(ratios, axis=1)
    c = np.take_along_axis(ratios, order, axis=1)
    below_w = np.cumsum(np.take_along_axis(w, order, axis=1), axis=1)
    below_v = np.cumsum(np.take_along_axis(np.broadcast_to(v, w.shape), order, 1), 1)
    W, V = below_w[:, -1:], below_v[:, -1:]
    w2, vw = np.reshape(w_squares, (-1, 1)), np.reshape(products, (-1, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = c * (2 * below_w - W) + V - 2 * below_v
        squares = v_squares - 2 * c * vw + c**2 * w2
        # Where v is nearly c w, cancellation must not make the squares too small.
        at_ratios = sizes**2 / np.maximum(squares, 1e-13 * v_squares)
    at_ratios[~np.isfinite(c)] = np.inf
    ends = np.hstack([V**2 / v_squares, W**2 / w2])
    return np.asarray(np.minimum(at_ratios.min(axis=1), ends.min(axis=1)))
