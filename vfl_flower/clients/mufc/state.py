"""A party's state on disk for forgetting rows, and a base class for the server's.

A clustering that can forget rows [1] is stored in one SQLite file at each party (a
"client" in [1]) and in one file at the server
(:mod:`vfl_flower.strategies.mufc.state`). Each version is committed in two phases, and
the server decides: the parties *stage* version v + 1, the server *saves* it, and then
the parties *settle* it. Each message of a task contains the server's version, and a
party first settles that version. So even if a process is killed during a write, the
next task finds all files at version v or brings all of them to version v + 1.

No file of a party contains an id, a value or a coordinate of a row. Ids are replaced by
tags, computed with a key specific to the file. Deleted content is overwritten with
zeros.

References
----------
[1] C. Pan, J. Sima, S. Prakash, V. Rana and O. Milenkovic, "Machine unlearning of
federated clusters", ICLR 2023.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vfl_flower.clients.mufc.settings import TrainingSettings
from vfl_flower.files import check_no_link, make_private
from vfl_flower.party.parts import is_model_id
from vfl_flower.party.party import PartyError
from vfl_flower.protocol.contract import fields_of, flat, structure
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array
from vfl_flower.version import __version__

logger = logging.getLogger("vfl_flower")

FORMAT = 1
"""Format of both files, in the ``user_version`` of SQLite."""

TAG = 16
"""Length of a tag, in bytes."""

BUSY = 5.0
"""Seconds to wait for another process that has locked the file."""

READ = "BEGIN"
WRITE = "BEGIN IMMEDIATE"
"""Start of a transaction in which no other process can change the values that are
read."""


@shapes_only
@dataclass(frozen=True)
class PartyFacts:
    """Facts that a party needs to forget rows, in addition to the training settings."""

    name: str
    n_columns: int
    columns: str
    """Digest of the column names; "" if the columns have no names."""
    parties: list[str]
    """Names of the parties in training; empty if no party signed its messages."""


@shapes_only
@dataclass(frozen=True, eq=False)
class PartyClusters:
    """The clusters of one party in one version."""

    version: int
    """Version of the clustering, from 1."""
    centroids: list[bytes]
    """Tags of the k' rows drawn for C^(l), in the order drawn."""
    sizes: Array
    """Number of rows in each nonempty cluster, int64, shape (at most k',)."""


