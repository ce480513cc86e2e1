"""Clusters that can forget rows: local seeding, redraws, quantisation, global clusters.

The symbols are those of [1], whose *clients* are our parties: party l holds n^(l) rows
and has centroids C^(l); gamma is the quantisation step, B the number of bins of a
column, q the number of rows in each bin, X_s the server's points, C_s the K global
centres, X_R the rows to remove and X' the remaining rows. All points are in the cube
[-1/2, 1/2]^d, to which `Box` scales the data.

[1] C. Pan, J. Sima, S. Prakash, V. Rana and O. Milenkovic, "Machine unlearning of
federated clusters", ICLR 2023.
[2] M. T. Chao, "A general purpose unequal probability sampling plan", Biometrika 69,
1982.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import numpy as np

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import (
    assign,
    draw,
    lloyd,
    row_squares,
    simplified_silhouettes,
    weighted_kmeans,
)
from vfl_flower.rows import Rows
from vfl_flower.typing import Array

MAX_SERVER_BYTES = 2**28
"""Maximum size of the random points X_s, in bytes; above this size, fewer points with
larger weights are drawn."""


def initialise(
    blocks: RowBlocks,
    k: int,
    rng: np.random.Generator,
    prefix: Array | None = None,
    added: Array | None = None,
) -> tuple[Array, Array]:
    """Draw centroids from the rows by k-means++, and return them in the order drawn.

    Line 2 of Algorithm 1: the first centroid is a uniformly drawn row, and each further
    centroid is row x with probability d^2(x, C) / phi_c(X; C). With a prefix, lines
    5-14 of Algorithm 3: the centroids of the prefix come first, and only the remaining
    centroids are drawn. With added rows A as well, the centroids of the prefix are
    tested in order, and each stays with probability phi_c(X; C) / (phi_c(X; C) +
    phi_c(A; C)). The first centroid that does not stay is replaced by a row of A, and
    all later centroids are drawn anew.

    `blocks` are the rows, (n, d), of which there may be none: the remaining rows X' for
    unlearning, or the rows of X and A for adding. `k` is K', the maximum number of
    centroids of a party. `prefix`, (i,), holds the row numbers of the centroids to
    keep. `added`, bool, (n,), marks the rows in A; the prefix was drawn from the other
    rows.

    Returns the row numbers of the centroids in the order drawn, (k',), no two of which
    refer to equal rows; and the index of each row's nearest centroid, (n,), where ties
    go to the first centroid. Raises ValueError if `prefix` names two equal rows.

    Unlearning is exact (Lemma 5.1) for a set X_R that does not depend on the draws.
    Given the earlier centroids, the next centroid is either a D^2 draw from X that fell
    outside X_R, which has the law of a D^2 draw from X', or a new D^2 draw from X'. In
    both cases the centroid is a D^2 draw from X', so by induction the sequence of rows
    has the law of a fresh run on X'. The result is also exact after several consecutive
    requests, and after the removal of a row that equals another row.

    The lemma does not hold for a set X_R that depends on the draws: a set chosen with
    knowledge of the centroids, or the rows of highest cost under the current C_s, as in
    Section 6 of [1]. Given such a set X_R, the sequence does not have the law of a
    fresh run.

    Adding is exact for rows A that do not depend on the draws. Let X' be X together
    with A. Given the earlier centroids, all of which were kept, c_j is a D^2 draw
    from X. Let y be a D^2 draw from X'. With probability phi_c(A; C) / phi_c(X'; C), y
    is in A, and is then a D^2 draw from A; otherwise it is a D^2 draw from X, like c_j.
    So taking y if it is in A, and c_j otherwise, gives a D^2 draw from X'. After the
    first y in A, all draws are from X' in any case. By induction the sequence has the
    law of a fresh run on X' (this is the step of [2] for a sample of one). Additions
    and removals can follow one another in any order. Both are exact up to rounding: the
    relative error of a probability is about n 2^-53.

    >>> blocks = RowBlocks(np.array([[0.0], [9.0], [0.0]]))
    >>> initialise(blocks, 3, np.random.default_rng(0), np.array([2]))
    (array([2, 1]), array([0, 1, 0]))
    """
    n = len(blocks)
    reused = [] if prefix is None else [int(row) for row in prefix]
    new = np.zeros(n, bool) if added is None else added
    nearest = np.full(n, np.inf)  # d^2(x, C)
    labels = np.zeros(n, np.int64)
    rows: list[int] = []
    for j in range(k):
        row = reused[j] if j < len(reused) else None
        if (row is None or new.any()) and nearest.any():
            drawn = int(draw(nearest if rows else np.ones(n), 1, rng)[0])
            if row is None or new[drawn]:
                row, reused = drawn, reused[:j]
        if row is None:  # each row equals a centroid
            break
        if nearest[row] == 0:
            raise ValueError(f"prefix must not name two equal rows, got {reused}")
        center = blocks.take(np.array([row]))
        # Called immediately, with this centre.
        distances = blocks.per_row(lambda X: row_squares(X - center))  # noqa: B023
        closer = distances < nearest
        labels[closer] = j
        nearest[closer] = distances[closer]
        rows.append(row)
    return np.array(rows, np.int64), labels


def surviving(centroids: Array, removed: Array) -> Array:
    """Return the centroids drawn before the first removed centroid, c_1 .. c_i, (i,).

    See lines 2-10 of Algorithm 3. `centroids`, (k',), and `removed`, (r,), are row
    numbers or ids. If all centroids survive, none is redrawn.

    >>> surviving(np.array([7, 2, 5]), np.array([1, 5, 2]))
    array([7])
    """
    hit = np.isin(centroids, removed)
    return centroids[: hit.argmax()] if hit.any() else centroids


def local_labels(rows: Array, centroids: Array) -> Array:
    """Return the index of the centroid nearest to each of a few rows, (r, d).

    The centroids are C^(l), (k', d), k' >= 1. Ties go to the first centroid, as in
    `initialise`. The function holds r k' d numbers in memory.
    """
    return np.asarray(row_squares(rows[:, None] - centroids).argmin(axis=1))


def seed_centroids(
    X: Array | Rows,
    box: Box,
    k: int,
    rng: np.random.Generator,
    stay: Array | None = None,
    prefix: Array | None = None,
    added: Array | None = None,
) -> tuple[Array, Array]:
    """Draw a party's centroids from the participating rows, like `initialise`.

    X holds all rows of the party, (n, d), in the unit of the data; `stay`, bool, (n,),
    marks the participating rows. `prefix` and `added` are as in `initialise`, but refer
    to the rows of X. Returns the row numbers of the centroids in the order drawn, and
    the number of rows nearest to each centroid, both (k',).
    """
    numbers = np.arange(len(X)) if stay is None else np.flatnonzero(stay)
    places = None if prefix is None else np.searchsorted(numbers, prefix)
    new = None if added is None else added[numbers]
    rows = BoxedRows(X, box, None if stay is None else numbers)
    drawn, labels = initialise(rows, k, rng, places, new)
    return numbers[drawn], np.bincount(labels, minlength=len(drawn))


def local_clusters(
    blocks: RowBlocks, rows: Array, full: bool, least: int = 1
) -> tuple[Array, Array]:
    """Return a party's centroids, and the local cluster of each row.

    The centroids are C^(l), (k'', d), not quantised; the local clusters are given as
    labels, (n,). `blocks` are the participating rows, (n, d). `rows`, (k',), holds the
    centroids' row numbers in `blocks`, in the order drawn. `full` adds Lloyd's
    iteration (see `complete`), and `least` is the minimum number of rows in a cluster
    (see `merge_small`).
    """
    if full:
        centroids, labels = complete(blocks, rows)
    else:
        nothing_is_drawn = np.random.default_rng(0)
        _, labels = initialise(blocks, len(rows), nothing_is_drawn, rows)
        centroids = blocks.take(rows)
    if least == 1:
        return centroids, labels
    sizes = np.bincount(labels, minlength=len(centroids))
    remain, _, merged = merge_small(centroids, sizes, least)
    labels = merged[labels]
    if full:
        # Lloyd's means belong to the clusters of the previous iteration, whose sizes
        # are unknown.
        return _means(blocks, labels, len(remain)), labels
    return centroids[remain], labels


def merge_small(
    centroids: Array, sizes: Array, least: int
) -> tuple[Array, Array, Array]:
    """Merge small clusters into others until none has fewer than `least` rows.

    Repeatedly, the smallest cluster joins the cluster with the nearest centroid. Of
    several equally small clusters the last one joins, and of several equally near
    centroids the first is chosen. In the end, each cluster has at least `least` rows,
    or a single cluster contains all the party's rows.

    `centroids`, (k', d), are C^(l) in the order drawn, or the means from `complete`;
    `sizes`, (k',), holds the number of rows in each cluster. Returns the indices of the
    remaining clusters, (k'',), in ascending order; their sizes, (k'',); and, for each
    original cluster, the position of its new cluster among the remaining clusters,
    (k',).

    Unlearning stays exact, since merges are not stored: a party's counts are a function
    f(c, X) of the drawn sequence c and the rows X alone, without further draws. After a
    removal, the party computes f(c', X') anew. By Lemma 5.1 c' has the law of a fresh
    sequence on X', so f(c', X') has the law of a fresh result on X'. Two changes would
    break this property: storing only the remaining centroids as C^(l), and keeping
    clusters merged or separate because they were merged or separate before.

    >>> merge_small(np.array([[0.0], [9.0], [8.0]]), np.array([5, 1, 3]), 2)
    (array([0, 2]), array([5, 4]), array([0, 1, 1]))
    """
    counts = np.array(sizes, np.int64)
    remain, becomes = np.arange(len(counts)), np.arange(len(counts))
    while len(remain) > 1 and counts[remain].min() < least:
        small = remain[::-1][counts[remain[::-1]].argmin()]
        remain = remain[remain != small]
        distances = row_squares(centroids[remain] - centroids[small])
        into = remain[distances.argmin()]
        counts[into] += counts[small]
        becomes[becomes == small] = into
    return remain, counts[remain], np.searchsorted(remain, becomes)


def complete(blocks: RowBlocks, rows: Array) -> tuple[Array, Array]:
    """Run Lloyd's iteration from the drawn centroids (Appendix M.3).

    `blocks` are the rows, (n, d), and `rows`, (k',), the drawn centroids from
    `initialise`. Returns the means, (k'', d), omitting any mean that is nearest to no
    row; and the index of each row's nearest mean, (n,).

    The result is a function of the drawn rows and the data. So unlearning stays exact
    if this function runs again after each removal, always starting from the drawn rows
    and never from the current means. A party therefore stores the drawn rows, not the
    means.
    """
    if len(rows) == 0:
        return np.empty((0, blocks.shape[1])), np.empty(0, np.int64)
    centers = lloyd(blocks, blocks.take(rows))
    labels = blocks.per_row(lambda X: assign(X, centers)[0])
    occupied, labels = np.unique(labels, return_inverse=True)
    return _in_range(centers[occupied], blocks), labels


def _means(blocks: RowBlocks, labels: Array, k: int) -> Array:
    """Return the mean row of each of k clusters, none of which is empty."""

    def sums_of(part: slice, rows: Array) -> Array:
        members = labels[part] == np.arange(k)[:, None]
        return np.asarray(members.astype(np.float64) @ rows)

    sums = blocks.map_reduce(sums_of, np.add, np.zeros((k, blocks.shape[1])))
    return _in_range(sums / np.bincount(labels, minlength=k)[:, None], blocks)


def _in_range(means: Array, blocks: RowBlocks) -> Array:
    # Because of rounding, a mean of equal numbers can leave their range, and so the
    # box.
    if len(blocks) == 0:
        return means
    bound = np.full(blocks.shape[1], np.inf)
    low = blocks.map_reduce(lambda _, X: X.min(axis=0), np.minimum, bound)
    high = blocks.map_reduce(lambda _, X: X.max(axis=0), np.maximum, -bound)
    return np.clip(means, low, high)


@dataclass(frozen=True, eq=False)
class Box:
    """The public box of the columns, which becomes the cube [-1/2, 1/2]^d.

    The parties must agree on the bounds and not compute them from the rows, because
    otherwise the bounds would depend on rows that are later removed.
    """

    lower: Array
    """Lower bound of each column, (d,), or of all columns, (), in the data's unit."""
    upper: Array
    """Upper bound, in the same form as `lower`."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        if np.shape(self.lower) != np.shape(self.upper) or np.ndim(self.lower) > 1:
            raise ValueError(
                "lower and upper must have one value, or a value for each column, got "
                f"shapes {np.shape(self.lower)} and {np.shape(self.upper)}"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            width = self._width
        if not np.all((width >= np.finfo(np.float64).tiny) & (width < np.inf)):
            raise ValueError("lower must be below upper, and both must be finite")

    @property
    def _width(self) -> Array:
        return np.subtract(self.upper, self.lower, dtype=np.float64)

    @property
    def _is_cube(self) -> bool:
        return bool(np.all(self.lower == -0.5) and np.all(self.upper == 0.5))

    def check(self, rows: Array) -> None:
        """Raise ValueError unless rows, (m, d), are in the box.

        `rows` are all rows of a party, so that the outcome does not depend on the
        draws. The message names the column, not the value.
        """
        if np.ndim(self.lower) == 1 and rows.shape[1] != len(self.lower):
            raise ValueError(
                f"rows must have the {len(self.lower)} columns of the agreed box, got "
                f"{rows.shape[1]}"
            )
        _check_inside(rows, self.lower, self.upper, "the agreed box")

    def scale(self, points: Array) -> Array:
        """Map points, (m, d), from the box into the cube, despite rounding errors."""
        if self._is_cube:
            return points
        return np.asarray((points - self.lower) / self._width - 0.5)

    def restore(self, points: Array) -> Array:
        """Map points from the cube to the box: the inverse of `scale`."""
        if self._is_cube:
            return points
        return np.asarray(self.lower + (points + 0.5) * self._width)


class BoxedRows(RowBlocks):
    """All or some rows of X, (n, d), scaled to the cube block by block."""

    def __init__(self, X: Array | Rows, box: Box, rows: Array | None = None) -> None:
        super().__init__(X, rows=rows)
        self._change = lambda block, _: box.scale(block)


@dataclass(frozen=True, eq=False)
class Quantizer:
    """The bins of line 3 of Algorithm 1 and Appendix H, in the cube [-1/2, 1/2]^d.

    The bin of a coordinate y is a(y) + A with a(y) = argmin_j |y - gamma j|. A is the
    largest such j, so that bin numbers start at 0.

    Differences from [1]: 1. A column has B = 2 A + 1 bins, which is 1 / gamma rounded
    up to an odd number; in [1] the number is 1 / gamma. 2. The outermost bins end where
    the cube ends.

    >>> quantizer = Quantizer(1 / 3)
    >>> quantizer.n_bins
    3
    >>> quantizer.bins(np.array([[-0.3, 0.5], [0.0, -0.5]]))
    array([[0, 2],
           [1, 0]])
    >>> quantizer.centers(np.array([[0, 2]]))
    array([[-0.33333333,  0.33333333]])
    """

    gamma: float
    """Step, in (0, 1]; [1] uses 1 / sqrt(n) for n training rows of all parties."""

    def __post_init__(self) -> None:
        """Check the step."""
        if not 2.0**-33 < self.gamma <= 1 or self.n_bins > 2**32:
            raise ValueError(
                "gamma must be in (0, 1], and a column must have at most 2^32 bins "
                f"(1 / gamma), got {self.gamma}"
            )

    @property
    def n_bins(self) -> int:
        """B, the number of bins of a column."""
        return 2 * self._top + 1

    @property
    def _top(self) -> int:
        # A is 1 / (2 gamma), rounded with ties rounded down, so that gamma = 1 / B
        # gives B bins. The tolerance allows for a gamma that is 1 / B up to rounding.
        return int(np.ceil(0.5 / self.gamma * (1 - 2.0**-50) - 0.5))

    def bins(self, points: Array) -> Array:
        """Return the bins a(y) + A of points in the cube; both arrays are (m, d).

        Raises ValueError, naming the column, if a value is missing or outside the cube.
        """
        _check_inside(points, np.asarray(-0.5), np.asarray(0.5), "the cube of the box")
        a = np.clip(np.rint(points / self.gamma), -self._top, self._top)
        return a.astype(np.int64) + self._top

    def count(self, points: Array, sizes: Array) -> tuple[Array, Array]:
        """Return the nonempty bins in order, (m', d), and their counts q_j, (m',).

        `points`, (m, d), are in the cube; `sizes`, (m,), holds the number of rows of
        each.
        """
        bins, places = np.unique(self.bins(points), axis=0, return_inverse=True)
        counts = np.bincount(places.ravel(), sizes, len(bins))
        return bins, counts.astype(np.int64)

    def centers(self, bins: Array) -> Array:
        """Return the centres of bins in the cube; both arrays are (m, d)."""
        low, side = self._extent(bins)
        return low + side / 2

    def sample(self, bins: Array, counts: Array, rng: np.random.Generator) -> Array:
        """Draw `counts` points, (m,), uniformly inside each bin, (m, d) (line 6).

        Returns the points bin by bin, (sum counts, d), in the cube up to rounding.
        """
        low, side = self._extent(bins)
        points = rng.random((int(counts.sum()), bins.shape[1]))
        points *= np.repeat(side, counts, axis=0)
        points += np.repeat(low, counts, axis=0)
        return points

    def _extent(self, bins: Array) -> tuple[Array, Array]:
        """Return the lowest corner and the sides of each bin."""
        a = bins - self._top
        low = np.maximum(self.gamma * (a - 0.5), -0.5)
        high = np.minimum(self.gamma * (a + 0.5), 0.5)
        return low, high - low


def _check_inside(points: Array, lower: Array, upper: Array, region: str) -> None:
    inside = ((points >= lower) & (points <= upper)).all(axis=0)
    if not inside.all():
        column = int(inside.argmin())
        low, high = (np.broadcast_to(x, inside.shape)[column] for x in (lower, upper))
        raise ValueError(
            f"column {column}, counted from 0, must have values inside {region}, from "
            f"{low:g} to {high:g}"
        )


def server_points(
    quantizer: Quantizer,
    bins: Array,
    counts: Array,
    rng: np.random.Generator,
    points: str = "uniform",
) -> tuple[Array, Array]:
    """Turn the counted bins into weighted points (line 6 of Algorithm 1).

    `bins`, (m, d), are the bins with q_j > 0, and `counts`, (m,), are their row counts
    q_j. "uniform" draws q_j uniform points inside bin j, each of weight 1; "weighted"
    uses the bin's centre with weight q_j. If the uniform points would take more than
    `MAX_SERVER_BYTES`, bin j gets only a fraction of its q_j points, rounded up, with
    weights that add up to q_j. Returns X_s, (m', d), in the cube, and the weights,
    (m',).
    """
    if points == "weighted":
        return quantizer.centers(bins), counts.astype(np.float64)
    share = min(1.0, MAX_SERVER_BYTES / (8 * bins.shape[1]) / max(1, int(counts.sum())))
    drawn = np.ceil(counts * share).astype(np.int64)
    return quantizer.sample(bins, drawn, rng), np.repeat(counts / drawn, drawn)


def server_centroids(
    X_s: Array, weights: Array, k: int, rng: np.random.Generator, n_init: int = 10
) -> Array:
    """Cluster the server's points (line 7 of Algorithm 1, line 5 of Algorithm 5).

    X_s, (m, d), is from `server_points`; in Algorithm 5 it holds the parties' centroids
    themselves. `weights`, (m,), are positive. Returns the best C_s of `n_init` starts,
    (K', d), with K' < K if fewer than K points are distinct. Raises ValueError if there
    are no points.
    """
    if len(X_s) == 0:
        raise ValueError("the parties must have at least one row, got 0")
    distinct = len(initialise(RowBlocks(X_s), k, rng)[0])
    return weighted_kmeans(X_s, distinct, weights, rng, n_init)[0]


def number_of_clusters(
    points: Array, weights: Array, most: int, rng: np.random.Generator, n_init: int = 10
) -> int:
    """Return the K from 2 to `most` with the largest mean of `simplified_silhouettes`.

    `points`, (m, d), are distinct, and `weights`, (m,), are positive. K is also at most
    m / 2, unless m < 4: with a centre at each point, the silhouette is always 1 and
    therefore meaningless. If min(m, `most`) is below 2, K equals this minimum. The
    choice is a heuristic: no K is right for all purposes, and a single cluster cannot
    be chosen.
    """
    m = len(points)
    if min(m, most) < 2:
        return min(m, most)

    def silhouette(k: int) -> float:
        centers = server_centroids(points, weights, k, rng, n_init)
        return float(weights @ simplified_silhouettes(points, centers))

    return max(range(2, min(most, max(2, m // 2)) + 1), key=silhouette)


def induced_labels(centroids: Array, labels: Array, centers: Array) -> Array:
    """Return the global cluster of each row's local centroid (Definition 3.1), (n,).

    `centroids` are C^(l), (k', d), not quantised; `labels`, (n,), are the rows' local
    clusters; and `centers` are C_s.
    """
    if len(centroids) == 0:
        return np.empty(0, np.int64)
    return assign(centroids, centers)[0][labels]


def contributions(blocks: RowBlocks, centers: Array, labels: Array) -> Array:
    """Return each row's contribution to the objective, phi_f in equation 2, shape (n,).

    The contribution is |x_i - c_i|^2. `blocks` are the rows, (n, d), `centers` are C_s,
    (K, d), and `labels`, (n,), are the rows' global clusters.
    """

    def terms(part: slice, X: Array) -> list[Array]:
        return [row_squares(X - centers[labels[part]])]

    return np.concatenate(blocks.map_reduce(terms, operator.add, [np.empty(0)]))
