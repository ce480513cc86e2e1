"""A party's side of clusters that can forget (Algorithms 1 to 5 of the paper).

What a party, a "client" of the paper, must remember from run to run is in its
``state-dir`` (:mod:`vfl_flower.clients.mufc_state`): which rows it has trained on and
which of them are its centroids, in the order drawn, as tags of their ids; and the sizes
of their clusters. No value of a row is in it.

Clustering happens in the cube to which the box scales the rows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import compress
from pathlib import Path
from typing import Annotated, Literal, NotRequired, TypedDict

import numpy as np
from annotated_types import Ge, Le, Lt, MaxLen, MinLen

from vfl_flower.clients.mufc_state import (
    MOST_CLUSTERS,
    ClientState,
    LocalClusters,
    PartyFacts,
    TrainingSettings,
    list_models,
)
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import assign
from vfl_flower.numerics.mufc import (
    BoxedRows,
    contributions,
    induced_labels,
    local_clusters,
    local_labels,
    merge_small,
    seed_centroids,
    surviving,
)
from vfl_flower.party.party import Party, Predictions, digest_ids, stored_as
from vfl_flower.party.requests import (
    ADD,
    FORGET,
    LEAVE,
    files_naming,
    finish_requests,
    read_requests,
)
from vfl_flower.protocol.contract import COUNTS, IN_SUM, Reals, Whole
from vfl_flower.protocol.errors import PartyError, refusing
from vfl_flower.protocol.settings import Count
from vfl_flower.protocol.steps import once, reveals, step_of, sums_over
from vfl_flower.protocol.terms import LEAST_ROWS as FEWEST
from vfl_flower.secure_aggregation.limbs import split_limbs
from vfl_flower.secure_aggregation.sparse_sum import SparseSum
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")
step = step_of("mufc")

MOST_ROWS = 2**40
"""Most rows of all parties together."""

LEAST_PARTIES = 2
"""Fewest parties of a sum: with a single one it would be that party's counts."""

Version = Annotated[int, Ge(0), Lt(2**63 - 1)]
Rows = Annotated[int, Ge(0), Le(MOST_ROWS)]
Kind = Literal["unlearn", "forget-client"]
Centers = Annotated[Array, Reals("k n_columns"), MinLen(1), MaxLen(MOST_CLUSTERS)]


@stored_as("vfl_flower.clients.mufc.MUFCState")
class MUFCState:
    """What a party stores from its counts to the end of the run."""

    model: str
    """The number of the model."""
    settings: TrainingSettings
    """What training has agreed on."""
    n_rows: int
    """Rows of the party's data."""
    stay: Array
    """Which of them take part, one bit for each."""
    drawn: Array
    """Row numbers of its centroids, in the order drawn, shape (k',)."""
    leaves: bool = False
    """Whether the party leaves the model."""
    labels: Array | None = None
    """Global clusters of the rows that take part."""


class Counts(TypedDict):
    """Counts of centroids: a `message`, or without privacy `centroids` and `sizes`."""

    message: NotRequired[Annotated[Array, Whole("*"), IN_SUM]]
    centroids: NotRequired[Annotated[Array, Reals("k n_columns", -0.5, 0.5)]]
    sizes: NotRequired[Annotated[Array, Whole("k", least=1, below=MOST_ROWS)]]


class Trained(Counts):
    """Reply of :func:`train`; `totals` are the number of rows, and 0."""

    totals: Annotated[Array, Reals("2"), IN_SUM]
    kept: bool


class Forgotten(Counts):
    """Reply of :func:`forget`.

    `totals` are the number of rows that stay, 1 if the file with their clusters is
    missing, the number of forgotten rows that the party's data still have, and how many
    of the ids that it requests to forget are in its other models.
    """

    totals: Annotated[Array, Reals("4"), IN_SUM]


class Added(Counts):
    """Reply of :func:`add`; `totals` are the first three of :class:`Forgotten`."""

    totals: Annotated[Array, Reals("3"), IN_SUM]


class Abandoned(TypedDict):
    """Reply of :func:`abandon`: nothing."""


class Committed(TypedDict):
    """Reply of :func:`commit`."""

    cost: NotRequired[Annotated[Array, Reals("5 1"), IN_SUM]]
    sizes: Annotated[Array, Reals("k"), COUNTS]


