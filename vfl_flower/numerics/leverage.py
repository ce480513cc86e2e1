"""Leverage scores for a party's columns of any rank, computed block by block."""

from __future__ import annotations

import operator

import numpy as np

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import row_squares
from vfl_flower.typing import Array

EPS = float(np.finfo(np.float64).eps)


def leverage_factor(blocks: RowBlocks) -> Array:
    """Find F, (d, r), such that U = X F is an orthonormal basis of the columns of X.

    This is line 2 of Algorithm 2 without the n x d matrix U. X has the shape (n, d); at
    the label holder it is [X, y]. r is the numerical rank of X. F is computed from the
    eigenvectors of the Gram matrix if they are accurate. Otherwise F is computed from
    the singular vectors of R in a blockwise QR factorisation, at about twice the cost.
    Raises ValueError if X has a missing or infinite value.

    Columns are first scaled to length 1, Z = X D^-1, and columns of zeros are omitted.
    With Z = Q S V^T, F = D^-1 V S^-1 over the singular values above max(n, d) eps S_1.

    *When the Gram matrix is accurate.* C = Z^T Z is summed in blocks of b rows, so the
    error of each entry is at most (b + n / b) u, u = eps / 2 [2, section 3.1], and the
    error of C is at most e = d (b + n / b) u in the spectral norm. Since F^T C F = I
    for the computed C, the true U^T U differs from I by at most e / lambda_min(C). To
    first order, this is also a bound on the relative error of each score. The Gram
    matrix is used if this bound is at most 1e-6. Otherwise QR is used, whose error
    grows with the condition number of Z and not with its square.

    [2] N. J. Higham, "Accuracy and stability of numerical algorithms", SIAM 2002.
    """
    by_gram = _gram_factor(blocks)
    return _qr_factor(blocks) if by_gram is None else by_gram


def _gram_factor(blocks: RowBlocks) -> Array | None:
    """Return F from the Gram matrix, or None if the Gram matrix is not accurate."""
    n, d = blocks.shape
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        G = blocks.map_reduce(lambda _, X: X.T @ X, np.add, np.zeros((d, d)))
    if not np.isfinite(G).all():
        return None
    squares = np.diag(G)
    usable = squares > 1e-280  # below this, squares of values may have underflowed
    scale = 1 / np.sqrt(squares[usable])
    eigenvalues, V = np.linalg.eigh(G[np.ix_(usable, usable)] * np.outer(scale, scale))
    b = min(n, blocks.block_rows)
    error = d * (b + n / b) * EPS / 2 if n else 0.0
    if len(eigenvalues) and eigenvalues[0] < 1e6 * error:
        return None
    if not usable.all() and blocks.map_reduce(
        lambda _, X: bool(X[:, ~usable].any()), operator.or_, False
    ):
        return None
    r = eigenvalues > max(n, d) * EPS * eigenvalues[-1:]
    return _embed(usable, scale, V[:, r] / np.sqrt(eigenvalues[r]))


def _qr_factor(blocks: RowBlocks) -> Array:
    """Return F from a blockwise QR factorisation."""
    n, d = blocks.shape
    R = blocks.map_reduce(lambda _, X: X, _stacked, np.empty((0, d)))
    if not np.isfinite(R).all():
        raise ValueError("X must have no missing or infinite value")
    largest = np.abs(R).max(axis=0, initial=0)
    usable = largest > 1e-290  # so that no reciprocal overflows
    R = R[:, usable] / largest[usable]
    norms = np.linalg.norm(R, axis=0)
    _, S, Vt = np.linalg.svd(R / norms, full_matrices=False)
    r = max(n, d) * EPS * S[:1] < S
    return _embed(usable, 1 / norms / largest[usable], Vt[r].T / S[r])


def _stacked(R: Array, rows: Array) -> Array:
    """Update the QR factor R of a matrix to which rows are added."""
    return np.asarray(np.linalg.qr(np.vstack([R, rows]), mode="r"))


def _embed(scaled: Array, scale: Array, F: Array) -> Array:
    """Undo the scaling of the columns; omitted columns get rows of zeros."""
    unscaled = np.zeros((len(scaled), F.shape[1]))
    unscaled[scaled] = scale[:, None] * F
    return unscaled


def leverage_scores(blocks: RowBlocks, F: Array) -> Array:
    """Return the leverage score |u_i|^2 of each row, u_i = F^T x_i, of shape (n,).

    `blocks` are X, (n, d), and F, (d, r), is from `leverage_factor`. Up to rounding,
    the scores are between 0 and 1, and their sum is r.

    Only row 3 has a component in the second direction; rows 1 and 2 share the first
    direction in the ratio 9 : 16.

    >>> blocks = RowBlocks(np.array([[3.0, 0.0], [4.0, 0.0], [0.0, 7.0]]))
    >>> np.round(leverage_scores(blocks, leverage_factor(blocks)), 12)
    array([0.36, 0.64, 1.  ])
    """
    return blocks.per_row(lambda X: row_squares(X @ F))
