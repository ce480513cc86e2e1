"""A party's side of coreset construction (Algorithms 1 to 3 of the paper).

A party keeps O(d^2) numbers between messages for regression and O(k d) for k-means:
enough to compute the score of any row again without a pass over the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NotRequired, TypedDict

import numpy as np
from annotated_types import Ge, Le, MinLen

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import (
    ClusterSummary,
    cluster_summary,
    leverage_factor,
    leverage_scores,
    logistic_sensitivities,
    merge_level,
    vkmc_sensitivities,
    vrlr_sensitivities,
)
from vfl_flower.numerics.kmeans import (
    assign,
    draw,
    lloyd,
    partial_distances,
    seed_centers,
)
from vfl_flower.numerics.split import split_rows
from vfl_flower.protocol.contract import (
    IN_SUM,
    OWN,
    ContractError,
    Leaves,
    Reals,
    Whole,
)
from vfl_flower.protocol.party import Party, PartyError
from vfl_flower.protocol.settings import Count, Fraction
from vfl_flower.protocol.steps import once, reveals, step
from vfl_flower.typing import Array

MOST_ROWS = 2**24
"""Most rows of a coreset, or of its check: no request exhausts a party's memory."""

MOST_CLUSTERS = 2**10
"""Most clusters: a party's time grows with its rows times their number."""

MOST_DRAWS = 2**12
"""Most rows that a party draws, unless it has half as many or more."""

MOST_DISTANCES = 2**24
"""Most distances in one message, for the same reason."""

KEPT_WEIGHTS, KEPT_LEVELS = "kept_weights", "kept_levels"
"""Names in a part of what it keeps of a coreset, beside its rows."""

Size = Annotated[int, Ge(1), Le(MOST_ROWS)]
"""Number of rows in a coreset, repeats counted."""
Approximation = Annotated[float, Ge(1), Le(10**6)]
"""alpha of Algorithm 3."""
Clusters = Annotated[int, Ge(1), Le(MOST_CLUSTERS)]
"""A number of clusters."""
Strength = Annotated[float, Ge(0), Le(1e50)]
"""Strength of a penalty: no product with a number of rows overflows."""
LocalClustering = Literal["lloyd", "seeding"]
Rows = Annotated[Array, Whole("m", below="n_rows"), MinLen(1)]
"""Numbers of rows, at least one, repeats allowed."""


@dataclass(frozen=True)
class Clustering:
    """How a party clusters its columns for the scores of k-means (Algorithm 3).

    Attributes
    ----------
    n_clusters : int
        k.
    local_clustering : {"lloyd", "seeding"}
        k-means++ and Lloyd's iteration, or the seeding alone.
    alpha : float
        How far the cost of the local clustering may be above the optimum, as a factor.
    """

    n_clusters: Clusters
    local_clustering: LocalClustering
    alpha: Approximation


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """A coreset: the rows S and their weights w.

    Attributes
    ----------
    rows : Array of int, shape (m,)
        Numbers of rows, repeats allowed.
    weights : Array, shape (m,)
        How many rows each stands for.

    Raises
    ------
    ContractError
        A weight is not from 1e-100 to 1e100: sums of squares would overflow, or be 0.
    """

    rows: Rows
    weights: Annotated[Array, Reals("m")]

    def __post_init__(self) -> None:
        """Check the weights."""
        if not 1e-100 <= self.weights.min() <= self.weights.max() <= 1e100:
            raise ContractError("'weights' must be from 1e-100 to 1e100")


@dataclass
class CoresetState:
    """What a party keeps to compute the score of any row again.

    Attributes
    ----------
    test_fraction : float
        Share of the rows held out.
    n : float
        Number of training rows, or sum of the weights of what is drawn from.
    intercept : bool or None
        Whether the regression has an intercept; None: k-means.
    factor : Array, shape (d, r), or None
        For regression: maps a row to its basis vector, whose squared length is the
        leverage score.
    summary : ClusterSummary or None
        For k-means: the party's own clustering.
    alpha : float
        For k-means: as in :class:`Clustering`.
    classes : bool
        For regression: whether it is a logistic one, of labels with two values.
    """

    test_fraction: float
    n: float
    intercept: bool | None = None
    factor: Array | None = None
    summary: ClusterSummary | None = None
    alpha: float = 1.0
    classes: bool = False


class Totals(TypedDict):
    """Reply of :func:`totals`."""

    total: Annotated[Array, Reals("1")]
    rows: NotRequired[Annotated[Array, Whole("size", below="n_rows")]]


