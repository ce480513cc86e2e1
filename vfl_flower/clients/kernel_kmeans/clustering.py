"""A party's side of k-means on the eigenvectors (lines 16 to 20), and on new rows."""

from __future__ import annotations

import hashlib
from typing import Annotated, NotRequired, TypedDict, cast

import numpy as np
from annotated_types import Ge, Le, MaxLen, MinLen

from vfl_flower.clients.evaluation import Predicted
from vfl_flower.clients.kernel_kmeans import training
from vfl_flower.numerics import distributed_kmeans, kmeans, summed_kmeans
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import ClusterSummary, cluster_summary
from vfl_flower.numerics.kernel_embedding import EmbeddingPart, embed_rows
from vfl_flower.party.party import Party, PartyError, Predictions
from vfl_flower.protocol.contract import COUNTS, IN_SUM, OWN, Reals, Whole
from vfl_flower.protocol.errors import refusing
from vfl_flower.protocol.settings import Count
from vfl_flower.protocol.steps import once, reveals, step_of, sums_over
from vfl_flower.protocol.terms import LEAST_ROWS
from vfl_flower.typing import Array

step = step_of("kernel_kmeans")

MOST_CENTERS = 2**17
"""Maximum total number of centres over all starts of k-means."""

Centers = Annotated[Array, Reals("k s"), MinLen(1), MaxLen(training.MOST_COMPONENTS)]

Starts = Annotated[Array, Reals("a k s"), MinLen(1)]
"""Centres of each start."""


class Local(TypedDict):
    """Reply of :func:`local`."""

    cost: Annotated[float, Ge(0), Le(training.LARGEST_COST)]


class Sample(TypedDict):
    """Reply of :func:`sample`."""

    points: Annotated[Array, Reals("a s"), MinLen(1)]
    weights: Annotated[Array, Reals("a")]


class Embedding(TypedDict):
    """Reply of :func:`embed`."""

    sum_h: Annotated[Array, Reals("*"), IN_SUM]


class Lloyd(TypedDict):
    """Reply of :func:`lloyd`."""

    inertia: Annotated[Array, Reals("a"), IN_SUM]
    sizes: Annotated[Array, Reals("a k"), COUNTS]
    counts: NotRequired[Annotated[Array, Reals("a k"), IN_SUM]]
    sums: NotRequired[Annotated[Array, Reals("a k s"), IN_SUM]]
    silhouettes: NotRequired[Annotated[Array, Reals("a"), IN_SUM]]


class Assigned(TypedDict):
    """Reply of :func:`assign`."""

    inertia: Annotated[Array, Reals("1"), IN_SUM]
    sizes: Annotated[Array, Reals("k"), COUNTS]
    kept: bool


class EmbeddedCost(TypedDict):
    """Reply of :func:`evaluate`."""

    cost: Annotated[Array, Reals("1"), IN_SUM]


# -- k-means (lines 16 to 20) ---------------------------------------------------------


def _embed(
    party: Party, R: Array | None, H: Array | None
) -> tuple[training.State, Array]:
    """Compute the embedding, which ends the iterations; return it with the state."""
    state = party.recall(training.State)
    if not state.t or state.H is not None:
        raise PartyError("the embedding must be computed only once, after iterations")
    if (R is None) == (H is None) or (R is None) != (state.P is None):
        raise PartyError("the request must have R if cem is true, and H otherwise")
    if R is not None:
        H = training.times(party, state, R)
    assert H is not None
    with training.within_memory():
        H = np.asarray(H, dtype=np.float64)
        if not H.shape[1]:
            raise PartyError("the embedding must have at least one column")
        training.check_size("H", H)
    state.H, state.B, state.G = H, None, None
    party.cache.pop("kernel_kmeans", None)
    return state, H


@step
@sums_over("session")
@once
@reveals("row-sums", counted=False)
def embed(
    party: Party,
    R: training.SmallMatrix | None = None,
    H: Annotated[Array, Reals("n_rows s"), OWN] | None = None,
) -> Embedding:
    """Lines 16 and 17, with clustering "sums": H[m] = W_T R, or `H`, and its sum."""
    _, H = _embed(party, R, H)
    return {"sum_h": H.sum(axis=0)}


@step
@sums_over("session", "each sum covers a random half of a cluster's rows, with noise")
@reveals("row-sums")
def lloyd(
    party: Party,
    centers: Starts,
    last: Starts | None = None,
    sizes: Annotated[Array, Whole("a k")] | None = None,
    used: Annotated[Array, Whole("a", least=2)] | None = None,
) -> Lloyd:
    """Line 19, with clustering "sums": a pass of all starts over this party's rows.

    `last` contains the centres of the previous pass, and `sizes` the number of rows in
    each cluster over all parties. A server that chooses `last` and `sizes` freely could
    single out rows. With `used`, the number of centres of each start, the reply also
    contains a measure of the distances between the clusters.
    """
    state = party.recall(training.State)
    H = _embedded(state)
    (a, k), s = centers.shape[:2], H.shape[1]
    if centers.shape[2] != s:
        raise PartyError(f"centers must have {s} columns, got {centers.shape[2]}")
    if a * k > MOST_CENTERS:
        raise PartyError(
            "the total number of centers over all starts must be at most "
            f"{MOST_CENTERS}, got {a * k}"
        )
    if (last is None) != (sizes is None):
        raise PartyError("last and sizes must be given together")
    if used is not None and used.max() > k:
        raise PartyError(f"used must be at most {k}, the number of centres of a start")
    party.share(np.arange(party.n_rows), "row-sums")
    # A repeated request for a pass gets the same random numbers; any other request gets
    # new numbers.
    digest = hashlib.sha256(party.secret_bytes("lloyd", 32))
    for array in (centers, last, sizes, used):
        digest.update(b"" if array is None else array.tobytes())
    rng = np.random.default_rng(int.from_bytes(digest.digest()))
    request = summed_kmeans.Request(
        np.asarray(centers, dtype=np.float64),
        None if last is None else np.asarray(last, dtype=np.float64),
        sizes,
        None if used is None else used.astype(np.int64),
    )
    with training.within_memory():
        part = summed_kmeans.part_of_pass(H, request, rng, party.n_parties)
    reply = {name: values for name, values in vars(part).items() if values is not None}
    return cast(Lloyd, reply)


