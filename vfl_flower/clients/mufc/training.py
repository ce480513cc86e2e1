"""A party's side of clustering that can forget (Algorithms 1, 2 and 5 of the paper).

This module trains clusters and labels new rows. Forgetting is in
:mod:`vfl_flower.clients.mufc.forgetting`.

A party (a "client" in the paper) stores a state for later runs in its ``state-dir``
(:mod:`vfl_flower.clients.mufc.state`): the tags of its training rows' ids; the tags of
its centroids' ids, in the order drawn; and the sizes of the centroids' clusters. The
stored state contains no value of a row.

The rows are scaled from the box to a cube, and clustered in the cube.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import compress
from pathlib import Path
from typing import Annotated, NotRequired, TypedDict

import numpy as np
from annotated_types import Ge, Lt, MaxLen, MinLen

from vfl_flower.clients.evaluation import Predicted
from vfl_flower.clients.mufc.settings import MOST_CLUSTERS, TrainingSettings
from vfl_flower.clients.mufc.state import ClientState, PartyFacts, list_models
from vfl_flower.numerics import mufc
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import assign
from vfl_flower.party import row_requests
from vfl_flower.party.party import Party, Predictions, stored_as
from vfl_flower.protocol.contract import COUNTS, IN_SUM, Reals, Whole
from vfl_flower.protocol.errors import PartyError, refusing, refusing_files
from vfl_flower.protocol.steps import once, reveals, step_of, sums_over
from vfl_flower.protocol.terms import LEAST_ROWS
from vfl_flower.secure_aggregation.limbs import split_limbs
from vfl_flower.secure_aggregation.sparse_sum import SparseSum
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")
step = step_of("mufc")

MOST_ROWS = 2**40
"""Maximum number of rows of all parties together."""

Version = Annotated[int, Ge(0), Lt(2**63 - 1)]

RowCenters = Annotated[Array, Reals("k n_columns"), MinLen(1), MaxLen(MOST_CLUSTERS)]


@stored_as("vfl_flower.clients.mufc.MUFCState")
class MUFCState:
    """A party's state from sending its counts to the end of the run."""

    model: str
    """The id of the model."""
    settings: TrainingSettings
    """The training settings."""
    n_rows: int
    """Number of rows in the party's data."""
    stay: Array
    """Bits that mark the participating rows."""
    drawn: Array
    """Row numbers of the party's centroids, in the order drawn, of shape (k',)."""
    leaves: bool = False
    """Whether the party leaves the model."""
    labels: Array | None = None
    """Global clusters of the participating rows."""


class Counts(TypedDict):
    """Counts of centroids: a `message` or, without privacy, `centroids` and `sizes`."""

    message: NotRequired[Annotated[Array, Whole("*"), IN_SUM]]
    centroids: NotRequired[Annotated[Array, Reals("k n_columns", -0.5, 0.5)]]
    sizes: NotRequired[Annotated[Array, Whole("k", least=1, below=MOST_ROWS)]]


class Trained(Counts):
    """Reply of :func:`train`; `totals` contains the number of rows, and 0."""

    totals: Annotated[Array, Reals("2"), IN_SUM]
    kept: bool


class Abandoned(TypedDict):
    """The reply of :func:`abandon`, which is empty."""


class Committed(TypedDict):
    """Reply of :func:`commit`."""

    cost: NotRequired[Annotated[Array, Reals("5 1"), IN_SUM]]
    sizes: Annotated[Array, Reals("k"), COUNTS]


# -- training (Algorithm 1) -----------------------------------------------------------


