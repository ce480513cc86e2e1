"""State that can forget: what was written, nothing of what is gone, at each kill.

Run as a script, this file kills processes at their writes and prints what it found:
pytest's own process has threads, and should not fork.
"""

import functools
import hmac
import json
import logging
import os
import re
import shutil
import signal
import sqlite3
import stat
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from forgetting import found_by

import vfl_flower
from vfl_flower import unlearning
from vfl_flower.clients.base import PartyError
from vfl_flower.unlearning import ClientState, ServerState, list_models

MODEL = "0123456789abcdef"
IDS = [f"patient-{i:03d}" for i in range(40)]
SETTINGS = {"gamma": 0.1 + 0.2, "box": [[-1.0, 0.0], [1.0, 9.0]], "secret": "s3ttings"}
OLD_BINS = np.array([[0x5EC4E7, 0x0DDBA11], [3, 5], [0xFEED, 2]])
NEW_BINS = np.array([[0xFEED, 2], [3, 5]])
OLD_CENTERS = np.array([[1 / 3, 1 / 7], [2 / 3, 1 / 9]])
NEW_CENTERS = np.array([[0.3, 0.1], [0.6, 0.2]])


def trained(folder, ids=IDS):
    """Return a client at version 1: clusters of the first three rows."""
    client = ClientState.create(folder, MODEL, ids, SETTINGS)
    tags = client.tag(ids)
    sizes = np.array([len(ids) - 30, 20, 10])
    client.stage(1, tags[:3], sizes, kind="train", redrawn=True, run="a")
    client.settle(1, "a")
    return client


def saved(folder):
    """Return a server at version 1."""
    server = ServerState.create(folder, MODEL, SETTINGS, ["north", "south"])
    server.save(1, *OLD, ["north", "south"], "train", run="a")
    return server


OLD = (OLD_BINS, np.array([30, 10, 2**40]), OLD_CENTERS)
NEW = (NEW_BINS, np.array([2**40, 9]), NEW_CENTERS)


def bytes_of(folder):
    """Return all that a folder holds, names of files too."""
    files = sorted(Path(folder).rglob("*"))
    assert files
    return b"".join(f.name.encode() + f.read_bytes() for f in files if f.is_file())


def view(state):
    """Return all that a state answers, but times and the key."""
    if not state.exists:
        return None
    log = [{**entry, "time": ""} for entry in state.log()]
    if isinstance(state, ServerState):
        q = state.load()
        arrays = [a.tolist() for a in (q.bins, q.counts, q.centers)]
        return [q.version, q.run, arrays, q.clients, q.settings, log]
    if state.left:
        return [state.version, "left", log]
    names = dict(zip(state.tag(IDS), IDS, strict=True))
    clusters = [
        found and [found.version, [names[t] for t in found.centroids], [*found.sizes]]
        for found in (state.current(), state.staged("a"), state.staged("b"))
    ]
    for entry in log:
        entry["tags"] = [names[bytes.fromhex(tag)] for tag in entry["tags"]]
    kept = state.keep(list(names)).tolist(), state.keep(list(names), run="b").tolist()
    return [state.version, str(clusters), kept, log, state.settings]


def refusal(call, *args, error=PartyError, folder=None, **kwargs):
    """Return the sentence of an error, after checks that hold for each of them."""
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    text = str(caught.value)
    assert type(caught.value) is error
    assert "\n" not in text
    assert "/" not in text
    assert "patient" not in text
    assert caught.value.__cause__ is None
    return text


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "state" / "bank"


@pytest.fixture
def client(folder):
    return trained(folder)


@pytest.fixture
def server(tmp_path):
    return saved(tmp_path / "server")


# --- A client from training to the end


