"""Coresets for vertical regression and k-means: scores, draws, weights, diagnostics.

The symbols are those of [1]. Party j holds X^(j), which has n rows, and assigns row i
the score g_i^(j). G^(j) = sum_i g_i^(j), and G = sum_j G^(j). S is the drawn multiset
of m rows, and w are its weights.

[1] L. Huang, Z. Li, J. Sun and H. Zhao, "Coresets for vertical federated learning:
regularized linear regression and k-means clustering", NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import assign, draw, lloyd, seed_centers
from vfl_flower.numerics.leverage import EPS
from vfl_flower.rows import add_each
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array


def vrlr_sensitivities(scores: Array, n: int) -> Array:
    """Return g_i = |u_i|^2 + 1/n (Algorithm 2, line 3) from leverage scores |u_i|^2.

    Both have the shape (m,). The sum over all rows is G^(j) = rank + 1.
    """
    return np.asarray(scores + 1 / n)


@shapes_only
@dataclass(frozen=True, eq=False)
class ClusterSummary:
    """The results of a local clustering, used by Algorithm 3; no cluster is empty."""

    centers: Array
    """C^(j), of shape (k, d)."""
    sizes: Array
    """|B_l|, the number of rows in each cluster, at least 1; int64, of shape (k,)."""
    costs: Array
    """Sums of |x_i - c_l|^2 over each B_l, of shape (k,), which add up to cost^(j)."""


def cluster_summary(
    blocks: RowBlocks,
    k: int,
    rng: np.random.Generator,
    method: Literal["lloyd", "seeding"] = "lloyd",
) -> ClusterSummary:
    """Cluster a party's rows X^(j), (n, d), and summarise the nonempty clusters.

    This is Algorithm 3, lines 2-8. "lloyd" is k-means++ seeding followed by Lloyd's
    iteration; "seeding" is only the seeding, an O(ln k) approximation that [1]
    mentions.
    """
    centers = seed_centers(blocks, k, rng)
    if method == "lloyd":
        centers = lloyd(blocks, centers)

    def sums(_: slice, rows: Array) -> tuple[Array, Array]:
        labels, distances = assign(rows, centers)
        return np.bincount(labels, minlength=k), np.bincount(labels, distances, k)

    zeros = np.zeros(k, dtype=np.int64), np.zeros(k)
    sizes, costs = blocks.map_reduce(sums, add_each, zeros)
    occupied = sizes > 0
    return ClusterSummary(centers[occupied], sizes[occupied], costs[occupied])


def vkmc_sensitivities(
    rows: Array, summary: ClusterSummary, alpha: float = 2.0
) -> Array:
    """Return the sensitivities of k-means (Algorithm 3, line 10), of shape (b,).

    `rows`, (b, d), are some of the rows that `summary` describes. The cost of the
    summarised clustering is at most `alpha` times the lowest possible cost. For i in
    B_l the sensitivity is

        alpha |x_i - c_l|^2 / cost + alpha cost_l / (|B_l| cost) + 2 alpha / |B_l|.

    Each sensitivity is at most 4 alpha, and the sum over all rows is G^(j) =
    2 alpha (1 + k). At cost 0, the first two terms are 0.

    Here rows 0 and 4 form a cluster with centre 1, and row 9 forms another. The cost is
    10.

    >>> summary = ClusterSummary(
    ...     np.array([[1.0], [9.0]]), np.array([2, 1]), np.array([10.0, 0.0])
    ... )
    >>> vkmc_sensitivities(np.array([[0.0], [4.0], [9.0]]), summary, alpha=1.0)
    array([1.6, 2.4, 2. ])
    """
    labels, distances = assign(rows, summary.centers)
    cost = float(summary.costs.sum()) or 1.0  # at cost 0 the numerators are 0 too
    of_each_cluster = summary.costs / (summary.sizes * cost) + 2 / summary.sizes
    return np.asarray(alpha * (distances / cost + of_each_cluster[labels]))


def allocate(totals: Array, size: int, rng: np.random.Generator) -> Array:
    """Draw a_j, (T,), multinomial with shares G^(j) / G (Algorithm 1, lines 3-4)."""
    return np.bincount(draw(totals, size, rng), minlength=len(totals))


def coreset_weights(total: float, scores: Array) -> Array:
    """Return w(i) = G / (m sum_j g_i^(j)) (Algorithm 1, line 8), of shape (m,).

    `total` is G, and `scores`, (m,), holds the score of each draw i of S, summed over
    all parties; m = |S|. The expectation of a weighted sum over S is the sum over all
    rows. Raises ValueError if a score is not positive: such a row cannot be drawn.
    """
    if not (scores > 0).all():
        raise ValueError("scores of drawn rows must be positive")
    return total / (len(scores) * scores)


def uniform(n: int, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw m rows, (m,), without replacement, with weights n / m: the baseline of [1].

    Raises ValueError unless m, the `size`, is from 1 to n.
    """
    if not 1 <= size <= n:
        raise ValueError(f"size must be from 1 to {n}, the number of rows, got {size}")
    return rng.choice(n, size, replace=False), np.full(size, n / size)