class Predicted(TypedDict):
    """Reply of :func:`predict`."""

    done: bool


class Cost(TypedDict):
    """Reply of :func:`evaluate`: the rows that count, and their cost."""

    totals: Annotated[Array, Reals("2"), IN_SUM]


class Status(TypedDict):
    """Reply of :func:`status`."""

    rows: Rows
    removed: Rows
    added: Rows
    pending: Rows
    requests: Rows


# -- training (Algorithm 1) -----------------------------------------------------------


@step
@sums_over("session", "centroids are means of at least five rows, or count as rows")
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
    """Lines 1 to 4: draw centroids, and give their quantised counts."""
    code = _code(party, settings, key)
    folder = party.state_dir if keep else None
    if folder is not None and not party.name:
        raise PartyError(
            "to forget later it needs a name of its own, party-name: the place in a "
            "run may be another party's in the next"
        )
    _check_box(party, settings)
    with refusing():
        drawn, sizes = seed_centroids(
            party.rows, settings.box, settings.local_clusters, party.rng("centroids")
        )
    if folder is not None:
        ids = _ids(party)
        _check_alone(party, folder, model)
    everything = np.packbits(np.ones(party.n_rows, dtype=bool))
    party.remember(MUFCState(model, settings, party.n_rows, everything, drawn))
    totals = np.array([sizes.sum(), 0], dtype=np.float64)
    counts = _counts(party, sizes, code)
    if folder is not None:  # last, so that a refusal leaves nothing
        facts = PartyFacts(party.name or "", *_columns(party), list(party.names))
        state = ClientState.create(folder, model, ids, settings, facts)
        tags = state.tag([ids[row] for row in drawn])
        state.stage(1, tags, sizes, kind="train", redrawn=True, run=model)
    return {**counts, "totals": totals, "kept": folder is not None}


@step
@sums_over("none")
def abandon(party: Party, model: str) -> Abandoned:
    """Remove the state of a training that the server has given up."""
    if party.state_dir is not None:
        ClientState(party.state_dir, model).remove_unfinished()
    return {}


def _code(party: Party, settings: TrainingSettings, key: bytes) -> SparseSum | None:
    """Return the code that hides counts; None: they leave in the clear."""
    if settings.privacy == "none":
        return None
    with refusing():
        return settings.code(party.n_parties, party.rows.shape[1], key)


def _counts(party: Party, sizes: Array, code: SparseSum | None) -> Counts:
    """Return the centroids and sizes as the settings say: hidden, or in the clear."""
    state = party.recall(MUFCState)
    settings = state.settings
    _check_box(party, settings, state.drawn)
    if settings.shows_rows:
        party.share(state.drawn, "rows")
    else:  # each row that takes part is in a mean
        party.share(_taking_part(state), "centroids")
    if settings.client_training == "full":
        _, centroids, labels = _local(party, state)
        sizes = np.bincount(labels, minlength=len(centroids))
    else:  # no pass over the rows
        centroids = BoxedRows(party.rows, settings.box).take(state.drawn)
        remain, sizes, _ = merge_small(centroids, sizes, settings.min_rows_per_bin)
        centroids = centroids[remain]
    if code is None:
        return {"centroids": centroids, "sizes": sizes}
    with refusing():
        return {"message": code.encode(*settings.quantizer.count(centroids, sizes))}


def _local(party: Party, state: MUFCState) -> tuple[RowBlocks, Array, Array]:
    """Return the rows that take part, and the centroids and labels of their clusters.

    They are computed from the drawn rows and the rows that stay, whatever was merged in
    versions before: see :func:`vfl_flower.numerics.mufc.merge_small`.
    """
    rows = _taking_part(state)
    blocks = BoxedRows(party.rows, state.settings.box, rows)
    places = np.searchsorted(rows, state.drawn)
    full = state.settings.client_training == "full"
    least = state.settings.min_rows_per_bin
    with _same_values():
        return blocks, *local_clusters(blocks, places, full, least)


def _taking_part(state: MUFCState) -> Array:
    return np.flatnonzero(np.unpackbits(state.stay, count=state.n_rows))