def test_a_client_trains_forgets_and_leaves(folder):
    """The life of one client, each step read through a new object."""
    client = ClientState.create(folder, MODEL, IDS, SETTINGS)
    assert client.exists
    assert (client.version, client.current(), client.staged()) == (0, None, None)
    assert client.settings == SETTINGS
    tags = client.tag(IDS)
    client.settle(0)

    drawn = [tags[7], tags[2], tags[5]]
    client.stage(1, drawn, np.array([20, 15, 5]), kind="train", redrawn=True)
    client = ClientState(folder, MODEL)
    assert client.current() is None
    assert client.staged().centroids == drawn
    assert client.log() == []
    client.settle(1)
    client.settle(1)
    now = ClientState(folder, MODEL).current()
    assert (now.version, now.centroids, now.sizes.tolist()) == (1, drawn, [20, 15, 5])
    assert now.sizes.dtype == np.int64
    assert client.staged() is None

    gone = [tags[2], tags[9]]
    client.stage(
        2, [tags[7], tags[1]], np.array([30, 8]), gone, kind="unlearn", redrawn=True
    )
    assert client.removed() == set()
    assert client.keep(tags).all()
    assert np.flatnonzero(~client.keep(tags, run="")).tolist() == [2, 9]
    client.settle(2)
    assert client.removed() == set(gone)
    assert np.flatnonzero(~client.keep(tags)).tolist() == [2, 9]
    assert client.known(tags).all()
    assert client.current().centroids == [tags[7], tags[1]]

    began = datetime.now(UTC).replace(microsecond=0)
    client.wipe()
    log = client.log()
    assert [(e["kind"], e["version"], e["redrawn"]) for e in log] == [
        ("train", 1, True),
        ("unlearn", 2, True),
        ("forget-client", 3, False),
    ]
    assert [e["tags"] for e in log] == [[], [t.hex() for t in gone], []]
    assert began <= datetime.fromisoformat(log[2]["time"]) <= datetime.now(UTC)
    before = bytes_of(folder)
    client.wipe()
    assert bytes_of(folder) == before
    assert (client.left, client.version) == (True, 3)
    left = f"this party has left model {MODEL}"
    for call in (client.current, client.staged, client.removed):
        assert refusal(call) == left
    for call in (client.tag, client.known, client.keep):
        assert refusal(call, []) == left
    assert refusal(client.settle, 3) == left
    assert refusal(lambda: client.settings) == left


def test_all_rows_of_a_client_can_be_removed(client):
    tags = client.tag(IDS)
    client.stage(2, [], np.array([]), tags, kind="unlearn", redrawn=False)
    client.settle(2)
    assert client.removed() == set(tags)
    assert not client.keep(tags).any()
    assert client.current().centroids == []
    assert client.current().sizes.shape == (0,)


def test_a_mean_without_rows_has_no_size(client):
    """Complete training drops it, and still keeps each drawn row."""
    tags = client.tag(IDS)
    client.stage(2, tags[:3], np.array([39, 1]), kind="unlearn", redrawn=False)
    assert client.staged().sizes.tolist() == [39, 1]


def test_numbers_of_numpy_are_numbers(client, server):
    tags, two = client.tag(IDS[:3]), np.int64(2)
    client.stage(two, tags, [20, 10, 10], kind="unlearn", redrawn=np.bool_(True))
    client.settle(two)
    server.save(two, *NEW, ["north"], "unlearn")
    assert client.version == server.version == 2
    assert client.log()[-1]["redrawn"] is True


def test_settling_commits_or_drops(client):
    """The table of the two phases: where the server is, and what the client does."""
    tags = client.tag(IDS)

    def stage(run, row):
        sizes = np.array([10, 19, 10])
        client.stage(
            2, tags[:3], sizes, [tags[row]], kind="unlearn", redrawn=False, run=run
        )

    stage("b", 10)
    client.settle(1, "a")  # the server has not saved: drop
    assert client.staged("b") is None
    assert client.removed() == set()

    stage("b", 10)
    stage("b", 11)  # again: replaces
    stage("late", 12)  # of a run that the server has given up
    client.settle(2, "b")
    assert client.removed() == {tags[11]}
    assert client.staged("late") is None
    assert client.log()[-1]["tags"] == [tags[11].hex()]

    before = view(client)
    keeps = f"this party keeps version 2 of model {MODEL}, the server version "
    assert refusal(client.settle, 1, "a") == keeps + "1"
    assert refusal(client.settle, 4, "b") == keeps + "4"
    assert refusal(client.settle, 2, "a") == keeps + "2 of another run"
    client.stage(3, tags[:3], np.array([10, 19, 10]), kind="train", redrawn=False)
    assert refusal(client.settle, 3, "c") == keeps + "3"
    client.settle(2, "b")
    assert view(client) == before


