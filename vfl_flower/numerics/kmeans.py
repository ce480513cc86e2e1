"""k-means on one party's blocks of rows, and weighted k-means at the server.

The functions that run at a party need only NumPy; scikit-learn is imported only where
the server clusters.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from functools import partial

import numpy as np

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.rows import add_each
from vfl_flower.typing import Array


def draw(g: Array, size: int, rng: np.random.Generator) -> Array:
    """Draw row numbers with replacement, row i with probability g_i / sum g.

    This is used for line 5 of Algorithm 1 of the coreset paper, and for k-means++. `g`
    has the shape (n,), and the result the shape (size,). A row with g_i = 0 is never
    drawn. The first a draws equal the draws of a call with size a. Raises ValueError if
    `size` or a value of `g` is negative, or if the sum of `g` is not positive and
    finite.
    """
    cumulative = np.cumsum(g)
    if len(g) == 0 or g.min() < 0 or not 0 < cumulative[-1] < np.inf:
        raise ValueError(
            "sampling weights must be non-negative, with a positive, finite sum"
        )
    # random() <= 1 - 2^-53, so the rounded product is below the sum, and no draw equals
    # n.
    points = rng.random(size) * cumulative[-1]
    return np.asarray(np.searchsorted(cumulative, points, side="right"), np.int64)


def seed_centers(
    blocks: RowBlocks, k: int, rng: np.random.Generator, weights: Array | None = None
) -> Array:
    """Choose k of the n rows by greedy k-means++ seeding; return them, (k, d).

    The first centre is a random row. For each further centre, 2 + floor(ln k)
    candidates are drawn with probability proportional to w_i min_l |x_i - c_l|^2, and
    the candidate that lowers the cost most is kept, as in scikit-learn (D. Arthur and
    S. Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007). The
    weights w, (n,), are 1 by default. If fewer than k rows are distinct, some centres
    are equal. Raises ValueError if `k` is below 1, there are no rows, or no weight is
    positive.

    Distances are computed as |x - c_1|^2 - 2 (x - c_1) (c - c_1) + |c - c_1|^2, so that
    a large common offset of the data does not reduce their accuracy.
    """

    def masses(shift: Array, part: slice, rows: Array) -> list[Array]:
        """Return w_i min_l |x_i - c_l|^2 in a block for each candidate, (t, b)."""
        distances = (-2 * shift) @ rows.T
        distances += (row_squares(shift) + 2 * shift @ origin)[:, None]
        distances += norms[part]
        np.maximum(distances, 0, out=distances)
        if weights is not None:
            distances *= weights[part]
        return [np.minimum(distances, mass[part], out=distances)]

    n, d = blocks.shape
    mass = np.ones(n) if weights is None else weights
    centers = np.empty((k, d))
    centers[0] = blocks.take(draw(mass, 1, rng))[0]
    origin = centers[0].copy()
    norms = blocks.per_row(lambda X: row_squares(X - origin))
    mass = norms if weights is None else norms * weights  # w_i min_l |x_i - c_l|^2
    trials = 2 + int(np.log(k))
    for chosen in range(1, k):
        if not mass.any():  # each row is a centre
            centers[chosen:] = centers[0]
            break
        candidates = blocks.take(draw(mass, trials, rng))
        parts = blocks.map_reduce(
            partial(masses, candidates - origin), operator.add, list[Array]()
        )
        # One candidate at a time, so that the masses are not held in memory twice.
        least = np.inf
        for j in range(trials):
            trial = np.concatenate([part[j] for part in parts])
            if (cost := trial.sum()) < least or j == 0:
                least, centers[chosen], mass = cost, candidates[j], trial
    return centers


def assign(rows: Array, centers: Array) -> tuple[Array, Array]:
    """Find the centre, among (k, d), that is closest to each row, (b, d).

    Returns pi(i) = argmin_l |x_i - c_l|, int64, (b,), the smallest such l if there are
    several; and |x_i - c_pi(i)|^2, (b,). These squares are computed from the
    differences, so they are exactly 0 for a row that equals a centre.

    >>> assign(np.array([[0.0], [3.0], [10.0]]), np.array([[1.0], [10.0]]))
    (array([0, 0, 1]), array([1., 4., 0.]))
    """
    # argmin |x - c|^2 = argmax (x - s) (c - s) - |c - s|^2 / 2. If s lies among the
    # centres, the rounding error is relative to |x| |c - s| and not to |x|^2.
    origin = centers.mean(axis=0)
    shifted = centers - origin
    constant = shifted @ origin + row_squares(shifted) / 2
    labels = (rows @ shifted.T - constant).argmax(1)
    return labels, row_squares(rows - centers[labels])


def simplified_silhouettes(rows: Array, centers: Array) -> Array:
    """Return the simplified silhouette 1 - a / b of each row, (n, d); shape (n,).

    a and b are the distances to the closest and the second closest of at least two
    centres, (k, d). The result is 1 for a row that lies on a centre, even if two
    centres coincide there. The measure was introduced by Hruschka et al. (2006):

    E. R. Hruschka, R. J. G. B. Campello and L. N. de Castro, "Evolving clusters in gene
    expression data", Information Sciences 176, 2006.
    """
    far = np.sqrt([row_squares(rows - center) for center in centers])
    a, b = np.partition(far, 1, axis=0)[:2]
    return np.asarray(1 - a / np.maximum(b, np.finfo(np.float64).tiny))


def lloyd(
    blocks: RowBlocks,
    centers: Array,
    weights: Array | None = None,
    max_iter: int = 100,
    tol: float = 1e-4,
) -> Array:
    """Improve centres, (k, d), by Lloyd's iteration over rows, (n, d), block by block.

    `weights`, (n,), are 1 by default. The iteration stops after `max_iter` passes over
    the data, or when a pass lowers the cost by no more than `tol` times the cost. A
    centre without rows is unchanged.
    """
    k = len(centers)

    def totals(part: slice, rows: Array) -> tuple[Array, Array, float]:
        """Return the sums, the sizes and the cost of the clusters in a block."""
        labels, distances = assign(rows, centers)
        members = (labels == np.arange(k)[:, None]).astype(np.float64)
        if weights is not None:
            members *= weights[part]
            distances *= weights[part]
        return members @ rows, members.sum(axis=1), float(distances.sum())

    previous = np.inf
    nothing = np.zeros_like(centers), np.zeros(k), 0.0
    for _ in range(max_iter):
        sums, sizes, cost = blocks.map_reduce(totals, add_each, nothing)
        # At cost 0, a mean would only add rounding errors to exact centres.
        if cost == 0 or previous - cost <= tol * cost:
            break
        previous = cost
        occupied = (sizes > 0)[:, None]
        centers = np.where(
            occupied, sums / np.where(occupied, sizes[:, None], 1), centers
        )
    return centers


def weighted_kmeans(
    X: Array, k: int, weights: Array, rng: np.random.Generator, n_init: int = 10
) -> tuple[Array, float]:
    """Cluster the weighted rows of X, of shape (m, d), with scikit-learn's KMeans.

    Returns the best centres of `n_init` starts, (k, d), and their cost, sum_i w_i min_l
    |x_i - c_l|^2. The weights w, (m,), are not negative. If fewer than k rows are
    distinct, some centres are equal. Raises ValueError if `k` is below 1 or there are
    no rows.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    clusters = min(k, len(X))
    model = KMeans(clusters, n_init=n_init, random_state=int(rng.integers(2**32)))
    with warnings.catch_warnings():  # fewer than k distinct rows are acceptable here
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, sample_weight=weights)
    return model.cluster_centers_[np.arange(k) % clusters], float(model.inertia_)