@step
@sums_over("earlier")
@once
@reveals("row-sums", when="cost")
def commit(
    party: Party,
    version: Version,
    run: str,
    centers: Centers,
    kept: bool = True,
    cost: bool = False,
) -> Committed:
    """Line 9: give each row the global cluster of its centroid; settle the version.

    The sizes go into sums over the parties, and with `cost` the induced objective. Over
    several sessions a server that chooses box and centres gets rows from it. A party
    that leaves keeps its audit log and nothing else; if the model is not kept, no party
    keeps anything.
    """
    state = party.recall(MUFCState)
    if party.n_rows != state.n_rows:
        raise PartyError("the data of this party have changed during the run")
    _check_box(party, state.settings, state.drawn)
    with np.errstate(over="ignore"):
        scaled = state.settings.box.scale(centers)
    # Means of points of the cube, to within rounding.
    if not (np.abs(scaled) <= 1).all():
        raise PartyError("centers must be in the box")
    blocks, centroids, labels = _local(party, state)
    labels = induced_labels(centroids, labels, scaled)
    sizes = np.bincount(labels, minlength=len(centers))
    reply: Committed = {"sizes": sizes.astype(np.float64)}
    if cost:
        party.share(_taking_part(state), "row-sums")
        total = contributions(blocks, scaled, labels).sum()
        with refusing():
            reply["cost"] = split_limbs(np.array([total]))
    if party.state_dir is not None:
        client = ClientState(party.state_dir, state.model)
        _remove(_predictions(client))  # until those of this version are written
        if not kept:
            client.remove_unfinished()
        elif not state.leaves:
            client.settle(version, run)
            _finish_requests(client)
        else:
            if client.exists:
                client.wipe()
            _remove(party.state_dir / FORGET)
            _remove(party.state_dir / ADD)
            finish_requests(
                party.state_dir, LEAVE, lambda lines: [m == state.model for m in lines]
            )
    rows = _taking_part(state)
    _warn_of_others(party, rows)
    state.labels = labels
    if not state.leaves:
        party.predictions = Predictions(labels, rows, state.model)
    return reply


# -- unlearning (Algorithms 3 and 4) --------------------------------------------------


@step
@sums_over("party", "the rows that its operator takes out are noted")
@once
@reveals("centroids")
def forget(
    party: Party,
    model: str,
    version: Version,
    before: str,
    run: str,
    key: bytes = b"",
    leaving: list[Count] | None = None,
    kind: Kind = "unlearn",
    settings: TrainingSettings | None = None,
) -> Forgotten:
    """Remove the rows that the party's file names, and send the counts.

    Centroids are redrawn if one of them is removed. What leaves the party has the same
    form and size whatever is removed. A party that leaves sends empty counts, if its
    file requests it; its state may be missing, so the request has the settings. The
    others then keep their requests for a later ``unlearn``. `leaving` are the places of
    these parties, the same for all: the fewer parties stay, the more the sums reveal of
    each.
    """
    gone_parties = set(leaving or ())
    least = LEAST_PARTIES if party.consent is None else party.consent.least_parties
    least = max(least, LEAST_PARTIES)
    if party.n_parties - len(gone_parties) < least:
        raise PartyError(
            f"leaving must leave at least {least} parties, whose sum hides each"
        )
    if party.index in gone_parties:
        return _leave(party, model, settings, key)
    state, now, code = _ready(party, model, version, before, key)
    settings, tags = state.settings, state.tag(_ids(party))
    requests = read_requests(party.state_dir, FORGET) if kind == "unlearn" else {}
    asked = list(dict.fromkeys(requests.values()))
    gone = _gone(state, requests)
    trained = state.keep(tags)
    removed = trained & np.fromiter((tag in gone for tag in tags), bool, len(tags))
    stay = trained & ~removed
    remaining = int(now.sizes.sum()) - len(gone)
    row = _rows_of(tags, stay, remaining)
    places = np.array([i for i, tag in enumerate(now.centroids) if tag in gone], int)
    prefix = surviving(np.arange(len(now.centroids)), places)
    drawn = np.array([row[now.centroids[i]] for i in prefix], dtype=np.int64)
    redrawn, sizes = len(prefix) < len(now.centroids), now.sizes
    if redrawn or np.count_nonzero(removed) != len(gone):
        # Without a draw where the data no longer hold the removed rows, which leaves
        # nothing but to count those that stay.
        k = settings.local_clusters if redrawn else len(drawn)
        rng = party.rng(f"redraw {version}")
        with _same_values():
            drawn, sizes = seed_centroids(party.rows, settings.box, k, rng, stay, drawn)
    elif gone:
        blocks = BoxedRows(party.rows, settings.box)
        out = local_labels(blocks.take(np.flatnonzero(removed)), blocks.take(drawn))
        sizes = sizes - np.bincount(out, minlength=len(drawn))
    party.sum_over(np.flatnonzero(stay), by_choice=bool(gone))
    party.remember(MUFCState(model, settings, party.n_rows, np.packbits(stay), drawn))
    behind = not _predictions(state).exists()
    counts = _counts(party, sizes, code)
    # Rows that have come since training are not forgotten ones.
    in_file = _still_in_file(state.known(tags) & ~stay)
    in_models = _in_others(party, model, asked)
    if in_models:
        log.warning(
            "%d of the ids are still in other models: forget them there too, or remove "
            "these models",
            in_models,
        )
    # Last, so that a refusal changes nothing.
    tagged = [tags[i] for i in drawn]
    state.stage(
        version + 1, tagged, sizes, list(gone), kind=kind, redrawn=redrawn, run=run
    )
    _log_change(model, f"removed of {len(gone) + remaining}", len(gone))
    if not gone:
        _finish_requests(state)
    if not np.all(stay):
        _drop_cache(party)
    totals = np.array([remaining, behind, in_file, in_models], dtype=np.float64)
    return {**counts, "totals": totals}


