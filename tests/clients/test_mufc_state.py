"""State that can forget: what was written, nothing of what is gone, at each kill.

Run as a script, this file kills processes at their writes and prints the results.
"""

import hmac
import itertools
import json
import logging
import shutil
import sqlite3
import stat
import tempfile
import threading
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from forgetting import agreed, staged_by
from kills import MEMORY, killed, printed_by

import vfl_flower
from vfl_flower.clients.mufc import state as state_file
from vfl_flower.clients.mufc.state import ClientState, PartyFacts, list_models
from vfl_flower.party.party import PartyError
from vfl_flower.protocol.contract import ContractError
from vfl_flower.strategies.mufc.state import ServerState

MODEL = "0123456789abcdef"
IDS = [f"patient-{i:03d}" for i in range(40)]
LATER = [f"patient-{i:03d}" for i in range(40, 45)]
LOWER, UPPER = np.array([[-1.0, 0.0], [1.0, 9.0]])
SETTINGS = agreed(gamma=0.1 + 0.2, lower=LOWER, upper=UPPER)
FACTS = PartyFacts("s3ttings", 2, "0123abcd", ["s3ttings", "south"])
OLD_BINS = np.array([[0x5EC4E7, 0x0DDBA11], [3, 5], [0xFEED, 2]])
NEW_BINS = np.array([[0xFEED, 2], [3, 5]])
OLD_CENTERS = np.array([[1 / 3, 1 / 7], [2 / 3, 1 / 9]])
NEW_CENTERS = np.array([[0.3, 0.1], [0.6, 0.2]])


def trained(folder, ids=IDS):
    party = ClientState.create(folder, MODEL, ids, SETTINGS, FACTS)
    sizes = np.array([len(ids) - 30, 20, 10])
    party.stage(1, party.tag(ids)[:3], sizes, kind="train", redrawn=True, run="a")
    party.settle(1, "a")
    return party


def saved(folder):
    server = ServerState.create(folder, MODEL, SETTINGS, ["north", "south"])
    server.save(1, *OLD, ["north", "south"], "train", run="a")
    return server


OLD = (OLD_BINS, np.array([30, 10, 2**40]), OLD_CENTERS)
NEW = (NEW_BINS, np.array([2**40, 9]), NEW_CENTERS)


def bytes_of(folder):
    files = sorted(Path(folder).rglob("*"))
    assert files
    return b"".join(f.name.encode() + f.read_bytes() for f in files if f.is_file())


def view(state):
    if not state.exists:
        return None
    log = [{**entry, "time": ""} for entry in state.log()]
    if isinstance(state, ServerState):
        q = state.load()
        arrays = [a.tolist() for a in (q.bins, q.counts, q.centers)]
        return [q.version, q.run, arrays, q.parties, q.settings.stored(), log]
    if state.left:
        return [state.version, "left", log]
    names = dict(zip(state.tag(IDS + LATER), IDS + LATER, strict=True))
    clusters = [
        local and [local.version, [names[t] for t in local.centroids], [*local.sizes]]
        for local in (state.current(), staged_by(state, "a"), staged_by(state, "b"))
    ]
    for entry in log:
        entry["tags"] = [names[bytes.fromhex(tag)] for tag in entry["tags"]]
    stays, stored = state.keep(list(names)).tolist(), state.settings.stored()
    return [state.version, str(clusters), stays, log, stored, state.facts]


def execute(state, query, *values):
    """Run one statement on the file of a state, and return its rows."""
    with closing(sqlite3.connect(state._path)) as db, db:
        return db.execute(query, values).fetchall()


def refusal(call, *args, error=PartyError, **kwargs):
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
def party(folder):
    return trained(folder)


@pytest.fixture
def server(tmp_path):
    return saved(tmp_path / "server")


# --- A party from training to the end


