"""What federated kernel k-means is compared with: Section 6 and Appendix G of [1].

Each function takes all rows and the row numbers of each user, since that is what a
method has to cope with, and returns a :class:`Clustering`.

=====================  ===============================================================
`central_kernel`       CK [2]: eigenvectors of the kernel matrix, k-means at the server
`scalable_kernel`      SK [3]: Nystroem features in its place
`random_fourier`       RFK [4]: random Fourier features, distributed k-means [5]
`communication_pca`    CE PCA [6]: distributed kernel PCA, distributed k-means [5]
`plain`                distributed k-means [5] of the raw columns
=====================  ===============================================================

Nothing here is sent. The floats are counted from what users would upload: the whole
data for CK and SK, as in [1]; for distributed k-means a cost a user, and the columns
and the weight of each row of the coreset, where [1] counts the columns only.

[1] "A communication efficient federated kernel k-means".
[2] H. Zha, X. He, C. Ding, M. Gu, H. Simon, "Spectral relaxation for k-means
    clustering", NIPS 2001.
[3] S. Wang, A. Gittens, M. W. Mahoney, "Scalable kernel k-means clustering with
    Nystroem approximation: relative-error bounds", JMLR 20, 2019.
[4] R. Chitta, R. Jin, A. K. Jain, "Efficient kernel clustering using random Fourier
    features", ICDM 2012.
[5] M.-F. Balcan, S. Ehrlich, Y. Liang, "Distributed k-means and k-median clustering on
    general topologies", NIPS 2013.
[6] M.-F. Balcan, Y. Liang, L. Song, D. Woodruff, B. Xie, "Communication efficient
    distributed kernel principal component analysis", KDD 2016.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.distributed_kmeans import (
    combine,
    local_solution,
    sample,
    split_budget,
)
from vfl_flower.numerics.kernel_kmeans import gamma as mean_gamma
from vfl_flower.numerics.kernel_kmeans import moments
from vfl_flower.numerics.kmeans import assign, draw, weighted_kmeans
from vfl_flower.numerics.leverage import leverage_factor, leverage_scores
from vfl_flower.numerics.random_features import RandomFeatures, features
from vfl_flower.typing import Array

KINDS = ("equal", "unequal", "labels")
"""How the rows are split: see `split_users`."""


@dataclass(frozen=True, eq=False)
class Clustering:
    """What a method found, and what it cost.

    Attributes
    ----------
    name : str
        The method.
    labels : Array of int64, shape (n,)
        Cluster of each row.
    floats : int
        Numbers that all users upload together.
    seconds : float
        Of everything, in one process.
    """

    name: str
    labels: Array
    floats: int
    seconds: float

    def nmi(self, truth: Array) -> float:
        """Return the normalised mutual information with other labels.

        Parameters
        ----------
        truth : Array, shape (n,)
            The other labels.

        Returns
        -------
        float
            From 0 to 1; normalised by the arithmetic mean of the entropies.
        """
        from sklearn.metrics import normalized_mutual_info_score

        return float(normalized_mutual_info_score(truth, self.labels))


def split_users(
    n: int,
    M: int,
    rng: np.random.Generator,
    kind: str = "equal",
    labels: Array | None = None,
) -> list[Array]:
    """Split rows 0 .. n - 1 among users, each with at least one.

    Parameters
    ----------
    n, M : int
        Number of rows and of users.
    rng : numpy.random.Generator
        Source of the split.
    kind : {"equal", "unequal", "labels"}
        At random with sizes that differ by one at most; at random with shares from a
        flat Dirichlet distribution; or in order of `labels`, so that a user holds about
        1/M of the classes.
    labels : Array, shape (n,), optional
        Needed for "labels" only.

    Returns
    -------
    list of Array of int64
        Sorted row numbers of each user.

    Raises
    ------
    ValueError
        `kind` is none of these, `M` is not from 1 to n, or `labels` is missing or of
        another length.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> [len(rows) for rows in split_users(11, 3, rng)]
    [4, 4, 3]
    >>> split_users(4, 2, rng, "labels", np.array([1, 0, 1, 0]))
    [array([1, 3]), array([0, 2])]
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be 'equal', 'unequal' or 'labels', got {kind!r}")
    if not 1 <= M <= n:
        raise ValueError(f"M must be from 1 to {n}, the number of rows, got {M}")
    order = rng.permutation(n)
    if kind == "unequal":
        sizes = 1 + rng.multinomial(n - M, rng.dirichlet(np.ones(M)))
        parts = np.split(order, np.cumsum(sizes)[:-1])
    else:
        if kind == "labels":
            if labels is None or np.shape(labels) != (n,):
                raise ValueError(f"labels must have {n} values, one for each row")
            order = order[np.argsort(labels[order], kind="stable")]
        parts = np.array_split(order, M)
    return [np.sort(part) for part in parts]