def _log_change(model: str, what: str, count: int) -> None:
    """Log how many rows come or go, and what that reveals."""
    if not count:
        return
    log.warning(
        "model %s: by this party's request %d rows are %s; the server can compute how "
        "the counts of the quantised centroids change with them",
        *(model, count, what),
    )
    if count < FEWEST:
        log.warning(
            "these are fewer than %d rows, of each of which the change reveals much: "
            "request more of them for one run",
            FEWEST,
        )


def _ready(
    party: Party, model: str, version: int, before: str, key: bytes
) -> tuple[ClientState, LocalClusters, SparseSum | None]:
    """Return the state that changes, its clusters, and the code of their counts."""
    state = _state(party, model, version, before)
    now = state.current()
    if now is None:
        raise PartyError(f"training of model {model} was not finished here")
    code = _code(party, state.settings, key)
    _check_columns(party, state.facts)
    _check_parties(party, state.facts)
    return state, now, code


def _rows_of(tags: Sequence[bytes], stay: Array, remaining: int) -> dict[bytes, int]:
    """Return the numbers of the rows that stay, by their tags."""
    row = {tags[i]: i for i in np.flatnonzero(stay).tolist()}
    if len(row) != remaining or np.count_nonzero(stay) != remaining:
        log.error(
            "%d rows of training were not forgotten: the data hold %d of them, in %d "
            "rows",
            remaining,
            len(row),
            np.count_nonzero(stay),
        )
        raise PartyError(
            "the data must hold the rows of training that were not forgotten, each "
            "once: the party's log says how many they hold"
        )
    return row


def _still_in_file(forgotten: Array) -> int:
    """Return how many rows of the data were forgotten, and say it in the log."""
    in_file = int(np.count_nonzero(forgotten))
    if in_file:
        log.warning(
            "%d forgotten rows are still in the data: take them out of the file",
            in_file,
        )
    return in_file


def _in_others(party: Party, model: str, asked: Sequence[str]) -> int:
    """Return how many ids are of rows that another model here has not forgotten."""
    folder, kept = party.state_dir, np.zeros(len(asked), dtype=bool)
    if folder is None or not asked:
        return 0
    with refusing():
        models = set(list_models(folder)) - {model}
    for number in models:
        state = ClientState(folder, number)
        with suppress(PartyError):  # one that was left, or is no state at all
            kept |= state.keep(state.tag(asked))
    return int(np.count_nonzero(kept))


