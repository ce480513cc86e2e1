r"""k-means of rows that several parties hold, from one weighted sample of all rows.

The symbols are those of Algorithm 1 of [1]. Party m holds the rows P_m and finds
centres B_m of its own. They cost c_m = sum_{p in P_m} m_p, where m_p is the smallest
|p - b|^2 of b in B_m. The server splits t draws among the parties in proportion to c_m.
Party m sends its draws S_m and B_m, weighted so that, for any centres C,

    E sum_q w_q min_{c in C} |q - c|^2 = sum_m sum_{p in P_m} min_{c in C} |p - c|^2.

=================  ==================================================================
`local_solution`   party m: B_m and c_m, of which c_m goes to the server
`split_budget`     server: all t_m from all c_m
`sample`           party m: the rows of S_m and B_m, and their weights
`combine`          server: k centres of the union of all samples
=================  ==================================================================

Differs from [1] in: 1. Half of the draws are uniform: a row next to a centre, with
m_q / c_m tiny, has no huge weight when it is drawn (`sample`; ``uniform=0`` is [1]).
2. t_m is an integer (`split_budget`), and the weights are made with it: without uniform
draws c_m / (t_m m_q), the paper's sum_l c_l / (t m_q) where t_m is exactly
t c_m / sum_l c_l, and unbiased where it is rounded. 3. A row that is drawn r times is
sent once with r times the weight. 4. A party whose share is no smaller than its number
of rows sends them all with weight 1, which is fewer numbers and has no error.

The server sees the costs and the rows sent. A party with at most k distinct rows has
cost 0, and its centres are these rows. The weight of a centre in B_m may be negative.

References
----------
[1] M.-F. Balcan, S. Ehrlich and Y. Liang, "Distributed k-means and k-median clustering
on general topologies", NIPS 2013.
"""

from __future__ import annotations

import operator

import numpy as np

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import ClusterSummary, cluster_summary
from vfl_flower.numerics.kmeans import assign, draw, weighted_kmeans
from vfl_flower.typing import Array

__all__ = [
    "combine",
    "first_of_equals",
    "local_solution",
    "sample",
    "split_budget",
]

ROUNDING = 1e-7
"""Distance of points that rounding may cause, relative to the longest."""


def local_solution(
    blocks: RowBlocks, k: int, rng: np.random.Generator
) -> ClusterSummary:
    """Cluster a party's own rows (Algorithm 1 of [1], round 1).

    Parameters
    ----------
    blocks : RowBlocks, shape (n_m, d)
        P_m.
    k : int
        Number of clusters; may be above n_m.
    rng : numpy.random.Generator
        Source of the seeding.

    Returns
    -------
    ClusterSummary
        `centers` is B_m, shape (k_m, d) with k_m <= k and every cluster occupied;
        `sizes` is |P_b|; `costs` sum to c_m, which is exactly 0 where the rows have at
        most k distinct values.

    Raises
    ------
    ValueError
        `k` is below 1, or there is no row.

    Examples
    --------
    >>> blocks = RowBlocks(np.array([[0.0], [2.0], [9.0]]))
    >>> solution = local_solution(blocks, 2, np.random.default_rng(0))
    >>> sorted(zip(solution.centers.ravel().tolist(), solution.costs.tolist()))
    [(1.0, 2.0), (9.0, 0.0)]
    """
    return cluster_summary(blocks, k, rng)