def sigma_min(blocks: Sequence[Array], weights: Array) -> float:
    """Estimate sigma_min([U^(1) ... U^(T)]) of Assumption 4.1 from a weighted sample.

    `blocks` are the parties' columns of the sample, shapes (m, d_j), and [X^(T), y] at
    the label holder; `weights`, (m,), are not negative. The result, gamma, is 1 if the
    parties' column spaces are orthogonal, near 0 if they nearly overlap, and 0 if there
    are fewer rows than columns. The coreset needs a size of order gamma^-2.

    U^(j) is an orthonormal basis of the column space of party j's weighted rows,
    without directions below max(m, d_j) eps S_1, and gamma is the smallest nonzero
    singular value of U = [U^(1) .. U^(T)]. The paper's proof needs this singular value:
    each model equals U theta for some theta orthogonal to the null space, so
    ``|U theta| >= gamma |theta|``. The squared length of row i of U is at most
    sum_j g_ij, so the leverage score of the row is at most that sum divided by gamma^2.

    For two unit vectors at an angle of 60 degrees, sigma^2 = 1 - cos 60.

    >>> a, b = np.array([[1.0], [0.0]]), np.array([[1.0], [3**0.5]])
    >>> round(sigma_min([a, b], np.ones(2)) ** 2, 12)
    0.5
    """
    U = np.hstack([_basis(X, weights) for X in blocks])
    if U.shape[1] > U.shape[0]:
        return 0.0
    S = np.linalg.svd(U, compute_uv=False)
    return float(S[max(U.shape) * EPS * S[:1] < S].min(initial=1.0))


def _basis(X: Array, weights: Array) -> Array:
    """Return an orthonormal basis of the columns of W^(1/2) X."""
    rows = np.sqrt(weights)[:, None] * X
    largest = np.abs(rows).max(axis=0)
    rows = rows[:, largest > 1e-290] / largest[largest > 1e-290]
    U, S, _ = np.linalg.svd(rows / np.linalg.norm(rows, axis=0), full_matrices=False)
    return np.asarray(U[:, max(rows.shape) * EPS * S[:1] < S])


def tau(
    blocks: Sequence[Array], rng: np.random.Generator, pairs: int = 10_000
) -> float:
    """Estimate tau of Assumption 5.1 from sampled pairs of rows.

    The assumption is that some party t has |x_i - x_i'|^2 <= tau
    |x_i^(t) - x_i'^(t)|^2 for all pairs of rows. `blocks` are the parties' columns of
    the same rows, shapes (m, d_j), m >= 2, and `pairs` is the number of pairs, drawn
    with replacement.

    Returns the minimum over the parties t of the maximum ratio in the sampled pairs.
    The minimum is at least 1, and infinite if each party has a pair of rows that differ
    only in other parties' columns. It is a lower bound on the true tau: for a given
    party, with probability 0.95, at most a fraction 3 / pairs of all pairs has a ratio
    above the party's maximum.
    """
    m = len(blocks[0])
    i = rng.integers(m, size=pairs)
    j = (i + rng.integers(1, m, size=pairs)) % m
    local = np.array([((X[i] - X[j]) ** 2).sum(axis=1) for X in blocks])
    joint = local.sum(axis=0)
    ratios = np.full(local.shape, np.inf)
    with np.errstate(over="ignore"):
        np.divide(joint, local, out=ratios, where=local > 0)
    ratios[:, joint == 0] = 1
    return float(ratios.max(axis=1).min())


def importance_estimate(losses: Array, weights: Array, n: int) -> tuple[float, float]:
    """Estimate the mean loss over all n rows from an independent weighted draw.

    `losses` and `weights` (from `coreset_weights` or `uniform`) have the shape (m,).
    Returns the mean, sum_i w_i loss_i / n, and its standard error. The mean is unbiased
    if the model was fitted without this draw. Raises ValueError if there are fewer than
    two draws.
    """
    m = len(losses)
    if m < 2:
        raise ValueError(f"a standard error requires at least 2 draws, got {m}")
    terms = m * weights * losses / n
    return float(terms.mean()), float(terms.std(ddof=1) / np.sqrt(m))