def plain(
    X: Array,
    users: Sequence[Array],
    k: int,
    rng: np.random.Generator,
    *,
    budget: int = 1000,
) -> Clustering:
    """Cluster the raw columns by distributed k-means [5].

    Parameters
    ----------
    X : Array, shape (n, d)
        The rows of all users.
    users : sequence of Array of int
        Row numbers of each user, such as from `split_users`.
    k : int
        Number of clusters.
    rng : numpy.random.Generator
        Source of all draws.
    budget : int
        t, the draws of the coreset.

    Returns
    -------
    Clustering
        Floats: M + a (d + 1), for a coreset of a rows.
    """
    start = time.perf_counter()
    labels, floats = _distributed(X, users, k, budget, rng)
    return Clustering("k-means", labels, floats, time.perf_counter() - start)


def central_kernel(
    X: Array,
    users: Sequence[Array],
    k: int,
    rng: np.random.Generator,
    *,
    n_components: int,
    gamma: float | None = None,
    max_bytes: int = 2**30,
) -> Clustering:
    """Cluster by the top eigenvectors of the kernel matrix (CK [2]).

    Parameters
    ----------
    X, users, k, rng
        As those of `plain`.
    n_components : int
        s: k-means runs on U_s Lambda_s^(1/2), with K = U Lambda U^T.
    gamma : float, optional
        Of the kernel exp(-gamma |x - x'|^2); default: `default_gamma`.
    max_bytes : int
        Largest size of K.

    Returns
    -------
    Clustering
        Floats: n d, the data.

    Raises
    ------
    ValueError
        K, of 8 n^2 bytes, does not fit, or `n_components` is not from 1 to n - 1.
    """
    from scipy.sparse.linalg import eigsh
    from sklearn.metrics.pairwise import rbf_kernel

    start = time.perf_counter()
    n = len(X)
    if 8 * n**2 > max_bytes:
        raise ValueError(
            f"the kernel matrix must fit in max_bytes = {max_bytes}, got {n} rows, "
            f"which make {8 * n**2} bytes"
        )
    if not 1 <= n_components < n:
        raise ValueError(
            f"n_components must be from 1 to {n - 1}, below the number of rows, got "
            f"{n_components}"
        )
    K = rbf_kernel(X.astype(np.float64), gamma=_gamma(X, gamma))
    values, U = eigsh(K, n_components, which="LA", v0=rng.standard_normal(n))
    H = U * np.sqrt(np.maximum(values, 0))
    return Clustering("CK", _pooled(H, k, rng), X.size, time.perf_counter() - start)


def scalable_kernel(
    X: Array,
    users: Sequence[Array],
    k: int,
    rng: np.random.Generator,
    *,
    n_components: int,
    n_landmarks: int = 500,
    gamma: float | None = None,
) -> Clustering:
    """Cluster by the top directions of Nystroem features (SK [3]).

    Parameters
    ----------
    X, users, k, rng, n_components, gamma
        As those of `central_kernel`.
    n_landmarks : int
        c, rows of X that the features are made of, drawn without replacement; at most
        n, and at least `n_components`.

    Returns
    -------
    Clustering
        Floats: n d, the data.
    """
    from sklearn.kernel_approximation import Nystroem

    start = time.perf_counter()
    nystroem = Nystroem(
        kernel="rbf",
        gamma=_gamma(X, gamma),
        n_components=min(n_landmarks, len(X)),
        random_state=int(rng.integers(2**32)),
    )
    F = nystroem.fit_transform(X.astype(np.float64))
    H = F @ _top(F, n_components)
    return Clustering("SK", _pooled(H, k, rng), X.size, time.perf_counter() - start)


def random_fourier(
    X: Array,
    users: Sequence[Array],
    k: int,
    rng: np.random.Generator,
    *,
    n_features: int,
    gamma: float | None = None,
    budget: int = 1000,
) -> Clustering:
    """Cluster random Fourier features by distributed k-means (RFK [4]).

    Parameters
    ----------
    X, users, k, rng, gamma, budget
        As those of `central_kernel` and `plain`.
    n_features : int
        D.

    Returns
    -------
    Clustering
        Floats: M + a (D + 1), for a coreset of a rows.
    """
    start = time.perf_counter()
    A = _fourier(X, n_features, gamma, rng)
    labels, floats = _distributed(A, users, k, budget, rng)
    return Clustering("RFK", labels, floats, time.perf_counter() - start)


