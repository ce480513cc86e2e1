"""A party forgets rows, leaves a model or adds rows (Algorithm 3)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Annotated, Literal, TypedDict

import numpy as np
from annotated_types import Ge, Le

from vfl_flower.clients.mufc import training
from vfl_flower.clients.mufc.settings import TrainingSettings
from vfl_flower.clients.mufc.state import ClientState, PartyClusters, list_models
from vfl_flower.numerics.mufc import BoxedRows, local_labels, seed_centroids, surviving
from vfl_flower.party.party import Party
from vfl_flower.party.row_requests import ADD, FORGET, LEAVE, read_requests
from vfl_flower.protocol.contract import IN_SUM, Reals
from vfl_flower.protocol.errors import PartyError, refusing
from vfl_flower.protocol.settings import Count
from vfl_flower.protocol.steps import once, reveals, step_of, sums_over
from vfl_flower.protocol.terms import LEAST_ROWS
from vfl_flower.secure_aggregation.sparse_sum import SparseSum
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")
step = step_of("mufc")

LEAST_STAYING = 2
"""Minimum number of parties in a sum: a single party's sum would be its counts."""

NAMED = {
    FORGET: ("ids to forget", "training rows"),
    ADD: ("ids to add", "rows of the data"),
}
"""The contents of each request file, and the rows to which its ids must belong."""

RowCount = Annotated[int, Ge(0), Le(training.MOST_ROWS)]

ForgetKind = Literal["unlearn", "forget-client"]


class Forgotten(training.Counts):
    """Reply of :func:`forget`.

    `totals` contains four numbers: the number of remaining rows; 1 if the file with the
    clusters of these rows is missing, and otherwise 0; the number of forgotten rows
    that are still in the party's data; and the number of requested ids that are still
    in other models of the party.
    """

    totals: Annotated[Array, Reals("4"), IN_SUM]


class Added(training.Counts):
    """Reply of :func:`add`; `totals` has the first three numbers of `Forgotten`."""

    totals: Annotated[Array, Reals("3"), IN_SUM]


class Status(TypedDict):
    """Reply of :func:`status`."""

    rows: RowCount
    removed: RowCount
    added: RowCount
    pending: RowCount
    requests: RowCount


# -- unlearning (Algorithm 3) ---------------------------------------------------------


@step
@sums_over("party", "the party records the rows that its operator removes")
@once
@reveals("centroids")
def forget(
    party: Party,
    model: str,
    version: training.Version,
    before: str,
    run: str,
    key: bytes = b"",
    leaving: list[Count] | None = None,
    kind: ForgetKind = "unlearn",
    settings: TrainingSettings | None = None,
) -> Forgotten:
    """Remove the rows listed in the party's file, and send the counts.

    Centroids are redrawn if any of them is removed. The form and size of the reply do
    not depend on the removed rows.

    `leaving` contains the places of the parties that leave the model, and is the same
    in all requests. The fewer parties stay, the more the sums reveal about each of
    them. A party that leaves sends empty counts if its file names the model to leave.
    The state of such a party can be missing, so the request includes the settings.
    Meanwhile, the other parties keep their requests for a later ``unlearn``.
    """
    gone_parties = set(leaving or ())
    least = LEAST_STAYING if party.consent is None else party.consent.least_parties
    least = max(least, LEAST_STAYING)
    if party.n_parties - len(gone_parties) < least:
        raise PartyError(
            f"at least {least} parties must remain, so that a sum hides each of them"
        )
    if party.index in gone_parties:
        return _leave(party, model, settings, key)
    state, now, code = _ready(party, model, version, before, key)
    settings, tags = state.settings, state.tag(training.ids_of(party))
    requests = read_requests(party.state_dir, FORGET) if kind == "unlearn" else {}
    asked = list(dict.fromkeys(requests.values()))
    gone = _requested(state, requests, FORGET) - state.removed()
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
        # If the data no longer contain the removed rows, these rows cannot be
        # subtracted, so the remaining rows are counted anew. This count alone redraws
        # no centroid.
        k = settings.local_clusters if redrawn else len(drawn)
        rng = party.rng(f"redraw {version}")
        with training.same_values():
            drawn, sizes = seed_centroids(party.rows, settings.box, k, rng, stay, drawn)
    elif gone:
        blocks = BoxedRows(party.rows, settings.box)
        out = local_labels(blocks.take(np.flatnonzero(removed)), blocks.take(drawn))
        sizes = sizes - np.bincount(out, minlength=len(drawn))
    party.sum_over(np.flatnonzero(stay), by_choice=bool(gone))
    party.remember(
        training.MUFCState(model, settings, party.n_rows, np.packbits(stay), drawn)
    )
    behind = not training.predictions_file(state).exists()
    counts = training.counts_of(party, sizes, code)
    # Rows that were never in the model are not forgotten rows.
    in_file = _still_in_file(state.known(tags) & ~stay)
    in_models = _in_others(party, model, asked)
    if in_models:
        log.warning(
            "%d of the ids are still in other models: forget them there too, or remove "
            "those models",
            in_models,
        )
    # Last, so that a refusal changes nothing.
    tagged = [tags[i] for i in drawn]
    state.stage(
        version + 1, tagged, sizes, list(gone), kind=kind, redrawn=redrawn, run=run
    )
    _log_change(model, f"removed from {len(gone) + remaining}", len(gone))
    if not gone:
        training.finish_served(state)
    if not np.all(stay):
        training.drop_cache(party)
    totals = np.array([remaining, behind, in_file, in_models], dtype=np.float64)
    return {**counts, "totals": totals}


