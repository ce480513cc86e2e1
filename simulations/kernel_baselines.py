"""Baselines of federated kernel k-means, and the data of the experiments.

=====================  ===============================================================
`central_kernel`       CK [2]: eigenvectors of the kernel matrix, k-means at the server
`scalable_kernel`      SK [3]: Nystroem features in its place
`random_fourier`       RFK [4]: random Fourier features, distributed k-means [5]
`communication_pca`    CE PCA [6]: distributed kernel PCA, distributed k-means [5]
`plain`                distributed k-means [5] of the raw columns
=====================  ===============================================================

Each method takes the rows X of all parties, (n, d), the row numbers of each party, the
number k of clusters and a Generator for all draws. It returns the cluster of each row
and the number of floats that the parties upload. Nothing here is sent: the floats are
counted from the data that parties would upload. For CK and SK these are all the data,
as in [1]; for distributed k-means a cost for each party, and the columns and the weight
of each row of the coreset ([1] counts only the columns).

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

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from simulations.experiments import MissingData, load_npz, standardise
from vfl_flower import Ledger, Party, simulate
from vfl_flower.models.kernel_kmeans import KernelKMeansModel
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import cluster_summary
from vfl_flower.numerics.distributed_kmeans import combine, sample, split_budget
from vfl_flower.numerics.kernel_kmeans import gamma as mean_gamma
from vfl_flower.numerics.kernel_kmeans import moments
from vfl_flower.numerics.kmeans import assign, draw, weighted_kmeans
from vfl_flower.numerics.leverage import leverage_factor, leverage_scores
from vfl_flower.numerics.random_features import RandomFeatures, features
from vfl_flower.simulation import SimulatedResult
from vfl_flower.strategies.kernel_kmeans.training import FKKMeans
from vfl_flower.typing import Array

# --- Data ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows X of all parties, (n, d), with their classes y, and settings.

    The settings are k clusters, s components, a coreset of C rows and gamma of the
    kernel; for the recovery also c of the bound c / t that [1] plots, the numbers D of
    features, and T.
    """

    name: str
    X: Array
    y: Array
    k: int
    s: int
    coreset: int = 1000
    bound: float | None = None
    gamma: float | Literal["auto"] = "auto"
    counts: tuple[int, ...] = (20, 50, 100)
    iterations: int = 50


SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {"k": 10, "s": 20},
    "mushrooms": {"k": 2, "s": 4, "bound": 0.4},
    "mnist-20k": {"k": 10, "s": 20, "bound": 0.03, "counts": (50,), "iterations": 30},
    "mnist": {"k": 10, "s": 20},
    "covtype": {"k": 7, "s": 14, "coreset": 4000},
    "covtype15k": {"k": 7, "s": 14, "coreset": 4000},
    "groups-5": {"k": 5, "s": 10},
    "groups-8": {"k": 8, "s": 16},
    "grid-9": {"k": 9, "s": 18},
    "rings-2": {"k": 2, "s": 8, "gamma": 0.5},
    "circles-2": {"k": 2, "s": 20},
    "moons-2": {"k": 2, "s": 20},
    "celltype": {"k": 4, "s": 20},
}
"""Fields of `Rows`, by data set; [1] prints s and D in a picture."""

GENERATED = 3000
"""Number of rows of the generated sets."""


def load(name: str, folder: Path | None, rows: int) -> Rows:
    """Read a data set, and draw at random at most `rows` rows (mnist-20k: 20,000).

    The columns of covtype are scaled to [0, 1]. Raises MissingData without a file.
    """
    if name == "digits":
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
    elif "-" in name and name != "mnist-20k":
        X, y = generated(name)
    else:
        X, y = load_npz(folder, name.removesuffix("-20k"))
    if name == "mnist-20k":
        rows = min(rows, 20_000)
    if rows < len(y):
        drawn = np.random.default_rng(0).permutation(len(y))[:rows]
        X, y = X[drawn], y[drawn]
    if name.startswith("covtype"):
        X = (X - X.min(axis=0)) / np.maximum(np.ptp(X, axis=0), 1e-12)
    return Rows(name, X, y, **SETTINGS[name])