def partial_distances(rows: Array, centers: Array) -> Array:
    """Return squared distances over one party's columns, at least 0, (b, k).

    `rows` has the shape (b, d_j), and `centers` the shape (k, d_j). The squared
    distances of all parties add up to |x_i - c_l|^2 over all columns.
    """
    origin = centers.mean(axis=0)
    rows, centers = rows - origin, centers - origin
    distances: Array = rows @ (-2 * centers.T)
    distances += row_squares(rows)[:, None]
    distances += row_squares(centers)
    np.maximum(distances, 0, out=distances)
    return distances


def distdim(
    assignments: Array,
    local_centers: Sequence[Array],
    weights: Array,
    k: int,
    rng: np.random.Generator,
    n_init: int = 10,
) -> Array:
    """Combine local clusterings into global centres (DISTDIM), (k, d).

    The parties' local centres form a grid. Each row is replaced by its cell of this
    grid, the point (c^(1)_l1, ..., c^(T)_lT). Weighted k-means runs on the occupied
    cells only; the weight of a cell is the sum of the weights, (m,), of its rows.
    Column j of `assignments`, (m, T), is the local cluster of each row at party j, and
    `local_centers` are the parties' centres, (k_j, d_j). Raises ValueError if `k` is
    below 1.

    H. Ding, Y. Liu, L. Huang and J. Li, "K-means clustering with distributed
    dimensions", ICML 2016.
    """
    cells, cell = np.unique(assignments, axis=0, return_inverse=True)
    grid = np.hstack([C[cells[:, j]] for j, C in enumerate(local_centers)])
    counts = np.bincount(cell.ravel(), weights)
    return weighted_kmeans(grid, k, counts, rng, n_init)[0]


def row_squares(rows: Array) -> Array:
    """Return |x|^2 along the last axis."""
    return np.asarray(np.einsum("...j,...j->...", rows, rows))
