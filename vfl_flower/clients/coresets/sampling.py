"""A party's side of coreset construction (Algorithms 1 to 3 of the paper).

Between messages, a party stores O(d^2) numbers for regression and O(k d) numbers for
k-means. From these numbers, the party can compute the score of any row again without a
pass over the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NotRequired, TypedDict

import numpy as np
from annotated_types import Ge, Le, MinLen

from vfl_flower.clients.evaluation import RowNumbers, check_numbers
from vfl_flower.numerics import coresets, kmeans
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.leverage import leverage_factor, leverage_scores
from vfl_flower.numerics.split import split_rows
from vfl_flower.party.party import Party, PartyError, stored_as
from vfl_flower.protocol.contract import IN_SUM, OWN, Leaves, Reals, Whole
from vfl_flower.protocol.settings import Count, Fraction
from vfl_flower.protocol.steps import once, reveals, step_of, sums_over
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

step = step_of("coresets")

LARGEST = 1e50
"""Largest absolute value of a number that a party is allowed to send in the clear,
chosen so that neither squares nor products in a solver overflow."""

MOST_ROWS = 2**24
"""Maximum number of rows of a coreset or check sample, to bound a party's memory."""

MOST_CLUSTERS = 2**10
"""Maximum number of clusters, since a party's time grows with rows times clusters."""

MOST_DRAWS = 2**12
"""Maximum number of draws at a party, or twice its number of rows if that is more."""

MOST_DISTANCES = 2**24
"""Maximum number of distances in one message, to bound a party's memory."""

Size = Annotated[int, Ge(1), Le(MOST_ROWS)]
"""Number of rows in a coreset, counting repeats."""
Approximation = Annotated[float, Ge(1), Le(10**6)]
"""The factor alpha of Algorithm 3."""
ClusterCount = Annotated[int, Ge(1), Le(MOST_CLUSTERS)]
"""A number of clusters."""
LocalClustering = Literal["lloyd", "seeding"]


@dataclass(frozen=True)
class Clustering:
    """Settings for the local clustering behind the scores of k-means (Algorithm 3)."""

    n_clusters: ClusterCount
    """The number of clusters, k."""
    local_clustering: LocalClustering
    """K-means++ with Lloyd's iteration, or the seeding alone."""
    alpha: Approximation
    """The factor by which the cost of the local clustering may exceed the optimum."""


@shapes_only
@dataclass(frozen=True, eq=False)
class WeightedRows:
    """A coreset: the rows S and their weights w."""

    rows: RowNumbers
    """Row numbers, of shape (m,); repeats are allowed."""
    weights: Annotated[Array, Reals("m", 1e-100, 1e100)]
    """Number of rows that each row represents, of shape (m,); no sum of squares may
    overflow or be 0."""


@stored_as("vfl_flower.clients.coresets.CoresetState")
class CoresetState:
    """A party's state for recomputing the score of any row."""

    test_fraction: float
    """Fraction of the rows held out."""
    n: int
    """Number of training rows."""
    intercept: bool | None = None
    """Whether the regression has an intercept; None for k-means."""
    factor: Array | None = None
    """For regression: maps a row to its basis vector, whose squared length is the
    leverage score; shape (d, r)."""
    summary: coresets.ClusterSummary | None = None
    """For k-means: the party's local clustering."""
    alpha: float = 1.0
    """For k-means: the factor `alpha` of :class:`Clustering`."""


class Totals(TypedDict):
    """Reply of :func:`totals`."""

    total: Annotated[Array, Reals("1", least=1e-300)]
    rows: NotRequired[Annotated[Array, Whole("size", below="n_rows")]]


class DrawnRows(TypedDict):
    """Reply of :func:`drawn_rows`."""

    rows: Annotated[Array, Whole("*", below="n_rows")]


class Pooled(TypedDict):
    """Reply of :func:`pooled_rows`."""

    X: Annotated[Array, Reals("m n_columns", -LARGEST, LARGEST)]
    y: NotRequired[Annotated[Array, Reals("m", -LARGEST, LARGEST)]]


class Scores(TypedDict):
    """Reply of :func:`scores`."""

    scores: Annotated[Array, Reals("m"), Leaves("sum", least=2.0)]
    X: NotRequired[Annotated[Array, Reals("m n_columns", -LARGEST, LARGEST)]]
    y: NotRequired[Annotated[Array, Reals("m", -LARGEST, LARGEST)]]


class LocalClusters(TypedDict):
    """Reply of :func:`local_clusters`."""

    centers: Annotated[Array, Reals("k n_columns", -LARGEST, LARGEST)]
    labels: Annotated[Array, Whole("m", below="n_clusters")]


class Distances(TypedDict):
    """Reply of :func:`distances`."""

    distances: Annotated[Array, Reals("* k"), IN_SUM]


