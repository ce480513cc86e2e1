"""FK k-means on the pooled rows of all parties: the reference of federated runs.

=====================  ===============================================================
`pooled_fkkm`          lines 4 to 18 of Algorithm 1 of [1]
`RowLanczos`           the same without the mechanism (section 4.1)
`pooled_draw`          the random features of a federated run
`paper_threshold`      lambda as in [1]
`recovery_error`       the error in Figure 1
=====================  ===============================================================

[1] X. Zhou and X. Wang, "A Communication Efficient Federated Kernel k-Means",
    manuscript under review.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from simulations.kernel_baselines import default_gamma
from vfl_flower.numerics.kernel_embedding import bandwidth
from vfl_flower.numerics.kernel_kmeans import (
    default_threshold,
    eigenpairs,
    embed,
    feature_range,
    shrink,
    stack,
)
from vfl_flower.numerics.lanczos import lanczos
from vfl_flower.numerics.random_features import RandomFeatures, features
from vfl_flower.typing import Array


@dataclass(frozen=True, eq=False)
class Iterate:
    """Iteration t of `pooled_fkkm`.

    Attributes
    ----------
    eta, threshold : float
        eta_t and lambda.
    s : int
        Number of components.
    W : Array of float64, shape (N, D + r)
        W_t.
    values : Array of float64, shape (j,)
        lambda_i of W_t^T W_t: all above eta_t lambda, and at least s.
    vectors : Array of float64, shape (D + r, j)
        v_i.
    """

    eta: float
    threshold: float
    s: int
    W: Array
    values: Array
    vectors: Array

    @property
    def H(self) -> Array:
        """The embedding if this is the last iteration, shape (N, s) (line 17)."""
        R = embed(self.values, self.vectors, self.eta, self.threshold, self.s)
        return np.asarray(self.W @ R)


def pooled_fkkm(
    draw: Callable[[int], Array],
    T: int,
    s: int,
    threshold: float | None = None,
    factor: float = 1.0,
) -> Iterator[Iterate]:
    """Yield the iterations t = 1 .. T of DSPGD.

    Parameters
    ----------
    draw : callable
        t to A_t of shape (N, D_t), without the factor 1 / sqrt(D_t).
    T, s : int
        Number of iterations and of components.
    threshold : float, optional
        lambda. Default: `default_threshold` of the first iteration, in which only the s
        + 1 largest eigenvalues are kept, so that Lanczos need not search for more.
    factor : float
        eta_t = min(1, factor / t), if all iterations have the same number of features:
        1 is Algorithm 1, and 2 is Theorem 1, where t = 1 has no weight from t = 2 on.
    """
    seen = 0
    for t in range(1, T + 1):
        A = draw(t)
        if t == 1:
            B = np.empty((len(A), 0))
        seen += A.shape[1]
        eta = min(1.0, factor * A.shape[1] / seen)
        W = stack(A, B, eta)
        G = W.T @ W
        if threshold is None:
            values, vectors = eigenpairs(G, math.inf, s + 1)
            threshold = default_threshold(values, G.trace(), len(G), s)
        else:
            values, vectors = eigenpairs(G, eta * threshold, s)
        yield Iterate(eta, threshold, s, W, values, vectors)
        B = W @ shrink(values, vectors, eta * threshold)


class RowLanczos:
    """DSPGD without the mechanism: Lanczos on the n rows (section 4.1 of [1])."""

    def __init__(self, n: int) -> None:
        self.B, self.rng = np.empty((n, 0)), np.random.default_rng(0)

    def step(self, A: Array, eta: float, lam: float, s: int) -> tuple[Array, int]:
        """Return H as if this were the last iteration, and Q_0, the number of products.

        `A` is A_t of shape (n, D), `eta` and `lam` are eta_t and lambda.
        """
        B = self.B

        def multiply(c: Array) -> Array:
            kept = (1 - eta) * (B @ (B.T @ c))
            return np.asarray(kept + eta / A.shape[1] * (A @ (A.T @ c)))

        start = self.rng.standard_normal(len(A))
        ritz = lanczos(multiply, start, eta * lam, rng=self.rng, at_least=s)
        values, U = ritz.values, ritz.vectors
        kept = values > eta * lam
        self.B = U[:, kept] * np.sqrt(values[kept] - eta * lam)
        H = U[:, :s] * np.sqrt(values[:s] + (1 - eta) * lam)
        return np.asarray(H), ritz.steps


def pooled_draw(X: Array, D: int, D_1: int, seed: int) -> Callable[[int], Array]:
    """Return the function from t to A_t of a federated run with this seed."""
    d = X.shape[1]
    width = bandwidth("gaussian", default_gamma(X))
    draws = RandomFeatures("gaussian", d, width, seed, orthogonal=True)

    def draw(t: int) -> Array:
        return features(draws.angles(X, *feature_range(t, D, D_1), 64))

    return draw


def paper_threshold(A: Array, k: int) -> float:
    """Return the (k + 2)-th eigenvalue of A_1 A_1^T / D."""
    values, _ = eigenpairs(A.T @ A / A.shape[1], math.inf, k + 2)
    return float(values[k + 1]) if len(values) > k + 1 else 0.0


def recovery_error(H: Array, values: Array, vectors: Array) -> float:
    """Return |H H^T - K_s|_F^2 / N^2, without a matrix of N^2 numbers.

    Parameters
    ----------
    H : Array of float64, shape (N, r)
        A factor of the estimate.
    values, vectors : Array of float64, shapes (s,) and (N, s)
        The largest eigenpairs of K, so that K_s = vectors diag(values) vectors^T.
    """
    signs = np.r_[np.ones(H.shape[1]), -np.ones(len(values))]
    _, R = np.linalg.qr(np.hstack([H, vectors * np.sqrt(values)]))
    return float(np.linalg.norm((R * signs) @ R.T) ** 2 / len(H) ** 2)