def _leave(
    party: Party, model: str, settings: TrainingSettings | None, key: bytes
) -> Forgotten:
    """Give the counts of no rows."""
    if settings is None:
        raise PartyError("the request lacks the settings of training")
    if party.state_dir is None:
        raise PartyError("it has no state-dir, so it cannot request to leave a model")
    state = ClientState(party.state_dir, model)
    if not (state.exists and state.left):
        if model not in read_requests(party.state_dir, LEAVE).values():
            raise PartyError(
                f"this party leaves model {model} only if its own {LEAVE} names it: "
                "write the number there, in its state-dir"
            )
        if state.exists:
            _check_name(party, state.facts)
    code = _code(party, settings, key)
    none = np.packbits(np.zeros(party.n_rows, dtype=bool))
    nothing = np.zeros(0, dtype=np.int64)
    party.remember(MUFCState(model, settings, party.n_rows, none, nothing, leaves=True))
    return {**_counts(party, nothing, code), "totals": np.zeros(4)}


def _gone(state: ClientState, requests: dict[int, str]) -> set[bytes]:
    """Return the tags of the ids to forget that were not removed before."""
    tags = state.tag(list(requests.values()))
    known = zip(requests, state.known(tags), strict=True)
    lines = [line for line, is_known in known if not is_known]
    _check_lines(lines, FORGET, "ids to forget", "rows of training")
    return set(tags) - state.removed()


def _check_lines(lines: list[int], file: str, ids: str, rows: str) -> None:
    """Refuse requests whose ids name no rows."""
    if lines:
        log.error("lines %s of %s name no %s", lines, file, rows)
        raise PartyError(
            f"{ids} must belong to {rows}: some do not, the party's log has their "
            f"lines in {file}"
        )


def _finish_requests(state: ClientState) -> None:
    """Take the requests that the state has served out of the party's files."""
    removed, forgotten = state.removed(), list[str]()

    def are_served(ids: list[str]) -> list[bool]:
        served = [tag in removed for tag in state.tag(ids)]
        forgotten.extend(compress(ids, served))
        return served

    finish_requests(state.folder, FORGET, are_served)
    if files := files_naming(state.folder, forgotten):
        log.warning(
            "these files of the state-dir still name forgotten ids, take them out: %s",
            ", ".join(files),
        )
    finish_requests(state.folder, ADD, lambda ids: state.known(state.tag(ids)))


@step
@sums_over("none")
def status(party: Party, model: str, version: Version, before: str) -> Status:
    """Return how much this party has forgotten and added."""
    state = _state(party, model, version, before)
    now, removed, served = state.current(), state.removed(), state.log()
    if removed:
        _drop_cache(party)
    return {
        "rows": 0 if now is None else int(now.sizes.sum()),
        "removed": len(removed),
        "added": sum(len(e["tags"]) for e in served if e["kind"] == "add"),
        "pending": sum(len(read_requests(party.state_dir, f)) for f in (FORGET, ADD)),
        "requests": sum(bool(entry["tags"]) for entry in served),
    }


# -- adding rows (ours) ---------------------------------------------------------------