def generated(name: str) -> tuple[Array, Array]:
    """Return rows of a known number of clusters, and the cluster of each row.

    ``groups-k``: normal, of variance 1, about k points at random in a cube of side 20
    with 10 columns. ``grid-9``: about the points of a grid, six standard deviations
    apart. ``rings-2``: a circle within a circle. ``circles-2`` and ``moons-2``: the
    sets of scikit-learn, standardised.
    """
    form, _, count = name.partition("-")
    rng, k = np.random.default_rng(0), int(count)
    if form in ("circles", "moons"):
        from sklearn.datasets import make_circles, make_moons

        make = partial(make_circles, factor=0.4) if form == "circles" else make_moons
        X, y = make(GENERATED, noise=0.06, random_state=0)
        return standardise(X), y
    y = rng.integers(k, size=GENERATED)
    if form == "rings":
        turn = rng.uniform(0, 2 * np.pi, size=GENERATED)
        X = np.column_stack([np.cos(turn), np.sin(turn)]) * (1 + 2 * y)[:, None]
        return X + rng.normal(size=X.shape) / 10, y
    middles = rng.uniform(-10, 10, size=(k, 10))
    if form == "grid":
        side = round(math.sqrt(k))
        middles = 6.0 * np.column_stack(np.divmod(np.arange(k), side))
    return middles[y] + rng.normal(size=(GENERATED, middles.shape[1])), y


def split_among(n: int, M: int, rng: np.random.Generator) -> list[Array]:
    """Split rows 0 .. n - 1 at random among M parties of sizes that differ by one.

    >>> [len(rows) for rows in split_among(11, 3, np.random.default_rng(0))]
    [4, 4, 3]
    """
    return [np.sort(part) for part in np.array_split(rng.permutation(n), M)]


def split_of(data: Rows, parties: int, seed: int) -> list[Array]:
    """Return the row numbers of each party in the run with a seed."""
    return split_among(len(data.X), parties, np.random.default_rng([seed, parties]))


def agreement(y: Array, labels: Array) -> float:
    """Return the normalised mutual information of classes and labels."""
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(y, labels))


# --- FK k-means ---------------------------------------------------------------------


def uploaded(ledger: Ledger) -> int:
    """Return the number of floats that the parties uploaded."""
    return sum(entry.units_up for entry in ledger.entries.values())


def federated_labels(
    data: Rows, parts: list[Array], seed: int, **arguments: Any
) -> tuple[Array, SimulatedResult]:
    """Run FK k-means, and return the cluster of each row and the result."""
    coreset = {"clustering": "coreset", "coreset_size": data.coreset}
    if arguments.get("clustering") != "sums":
        arguments = coreset | arguments
    strategy = FKKMeans(data.k, data.s, **arguments)
    result = simulate(strategy, [Party(data.X[rows]) for rows in parts], seed=seed)
    assert isinstance(result.model, KernelKMeansModel)
    labels = np.empty(len(data.X), dtype=np.int64)
    for rows, block in zip(parts, result.model.labels_, strict=True):
        labels[rows] = block
    return labels, result


def federated(
    data: Rows, parts: list[Array], seed: int, **arguments: Any
) -> dict[str, Any]:
    """Run FK k-means, and return the quality and the costs of its labels."""
    begin = time.process_time()
    labels, result = federated_labels(data, parts, seed, **arguments)
    seconds = time.process_time() - begin
    assert isinstance(result.model, KernelKMeansModel)
    ledger = result.ledger
    return {
        "nmi": agreement(data.y, labels),
        "floats": uploaded(ledger),
        "seconds": seconds,
        "bytes": ledger.bytes_up,
        "bytes_down": ledger.bytes_down,
        "round_trips": ledger.round_trips,
        "inertia": result.model.inertia_,
        "small_share": result.metrics.get("small_share", math.nan),
    }


# --- Other methods ------------------------------------------------------------------


def plain(
    X: Array,
    parts: Sequence[Array],
    k: int,
    rng: np.random.Generator,
    *,
    budget: int = 1000,
) -> tuple[Array, int]:
    """Cluster the raw columns by distributed k-means [5].

    `budget` rows are drawn; the floats are M + a (d + 1), for a coreset of a rows.
    """
    blocks = [RowBlocks(X, rows=rows) for rows in parts]
    solutions = [cluster_summary(block, k, rng) for block in blocks]
    counts = split_budget(np.array([s.costs.sum() for s in solutions]), budget)
    drawn = [
        sample(block, solution, int(count), rng)
        for block, solution, count in zip(blocks, solutions, counts, strict=True)
    ]
    points, weights = (np.concatenate(part) for part in zip(*drawn, strict=True))
    centers = combine(points, weights, k, rng)
    return _labels(X, centers), len(parts) + points.size + weights.size


MATRIX = 2**31
"""Bytes that the upper triangle of a kernel matrix may take, in float32."""


