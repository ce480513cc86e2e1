r"""k-means on rows held by several parties, from sums over all parties only.

Lloyd's iteration [1] needs only the size of each cluster and the sum of its rows h_i.
So parties that can add values under masks can run the iteration with one sum per pass,
which covers all starts. But if the clusters of two passes, or of two starts, differ by
one row, the difference of their sums is that row [2]. Therefore, in each pass, a
party sends for cluster l

    sum_i a_i h_i + z   and   sum_i a_i.

For each row of the cluster, a_i is 0 or 1, decided by a fair coin that the party tosses
again in each pass, and whose outcome only the party knows. z is normal noise, whose sum
over all parties has the second moments of one row. Two such sums differ by about half
of the rows of both clusters. The coins increase the cost of a cluster of n rows by a
factor of 1 + 1 / n.

Differences from [1]: 1. The seeds are drawn from a normal distribution with the mean
and covariance of the rows, so no row is a seed. 2. The coins and z are added. 3. If a
cluster has fewer than `LEAST_ROWS` rows over all parties, its sum is not sent. Sizes
are known one pass late, so a cluster's sum can also include rows that were in the
cluster in the previous pass and have left it (`leavers`). So the rows of a sum are
drawn from at least `LEAST_ROWS` rows, even if all of these have left. 4. The centre of
a cluster with fewer rows than that moves to the largest cluster, as in the splitting of
[3]. 5. Every `HALVING` passes, the worse half of the starts is dropped [4]: fewer sums
are sent, and the best start runs longest.

[1] S. Lloyd, "Least squares quantization in PCM", IEEE Transactions on Information
Theory, 1982.
[2] G. Yang, L. Luo and Q. Li, "Breaking privacy in federated clustering: perfect input
reconstruction via temporal correlations", arXiv 2511.07073, 2025.
[3] Y. Linde, A. Buzo and R. M. Gray, "An algorithm for vector quantizer design", IEEE
Transactions on Communications, 1980.
[4] K. Jamieson and A. Talwalkar, "Non-stochastic best arm identification and
hyperparameter optimization", AISTATS 2016.
[5] F. Wang, H.-H. Franco-Penya, J. D. Kelleher, J. Pugh and R. Ross, "An analysis of
the application of simplified silhouette to the evaluation of k-means clustering
validity", MLDM 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import assign, simplified_silhouettes
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

LEAST_ROWS = 20
"""Minimum number of rows, over all parties, in a cluster whose sum is sent."""
SHARE = 0.5
"""Probability that a row of a cluster is in its sum."""
NOISE = 1.0
"""Scale of z: the ratio of its second moments to the second moments of one row."""
LEAVERS = 40
"""Maximum mean number of rows in a cluster's sum that have left the cluster."""
HALVING = 3
"""Number of passes that move centres before the worse half of starts is dropped."""
PATIENCE = 3
"""Number of passes without a lower cost after which the last start stops."""
TOLERANCE = 1e-3
"""Minimum relative decrease for a cost to be considered lower."""


@shapes_only
@dataclass(frozen=True, eq=False)
class Pass:
    """Sums of one pass over the rows, for one party or for all parties."""

    inertia: Array
    """sum_i min_l |h_i - c_l|^2 of each start, with noise of about one term, (a,)."""
    sizes: Array
    """Number of rows in each cluster, of shape (a, k)."""
    counts: Array | None = None
    """sum_i a_i, the number of rows in each sum, (a, k); None in the first pass."""
    sums: Array | None = None
    """sum_i a_i h_i + z, of shape (a, k, s); 0 for a cluster whose sum is not sent."""
    silhouettes: Array | None = None
    """Sum of the rows' `simplified_silhouettes`, with noise of about one term, (a,)."""


@shapes_only
@dataclass(frozen=True, eq=False)
class Request:
    """The server's request in a pass."""

    centers: Array
    """The centres of each start, of shape (a, k, s)."""
    last: Array | None = None
    """The centres of the previous pass, of shape (a, k, s); None in the first pass."""
    sizes: Array | None = None
    """With `last`: rows per cluster in the previous pass, over all parties, (a, k)."""
    used: Array | None = None
    """Number of centres used by each start, (a,); unused ones are 0. None means k."""


@shapes_only
@dataclass(frozen=True, eq=False)
class Clustering:
    """The result of `summed_kmeans`."""

    centers: Array
    """The centres with the lowest cost over all starts and passes, of shape (k, s)."""
    passes: int
    small: float
    """Share of clusters, over all starts, that never had `LEAST_ROWS` rows."""
    silhouette: float = math.nan
    """Mean of the rows' simplified silhouettes; NaN if not requested."""