def training_rows(party: Party, test_fraction: float) -> Array | None:
    """Return the numbers of the training rows, sorted, or None for all rows."""
    train = split_rows(party.n_rows, test_fraction, party.seed)[0]
    if train is not None and not len(train):
        raise PartyError(f"test_fraction must not hold out all {party.n_rows} rows")
    return train


def test_rows(party: Party, test_fraction: float) -> Array:
    """Return the numbers of the rows held out, sorted."""
    return split_rows(party.n_rows, test_fraction, party.seed)[1]


def numbers_of(rows: Array) -> Array:
    """Return row numbers as integers, since booleans would act as a mask."""
    return rows.astype(np.uint8) if rows.dtype.kind == "b" else rows


def check_labels(party: Party) -> None:
    """Refuse labels that are known only for some rows, or that are categories."""
    if 0 < party.n_labels < party.n_rows:
        raise PartyError("this party must have labels for all of its rows")
    check_numbers(party)


def _blocks(party: Party, state: CoresetState, rows: Array | None) -> RowBlocks:
    """Return the rows from which the scores are computed.

    Regression includes the label (Algorithm 2: a basis of [X^(T), y]) and, unlike in
    the paper, the column of ones for the intercept; k-means uses only X.
    """
    extra: list[Array | float] = [1.0] if state.intercept else []
    if state.intercept is not None and party.y is not None:
        extra.append(party.y)
    return RowBlocks(party.rows, *extra, rows=rows)


def _scores(party: Party, state: CoresetState, blocks: RowBlocks) -> Array:
    """Return this party's g_i for the rows of `blocks`."""
    if state.summary is not None:
        summary, alpha = state.summary, state.alpha
        return blocks.per_row(lambda X: coresets.vkmc_sensitivities(X, summary, alpha))
    assert state.factor is not None
    leverages = leverage_scores(blocks, state.factor)
    if state.intercept and party.y is None:
        # The leverage of [X, 1] is 1/n more than the leverage of the centred X. Only
        # the label holder includes the column of ones.
        leverages -= 1 / state.n
    return coresets.vrlr_sensitivities(leverages, state.n)


@step
@sums_over("request")
@once
@reveals("totals")
def totals(
    party: Party,
    size: Annotated[int, Ge(0), Le(2 * MOST_ROWS)],
    test_fraction: Fraction,
    intercept: bool | None = None,
    clustering: Clustering | None = None,
) -> Totals:
    """Line 2 of Algorithm 1: the total G_j; if `size` > 0, also line 5.

    The scores are for a regression, with or without `intercept`, or for a `clustering`.
    A party draws `size` rows before it knows a_j, and the server uses the first a_j
    rows. These rows have the distribution of line 5, and a round trip is saved.
    """
    _check_draws(party, "size", size)
    train = training_rows(party, test_fraction)
    party.sum_over(train)
    n = party.n_rows if train is None else len(train)
    if (intercept is None) == (clustering is None):
        raise PartyError("exactly one of intercept and clustering must be given")
    state = CoresetState(test_fraction, n, intercept)
    blocks = _blocks(party, state, train)
    if clustering is None:
        check_labels(party)
        state.factor = leverage_factor(blocks)
    else:
        if clustering.n_clusters > n:
            raise PartyError(
                f"n_clusters must be at most {n}, the number of training rows, got "
                f"{clustering.n_clusters}"
            )
        state.summary = coresets.cluster_summary(
            blocks,
            clustering.n_clusters,
            party.rng("cluster"),
            method=clustering.local_clustering,
        )
        state.alpha = clustering.alpha
    party.remember(state)
    g = _scores(party, state, blocks)
    reply: Totals = {"total": np.array([g.sum()])}
    if size:
        reply["rows"] = _drawn(party, train, g, size)
    return reply


@step
@sums_over("earlier")
@once
@reveals("totals")
def drawn_rows(
    party: Party, count: Annotated[Array, Whole("1", below=2 * MOST_ROWS + 1)]
) -> DrawnRows:
    """Line 5 of Algorithm 1: a_j rows, row i with probability g_ij / G_j.

    The count is an array because the paper counts it among the numbers sent.
    """
    state = party.recall(CoresetState)
    _check_draws(party, "count", int(count[0]))
    train = training_rows(party, state.test_fraction)
    g = _scores(party, state, _blocks(party, state, train))
    return {"rows": _drawn(party, train, g, int(count[0]))}


def _check_draws(party: Party, name: str, size: int) -> None:
    """Raise ``PartyError`` if this many draws would reveal the score of each row."""
    if size > max(2 * party.n_rows, MOST_DRAWS):
        raise PartyError(
            f"{name} must be at most {MOST_DRAWS}, or twice the number of rows if that "
            f"is more, got {size}: more draws would reveal the score of each row"
        )


