"""Clipping of rows, so that no row stands out and fewer columns isolate a row."""

from __future__ import annotations

import numpy as np

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.leverage import leverage_factor, leverage_scores
from vfl_flower.numerics.linear import center
from vfl_flower.numerics.linear_gram import bounded_columns
from vfl_flower.typing import Array


def sums(clip: Array, X: Array) -> Array:
    """Return ``z = T^T (x - s)`` for rows x, (n, d), where T adds up rare columns."""
    return np.asarray((X - clip[0]) @ clip[2 : 2 + len(clip.T)]) if len(clip) else X


def clipped(clip: Array | None, X: Array) -> Array:
    """Return ``m + (z - m) / max(1, |F^T (z - m)|)`` for rows x."""
    if clip is None or not len(clip):
        return X
    Z, m, F = sums(clip, X), clip[1], clip[2 + len(clip.T) :].T
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.linalg.norm((Z - m) @ F, axis=1)
    far = size > 1
    Z[far] = m + (Z[far] - m) / size[far, None]
    return Z


def row_clip(X: Array, intercept: bool, least_rows: int, most_leverage: float) -> Array:
    """Return s, m, T and F^T in one matrix, which is empty if no column needs clipping.

    Rows with a leverage score above `most_leverage` are set aside repeatedly. Then m is
    the mean of the remaining rows (0 without `intercept`), and F is their leverage
    factor, divided by the `least_rows`-th largest ``|F^T (z - m)|`` of all rows. So
    fewer than `least_rows` rows are moved.
    """
    ones = np.ones(len(X))
    with np.errstate(over="ignore", invalid="ignore"):
        A = center(X, ones) if intercept else X
        squares = np.square(A).sum(axis=0)
    used = (squares > 1e-280) & np.isfinite(squares) & (X[:1] != X).any(axis=0)
    stays = bounded_columns(X.T, np.where(used, A, 0.0), least_rows, most_leverage)
    if stays[used].all():
        return np.zeros((0, 0))
    s, T = _sums(X, used, least_rows)
    Z = near = (np.where(np.isfinite(squares), X, 0.0) - s) @ T
    while True:
        A = center(near, ones[: len(near)]) if intercept else near
        F = leverage_factor(RowBlocks(A))
        stays = leverage_scores(RowBlocks(A), F) <= most_leverage
        if stays.all() or 2 * np.count_nonzero(stays) < len(X):
            break
        near = near[stays]
    m = near.mean(axis=0) * intercept
    largest = np.sort(np.linalg.norm((Z - m) @ F, axis=1))[-least_rows]
    # Despite rounding, rows at exactly this distance must not be moved.
    return np.vstack([s, m, T, F.T / ((1 + 1e-9) * largest or np.inf)])


def _sums(X: Array, used: Array, least_rows: int) -> tuple[Array, Array]:
    """Return s and T; T adds up rare columns until `least_rows` rows differ.

    Each sum has at least `least_rows` rows in which one of its columns deviates.

    Each column contributes its deviations from its most frequent value, divided by
    their mean size. The last columns join the previous sum if they do not fill a
    separate sum. A sum takes the position of its first column and the unit of this
    column, rounded to a power of two, because the exact unit can be a value of a single
    row.
    """
    s, T, group, last = np.zeros(X.shape[1]), np.eye(X.shape[1]), list[int](), -1
    for k in np.flatnonzero(used).tolist():
        values, counts = np.unique(X[:, k], return_counts=True)
        if (differ := len(X) - counts.max()) < least_rows:
            s[k], group = values[counts.argmax()], [*group, k]
            T[k, k], T[k, group[0]] = 0.0, differ / np.abs(X[:, k] - s[k]).sum()
            if (X[:, group] != s[group]).any(axis=1).sum() >= least_rows:
                last, group = group[0], []
    T[group, last] = T[group, group[:1]] * (last >= 0)
    T[group, group[:1]] = 0.0
    size = np.where(np.diag(T) > 0, np.diag(T), 1.0)
    return s, T * 2.0 ** -np.round(np.log2(size))