def communication_pca(
    X: Array,
    users: Sequence[Array],
    k: int,
    rng: np.random.Generator,
    *,
    n_components: int,
    n_features: int,
    embedding: int = 50,
    row_embedding: int = 250,
    n_points: int = 500,
    gamma: float | None = None,
    budget: int = 1000,
) -> Clustering:
    """Cluster by communication-efficient distributed kernel PCA (CE PCA [6]).

    Parameters
    ----------
    X, users, k, rng, gamma, budget
        As those of `random_fourier`.
    n_components : int
        s, the number of principal components.
    n_features : int
        D, of the random features A that stand for the kernel's feature space.
    embedding, row_embedding, n_points : int
        d_s, d_p and p of Appendix G of [1]: columns that A is embedded in, rows that a
        user's part is, and representative points.

    Returns
    -------
    Clustering
        Floats: those of `plain` in s columns, and of [6], with n_m rows at user m,
        r_m = min(d_p, n_m) and q <= min(p', D) for p' distinct points in their span:

        1. an embedding of each user's features, r_m x d_s;
        2. the sum of its leverage scores, and of its squared residuals;
        3. the p' <= p representative points, D floats each;
        4. an embedding of its projections on their span, r_m x q.

    Notes
    -----
    Simplified from [6]: 1. the feature space is that of the random features, whereas
    [6] keeps phi and uses them to embed it: points are sent as their features, since
    raw rows must not leave a user [1]. 2. Half of the points are drawn by leverage
    scores and half by residuals, all at once. 3. d_s and q are at most D. Rows are
    embedded by a count sketch, columns by a Gaussian matrix.
    """
    start = time.perf_counter()
    A = _fourier(X, n_features, gamma, rng)
    S = rng.standard_normal((n_features, min(embedding, n_features)))
    E = A @ S

    sketches = [_count_sketch(E[rows], row_embedding, rng) for rows in users]
    floats = sum(sketch.size for sketch in sketches)
    factor = leverage_factor(RowBlocks(np.concatenate(sketches)))
    scores = leverage_scores(RowBlocks(E), factor)

    points = np.unique(draw(scores, n_points // 2, rng))
    Q = _basis(A[points])
    squares = (A**2).sum(axis=1)
    residuals = squares - ((A @ Q) ** 2).sum(axis=1)
    residuals[residuals < 1e-10 * squares] = 0
    if residuals.any():
        points = np.union1d(points, draw(residuals, n_points - n_points // 2, rng))
        Q = _basis(A[points])
    floats += 2 * len(users) + len(points) * n_features

    projections = A @ Q
    sketches = [_count_sketch(projections[rows], row_embedding, rng) for rows in users]
    floats += sum(sketch.size for sketch in sketches)
    H = projections @ _top(np.concatenate(sketches), n_components)
    labels, more = _distributed(H, users, k, budget, rng)
    return Clustering("CE PCA", labels, floats + more, time.perf_counter() - start)


def default_gamma(X: Array) -> float:
    """Return gamma = N^2 / (2 sum_ij |x_i - x_j|^2), the choice of [1].

    Parameters
    ----------
    X : Array, shape (n, d)
        The rows of all users.
    """
    return mean_gamma(*moments(X))


def _gamma(X: Array, gamma: float | None) -> float:
    return default_gamma(X) if gamma is None else gamma


def _distributed(
    H: Array, users: Sequence[Array], k: int, budget: int, rng: np.random.Generator
) -> tuple[Array, int]:
    """Return the labels of distributed k-means, and the floats uploaded."""
    blocks = [RowBlocks(H, rows=rows) for rows in users]
    solutions = [local_solution(own, k, rng) for own in blocks]
    counts = split_budget(np.array([s.costs.sum() for s in solutions]), budget)
    parts = [
        sample(own, solution, int(count), rng)
        for own, solution, count in zip(blocks, solutions, counts, strict=True)
    ]
    points, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
    centers = combine(points, weights, k, rng)
    return _labels(H, centers), len(users) + points.size + weights.size


def _pooled(H: Array, k: int, rng: np.random.Generator) -> Array:
    """Return the labels of k-means at the server."""
    # On mushrooms 10 starts miss the best optimum in one of ten runs.
    return _labels(H, weighted_kmeans(H, k, np.ones(len(H)), rng, n_init=30)[0])


def _labels(H: Array, centers: Array) -> Array:
    return np.concatenate([assign(rows, centers)[0] for rows in RowBlocks(H)])


def _fourier(X: Array, D: int, gamma: float | None, rng: np.random.Generator) -> Array:
    """Return A / sqrt(D), whose products are about the kernel's values."""
    bandwidth = (2 * _gamma(X, gamma)) ** -0.5
    seed = int(rng.integers(2**63))
    draws = RandomFeatures("gaussian", X.shape[1], bandwidth, seed, orthogonal=False)
    return np.asarray(features(draws.angles(X, 0, D, 64)) / np.sqrt(D))


def _top(F: Array, s: int) -> Array:
    """Return the s right singular vectors of the largest singular values, (d, s)."""
    return np.asarray(np.linalg.svd(F, full_matrices=False)[2][:s].T)


def _basis(rows: Array) -> Array:
    """Return an orthonormal basis of the span of the rows, (d, q)."""
    _, scale, V = np.linalg.svd(rows, full_matrices=False)
    return np.asarray(V[scale > 1e-10 * scale[0]].T)


def _count_sketch(rows: Array, size: int, rng: np.random.Generator) -> Array:
    """Return T^T F, (min(size, n_m), d): each row with a sign in a random sum."""
    if len(rows) <= size:
        return rows
    out = np.zeros((size, rows.shape[1]))
    signs = rng.choice([-1.0, 1.0], len(rows))
    np.add.at(out, rng.integers(size, size=len(rows)), signs[:, None] * rows)
    return out