def split_budget(costs: Array, budget: int) -> Array:
    """Split the draws among the parties in proportion to their costs (round 2).

    Parameters
    ----------
    costs : Array, shape (M,)
        c_m, non-negative.
    budget : int
        t, the number of draws: at least the number of parties with a positive cost, or
        0 for the local centres alone.

    Returns
    -------
    Array of int64, shape (M,)
        t_m, with sum t: one for each positive cost, since a party without a draw would
        not show its spread at all, and the rest in proportion to c_m, by largest
        remainders. 0 for a cost of 0; all are 0 if all costs are.

    Raises
    ------
    ValueError
        A cost is negative or not finite, or `budget` is too small.

    Examples
    --------
    >>> split_budget(np.array([6.0, 0.0, 3.9, 0.1]), 10)
    array([5, 0, 4, 1])
    """
    if not (np.isfinite(costs).all() and (costs >= 0).all()):
        raise ValueError("costs must be at least 0 and finite")
    counts = (costs > 0).astype(np.int64)
    if budget == 0 or not counts.any():
        return np.zeros_like(counts)
    if budget < counts.sum():
        raise ValueError(
            f"budget must be 0, or at least {counts.sum()}, the number of parties with "
            f"a positive cost, got {budget}"
        )
    shares = (budget - counts.sum()) * (costs / costs.sum())
    counts += np.floor(shares).astype(np.int64)
    largest = np.argsort(np.floor(shares) - shares, kind="stable")
    counts[largest[: budget - counts.sum()]] += 1
    return counts


def sample(
    blocks: RowBlocks,
    solution: ClusterSummary,
    count: int,
    rng: np.random.Generator,
    uniform: float = 0.5,
) -> tuple[Array, Array]:
    """Draw a party's part of the sample, and add its centres (round 2 of [1]).

    Parameters
    ----------
    blocks : RowBlocks, shape (n_m, d)
        P_m.
    solution : ClusterSummary
        From `local_solution` of the same rows.
    count : int
        t_m, from `split_budget`.
    rng : numpy.random.Generator
        Source of the draws.
    uniform : float
        u in [0, 1]: row q is drawn with p_q = (1 - u) m_q / c_m + u / n_m. [1] has 0.

    Returns
    -------
    points : Array, shape (a, d)
        The distinct rows of S_m in the order of their numbers, then B_m; a is at most
        t_m + k_m. All rows where t_m >= n_m.
    weights : Array, shape (a,)
        w_q = r_q / (t_m p_q) for a row drawn r_q times, at most r_q n_m / (u t_m);
        w_b = |P_b| - sum_{q in S_m, q in P_b} w_q for a centre, which is negative where
        the draws of its cluster outweigh it. The sum is n_m up to rounding. All 1 where
        t_m >= n_m. If t_m or c_m is 0, only the centres, each with weight |P_b|.

    Raises
    ------
    ValueError
        `count` is negative, or `uniform` is not in [0, 1].

    Notes
    -----
    With u = 0 a row near its centre is drawn rarely and then has a large weight, which
    its centre loses. The cost hardly changes, but a clustering that cannot use
    negative weights sees only the large one. On mushrooms (8124 rows, k = 2,
    s = 4, M = 5, ten seeds) the negative weights are 40 % of n at t = 300 and 6 % at
    1000, against 6 % and 3 % with u = 0.5, and the cost of `combine` is 2.8 % and 0.9 %
    above that of k-means on all rows, against 0.4 % and 0.2 %. On digits it is equal.

    Examples
    --------
    Rows 0, 2 and 9 with centres 1 and 9: m = (1, 1, 0), so p = (5, 5, 2) / 12. The
    draw, row 2, has weight 12 / 5, and centre 1 has 2 - 12 / 5.

    >>> blocks = RowBlocks(np.array([[0.0], [2.0], [9.0]]))
    >>> solution = ClusterSummary(
    ...     np.array([[1.0], [9.0]]), np.array([2, 1]), np.array([2.0, 0.0])
    ... )
    >>> points, weights = sample(blocks, solution, 1, np.random.default_rng(0))
    >>> points.ravel().tolist(), np.round(weights, 12).tolist()
    ([2.0, 1.0, 9.0], [2.4, -0.4, 1.0])
    """
    if count < 0:
        raise ValueError(f"count must be at least 0, got {count}")
    if not 0 <= uniform <= 1:
        raise ValueError(f"uniform must be from 0 to 1, got {uniform}")
    n = len(blocks)
    if count >= n:
        return blocks.take(np.arange(n)), np.ones(n)
    centers, center_weights = solution.centers, solution.sizes.astype(np.float64)
    if count == 0 or not solution.costs.any():
        return centers, center_weights
    parts = blocks.map_reduce(
        lambda _, X: [assign(X, centers)], operator.add, list[tuple[Array, Array]]()
    )
    labels = np.concatenate([part[0] for part in parts])
    costs = np.concatenate([part[1] for part in parts])
    p = (1 - uniform) * costs / costs.sum() + uniform / n
    rows, times = np.unique(draw(p, count, rng), return_counts=True)
    weights = times / (count * p[rows])
    center_weights -= np.bincount(labels[rows], weights, minlength=len(centers))
    return (
        np.concatenate([blocks.take(rows), centers]),
        np.concatenate([weights, center_weights]),
    )


