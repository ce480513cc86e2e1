r"""k-means on rows held by several parties, from one weighted sample of all rows.

The symbols are those of Algorithm 1 of [1]. Party m holds the rows P_m and finds local
centres B_m. Their cost is c_m = sum_{p in P_m} m_p, where m_p is the smallest |p - b|^2
over b in B_m. The server splits t draws among the parties in proportion to c_m. Party m
sends its draws S_m and its centres B_m, weighted so that, for any centres C,

    E sum_q w_q min_{c in C} |q - c|^2 = sum_m sum_{p in P_m} min_{c in C} |p - c|^2.

Differences from [1]: 1. Half of the draws are uniform. Otherwise a row close to a
centre, whose m_q / c_m is tiny, would get a huge weight if drawn (`sample`;
``uniform=0`` gives [1]). 2. t_m is an integer (`split_budget`), and the weights are
computed from this integer: without uniform draws they are c_m / (t_m m_q), which is
unbiased even though t_m is rounded. 3. A row that is drawn r times is sent once, with
its weight multiplied by r. 4. If a party has at least as many draws as rows, it sends
all its rows with weight 1.

The server sees the costs and the rows sent. A party with at most k distinct rows has
cost 0, and its centres are these rows.

[1] M.-F. Balcan, S. Ehrlich and Y. Liang, "Distributed k-means and k-median clustering
on general topologies", NIPS 2013.
"""

from __future__ import annotations

import operator

import numpy as np

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import ClusterSummary
from vfl_flower.numerics.kmeans import assign, draw, weighted_kmeans
from vfl_flower.typing import Array

ROUNDING = 1e-7
"""Maximum distance between points treated as equal, relative to the largest norm."""


def split_budget(costs: Array, budget: int) -> Array:
    """Return t_m, the split of t draws in proportion to the costs c_m (round 2).

    Both have the shape (M,). Each party with a positive cost gets one draw, and the
    remaining draws are split in proportion to c_m by the largest-remainder method. A
    `budget` t of 0 requests only the local centres. Raises ValueError if a cost is
    negative or not finite, or if t is neither 0 nor at least the number of positive
    costs.
    """
    if not (np.isfinite(costs).all() and (costs >= 0).all()):
        raise ValueError("costs must be non-negative and finite")
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
    """Draw a party's rows for the sample, and add its centres (round 2 of [1]).

    `solution` is the `cluster_summary` of the rows P_m, (n_m, d), and `count` is t_m.
    Row q is drawn with the probability p_q = (1 - u) m_q / c_m + u / n_m, where u is
    `uniform` (0 in [1]).

    Returns points, (a, d), and weights, (a,): first the distinct rows of S_m, in the
    order of their numbers, and then B_m. So a <= t_m + k_m. A row drawn r_q times has
    the weight w_q = r_q / (t_m p_q), at most r_q n_m / (u t_m). A centre has the weight
    w_b = |P_b| - sum_{q in S_m, q in P_b} w_q, which is negative if the draws from its
    cluster outweigh the cluster. The sum of the weights is n_m up to rounding. If t_m
    >= n_m, the sample is all rows with weight 1; if t_m or c_m is 0, the sample is only
    the centres, each with weight |P_b|.

    With u = 0, a row near its centre is rarely drawn. If it is drawn, it gets a large
    weight, which is subtracted from the weight of its centre. Since `combine` cannot
    use negative weights, it then uses only the large weight.

    For rows 0, 2 and 9 and centres 1 and 9, m = (1, 1, 0) and p = (5, 5, 2) / 12. The
    drawn row, row 2, has weight 12 / 5, and centre 1 has weight 2 - 12 / 5.

    >>> blocks = RowBlocks(np.array([[0.0], [2.0], [9.0]]))
    >>> solution = ClusterSummary(
    ...     np.array([[1.0], [9.0]]), np.array([2, 1]), np.array([2.0, 0.0])
    ... )
    >>> points, weights = sample(blocks, solution, 1, np.random.default_rng(0))
    >>> points.ravel().tolist(), np.round(weights, 12).tolist()
    ([2.0, 1.0, 9.0], [2.4, -0.4, 1.0])
    """
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
    points = np.concatenate([blocks.take(rows), centers])
    return points, np.concatenate([weights, center_weights])


def combine(
    points: Array, weights: Array, k: int, rng: np.random.Generator, n_init: int = 10
) -> Array:
    """Cluster the samples of all parties at the server (weighted k-means of [1]).

    `points` has the shape (a, d), `weights` the shape (a,), and the result the shape
    (k, d). Weights can have either sign. If fewer than k points are distinct, some
    centres are equal (see `first_of_equals`). Raises ValueError if `k` is below 1 or no
    weight is positive.

    If every row of P_b can be drawn, the mean of w_b is 0. So about half of the local
    centres have a negative weight, of order |P_b| / sqrt(t_b) for t_b draws in the
    cluster. The cost with signed weights is not a useful objective: if the signed
    weight of a cluster is not positive, the cluster's mean maximises its cost, and the
    minimiser fits the noise of the draws. So only the points of positive weight are
    clustered. The resulting excess cost vanishes as the number of draws grows.
    """
    positive = weights > 0
    if not positive.any():
        raise ValueError("at least one weight must be positive")
    points, weights = points[positive], weights[positive]
    return first_of_equals(weighted_kmeans(points, k, weights, rng, n_init)[0])


def first_of_equals(centers: Array) -> Array:
    """Replace each of the centres, (k, d), with the first centre equal to it.

    Centres are treated as equal if their distance is at most 1e-7 times the largest
    norm of a centre, since rounding in the kernel matrix K changes the lengths of its
    eigenvectors by up to this factor. Without this step, rounding would decide which of
    several equal rows belongs to which cluster.
    """
    longest = np.linalg.norm(centers, axis=1).max()
    distances = np.linalg.norm(centers[:, None] - centers, axis=2)
    return np.asarray(centers[(distances <= ROUNDING * longest).argmax(axis=1)])
