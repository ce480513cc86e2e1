"""What the database of a SuperLink has left when one starts, or has ended."""

import shutil
import sqlite3
from contextlib import closing
from functools import partial

import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
)
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from vfl_flower.app.deployment.link_state import STARTED_AGAIN, forget_messages, take_up

# Of what Flower calls to make its tables.
pytestmark = pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")

SECRET = b"a key of a state, and a row in the clear"
ID_TO_FORGET = "patient-4711-of-the-clinic"
KEYS = [f"key of supernode {j}".encode() for j in range(3)]


def started(database):
    objects = ObjectStoreFactory(str(database))
    return LinkStateFactory(str(database), NoOpFederationManager(), objects).state()


def ended(state):
    for store in (state, state.object_store):
        store._engine.dispose()


def begin_run(state):
    config = {"mufc.ids": ID_TO_FORGET}
    run = state.create_run(
        "app", "1", "hash", config, "fed", None, "me", "flwr-serverapp"
    )
    (info,) = state.get_run_info(run_ids=[run])
    return run, info.primary_task_id


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a database with SuperNodes, and a run whose reply nobody has read."""
    path = tmp_path_factory.mktemp("made") / "superlink.sqlite"
    assert take_up(path, KEYS) == set()
    state = started(path)
    nodes = [state.create_node("me", "me", key, 30.0) for key in KEYS]
    state.delete_node("me", nodes[2])
    assert state.activate_node(nodes[0], 30.0)
    run, task = begin_run(state)
    state.add_task_log(task, "INFO: a line of its log")
    reply = RecordDict({"settings": ConfigRecord({"state_key": SECRET})})
    state.object_store.preregister(run, get_object_tree(reply))
    for name, value in get_all_nested_objects(reply).items():
        state.object_store.put(name, value.deflate())
    ended(state)
    assert SECRET in on_disk(path)
    return path, run


@pytest.fixture
def database(made, tmp_path):
    path, run = made
    for file in path.parent.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path / path.name, run


def on_disk(path):
    return b"".join(file.read_bytes() for file in path.parent.iterdir())


@pytest.mark.second
def test_of_a_superlink_that_has_ended_no_message_is_left(database):
    path, run = database
    forget_messages(path)
    assert SECRET not in on_disk(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600
    (info,) = (state := started(path)).get_run_info(run_ids=[run])
    ended(state)
    assert info.status.status == "pending"  # whoever follows it asks the next one


def test_what_flower_has_deleted_is_overwritten(database):
    """What was read is in no table, and its bytes are in the file."""
    path, _ = database
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA secure_delete = OFF")
        db.execute("CREATE TABLE messages (content BLOB)")
        read = b"a message that somebody has read"
        db.execute("INSERT INTO messages VALUES (?)", (read * 100,))
        db.execute("DROP TABLE messages")
    assert read in on_disk(path)
    forget_messages(path)
    assert read not in on_disk(path)


def test_supernodes_stay_registered_and_a_run_has_failed(database, caplog):
    path, run = database
    path.chmod(0o644)
    assert take_up(path, [KEYS[0], KEYS[2], b"of another one"]) == {KEYS[0]}
    assert "unknown tables" not in caplog.text  # all of Flower's are known
    assert path.stat().st_mode & 0o777 == 0o600
    assert SECRET not in on_disk(path)
    assert ID_TO_FORGET.encode() not in on_disk(path)
    state = started(path)
    (node,) = state.get_node_info()
    assert (node.public_key, node.status) == (KEYS[0], "online")
    assert state.create_node("me", "me", KEYS[2], 30.0)  # of one that was taken off
    (info,) = state.get_run_info(run_ids=[run])
    assert (info.status.status, info.status.sub_status) == ("finished", "failed")
    assert info.status.details == STARTED_AGAIN
    assert info.finished_at
    log, _ = state.get_task_log(info.primary_task_id, None)
    assert "a line of its log" in log
    again, _ = begin_run(state)
    ended(state)
    take_up(path, KEYS)
    state = started(path)
    assert not state.get_run_info(run_ids=[run])  # it had failed before
    assert state.get_run_info(run_ids=[again])
    ended(state)


def files_beside(path):
    return [file for file in path.parent.iterdir() if file != path]


def test_a_file_that_is_no_database_is_set_aside(tmp_path, caplog):
    path = tmp_path / "superlink.sqlite"
    path.write_bytes(SECRET * 100)
    assert take_up(path, KEYS) == set()
    assert path.stat().st_size == 0  # Flower makes its tables
    (aside,) = files_beside(path)
    assert aside.read_bytes() == SECRET * 100
    assert [file.stat().st_mode & 0o777 for file in (path, aside)] == [0o600] * 2
    assert f"it was renamed to {aside}" in caplog.text


@pytest.mark.parametrize(
    "change",
    ["ALTER TABLE task RENAME TO work", "ALTER TABLE node RENAME status TO state"],
)
def test_tables_of_another_shape_are_set_aside_unchanged(database, change, caplog):
    path, _ = database
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(change)
    assert take_up(path, KEYS) == set()
    (aside,) = files_beside(path)
    with closing(sqlite3.connect(aside)) as db:
        objects = db.execute("SELECT content FROM objects").fetchall()
        assert SECRET in b"".join(content for (content,) in objects)
        assert db.execute("SELECT count(*) FROM node").fetchone() == (3,)
    assert "is not a database of Flower (no such " in caplog.text


def test_a_table_that_is_not_known_is_unchanged(database, caplog):
    path, _ = database
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE accounts AS SELECT 'a user' AS name")
    assert take_up(path, KEYS) == {*KEYS[:2]}
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT name FROM accounts").fetchall() == [("a user",)]
    assert "unknown tables are unchanged: accounts" in caplog.text


def test_a_database_in_use_is_left_alone(database, monkeypatch):
    """It may be that of a SuperLink that runs."""
    path, _ = database
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, timeout=0))
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OSError, match="database is locked"):
            take_up(path, KEYS)
    assert {f.name: f.read_bytes() for f in path.parent.iterdir()} == before


def test_no_link_is_followed(tmp_path):
    (tmp_path / "superlink.sqlite").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic link"):
        take_up(tmp_path / "superlink.sqlite", KEYS)
