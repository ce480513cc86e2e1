r"""Least squares from a Gram matrix alone.

The columns of party j are :math:`A_j = U_j R_j`, where :math:`U_j` has orthonormal
columns. Only the sums of products of :math:`U = [U_1 .. U_T]` and the target t are
known,

.. math:: G = \begin{pmatrix} U^T U & U^T t \\ t^T U & t^T t \end{pmatrix}.

The blocks on the diagonal of :math:`U^T U` are the identity, so its condition number
depends only on the overlap of *different* parties' columns. So even errors that would
make a Gram matrix of the columns themselves useless are acceptable in G.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from vfl_flower.numerics.kmeans import row_squares
from vfl_flower.numerics.linear import Penalty, solve_pooled, whiten
from vfl_flower.typing import Array

TOLERANCE = 1e-9
"""Eigenvalues of U^T U below this value times the number of columns are treated as 0.
The value is ten times the error of rounding to 31 fraction bits."""

BLOCK_ROWS = 2**15
"""Number of rows in a block; blocks avoid a second copy of the columns."""


def canonical_basis(A: Array, F: Array) -> tuple[Array, Array]:
    """Return U, (m, d), an orthonormal basis of the columns of A, and R, with A = U R.

    A has the shape (m, d), and F, (d, r), is from `leverage_factor`. U is A F, followed
    by columns of zeros if A lacks full rank; its signs follow from F. R = U^T A.
    """
    U = np.zeros_like(A)
    if r := F.shape[1]:
        largest = np.abs(F).argmax(axis=0)
        np.matmul(A, F * np.sign(F[largest, np.arange(r)]), out=U[:, :r])
    return U, U.T @ A


def pseudo_rows(gram: Array) -> tuple[Array, Array, float]:
    """Return r rows K and targets q with ``|U x - t|^2 = |K x - q|^2 + rest``.

    G has the shape (d + 1, d + 1), with t in its last column; K^T K = U^T U; K has the
    shape (r, d), and q the shape (r,). `rest` is the portion of |t|^2 that no x
    explains.
    """
    values, vectors = np.linalg.eigh(gram[:-1, :-1])
    large = values > TOLERANCE * len(gram)
    root = np.sqrt(values[large])
    q = vectors[:, large].T @ gram[:-1, -1] / root
    K = root[:, None] * vectors[:, large].T
    return K, q, max(0.0, float(gram[-1, -1] - q @ q))


def solve_moments(gram: Array, R: Array, penalty: Penalty) -> tuple[Array, float]:
    """Minimise ``|U R theta - t|^2`` plus a penalty on theta.

    G has the shape (d + 1, d + 1), and R, (d, d), is block diagonal with blocks R_j.
    Returns theta, (d,), the coefficients of the columns A, and ``|U R theta - t|^2``.
    """
    K, q, rest = pseudo_rows(gram)
    X = K @ R
    theta = np.zeros(R.shape[1])
    if len(X):
        theta, _ = solve_pooled(X, q, np.ones(len(X)), 1, penalty, fit_intercept=False)
        theta[~R.any(axis=0)] = 0.0
    residual = X @ theta - q
    return theta, float(residual @ residual) + rest


def sigma_min_of_moments(gram: Array, blocks: Sequence[Array]) -> float:
    """Return sigma_min of Assumption 4.1 from G, (d + 1, d + 1).

    See `coresets.sigma_min`. `blocks` are the positions in G of each party's columns,
    including the target. Singular values below about 1e-4 are treated as linear
    dependences.
    """
    d, parts = len(gram), []
    for places in blocks:
        F = whiten(gram[np.ix_(places, places)], np.zeros(len(places)))
        part = np.zeros((d, F.shape[1]))
        part[places] = F
        parts.append(part)
    basis = np.hstack(parts)
    values = np.linalg.eigvalsh(basis.T @ gram @ basis)
    large = values[values > TOLERANCE * d]
    return float(np.sqrt(min(1.0, large.min(initial=1.0))))


def bounded_columns(
    columns: Iterable[Array],
    A: Array,
    least_rows: int,
    most_leverage: float,
    fixed: int = 0,
) -> Array:
    """Return which columns isolate no single row, as a bool array of shape (d,).

    If a column, or a combination of columns, is nonzero in only one row, a Gram matrix
    reveals the values of all other columns in that row. The leverage score of that row
    is then 1; the scores are small if many rows share each direction.

    `columns` yields the d columns, (m,) each; A, (m, d), holds the same columns, with
    their means subtracted and each row multiplied by the square root of its weight. At
    least `least_rows` rows must differ from the most frequent value of a column. While
    the leverage score of a row is above `most_leverage`, the column with the largest
    share in the combination that points to this row is dropped. The last `fixed`
    columns are never dropped.
    """
    support = [len(x) - np.unique(x, return_counts=True)[1].max() for x in columns]
    norms = np.linalg.norm(A, axis=0)
    chosen = (np.array(support) >= least_rows) & (norms > 0)
    free = len(chosen) - fixed
    chosen[free:] = True
    while chosen[:free].any():
        gram = sum(B.T @ B for B in _scaled(A, norms, chosen))
        W = whiten(np.asarray(gram), np.zeros(chosen.sum()))
        rows, leverages = [], []
        for block in _scaled(A, norms, chosen):
            U = block @ W
            lengths = row_squares(U)
            rows.append(U[largest := lengths.argmax()])
            leverages.append(lengths[largest])
        if max(leverages) <= most_leverage:
            break
        pointing = np.abs(W @ rows[int(np.argmax(leverages))])[: chosen[:free].sum()]
        chosen[np.flatnonzero(chosen)[pointing.argmax()]] = False
    return np.asarray(chosen)


def _scaled(A: Array, norms: Array, chosen: Array) -> Iterator[Array]:
    """Yield the chosen columns, scaled to length 1, in blocks of rows."""
    for start in range(0, len(A), BLOCK_ROWS):
        yield A[start : start + BLOCK_ROWS, chosen] / norms[chosen]