def _log_change(model: str, what: str, count: int) -> None:
    """Log the number of added or removed rows, and what the change reveals."""
    if not count:
        return
    log.warning(
        "model %s: at this party's request %d rows are %s; the server can compute how "
        "these rows change the counts of the quantised centroids",
        *(model, count, what),
    )
    if count < LEAST_ROWS:
        log.warning(
            "these are fewer than %d rows, so the change reveals much about each row: "
            "request more rows in one run",
            LEAST_ROWS,
        )


def _ready(
    party: Party, model: str, version: int, before: str, key: bytes
) -> tuple[ClientState, PartyClusters, SparseSum | None]:
    """Return the state to change, its clusters, and the code for their counts."""
    state = training.state_of(party, model, version, before)
    now = state.current()
    if now is None:
        raise PartyError(f"training of model {model} was not finished at this party")
    code = training.code_of(party, state.settings, key)
    training.check_columns(party, state.facts)
    _check_parties(party, state.facts.parties)
    return state, now, code


def _check_parties(party: Party, parties: Sequence[str]) -> None:
    """Refuse counts that lack a party of the model, unless consent names that party."""
    consent = party.consent
    if consent is None or consent.peers is None:  # a run in one process
        return
    if not parties:
        raise PartyError("the state does not name the model's parties: train again")
    for name in parties:
        if name not in party.names and not consent.accepts_change_of(name):
            raise PartyError(
                f"counts without {name!r} would reveal that party's counts: {name!r} "
                f"must take part, or this party's consent must have "
                f"changed-parties = [{name!r}]"
            )


def _rows_of(tags: Sequence[bytes], stay: Array, remaining: int) -> dict[bytes, int]:
    """Return the row number of each remaining row, by the row's tag."""
    row = {tags[i]: i for i in np.flatnonzero(stay).tolist()}
    if len(row) != remaining or np.count_nonzero(stay) != remaining:
        log.error(
            "%d training rows were not forgotten and must occur in the data once each, "
            "but the data hold %d of them, in %d rows",
            *(remaining, len(row), np.count_nonzero(stay)),
        )
        raise PartyError(
            "each training row that was not forgotten must occur exactly once in the "
            "data: see the row counts in the party's log"
        )
    return row


def _still_in_file(forgotten: Array) -> int:
    """Return the number of forgotten rows that are still in the data, and log it."""
    in_file = int(np.count_nonzero(forgotten))
    if in_file:
        log.warning(
            "%d forgotten rows are still in the data: remove them from the file",
            in_file,
        )
    return in_file


def _in_others(party: Party, model: str, asked: Sequence[str]) -> int:
    """Return how many ids are still in other models of this party."""
    folder, remembered = party.state_dir, np.zeros(len(asked), dtype=bool)
    if folder is None or not asked:
        return 0
    with refusing():
        models = set(list_models(folder)) - {model}
    for other in models:
        state = ClientState(folder, other)
        with suppress(PartyError):  # the party left the model, or the file is invalid
            remembered |= state.keep(state.tag(asked))
    return int(np.count_nonzero(remembered))