class StateFile:
    """The file ``<model>.sqlite`` of one model, opened and closed in each call."""

    kind: ClassVar[int]
    owner: ClassVar[str]
    error: ClassVar[type[Exception]]
    tables: ClassVar[dict[str, str]]

    def __init__(self, folder: Path, model: str) -> None:
        # The id comes from a message, so it must not point outside the folder.
        if not is_model_id(model):
            raise self.error(
                "the id of a model must be 8 to 32 lower-case hexadecimal digits, got "
                f"{str(model)[:40]!r}"
            )
        self.model = model
        self.folder = Path(folder)
        self._path = self.folder.absolute() / f"{model}.sqlite"

    @property
    def exists(self) -> bool:
        """Whether there is a state, even of an unfinished training run."""
        with self._errors():
            if not self._path.exists():
                return False
            with self._connected() as db:
                return not _is_empty(db)

    @property
    def version(self) -> int:
        """Version of the clustering; 0 if training is not finished."""
        with self._open() as db:
            return self._version(db)

    def remove(self) -> None:
        """Remove the state: overwrite its content, and delete the file."""
        with self._open(WRITE) as db:
            for table in self.tables:
                if table != "about":  # a removal killed here must be repeatable
                    db.execute(f"DELETE FROM {table} WHERE true")
        with self._errors():
            self._path.unlink(missing_ok=True)

    def _about(self, db: sqlite3.Connection, columns: str) -> tuple[Any, ...]:
        """Return columns of the only row of table ``about``."""
        return tuple(db.execute(f"SELECT {columns} FROM about").fetchone())

    def _version(self, db: sqlite3.Connection) -> int:
        return int(self._about(db, "version")[0])

    def _log(self, columns: str) -> list[dict[str, Any]]:
        with self._open() as db:
            entries = db.execute(f"SELECT {columns} FROM log ORDER BY rowid")
            names = [name for name, *_ in entries.description]
            return [dict(zip(names, values, strict=True)) for values in entries]

    def _check_next(self, db: sqlite3.Connection, version: int) -> None:
        present = self._version(db)
        if version != present + 1:
            raise self.error(
                f"{self.owner} has version {present} of model {self.model}: the next "
                f"version must be {present + 1}, got {version}"
            )

    @contextmanager
    def _open(self, begin: str = READ) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction; an error leaves it unchanged."""
        with self._errors():
            if not self._path.exists():
                raise self._missing()
            with self._connected() as db:
                db.execute(begin)
                self._check(db)
                yield db
                db.execute("COMMIT")

    @contextmanager
    def _new(self) -> Iterator[sqlite3.Connection]:
        """Create the file for one transaction, or empty it if training is unfinished.

        An existing file is not replaced: a killed process may have left a journal,
        which SQLite would find beside a new file of the same name.
        """
        with self._errors():
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            make_private(self._path)  # SQLite gives its journal the mode of the file
            with self._connected() as db:
                db.execute(WRITE)
                if not _is_empty(db):
                    self._check(db)
                    if version := self._version(db):
                        raise self.error(
                            f"{self.owner} already has version {version} of model "
                            f"{self.model}: only unfinished training can be "
                            "restarted"
                        )
                for name, columns in self.tables.items():
                    db.execute(f"DROP TABLE IF EXISTS {name}")
                    db.execute(f"CREATE TABLE {name} ({columns})")
                db.execute(f"PRAGMA application_id = {self.kind}")
                db.execute(f"PRAGMA user_version = {FORMAT}")
                yield db
                db.execute("COMMIT")

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        check_no_link(self._path)
        with closing(
            sqlite3.connect(
                f"{self._path.as_uri()}?mode=rw",
                timeout=BUSY,
                isolation_level=None,
                uri=True,
            )
        ) as db:
            db.execute("PRAGMA secure_delete = ON")
            db.execute("PRAGMA journal_mode = DELETE")
            # Like FULL, but the folder is also written to disk before a commit returns:
            # a power failure must not undo a decision of the server.
            db.execute("PRAGMA synchronous = EXTRA")
            db.execute("PRAGMA temp_store = MEMORY")
            yield db

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn file errors into one sentence without a path."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            logger.error("cannot use %s: %s", self._path, reason)
            raise self.error(
                f"the state of model {self.model} at {self.owner} cannot be read or "
                f"written: {reason}"
            ) from None

    @contextmanager
    def _legible(self) -> Iterator[None]:
        """Turn errors caused by damaged contents into one sentence."""
        try:
            yield
        except (ValueError, TypeError, KeyError):  # including JSON errors
            logger.error("settings in %s are damaged", self._path)
            raise self.error(
                f"the state of model {self.model} at {self.owner} is damaged"
            ) from None

    def _missing(self) -> Exception:
        logger.error("there is no state in %s", self._path)
        return self.error(f"{self.owner} has no state of model {self.model}")

    def _check(self, db: sqlite3.Connection) -> None:
        """Raise unless this class wrote the file, in this format and for this model."""
        if _is_empty(db):  # left by a killed `create`
            raise self._missing()
        what = f"the state of model {self.model} at {self.owner}"
        (kind,) = db.execute("PRAGMA application_id").fetchone()
        (written,) = db.execute("PRAGMA user_version").fetchone()
        if kind != self.kind:
            raise self.error(f"{what} was not written by {self.owner}")
        if written != FORMAT:
            raise self.error(
                f"{what} has format {written}, but vfl-flower {__version__} reads "
                f"format {FORMAT}: update vfl-flower"
            )
        (model,) = self._about(db, "model")
        if model != self.model:
            raise self.error(
                f"{what} was written for model {model}: the file was renamed or copied"
            )


class ClientState(StateFile):
    """One party's state of one model, in its ``state-dir``.

    `run` is a string that is unique to each run. It distinguishes versions that two
    runs have staged under the same number: a version that the server did not save is
    dropped.

    Each method except `exists` raises PartyError if there is no readable state of that
    model and format. Each method except `exists`, `log`, `left`, `version` and `wipe`
    also raises PartyError if the party has left the model.
    """

    kind = 0x76666C63  # "vflc"
    owner = "this party"
    error = PartyError
    tables: ClassVar[dict[str, str]] = {
        "about": "model TEXT, version INTEGER, run TEXT, settings TEXT, tag_key BLOB, "
        "centroids BLOB, sizes BLOB",
        # The sorted tags of rows from training and of rows added later, split by their
        # first byte, so that looking up a few tags reads a small part of the file.
        "rows": "byte INTEGER PRIMARY KEY, tags BLOB",
        "removed": "tag BLOB PRIMARY KEY",
        # With kind "add", the last column contains the tags of new rows.
        "staged": "run TEXT PRIMARY KEY, version INTEGER, kind TEXT, redrawn INTEGER, "
        "centroids BLOB, sizes BLOB, removed BLOB",
        "log": "time TEXT, kind TEXT, version INTEGER, tags BLOB, redrawn INTEGER",
    }

    @classmethod
    def create(
        cls,
        folder: Path,
        model: str,
        ids: Sequence[Any],
        settings: TrainingSettings,
        facts: PartyFacts,
    ) -> ClientState:
        """Create version 0 with a new key for tags, replacing any unfinished training.

        Raises PartyError if an id occurs twice, or if training is already finished.
        """
        state = cls(folder, model)
        key = os.urandom(32)
        tags = np.sort(np.array(_hmacs(key, ids), f"S{TAG}"))
        repeated = int((tags[1:] == tags[:-1]).sum())
        if repeated:
            logger.error("repeated ids: %d", repeated)
            raise PartyError("ids must be distinct, but some rows repeat an id")
        with state._new() as db:
            db.execute(
                "INSERT INTO about VALUES (?, 0, '', ?, ?, x'', x'')",
                (model, json.dumps(settings.stored() | flat(facts)), key),
            )
            _add(db, tags)
        return state

    @property
    def settings(self) -> TrainingSettings:
        """The training settings."""
        return self._agreed()[0]

    @property
    def facts(self) -> PartyFacts:
        """Further facts about the party's training."""
        return self._agreed()[1]

    def _agreed(self) -> tuple[TrainingSettings, PartyFacts]:
        with self._member() as db:
            (text,) = self._about(db, "settings")
        fields = fields_of(PartyFacts)
        with self._legible():
            stored = dict(json.loads(text))
            known = {name: stored.pop(name) for name in fields if name in stored}
            facts = PartyFacts(**structure(fields, known, {}))
            return TrainingSettings.restored(stored), facts

    @property
    def left(self) -> bool:
        """Whether the party has left the model; see `wipe`."""
        with self._open() as db:
            return self._left(db)

    def tag(self, ids: Sequence[Any]) -> list[bytes]:
        """Return the tags of ids: 16 bytes of HMAC-SHA256 under the key of the file.

        The id 7 has the same tag as the id "7". Without the file, tags reveal nothing
        about the ids.
        """
        with self._member() as db:
            return _hmacs(self._about(db, "tag_key")[0], ids)

    def known(self, tags: Sequence[bytes]) -> Array:
        """Return which tags belong to training rows, removed or not, of shape (r,)."""
        with self._member() as db:
            return _known(db, tags)

    def removed(self) -> set[bytes]:
        """Return the tags of all removed rows, without staged removals."""
        with self._member() as db:
            return _removed(db)

    def keep(self, tags: Sequence[bytes]) -> Array:
        """Return which tags belong to rows still in the clustering, of shape (r,)."""
        with self._member() as db:
            gone = _removed(db)
            stays = np.fromiter((tag not in gone for tag in tags), bool, len(tags))
            return np.asarray(stays & _known(db, tags))

    def current(self) -> PartyClusters | None:
        """Return the clusters of the committed version, if there is one."""
        with self._member() as db:
            version, centroids, sizes = self._about(db, "version, centroids, sizes")
        counts = np.frombuffer(sizes, "<i8").astype(np.int64)
        return PartyClusters(version, _tags(centroids), counts) if version else None

    def stage(
        self,
        version: int,
        centroids: Sequence[bytes],
        sizes: Array,
        removed: Sequence[bytes] = (),
        *,
        kind: str,
        redrawn: bool,
        run: str = "",
        added: Sequence[bytes] = (),
    ) -> None:
        """Write the next version, to be committed once the server has saved it.

        The version replaces any version that the same run has already staged. Raises
        PartyError if the version is not the next one, or if `sizes` do not add up to
        the number of remaining rows.
        """
        removed = list(dict.fromkeys(removed))
        with self._member(WRITE) as db:
            self._check_next(db, version)
            (size,) = db.execute("SELECT sum(length(tags)) FROM rows").fetchone()
            gone = _removed(db).union(removed)
            remaining = (size or 0) // TAG - len(gone) + len(added)
            sizes = np.asarray(sizes, np.int64)
            wrong = int(sizes.sum()) != remaining or (sizes < 1).any()
            if wrong or len(sizes) > len(centroids):
                raise PartyError(
                    f"sizes must have at most {len(centroids)} numbers, each at least "
                    f"1, with the sum {remaining}, the number of remaining rows, got "
                    f"{len(sizes)} numbers with the sum {sizes.sum()}"
                )
            db.execute(
                "INSERT OR REPLACE INTO staged VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    *(run, int(version), kind, bool(redrawn), b"".join(centroids)),
                    *(sizes.astype("<i8").tobytes(), b"".join(added or removed)),
                ),
            )

    def settle(self, version: int, run: str = "") -> None:
        """Bring the party to the version that the server has saved in a run.

        A staged version is committed, with an entry in the audit log, or dropped.
        Raises PartyError if the version is neither present nor staged by that run.
        """
        version = int(version)  # SQLite does not accept NumPy integers
        with self._member(WRITE) as db:
            present = self._about(db, "version, run")
            staged = db.execute(
                "SELECT kind, redrawn, centroids, sizes, removed FROM staged "
                "WHERE version = ? AND run = ?",
                (version, run),
            ).fetchone()
            if present != (version, run):
                if staged is None:
                    of_run = " of another run" if present[0] == version else ""
                    raise PartyError(
                        f"this party has version {present[0]} of model {self.model}, "
                        f"but the server has version {version}{of_run}"
                    )
                kind, redrawn, centroids, sizes, changed = staged
                db.execute(
                    "UPDATE about SET version = ?, run = ?, centroids = ?, sizes = ?",
                    (version, run, centroids, sizes),
                )
                if kind == "add":
                    _add(db, np.array(_tags(changed), f"S{TAG}"))
                else:
                    db.executemany(
                        "INSERT OR IGNORE INTO removed VALUES (?)",
                        ((tag,) for tag in _tags(changed)),
                    )
                db.execute(
                    "INSERT INTO log VALUES (?, ?, ?, ?, ?)",
                    (now(), kind, version, changed, redrawn),
                )
            # Without WHERE, SQLite writes to the disk even if the table is empty.
            db.execute("DELETE FROM staged WHERE true")

    def log(self) -> list[dict[str, Any]]:
        """Return the audit log, oldest entry first, with the tags of its rows."""
        log = self._log("time, kind, version, tags, redrawn")
        for entry in log:
            entry["tags"] = [tag.hex() for tag in _tags(entry["tags"])]
            entry["redrawn"] = bool(entry["redrawn"])
        return log

    def wipe(self) -> None:
        """Leave the model: overwrite all but the audit log; a second call does nothing.

        The key is also overwritten, so that nobody can compare the tags in the log with
        ids.
        """
        with self._open(WRITE) as db:
            if self._left(db):
                return
            db.execute(
                "UPDATE about SET version = version + 1, run = '', settings = '{}', "
                "tag_key = NULL, centroids = x'', sizes = x''"
            )
            db.execute(
                "INSERT INTO log VALUES (?, 'forget-client', ?, x'', 0)",
                (now(), self._version(db)),
            )
            for table in ("rows", "removed", "staged"):
                db.execute(f"DELETE FROM {table}")

    def remove_unfinished(self) -> None:
        """Remove the file if its training is unfinished (version 0)."""
        if not self.exists or self.version == 0:
            with self._errors():
                self._path.unlink(missing_ok=True)

    def _left(self, db: sqlite3.Connection) -> bool:
        return self._about(db, "tag_key") == (None,)

    @contextmanager
    def _member(self, begin: str = READ) -> Iterator[sqlite3.Connection]:
        """Open the file of a party that has not left the model."""
        with self._open(begin) as db:
            if self._left(db):
                raise PartyError(f"this party has left model {self.model}")
            yield db