class DrawnRows(TypedDict):
    """Reply of :func:`drawn_rows`."""

    rows: Annotated[Array, Whole("*", below="n_rows")]


class Pooled(TypedDict):
    """Reply of :func:`pooled_rows`."""

    X: Annotated[Array, Reals("m n_columns")]
    y: NotRequired[Annotated[Array, Reals("m")]]


class Scores(TypedDict):
    """Reply of :func:`scores`."""

    scores: Annotated[Array, Reals("m"), Leaves("sum", least=2.0)]
    X: NotRequired[Annotated[Array, Reals("m n_columns")]]
    y: NotRequired[Annotated[Array, Reals("m")]]


class LocalClusters(TypedDict):
    """Reply of :func:`local_clusters`."""

    centers: Annotated[Array, Reals("k n_columns")]
    labels: Annotated[Array, Whole("m", below="n_clusters")]


class Distances(TypedDict):
    """Reply of :func:`distances`."""

    distances: Annotated[Array, Reals("* k"), IN_SUM]


def training_rows(party: Party, test_fraction: float) -> Array | None:
    """Return the numbers of the training rows, sorted; None: all rows.

    Rows that were kept with a model are none of them.
    """
    train = split_rows(party.n_new, test_fraction, party.seed)[0]
    if train is not None and not len(train):
        raise PartyError(f"test_fraction must leave some of {party.n_new} rows")
    return np.arange(party.n_new) if train is None and party.n_kept else train


def test_rows(party: Party, test_fraction: float) -> Array:
    """Return the numbers of the rows held out, sorted."""
    return split_rows(party.n_new, test_fraction, party.seed)[1]


@dataclass(frozen=True, eq=False)
class Kept:
    """What a part of a model says of the coresets that it keeps.

    Attributes
    ----------
    weights : Array, shape (K,)
        w, how many rows each kept row stands for.
    levels : Array of int, shape (K,)
        A coreset of level l stands for the rows of 2^l runs.
    """

    weights: Array
    levels: Array

    @property
    def merged(self) -> Array:
        """Which rows the next coreset is drawn from, beside new ones."""
        return self.levels < merge_level(self.levels)


def kept_rows(party: Party) -> Kept | None:
    """Return what the party says of its kept rows; None: it has none."""
    if not party.n_kept:
        return None
    weights, levels = (party.kept.get(name) for name in (KEPT_WEIGHTS, KEPT_LEVELS))
    if weights is None or levels is None:
        raise PartyError("this party's part of the model keeps rows without weights")
    return Kept(weights, levels)


def _drawn_from(party: Party, train: Array | None) -> Array | None:
    """Return the rows that a coreset is drawn from; None: all rows of the party."""
    kept = kept_rows(party)
    if train is None or kept is None:
        return train
    return np.concatenate([train, party.n_new + np.flatnonzero(kept.merged)])


def _weights(party: Party) -> Array | None:
    """Return how many rows each row stands for, shape (n,); None: each for itself."""
    kept = kept_rows(party)
    if kept is None:
        return None
    return np.concatenate([np.ones(party.n_new), kept.weights])


def numbers_of(rows: Array) -> Array:
    """Return row numbers as an index of an array: truth values would be a mask."""
    return rows.astype(np.uint8) if rows.dtype.kind == "b" else rows


def check_labels(party: Party, classes: bool = False) -> None:
    """Raise ``PartyError`` where a party knows the labels of some rows only.

    They must be numbers, and no categories, unless `classes` may be.
    """
    if 0 < party.n_labels < party.n_rows:
        raise PartyError("this party does not know the labels of all of its rows")
    texts = (party.encoding or {}).get("classes", ())
    if party.y is not None and not classes and (texts is None or len(texts) > 2):
        raise PartyError(
            "labels must be numbers for a regression, and this party's are categories: "
            "write them as numbers"
        )


def check_classes(party: Party) -> None:
    """Raise ``PartyError`` where a party's labels, if any, are not of two classes."""
    check_labels(party, classes=True)
    if party.y is None or (count := len(np.unique(party.y))) == 2:
        return
    hint = ": a regression of numbers is coreset-vrlr" if count > 2 else ""
    raise PartyError(
        "labels must have two values for a logistic regression, this party's have "
        f"{count}{hint}"
    )


def _blocks(party: Party, state: CoresetState, rows: Array | None) -> RowBlocks:
    """Return the rows that the scores are computed from.

    Regression takes the label into account (Algorithm 2: a basis of [X^(T), y]) and,
    unlike the paper, the ones of the intercept; a logistic one takes no label, and
    k-means X alone.
    """
    extra: list[Array | float] = [1.0] if state.intercept else []
    if state.intercept is not None and party.y is not None and not state.classes:
        extra.append(party.y)
    w = _weights(party) if state.intercept is not None else None
    scale = None if w is None else np.sqrt(w)
    return RowBlocks(party.rows, *extra, rows=rows, scale=scale)