@step
@sums_over(
    "session", "centroids are means of at least five rows, or also count as rows"
)
@once
@reveals("centroids")
@reveals("rows", when="settings.shows_rows", counted=False)
def train(
    party: Party,
    model: str,
    settings: TrainingSettings,
    key: bytes = b"",
    keep: bool = True,
) -> Trained:
    """Lines 1 to 4: draw centroids, and send their quantised counts."""
    code = code_of(party, settings, key)
    folder = party.state_dir if keep else None
    if folder is not None and not party.name:
        raise PartyError(
            "to forget rows later, the party needs a party-name, because its position "
            "in a run can belong to a different party in the next run"
        )
    check_box(party, settings)
    with refusing():
        drawn, sizes = mufc.seed_centroids(
            party.rows, settings.box, settings.local_clusters, party.rng("centroids")
        )
    if folder is not None:
        ids = ids_of(party)
        check_alone(party, folder, model)
    everything = np.packbits(np.ones(party.n_rows, dtype=bool))
    party.remember(MUFCState(model, settings, party.n_rows, everything, drawn))
    totals = np.array([sizes.sum(), 0], dtype=np.float64)
    counts = counts_of(party, sizes, code)
    if folder is not None:  # last, so that a refusal leaves no file
        d, names = party.rows.shape[1], list(party.names)
        facts = PartyFacts(party.name or "", d, party.columns_digest, names)
        state = ClientState.create(folder, model, ids, settings, facts)
        tags = state.tag([ids[row] for row in drawn])
        state.stage(1, tags, sizes, kind="train", redrawn=True, run=model)
    return {**counts, "totals": totals, "kept": folder is not None}


@step
@sums_over("none")
def abandon(party: Party, model: str) -> Abandoned:
    """Remove the state of a training run that the server has abandoned."""
    if party.state_dir is not None:
        ClientState(party.state_dir, model).remove_unfinished()
    return {}


def code_of(party: Party, settings: TrainingSettings, key: bytes) -> SparseSum | None:
    """Return the code that hides counts, or None if counts are sent in the clear."""
    if settings.privacy == "none":
        return None
    with refusing():
        return settings.code(party.n_parties, party.rows.shape[1], key)


def counts_of(party: Party, sizes: Array, code: SparseSum | None) -> Counts:
    """Return the centroids and sizes, hidden or not, depending on the settings."""
    state = party.recall(MUFCState)
    settings = state.settings
    check_box(party, settings, state.drawn)
    if settings.shows_rows:
        party.share(state.drawn, "rows")
    # Each row contributes to the mean or the size of a cluster.
    party.share(taking_part(state), "centroids")
    if settings.client_training == "full":
        _, centroids, labels = clustered_rows(party, state)
        sizes = np.bincount(labels, minlength=len(centroids))
    else:  # no pass over the rows
        centroids = mufc.BoxedRows(party.rows, settings.box).take(state.drawn)
        remain, sizes, _ = mufc.merge_small(centroids, sizes, settings.min_rows_per_bin)
        centroids = centroids[remain]
    if code is None:
        return {"centroids": centroids, "sizes": sizes}
    with refusing():
        return {"message": code.encode(*settings.quantizer.count(centroids, sizes))}


def clustered_rows(party: Party, state: MUFCState) -> tuple[RowBlocks, Array, Array]:
    """Return the participating rows, and the centroids and labels of their clusters.

    The clusters are computed from the drawn rows and the participating rows, regardless
    of merges in earlier versions: see :func:`vfl_flower.numerics.mufc.merge_small`.
    """
    rows = taking_part(state)
    blocks = mufc.BoxedRows(party.rows, state.settings.box, rows)
    places = np.searchsorted(rows, state.drawn)
    full = state.settings.client_training == "full"
    least = state.settings.min_rows_per_bin
    with same_values():
        return blocks, *mufc.local_clusters(blocks, places, full, least)


def taking_part(state: MUFCState) -> Array:
    """Return the numbers of the participating rows."""
    return np.flatnonzero(np.unpackbits(state.stay, count=state.n_rows))