@step
@sums_over("session")
@once
@reveals("embedded-rows")
def local(
    party: Party,
    n_clusters: Annotated[int, Ge(1), Le(training.MOST_COMPONENTS)],
    R: training.SmallMatrix | None = None,
    H: Annotated[Array, Reals("n_rows s")] | None = None,
) -> Local:
    """Lines 16 to 19: H[m] = W_T R, or `H`, and the cost of the local centres."""
    state, H = _embed(party, R, H)
    with training.within_memory():
        state.clusters = cluster_summary(RowBlocks(H), n_clusters, party.rng("local"))
    return {"cost": float(state.clusters.costs.sum())}


def _embedded(state: training.State) -> Array:
    """Return H, the embedding."""
    if state.H is None:
        raise PartyError("the embedding must be computed before this step")
    return state.H


@step
@sums_over("none", "points count as embedded rows")
@reveals("embedded-rows")
def sample(party: Party, count: Count) -> Sample:
    """Draw this party's points for the coreset of Balcan et al. (2013)."""
    state = party.recall(training.State)
    H, clusters = _embedded(state), state.clusters
    if clusters is None:
        raise PartyError("this party's own clusters must be computed before this step")
    with training.within_memory():
        points, weights = distributed_kmeans.sample(
            RowBlocks(H), clusters, count, party.rng("sample")
        )
    if party.consent is not None:
        party.share(_revealed_by(points, H, clusters), "embedded-rows")
    return {"points": points, "weights": weights}


def _revealed_by(points: Array, H: Array, clusters: ClusterSummary) -> Array:
    """Return the rows that are among the points or whose cluster has few rows."""
    sent = {point.tobytes() for point in points}
    nearest = kmeans.assign(H, clusters.centers)[0]
    few = clusters.sizes[nearest] < summed_kmeans.LEAST_ROWS
    return np.flatnonzero(few | [row.tobytes() in sent for row in H])


@step
@sums_over("session")
@once
@reveals("row-sums")
def assign(party: Party, centers: Centers) -> Assigned:
    """Line 20: label this party's rows; the labels stay at the party."""
    state = party.recall(training.State)
    H, setup = _embedded(state), state.known_setup
    if centers.shape[1] != H.shape[1]:
        raise PartyError(
            f"centers must have {H.shape[1]} columns, got {centers.shape[1]}"
        )
    with training.within_memory():
        centers = np.asarray(centers, dtype=np.float64)
        assigned = [kmeans.assign(rows, centers) for rows in RowBlocks(H)]
        labels = np.concatenate([part[0] for part in assigned])
        inertia = np.array([sum(part[1].sum() for part in assigned)])
    party.part = {
        **setup.features(state.seed),
        "D": setup.D,
        "D_1": setup.D_1,
        "centers": centers,
        "labels": labels.astype(np.int32),
        "n_columns": party.rows.shape[1],
        "columns": party.columns_digest,
    }
    if state.P is not None:
        party.part["P"] = state.P
    party.predictions = Predictions(labels)
    return {
        "inertia": inertia,
        "sizes": np.bincount(labels, minlength=len(centers)).astype(np.float64),
        "kept": party.state_dir is not None,
    }


# -- new rows -------------------------------------------------------------------------


def _new_clusters(party: Party) -> tuple[Array, Array]:
    """Return the clusters of this party's new rows, and their squared distances."""
    part = party.part
    if "P" not in part:
        raise PartyError(
            "only a model trained with cem, on split rows, can label new rows: for "
            "this model, the party stores only the labels of the training rows"
        )
    width, now = party.rows.shape[1], party.columns_digest
    trained = part["columns"]
    if part["n_columns"] != width or (trained and now and trained != now):
        raise PartyError(
            "new rows must have the training columns, in the same order, got "
            f"{width} columns"
        )
    with refusing(), training.within_memory():
        H = embed_rows(cast(EmbeddingPart, part), party.rows)
        parts = [kmeans.assign(rows, part["centers"]) for rows in RowBlocks(H)]
    labels, costs = map(np.concatenate, zip(*parts, strict=True))
    return labels, costs


@step
@sums_over("none")
def predict(party: Party) -> Predicted:
    """Label this party's new rows with its local model; the labels stay local."""
    party.predictions = Predictions(_new_clusters(party)[0])
    return {"done": True}


@step
@sums_over("session")
@once
@reveals("row-sums")
def evaluate(party: Party) -> EmbeddedCost:
    """Return the sum of the squared distances of new rows to the trained centres."""
    if party.n_rows < LEAST_ROWS:
        raise PartyError(f"this step requires at least {LEAST_ROWS} rows at each party")
    party.share(np.arange(party.n_rows), "row-sums")
    cost = _new_clusters(party)[1].sum(keepdims=True)
    if not cost[0] <= training.LARGEST_COST:
        raise PartyError("new rows must have a finite cost: scale the columns")
    return {"cost": cost}
