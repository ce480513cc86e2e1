"""A party's journal on disk, so that no mask is reused and no count is lost.

Two messages that arrive together are answered from one saved ``Context.state``, which
cannot show that a mask was used, and which is lost with the process. Only one message
at a time can lock the journal, which is written before the reply leaves. The journal
also stores the session state, encrypted under a key that only the server stores.
"""

from __future__ import annotations

import logging
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vfl_flower.files import make_private
from vfl_flower.party import row_sets
from vfl_flower.party.consent import Consent, Releases, pack_rows, unpack_rows
from vfl_flower.party.memory import Memory
from vfl_flower.party.party import Party, PartyError
from vfl_flower.party.vault import Vault
from vfl_flower.protocol.frame import Frame
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

FILE = "journal.sqlite"  # name of the file in the ``state-dir``

PATIENCE = 600.0  # seconds that a message waits for an earlier message to finish
MOST_SESSIONS = 10  # of a run, which may restart without a party, or with a baseline
KEPT = 100  # runs that the journal keeps
MOST_STATES = 20  # sessions whose state a party keeps, to resume them
STATE_SECONDS = 86400.0  # after which a party discards a session: a day
SURE_STATES, MOST_BYTES = 5, 2**30
"""The latest `SURE_STATES` sessions keep their states, whatever their size. Earlier
sessions keep their states as long as all states use at most `MOST_BYTES` in total."""

_COUNTS = "CREATE TABLE IF NOT EXISTS counts (name TEXT PRIMARY KEY, value INTEGER)"
_TABLES = (
    _COUNTS,
    """CREATE TABLE IF NOT EXISTS sessions (run TEXT PRIMARY KEY, session INTEGER,
    round INTEGER, digest BLOB, reply BLOB, messages INTEGER, bytes INTEGER,
    sessions INTEGER)""",
    """CREATE TABLE IF NOT EXISTS shared (
    run TEXT, kind TEXT, rows BLOB, PRIMARY KEY (run, kind))""",
    "CREATE TABLE IF NOT EXISTS released (kind TEXT PRIMARY KEY, tags BLOB)",
    "CREATE TABLE IF NOT EXISTS peers (name TEXT PRIMARY KEY, key TEXT)",
    "CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value BLOB)",
    # A party's session state, encrypted. An array is written only once, not with
    # each message.
    """CREATE TABLE IF NOT EXISTS locked_states (run TEXT PRIMARY KEY, time REAL,
    public_key BLOB, content BLOB)""",
    """CREATE TABLE IF NOT EXISTS locked_arrays (
    run TEXT, label BLOB, value BLOB, PRIMARY KEY (run, label))""",
)
_READ = """SELECT session, round, digest, reply, messages, bytes, sessions
    FROM sessions WHERE run = ?"""
_WRITE = """INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (run) DO UPDATE SET session = excluded.session,
    round = excluded.round, digest = excluded.digest, reply = excluded.reply,
    messages = excluded.messages, bytes = excluded.bytes,
    sessions = excluded.sessions"""
_FORGET = (
    "DELETE FROM sessions WHERE rowid <= (SELECT max(rowid) FROM sessions) - :kept",
    "DELETE FROM shared WHERE run NOT IN (SELECT run FROM sessions)",
    "DELETE FROM locked_states WHERE run NOT IN (SELECT run FROM sessions)",
    """DELETE FROM locked_states WHERE run IN (
    WITH sizes AS (
        SELECT run, time, length(content) + (
            SELECT total(length(value)) FROM locked_arrays AS arrays
            WHERE arrays.run = states.run) AS bytes
        FROM locked_states AS states),
    latest AS (
        SELECT run, row_number() OVER back AS place, sum(bytes) OVER back AS bytes
        FROM sizes WINDOW back AS (ORDER BY time DESC))
    SELECT run FROM latest
    WHERE place > :most OR place > :sure AND bytes > :bytes)""",
    "DELETE FROM locked_arrays WHERE run NOT IN (SELECT run FROM locked_states)",
)