def _scores(party: Party, state: CoresetState, rows: Array | None) -> Array:
    """Return g_i of this party for some rows, each w_i times; None: for all rows."""
    blocks, weights = _blocks(party, state, rows), _weights(party)
    w = np.ones(1) if weights is None or rows is None else weights[rows]
    if state.summary is not None:
        summary, alpha = state.summary, state.alpha
        return w * blocks.per_row(lambda X: vkmc_sensitivities(X, summary, alpha))
    assert state.factor is not None
    leverages = leverage_scores(blocks, state.factor)
    if state.intercept and party.y is None:
        # The leverage of [X, 1] is w/n more than that of X about its mean. Only the
        # label holder counts the ones.
        leverages -= w / state.n
    if state.classes:
        return logistic_sensitivities(leverages, state.n)
    return vrlr_sensitivities(leverages, state.n, w)


@step
@once
@reveals("totals")
def totals(
    party: Party,
    size: Annotated[int, Ge(0), Le(2 * MOST_ROWS)],
    test_fraction: Fraction,
    intercept: bool | None = None,
    clustering: Clustering | None = None,
    l2: Strength = 0.0,
    classes: bool = False,
) -> Totals:
    """Line 2 of Algorithm 1: the total G_j; and line 5 at once, if `size` > 0.

    The scores are those of a regression with or without `intercept`, or those of a
    `clustering`. With `l2` above 0 those of a regression are ridge leverage scores: n
    `l2` is the penalty of a squared coefficient beside the sum of the losses of all
    rows, and not of the intercept nor of the label. With `classes` the regression is
    logistic, and takes their square roots.

    A party draws `size` rows before it knows a_j, and the server uses the first a_j of
    them: they have the distribution of line 5, and a round trip is saved.
    """
    _check_draws(party, "size", size)
    train = _drawn_from(party, training_rows(party, test_fraction))
    n = party.n_rows if train is None else len(train)
    weights = _weights(party)
    w = None if weights is None or train is None else weights[train]
    if (intercept is None) == (clustering is None):
        raise PartyError("either intercept or clustering must be given")
    if party.n_kept and (l2 or classes):
        raise PartyError(
            "rows can be added only to the coreset of a regression by leverage scores: "
            f"l2 must be 0 and classes False, got {l2:g} and {classes}"
        )
    total = float(n if w is None else w.sum())
    state = CoresetState(test_fraction, total, intercept, classes=classes)
    blocks = _blocks(party, state, train)
    if clustering is None:
        (check_classes if classes else check_labels)(party)
        penalty = np.zeros(blocks.shape[1])
        penalty[: party.rows.shape[1]] = n * l2
        state.factor = leverage_factor(blocks, penalty=penalty if l2 else None)
    else:
        if clustering.n_clusters > n:
            raise PartyError(
                f"n_clusters must be at most the {n} training rows, got "
                f"{clustering.n_clusters}"
            )
        state.summary = cluster_summary(
            blocks,
            clustering.n_clusters,
            party.rng("cluster"),
            method=clustering.local_clustering,
            weights=w,
        )
        state.alpha = clustering.alpha
    party.remember(state)
    g = _scores(party, state, train)
    reply: Totals = {"total": np.array([g.sum()])}
    if size:
        reply["rows"] = _drawn(party, train, g, size)
    return reply


@step
@once
@reveals("totals")
def drawn_rows(
    party: Party, count: Annotated[Array, Whole("1", below=2 * MOST_ROWS + 1)]
) -> DrawnRows:
    """Line 5 of Algorithm 1: a_j rows, row i with probability g_ij / G_j.

    The count is an array, since the paper counts it among the numbers that are sent.
    """
    state = party.recall(CoresetState)
    _check_draws(party, "count", int(count[0]))
    train = _drawn_from(party, training_rows(party, state.test_fraction))
    g = _scores(party, state, train)
    return {"rows": _drawn(party, train, g, int(count[0]))}


def _check_draws(party: Party, name: str, size: int) -> None:
    """Raise ``PartyError`` where so many draws would tell the score of each row."""
    if size > max(2 * party.n_rows, MOST_DRAWS):
        raise PartyError(
            f"{name} must be at most {MOST_DRAWS} or twice the rows, got {size}: more "
            "draws tell the score of each"
        )