def test_a_party_that_has_left_has_its_log_and_answers_nothing_else(folder, party):
    tags, began = party.tag(IDS), datetime.now(UTC).replace(microsecond=0)
    ((key,),) = execute(party, "SELECT tag_key FROM about")
    kind = {"kind": "unlearn", "redrawn": True}
    party.stage(2, tags[3:5], np.array([30, 9]), tags[2:3], **kind)
    party.settle(2)
    party.stage(3, tags[3:5], np.array([29, 7]), tags[8:11], **kind)
    gone = [key, b"s3ttings", *tags[:2], *tags[3:]]
    assert all(part in bytes_of(folder) for part in gone)
    party.wipe()
    left = bytes_of(folder)
    assert not [part for part in gone if part in left]
    assert tags[2] in left  # in the log
    party.wipe()
    assert bytes_of(folder) == left
    log = party.log()
    assert [(e["kind"], e["version"], e["redrawn"], e["tags"]) for e in log] == [
        ("train", 1, True, []),
        ("unlearn", 2, True, [tags[2].hex()]),
        ("forget-client", 3, False, []),
    ]
    assert began <= datetime.fromisoformat(log[2]["time"]) <= datetime.now(UTC)
    assert (party.left, party.version) == (True, 3)
    for call, *arguments in (
        *((party.current,), (party.removed,), (party.settle, 3)),
        *((party.tag, []), (party.known, []), (party.keep, [])),
        (lambda: party.settings,),
    ):
        assert refusal(call, *arguments) == f"this party has left model {MODEL}"


def test_a_mean_without_rows_has_no_size(party):
    """Complete training drops it, and still keeps each drawn row."""
    party.stage(2, party.tag(IDS)[:3], np.array([39, 1]), kind="unlearn", redrawn=False)
    assert staged_by(party).sizes.tolist() == [39, 1]


def test_numbers_of_numpy_are_numbers(party, server):
    tags, two = party.tag(IDS[:3]), np.int64(2)
    party.stage(two, tags, [20, 10, 10], kind="unlearn", redrawn=np.bool_(True))
    party.settle(two)
    server.save(two, *NEW, ["north"], "unlearn")
    assert party.version == server.version == 2
    assert party.log()[-1]["redrawn"] is True


def test_settling_commits_or_drops(party):
    """The table of the two phases: where the server is, and what the party does."""
    tags = party.tag(IDS)

    def stage(run, row):
        sizes, kind = np.array([10, 19, 10]), {"kind": "unlearn", "redrawn": False}
        party.stage(2, tags[:3], sizes, [tags[row]], **kind, run=run)

    stage("b", 10)
    party.settle(1, "a")  # the server has not saved: drop
    assert staged_by(party, "b") is None
    assert party.removed() == set()

    stage("b", 10)
    stage("b", 11)  # again: replaces
    stage("late", 12)  # of a run that the server has given up
    party.settle(2, "b")
    assert party.removed() == {tags[11]}
    assert staged_by(party, "late") is None
    assert party.log()[-1]["tags"] == [tags[11].hex()]

    before = view(party)
    keeps = f"this party has version 2 of model {MODEL}, but the server has version "
    assert refusal(party.settle, 1, "a") == keeps + "1"
    assert refusal(party.settle, 4, "b") == keeps + "4"
    assert refusal(party.settle, 2, "a") == keeps + "2 of another run"
    party.stage(3, tags[:3], np.array([10, 19, 10]), kind="train", redrawn=False)
    assert refusal(party.settle, 3, "c") == keeps + "3"
    party.settle(2, "b")
    assert view(party) == before


def test_rows_that_are_added_are_rows_of_the_model(folder, party):
    """Once their version is settled; their tags stand in the order of all."""
    tags, new = party.tag(IDS), party.tag(LATER)
    stage_more(folder)
    party.settle(1, "a")  # the server has not saved: drop
    assert not party.known(new).any()
    stage_more(folder)
    assert not party.known(new).any()
    party.settle(2, "b")
    assert party.known(tags + new).all()
    assert party.keep(tags + new).all()
    assert party.removed() == set()
    assert party.current().centroids == [tags[0], new[3]]
    log = party.log()[-1]
    assert (log["kind"], log["version"]) == ("add", 2)
    assert log["tags"] == [tag.hex() for tag in new]
    parts = [part for (part,) in execute(party, "SELECT tags FROM rows")]
    stored = [[part[i : i + 16] for i in range(0, len(part), 16)] for part in parts]
    assert all(part == sorted(part) for part in stored)
    assert sorted(tag for part in stored for tag in part) == sorted(tags + new)

    # One of them can be forgotten.
    gone = {"kind": "unlearn", "redrawn": False, "run": "c"}
    party.stage(3, [tags[0], new[3]], np.array([24, 20]), [new[1]], **gone)
    party.settle(3, "c")
    assert party.removed() == {new[1]}


