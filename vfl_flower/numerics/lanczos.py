r"""Lanczos: the eigenpairs above a threshold of a symmetric matrix behind a product.

The symbols are those of [1], Appendix B: R is the matrix, known by g = R c alone (one
round trip in the federated protocol), c_1 .. c_Q are the orthonormal Lanczos vectors
and T_Q = C_Q^T R C_Q; after Q steps, with p vectors a step,

    R C_Q = C_Q T_Q + g E^T,    C_Q^T C_Q = I,    C_Q^T g = 0,

where E are the last p columns of the unit matrix. A Ritz pair (sigma_i, C_Q p_i) of
T_Q p_i = sigma_i p_i has the residual |R C_Q p_i - sigma_i C_Q p_i| = |g E^T p_i|.

References
----------
[1] X. Zhou and X. Wang, "A Communication Efficient Federated Kernel k-Means",
manuscript under review, Algorithm 2 and eq. 3.
[2] J. W. Demmel, "Applied Numerical Linear Algebra", SIAM 1997, chapter 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

__all__ = ["Lanczos", "block_lanczos", "lanczos"]

EPS = float(np.finfo(np.float64).eps)


@shapes_only
@dataclass(frozen=True)
class Lanczos:
    """What the Lanczos algorithm found of an n x n matrix R.

    Attributes
    ----------
    Q : Array of float64, shape (n, q)
        C_Q, the orthonormal Lanczos vectors.
    T : Array of float64, shape (q, q)
        T_Q = Q^T R Q: tridiagonal, or of half bandwidth p for blocks of p. Its diagonal
        is alpha, the one beside it beta (lines 6 and 8 of Algorithm 2).
    residual : Array of float64, shape (n, p)
        g with R Q = Q T + g E^T.
    values : Array of float64, shape (m,)
        The wanted Ritz values, descending: those above the threshold.
    vectors : Array of float64, shape (n, m)
        Their Ritz vectors, orthonormal.
    converged : bool
        Whether the stopping rule was met; False if `max_steps` ended it.
    steps : int
        Products with R that were asked for, each with a block of p vectors.
    """

    Q: Array
    T: Array
    residual: Array
    values: Array
    vectors: Array
    converged: bool
    steps: int


def lanczos(
    matvec: Callable[[Array], Array],
    start: Array,
    threshold: float,
    *,
    rng: np.random.Generator,
    at_least: int = 0,
    max_steps: int | None = None,
    tol: float = 1e-8,
) -> Lanczos:
    """Find the eigenpairs above a threshold (Algorithm 2 with eq. 3 of [1]).

    Parameters
    ----------
    matvec : callable
        c of shape (n,) to g = R c of shape (n,) (line 5), R symmetric.
    start : Array, shape (n,)
        c_1, not 0; its length does not matter.
    threshold : float
        Eigenvalues above it are wanted: eta_t lambda in [1].
    rng : numpy.random.Generator
        Source of new vectors after a breakdown; not used without a breakdown.
    at_least : int
        How many of the largest are wanted even if they are not above the threshold.
    max_steps : int, optional
        Largest number of products. Default: n.
    tol : float
        A Ritz value has converged when its residual is at most `tol` times the largest
        Ritz value in size.

    Returns
    -------
    Lanczos
        The eigenpairs, and how they were found.

    Raises
    ------
    ValueError
        `start` is not a finite vector or is 0, `max_steps` is below 1, `tol` is not
        positive, or a product is not finite or has another shape.

    Notes
    -----
    The iteration stops when every Ritz value above the threshold has converged and the
    largest of the others is settled below it: its residual is at most sqrt(`tol`) times
    the threshold (its error is of the order of the square) and no more than its
    distance from the threshold. Ritz values converge from the ends of the spectrum
    inwards, so none above the threshold is missed that c_1 can reach. Before a
    breakdown it reaches neither a second copy of a multiple eigenvalue nor an
    eigenvector to which c_1 is orthogonal: use `block_lanczos` where there may be some.

    At a breakdown (beta_q = 0, line 9) the Lanczos vectors span an invariant space and
    all Ritz values are exact. The iteration then goes on from a random vector
    orthogonal to them, and ends where such a vector has shown no eigenvalue above the
    threshold, or where the space is exhausted (q = n).

    Differs from [1] in: 1. the breakdown, where Algorithm 2 ends. 2. Each vector is
    orthogonalised twice against *all* before it, which contains line 7.
    """
    if start.ndim != 1:
        raise ValueError(f"start must be a vector, got shape {start.shape}")
    return block_lanczos(
        lambda C: np.asarray(matvec(C[:, 0]))[..., None],
        start[:, None],
        threshold,
        rng=rng,
        at_least=at_least,
        max_steps=max_steps,
        tol=tol,
    )


def block_lanczos(
    matmat: Callable[[Array], Array],
    start: Array,
    threshold: float,
    *,
    rng: np.random.Generator,
    at_least: int = 0,
    max_steps: int | None = None,
    tol: float = 1e-8,
) -> Lanczos:
    """Find the eigenpairs above a threshold with blocks of p vectors a product.

    Parameters
    ----------
    matmat : callable
        C of shape (n, b) to R C of shape (n, b), R symmetric; b = p, but for the last
        block of an exhausted space, where it can be smaller.
    start : Array, shape (n, p)
        First block, 1 <= p <= n. Its columns are made orthonormal.
    threshold, rng, at_least, tol
        As for `lanczos`.
    max_steps : int, optional
        Largest number of products with a block. Default: n / p, rounded up.

    Returns
    -------
    Lanczos
        The eigenpairs, and how they were found.

    Raises
    ------
    ValueError
        As for `lanczos`.

    Notes
    -----
    The stopping rule is that of `lanczos`. A multiple eigenvalue is found up to p
    times. Columns of a block that turn out to depend on the others are replaced by
    random ones, the breakdown of `lanczos` column by column. The iteration does not
    stop before these have had a product: they may show a copy of an eigenvalue that no
    other column shows.
    """
    if start.ndim != 2 or not 1 <= start.shape[1] <= start.shape[0]:
        raise ValueError(
            f"start must be of shape (n, p), 1 <= p <= n, got {start.shape}"
        )
    n, p = start.shape
    limit = -(-n // p) if max_steps is None else max_steps
    if limit < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    if not tol > 0:
        raise ValueError(f"tol must be positive, got {tol}")
    if not (np.isfinite(start).all() and start.any()):
        raise ValueError("start must be finite and not 0")
    Q, T, scale = np.empty((n, 0)), np.zeros((0, 0)), 0.0
    C = start.astype(np.float64)
    C, _ = _next_block(C, Q, n * EPS * float(np.linalg.norm(C)), rng)
    beta = np.empty((p, 0))
    begin = 0  # the first vector since the last breakdown
    steps, done = 0, False
    while steps < limit and not done:
        steps += 1
        G = np.array(matmat(C), dtype=np.float64)
        if G.shape != C.shape or not np.isfinite(G).all():
            raise ValueError(f"a product must be finite and of shape {C.shape}")
        q, b = Q.shape[1], C.shape[1]
        alpha = C.T @ G
        T = np.pad(T, (0, b))
        T[q:, q:] = (alpha + alpha.T) / 2
        T[q:, q - beta.shape[1] : q] = beta
        T[q - beta.shape[1] : q, q:] = beta.T
        Q = np.hstack([Q, C])
        G -= Q @ (Q.T @ G)  # eq. 3 of [1]; `_next_block` does so twice
        sigma, P = np.linalg.eigh(T[begin:, begin:])
        scale = max(scale, float(np.abs(sigma).max()))
        C, beta = _next_block(G, Q, n * EPS * scale, rng)
        rho = np.linalg.norm(beta @ P[-b:], axis=0)
        ritz_values = np.linalg.eigvalsh(T)[::-1]
        bound = threshold
        if np.count_nonzero(ritz_values > threshold) < at_least:
            # halfway between the last Ritz value that is wanted and the next
            pair = ritz_values[at_least - 1 : at_least + 1]
            bound = float(pair.mean()) if len(pair) == 2 else -math.inf
        settled = math.sqrt(tol) * min(scale, abs(bound))
        gap = bound - sigma
        above = gap < 0
        if Q.shape[1] == n:
            done = True
        elif not beta.any():
            done = not above.any()
            begin = q + b
        elif beta.any(axis=1).all():  # else new columns have no product yet
            done = bool(
                (rho[above] <= tol * scale).all()
                and not above.all()
                and rho[~above][-1] <= min(settled, gap[~above][-1])
            )
    sigma, P = np.linalg.eigh(T)
    count = max(np.count_nonzero(sigma > threshold), min(at_least, len(sigma)))
    wanted = np.arange(len(sigma))[::-1][:count]
    return Lanczos(Q, T, G, sigma[wanted], Q @ P[:, wanted], done, steps)


def _next_block(
    G: Array, Q: Array, tiny: float, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return C of min(p, n - q) orthonormal columns, orthogonal to Q, and beta = C^T G.

    Columns of G, (n, p), of which Q and the other columns leave at most `tiny` are left
    out; random ones, with rows of 0 in beta, take their places.
    """
    n, p = G.shape
    size = min(p, n - Q.shape[1])
    basis = Q

    def add(g: Array, least: float) -> None:
        nonlocal basis
        for _ in range(2):
            g = g - basis @ (basis.T @ g)
        length = np.linalg.norm(g)
        if length > least:
            basis = np.column_stack([basis, g / length])

    for j in range(p):
        if basis.shape[1] < n:
            add(G[:, j], tiny)
    beta = np.triu(basis[:, Q.shape[1] :].T @ G)
    while basis.shape[1] < Q.shape[1] + size:
        add(rng.standard_normal((n,)), n * EPS)  # without a unit, unlike `tiny`
    C = basis[:, Q.shape[1] :]
    return C, np.pad(beta, ((0, size - len(beta)), (0, 0)))