def _drawn(party: Party, train: Array | None, g: Array, size: int) -> Array:
    rows = draw(g, size, party.rng("draw"))
    return (rows if train is None else train[rows]).astype(np.uint32)


@step
@reveals("rows", "pool")
@reveals("row-sums", "not pool")
def scores(party: Party, rows: Rows, pool: bool) -> Scores:
    """Line 7 of Algorithm 1: g_ij for i in S, masked; and the rows, if `pool`."""
    state, rows = party.recall(CoresetState), numbers_of(rows)
    party.afford("rows", len(rows), party.rows.shape[1])
    party.share(rows, "rows" if pool else "row-sums")
    g = _scores(party, state, rows)
    if not pool:
        return {"scores": g}
    return {"scores": g, **_pooled(party, rows, labels=state.summary is None)}


@step
@reveals("rows")
def pooled_rows(
    party: Party,
    test_fraction: Fraction,
    labels: bool,
    rows: Rows | None = None,
    start: Count | None = None,
    stop: Count | None = None,
    classes: bool = False,
) -> Pooled:
    """Send rows to the server: those in `rows`, or training rows `start` to `stop`.

    With `classes` the labels must have two values.
    """
    if classes:
        check_classes(party)
    if rows is None:
        if start is None or stop is None:
            raise PartyError("either rows, or start and stop must be given")
        train = training_rows(party, test_fraction)
        stop = min(stop, party.n_rows)
        rows = np.arange(start, stop) if train is None else train[start:stop]
    elif start is not None or stop is not None:
        raise PartyError("start and stop must not be given beside rows")
    else:
        rows = numbers_of(rows)
    return _pooled(party, rows, labels)


def _pooled(party: Party, rows: Array, labels: bool) -> Pooled:
    """Return rows of X, and at the label holder of y where `labels` are needed."""
    party.afford("rows", len(rows), party.rows.shape[1])
    party.share(rows, "rows")
    X = party.rows.take(rows.astype(np.int64))
    if party.y is None or not labels:
        return {"X": X}
    return {"X": X, "y": np.asarray(party.y[rows], dtype=np.float64)}


@step
@reveals("rows")
def local_clusters(
    party: Party,
    n_clusters: Clusters,
    local_clustering: LocalClustering,
    test_fraction: Fraction,
    coreset: WeightedRows | None = None,
) -> LocalClusters:
    """Cluster the coreset's rows, or all training rows; send centres and assignments.

    Ding et al. (2016) with the rows of the coreset in the place of all rows. A centre
    and its assignments tell nearly what its rows are, and a centre of one row is that
    row. So all rows that are clustered count as rows that leave the party.
    """
    rows, weights = training_rows(party, test_fraction), None
    if coreset is not None:
        rows = numbers_of(coreset.rows)
        party.afford("rows", len(rows), max(n_clusters, party.rows.shape[1]))
        weights = np.asarray(coreset.weights, dtype=np.float64)
    party.share(np.arange(party.n_rows) if rows is None else rows, "rows")
    blocks = RowBlocks(party.rows, rows=rows)
    k = min(n_clusters, len(blocks))
    centers = seed_centers(blocks, k, party.rng("distdim"), weights)
    # At least one step: the seeds are rows, and rows do not leave a party.
    passes = 100 if local_clustering == "lloyd" else 1
    centers = lloyd(blocks, centers, weights, max_iter=passes)
    labels = blocks.per_row(lambda X: assign(X, centers)[0])
    smallest = np.min_scalar_type(len(centers) - 1)
    return {"centers": centers, "labels": labels.astype(smallest)}


@step
@reveals("rows")
def distances(
    party: Party,
    centers: Annotated[Array, Reals("k n_columns"), MinLen(1), OWN],
    test_fraction: Fraction,
    start: Count,
    stop: Count,
) -> Distances:
    """Send the squared distances of a range of rows to each centre, on its columns.

    The server chooses the centres: where it moves those of one party, two sums differ
    by what says that party's rows. So these rows count as rows that leave the party.
    """
    train = training_rows(party, test_fraction)
    rows = np.arange(party.n_rows)[start:stop] if train is None else train[start:stop]
    if len(rows) * len(centers) > max(MOST_DISTANCES, len(centers)):
        raise PartyError(
            f"one message must have at most {MOST_DISTANCES} distances, got "
            f"{len(rows)} rows and {len(centers)} centres"
        )
    party.afford("centers", len(centers), party.rows.shape[1])
    party.share(rows, "rows")
    X = party.rows.take(rows)
    return {"distances": partial_distances(X, centers)}