def test_stage_refuses_what_breaks_the_state(client):
    tags = client.tag(IDS)
    sizes = np.array([10, 20, 10])
    before = view(client)

    def refused(version=2, drawn=tags[:3], sizes=sizes, removed=()):
        return refusal(
            client.stage, version, drawn, sizes, removed, kind="unlearn", redrawn=False
        )

    assert refused(version=3) == (
        f"this party has version 1 of model {MODEL}, the next one must be 2, got 3"
    )
    assert "rows of the training of model" in refused(removed=[tags[4], bytes(16)])
    assert "1 are not" in refused(removed=[tags[4], bytes(16)])
    remains = "each centroid must be a row that remains"
    assert refused(drawn=[tags[0], bytes(16)]) == remains
    assert refused(removed=[tags[0]], sizes=sizes - [1, 0, 0]) == remains
    assert "the 39 rows that remain, got 3 sizes of sum 40" in refused(
        removed=[tags[5], tags[5]]
    )
    assert "sizes of 2 clusters" in refused(drawn=tags[:2])
    assert "must be at least 1" in refused(sizes=np.array([40, 0, 0]))
    assert view(client) == before


# --- Tags


def test_tags_are_hmacs_under_the_key_of_the_file(folder, client):
    with sqlite3.connect(client._path) as db:
        (key,) = db.execute("SELECT tag_key FROM about").fetchone()
    db.close()
    assert len(key) == 32
    ids = ["", "7", "ä" * 100, *IDS]
    assert client.tag(ids) == [
        hmac.digest(key, name.encode(), "sha256")[:16] for name in ids
    ]
    assert client.tag([7, np.int64(7)]) == client.tag(["7"]) * 2
    assert client.tag(IDS) == ClientState(folder, MODEL).tag(IDS)
    assert not set(client.tag(IDS)) & set(trained(folder / "other").tag(IDS))


def test_known_tags_are_those_of_training():
    """Against a Python set, with tags that end in zeros and of bytes without rows."""
    rng = np.random.default_rng(0)
    tags = [rng.bytes(2) + bytes(13) + rng.bytes(1) for _ in range(300)]
    tags += [tags[0][:14] + bytes(2), bytes(16), b"\xff" * 16]
    for stored in (tags[::2], tags[-2:], []):
        db = sqlite3.connect(":memory:")
        db.execute("CREATE TABLE rows (byte INTEGER PRIMARY KEY, tags BLOB)")
        for byte in range(256):
            part = b"".join(sorted({tag for tag in stored if tag[0] == byte}))
            if part:
                db.execute("INSERT INTO rows VALUES (?, ?)", (byte, part))
        for asked in (tags, tags[:1], tags[-1:], []):
            found = unlearning._known(db, asked).tolist()
            assert found == [tag in set(stored) for tag in asked]
        db.close()


def test_many_rows(folder):
    """Of 100,000 rows each is found, and no other."""
    ids = list(range(100_000))
    client = ClientState.create(folder, MODEL, ids, {})
    tags = client.tag(ids)
    strangers = client.tag(range(-1000, 0))
    assert client.known(tags).all()
    assert client.keep(tags).all()
    assert not client.known(strangers).any()
    mixed = client.known([tags[5], strangers[5], tags[99_999]])
    assert mixed.tolist() == [True, False, True]


# --- Nothing of what is gone


def test_a_client_never_writes_ids(folder, client):
    client.stage(
        2,
        client.tag(IDS[:3]),
        np.array([10, 20, 9]),
        client.tag(IDS[7:8]),
        kind="unlearn",
        redrawn=False,
    )
    assert b"patient" not in bytes_of(folder)
    client.settle(2)
    assert b"patient" not in bytes_of(folder)


def test_who_leaves_keeps_the_log_alone(folder, client):
    tags = client.tag(IDS)
    sizes = np.array([10, 20, 9])
    client.stage(2, tags[:3], sizes, tags[7:8], kind="unlearn", redrawn=False)
    client.settle(2)
    client.stage(3, tags[:3], sizes - 1, tags[8:11], kind="unlearn", redrawn=False)
    with sqlite3.connect(client._path) as db:
        (key,) = db.execute("SELECT tag_key FROM about").fetchone()
    db.close()
    before = bytes_of(folder)
    gone = [key, b"s3ttings", *tags[:7], *tags[8:]]
    assert all(part in before for part in gone)
    client.wipe()
    after = bytes_of(folder)
    assert not [part for part in gone if part in after]
    assert tags[7] in after  # in the log