@step
@sums_over("earlier")
@once
@reveals("row-sums", when="cost")
def commit(
    party: Party,
    version: Version,
    run: str,
    centers: RowCenters,
    kept: bool = True,
    cost: bool = False,
) -> Committed:
    """Line 9: assign each row to its centroid's global cluster; settle the version.

    The cluster sizes and, with `cost`, the induced objective are summed over the
    parties. Over several sessions, a server that chooses the box and the centres can
    compute rows from the objective. A party that leaves keeps only its audit log; if
    the model is not `kept`, no party keeps anything.
    """
    state = party.recall(MUFCState)
    if party.n_rows != state.n_rows:
        raise PartyError("this party's data changed during the run")
    check_box(party, state.settings, state.drawn)
    with np.errstate(over="ignore"):
        scaled = state.settings.box.scale(centers)
    # The centres are means of points of the cube, up to rounding.
    if not (np.abs(scaled) <= 1).all():
        raise PartyError("centers must be in the box")
    blocks, centroids, labels = clustered_rows(party, state)
    labels = mufc.induced_labels(centroids, labels, scaled)
    sizes = np.bincount(labels, minlength=len(centers))
    reply: Committed = {"sizes": sizes.astype(np.float64)}
    if cost:
        party.share(taking_part(state), "row-sums")
        total = mufc.contributions(blocks, scaled, labels).sum()
        with refusing():
            reply["cost"] = split_limbs(np.array([total]))
    if party.state_dir is not None:
        client = ClientState(party.state_dir, state.model)
        remove_file(predictions_file(client))  # until this version's file is written
        if not kept:
            client.remove_unfinished()
        elif not state.leaves:
            client.settle(version, run)
            finish_served(client)
        else:
            if client.exists:
                client.wipe()
            remove_file(party.state_dir / row_requests.FORGET)
            remove_file(party.state_dir / row_requests.ADD)
            row_requests.finish_requests(
                party.state_dir,
                row_requests.LEAVE,
                lambda lines: [m == state.model for m in lines],
            )
    rows = taking_part(state)
    warn_of_others(party, rows)
    state.labels = labels
    if not state.leaves:
        party.predictions = Predictions(labels, rows, state.model)
    return reply


# -- a party's folder, and its files of requests --------------------------------------


def finish_served(state: ClientState) -> None:
    """Remove fulfilled requests from the party's files."""
    removed, forgotten = state.removed(), list[str]()

    def are_served(ids: list[str]) -> list[bool]:
        served = [tag in removed for tag in state.tag(ids)]
        forgotten.extend(compress(ids, served))
        return served

    row_requests.finish_requests(state.folder, row_requests.FORGET, are_served)
    if files := row_requests.files_naming(state.folder, forgotten):
        log.warning(
            "remove the files of the state-dir that still contain forgotten ids: %s",
            ", ".join(files),
        )
    row_requests.finish_requests(
        state.folder, row_requests.ADD, lambda ids: state.known(state.tag(ids))
    )


def state_of(party: Party, model: str, version: int, run: str) -> ClientState:
    """Return the party's state, updated to the server's version."""
    if party.state_dir is None:
        raise PartyError("the party has no state-dir, so it has no state of a model")
    state = ClientState(party.state_dir, model)
    check_name(party, state.facts)
    present = state.version
    state.settle(version, run)
    if state.version != present:
        remove_file(predictions_file(state))
    return state


def check_name(party: Party, facts: PartyFacts) -> None:
    """Raise ``PartyError`` if the state belongs to a party with a different name."""
    if facts.name != party.name:
        raise PartyError(
            f"the state-dir has the state of party {facts.name!r}: each party must "
            "always use its own folder and name"
        )


def check_columns(party: Party, facts: PartyFacts) -> None:
    """Raise ``PartyError`` unless the data have the training columns."""
    count = party.rows.shape[1]
    if count != facts.n_columns:
        raise PartyError(
            f"the data must have the {facts.n_columns} training columns, got {count}"
        )
    if party.columns_digest != facts.columns:
        raise PartyError(
            "the data must have the training columns in the same order, but the names "
            "differ"
        )


def check_alone(party: Party, folder: Path, model: str) -> None:
    """Raise if a different party of the run has written to the same folder."""
    state = ClientState(folder, model)
    if state.exists and state.facts.name != party.name:
        raise PartyError("state-dir must not be shared with another party")
    with refusing():
        count = len(set(list_models(folder)) - {model})
    if count:
        log.warning(
            "the state-dir has %d other models: to forget a row in all models, start a "
            "run for each, or remove the files of the other models",
            count,
        )


def predictions_file(state: ClientState) -> Path:
    """Return the file with the clusters of the rows."""
    return state.folder / f"predictions-{state.model}.csv"


def remove_file(path: Path) -> None:
    """Remove a file of the state-dir, if it exists."""
    with refusing_files("a file of the state-dir cannot be removed", path):
        path.unlink(missing_ok=True)