def kernel_eigenpairs(X: Array, s: int, max_bytes: int = MATRIX) -> tuple[Array, Array]:
    """Return the s largest eigenpairs of the Gaussian kernel matrix, descending.

    By Lanczos (SciPy's `eigsh`) on the upper triangle of K in float32, 2 n^2 bytes: 0.8
    GB for 20,000 rows. The rounding of K moves each value, (s,), by at most 1e-7 n; the
    vectors, (n, s), are orthonormal. Raises MissingData if the triangle does not fit.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    n, gamma = len(X), default_gamma(X)
    if 2 * n**2 > max_bytes:
        raise MissingData(f"the kernel matrix of {n:,} rows takes {n**2 / 5e8:.1f} GB")
    rows = (X - X.mean(axis=0)).astype(np.float32)  # small numbers, small rounding
    squares = np.einsum("ij,ij->i", rows, rows)
    edges = list(range(0, n, 1000))
    blocks = []
    for a in edges:
        K = rows[a : a + 1000] @ rows[a:].T
        K *= 2
        K -= squares[a : a + 1000, None]
        K -= squares[a:]
        np.minimum(K, 0, out=K)
        K *= np.float32(gamma)
        blocks.append(np.exp(K, out=K))

    def multiply(c: Array) -> Array:
        c = c.ravel().astype(np.float32)
        product = np.zeros(n)
        for a, K in zip(edges, blocks, strict=True):
            b = a + len(K)
            product[a:b] += K @ c[a:]
            product[b:] += c[a:b] @ K[:, b - a :]
        return product

    start = np.random.default_rng(0).standard_normal(n)
    operator = LinearOperator((n, n), matvec=multiply, dtype=np.float64)
    values, vectors = eigsh(operator, s, which="LA", v0=start, tol=1e-6)
    return values[::-1], vectors[:, ::-1]


def central_kernel(
    X: Array,
    parts: Sequence[Array],
    k: int,
    rng: np.random.Generator,
    *,
    pairs: tuple[Array, Array],
) -> tuple[Array, int]:
    """Cluster by the top eigenvectors of the kernel matrix (CK [2]).

    `pairs` come from `kernel_eigenpairs`; k-means runs on U_s Lambda_s^(1/2), with
    K = U Lambda U^T. The floats are n d, the data.
    """
    values, U = pairs
    return _pooled(U * np.sqrt(np.maximum(values, 0)), k, rng), X.size


def scalable_kernel(
    X: Array,
    parts: Sequence[Array],
    k: int,
    rng: np.random.Generator,
    *,
    n_components: int,
    n_landmarks: int = 500,
    gamma: float | None = None,
) -> tuple[Array, int]:
    """Cluster by the top s directions of Nystroem features (SK [3]).

    `n_landmarks` rows of X, at most n, make the features. The floats are n d, the data.
    """
    from sklearn.kernel_approximation import Nystroem

    nystroem = Nystroem(
        kernel="rbf",
        gamma=gamma or default_gamma(X),
        n_components=min(n_landmarks, len(X)),
        random_state=int(rng.integers(2**32)),
    )
    F = nystroem.fit_transform(X.astype(np.float64))
    return _pooled(F @ _top(F, n_components), k, rng), X.size


def random_fourier(
    X: Array,
    parts: Sequence[Array],
    k: int,
    rng: np.random.Generator,
    *,
    n_features: int,
    gamma: float | None = None,
    budget: int = 1000,
) -> tuple[Array, int]:
    """Cluster random Fourier features by distributed k-means (RFK [4]).

    The number of floats is as for `plain` with D = `n_features` columns.
    """
    A = _fourier(X, n_features, gamma, rng)
    return plain(A, parts, k, rng, budget=budget)


def communication_pca(
    X: Array,
    parts: Sequence[Array],
    k: int,
    rng: np.random.Generator,
    *,
    n_components: int,
    n_features: int,
    embedding: int = 50,
    row_embedding: int = 250,
    n_points: int = 500,
    raw_points: bool = False,
    gamma: float | None = None,
    budget: int = 1000,
) -> tuple[Array, int]:
    """Cluster by communication-efficient distributed kernel PCA (CE PCA [6]).

    With `raw_points` as in [6], random features A, (n, D), are used only for the
    embedding, and parties send the representative points as rows, so that all parties
    can project phi(x) on the span of these points by the kernel. Otherwise A also
    stands for phi, so that points are sent as their features, since raw rows must not
    leave a party [1]. `embedding`, `row_embedding` and `n_points` are d_s, d_p and p of
    Appendix G of [1]. A is reduced to d_s columns (at most D), and a party's block of
    it to d_p rows; p is the number of representative points, half of them drawn by
    leverage scores and half by residuals (which [1] does not specify). Rows are
    embedded by a count sketch, columns by a Gaussian matrix.

    The floats are counted as for `plain` with s columns, plus the floats of [6], with
    n_m rows at party m, r_m = min(d_p, n_m), and q <= min(p', D) dimensions of the span
    of p' distinct points (with `raw_points`: q <= p'):

    1. an embedding of each party's features, r_m x d_s;
    2. the sum of each party's leverage scores, and of its squared residuals;
    3. the p' <= p representative points, D floats each (with `raw_points`: d);
    4. an embedding of each party's projections on this span, r_m x q.
    """
    A = _fourier(X, n_features, gamma, rng)
    S = rng.standard_normal((n_features, min(embedding, n_features)))
    E = A @ S

    sketches = [_count_sketch(E[rows], row_embedding, rng) for rows in parts]
    floats = sum(sketch.size for sketch in sketches)
    factor = leverage_factor(RowBlocks(np.concatenate(sketches)))
    scores = leverage_scores(RowBlocks(E), factor)

    if raw_points:
        project = partial(_kernel_projections, X, gamma or default_gamma(X))
        squares, width = np.ones(len(X)), X.shape[1]
    else:
        project, squares, width = (
            partial(_projections, A),
            (A**2).sum(axis=1),
            A.shape[1],
        )
    points = np.unique(draw(scores, n_points // 2, rng))
    projections = project(points)
    residuals = squares - (projections**2).sum(axis=1)
    residuals[residuals < 1e-10 * squares] = 0
    if residuals.any():
        points = np.union1d(points, draw(residuals, n_points - n_points // 2, rng))
        projections = project(points)
    floats += 2 * len(parts) + len(points) * width

    sketches = [_count_sketch(projections[rows], row_embedding, rng) for rows in parts]
    floats += sum(sketch.size for sketch in sketches)
    H = projections @ _top(np.concatenate(sketches), n_components)
    labels, kmeans_floats = plain(H, parts, k, rng, budget=budget)
    return labels, floats + kmeans_floats


def default_gamma(X: Array) -> float:
    """Return gamma = N^2 / (2 sum_ij |x_i - x_j|^2) of all rows, the choice of [1]."""
    return mean_gamma(*moments(X))


def _pooled(H: Array, k: int, rng: np.random.Generator) -> Array:
    """Return the labels of k-means at the server."""
    # On mushrooms 10 starts miss the best optimum in one of ten runs.
    return _labels(H, weighted_kmeans(H, k, np.ones(len(H)), rng, n_init=30)[0])


def _labels(H: Array, centers: Array) -> Array:
    return np.concatenate([assign(rows, centers)[0] for rows in RowBlocks(H)])


def _fourier(X: Array, D: int, gamma: float | None, rng: np.random.Generator) -> Array:
    """Return A / sqrt(D), whose products approximate kernel values."""
    bandwidth = (2 * (gamma or default_gamma(X))) ** -0.5
    seed = int(rng.integers(2**63))
    draws = RandomFeatures("gaussian", X.shape[1], bandwidth, seed, orthogonal=False)
    return np.asarray(features(draws.angles(X, 0, D, 64)) / np.sqrt(D))


def _top(F: Array, s: int) -> Array:
    """Return the right singular vectors of the s largest singular values, (d, s)."""
    return np.asarray(np.linalg.svd(F, full_matrices=False)[2][:s].T)


def _projections(A: Array, points: Array) -> Array:
    """Return coordinates of all rows of A in the span of some rows, (n, q)."""
    _, scale, V = np.linalg.svd(A[points], full_matrices=False)
    return np.asarray(A @ V[scale > 1e-10 * scale[0]].T)


def _kernel_projections(X: Array, gamma: float, points: Array) -> Array:
    """Return coordinates of phi(x) in the span of phi of some rows of X, (n, q)."""
    from sklearn.metrics.pairwise import rbf_kernel

    values, V = np.linalg.eigh(rbf_kernel(X[points], gamma=gamma))
    kept = values > 1e-10 * values[-1]
    products = rbf_kernel(X, X[points], gamma=gamma)
    return np.asarray(products @ (V[:, kept] / np.sqrt(values[kept])))


def _count_sketch(rows: Array, size: int, rng: np.random.Generator) -> Array:
    """Return T^T F, (min(size, n_m), d): each row with a sign in a random sum."""
    if len(rows) <= size:
        return rows
    out = np.zeros((size, rows.shape[1]))
    signs = rng.choice([-1.0, 1.0], len(rows))
    np.add.at(out, rng.integers(size, size=len(rows)), signs[:, None] * rows)
    return out