def pairs_of(bins):
    """Return the bytes of some neighbouring coordinates of each bin."""
    return [row[i : i + 2].tobytes() for row in bins for i in (0, 24, 48)]


@pytest.mark.parametrize("m", [3, 200])
def test_the_server_overwrites_a_bin_that_is_gone(folder, m):
    """In one page, and in a chain of them of which most become free."""
    rng = np.random.default_rng(m)
    bins = rng.integers(0, 2**50, (m, 50))
    centers = rng.random((4, 50))
    server = ServerState.create(folder, MODEL, {}, ["north"])
    counts = rng.integers(1, 2**40, m)
    server.save(1, bins, counts, centers, ["north"], "train")
    for version, left in enumerate([m - 1, m // 3, 0], 2):
        before = bytes_of(folder)
        centers = rng.random((4, 50))
        rows = rng.permutation(m)[:left]
        server.save(version, bins[rows], counts[rows], centers, ["north"], "unlearn")
        after = bytes_of(folder)
        kept, gone = server.load().bins, np.delete(bins, rows, axis=0)
        assert kept.tolist() == bins[rows].tolist()
        # Not one pair of neighbouring coordinates is left. A few lie on two pages.
        assert not [pair for pair in pairs_of(gone) if pair in after]
        there = [pair in before for pair in pairs_of(bins)]
        assert np.mean(there) > 0.95
        bins, counts = bins[rows], counts[rows]
        assert sorted(p.name for p in folder.iterdir()) == [f"{MODEL}.sqlite"]


def test_files_are_of_their_user_alone(folder, client):
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(client._path.stat().st_mode) == 0o600
    with client._open(unlearning.WRITE) as db:
        db.execute("DELETE FROM removed")
        db.execute("UPDATE about SET run = 'b'")
        db.execute("PRAGMA cache_spill")
        journal = client._path.with_name(client._path.name + "-journal")
        assert stat.S_IMODE(journal.stat().st_mode) == 0o600


# --- The server


def test_a_server_comes_back_bit_by_bit(folder):
    server = ServerState.create(folder, MODEL, SETTINGS, ["north", "south"])
    q = server.load()
    assert (q.version, q.run, len(q.bins), len(q.counts)) == (0, "", 0, 0)
    server.save(1, *OLD, ["north", "south"], "train", run="a")
    q = ServerState(folder, MODEL).load()
    assert (q.version, q.run, q.clients) == (1, "a", ["north", "south"])
    assert q.settings == SETTINGS
    for array, wanted in zip((q.bins, q.counts, q.centers), OLD, strict=True):
        assert array.dtype == wanted.dtype
        assert array.flags.writeable
        np.testing.assert_array_equal(array, wanted)
    server.save(2, OLD_BINS[:0], OLD[1][:0], OLD_CENTERS[:0], [], "forget-client")
    assert [a.shape for a in (server.load().bins, server.load().centers)] == [
        (0, 2)
    ] * 2


def test_the_log_of_the_server_names_clients_and_says_whether_q_changed(server):
    clients = ["north", "south"]
    turned = [2, 0, 1]
    bins, counts, centers = OLD
    server.save(2, bins[turned], counts[turned], centers, clients, "unlearn")
    server.save(3, bins, counts + np.eye(3, dtype=int)[0], centers, clients, "unlearn")
    server.save(4, *NEW, ["south"], "forget-client", named=["north"])
    assert [
        (e["kind"], e["version"], e["clients"], e["changed"]) for e in server.log()
    ] == [
        ("train", 1, [], True),
        ("unlearn", 2, [], False),
        ("unlearn", 3, [], True),
        ("forget-client", 4, ["north"], True),
    ]
    for entry in server.log():
        assert datetime.fromisoformat(entry["time"]).tzinfo == UTC


def test_save_refuses_what_breaks_the_state(server):
    before = view(server)
    bins, counts, centers = OLD

    def refused(version=2, bins=bins, counts=counts, centers=centers):
        args = (version, bins, counts, centers, [], "unlearn")
        return refusal(server.save, *args, error=ValueError)

    for version in (0, 1, 3):
        assert refused(version=version) == (
            f"the server has version 1 of model {MODEL}, the next one must be 2, got "
            f"{version}"
        )
    shapes = "must be of shapes (m, d), (m,) and (K, d), got"
    assert shapes in refused(counts=counts[:2])
    assert shapes in refused(bins=bins[:, :1])
    assert shapes in refused(bins=bins[0])
    assert shapes in refused(centers=centers[0])
    assert refused(counts=counts * 0) == "counts must be at least 1, got 0"
    assert view(server) == before


# --- Files that are none, or not ours


BOTH = pytest.mark.parametrize(
    ("state", "make", "who", "error"),
    [
        (ClientState, trained, "this party", PartyError),
        (ServerState, saved, "the server", ValueError),
    ],
)


@BOTH
def test_no_state(folder, state, make, who, error):
    none = f"{who} has no state of model {MODEL}"
    absent = state(folder, MODEL)
    assert not absent.exists
    assert refusal(absent.log, error=error) == none
    assert not folder.exists()
    folder.mkdir(parents=True)
    absent._path.touch()  # of a `create` that was killed
    assert not absent.exists
    assert refusal(lambda: absent.version, error=error) == none
    make(folder)
    assert absent.exists


@BOTH
@pytest.mark.parametrize("model", ["", "ABCDEF01", "../etc01", "0" * 33, 7, None])
def test_a_model_has_an_id(folder, state, make, who, error, model):
    with pytest.raises(error, match="must be 8 to 32 lower-case hexadecimal digits"):
        state(folder, model)


@BOTH
def test_a_state_of_another_kind_format_or_model(folder, state, make, who, error):
    path = make(folder)._path
    what = f"the state of model {MODEL} at {who} is "
    other = ServerState if state is ClientState else ClientState
    wrong = other(folder, MODEL)
    assert re.fullmatch(
        f"the state of model {MODEL} at {wrong.owner} is no file that {wrong.owner} "
        "has written",
        refusal(wrong.log, error=wrong.error),
    )
    renamed = path.with_name("f" * 16 + ".sqlite")
    shutil.copy(path, renamed)
    assert refusal(state(folder, "f" * 16).log, error=error).endswith(
        f"is one of model {MODEL}: the file was renamed or copied"
    )
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 2")
    db.close()
    text = what + f"of format 2, and vfl-flower {vfl_flower.__version__} reads format 1"
    assert refusal(state(folder, MODEL).log, error=error).startswith(text)
    assert refusal(make, folder, error=error).startswith(text)


@BOTH
def test_a_file_that_is_no_database(folder, caplog, state, make, who, error):
    path = make(folder)._path
    data = path.read_bytes()
    cannot = f"the state of model {MODEL} at {who} cannot be read or written: "
    for content in (b"patient-001" * 100, data[:100] + bytes(len(data))):
        path.write_bytes(content)
        with caplog.at_level(logging.ERROR):
            text = refusal(state(folder, MODEL).log, error=error)
        assert text.startswith(cannot)
        assert refusal(make, folder, error=error).startswith(cannot)
        assert str(path) in caplog.text


@BOTH
def test_a_folder_that_is_a_file(tmp_path, state, make, who, error):
    (tmp_path / "file").touch()
    text = refusal(make, tmp_path / "file", error=error)
    assert text.endswith("cannot be read or written: File exists")
    text = refusal(make, tmp_path / "file" / "bank", error=error)
    assert text.endswith("cannot be read or written: Not a directory")


@BOTH
def test_only_an_unfinished_training_begins_again(folder, state, make, who, error):
    made = make(folder)
    before = view(made)
    assert refusal(make, folder, error=error) == (
        f"{who} has version 1 of model {MODEL} already: only a training that is not "
        "finished can be begun again"
    )
    assert view(made) == before


def test_ids_are_distinct(folder, caplog):
    text = refusal(ClientState.create, folder, MODEL, [*IDS, IDS[3]], {})
    assert text == "ids must be distinct: some rows repeat an id"
    assert "1 rows repeat an id" in caplog.text
    assert not folder.exists()


def test_an_unfinished_training_is_removed_and_no_other(folder, client):
    """Also one that was killed as it began, and none at all."""
    other = "f" * 16
    begun = ClientState.create(folder, other, IDS, {})
    for state in (begun, client):
        state.remove_unfinished()
    assert not begun.exists
    assert begun._path.exists() is False
    assert client.version == 1
    begun._path.touch()
    begun.remove_unfinished()
    begun.remove_unfinished()
    assert not begun._path.exists()


def test_the_server_adds_sizes_and_objective(server):
    """Of the present version; the next one has none until they are added."""
    now = server.load()
    assert now.sizes.tolist() == []
    assert np.isnan(now.inertia)
    server.describe(now.version, np.array([3, 0]), 0.25)
    server.describe(now.version + 1, np.array([4, 4]), 1.0)
    found = server.load()
    assert (found.sizes.tolist(), found.inertia) == ([3, 0], 0.25)
    assert found.run == now.run
    server.save(
        now.version + 1, now.bins, now.counts, now.centers, now.clients, "unlearn"
    )
    assert len(server.load().sizes) == 0


def test_another_process_is_waited_for(client, monkeypatch):
    """Until it ends, or until a sentence says so."""
    monkeypatch.setattr(unlearning, "BUSY", 0.05)
    other = sqlite3.connect(client._path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    text = refusal(client.settle, 1, "a")
    assert text.endswith("cannot be read or written: database is locked")
    monkeypatch.setattr(unlearning, "BUSY", 5.0)
    timer = threading.Timer(0.1, other.execute, ["COMMIT"])
    timer.start()
    client.settle(1, "a")
    timer.join()
    other.close()


def test_list_models(tmp_path):
    assert list_models(tmp_path / "none") == []
    trained(tmp_path)
    ServerState.create(tmp_path, "a" * 32, {}, [])
    (tmp_path / "notes.sqlite").write_text("x")
    (tmp_path / f"{'b' * 8}.sqlite").touch()
    (tmp_path / f"{'c' * 8}.npz").write_text("x")
    assert list_models(tmp_path) == [MODEL, "a" * 32]
    text = refusal(list_models, tmp_path / "notes.sqlite", error=ValueError)
    assert text == "the folder of states cannot be read: Not a directory"


# --- kill -9


class Killed(sqlite3.Connection):
    """Kills its process after its k-th statement that may write."""

    left = 0
    reads = re.compile(r"SELECT|BEGIN$|PRAGMA (?!application_id =|user_version =)")

    def _run(self, run, sql, *args):
        result = run(sql, *args)
        if not self.reads.match(sql):
            Killed.left -= 1
            if Killed.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return result

    def execute(self, sql, *args):
        """Run a statement, if it is left to."""
        return self._run(super().execute, sql, *args)

    def executemany(self, sql, *args):
        """Run a statement many times, if it is left to."""
        return self._run(super().executemany, sql, *args)


def kill(folder, act, k=0, seconds=None):
    """Kill a process that acts on a folder; return whether it had not ended before."""
    child = os.fork()
    if not child:
        try:
            Killed.left = k
            sqlite3.connect = functools.partial(sqlite3.connect, factory=Killed)
            act(folder)
        finally:
            os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def begin(folder):
    state = ClientState.create(folder, MODEL, IDS, SETTINGS)
    sizes = np.array([10, 20, 10])
    state.stage(1, state.tag(IDS[:3]), sizes, kind="train", redrawn=True, run="b")


def create(folder):
    ClientState.create(folder, MODEL, IDS, SETTINGS)


def stage(folder):
    client = ClientState(folder, MODEL)
    tags = client.tag(IDS)
    drawn, sizes = [tags[0], tags[9], tags[8]], np.array([10, 20, 8])
    options = {"kind": "unlearn", "redrawn": True, "run": "b"}
    client.stage(2, drawn, sizes, [tags[1], tags[7]], **options)


def staged(folder):
    trained(folder)
    stage(folder)


def settle(folder):
    ClientState(folder, MODEL).settle(2, "b")


def drop(folder):
    ClientState(folder, MODEL).settle(1, "a")


def wipe(folder):
    ClientState(folder, MODEL).wipe()


def make_server(folder):
    ServerState.create(folder, MODEL, SETTINGS, ["north", "south"])


def save(folder):
    server = ServerState(folder, MODEL)
    if server.version == 1:
        server.save(2, *NEW, ["north", "south"], "unlearn", named=["north"], run="b")


OPERATIONS = {
    "create": (None, create, ClientState),
    "create-again": (begin, create, ClientState),
    "stage": (trained, stage, ClientState),
    "stage-again": (staged, stage, ClientState),
    "settle": (staged, settle, ClientState),
    "drop": (staged, drop, ClientState),
    "wipe": (staged, wipe, ClientState),
    "server-create": (None, make_server, ServerState),
    "server-save": (saved, save, ServerState),
}
"""By name: what is there before, the operation, and the state that it is of."""

GONE = {
    "wipe": [b"s3ttings"],
    "server-save": [OLD_BINS[0].tobytes(), OLD_CENTERS.tobytes()],
}
"""What the operation overwrites."""


def deployment(folder):
    """Train two clients and the server."""
    trained(folder / "north")
    trained(folder / "south")
    saved(folder / "server")


def unlearn(folder):
    """Ask for the removal of two rows of north: the task, and its next run."""
    clients = {name: ClientState(folder / name, MODEL) for name in ("north", "south")}
    server = ServerState(folder / "server", MODEL)
    present = server.load()
    for client in clients.values():
        client.settle(present.version, present.run)
    north = clients["north"]
    if north.removed() >= set(north.tag([IDS[1], IDS[7]])):
        return
    south = clients["south"]
    stage(folder / "north")
    now = south.current()
    south.stage(2, now.centroids, now.sizes, kind="unlearn", redrawn=False, run="b")
    save(folder / "server")
    for client in clients.values():
        client.settle(2, "b")


def look(folder, state):
    if state is not None:
        return view(state(folder, MODEL))
    return [
        view(ClientState(folder / "north", MODEL)),
        view(ClientState(folder / "south", MODEL)),
        view(ServerState(folder / "server", MODEL)),
    ]


class Trials:
    """Kills of one operation, each in a copy of the folder before it."""

    def __init__(self, top, before, act, state, gone=()):
        self.top, self.act, self.state, self.gone = Path(top), act, state, gone
        (self.top / "start").mkdir()
        if before:
            before(self.top / "start")
        self.old = look(self.top / "start", state)
        end = self.copy("end")
        act(end)
        self.new = look(end, state)
        self.kills, self.wrong = 0, []

    def copy(self, name):
        """Return a copy of the folder before."""
        return shutil.copytree(self.top / "start", self.top / name)

    def kill(self, **when):
        """Kill, look, and run again; return whether there was something to kill."""
        folder = self.copy("trial")
        killed = kill(folder, self.act, **when)
        self.kills += killed
        now = look(folder, self.state)
        if self.state and now not in (self.old, self.new):
            self.wrong.append(f"{when}: {now}")
        self.act(folder)
        again = look(folder, self.state)
        if again != self.new:
            self.wrong.append(f"again after {when}: {again}")
        if left := [part for part in self.gone if part in bytes_of(folder)]:
            self.wrong.append(f"after {when}: {left}")
        shutil.rmtree(folder)
        return killed

    def at_each_write(self):
        """Kill after each statement, until a process ends."""
        k = 1
        while self.kill(k=k):
            k += 1

    def at_random(self, times):
        """Most of the time of an operation is that of its commits to the disk."""
        folder = self.copy("timed")
        began = time.perf_counter()
        kill(folder, self.act)
        took = time.perf_counter() - began
        for moment in np.random.default_rng(0).uniform(0, took, times):
            self.kill(seconds=moment)


def main():
    found = {}
    unlearning_task = (deployment, unlearn, None, GONE["server-save"])
    # In memory where there is a place: what a kill leaves is the same, and sooner.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    every = {name: (*op, GONE.get(name, [])) for name, op in OPERATIONS.items()}
    for name, operation in {**every, "unlearn": unlearning_task}.items():
        with tempfile.TemporaryDirectory(dir=memory) as top:
            trials = Trials(top, *operation)
            trials.at_each_write()
            found[name] = {"kills": trials.kills, "wrong": trials.wrong}
    with tempfile.TemporaryDirectory() as top:
        trials = Trials(top, *unlearning_task)
        trials.at_random(10)
        found["random"] = {"kills": trials.kills, "wrong": trials.wrong}
    print(json.dumps(found))


@pytest.fixture(scope="module")
def kills():
    return found_by(__file__)


@pytest.mark.parametrize("operation", [*OPERATIONS, "unlearn", "random"])
def test_killed_at_any_write_it_is_old_or_new_and_runs_again(kills, operation):
    found = kills[operation]
    assert found["wrong"] == []
    assert found["kills"] >= 3  # after BEGIN, a write, COMMIT


if __name__ == "__main__":
    main()
