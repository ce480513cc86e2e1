r"""k-means of rows that several parties hold, from sums over all parties alone.

Lloyd's iteration [1] needs of the rows h_i only the sum and the size of each cluster,
so parties that can add under masks run it with one sum a pass, for all starts at once.
But sums of clusters are not harmless: those of two passes, or of two starts, whose
clusters differ by one row have that row as their difference [2]. Therefore a party
sends of cluster l in each pass

    sum_i a_i h_i + z   and   sum_i a_i,

where a_i is 1 for each row of the cluster with probability 1/2, by a coin that only the
party knows and that is thrown again in each pass, and z is normal: over all parties it
has the second moments of one row. Two such sums differ by about half of the rows of
both clusters. The mean of half of n rows is as far from the mean of all as that is from
the mean of a population, so that the coins cost a share 1 / n of a cluster's cost.

================  ===================================================================
`random_centers`  server: the seeds of all starts
`part_of_pass`    party m: its part of a pass over the rows
`summed_kmeans`   server: all passes, given a function that asks for the sums of one
================  ===================================================================

Differs from [1] in: 1. The seeds are normal, with mean and covariance of the rows: no
row is a seed. 2. The coins and z. 3. A cluster of fewer than `LEAST_ROWS` rows of all
parties together sends no sum. Sizes are known one pass late, so a cluster also counts
rows that it had one pass before and has lost (`leavers`): a sum is over rows drawn from
`LEAST_ROWS` at least even if all have left. 4. A centre of fewer rows moves to the
largest cluster, as in the splitting of [3]. 5. Of the starts, the worse half ends every
`HALVING` passes [4]: fewer sums leave, and the best start has the longest run.

References
----------
[1] S. Lloyd, "Least squares quantization in PCM", IEEE Transactions on Information
Theory, 1982.
[2] G. Yang, L. Luo and Q. Li, "Breaking privacy in federated clustering: perfect input
reconstruction via temporal correlations", arXiv 2511.07073, 2025.
[3] Y. Linde, A. Buzo and R. M. Gray, "An algorithm for vector quantizer design", IEEE
Transactions on Communications, 1980.
[4] K. Jamieson and A. Talwalkar, "Non-stochastic best arm identification and
hyperparameter optimization", AISTATS 2016.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import assign
from vfl_flower.typing import Array

__all__ = [
    "LEAST_ROWS",
    "Clustering",
    "Pass",
    "leavers",
    "part_of_pass",
    "random_centers",
    "summed_kmeans",
]

LEAST_ROWS = 20
"""Fewest rows of all parties together of a cluster that sends its sum."""
SHARE = 0.5
"""Probability that a row of a cluster is in its sum."""
NOISE = 1.0
"""Size of z: its second moments over those of one row."""
LEAVERS = 40
"""Rows in the mean that stand for those that have left a cluster, at most."""
HALVING = 3
"""Passes that move centres between two times that the worse half of starts ends."""
PATIENCE = 3
"""Passes without a lower cost after which the last start ends."""
TOLERANCE = 1e-3
"""Share by which a cost must be lower to count as lower."""


@dataclass(frozen=True, eq=False)
class Pass:
    """Sums of one pass over the rows, of one party or of all.

    Attributes
    ----------
    inertia : Array, shape (a,)
        sum_i min_l |h_i - c_l|^2 of each start, within about that of one row.
    sizes : Array, shape (a, k)
        Rows of each cluster.
    counts : Array, shape (a, k), or None
        sum_i a_i: rows in the sum. None in the first pass, which moves no centre.
    sums : Array, shape (a, k, s), or None
        sum_i a_i h_i + z. 0 for a cluster that sends no sum.
    """

    inertia: Array
    sizes: Array
    counts: Array | None = None
    sums: Array | None = None


@dataclass(frozen=True, eq=False)
class Clustering:
    """The result of `summed_kmeans`.

    Attributes
    ----------
    centers : Array, shape (k, s)
        Those of the lowest cost over all starts and passes.
    passes : int
        Number of passes.
    small : float
        Share of the clusters of all starts that never had `LEAST_ROWS` rows.
    """

    centers: Array
    passes: int
    small: float


def random_centers(
    mean: Array, covariance: Array, size: tuple[int, int], rng: np.random.Generator
) -> Array:
    """Draw centres from the normal distribution of the rows' mean and covariance.

    Parameters
    ----------
    mean : Array, shape (s,)
        Mean of the rows.
    covariance : Array, shape (s, s)
        Symmetric; eigenvalues below 0, which rounding may cause, count as 0.
    size : tuple of int
        (a, k): starts and clusters.
    rng : numpy.random.Generator
        Source of the draws.

    Returns
    -------
    Array, shape (a, k, s)
        The centres of all starts.
    """
    draws = rng.standard_normal((*size, len(mean)))
    return np.asarray(mean + draws @ _root(covariance))


def _root(covariance: Array) -> Array:
    """Return a matrix Q with Q^T Q = covariance."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(np.sqrt(np.maximum(values, 0))[:, None] * vectors.T)


def leavers(sizes: Array) -> Array:
    """Return how likely a row that has left a cluster is in the cluster's sum.

    Parameters
    ----------
    sizes : Array of int, shape (a, k)
        Rows of each cluster one pass before, of all parties.

    Returns
    -------
    Array, shape (a, k)
        min(1/2, 40 / size): 1/2, as for a row of the cluster, up to 80 rows. With all
        rows that have left, centres are slow to move: on the embedding of 20,000 rows
        of mnist (k = 10, 15 passes, six draws) the labels then agree less with the
        classes, NMI 0.481 instead of 0.488.

    Examples
    --------
    >>> leavers(np.array([[20, 80, 400]]))
    array([[0.5, 0.5, 0.1]])
    """
    return np.asarray(np.minimum(SHARE, LEAVERS / np.maximum(sizes, 1)))


