r"""Lanczos algorithm: eigenpairs above a threshold, from products with the matrix.

The symbols are those of [1], Appendix B: R is the symmetric matrix, known only through
products g = R c, each of which takes a round trip in the federated protocol. c_1 .. c_Q
are the orthonormal Lanczos vectors, and T_Q = C_Q^T R C_Q. After Q steps,

    R C_Q = C_Q T_Q + g e^T,    C_Q^T C_Q = I,    C_Q^T g = 0,

where e is the last column of the unit matrix. A Ritz pair (sigma_i, C_Q p_i) of
T_Q p_i = sigma_i p_i has the residual |R C_Q p_i - sigma_i C_Q p_i| = |g e^T p_i|.

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

EPS = float(np.finfo(np.float64).eps)

TOL = 1e-8
"""Maximum residual of a converged Ritz value, relative to the largest |Ritz value|."""


@shapes_only
@dataclass(frozen=True)
class Lanczos:
    """The result of the Lanczos algorithm for an n x n matrix R."""

    Q: Array
    """C_Q, the orthonormal Lanczos vectors, (n, q)."""
    T: Array
    """T_Q = Q^T R Q, (q, q), tridiagonal: alpha, and beta beside it (lines 6 and 8)."""
    residual: Array
    """g with R Q = Q T + g e^T, (n,)."""
    values: Array
    """The Ritz values above the threshold, in descending order, (m,)."""
    vectors: Array
    """The Ritz vectors of these values, orthonormal, (n, m)."""
    steps: int
    """Number of products with R, including the first."""


def lanczos(
    matvec: Callable[[Array], Array],
    start: Array,
    threshold: float,
    first: Array | None = None,
    *,
    rng: np.random.Generator,
    at_least: int = 0,
) -> Lanczos:
    """Find the eigenpairs above a threshold (Algorithm 2 with eq. 3 of [1]).

    `matvec` maps c, (n,), to g = R c, (n,) (line 5), with R symmetric. `start`, (n,),
    is a multiple of c_1; `first`, (n,), is R c_1, or None if the caller does not know
    this product. The function looks for all eigenvalues above `threshold`, which is
    eta_t lambda in [1], and in any case for the `at_least` largest eigenvalues.

    The iteration stops when every Ritz value above the threshold has converged and the
    largest Ritz value not above the threshold has settled. A value has settled if its
    residual is at most sqrt(`TOL`) times the threshold (so that its error is of the
    order of the squared residual) and no larger than its distance from the threshold.
    Ritz values converge from the ends of the spectrum inwards, so the iteration misses
    no eigenvalue above the threshold that c_1 can reach.

    At a breakdown (beta_q = 0, line 9) the Lanczos vectors span an invariant space and
    all Ritz values are exact. The iteration then continues from a random vector
    orthogonal to them, drawn from `rng`. The iteration ends when such a vector has
    revealed no eigenvalue above the threshold, or when the space is exhausted (q = n).

    Differences from [1]: 1. Algorithm 2 ends at a breakdown. 2. Each vector is
    orthogonalised twice against *all* earlier vectors, which includes line 7.
    """
    n = len(start)
    Q, T, scale = np.empty((n, 0)), np.zeros((0, 0)), 0.0
    c = start.astype(np.float64)
    basis, beta = _extended(Q, c, n * EPS * float(np.linalg.norm(c)), rng)
    begin = 0  # the first vector since the last breakdown
    steps, done = 0, False
    while not done:
        steps += 1
        q, Q = Q.shape[1], basis
        c = Q[:, -1]
        known = first is not None and not q
        g = np.array(first if known else matvec(c), dtype=np.float64)
        T = np.pad(T, (0, 1))
        T[q, q] = c @ g
        if q:
            T[q, q - 1] = T[q - 1, q] = beta
        g -= Q @ (Q.T @ g)  # eq. 3 of [1]; `_extended` repeats this twice
        if q + 1 == n:
            break
        sigma, P = np.linalg.eigh(T[begin:, begin:])
        scale = max(scale, float(np.abs(sigma).max()))
        basis, beta = _extended(Q, g, n * EPS * scale, rng)
        rho = np.abs(beta * P[-1])
        ritz_values = np.linalg.eigvalsh(T)[::-1]
        bound = threshold
        if np.count_nonzero(ritz_values > threshold) < at_least:
            # halfway between the last wanted Ritz value and the next one
            pair = ritz_values[at_least - 1 : at_least + 1]
            bound = float(pair.mean()) if len(pair) == 2 else -math.inf
        settled = math.sqrt(TOL) * min(scale, abs(bound))
        gap = bound - sigma
        above = gap < 0
        if beta == 0:
            done = not above.any()
            begin = q + 1
        else:
            done = bool(
                (rho[above] <= TOL * scale).all()
                and not above.all()
                and rho[~above][-1] <= min(settled, gap[~above][-1])
            )
    sigma, P = np.linalg.eigh(T)
    count = max(np.count_nonzero(sigma > threshold), min(at_least, len(sigma)))
    wanted = np.arange(len(sigma))[::-1][:count]
    return Lanczos(Q, T, g, sigma[wanted], Q @ P[:, wanted], steps)


def _extended(
    Q: Array, g: Array, tiny: float, rng: np.random.Generator
) -> tuple[Array, float]:
    """Return Q with one more column c, a unit vector orthogonal to Q, and c^T g.

    c is the direction of the component of g orthogonal to Q. If this component is no
    longer than `tiny`, c is random, and 0 is returned instead of c^T g.
    """

    def rest(vector: Array) -> Array:
        for _ in range(2):
            vector = vector - Q @ (Q.T @ vector)
        return vector

    c = rest(g)
    if (length := float(np.linalg.norm(c))) > tiny:
        basis = np.column_stack([Q, c / length])
        return basis, float(basis[:, -1] @ g)
    length = 0.0
    while length <= len(g) * EPS:  # dimensionless, unlike `tiny`
        c = rest(rng.standard_normal(len(g)))
        length = float(np.linalg.norm(c))
    return np.column_stack([Q, c / length]), 0.0
