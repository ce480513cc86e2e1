"""A party's side of coresets to which later runs add rows (merge and reduce).

A party keeps, with its block of a model, its columns of the rows of the coreset, their
weights and their levels. A later run names that model: then these rows follow those of
the party's data (:meth:`vfl_flower.protocol.party.Party.add_kept`), and the steps of
:mod:`vfl_flower.clients.coresets` draw from both.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np

from vfl_flower.clients.coresets import (
    KEPT_LEVELS,
    KEPT_WEIGHTS,
    Clustering,
    kept_rows,
    numbers_of,
)
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.protocol.contract import Reals, Whole
from vfl_flower.protocol.parts import (
    KEPT_IDS,
    KEPT_LABELS,
    KEPT_ROWS,
    list_parts,
    load_part,
    save_part,
)
from vfl_flower.protocol.party import Party, PartyError
from vfl_flower.protocol.settings import Count, Natural
from vfl_flower.protocol.steps import parts_of, step
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

PARTS_OF = "coreset_predictions"
"""The algorithm of the parts: they are those that predict."""

MOST_LEVELS = 64
"""More levels than any number of runs fills."""

Levels = Annotated[Array, Whole("m", below=MOST_LEVELS)]


@dataclass(frozen=True, eq=False)
class KeptCoreset:
    """The coresets that parties keep, as one list of rows.

    Attributes
    ----------
    rows : Array of int, shape (m,)
        Their rows, each once in a coreset.
    weights : Array, shape (m,)
        How many rows each stands for.
    levels : Array of int, shape (m,)
        Level of the coreset that each row is in; see
        :func:`vfl_flower.numerics.coresets.merge_level`.
    stands_for : int
        Number of rows that they stand for.
    intercept : bool or None
        For regression: whether it has an intercept.
    n_clusters : int
        For k-means: the number of clusters.
    after : str
        Number of the model to which rows were added; "": of none.
    """

    rows: Annotated[Array, Whole("m", below="n_rows")]
    weights: Annotated[Array, Reals("m")]
    levels: Levels
    stands_for: Natural
    intercept: bool | None = None
    n_clusters: Count = 0
    after: str = ""


class KeptInfo(TypedDict):
    """Reply of :func:`kept`: what the server has told when they were kept."""

    weights: Annotated[Array, Reals("m")]
    levels: Levels
    stands_for: Natural
    months: Natural


def _scored(intercept: bool | None, n_clusters: int) -> str:
    """Return in words for which models a coreset is."""
    if intercept is None:
        return f"k-means with {n_clusters} clusters"
    return f"regression with{'' if intercept else 'out'} an intercept"


@step
@parts_of(PARTS_OF)
def kept(
    party: Party, intercept: bool | None = None, clustering: Clustering | None = None
) -> KeptInfo:
    """Check that the party's data are a new month for the coresets that it keeps."""
    part, coreset = party.part, kept_rows(party)
    if coreset is None:
        raise PartyError("the run must be one that adds rows to a model")
    asked = _scored(intercept, clustering.n_clusters if clustering else 0)
    if part["scored"] != asked:
        raise PartyError(
            f"the coreset of this model is for {part['scored']}, and the run for "
            f"{asked}: the strategy, n-clusters and fit-intercept must be those of "
            "training"
        )
    place = part["index"], part["n_parties"]
    if place != (party.index, party.n_parties):
        raise PartyError(
            f"this party must have place {place[0]} of {place[1]}, as in training, got "
            f"{party.index} of {party.n_parties}: set partition-id"
        )
    if list(part["columns"]) != (now := list(party.columns or ())):
        changed = len(set(part["columns"]) ^ set(now))
        raise PartyError(
            "new rows must have the columns of training, by their names and in their "
            f"order: {changed} names are in one of the two alone"
        )
    months = list(part["months"])
    if (digest := _digest(party)) in months:
        raise PartyError(
            f"this party's data are those of month {months.index(digest) + 1} of the "
            f"{len(months)} that the model has: name the file of a new month"
        )
    if again := len(set(_ids(party, new=True)) & set(part[KEPT_IDS])):
        log.error("%d of %d kept rows are in the data again", again, party.n_kept)
        raise PartyError(
            "rows that this party keeps of earlier months are in its data again, by "
            "their ids: a new month must have new rows only"
        )
    return {
        "weights": coreset.weights,
        "levels": coreset.levels,
        "stands_for": part["stands_for"],
        "months": len(months),
    }


def part_of(party: Party, coreset: KeptCoreset) -> dict[str, Any]:
    """Return what a part of a model keeps of a coreset.

    The rows of the model before the last one go: all parties have the last one.
    """
    before = party.part
    if party.state_dir is not None and before.get("before"):
        _drop_rows(party.state_dir, before["before"])
    rows, ids = numbers_of(coreset.rows).astype(np.int64), _ids(party)
    part = {
        KEPT_ROWS: np.asarray(party.rows.take(rows), dtype=np.float64),
        KEPT_WEIGHTS: np.asarray(coreset.weights, dtype=np.float64),
        KEPT_LEVELS: coreset.levels.astype(np.uint8),
        KEPT_IDS: [ids[row] for row in rows.tolist()] if ids else [],
        "stands_for": coreset.stands_for,
        "scored": _scored(coreset.intercept, coreset.n_clusters),
        "months": [*before.get("months", ()), _digest(party)],
        "before": coreset.after,
    }
    if party.y is not None:
        part[KEPT_LABELS] = np.asarray(party.y[rows], dtype=np.float64)
    return part


def _drop_rows(folder: Path, model: str) -> None:
    """Take the rows out of the part of a model, which can still predict."""
    if model not in list_parts(folder):
        return
    part = load_part(folder, model, PARTS_OF)
    of_rows = (KEPT_ROWS, KEPT_LABELS, KEPT_IDS, KEPT_WEIGHTS, KEPT_LEVELS)
    settings, arrays = (
        {k: v for k, v in values.items() if k not in of_rows}
        for values in (part.settings, part.arrays)
    )
    save_part(folder, replace(part, settings=settings, arrays=arrays))


def _ids(party: Party, new: bool = False) -> list[str]:
    """Return the ids of all rows, or of the new ones, as text; none without ids."""
    ids = party.read_ids()
    if ids is None:
        return []
    return [str(name) for name in (ids[: party.n_new] if new else ids)]


def _digest(party: Party) -> str:
    """Return a digest of the party's data: of their ids, or of all their values.

    It stays at the party.
    """
    sha = hashlib.sha256()
    if ids := _ids(party, new=True):
        for name in sorted(ids):
            sha.update(b"%d:%b" % (len(name.encode()), name.encode()))
        return sha.hexdigest()
    n = party.n_new
    for block in RowBlocks(party.rows, rows=np.arange(n)):
        sha.update(np.ascontiguousarray(block).tobytes())
    if party.y is not None:
        sha.update(np.ascontiguousarray(party.y[:n], dtype=np.float64).tobytes())
    return sha.hexdigest()
