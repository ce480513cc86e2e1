"""The content of a SuperLink's database after a restart.

With this content, SuperNodes can continue. Runs cannot continue, since their ServerApps
stopped with the SuperLink. The messages, logs and run configs of earlier runs are not
needed.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from vfl_flower.files import make_private

log = logging.getLogger("vfl_flower")

_CLEARED = (
    *("message", "message_ins", "message_res", "task_message"),
    *("objects", "object_children", "run_objects", "objectstore_locks"),
    *("object_push_sessions", "object_push_session_roots"),
    *("object_push_session_pending", "series_context", "compacted_contexts"),
    *("task_event", "task_usage", "run_connector", "fab"),
)
"""Tables of messages and other traces of runs; no version of Flower has all of them."""

_COLUMNS = {
    "node": "public_key, status",
    "run": "run_id, primary_task_id, override_config",
    "task": "task_id, run_id, finished_at, sub_status, details, active_until, token",
    "task_logs": "task_id",
    "run_series": "series_id",
    "series_runs": "series_id, run_id",
}
"""Columns that the tables of SuperNodes and of run outcomes must have."""

_KEPT = {"alembic_version", "nonce_store", "automation", "federation_app"}
_KEPT |= {"connector", "connector_oauth_session"}
"""Further tables, without traces of runs."""

_BROKEN = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR)
"""Errors of SQLite for a file that is damaged, or lacks a table or a column."""

_UNFINISHED = """SELECT run.run_id FROM run JOIN task ON task.task_id = primary_task_id
    WHERE finished_at IS NULL"""

_FORGET_RUNS = (
    f"DELETE FROM run WHERE run_id NOT IN ({_UNFINISHED})",
    "DELETE FROM task WHERE run_id NOT IN (SELECT run_id FROM run)",
    "DELETE FROM task_logs WHERE task_id NOT IN (SELECT task_id FROM task)",
    "DELETE FROM series_runs WHERE run_id NOT IN (SELECT run_id FROM run)",
    "DELETE FROM run_series WHERE series_id NOT IN (SELECT series_id FROM series_runs)",
    "UPDATE run SET override_config = '{}'",
)

_FAIL_RUNS = """UPDATE task SET finished_at = ?, sub_status = 'failed', details = ?,
    active_until = NULL, token = NULL WHERE finished_at IS NULL"""

STARTED_AGAIN = (
    "the SuperLink was restarted: start the run with resume= and the name of its "
    "folder in output-dir"
)
"""The reason why an unfinished run has failed."""


def take_up(database: Path, keys: Collection[bytes]) -> set[bytes]:
    """Prepare a SuperLink's database for a new start.

    Keeps only the SuperNodes of `keys`, and unfinished runs, which are marked as
    failed. A missing database is created, readable only by the user. A database that is
    damaged or lacks one of Flower's tables or columns is renamed. Returns the
    registered keys among `keys`. Raises OSError if the file cannot be used.
    """
    make_private(database)
    database.chmod(0o600)
    try:
        return _take_up(database, keys)
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF not in _BROKEN:
            raise OSError(errno.EBUSY, str(error), str(database)) from None
        aside = f"{database}.{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        log.warning(
            "%s is not a database of Flower (%s): it was renamed to %s, which may "
            "contain messages; all parties are registered again",
            *(database, error, aside),
        )
        for end in ("-wal", "-shm", "-journal", ""):
            if (file := Path(f"{database}{end}")).exists():
                file.rename(f"{aside}{end}")
        make_private(database)
        return set()


def _take_up(database: Path, keys: Collection[bytes]) -> set[bytes]:
    with _changed(database) as db:
        if not _forget_messages(db):
            return set()
        for statement in _FORGET_RUNS:
            db.execute(statement)
        now = datetime.now(UTC).isoformat(sep=" ")
        db.execute(_FAIL_RUNS, (now, STARTED_AGAIN))
        query = "SELECT public_key FROM node WHERE status <> 'unregistered'"
        registered = {bytes(key) for (key,) in db.execute(query)} & set(keys)
        marks = ", ".join("?" * len(registered))
        others = f"DELETE FROM node WHERE public_key NOT IN ({marks})"
        db.execute(others, tuple(registered))
        return registered


def forget_messages(database: Path) -> None:
    """Remove the messages of all runs from the database of a stopped SuperLink.

    Flower removes only messages that were read, so messages of an interrupted run
    remain.
    """
    if not database.exists():
        return
    try:
        with _changed(database) as db:
            _forget_messages(db)
    except sqlite3.Error as error:
        log.warning("messages may remain in %s: %s", database, error)


def _forget_messages(db: sqlite3.Connection) -> bool:
    """Remove all but runs and SuperNodes; return whether there are tables."""
    names = "SELECT name FROM sqlite_master WHERE type = 'table'"
    tables = {name for (name,) in db.execute(names) if not name.startswith("sqlite_")}
    if not tables:
        return False
    for name, columns in _COLUMNS.items():
        db.execute(f"SELECT {columns} FROM {name} LIMIT 0")
    for name in tables.intersection(_CLEARED):
        db.execute(f"DELETE FROM {name}")
    if unknown := tables.difference(_CLEARED, _COLUMNS, _KEPT):
        log.warning("unknown tables are unchanged: %s", ", ".join(sorted(unknown)))
    return True


@contextmanager
def _changed(database: Path) -> Iterator[sqlite3.Connection]:
    """Change a database in one transaction, and overwrite removed data."""
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        db.execute("PRAGMA secure_delete = ON")
        db.execute("BEGIN EXCLUSIVE")
        yield db
        db.execute("COMMIT")
        # Flower's own deletions may have left data in the file.
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