@step
@sums_over("party", "the rows that its operator adds are noted")
@once
@reveals("centroids")
def add(
    party: Party, model: str, version: Version, before: str, run: str, key: bytes = b""
) -> Added:
    """Add the rows that the party's file names, and send the counts.

    They can take centroids' places. Ids that the model has change nothing: a forgotten
    row stays so. What leaves the party has the same form and size however many rows are
    new.
    """
    state, now, code = _ready(party, model, version, before, key)
    settings, tags = state.settings, state.tag(_ids(party))
    old, known = state.keep(tags), state.known(tags)
    row = _rows_of(tags, old, int(now.sizes.sum()))
    wanted = _wanted(state, set(tags))
    new = ~known & np.fromiter((tag in wanted for tag in tags), bool, len(tags))
    added = [tags[i] for i in np.flatnonzero(new).tolist()]
    if repeated := len(added) - len(set(added)):
        log.error("repeated ids of new rows: %d", repeated)
        raise PartyError("ids must be distinct: some new rows repeat an id")
    drawn = np.array([row[tag] for tag in now.centroids], dtype=np.int64)
    sizes, rows = now.sizes, old | new
    _check_box(party, settings, np.flatnonzero(new))
    if added:
        k, rng = settings.local_clusters, party.rng(f"add {version}")
        with _same_values():
            drawn, sizes = seed_centroids(
                party.rows, settings.box, k, rng, rows, drawn, new
            )
    party.sum_over(np.flatnonzero(rows), by_choice=bool(added))
    party.remember(MUFCState(model, settings, party.n_rows, np.packbits(rows), drawn))
    behind = not _predictions(state).exists()
    counts = _counts(party, sizes, code)
    in_file = _still_in_file(known & ~old)
    tagged = [tags[i] for i in drawn]
    redrawn = tagged != now.centroids
    state.stage(
        version + 1, tagged, sizes, kind="add", redrawn=redrawn, run=run, added=added
    )
    remaining = np.count_nonzero(rows)
    _log_change(model, f"added to {remaining - len(added)}", len(added))
    if not added:
        _finish_requests(state)
    if in_file:
        _drop_cache(party)
    totals = np.array([remaining, behind, in_file], dtype=np.float64)
    return {**counts, "totals": totals}


def _wanted(state: ClientState, tags: set[bytes]) -> set[bytes]:
    """Return the tags of the ids to add, of rows of the data or in the model."""
    requests = read_requests(state.folder, ADD)
    asked = state.tag(list(requests.values()))
    known = state.known(asked)
    lines = [
        line
        for line, tag, is_known in zip(requests, asked, known, strict=True)
        if not is_known and tag not in tags
    ]
    _check_lines(lines, ADD, "ids to add", "rows of the data")
    if gone := state.removed().intersection(asked):
        log.warning("%d rows of %s were forgotten and are not added", len(gone), ADD)
    return set(asked)


# -- new rows -------------------------------------------------------------------------


def _new_rows(
    party: Party, model: str, version: int, before: str, centers: Array
) -> tuple[Array, Array, Array]:
    """Return the rows that are not forgotten, their clusters and squared distances."""
    state = _state(party, model, version, before)
    _check_columns(party, state.facts)
    rows, box = np.arange(party.n_rows), state.settings.box
    if removed := state.removed():
        tags = state.tag(_ids(party))
        rows = np.array([i for i, tag in enumerate(tags) if tag not in removed], int)
        _warn_of_others(party, rows)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = box.scale(np.asarray(centers, dtype=np.float64))
        blocks = BoxedRows(party.rows, box, rows)
        parts = [assign(block, scaled) for block in blocks] or [
            (np.zeros(0, dtype=np.int64), np.zeros(0))
        ]
    labels, costs = (np.concatenate(some) for some in zip(*parts, strict=True))
    return rows, labels, costs


@step
@sums_over("none")
def predict(
    party: Party, model: str, version: Version, before: str, centers: Centers
) -> Predicted:
    """Give each row of the party's data the nearest centre; the labels stay here."""
    rows, labels, _ = _new_rows(party, model, version, before, centers)
    named = f"{model}-{party.session:016x}"  # training has the file of the model's name
    party.predictions = Predictions(labels, rows, named)
    return {"done": True}


@step
@sums_over("request")
@once
@reveals("row-sums")
def evaluate(
    party: Party, model: str, version: Version, before: str, centers: Centers
) -> Cost:
    """Return how many rows count, and the sum of their squared distances to centres.

    A server that chooses centres freely could single out rows.
    """
    rows, _, costs = _new_rows(party, model, version, before, centers)
    if len(rows) < FEWEST:
        raise PartyError(f"a cost must be of at least {FEWEST} rows of a party")
    party.sum_over(rows, by_choice=len(rows) < party.n_rows)
    party.share(rows, "row-sums")
    cost = float(costs.sum())
    if not np.isfinite(cost):
        raise PartyError("rows must be near enough to the box for a finite cost")
    return {"totals": np.array([float(len(rows)), cost])}


# -- what a party finds in its folder -------------------------------------------------


