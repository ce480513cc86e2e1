"""The only module that reads or writes the data that the server needs to forget rows.

See :mod:`vfl_flower.clients.mufc.state` for how versions are committed.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vfl_flower.clients.mufc.settings import TrainingSettings
from vfl_flower.clients.mufc.state import WRITE, StateFile, now
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array


@shapes_only
@dataclass(frozen=True, eq=False)
class GlobalClusters:
    """The data that the server stores for one version."""

    version: int
    """Version of the clustering; 0 means that training is not finished."""
    run: str
    """The run that saved this version."""
    bins: Array
    """Nonempty bins of q, an int64 array of shape (m, d)."""
    counts: Array
    """Number of rows in each bin, an int64 array of shape (m,)."""
    centers: Array
    """C_s, of shape (K, d), in the unit of the data."""
    parties: list[str]
    """Names of the parties whose rows are in q."""
    settings: TrainingSettings
    """Settings that the parties agreed to in training."""
    sizes: Array
    """Number of rows in each cluster, an int64 array of shape (K,).

    It is empty before `ServerState.describe`."""
    inertia: float
    """The induced objective; NaN before `ServerState.describe`."""


class ServerState(StateFile):
    """The data that the server stores for one model, in the folder of its states.

    Each method except `exists` raises ValueError if there is no readable state of this
    model in this format.
    """

    kind = 0x76666C73  # "vfls"
    owner = "the server"
    error = ValueError
    tables: ClassVar[dict[str, str]] = {
        "about": "model TEXT, version INTEGER, run TEXT, settings TEXT, clients TEXT, "
        "columns INTEGER, bins BLOB, counts BLOB, centers BLOB, sizes BLOB, "
        "inertia REAL",
        "log": "time TEXT, kind TEXT, version INTEGER, clients TEXT, changed INTEGER",
    }

    @classmethod
    def create(
        cls,
        folder: Path,
        model: str,
        settings: TrainingSettings,
        parties: Sequence[str],
    ) -> ServerState:
        """Create version 0, with an empty q; an unfinished training run is replaced."""
        state = cls(folder, model)
        with state._new() as db:
            db.execute(
                "INSERT INTO about VALUES "
                "(?, 0, '', ?, ?, 1, x'', x'', x'', x'', NULL)",
                (model, json.dumps(settings.stored()), json.dumps(list(parties))),
            )
        return state

    def save(
        self,
        version: int,
        bins: Array,
        counts: Array,
        centers: Array,
        parties: Sequence[str],
        kind: str,
        *,
        named: Sequence[str] = (),
        run: str = "",
    ) -> None:
        """Overwrite the current version with the next version, which is then valid.

        The parties compare `run` with the run of their own version. Raises ValueError
        if `version` is not the next version.
        """
        packed = [bins.astype("<i8"), counts.astype("<i8"), centers.astype("<f8")]
        version = int(version)  # SQLite does not accept NumPy integers
        with self._open(WRITE) as db:
            self._check_next(db, version)
            before = self._load(db)
            changed = _entries(before.bins, before.counts) != _entries(bins, counts)
            db.execute(
                "UPDATE about SET version = ?, run = ?, clients = ?, columns = ?, "
                "bins = ?, counts = ?, centers = ?, sizes = x'', inertia = NULL",
                (
                    *(version, run, json.dumps(list(parties)), bins.shape[1]),
                    *(array.tobytes() for array in packed),
                ),
            )
            db.execute(
                "INSERT INTO log VALUES (?, ?, ?, ?, ?)",
                (now(), kind, version, json.dumps(list(named)), changed),
            )

    def describe(self, version: int, sizes: Array, inertia: float) -> None:
        """Add sizes and objective to a version, unless a newer version was saved."""
        packed = np.asarray(sizes).astype("<i8").tobytes()
        with self._open(WRITE) as db:
            db.execute(
                "UPDATE about SET sizes = ?, inertia = ? WHERE version = ?",
                (packed, float(inertia), int(version)),
            )

    def load(self) -> GlobalClusters:
        """Return the current version."""
        with self._open() as db:
            return self._load(db)

    def _load(self, db: sqlite3.Connection) -> GlobalClusters:
        version, run, d, inertia = self._about(db, "version, run, columns, inertia")
        bins, counts, centers, sizes = self._about(db, "bins, counts, centers, sizes")
        parties, settings = self._about(db, "clients, settings")
        with self._legible():
            return GlobalClusters(
                version,
                run,
                np.frombuffer(bins, "<i8").astype(np.int64).reshape(-1, d),
                np.frombuffer(counts, "<i8").astype(np.int64),
                np.frombuffer(centers, "<f8").astype(np.float64).reshape(-1, d),
                json.loads(parties),
                TrainingSettings.restored(dict(json.loads(settings))),
                np.frombuffer(sizes, "<i8").astype(np.int64),
                math.nan if inertia is None else inertia,
            )

    def log(self) -> list[dict[str, Any]]:
        """Return the audit log, oldest entry first; `changed` is true if q changed."""
        log = self._log("time, kind, version, clients AS parties, changed")
        for entry in log:
            entry["parties"] = json.loads(entry["parties"])
            entry["changed"] = bool(entry["changed"])
        return log


def _entries(bins: Array, counts: Array) -> dict[bytes, int]:
    """Return the counts by bin, whatever the order of the bins."""
    rows = zip(bins, counts.tolist(), strict=True)
    return {place.tobytes(): count for place, count in rows}