def test_stage_refuses_what_breaks_the_state(party):
    tags = party.tag(IDS)
    sizes = np.array([10, 20, 10])
    before = view(party)

    def refused(version=2, drawn=tags[:3], sizes=sizes, removed=()):
        kind = {"kind": "unlearn", "redrawn": False}
        return refusal(party.stage, version, drawn, sizes, removed, **kind)

    assert refused(version=3) == (
        f"this party has version 1 of model {MODEL}: the next version must be 2, got 3"
    )
    twice = refused(removed=[tags[5], tags[5]])
    assert "39, the number of remaining rows, got 3 numbers with the sum 40" in twice
    assert "at most 2 numbers, each" in refused(drawn=tags[:2])
    assert "each at least 1, with" in refused(sizes=np.array([40, 0, 0]))
    assert view(party) == before


# --- Tags


def test_tags_are_hmacs_under_the_key_of_the_file(folder, party):
    ((key,),) = execute(party, "SELECT tag_key FROM about")
    assert len(key) == 32
    ids = ["", "7", "ä" * 100, *IDS]
    digests = [hmac.digest(key, name.encode(), "sha256") for name in ids]
    assert party.tag(ids) == [digest[:16] for digest in digests]
    assert party.tag([7, np.int64(7)]) == party.tag(["7"]) * 2
    assert party.tag(IDS) == ClientState(folder, MODEL).tag(IDS)
    assert not set(party.tag(IDS)) & set(trained(folder / "other").tag(IDS))


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
            known = state_file._known(db, asked).tolist()
            assert known == [tag in set(stored) for tag in asked]
        db.close()


# --- Nothing of what is gone


def pairs_of(bins):
    return [row[i : i + 2].tobytes() for row in bins for i in (0, 24, 48)]