def _leave(
    party: Party, model: str, settings: TrainingSettings | None, key: bytes
) -> Forgotten:
    """Return empty counts; refuse unless the party left or its file names the model."""
    if settings is None:
        raise PartyError("the request lacks the training settings")
    if party.state_dir is None:
        raise PartyError("the party has no state-dir, so it cannot request to leave")
    state = ClientState(party.state_dir, model)
    if not (state.exists and state.left):
        if model not in read_requests(party.state_dir, LEAVE).values():
            raise PartyError(
                f"this party leaves model {model} only if the file {LEAVE} in its "
                "state-dir names the model: write its id in this file"
            )
        if state.exists:
            training.check_name(party, state.facts)
    code = training.code_of(party, settings, key)
    none = np.packbits(np.zeros(party.n_rows, dtype=bool))
    nothing = np.zeros(0, dtype=np.int64)
    party.remember(
        training.MUFCState(model, settings, party.n_rows, none, nothing, leaves=True)
    )
    return {**training.counts_of(party, nothing, code), "totals": np.zeros(4)}


def _requested(
    state: ClientState, requests: dict[int, str], file: str, new: Collection[bytes] = ()
) -> set[bytes]:
    """Return the tags of a file's ids; refuse ids that are neither known nor `new`."""
    tags = state.tag(list(requests.values()))
    lines = [
        line
        for line, tag, is_known in zip(requests, tags, state.known(tags), strict=True)
        if not is_known and tag not in new
    ]
    ids, rows = NAMED[file]
    if lines:
        log.error("lines %s of %s do not name %s", lines, file, rows)
        raise PartyError(
            f"all {ids} must belong to {rows}: see the party's log for the wrong lines "
            f"in {file}"
        )
    return set(tags)


@step
@sums_over("none")
def status(party: Party, model: str, version: training.Version, before: str) -> Status:
    """Return how many rows this party has forgotten and added."""
    state = training.state_of(party, model, version, before)
    now, removed, served = state.current(), state.removed(), state.log()
    if removed:
        training.drop_cache(party)
    return {
        "rows": 0 if now is None else int(now.sizes.sum()),
        "removed": len(removed),
        "added": sum(len(e["tags"]) for e in served if e["kind"] == "add"),
        "pending": sum(len(read_requests(party.state_dir, f)) for f in (FORGET, ADD)),
        "requests": sum(bool(entry["tags"]) for entry in served),
    }


# -- adding rows (not in the paper) ---------------------------------------------------


@step
@sums_over("party", "the party records the rows that its operator adds")
@once
@reveals("centroids")
def add(
    party: Party,
    model: str,
    version: training.Version,
    before: str,
    run: str,
    key: bytes = b"",
) -> Added:
    """Add the rows listed in the party's file, and send the counts.

    New rows can replace centroids. Ids that the model already knows have no effect: a
    forgotten row stays forgotten. The form and size of the reply do not depend on the
    number of new rows.
    """
    state, now, code = _ready(party, model, version, before, key)
    settings, tags = state.settings, state.tag(training.ids_of(party))
    old, known = state.keep(tags), state.known(tags)
    row = _rows_of(tags, old, int(now.sizes.sum()))
    wanted = _requested(state, read_requests(state.folder, ADD), ADD, set(tags))
    if gone := state.removed() & wanted:
        log.warning("%d rows of %s were forgotten and are not added", len(gone), ADD)
    new = ~known & np.fromiter((tag in wanted for tag in tags), bool, len(tags))
    added = [tags[i] for i in np.flatnonzero(new).tolist()]
    if repeated := len(added) - len(set(added)):
        log.error("repeated ids of new rows: %d", repeated)
        raise PartyError("ids must be distinct, but some new rows repeat an id")
    drawn = np.array([row[tag] for tag in now.centroids], dtype=np.int64)
    sizes, rows = now.sizes, old | new
    training.check_box(party, settings, np.flatnonzero(new))
    if added:
        k, rng = settings.local_clusters, party.rng(f"add {version}")
        with training.same_values():
            drawn, sizes = seed_centroids(
                party.rows, settings.box, k, rng, rows, drawn, new
            )
    party.sum_over(np.flatnonzero(rows), by_choice=bool(added))
    party.remember(
        training.MUFCState(model, settings, party.n_rows, np.packbits(rows), drawn)
    )
    behind = not training.predictions_file(state).exists()
    counts = training.counts_of(party, sizes, code)
    in_file = _still_in_file(known & ~old)
    tagged = [tags[i] for i in drawn]
    redrawn = tagged != now.centroids
    state.stage(
        version + 1, tagged, sizes, kind="add", redrawn=redrawn, run=run, added=added
    )
    remaining = np.count_nonzero(rows)
    _log_change(model, f"added to {remaining - len(added)}", len(added))
    if not added:
        training.finish_served(state)
    if in_file:
        training.drop_cache(party)
    totals = np.array([remaining, behind, in_file], dtype=np.float64)
    return {**counts, "totals": totals}
