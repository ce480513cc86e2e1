"""What a party has answered, on its disk: no mask serves twice, and no count is lost.

``Context.state`` is saved when a message has been answered. Two messages that arrive
together are answered from one saved state, so it cannot tell that a mask was used; and
it is gone with the process. The journal of a party lies in its ``state-dir``, one
message at a time has it, and it is written before the reply leaves.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vfl_flower.files import make_private
from vfl_flower.protocol.frame import Frame
from vfl_flower.protocol.party import Party, PartyError

log = logging.getLogger("vfl_flower")

FILE = "journal.sqlite"
"""Name of the file in the ``state-dir``."""

PATIENCE = 600.0
"""Seconds that a message waits while another one of the same party is answered."""

KEPT = 100
"""Runs that the journal keeps."""

_TABLE = """CREATE TABLE IF NOT EXISTS runs (
    run TEXT PRIMARY KEY, session INTEGER, round INTEGER, digest BLOB, reply BLOB,
    shared BLOB)"""
_READ = "SELECT session, round, digest, reply, shared FROM runs WHERE run = ?"
_WRITE = """INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (run) DO UPDATE SET
    session = excluded.session, round = excluded.round, digest = excluded.digest,
    reply = excluded.reply, shared = excluded.shared"""
_FORGET = "DELETE FROM runs WHERE rowid <= (SELECT max(rowid) FROM runs) - ?"


@dataclass
class Journal:
    """The line of one run in the journal of a party.

    Parameters
    ----------
    session : int
        Number of the last session; a run may begin again with a new one.
    round : int
        The last round that was answered.
    digest, reply : bytes
        Digests of its request and of its reply.
    shared : bytes
        Rows that left the party in the run, a bit each.
    """

    session: int = -1
    round: int = 0
    digest: bytes = b""
    reply: bytes = b""
    shared: bytes = b""

    def greet(self, session: int) -> None:
        """Begin a session; the rows that were shared in an earlier one still count."""
        if session != self.session:
            self.session, self.round = session, 0
            self.digest = self.reply = b""

    def enter(self, frame: Frame, party: Party) -> None:
        """Check that a message is the next one, or the last one again.

        Raises
        ------
        PartyError
            It is neither.
        """
        if frame.session != self.session:
            raise PartyError("the journal of this party knows of another session")
        again = frame.round == self.round and frame.digest == self.digest
        if frame.round <= self.round and not again:
            raise PartyError(f"round {frame.round} is over, says this party's journal")
        if self.shared:
            packed = np.frombuffer(self.shared, dtype=np.uint8)
            shared = np.unpackbits(packed, count=party.n_rows).astype(bool)
            party.shared = shared if party.shared is None else party.shared | shared

    def leave(self, frame: Frame, party: Party, reply: bytes) -> None:
        """Note a round and its reply.

        Raises
        ------
        PartyError
            The round had another reply before.
        """
        if frame.round == self.round and self.reply != reply:
            raise PartyError(f"round {frame.round} has another reply than before")
        self.round, self.digest, self.reply = frame.round, frame.digest, reply
        if party.shared is not None:
            self.shared = np.packbits(party.shared).tobytes()


@contextmanager
def journal_of(folder: Path, run: int) -> Iterator[Journal]:
    """Give one message the line of its run, and write the line at the end.

    Nothing is written where the message is refused.

    Parameters
    ----------
    folder : Path
        ``state-dir`` of the party.
    run : int
        Flower's number of the run.

    Raises
    ------
    PartyError
        The journal cannot be read or written, or another message has it for too long.
    """
    path = folder / FILE
    with _named_errors(path):
        make_private(path)
        db = sqlite3.connect(path, PATIENCE, isolation_level=None)
    with closing(db):
        with _named_errors(path):
            db.execute("BEGIN IMMEDIATE")
            db.execute(_TABLE)
            known = db.execute(_READ, (str(run),)).fetchone()
        line = Journal(*(known or ()))
        yield line
        with _named_errors(path):
            db.execute(_WRITE, (str(run), *vars(line).values()))
            db.execute(_FORGET, (KEPT,))
            db.execute("COMMIT")


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Say that it is the journal that failed, and not the step inside."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        log.error("the journal %s: %s", path, error)
        reason = "the journal in this party's state-dir cannot be written"
        raise PartyError(reason) from None