def part_of_pass(
    H: Array,
    centers: Array,
    rng: np.random.Generator,
    last: Array | None = None,
    sizes: Array | None = None,
    n_parties: int = 1,
) -> Pass:
    """Return a party's part of a pass.

    Parameters
    ----------
    H : Array, shape (n, s)
        The party's rows.
    centers : Array, shape (a, k, s)
        Of each start.
    rng : numpy.random.Generator
        Source of the coins and of the noise; another one in each pass.
    last : Array, shape (a, k, s), optional
        The centres of the pass before; None in the first pass.
    sizes : Array of int, shape (a, k), optional
        The clusters' rows at all parties in the pass before; with `last`.
    n_parties : int
        M: noise adds up over the parties.

    Returns
    -------
    Pass
        The inertia with noise whose square is that of a row's share in the mean; sums
        and counts only with `last`.
    """
    (a, k, s), n = centers.shape, len(H)
    inertia, squares, members = np.zeros(a), np.zeros(a), np.zeros((a, k))
    counts, sums = np.zeros((a, k)), np.zeros((a, k, s))
    clusters = np.arange(k)[:, None]
    for rows in RowBlocks(H):
        for j in range(a):
            labels, distances = assign(rows, centers[j])
            inertia[j] += distances.sum()
            squares[j] += np.square(distances).sum()
            members[j] += np.bincount(labels, minlength=k)
            if last is None or sizes is None:
                continue
            before = assign(rows, last[j])[0]
            coins = rng.random((2, len(rows)))
            left = (before != labels) & (coins[1] < leavers(sizes[j])[before])
            chosen = (labels == clusters) & (coins[0] < SHARE)
            chosen |= (before == clusters) & left
            chosen &= sizes[j][:, None] >= LEAST_ROWS
            counts[j] += chosen.sum(axis=1)
            sums[j] += chosen.astype(np.float64) @ rows
    part = NOISE / math.sqrt(n * n_parties)
    inertia += part * np.sqrt(squares) * rng.standard_normal(a)
    if last is None or sizes is None:
        return Pass(inertia, members)
    R = np.linalg.qr(H, mode="r")  # R^T R = H^T H
    noise = part * rng.standard_normal((a, k, len(R))) @ R
    sums += np.where((sizes >= LEAST_ROWS)[:, :, None], noise, 0.0)
    return Pass(inertia, members, counts, sums)


def summed_kmeans(
    ask: Callable[[Array, Array | None, Array | None], Pass],
    k: int,
    mean: Array,
    covariance: Array,
    rng: np.random.Generator,
    n_init: int = 30,
    most_passes: int = 20,
) -> Clustering:
    """Cluster rows of which only sums are known.

    Parameters
    ----------
    ask : callable
        Takes the centres of all starts, and but for the first pass those of the pass
        before with their clusters' sizes; returns the sums over all parties of
        `part_of_pass`. It is called once a pass.
    k : int
        Number of clusters.
    mean, covariance : Array, shapes (s,) and (s, s)
        Of the rows.
    rng : numpy.random.Generator
        Source of seeds and new centres.
    n_init : int
        Number of starts.
    most_passes : int
        Largest number of passes; the first one moves no centre.

    Returns
    -------
    Clustering
        The centres and how they were result.
    """
    root, spread = _root(covariance), float(covariance.trace())
    centers = random_centers(mean, covariance, (n_init, k), rng)
    last = sizes = None
    best, lowest, stale = centers[0], math.inf, 0
    starts, large = np.arange(n_init), np.zeros((n_init, k), dtype=bool)
    for t in range(most_passes):
        result = ask(centers, last, sizes)
        first = int(result.inertia.argmin())
        cost = float(result.inertia[first])
        stale = 0 if cost < (1 - TOLERANCE) * lowest else stale + 1
        if cost < lowest:
            lowest, best = cost, centers[first]
        now = np.rint(result.sizes).astype(np.int64)
        large[starts] |= now >= LEAST_ROWS
        if (len(starts) == 1 and stale >= PATIENCE) or t + 1 == most_passes:
            break
        kept = np.arange(len(starts))
        if t and t % HALVING == 0:
            kept = np.sort(result.inertia.argsort()[: max(1, len(starts) // 2)])
        moved = _moved(centers, result)
        for j in kept:
            small = now[j] < LEAST_ROWS
            # As far apart as the rows of a cluster in the mean.
            within = max(float(result.inertia[j]), 0.0) / now[j].sum()
            share = math.sqrt(within / spread) if spread > 0 else 0.0
            shift = rng.standard_normal((k, len(mean))) @ root
            moved[j, small] = moved[j, now[j].argmax()] + share * shift[small]
        starts, last, centers = starts[kept], centers[kept], moved[kept]
        # A new centre has no rows of a pass before.
        sizes = np.where(now[kept] < LEAST_ROWS, 0, now[kept])
    return Clustering(best, t + 1, 1 - float(large.mean()))


def _moved(centers: Array, result: Pass) -> Array:
    """Return the means of the sums; a centre without rows stays where it is."""
    if result.counts is None or result.sums is None:
        return centers.copy()
    counts = np.rint(result.counts)[:, :, None]
    return np.where(counts > 0, result.sums / np.maximum(counts, 1), centers)