def list_models(folder: Path) -> list[str]:
    """Return the sorted ids of models with a state, unfinished training included."""
    try:
        paths = [path for path in Path(folder).iterdir() if path.suffix == ".sqlite"]
        return sorted(p.stem for p in paths if is_model_id(p.stem) and p.stat().st_size)
    except FileNotFoundError:
        return []
    except OSError as error:
        logger.error("cannot read %s: %s", folder, error.strerror)
        raise ValueError(
            f"the folder of states cannot be read: {error.strerror}"
        ) from None


def _is_empty(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master").fetchone() is None


def now() -> str:
    """Return the time in UTC, for an audit log."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _hmacs(key: bytes, ids: Sequence[Any]) -> list[bytes]:
    """Return HMAC-SHA256(key, id), truncated, for each id."""
    keyed, tags = hmac.new(key, digestmod="sha256"), []
    for name in ids:
        tag = keyed.copy()  # faster than a new HMAC for each id
        tag.update(str(name).encode())
        tags.append(tag.digest()[:TAG])
    return tags


def _tags(packed: bytes) -> list[bytes]:
    return [packed[start : start + TAG] for start in range(0, len(packed), TAG)]


def _removed(db: sqlite3.Connection) -> set[bytes]:
    return {tag for (tag,) in db.execute("SELECT tag FROM removed")}


def _add(db: sqlite3.Connection, tags: Array) -> None:
    """Add tags, of type S16, to the table of rows, which keeps them sorted."""
    parts = dict(db.execute("SELECT byte, tags FROM rows"))
    order = np.sort(tags)
    first = order.view(np.uint8)[::TAG]
    bounds = np.searchsorted(first, np.arange(257))
    merged = {}
    for byte in np.unique(first).tolist():
        present = np.frombuffer(parts.get(byte, b""), tags.dtype)
        new = order[bounds[byte] : bounds[byte + 1]]
        merged[byte] = np.sort(np.concatenate([present, new])).tobytes()
    db.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", merged.items())


def _known(db: sqlite3.Connection, tags: Sequence[bytes]) -> Array:
    """Return which tags are in the table of rows, as booleans, of shape (r,)."""
    # NumPy ignores trailing zero bytes, which is harmless since all tags have the same
    # length.
    wanted = np.array(tags, f"S{TAG}")
    order = np.argsort(wanted)  # sorted searches stay in the processor's cache
    wanted = wanted[order]
    known = np.zeros(len(tags), bool)
    parts = [
        part
        for byte in np.unique(wanted.view(np.uint8)[::TAG]).tolist()
        for (part,) in db.execute("SELECT tags FROM rows WHERE byte = ?", (byte,))
    ]
    if not parts:
        return known
    stored = np.frombuffer(b"".join(parts), wanted.dtype)
    place = np.searchsorted(stored, wanted)
    known[order] = stored[np.minimum(place, len(stored) - 1)] == wanted
    return known