def warn_of_others(party: Party, rows: Array) -> None:
    """Warn if some rows of the data do not participate, and remove the cache."""
    if len(rows) < party.n_rows:
        log.warning(
            "%d rows of the data are not used: remove forgotten rows from the file",
            party.n_rows - len(rows),
        )
        drop_cache(party)


def drop_cache(party: Party) -> None:
    """Remove the cached copy of a data file that still has forgotten rows."""
    if party.source is not None:
        party.source.drop_cache()


def ids_of(party: Party) -> list[str]:
    """Return the ids of the party's rows, which are required for forgetting."""
    ids = party.read_ids()
    if ids is None:
        raise PartyError("to forget rows by their ids, the data need an id-column")
    if len(ids) != party.n_rows:
        raise PartyError("this party's data changed while being read")
    return [str(value) for value in ids]


# -- new rows --------------------------------------------------------------------------


class BoxedCost(TypedDict):
    """Reply of :func:`evaluate`: the number of rows included, and their cost."""

    totals: Annotated[Array, Reals("2"), IN_SUM]


def _new_rows(
    party: Party, model: str, version: int, before: str, centers: Array
) -> tuple[Array, Array, Array]:
    """Return the rows that are not forgotten, their clusters and squared distances."""
    state = state_of(party, model, version, before)
    check_columns(party, state.facts)
    rows, box = np.arange(party.n_rows), state.settings.box
    if removed := state.removed():
        tags = state.tag(ids_of(party))
        rows = np.array([i for i, tag in enumerate(tags) if tag not in removed], int)
        warn_of_others(party, rows)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = box.scale(np.asarray(centers, dtype=np.float64))
        blocks = mufc.BoxedRows(party.rows, box, rows)
        parts = [assign(block, scaled) for block in blocks] or [
            (np.zeros(0, dtype=np.int64), np.zeros(0))
        ]
    labels, costs = map(np.concatenate, zip(*parts, strict=True))
    return rows, labels, costs


@step
@sums_over("none")
def predict(
    party: Party, model: str, version: Version, before: str, centers: RowCenters
) -> Predicted:
    """Assign each row of the party's data to the nearest centre; labels stay local."""
    rows, labels, _ = _new_rows(party, model, version, before, centers)
    named = f"{model}-{party.session:016x}"  # training writes {model}
    party.predictions = Predictions(labels, rows, named)
    return {"done": True}


@step
@sums_over("request")
@once
@reveals("row-sums")
def evaluate(
    party: Party, model: str, version: Version, before: str, centers: RowCenters
) -> BoxedCost:
    """Return the number of rows, and the sum of their squared distances to centres.

    A server that chooses centres freely could single out rows.
    """
    rows, _, costs = _new_rows(party, model, version, before, centers)
    if len(rows) < LEAST_ROWS:
        raise PartyError(f"this step requires at least {LEAST_ROWS} rows at each party")
    party.sum_over(rows, by_choice=len(rows) < party.n_rows)
    party.share(rows, "row-sums")
    cost = float(costs.sum())
    if not np.isfinite(cost):
        raise PartyError("rows must be close enough to the box for a finite cost")
    return {"totals": np.array([float(len(rows)), cost])}


# -- checks of the data ---------------------------------------------------------------


def check_box(
    party: Party, settings: TrainingSettings, rows: Array | None = None
) -> None:
    """Raise if any of `rows` (default: all rows) is outside the box."""
    box, names = settings.box, party.columns
    try:
        if rows is not None:
            box.check(party.rows.take(rows))
        else:
            party.rows.map_reduce(lambda _, X: box.check(X), lambda *_: None, None)
    except ValueError as error:  # the error names a column but no value
        text = str(error)
        column = re.match(r"column (\d+), counted from 0,", text)
        if column and names:
            text = f"column {names[int(column[1])]!r}{text[column.end() :]}"
        raise PartyError(f"{text} (setting box, mufc.box in a run config)") from None


@contextmanager
def same_values() -> Iterator[None]:
    """Refuse the request if rows that training could cluster cause an error now."""
    try:
        yield
    except ValueError:
        raise PartyError(
            "the remaining rows must have the same values as in training"
        ) from None
