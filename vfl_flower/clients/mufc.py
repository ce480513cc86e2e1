"""A client's side of clusters that can forget (Algorithms 1 to 5 of the paper).

What a client must remember from run to run is in its ``state-dir``
(:mod:`vfl_flower.unlearning`): which rows it has trained on and which of them are its
centroids, in the order drawn, as tags of their ids, and the sizes of their clusters. No
value of a row is in it.

All that is clustered is in the cube to which the box scales the rows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vfl_flower.clients.base import Party, PartyError, digest_ids, step
from vfl_flower.model_parts import write_private
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.mufc import (
    Box,
    BoxedRows,
    Quantizer,
    complete,
    contributions,
    induced_labels,
    initialise,
    local_labels,
    surviving,
)
from vfl_flower.secure_aggregation import SparseSum, split_limbs
from vfl_flower.typing import Array, Values
from vfl_flower.unlearning import ClientState, list_models

log = logging.getLogger("vfl_flower")

REQUESTS = "forget.txt"
"""File of a party's ``state-dir`` with the ids to forget, one a line."""

# -- training (Algorithm 1) -----------------------------------------------------------


@step("mufc_train", sums=("message", "totals"))
def train(
    party: Party,
    model: str,
    n_clients: int,
    key: bytes = b"",
    keep: bool = True,
    abandoned: Sequence[str] = (),
    **settings: Any,
) -> Values:
    """Lines 1 to 4: draw centroids, and give their quantised counts.

    What the run began before, and gave up with a party that failed, is removed.
    """
    keep = keep and party.state_dir is not None
    if keep and not party.name:
        raise PartyError(
            "to forget later it needs a name of its own, party-name: the place in a "
            "run may be another party's in the next"
        )
    for number in abandoned:
        _remove_unfinished(party, number)
    settings = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in settings.items()
    }
    settings |= _columns(party) | {"name": party.name}
    box = Box.of(settings)
    for block in RowBlocks(party.X):
        _refusing(box.check, block, party.columns)
    blocks = BoxedRows(party.X, box)
    drawn, labels = initialise(
        blocks, int(settings["local_clusters"]), party.rng("centroids")
    )
    sizes = np.bincount(labels, minlength=len(drawn))
    if keep and party.state_dir is not None:
        ids = _ids(party)
        _check_alone(party, model)
        state = ClientState.create(party.state_dir, model, ids, settings)
        tags = state.tag([ids[row] for row in drawn])
        state.stage(1, tags, sizes, kind="train", redrawn=True, run=model)
    everything = np.ones(party.n_rows, dtype=bool)
    reply = _sent(party, settings, everything, drawn, sizes, n_clients, key)
    totals = np.array([sizes.sum(), 0.0])
    return {**reply, "totals": totals, "kept": keep}


def _sent(
    party: Party,
    settings: dict[str, Any],
    kept: Array,
    drawn: Array,
    sizes: Array,
    n_clients: int,
    key: bytes,
) -> dict[str, Any]:
    """Return the centroids and sizes as the settings say: hidden, or in the clear.

    Remembers for the rest of the run which rows take part, and the drawn ones.
    """
    full, box = settings["client_training"] == "full", Box.of(settings)
    party.state |= {"rows": np.packbits(kept), "drawn": drawn, "full": full}
    party.state |= {"lower": box.lower, "upper": box.upper}
    centroids = BoxedRows(party.X, box).take(drawn)
    _refusing(box.check, party.X[drawn], party.columns)
    if full:
        centroids, labels = _local(party)
        sizes = np.bincount(labels, minlength=len(centroids))
    if settings["privacy"] == "none":
        party.share(drawn)
        return {"centroids": centroids, "sizes": sizes}
    quantizer = Quantizer(float(settings["gamma"]))
    found = _refusing(quantizer.bins, centroids)
    bins, which = np.unique(found, axis=0, return_inverse=True)
    counts = np.zeros(len(bins), dtype=np.int64)
    np.add.at(counts, which.ravel(), sizes)
    code = SparseSum(
        int(settings["local_clusters"]),
        n_clients,
        party.X.shape[1],
        quantizer.n_bins,
        key,
        str(settings["field"]),
    )
    return {"message": code.encode(bins, counts)}