@shapes_only
@dataclass
class Journal:
    """The entry of one run in a party's journal."""

    session: int = -1  # the last session; a run may start several in succession
    round: int = 0  # the last round that was answered
    digest: bytes = b""  # of the request of that round
    reply: bytes = b""  # digest of the reply to that request
    messages: int = 0  # answered in the run
    n_bytes: int = 0  # of the replies
    sessions: int = 0
    shared: dict[str, bytes] = field(default_factory=dict)
    """Rows that left the party in the run, by kind, one bit for each row."""
    released: dict[str, Array] = field(default_factory=dict)
    """Tags of all rows that have left the party, by kind, including this message."""
    trusted: dict[str, str] = field(default_factory=dict)
    """Keys, by name, of all peers that were trusted on first use in any run."""
    _run: str = field(default="", compare=False)
    _path: Path = field(default=Path(), compare=False)
    _db: sqlite3.Connection | None = field(default=None, compare=False)

    def _execute(self, query: str, *values: Any) -> sqlite3.Cursor:
        assert self._db is not None
        return self._db.execute(query, values)

    def _value(self, query: str, *values: Any) -> Any:
        assert self._db is not None
        return row_sets.first_value(self._db, query, *values)

    def _load(self) -> None:
        """Read the entry of the run, if it exists."""
        if known := self._execute(_READ, self._run).fetchone():
            self.session, self.round, self.digest, self.reply = known[:4]
            self.messages, self.n_bytes, self.sessions = known[4:]
        query = "SELECT kind, rows FROM shared WHERE run = ?"
        self.shared = dict(self._execute(query, self._run))

    def check_refusals(self, consent: Consent | None) -> None:
        """Raise PartyError after too many refusals: each can reveal one bit of data."""
        most = 0 if consent is None else consent.max_refusals
        refusals = self._value("SELECT value FROM counts WHERE name = 'refusals'") or 0
        if refusals >= most > 0:
            raise PartyError(
                f"this party has refused {most} messages and will answer no message "
                "until its operator raises max-refusals in its consent.toml"
            )

    def greet(self, session: int, memory: Memory, goes_on: bool = False) -> bytes:
        """Start or resume a session; its counts remain valid.

        If a restarted server resumes a session in a new run, the session moves to that
        run with all its counts: the earlier run can no longer use it. A session in
        which no message has been answered yet gets new keys, unless the server states,
        by `goes_on`, that it has the key to the state. Returns the party's public key
        if the session state can be opened only with the key in the next message, and
        otherwise b"".

        Raises PartyError if the party has discarded the state of the session, or if the
        run has started too many sessions: in each new session, the server can again
        request the steps that are answered only once per session.
        """
        if session != self.session and not self._adopt(session):
            if self.sessions >= MOST_SESSIONS:
                raise PartyError(
                    f"this run cannot start more than {MOST_SESSIONS} sessions"
                )
            self.session, self.round, self.sessions = session, 0, self.sessions + 1
            self.digest = self.reply = b""
            for table in ("locked_states", "locked_arrays"):  # of an abandoned session
                self._execute(f"DELETE FROM {table} WHERE run = ?", self._run)
            memory.forget()
            return b""
        if memory.place[0] == session:
            self.recall(memory)
            return b""
        memory.forget()
        if not (goes_on or self.round):
            return b""
        return bytes(self._state("public_key"))

    def _adopt(self, session: int) -> bool:
        """Move a session from an earlier run to this run; return whether one exists."""
        query = "SELECT run FROM sessions WHERE session = ?"
        if (known := self._value(query, session)) is None:
            return False
        if self.sessions:
            raise PartyError("a run that has a session cannot resume another run")
        for table in ("sessions", "shared", "locked_states", "locked_arrays"):
            self._execute(f"UPDATE {table} SET run = ? WHERE run = ?", self._run, known)
        self._load()
        return True

    def recall(self, memory: Memory, state_key: bytes | None = None) -> None:
        """Load a party's session state, if its memory is missing or out of date.

        The journal takes precedence: it was written before the reply left. Raises
        PartyError if the party has discarded the session, or if the `state_key` does
        not open its state.
        """
        if memory.place == (self.session, self.round):
            return
        key = memory.state_key if memory.place[0] == self.session else state_key
        content = self._state("content")
        if key is None:
            raise PartyError(
                "this party was restarted, and the message lacks the key to the "
                "session state"
            )
        vault = Vault(key, self.session)

        def array(digest: bytes) -> bytes:
            label = vault.label(digest)
            query = "SELECT value FROM locked_arrays WHERE run = ? AND label = ?"
            return vault.open(label, self._value(query, self._run, label))

        memory.restore(vault.open(b"state", content), array, key)

    def _state(self, column: str) -> bytes:
        """Return a column of the session's state; raise PartyError if there is none."""
        query = f"SELECT {column} FROM locked_states WHERE run = ?"
        if (content := self._value(query, self._run)) is None:
            raise PartyError(
                "this party has discarded the session, as it does after a day or after "
                f"{MOST_STATES} newer sessions ({SURE_STATES} if these are large): "
                "start a new run"
            )
        return bytes(content)

    def keep(self, memory: Memory) -> None:
        """Store the session state with the run's entry, and delete outdated arrays."""
        content, arrays = memory.pack()
        vault = Vault(memory.state_key, self.session)
        labels = {vault.label(digest): digest for digest in arrays}
        known = "SELECT label FROM locked_arrays WHERE run = ?"
        stored = {bytes(label) for (label,) in self._execute(known, self._run)}
        now = time.time(), memory.public_key, vault.lock(b"state", content)
        self._execute("REPLACE INTO locked_states VALUES (?, ?, ?, ?)", self._run, *now)
        delete = "DELETE FROM locked_arrays WHERE run = ? AND label = ?"
        for label in stored - labels.keys():
            self._execute(delete, self._run, label)
        insert = "INSERT INTO locked_arrays VALUES (?, ?, ?)"
        for label in labels.keys() - stored:
            locked = vault.lock(label, arrays[labels[label]])
            self._execute(insert, self._run, label, locked)

    def enter(self, party: Party) -> None:
        """Load the record of the rows that have left the party."""
        for kind, packed in self.shared.items():
            before = party.shared.get(kind, np.zeros(party.n_rows, dtype=bool))
            party.shared[kind] = before | unpack_rows(packed, party.n_rows)
        if party.consent is not None:
            life = self._ever, partial(party.tags, key=self._key)
            party.releases = Releases(party.consent, party.shared, party.n_rows, *life)
            if party.consent.peers is not None:  # no run in one process
                assert self._db is not None
                party.row_sets = row_sets.RowSets(
                    self._db, self._path, party, self._key
                )

    def leave(self, frame: Frame, party: Party, reply: bytes, size: int) -> None:
        """Record a round, the digest and size of its reply, and the released rows.

        Raises PartyError if the round had a different reply before, or if a limit of
        the consent is exceeded.
        """
        if frame.round == self.round:
            if self.reply != reply:
                raise PartyError(f"the reply to round {frame.round} has changed")
            return
        self.round, self.digest, self.reply = frame.round, frame.digest, reply
        self.messages, self.n_bytes = self.messages + 1, self.n_bytes + size
        if (consent := party.consent) is not None:
            for what, count, most in (
                ("messages", self.messages, consent.max_round_trips),
                ("bytes", self.n_bytes, consent.max_bytes),
            ):
                if most is not None and count > most:
                    raise PartyError(
                        f"this party's consent allows at most {most} {what} in a run, "
                        f"but with this message, the total is {count}"
                    )
        self.shared = {kind: pack_rows(rows) for kind, rows in party.shared.items()}
        if party.releases is not None:
            self.released = party.releases.added

    @property
    def _key(self) -> bytes:
        """The key for the tags of this party's rows."""
        insert = "INSERT OR IGNORE INTO secrets VALUES ('tags', ?)"
        self._execute(insert, secrets.token_bytes(32))
        return bytes(self._value("SELECT value FROM secrets WHERE name = 'tags'"))

    def _ever(self, kind: str) -> Array:
        """Return the sorted tags of all rows that have left as a given kind."""
        tags = self._value("SELECT tags FROM released WHERE kind = ?", kind)
        return np.frombuffer(tags or b"", dtype="<u8")


