"""The progress of a run on the server's disk, from which a killed run can resume.

A protocol depends only on the draws of the server and on the replies of the parties.
When a run resumes, its protocol is executed again from the start: the checkpoint
repeats the draws, and replays the stored round trips. Strategies need no code for this.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from vfl_flower.app.flwr_internals.serialisation import (
    records_from_bytes,
    records_to_bytes,
)
from vfl_flower.files import make_private
from vfl_flower.protocol.errors import FederationError
from vfl_flower.version import __version__

log = logging.getLogger("vfl_flower")

FILE = "checkpoint.sqlite"  # name of the file in the folder of a run

_TABLES = (
    "CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value BLOB)",
    """CREATE TABLE IF NOT EXISTS entries (place INTEGER PRIMARY KEY, action TEXT,
    digest BLOB, seconds REAL, nodes TEXT)""",
    """CREATE TABLE IF NOT EXISTS replies (
    place INTEGER, node INTEGER, content BLOB, PRIMARY KEY (place, node))""",
)


class Checkpoint:
    """The draws of the server, and the round trips of a run, in order.

    Without a path, nothing is stored, and the operating system supplies the draws.
    `settings` are JSON values, and must be the same when the run resumes; `held` is the
    number of stored round trips. Raises FederationError if the file is unusable, is in
    use by another process, or belongs to a run with different settings or a different
    version of the package.
    """

    def __init__(
        self, path: Path | None = None, settings: Mapping[str, Any] | None = None
    ) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._entropy, self._draws, self._place, self.held = b"", 0, 0, 0
        if path is None:
            return
        with self._errors():
            make_private(path)
            self._db = sqlite3.connect(path, timeout=1.0)
            # No other process can continue the run until this process ends.
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA synchronous = EXTRA")
            self._db.execute("BEGIN EXCLUSIVE")
            for table in _TABLES:
                self._db.execute(table)
            about = {"version": __version__, **(settings or {})}
            text = json.dumps(about, sort_keys=True)
            rows = [("about", text), ("entropy", secrets.token_bytes(32))]
            self._db.executemany("INSERT OR IGNORE INTO about VALUES (?, ?)", rows)
            self._db.commit()
            known = dict(self._db.execute("SELECT name, value FROM about"))
            (held,) = self._db.execute("SELECT count(*) FROM entries").fetchone()
        self._entropy, self.held = known["entropy"], held
        try:
            _check_same(json.loads(known["about"]), json.loads(text))
        except FederationError:
            self.end()
            raise

    def token(self, size: int) -> bytes:
        """Return the run's next `size` random bytes, the same after a resume."""
        if self._db is None:
            return secrets.token_bytes(size)
        self._draws += 1
        return hashlib.shake_256(self._entropy + b"%d" % self._draws).digest(size)

    def number(self) -> int:
        """Return the next random number of 63 bits; see :meth:`token`."""
        if self._db is None:
            return secrets.randbits(63)
        return int.from_bytes(self.token(8)) >> 1

    @functools.cached_property
    def seed(self) -> int:
        """Default seed, with which all strategies hold out the same rows."""
        return self.number()

    @property
    def ahead(self) -> int:
        """Number of stored round trips that the protocol has not reached yet."""
        return self.held - self._place

    def nodes(self) -> list[int]:
        """Return the node ids of the next stored round trip, or [] if there is none."""
        if self._db is None or not self.ahead:
            return []
        (nodes,) = self._entry("nodes")
        return list(json.loads(nodes))

    def replay(
        self, action: str, digest: bytes
    ) -> tuple[float, Iterator[RecordDict]] | None:
        """Return the seconds and replies of the next stored round trip, or None.

        Raises FederationError if the action or the digest differs.
        """
        if self._db is None or not self.ahead:
            return None
        asked, known, seconds = self._entry("action, digest, seconds")
        if known != digest:  # the digest covers the action
            raise FederationError(
                f"the run cannot resume: round trip {self._place + 1} requested "
                f"{asked!r}, but the new request, for {action!r}, differs: a setting, "
                "a library version or a file of the server has changed"
            )
        place, self._place = self._place, self._place + 1
        return seconds, self._replies(place)

    def _entry(self, columns: str) -> Any:
        assert self._db is not None
        query = f"SELECT {columns} FROM entries WHERE place = ?"
        with self._errors():
            return self._db.execute(query, (self._place,)).fetchone()

    def _replies(self, place: int) -> Iterator[RecordDict]:
        assert self._db is not None
        query = "SELECT content FROM replies WHERE place = ? ORDER BY node"
        with self._errors():
            for (content,) in self._db.execute(query, (place,)):
                yield records_from_bytes(content)

    def add(self, place: int, content: RecordDict) -> None:
        """Write the reply of the node at this position in the current round trip."""
        if self._db is None:
            return
        packed = records_to_bytes(content)
        insert = "INSERT INTO replies VALUES (?, ?, ?)"
        with self._errors():
            self._db.execute(insert, (self._place, place, packed))

    def commit(
        self, action: str, digest: bytes, seconds: float, nodes: Sequence[int]
    ) -> None:
        """Store the round trip on disk, after all replies have been added."""
        if self._db is None:
            return
        entry = self._place, action, digest, seconds, json.dumps(list(nodes))
        insert = "INSERT INTO entries VALUES (?, ?, ?, ?, ?)"
        with self._errors():
            self._db.execute(insert, entry)
            self._db.commit()
        self._place += 1
        self.held += 1

    def drop(self) -> None:
        """Discard the replies of an incomplete round trip."""
        if self._db is not None:
            self._db.rollback()

    def end(self) -> None:
        """Close the file and leave it unchanged: another process can resume the run."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def remove(self) -> None:
        """Remove the file: the run is complete, or has done nothing yet."""
        self.end()
        if self._path is not None:
            with self._errors():
                self._path.unlink(missing_ok=True)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn a file error into a one-sentence FederationError."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            self.end()
            log.error("the checkpoint %s: %s", self._path, error)
            busy = "locked" in str(error)
            reason = "another process is continuing this run" if busy else str(error)
            what = "the checkpoint of the run cannot be used"
            raise FederationError(f"{what}: {reason}") from None


def _check_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise ``FederationError`` if a setting of the run has changed."""
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            raise FederationError(
                f"to resume, the run must have the same {name} as before, "
                f"{before.get(name)!r}, got {now.get(name)!r}"
            )


def digest_of(action: str, requests: Sequence[RecordDict]) -> bytes:
    """Return the SHA-256 of the requests to the nodes, in node order."""
    sha = hashlib.sha256(action.encode())
    for request in requests:
        frame: Any = request["frame"]
        sha.update(frame["digest"])
    return sha.digest()