def _drawn(party: Party, train: Array | None, g: Array, size: int) -> Array:
    rows = kmeans.draw(g, size, party.rng("draw"))
    return (rows if train is None else train[rows]).astype(np.uint32)


@step
@sums_over("none", "each number describes a single row")
@reveals("rows", "pool")
@reveals("row-sums", "not pool")
def scores(party: Party, rows: RowNumbers, pool: bool) -> Scores:
    """Line 7 of Algorithm 1: g_ij for i in S, masked; and the rows, if `pool`."""
    state, rows = party.recall(CoresetState), numbers_of(rows)
    party.afford("rows", len(rows), party.rows.shape[1])
    party.share(rows, "rows" if pool else "row-sums")
    g = _scores(party, state, _blocks(party, state, rows))
    if not pool:
        return {"scores": g}
    return {"scores": g, **_pooled(party, rows, labels=state.summary is None)}


@step
@sums_over("none", "each number describes a single row")
@reveals("rows")
def pooled_rows(
    party: Party,
    test_fraction: Fraction,
    labels: bool,
    rows: RowNumbers | None = None,
    start: Count | None = None,
    stop: Count | None = None,
) -> Pooled:
    """Send rows to the server: `rows`, or the training rows from `start` to `stop`."""
    if rows is None:
        if start is None or stop is None:
            raise PartyError("either rows or both start and stop must be given")
        train = training_rows(party, test_fraction)
        stop = min(stop, party.n_rows)
        rows = np.arange(start, stop) if train is None else train[start:stop]
    elif start is not None or stop is not None:
        raise PartyError("start and stop must not be given together with rows")
    else:
        rows = numbers_of(rows)
    return _pooled(party, rows, labels)


def _pooled(party: Party, rows: Array, labels: bool) -> Pooled:
    """Return rows of X and, at the label holder if `labels` are needed, of y."""
    party.afford("rows", len(rows), party.rows.shape[1])
    party.share(rows, "rows")
    X = party.rows.take(rows.astype(np.int64))
    if party.y is None or not labels:
        return {"X": X}
    return {"X": X, "y": np.asarray(party.y[rows], dtype=np.float64)}


@step
@sums_over("none", "centres and assignments count as rows")
@reveals("rows")
def local_clusters(
    party: Party,
    n_clusters: ClusterCount,
    local_clustering: LocalClustering,
    test_fraction: Fraction,
    coreset: WeightedRows | None = None,
) -> LocalClusters:
    """Cluster the coreset's rows, or all training rows; send centres and assignments.

    The method of Ding et al. (2016) is applied to the coreset's rows instead of all
    rows. A centre and its assignments nearly reveal the rows of the cluster, and the
    centre of a single row is that row. So all clustered rows count as rows that leave
    the party.
    """
    rows, weights = training_rows(party, test_fraction), None
    if coreset is not None:
        rows = numbers_of(coreset.rows)
        party.afford("rows", len(rows), max(n_clusters, party.rows.shape[1]))
        weights = np.asarray(coreset.weights, dtype=np.float64)
    party.share(np.arange(party.n_rows) if rows is None else rows, "rows")
    blocks = RowBlocks(party.rows, rows=rows)
    k = min(n_clusters, len(blocks))
    centers = kmeans.seed_centers(blocks, k, party.rng("distdim"), weights)
    # At least one step, since the seeds are rows, and rows do not leave a party.
    passes = 100 if local_clustering == "lloyd" else 1
    centers = kmeans.lloyd(blocks, centers, weights, max_iter=passes)
    labels = blocks.per_row(lambda X: kmeans.assign(X, centers)[0])
    smallest = np.min_scalar_type(len(centers) - 1)
    return {"centers": centers, "labels": labels.astype(smallest)}


@step
@sums_over("none", "the distances count as rows")
@reveals("rows")
def distances(
    party: Party,
    centers: Annotated[Array, Reals("k n_columns"), MinLen(1), OWN],
    test_fraction: Fraction,
    start: Count,
    stop: Count,
) -> Distances:
    """Send the squared distances of rows to each centre, over this party's columns.

    The server chooses the centres. If it changes only the centres sent to one party,
    two sums differ by a function of that party's rows. So these rows count as rows that
    leave the party.
    """
    train = training_rows(party, test_fraction)
    rows = np.arange(party.n_rows)[start:stop] if train is None else train[start:stop]
    if len(rows) * len(centers) > max(MOST_DISTANCES, len(centers)):
        raise PartyError(
            f"one message must have at most {MOST_DISTANCES} distances, got the "
            f"distances from {len(rows)} rows to {len(centers)} centres"
        )
    party.afford("centers", len(centers), party.rows.shape[1])
    party.share(rows, "rows")
    X = party.rows.take(rows)
    return {"distances": kmeans.partial_distances(X, centers)}