def random_centers(
    mean: Array, covariance: Array, size: tuple[int, int], rng: np.random.Generator
) -> Array:
    """Draw centres, (a, k, s), from a normal distribution.

    The distribution has the rows' mean, (s,), and covariance, (s, s); `size` is (a, k).
    """
    draws = rng.standard_normal((*size, len(mean)))
    return np.asarray(mean + draws @ _root(covariance))


def _root(covariance: Array) -> Array:
    """Return Q with Q^T Q = covariance; eigenvalues below 0 by rounding count as 0."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(np.sqrt(np.maximum(values, 0))[:, None] * vectors.T)


def leavers(sizes: Array) -> Array:
    """Return the probability that a row that left a cluster is in its sum, (a, k).

    The probability is min(1/2, 40 / size), where `sizes`, (a, k), holds the number of
    rows in each cluster in the previous pass, over all parties. Up to 80 rows, the
    probability is 1/2, as for a row of the cluster. If a sum included all rows that
    have left, centres would move slowly.
    """
    return np.asarray(np.minimum(SHARE, LEAVERS / np.maximum(sizes, 1)))


def part_of_pass(
    H: Array, request: Request, rng: np.random.Generator, n_parties: int = 1
) -> Pass:
    """Return a party's sums of a pass over its rows H, (n, s).

    `rng`, which must be different in each pass, draws the coins and the noise; the
    noise adds up over the `n_parties` parties. Over all parties, the mean square of the
    noise in inertia and silhouettes equals the mean square of a single row's term.
    """
    last, sizes = request.last, request.sizes
    (a, k, s), n = request.centers.shape, len(H)
    used = np.full(a, k) if request.used is None else request.used
    inertia, squares, members = np.zeros(a), np.zeros(a), np.zeros((a, k))
    silhouettes, their_squares = np.zeros(a), np.zeros(a)
    counts, sums = np.zeros((a, k)), np.zeros((a, k, s))
    clusters = np.arange(k)[:, None]
    for rows in RowBlocks(H):
        for j in range(a):
            centers = request.centers[j, : used[j]]
            labels, distances = assign(rows, centers)
            inertia[j] += distances.sum()
            squares[j] += np.square(distances).sum()
            members[j] += np.bincount(labels, minlength=k)
            if request.used is not None:
                values = simplified_silhouettes(rows, centers)
                silhouettes[j] += values.sum()
                their_squares[j] += np.square(values).sum()
            if last is None or sizes is None:
                continue
            before = assign(rows, last[j, : used[j]])[0]
            coins = rng.random((2, len(rows)))
            left = (before != labels) & (coins[1] < leavers(sizes[j])[before])
            chosen = (labels == clusters) & (coins[0] < SHARE)
            chosen |= (before == clusters) & left
            chosen &= sizes[j][:, None] >= LEAST_ROWS
            counts[j] += chosen.sum(axis=1)
            sums[j] += chosen.astype(np.float64) @ rows
    part = NOISE / math.sqrt(n * n_parties)
    inertia += part * np.sqrt(squares) * rng.standard_normal(a)
    result = Pass(inertia, members)
    if request.used is not None:
        silhouettes += part * np.sqrt(their_squares) * rng.standard_normal(a)
        result = replace(result, silhouettes=silhouettes)
    if last is None or sizes is None:
        return result
    R = np.linalg.qr(H, mode="r")  # R^T R = H^T H
    noise = part * rng.standard_normal((a, k, len(R))) @ R
    sums += np.where((sizes >= LEAST_ROWS)[:, :, None], noise, 0.0)
    return replace(result, counts=counts, sums=sums)


def summed_kmeans(
    ask: Callable[[Request], Pass],
    k: int,
    mean: Array,
    covariance: Array,
    rng: np.random.Generator,
    n_init: int = 30,
    most_passes: int = 20,
) -> Clustering:
    """Cluster rows when only sums over the rows are known.

    `ask` is called once per pass, and returns the sums over all parties of
    `part_of_pass`. `mean`, (s,), and `covariance`, (s, s), are the mean and covariance
    of the rows; `n_init` is the number of starts. The first pass moves no centres.
    """
    passes = _passes(k, mean, covariance, rng, n_init, most_passes)
    request = next(passes)
    while True:
        try:
            request = passes.send(ask(request))
        except StopIteration as end:
            result: Clustering = end.value
            return result


def chosen_kmeans(
    ask: Callable[[Request], Pass],
    most: int,
    mean: Array,
    covariance: Array,
    rng: np.random.Generator,
    n_init: int = 30,
    most_passes: int = 20,
) -> Clustering:
    """Cluster rows known only through sums, and choose the number of clusters.

    Each pass covers the starts of all k from 2 to `most`. For each k, the best start is
    kept, and the result is the kept start with the largest simplified silhouette.
    According to [5], this measure is better than the full silhouette for comparing
    different k in k-means. Each k has `n_init` starts and a separate random stream
    derived from `rng`.
    """
    running = {
        k: _passes(k, mean, covariance, stream, n_init, most_passes)
        for k, stream in zip(range(2, most + 1), rng.spawn(most - 1), strict=True)
    }
    requests = {k: next(passes) for k, passes in running.items()}
    ended: list[Clustering] = []
    while requests:
        total = ask(_joined(requests, most))
        start = 0
        for k, request in list(requests.items()):
            stop = start + len(request.centers)
            try:
                requests[k] = running[k].send(_part(total, slice(start, stop), k))
            except StopIteration as end:
                ended.append(end.value)
                del requests[k]
            start = stop
    best = max(ended, key=lambda result: result.silhouette)
    return replace(best, passes=max(result.passes for result in ended))


def _joined(requests: dict[int, Request], most: int) -> Request:
    """Return one request for the starts of several k."""

    def padded(name: str) -> Any:
        arrays = [getattr(request, name) for request in requests.values()]
        if arrays[0] is None:  # in the first pass, which all k share
            return None
        rest = [(0, 0)] * (arrays[0].ndim - 2)
        widths = [[(0, 0), (0, most - array.shape[1]), *rest] for array in arrays]
        return np.concatenate(list(map(np.pad, arrays, widths)))

    starts = [len(request.centers) for request in requests.values()]
    used = np.repeat(list(requests), starts)
    return Request(padded("centers"), padded("last"), padded("sizes"), used)


def _part(total: Pass, starts: slice, k: int) -> Pass:
    """Return the sums of some starts, with k clusters each."""
    places = starts, slice(k)  # the second axis, if any, is the clusters

    def part(sums: Any) -> Any:
        return None if sums is None else sums[places[: sums.ndim]]

    return Pass(*map(part, vars(total).values()))


def _passes(
    k: int,
    mean: Array,
    covariance: Array,
    rng: np.random.Generator,
    n_init: int,
    most_passes: int,
) -> Generator[Request, Pass, Clustering]:
    """Yield the request of each pass, receive the sums, and return the result."""
    root, spread = _root(covariance), float(covariance.trace())
    centers = random_centers(mean, covariance, (n_init, k), rng)
    last = sizes = None
    best, lowest, stale, silhouette = centers[0], math.inf, 0, math.nan
    starts, large = np.arange(n_init), np.zeros((n_init, k), dtype=bool)
    for t in range(most_passes):
        result = yield Request(centers, last, sizes)
        first = int(result.inertia.argmin())
        cost = float(result.inertia[first])
        stale = 0 if cost < (1 - TOLERANCE) * lowest else stale + 1
        now = np.rint(result.sizes).astype(np.int64)
        if cost < lowest:
            lowest, best = cost, centers[first]
            if result.silhouettes is not None:
                silhouette = float(result.silhouettes[first] / now[first].sum())
        large[starts] |= now >= LEAST_ROWS
        if (len(starts) == 1 and stale >= PATIENCE) or t + 1 == most_passes:
            break
        remaining = np.arange(len(starts))
        if t and t % HALVING == 0:
            remaining = np.sort(result.inertia.argsort()[: max(1, len(starts) // 2)])
        moved = _moved(centers, result)
        for j in remaining:
            small = now[j] < LEAST_ROWS
            # As far apart as the rows of a cluster are on average.
            within = max(float(result.inertia[j]), 0.0) / now[j].sum()
            share = math.sqrt(within / spread) if spread > 0 else 0.0
            shift = rng.standard_normal((k, len(mean))) @ root
            moved[j, small] = moved[j, now[j].argmax()] + share * shift[small]
        starts, last, centers = starts[remaining], centers[remaining], moved[remaining]
        # A new centre had no rows in the previous pass.
        sizes = np.where(now[remaining] < LEAST_ROWS, 0, now[remaining])
    return Clustering(best, t + 1, 1 - float(large.mean()), silhouette)


def _moved(centers: Array, result: Pass) -> Array:
    """Return the means of the sums; a centre without rows is unchanged."""
    if result.counts is None or result.sums is None:
        return centers.copy()
    counts = np.rint(result.counts)[:, :, None]
    return np.where(counts > 0, result.sums / np.maximum(counts, 1), centers)
