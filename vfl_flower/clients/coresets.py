"""A party's side of coreset construction (Algorithms 1 to 3 of the paper).

What is kept between messages is O(d^2) numbers for regression and O(k d) for k-means:
enough to give the score of any row again without a pass over the data.
"""

from __future__ import annotations

import numpy as np

from vfl_flower.clients.base import Party, step
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import (
    ClusterSummary,
    cluster_summary,
    leverage_factor,
    leverage_scores,
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
from vfl_flower.typing import Array, Scalar, Values


def _blocks(party: Party, rows: Array | None) -> RowBlocks:
    """Return what the scores are made of.

    Regression takes the label into account (Algorithm 2: a basis of [X^(T), y]) and,
    unlike the paper, the ones of the intercept; k-means takes X alone.
    """
    extra: list[Array | float] = []
    if party.state["task"] == "regression":
        extra += [1.0] if party.state["intercept"] else []
        extra += [] if party.y is None else [party.y]
    return RowBlocks(party.X, *extra, rows=rows)


def _training_rows(party: Party, test_fraction: float) -> Array | None:
    return split_rows(party.n_rows, test_fraction, party.seed)[0]


def _scores(party: Party, blocks: RowBlocks) -> Array:
    """Return g_i of this party for the rows of `blocks`, shape (len(blocks),)."""
    state = party.state
    if state["task"] == "regression":
        scores = leverage_scores(blocks, state["factor"])
        if state["intercept"] and party.y is None:
            # The leverage of [X, 1] is 1/n more than that of X about its mean: the
            # ones are the label holder's, and count once.
            scores -= 1 / state["n"]
        return vrlr_sensitivities(scores, state["n"])
    summary = ClusterSummary(state["centers"], state["sizes"], state["costs"])
    return np.concatenate(
        [vkmc_sensitivities(block, summary, state["alpha"]) for block in blocks]
    )


@step("coresets_totals")
def totals(
    party: Party,
    task: str,
    size: int,
    test_fraction: float,
    intercept: bool = False,
    n_clusters: int = 0,
    local_clustering: str = "",
    alpha: float = 0.0,
) -> Values:
    """Line 2 of Algorithm 1: the total G_j; and line 5 at once, if `size` > 0.

    A party that draws `size` rows before it knows a_j lets the server use the first
    a_j of them: they have the distribution of line 5, and a round trip is saved.
    """
    party.state = {"task": task, "test_fraction": test_fraction, "intercept": intercept}
    blocks = _blocks(party, _training_rows(party, test_fraction))
    party.state["n"] = len(blocks)
    if task == "regression":
        party.state["factor"] = leverage_factor(blocks)
    else:
        summary = cluster_summary(
            blocks, n_clusters, party.rng("cluster"), method=local_clustering
        )
        party.state |= {
            "alpha": alpha,
            "centers": summary.centers,
            "sizes": summary.sizes,
            "costs": summary.costs,
        }
    g = _scores(party, blocks)
    reply: dict[str, Array | Scalar] = {"total": np.array([g.sum()])}
    return reply | {"rows": _draw(party, g, size)} if size else reply


@step("coresets_draw")
def draw_rows(party: Party, count: Array) -> Values:
    """Line 5 of Algorithm 1: a_j rows, row i with probability g_ij / G_j."""
    blocks = _blocks(party, _training_rows(party, party.state["test_fraction"]))
    return {"rows": _draw(party, _scores(party, blocks), int(count[0]))}


def _draw(party: Party, g: Array, size: int) -> Array:
    rows = draw(g, size, party.rng("draw"))
    train = _training_rows(party, party.state["test_fraction"])
    return (rows if train is None else train[rows]).astype(np.uint32)


@step("coresets_scores", sums=("scores",))
def scores(party: Party, rows: Array, pool: bool) -> Values:
    """Line 7 of Algorithm 1: g_ij for i in S, masked; and the rows, if `pool`."""
    reply: Values = {"scores": _scores(party, _blocks(party, rows))}
    labels = party.state["task"] == "regression"
    return {**reply, **_pooled(party, rows, labels)} if pool else reply


@step("coresets_rows")
def pooled_rows(
    party: Party,
    test_fraction: float,
    labels: bool,
    rows: Array | None = None,
    start: int = 0,
    stop: int = 0,
) -> Values:
    """Send rows to the server: those in `rows`, or training rows `start` to `stop`.

    How many is the server's choice within the party's ``share_rows``.
    """
    if rows is None:
        train = _training_rows(party, test_fraction)
        rows = np.arange(start, stop) if train is None else train[start:stop]
    return _pooled(party, rows, labels)


def _pooled(party: Party, rows: Array, labels: bool) -> Values:
    """Return rows of X, and at the label holder of y where `labels` are needed."""
    party.share(rows)
    X = np.asarray(party.X[rows], dtype=np.float64)
    if party.y is None or not labels:
        return {"X": X}
    return {"X": X, "y": np.asarray(party.y[rows], dtype=np.float64)}


@step("coresets_distdim")
def local_clusters(
    party: Party,
    n_clusters: int,
    local_clustering: str,
    test_fraction: float,
    rows: Array | None = None,
    weights: Array | None = None,
) -> Values:
    """Cluster the coreset's rows at the party; send centres and assignments.

    Ding et al. (2016), in which the coreset takes the place of all rows; without
    `rows` it is all training rows.
    """
    rows = _training_rows(party, test_fraction) if rows is None else rows
    blocks = RowBlocks(party.X, rows=rows)
    k = min(n_clusters, len(blocks))
    centers = seed_centers(blocks, k, party.rng("distdim"), weights)
    # At least one step: the seeds are rows, and rows do not leave a party.
    passes = 100 if local_clustering == "lloyd" else 1
    centers = lloyd(blocks, centers, weights, max_iter=passes)
    labels = np.concatenate([assign(block, centers)[0] for block in blocks])
    smallest = np.min_scalar_type(len(centers) - 1)
    return {"centers": centers, "labels": labels.astype(smallest)}


@step("coresets_distances", sums=("distances",))
def distances(
    party: Party, centers: Array, test_fraction: float, start: int, stop: int
) -> Values:
    """Send squared distances over own columns to each centre, for a range of rows."""
    train = _training_rows(party, test_fraction)
    rows = slice(start, stop) if train is None else train[start:stop]
    X = np.asarray(party.X[rows], dtype=np.float64)
    return {"distances": partial_distances(X, centers)}