@pytest.mark.parametrize("m", [3, 200])
def test_the_server_overwrites_a_bin_that_is_gone(folder, m):
    """In one page, and in a chain of them of which most become free."""
    rng = np.random.default_rng(m)
    bins = rng.integers(0, 2**50, (m, 50))
    centers = rng.random((4, 50))
    server = ServerState.create(folder, MODEL, SETTINGS, ["north"])
    counts = rng.integers(1, 2**40, m)
    server.save(1, bins, counts, centers, ["north"], "train")
    for version, left in enumerate([m - 1, m // 3, 0], 2):
        before = bytes_of(folder)
        centers = rng.random((4, 50))
        rows = rng.permutation(m)[:left]
        server.save(version, bins[rows], counts[rows], centers, ["north"], "unlearn")
        after = bytes_of(folder)
        bins_left, gone = server.load().bins, np.delete(bins, rows, axis=0)
        assert bins_left.tolist() == bins[rows].tolist()
        # Not one pair of neighbouring coordinates is left. A few lie on two pages.
        assert not [pair for pair in pairs_of(gone) if pair in after]
        there = [pair in before for pair in pairs_of(bins)]
        assert np.mean(there) > 0.95
        bins, counts = bins[rows], counts[rows]
        assert sorted(p.name for p in folder.iterdir()) == [f"{MODEL}.sqlite"]


def test_files_are_of_their_user_alone(folder, party):
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(party._path.stat().st_mode) == 0o600
    with party._open(state_file.WRITE) as db:
        db.execute("DELETE FROM removed")
        db.execute("UPDATE about SET run = 'b'")
        db.execute("PRAGMA cache_spill")
        journal = party._path.with_name(party._path.name + "-journal")
        assert stat.S_IMODE(journal.stat().st_mode) == 0o600


# --- The server


def test_a_server_comes_back_bit_by_bit(folder):
    server = ServerState.create(folder, MODEL, SETTINGS, ["north", "south"])
    q = server.load()
    assert (q.version, q.run, len(q.bins), len(q.counts)) == (0, "", 0, 0)
    server.save(1, *OLD, ["north", "south"], "train", run="a")
    q = ServerState(folder, MODEL).load()
    assert (q.version, q.run, q.parties) == (1, "a", ["north", "south"])
    assert q.settings.stored() == SETTINGS.stored()
    for array, wanted in zip((q.bins, q.counts, q.centers), OLD, strict=True):
        assert array.dtype == wanted.dtype
        assert array.flags.writeable
        np.testing.assert_array_equal(array, wanted)
    server.save(2, OLD_BINS[:0], OLD[1][:0], OLD_CENTERS[:0], [], "forget-client")
    assert server.load().bins.shape == server.load().centers.shape == (0, 2)


def test_the_log_of_the_server_names_parties_and_says_whether_q_changed(server):
    parties, turned, (bins, counts, centers) = ["north", "south"], [2, 0, 1], OLD
    server.save(2, bins[turned], counts[turned], centers, parties, "unlearn")
    server.save(3, bins, counts + np.eye(3, dtype=int)[0], centers, parties, "unlearn")
    server.save(4, *NEW, ["south"], "forget-client", named=["north"])
    names = "kind", "version", "parties", "changed"
    assert [tuple(entry[n] for n in names) for entry in server.log()] == [
        ("train", 1, [], True),
        ("unlearn", 2, [], False),
        ("unlearn", 3, [], True),
        ("forget-client", 4, ["north"], True),
    ]
    for entry in server.log():
        assert datetime.fromisoformat(entry["time"]).tzinfo == UTC


@pytest.mark.parametrize("version", [0, 1, 3])
def test_save_refuses_another_version_than_the_next(server, version):
    before = view(server)
    assert refusal(server.save, version, *OLD, [], "unlearn", error=ValueError) == (
        f"the server has version 1 of model {MODEL}: the next version must be 2, got "
        f"{version}"
    )
    assert view(server) == before


# --- Settings


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"lower": np.array("a")}, "real numbers"),
        ({"upper": np.array(1j)}, "real numbers"),
        ({"lower": np.array([0.0])}, "shapes"),
        ({"lower": np.full((1, 2), -0.5), "upper": np.full((1, 2), 0.5)}, "shapes"),
        ({"lower": np.array(0.5)}, "below upper"),
        ({"upper": np.array(np.nan)}, "below upper"),
        ({"gamma": 1.5}, "gamma"),
        ({"gamma": 1e-300}, "gamma"),
    ],
)
def test_settings_that_cannot_be(changes, rule):
    with pytest.raises(ContractError, match=rule):
        agreed(**changes)


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
    made, what = make(folder), f"the state of model {MODEL} at {who}"
    other = ServerState if state is ClientState else ClientState
    wrong = other(folder, MODEL)
    assert refusal(wrong.log, error=wrong.error) == (
        f"the state of model {MODEL} at {wrong.owner} was not written by {wrong.owner}"
    )
    shutil.copy(made._path, folder / f"{'f' * 16}.sqlite")
    assert refusal(state(folder, "f" * 16).log, error=error).endswith(
        f"was written for model {MODEL}: the file was renamed or copied"
    )
    execute(made, "PRAGMA user_version = 2")
    text = f"{what} has format 2, but vfl-flower {vfl_flower.__version__} reads"
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
@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "gamma", '{"gamma": 0.1, "name": 7}', None]
)
def test_settings_that_were_not_written_so(folder, state, make, who, error, text):
    made = make(folder)
    if text is None:
        stored = SETTINGS.stored() | {"name": "a", "n_columns": 2, "columns": ""}
        text = json.dumps(stored | {"lower": [9.0, 9.0]})
    execute(made, "UPDATE about SET settings = ?", text)
    read = (lambda: made.settings) if state is ClientState else made.load
    damaged = f"the state of model {MODEL} at {who} is damaged"
    assert refusal(read, error=error) == damaged


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
        f"{who} already has version 1 of model {MODEL}: only unfinished training can "
        "be restarted"
    )
    assert view(made) == before


def test_ids_are_distinct(folder, caplog):
    text = refusal(ClientState.create, folder, MODEL, [*IDS, IDS[3]], SETTINGS, FACTS)
    assert text == "ids must be distinct, but some rows repeat an id"
    assert "repeated ids: 1" in caplog.text
    assert not folder.exists()


def test_an_unfinished_training_is_removed_and_no_other(folder, party):
    """Also one that was killed as it began, and none at all."""
    other = "f" * 16
    begun = ClientState.create(folder, other, IDS, SETTINGS, FACTS)
    for state in (begun, party):
        state.remove_unfinished()
    assert not begun.exists
    assert begun._path.exists() is False
    assert party.version == 1
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
    described = server.load()
    assert (described.sizes.tolist(), described.inertia) == ([3, 0], 0.25)
    assert described.run == now.run
    sent = now.bins, now.counts, now.centers
    server.save(now.version + 1, *sent, now.parties, "unlearn")
    assert len(server.load().sizes) == 0


