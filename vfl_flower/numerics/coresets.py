"""Coresets for vertical regression and k-means: scores, draws, weights, diagnostics.

The symbols are those of [1]: party j holds X^(j) of n rows and gives row i the score
g_i^(j); G^(j) = sum_i g_i^(j), G = sum_j G^(j); S is the drawn multiset of m rows and w
its weights.

References
----------
[1] L. Huang, Z. Li, J. Sun and H. Zhao, "Coresets for vertical federated learning:
regularized linear regression and k-means clustering", NeurIPS 2022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import assign, draw, lloyd, seed_centers
from vfl_flower.numerics.leverage import EPS, leverage_factor, leverage_scores
from vfl_flower.rows import add_each
from vfl_flower.typing import Array

__all__ = [
    "ClusterSummary",
    "Constants",
    "allocate",
    "cluster_summary",
    "coreset_weights",
    "draw",
    "importance_estimate",
    "leverage_factor",
    "leverage_scores",
    "sigma_min",
    "tau",
    "theorem31_size",
    "theorem42_size",
    "theorem52_size",
    "uniform",
    "vkmc_sensitivities",
    "vrlr_sensitivities",
]

Constants = Literal["one", "proof"]
"""What stands for the constants that Theorems 4.2 and 5.2 leave out.

"one": each O(.) of the theorem is 1. "proof": the bounds of zeta and G with which the
proof goes into Theorem 3.1, and 1 for the O(.) of that one.
"""


def vrlr_sensitivities(scores: Array, n: int) -> Array:
    """Return g_i = |u_i|^2 + 1/n (Algorithm 2, line 3).

    Parameters
    ----------
    scores : Array, shape (m,)
        Leverage scores of all rows or of some.
    n : int
        Number of all rows.

    Returns
    -------
    Array, shape (m,)
        The sensitivities; over all rows their sum is G^(j) = rank + 1.
    """
    return np.asarray(scores + 1 / n)


@dataclass(frozen=True, eq=False)
class ClusterSummary:
    """What Algorithm 3 needs to know of a local clustering; no cluster is empty.

    Parameters
    ----------
    centers : Array, shape (k, d)
        C^(j).
    sizes : Array of int64, shape (k,)
        |B_l|, the number of rows of each cluster; at least 1.
    costs : Array, shape (k,)
        Sum of |x_i - c_l|^2 over B_l; their sum is cost^(j).
    """

    centers: Array
    sizes: Array
    costs: Array


def cluster_summary(
    blocks: RowBlocks,
    k: int,
    rng: np.random.Generator,
    method: str = "lloyd",
    max_iter: int = 100,
    tol: float = 1e-4,
) -> ClusterSummary:
    """Cluster a party's rows and summarise the clusters (Algorithm 3, lines 2-8).

    Parameters
    ----------
    blocks : RowBlocks, shape (n, d)
        X^(j).
    k : int
        Number of clusters.
    rng : numpy.random.Generator
        Source of the seeding.
    method : {"lloyd", "seeding"}
        k-means++ seeding followed by Lloyd's iteration, or the seeding alone: cheaper,
        and the O(ln k) approximation [1] names.
    max_iter, tol : int, float
        For "lloyd": see `vfl_flower.numerics.kmeans.lloyd`.

    Returns
    -------
    ClusterSummary
        Of the clusters that are not empty, k or fewer.

    Raises
    ------
    ValueError
        `method` is unknown, `k` is below 1, or there is no row.
    """
    if method not in ("lloyd", "seeding"):
        raise ValueError(f"method must be 'lloyd' or 'seeding', got {method!r}")
    centers = seed_centers(blocks, k, rng)
    if method == "lloyd":
        centers = lloyd(blocks, centers, max_iter=max_iter, tol=tol)

    def sums(_: slice, rows: Array) -> tuple[Array, Array]:
        labels, distances = assign(rows, centers)
        return np.bincount(labels, minlength=k), np.bincount(labels, distances, k)

    sizes, costs = blocks.map_reduce(
        sums, add_each, (np.zeros(k, dtype=np.int64), np.zeros(k))
    )
    occupied = sizes > 0
    return ClusterSummary(centers[occupied], sizes[occupied], costs[occupied])


def vkmc_sensitivities(
    rows: Array, summary: ClusterSummary, alpha: float = 2.0
) -> Array:
    """Return the sensitivities of k-means (Algorithm 3, line 10).

    Parameters
    ----------
    rows : Array, shape (b, d)
        One block of the rows that `summary` describes.
    summary : ClusterSummary
        The local clustering.
    alpha : float
        Its approximation factor: cost is at most alpha times the lowest cost.

    Returns
    -------
    Array, shape (b,)
        For i in B_l: alpha |x_i - c_l|^2 / cost + alpha cost_l / (|B_l| cost)
        + 2 alpha / |B_l|. Each is at most 4 alpha, and over all rows their sum is
        G^(j) = 2 alpha (1 + k). At cost 0 the first two terms are 0.

    Examples
    --------
    Rows 0 and 4 in a cluster with centre 1, row 9 alone: cost 1 + 9 = 10.

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
    """Split the draws among the parties (Algorithm 1, lines 3-4).

    Parameters
    ----------
    totals : Array, shape (T,)
        G^(j), non-negative with a positive sum.
    size : int
        m, the number of draws.
    rng : numpy.random.Generator
        Source of the draws.

    Returns
    -------
    Array of int64, shape (T,)
        a_j: multinomial with probabilities G^(j) / G; the sum is m.

    Raises
    ------
    ValueError
        As for `draw`.
    """
    return np.bincount(draw(totals, size, rng), minlength=len(totals))