def _local(party: Party) -> tuple[Array, Array]:
    """Return the local centroids, and of each row that takes part the local cluster."""
    own = party.state
    blocks, numbers = _taking_part(party)
    places = np.searchsorted(numbers, own["drawn"])
    if own["full"]:
        return complete(blocks, places)
    if len(places) == 0:
        return blocks.take(places), places
    _, labels = initialise(blocks, len(places), party.rng("none"), places)
    return blocks.take(places), labels


def _taking_part(party: Party) -> tuple[RowBlocks, Array]:
    """Return the rows that take part in the run, and their numbers."""
    own = party.state
    numbers = np.flatnonzero(np.unpackbits(own["rows"], count=party.n_rows))
    return BoxedRows(party.X, Box.of(own), numbers), numbers


@step("mufc_commit", sums=("cost", "sizes"))
def commit(
    party: Party,
    model: str,
    version: int,
    run: str,
    centers: Array,
    leaves: bool = False,
    kept: bool = True,
) -> Values:
    """Line 9: rows take the global cluster of their centroid; forget what was before.

    The induced objective and sizes go into sums over the clients. One that leaves keeps
    its audit log and nothing else; where the model is not kept, none keeps anything.
    """
    if party.state_dir is not None:
        state = ClientState(party.state_dir, model)
        _drop_predictions(party, model)
        if not kept:
            _remove_unfinished(party, model)
        elif not leaves:
            state.settle(version, run)
        elif state.exists:
            state.wipe()
        if leaves:
            (party.state_dir / REQUESTS).unlink(missing_ok=True)
        _finish_requests(party)
    blocks, numbers = _taking_part(party)
    if len(numbers) < party.n_rows:
        log.warning(
            "%d rows of the data take no part: take those forgotten out of the file",
            party.n_rows - len(numbers),
        )
        _drop_cache(party)
    scaled = Box.of(party.state).scale(centers)
    labels = induced_labels(*_local(party), scaled)
    cost = contributions(blocks, scaled, labels).sum()
    party.state["labels"] = labels
    if not leaves:
        party.predictions, party.predicted, party.model = labels, numbers, model
    return {
        "cost": _refusing(split_limbs, np.array([cost])),
        "sizes": np.bincount(labels, minlength=len(centers)).astype(np.float64),
    }


# -- unlearning (Algorithms 3 and 4) --------------------------------------------------