def _state(party: Party, model: str, version: int, run: str) -> ClientState:
    """Return the party's state, brought to the server's version."""
    if party.state_dir is None:
        raise PartyError("it has no state-dir, so it keeps no state of a model")
    state = ClientState(party.state_dir, model)
    _check_name(party, state.facts)
    present = state.version
    state.settle(version, run)
    if state.version != present:
        _remove(_predictions(state))
    return state


def _check_name(party: Party, facts: PartyFacts) -> None:
    if facts.name != party.name:
        raise PartyError(
            f"its state-dir has the state of party {facts.name!r}: each party keeps "
            "its own folder and name"
        )


def _check_columns(party: Party, facts: PartyFacts) -> None:
    count, names = _columns(party)
    if count != facts.n_columns:
        raise PartyError(
            f"the data must have the {facts.n_columns} columns of training, got {count}"
        )
    if names != facts.columns:
        raise PartyError(
            "the data must have the columns of training in their order: their names "
            "differ"
        )


def _check_parties(party: Party, facts: PartyFacts) -> None:
    """Refuse counts without a party of the model that the consent does not name."""
    consent = party.consent
    if consent is None or consent.peers is None:  # a run in one process
        return
    if not facts.parties:
        raise PartyError("its state does not name the parties of the model: train anew")
    for name in facts.parties:
        if name not in party.names and not consent.accepts_change_of(name):
            raise PartyError(
                f"counts without {name!r} would reveal that party's counts: this "
                f"party's consent must name it, changed-parties = [{name!r}], or "
                f"{name!r} must take part"
            )


def _check_alone(party: Party, folder: Path, model: str) -> None:
    """Raise if another party of the run has written to the same folder."""
    state = ClientState(folder, model)
    if state.exists and state.facts.name != party.name:
        raise PartyError("state-dir must be a folder of this party alone")
    with refusing():
        count = len(set(list_models(folder)) - {model})
    if count:
        log.warning(
            "the state-dir has %d other models: a row is forgotten in each by a run of "
            "its own, or by the removal of its files",
            count,
        )


def _predictions(state: ClientState) -> Path:
    """Return the file with the clusters of the rows."""
    return state.folder / f"predictions-{state.model}.csv"


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.error("cannot remove %s: %s", path, error.strerror)
        raise PartyError(
            f"a file of its state-dir cannot be removed: {error.strerror}"
        ) from None


def _warn_of_others(party: Party, rows: Array) -> None:
    """Warn if other rows of the data than these take no part; drop their cache."""
    if len(rows) < party.n_rows:
        log.warning(
            "%d rows of the data take no part: take those forgotten out of the file",
            party.n_rows - len(rows),
        )
        _drop_cache(party)


def _drop_cache(party: Party) -> None:
    """Remove the cached copy of a data file that still has forgotten rows."""
    if party.source is not None:
        party.source.drop_cache()


def _columns(party: Party) -> tuple[int, str]:
    """Return the number of the columns and the digest of their names."""
    names = digest_ids(np.array(party.columns)) if party.columns else ""
    return party.rows.shape[1], names


def _ids(party: Party) -> list[str]:
    ids = party.read_ids()
    if ids is None:
        raise PartyError("rows are forgotten by their ids: the data need an id-column")
    if len(ids) != party.n_rows:
        raise PartyError("the data of this party have changed while they were read")
    return [str(value) for value in ids]


# -- rules, as sentences --------------------------------------------------------------


def _check_box(
    party: Party, settings: TrainingSettings, rows: Array | None = None
) -> None:
    """Raise if rows, by default all, are outside the box."""
    box, names = settings.box, party.columns
    try:
        if rows is not None:
            box.check(party.rows.take(rows))
        else:
            party.rows.map_reduce(lambda _, X: box.check(X), lambda *_: None, None)
    except ValueError as error:  # which names a column, and no value
        text = str(error)
        column = re.match(r"column (\d+), counted from 0,", text)
        if column and names:
            text = f"column {names[int(column[1])]!r}{text[column.end() :]}"
        raise PartyError(f"{text} (setting box, in a run config mufc.box)") from None


@contextmanager
def _same_values() -> Iterator[None]:
    """Turn errors about rows that training could cluster into a refusal."""
    try:
        yield
    except ValueError:
        raise PartyError(
            "rows that stay must have the values of training: they have others"
        ) from None