def test_another_process_is_waited_for(party, monkeypatch):
    """Until it ends, or until a sentence says so."""
    monkeypatch.setattr(state_file, "BUSY", 0.05)
    other = sqlite3.connect(party._path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    text = refusal(party.settle, 1, "a")
    assert text.endswith("cannot be read or written: database is locked")
    monkeypatch.setattr(state_file, "BUSY", 5.0)
    timer = threading.Timer(0.1, other.execute, ["COMMIT"])
    timer.start()
    party.settle(1, "a")
    timer.join()
    other.close()


def test_list_models(tmp_path):
    assert list_models(tmp_path / "none") == []
    trained(tmp_path)
    ServerState.create(tmp_path, "a" * 32, SETTINGS, [])
    (tmp_path / "notes.sqlite").write_text("x")
    (tmp_path / f"{'b' * 8}.sqlite").touch()
    (tmp_path / f"{'c' * 8}.npz").write_text("x")
    assert list_models(tmp_path) == [MODEL, "a" * 32]
    text = refusal(list_models, tmp_path / "notes.sqlite", error=ValueError)
    assert text == "the folder of states cannot be read: Not a directory"


# --- kill -9


def begin(folder):
    state = ClientState.create(folder, MODEL, IDS, SETTINGS, FACTS)
    sizes = np.array([10, 20, 10])
    state.stage(1, state.tag(IDS[:3]), sizes, kind="train", redrawn=True, run="b")


def create(folder):
    ClientState.create(folder, MODEL, IDS, SETTINGS, FACTS)


def stage(folder):
    party = ClientState(folder, MODEL)
    tags = party.tag(IDS)
    drawn, sizes = [tags[0], tags[9], tags[8]], np.array([10, 20, 8])
    options = {"kind": "unlearn", "redrawn": True, "run": "b"}
    party.stage(2, drawn, sizes, [tags[1], tags[7]], **options)


def staged(folder):
    trained(folder)
    stage(folder)


def stage_more(folder):
    party = ClientState(folder, MODEL)
    tags, new = party.tag(IDS), party.tag(LATER)
    options = {"kind": "add", "redrawn": True, "run": "b", "added": new}
    party.stage(2, [tags[0], new[3]], np.array([25, 20]), **options)


def staged_more(folder):
    trained(folder)
    stage_more(folder)


def settle(folder, version=2, run="b"):
    ClientState(folder, MODEL).settle(version, run)


drop = partial(settle, version=1, run="a")


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
    "stage-more": (trained, stage_more, ClientState),
    "settle-more": (staged_more, settle, ClientState),
    "drop-more": (staged_more, drop, ClientState),
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


def trials(top, before, act, state, gone=()):
    """Kill an operation at each of its writes, each time in a copy of the folder.

    Return how often it was killed, and what was wrong after that.
    """

    def look(folder):
        return view(state(folder, MODEL))

    start, end, trial = (top / name for name in ("start", "end", "trial"))
    start.mkdir()
    if before:
        before(start)
    act(shutil.copytree(start, end))
    old, new, wrong = look(start), look(end), []
    for k in itertools.count(1):
        was_killed = killed(act, shutil.copytree(start, trial), k)
        now = look(trial)
        act(trial)
        again = look(trial)
        left = [part for part in gone if part in bytes_of(trial)]
        shutil.rmtree(trial)
        if now not in (old, new) or again != new or left:
            wrong.append(f"{k}: {now}; again: {again}; {left}")
        if not was_killed:
            return {"kills": k - 1, "wrong": wrong}
    return None


def main():
    results = {}
    for name, operation in OPERATIONS.items():
        with tempfile.TemporaryDirectory(dir=MEMORY) as top:
            results[name] = trials(Path(top), *operation, GONE.get(name, []))
    print(json.dumps(results))


@pytest.fixture(scope="module")
def kills():
    return printed_by(__file__)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_killed_at_any_write_it_is_old_or_new_and_runs_again(kills, operation):
    """Whole runs are killed in tests/strategies/test_mufc_crashes.py."""
    assert kills[operation]["wrong"] == []
    assert kills[operation]["kills"] >= 3  # after BEGIN, a write, COMMIT


if __name__ == "__main__":
    main()