@step("mufc_forget", sums=("message", "totals"))
def forget(
    party: Party,
    model: str,
    version: int,
    before: str,
    run: str,
    n_clients: int,
    key: bytes = b"",
    ids: Sequence[str] = (),
    leaves: bool = False,
    kind: str = "unlearn",
    **settings: Any,
) -> Values:
    """Remove rows, redraw centroids if one of them is among these, and give counts.

    What leaves the party has the same form and size whatever is removed. A client that
    leaves gives no counts; its state may be gone, so it is told the settings. The
    others do nothing for themselves then: their own requests wait for ``unlearn``.
    """
    if leaves:
        if party.state_dir is not None:
            left = ClientState(party.state_dir, model)
            if left.exists and not left.left:
                _check_name(party, left)
        none, nothing = np.zeros(party.n_rows, dtype=bool), np.zeros(0, dtype=np.int64)
        reply = _sent(party, settings, none, nothing, nothing, n_clients, key)
        return {**reply, "totals": np.zeros(2)}
    state = _state(party, model, version, before)
    settings, now = state.settings, state.current()
    if now is None:
        raise PartyError(f"training of model {model} was not finished here")
    if party.X.shape[1] != settings["n_columns"]:
        raise PartyError(
            f"the data must have the {settings['n_columns']} columns of training, got "
            f"{party.X.shape[1]}"
        )
    if _columns(party)["columns"] != settings["columns"]:
        raise PartyError(
            "the data must have the columns of training in their order: their names "
            "differ"
        )
    own = _requests(party) if kind == "unlearn" else []
    asked = list(dict.fromkeys([*ids, *own]))
    requested = state.tag(asked)
    known = state.known(requested)
    if unknown := len(asked) - np.count_nonzero(known):
        wrong = {value for value, there in zip(asked, known, strict=True) if not there}
        lines = [i for i, v in enumerate(own, start=1) if v in wrong]
        log.error("%d of %d ids are not of rows of training", unknown, len(asked))
        if lines:
            log.error("lines %s of %s name no rows of training", lines, REQUESTS)
        raise PartyError(
            "ids to forget must be of rows of training: some are not, its own log says "
            "how many"
        )
    gone = set(requested) - state.removed()
    party.state["asked"] = asked
    if not gone:
        _finish_requests(party)
    tags = state.tag(_ids(party))
    trained = state.keep(tags)
    removed = trained & np.fromiter((tag in gone for tag in tags), bool, len(tags))
    kept = trained & ~removed
    row = {tags[i]: i for i in np.flatnonzero(kept)}
    remaining = int(now.sizes.sum()) - len(gone)
    if len(row) != remaining or np.count_nonzero(kept) != remaining:
        log.error(
            "%d rows of training were not forgotten: the data hold %d of them, in %d "
            "rows",
            remaining,
            len(row),
            np.count_nonzero(kept),
        )
        raise PartyError(
            "the data must hold the rows of training that were not forgotten, each "
            "once: its own log says how many they hold"
        )
    prefix = surviving(np.arange(len(now.centroids)), _places(now.centroids, gone))
    drawn = np.array([row[now.centroids[i]] for i in prefix], dtype=np.int64)
    redrawn = len(prefix) < len(now.centroids)
    box = Box.of(settings)
    if redrawn:
        numbers = np.flatnonzero(kept)
        drawn, labels = initialise(
            BoxedRows(party.X, box, numbers),
            int(settings["local_clusters"]),
            party.rng(f"redraw {version}"),
            np.searchsorted(numbers, drawn),
        )
        drawn, sizes = numbers[drawn], np.bincount(labels, minlength=len(drawn))
    elif not gone:
        sizes = now.sizes
    elif np.count_nonzero(removed) == len(gone):
        blocks = BoxedRows(party.X, box)
        out = local_labels(blocks.take(np.flatnonzero(removed)), blocks.take(drawn))
        sizes = now.sizes - np.bincount(out, minlength=len(drawn))
    else:  # the rows are gone from the data already
        numbers = np.flatnonzero(kept)
        _, labels = initialise(
            BoxedRows(party.X, box, numbers),
            len(drawn),
            party.rng("none"),
            np.searchsorted(numbers, drawn),
        )
        sizes = np.bincount(labels, minlength=len(drawn))
    state.stage(
        version + 1,
        [tags[i] for i in drawn],
        sizes,
        list(gone),
        kind=kind,
        redrawn=redrawn,
        run=run,
    )
    reply = _sent(party, settings, kept, drawn, sizes, n_clients, key)
    if not np.all(kept):
        _drop_cache(party)
    behind = _predictions(party, model) is None
    totals = np.array([remaining, behind], dtype=np.float64)
    return {**reply, "totals": totals}


@step("mufc_status")
def status(party: Party, model: str, version: int, before: str) -> Values:
    """Return how much this party has forgotten."""
    state = _state(party, model, version, before)
    now = state.current()
    if state.removed():
        _drop_cache(party)
    return {
        "rows": 0 if now is None else int(now.sizes.sum()),
        "removed": len(state.removed()),
        "pending": len(_requests(party)),
        "requests": sum(bool(entry["tags"]) for entry in state.log()),
    }