def combine(
    points: Array,
    weights: Array,
    k: int,
    rng: np.random.Generator,
    n_init: int = 10,
) -> Array:
    """Cluster the samples of all parties at the server (weighted k-means of [1]).

    Parameters
    ----------
    points : Array, shape (a, d)
        The samples of all parties.
    weights : Array, shape (a,)
        Their weights, of either sign.
    k : int
        Number of centres.
    rng : numpy.random.Generator
        Source of the seeding.
    n_init : int
        Number of starts.

    Returns
    -------
    Array, shape (k, d)
        The centres; some are equal where there are fewer than k distinct points (see
        `first_of_equals`).

    Raises
    ------
    ValueError
        `k` is below 1, or no weight is positive.

    Notes
    -----
    The mean of w_b is 0 where every row of P_b can be drawn, so about half of the local
    centres have a negative weight, of the order |P_b| / sqrt(t_b) with t_b draws in the
    cluster. The cost with signed weights is well defined all the same, but it is no
    objective to minimise: where the signed weight of a cluster is not positive, its
    mean is a maximum, and its minimiser fits the noise of the draws. So only the points
    of positive weight are clustered; the cost that this adds vanishes as draws grow. On
    the kernel features of digits (1797 rows, k = 10, s = 20, M = 5, ten seeds, t = 300
    and 1000) the cost is then 3.9 % and 1.3 % above that of k-means on all rows.
    Lloyd's iteration with the signed weights, from the start of the least signed cost,
    gives 5.2 % and 1.5 %, and on mushrooms 1.1 % at t = 300 instead of 0.4 %.
    """
    positive = weights > 0
    if not positive.any():
        raise ValueError("weights must have a positive value")
    points, weights = points[positive], weights[positive]
    distinct = min(k, len(points))
    centers, _ = weighted_kmeans(points, distinct, weights, rng, n_init)
    return first_of_equals(centers)[np.arange(k) % distinct]


def first_of_equals(centers: Array) -> Array:
    """Replace each centre by the first that is equal to it up to rounding.

    Parameters
    ----------
    centers : Array, shape (k, d)
        Centres of rows in a space of kernel features, around its origin.

    Returns
    -------
    Array, shape (k, d)
        Centres count as equal where they are apart by at most 1e-7 of the length of the
        longest: rounding in K changes the lengths of its eigenvectors by up to that
        share. k-means that looks for more clusters than there are distinct rows finds a
        row several times, and rounding alone would decide which of the equal rows is in
        which cluster. With equal centres, the first one gets all of them.

    Examples
    --------
    >>> first_of_equals(np.array([[1.0], [0.5], [1.0 + 1e-15]])).ravel().tolist()
    [1.0, 0.5, 1.0]
    """
    longest = np.linalg.norm(centers, axis=1).max()
    distances = np.linalg.norm(centers[:, None] - centers, axis=2)
    return np.asarray(centers[(distances <= ROUNDING * longest).argmax(axis=1)])