@contextmanager
def journal_of(folder: Path, run: int) -> Iterator[Journal]:
    """Yield the journal entry of a message's run; write it if the message is answered.

    Raises PartyError if the journal is unusable, or if an earlier message locks the
    journal for too long.
    """
    path, name = folder / FILE, str(run)
    with _named_errors(path):
        make_private(path)
        db = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
    with closing(db):
        with _named_errors(path):
            db.execute("PRAGMA secure_delete = ON")  # overwrites deleted keys
            db.execute("BEGIN IMMEDIATE")
            for table in (*_TABLES, *row_sets.TABLES):
                db.execute(table)
            n_sets = row_sets.count_sets(db)
            old = (time.time() - STATE_SECONDS,)
            db.execute("DELETE FROM locked_states WHERE time < ?", old)
            line = Journal(_run=name, _path=path, _db=db)
            line._load()
            line.trusted = dict(db.execute("SELECT name, key FROM peers"))
        yield line
        with _named_errors(path):
            numbers = line.session, line.round, line.digest, line.reply
            counts = line.messages, line.n_bytes, line.sessions
            db.execute(_WRITE, (name, *numbers, *counts))
            rows = [(name, kind, packed) for kind, packed in line.shared.items()]
            db.executemany("REPLACE INTO shared VALUES (?, ?, ?)", rows)
            tags = [(kind, known.tobytes()) for kind, known in line.released.items()]
            db.executemany("REPLACE INTO released VALUES (?, ?)", tags)
            peers = line.trusted.items()
            db.executemany("INSERT OR IGNORE INTO peers VALUES (?, ?)", peers)
            bounds = {"kept": KEPT, "most": MOST_STATES}
            bounds |= {"sure": SURE_STATES, "bytes": MOST_BYTES}
            for forget in _FORGET:
                db.execute(forget, bounds)
            added = row_sets.count_sets(db) > n_sets
            db.execute("COMMIT")
            if added:  # after COMMIT: an anchor ahead of the journal stops the party
                row_sets.write_anchor(path, row_sets.count_sets(db))


def check_refusals(folder: Path, consent: Consent) -> None:
    """Run :meth:`Journal.check_refusals` before the party's data are loaded."""
    path = folder / FILE
    if path.exists():
        with _counts(path) as db:
            Journal(_run="", _path=path, _db=db).check_refusals(consent)


def note_refusal(folder: Path) -> None:
    """Count a message that the party has refused; raise PartyError if this fails."""
    count = """INSERT INTO counts VALUES ('refusals', 1)
        ON CONFLICT (name) DO UPDATE SET value = value + 1"""
    with _counts(folder / FILE) as db:
        db.execute(count)


@contextmanager
def _counts(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the counts of a journal; write the changes made in the ``with`` block."""
    with _named_errors(path):
        make_private(path)
        with closing(sqlite3.connect(path, timeout=PATIENCE)) as db, db:
            db.execute(_COUNTS)
            yield db


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Turn a failure of the journal into a PartyError that names the journal."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        log.error("the journal %s: %s", path, error)
        reason = "the journal in this party's state-dir cannot be written"
        raise PartyError(reason) from None