def _places(centroids: Sequence[bytes], gone: set[bytes]) -> Array:
    found = [i for i, tag in enumerate(centroids) if tag in gone]
    return np.array(found, dtype=np.int64)


def _state(party: Party, model: str, version: int, run: str) -> ClientState:
    """Return the client's state, brought to the version that the server has."""
    if party.state_dir is None:
        raise PartyError("it has no state-dir, so it has nothing to forget from")
    state = ClientState(party.state_dir, model)
    _check_name(party, state)
    present = state.version
    state.settle(version, run)
    if state.version != present:
        _drop_predictions(party, model)
    return state


def _check_name(party: Party, state: ClientState) -> None:
    if (name := state.settings["name"]) != party.name:
        raise PartyError(
            f"its state-dir has the state of party {name!r}: each party keeps its own "
            "folder and name"
        )


def _remove_unfinished(party: Party, model: str) -> None:
    """Remove the state of a training that the server has not kept."""
    if party.state_dir is not None:
        ClientState(party.state_dir, model).remove_unfinished()


def _predictions(party: Party, model: str) -> Path | None:
    """Return the file with the clusters of the rows, if it is there."""
    if party.state_dir is None:
        return None
    path = party.state_dir / f"predictions-{model}.csv"
    return path if path.exists() else None


def _drop_predictions(party: Party, model: str) -> None:
    """Remove them until those of the next version are written."""
    if path := _predictions(party, model):
        path.unlink()


def _drop_cache(party: Party) -> None:
    """Remove the copy of a data file that still has rows that were forgotten."""
    if party.drop_cache is not None:
        party.drop_cache()


def _columns(party: Party) -> dict[str, Any]:
    """Return number and digest of the columns: a removal must find the same."""
    names = digest_ids(np.array(party.columns)) if party.columns else ""
    return {"n_columns": party.X.shape[1], "columns": names}


def _requests(party: Party) -> list[str]:
    """Return the ids in the party's own list of requests."""
    path = None if party.state_dir is None else party.state_dir / REQUESTS
    if path is None or not path.exists():
        return []
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise PartyError(
            f"{REQUESTS} must be a file of UTF-8 text, an id a line"
        ) from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def _finish_requests(party: Party) -> None:
    """Take the ids that were asked for from the list, not what came meanwhile."""
    done = set(party.state.get("asked", ()))
    if not done:
        return
    more = [value for value in _requests(party) if value not in done]
    if party.state_dir is not None and (path := party.state_dir / REQUESTS).exists():
        if more:
            write_private(path, "\n".join([*more, ""]).encode(), "the requests")
        else:
            path.unlink()


def _ids(party: Party) -> list[str]:
    ids = party.ids if party.row_ids is None else party.row_ids()
    if ids is None:
        raise PartyError("rows are forgotten by their ids: the data need an id-column")
    return [str(value) for value in ids]


def _refusing(
    function: Callable[[Array], Any], rows: Array, names: Sequence[str] | None = None
) -> Any:
    try:
        return function(rows)
    except ValueError as error:  # it names a column by its number, and no value
        text = str(error)
        found = re.match(r"column (\d+), counted from 0,", text)
        if found and names:
            text = f"column {names[int(found[1])]!r}{text[found.end() :]}"
        raise PartyError(text) from None


def _check_alone(party: Party, model: str) -> None:
    """Raise where another party of the run has written to the same folder."""
    if party.state_dir is None:
        return
    state = ClientState(party.state_dir, model)
    if state.exists and state.settings["name"] != party.name:
        raise PartyError("state-dir must be a folder of this party alone")
    if others := len(set(list_models(party.state_dir)) - {model}):
        log.warning(
            "the state-dir has %d other models: a row is forgotten in each by a run of "
            "its own, or by the removal of its files",
            others,
        )