def coreset_weights(total: float, scores: Array) -> Array:
    """Return w(i) = G / (|S| sum_j g_i^(j)) (Algorithm 1, line 8).

    Parameters
    ----------
    total : float
        G, the sum of all scores of all parties.
    scores : Array, shape (m,)
        sum_j g_i^(j) for each draw i of S.

    Returns
    -------
    Array, shape (m,)
        The weights. The expectation of a weighted sum over S is the sum over all rows,
        so that of the sum of the weights is n.

    Raises
    ------
    ValueError
        A score is not positive: no such row can have been drawn.
    """
    if not (scores > 0).all():
        raise ValueError("scores of drawn rows must be positive")
    return total / (len(scores) * scores)


def uniform(n: int, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw rows uniformly without replacement, the baseline of [1].

    Parameters
    ----------
    n : int
        Number of rows.
    size : int
        m, the number of draws.
    rng : numpy.random.Generator
        Source of the draws.

    Returns
    -------
    rows : Array of int64, shape (size,)
        Distinct row numbers.
    weights : Array, shape (size,)
        n / size each.

    Raises
    ------
    ValueError
        `size` is not between 1 and `n`.
    """
    if not 1 <= size <= n:
        raise ValueError(f"size must be from 1 to {n}, the number of rows, got {size}")
    return rng.choice(n, size, replace=False), np.full(size, n / size)


def sigma_min(blocks: Sequence[Array], weights: Array) -> float:
    """Estimate sigma_min([U^(1) ... U^(T)]) of Assumption 4.1 from a weighted sample.

    Parameters
    ----------
    blocks : sequence of Array, shapes (m, d_j)
        The parties' rows of the sample; [X^(T), y] at the label holder.
    weights : Array, shape (m,)
        Non-negative weights of the sample; ones if the rows are all rows.

    Returns
    -------
    float
        gamma in [0, 1]: 1 where the parties' column spaces are orthogonal, near 0
        where one column is nearly in the span of another party's. The coreset needs a
        size of order gamma^-2. A sample with fewer rows than columns gives 0.

    Notes
    -----
    U^(j) is an orthonormal basis of the weighted rows of party j, by a singular value
    decomposition with columns scaled to length 1; directions below
    max(m, d_j) eps S_1 are left out, so a party's own repeated columns do not count.
    Nor does a column that is exactly in the span of others, by the same rule: gamma is
    the smallest singular value of U = [U^(1) .. U^(T)] that is not 0. It is what the
    paper's proof needs. A model is some U theta with theta orthogonal to the null
    space, so ``|U theta| >= gamma |theta|``, and row i of U is at most as long as the
    root of sum_j g_ij: its leverage score is at most that sum over gamma^2.

    Examples
    --------
    Two unit vectors at 60 degrees: sigma^2 = 1 - cos 60.

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

    The assumption: some party t has |x_i - x_i'|^2 <= tau |x_i^(t) - x_i'^(t)|^2 for
    all pairs of rows.

    Parameters
    ----------
    blocks : sequence of Array, shapes (m, d_j)
        The parties' columns of the same rows.
    rng : numpy.random.Generator
        Source of the pairs.
    pairs : int
        Number of pairs, drawn with replacement.

    Returns
    -------
    float
        min_t max over the sampled pairs of the ratio; at least 1, and infinite where
        each party has a pair of rows that differ in other parties' columns alone. Pairs
        that are equal at all parties fulfil the assumption with any tau and count as 1.

    Raises
    ------
    ValueError
        Fewer than two rows, or `pairs` is below 1.

    Notes
    -----
    The estimate is a lower bound of the true tau, and grows with `pairs` where the
    ratios have a heavy tail. A large value proves that the assumption fails; a small
    one does not prove that it holds for all pairs: with probability 0.95 at most a
    share 3 / pairs of all pairs exceeds the value that a given party attains.

    Examples
    --------
    One pair: 25 in all, 16 of it at the second party.

    >>> blocks = [np.array([[0.0], [3.0]]), np.array([[0.0], [4.0]])]
    >>> tau(blocks, np.random.default_rng(0))
    1.5625
    """
    m = len(blocks[0])
    if m < 2:
        raise ValueError(f"tau needs at least 2 rows, got {m}")
    if pairs < 1:
        raise ValueError(f"pairs must be at least 1, got {pairs}")
    i = rng.integers(m, size=pairs)
    j = (i + rng.integers(1, m, size=pairs)) % m
    local = np.array([((X[i] - X[j]) ** 2).sum(axis=1) for X in blocks])
    joint = local.sum(axis=0)
    ratios = np.full(local.shape, np.inf)
    with np.errstate(over="ignore"):
        np.divide(joint, local, out=ratios, where=local > 0)
    ratios[:, joint == 0] = 1
    return float(ratios.max(axis=1).min())


def theorem31_size(
    total: float, dimension: float, eps: float = 0.1, delta: float = 0.1
) -> float:
    r"""Return the size of an epsilon-coreset by Theorem 3.1, with 1 for its O(.).

    .. math:: m = \epsilon^{-2}\, \zeta G\, (D \log(\zeta G) + \log(1/\delta))

    Parameters
    ----------
    total : float
        :math:`\zeta G`, at least 1. G is the sum of all scores of all parties. zeta is
        the largest ratio of what a row can make up of the cost of all rows, over all
        models, to the row's summed score.
    dimension : float
        D: d^2 for regression, d k for k-means; d counts the columns of all parties.
    eps : float
        :math:`\epsilon`, between 0 and 1/2: for every model the cost on the coreset is
        within this share of the cost on all rows.
    delta : float
        :math:`\delta`, between 0 and 1/2: the chance that it is not.

    Returns
    -------
    float
        m, a number of draws, rounded up; infinite where `total` is.

    Raises
    ------
    ValueError
        An argument is out of range.

    Notes
    -----
    The constant of the O(.) is that of the framework of Feldman and Langberg, which
    [1] cites (Theorem D.1) and does not give. So the size is one up to a factor that
    nobody has named, and a guide to how m grows with the arguments. The size of a
    coreset that does as well in practice is smaller by orders of magnitude.

    Examples
    --------
    zeta G = 1 leaves the chance alone: 100 log 10.

    >>> theorem31_size(1.0, 4)
    231.0
    """
    if not total >= 1:
        raise ValueError(f"total must be at least 1, got {total}")
    for name, share in (("eps", eps), ("delta", delta)):
        if not 0 < share < 0.5:
            raise ValueError(f"{name} must be above 0 and below 1/2, got {share}")
    if not dimension >= 1:
        raise ValueError(f"dimension must be at least 1, got {dimension}")
    if math.isinf(total):
        return math.inf
    m = total * (dimension * math.log(total) + math.log(1 / delta)) / eps**2
    return float(math.ceil(m))


def theorem42_size(
    gamma: float,
    d: int,
    n_parties: int,
    eps: float = 0.1,
    delta: float = 0.1,
    constants: Constants = "one",
) -> float:
    r"""Return the size that Theorem 4.2 asks for, for regression.

    .. math:: m = O(\epsilon^{-2} \gamma^{-2} d\,
       (d^2 \log(\gamma^{-2} d) + \log(1/\delta)))

    Parameters
    ----------
    gamma : float
        :math:`\gamma` of Assumption 4.1, at most 1: `sigma_min` of all rows.
    d : int
        Columns of all parties, without the labels.
    n_parties : int
        T; only the constants of the proof depend on it.
    eps, delta : float
        See `theorem31_size`.
    constants : {"one", "proof"}
        "one" has zeta G = d / gamma^2, as the theorem says. "proof" has zeta at most
        1 / gamma^2 (Lemma E.2) and G at most d + T + 1 (Appendix E.2).

    Returns
    -------
    float
        m, a number of draws, rounded up; infinite where gamma is 0, that is, where the
        theorem promises nothing.

    Raises
    ------
    ValueError
        An argument is out of range.

    Examples
    --------
    The set of [1] has 463,715 rows, 90 columns and T = 3. Whatever its gamma, the
    theorem asks for more than 700 times as many draws, for an error of 10 %:

    >>> theorem42_size(1.0, 90, 3) / 463_715 > 700
    True
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must be from 0 to 1, got {gamma}")
    _check_counts(d=d, n_parties=n_parties)
    G = d if _as_stated(constants) else d + n_parties + 1
    total = G / gamma**2 if gamma**2 > 0 else math.inf
    return theorem31_size(total, d**2, eps, delta)


def theorem52_size(
    tau: float,
    d: int,
    k: int,
    n_parties: int,
    eps: float = 0.1,
    delta: float = 0.1,
    alpha: float = 2.0,
    constants: Constants = "one",
) -> float:
    r"""Return the size that Theorem 5.2 asks for, for k-means.

    .. math:: m = O(\epsilon^{-2} \alpha \tau k T\,
       (d k \log(\alpha \tau k T) + \log(1/\delta)))

    Parameters
    ----------
    tau : float
        :math:`\tau` of Assumption 5.1, at least 1: see `tau`, which estimates it from
        below.
    d : int
        Columns of all parties.
    k : int
        Number of clusters.
    n_parties : int
        T.
    eps, delta : float
        See `theorem31_size`.
    alpha : float
        Approximation factor of the local clusterings, at least 1; see
        `vkmc_sensitivities`.
    constants : {"one", "proof"}
        "one" has zeta G = alpha tau k T, as the theorem says. "proof" has zeta at most
        4 tau and G = 2 (k + 1) alpha T (Lemma F.2).

    Returns
    -------
    float
        m, a number of draws, rounded up; infinite where tau is, that is, where the
        theorem promises nothing.

    Raises
    ------
    ValueError
        An argument is out of range.

    Examples
    --------
    The set of [1] has 515,345 rows, 90 columns and T = 3. Whatever its tau, the theorem
    asks for more than 40 times as many draws for k = 10, for an error of 10 %:

    >>> theorem52_size(1.0, 90, 10, 3) / 515_345 > 40
    True
    """
    for name, value in (("tau", tau), ("alpha", alpha)):
        if not value >= 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    _check_counts(d=d, k=k, n_parties=n_parties)
    rate = k if _as_stated(constants) else 8 * (k + 1)
    return theorem31_size(alpha * tau * rate * n_parties, d * k, eps, delta)


def _as_stated(constants: Constants) -> bool:
    if constants not in get_args(Constants):
        raise ValueError(
            f"constants must be one of {get_args(Constants)}, got {constants!r}"
        )
    return constants == "one"


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")


def importance_estimate(losses: Array, weights: Array, n: int) -> tuple[float, float]:
    """Estimate the mean loss over all rows from an independent weighted draw.

    Parameters
    ----------
    losses : Array, shape (m,)
        Loss of each drawn row.
    weights : Array, shape (m,)
        From `coreset_weights` or `uniform`.
    n : int
        Number of all rows.

    Returns
    -------
    mean : float
        sum_i w_i loss_i / n: unbiased if the model was fitted without this draw. On
        the draw that it was fitted to, a model looks too good.
    standard_error : float
        Standard deviation of the terms m w_i loss_i / n over sqrt(m).

    Raises
    ------
    ValueError
        Fewer than two draws: they have no standard error.

    Examples
    --------
    >>> importance_estimate(np.array([1.0, 3.0]), np.array([5.0, 5.0]), 10)
    (2.0, 1.0)
    """
    m = len(losses)
    if m < 2:
        raise ValueError(f"an estimate with an error needs at least 2 draws, got {m}")
    terms = m * weights * losses / n
    return float(terms.mean()), float(terms.std(ddof=1) / np.sqrt(m))
