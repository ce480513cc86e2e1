"""What a party finds in its folder and in its file, to forget rows or add them."""

from __future__ import annotations

import logging
from itertools import compress
from pathlib import Path

import numpy as np

from vfl_flower.clients.mufc.state import ClientState, PartyFacts, list_models
from vfl_flower.party.party import Party, digest_ids
from vfl_flower.party.requests import ADD, FORGET, files_naming, finish_requests
from vfl_flower.protocol.errors import PartyError, refusing
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")


def finish_served(state: ClientState) -> None:
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


def state_of(party: Party, model: str, version: int, run: str) -> ClientState:
    """Return the party's state, brought to the server's version."""
    if party.state_dir is None:
        raise PartyError("it has no state-dir, so it keeps no state of a model")
    state = ClientState(party.state_dir, model)
    check_name(party, state.facts)
    present = state.version
    state.settle(version, run)
    if state.version != present:
        remove_file(predictions_file(state))
    return state


def check_name(party: Party, facts: PartyFacts) -> None:
    """Raise ``PartyError`` if the state is of a party with another name."""
    if facts.name != party.name:
        raise PartyError(
            f"its state-dir has the state of party {facts.name!r}: each party keeps "
            "its own folder and name"
        )


def check_columns(party: Party, facts: PartyFacts) -> None:
    """Raise ``PartyError`` unless the data have the columns of training."""
    count, names = columns_of(party)
    if count != facts.n_columns:
        raise PartyError(
            f"the data must have the {facts.n_columns} columns of training, got {count}"
        )
    if names != facts.columns:
        raise PartyError(
            "the data must have the columns of training in their order: their names "
            "differ"
        )


def check_parties(party: Party, facts: PartyFacts) -> None:
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


def check_alone(party: Party, folder: Path, model: str) -> None:
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


def predictions_file(state: ClientState) -> Path:
    """Return the file with the clusters of the rows."""
    return state.folder / f"predictions-{state.model}.csv"


def remove_file(path: Path) -> None:
    """Remove a file of the state-dir, if it exists."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.error("cannot remove %s: %s", path, error.strerror)
        raise PartyError(
            f"a file of its state-dir cannot be removed: {error.strerror}"
        ) from None


def warn_of_others(party: Party, rows: Array) -> None:
    """Warn if other rows of the data than these take no part; drop their cache."""
    if len(rows) < party.n_rows:
        log.warning(
            "%d rows of the data take no part: take those forgotten out of the file",
            party.n_rows - len(rows),
        )
        drop_cache(party)


def drop_cache(party: Party) -> None:
    """Remove the cached copy of a data file that still has forgotten rows."""
    if party.source is not None:
        party.source.drop_cache()


def columns_of(party: Party) -> tuple[int, str]:
    """Return the number of the columns and the digest of their names."""
    names = digest_ids(np.array(party.columns)) if party.columns else ""
    return party.rows.shape[1], names


def ids_of(party: Party) -> list[str]:
    """Return the ids of the party's rows, which it needs to forget some."""
    ids = party.read_ids()
    if ids is None:
        raise PartyError("rows are forgotten by their ids: the data need an id-column")
    if len(ids) != party.n_rows:
        raise PartyError("the data of this party have changed while they were read")
    return [str(value) for value in ids]
