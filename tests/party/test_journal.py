"""One message at a time, no round twice, and counts that outlive a session."""

import copy
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest
from consents import limited, pool
from deviating import RealParties
from federations import by_columns
from flwr.app import ArrayRecord, RecordDict

from vfl_flower import Party, PartyFailed
from vfl_flower.party import journal
from vfl_flower.party.consent import Consent, pack_rows
from vfl_flower.party.journal import FILE, MOST_STATES, SURE_STATES, Journal, journal_of
from vfl_flower.party.memory import Memory
from vfl_flower.party.party import PartyError
from vfl_flower.server.exchange import Exchange
from vfl_flower.server.parties import Parties

N = 30

KILLED = """
import os, pathlib, signal, sys
from vfl_flower.party.journal import journal_of
with journal_of(pathlib.Path(sys.argv[1]), 7) as line:
    line.round = 1
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def grid(tmp_path):
    X, given = np.random.default_rng(0).normal(size=(N, 6)), {"consent": limited(10)}
    return RealParties(by_columns(X, names=list("abc"), folder=tmp_path, **given))


def greet(line, session, size=3):
    memory = Memory(RecordDict())
    line.greet(session, memory)
    memory.open(session)
    memory.state["after.arrays"] = ArrayRecord([np.arange(float(size))])
    line.keep(memory)


@pytest.mark.parametrize(
    ("rows", "change", "reason"),
    [
        (range(10, 20), 0, "round 1 is over: the last round was 1"),
        (range(10), 1, "reply to round 1 has chang"),  # the file has changed meanwhile
    ],
)
def test_a_second_message_from_one_saved_state(grid, rows, change, reason):
    """Twenty rows left a party whose limit is ten, and masks were used twice."""
    parties = Parties(Exchange(grid), seed=0)
    saved = {node: copy.deepcopy(c.state) for node, c in grid._contexts.items()}
    last, number = list(parties._last), parties._round
    pool(parties, range(10))
    for node, state in saved.items():  # as if the two messages arrived together
        grid._contexts[node].state = state
        grid._parties[node].X = grid._parties[node].X + change
    parties._last, parties._round = last, number
    with pytest.raises(PartyFailed, match=reason):
        pool(parties, rows)


def test_rows_count_in_all_sessions_of_a_run(grid):
    """A second greeting set the count back to 0."""
    pool(Parties(Exchange(grid), seed=0), range(10))
    again = Parties(Exchange(grid), seed=0)
    pool(again, range(10))
    with pytest.raises(PartyFailed, match="at most 10 rows to leave"):
        pool(again, range(10, 20))
    with pytest.raises(PartyFailed, match="at most 10 rows to leave"):
        pool(Parties(Exchange(grid), seed=0), range(10, 20))


def test_rows_of_all_sessions_move_to_the_run_that_goes_on(tmp_path):
    left = pack_rows(np.ones(N, dtype=bool))
    with journal_of(tmp_path, 7) as line:
        greet(line, 4)
        line.shared = {"rows": left}
    with journal_of(tmp_path, 7) as line:
        greet(line, 5)
    with journal_of(tmp_path, 8) as line:
        line.greet(5, Memory(RecordDict()))
        assert line.shared == {"rows": left}


def test_a_party_goes_on_from_its_journal_and_not_from_an_older_state(tmp_path):
    """With the state of a session that begins again, masks would be used again."""
    memory = Memory(RecordDict())
    with journal_of(tmp_path, 7) as line:
        line.greet(5, memory)
        key = memory.open(5)
        older = Memory(copy.deepcopy(memory.state))
        memory.state["session"]["round"] = line.round = 1
        line.keep(memory)
    with journal_of(tmp_path, 7) as line:
        line.recall(older)
    assert older.place == (5, 1)
    with journal_of(tmp_path, 7) as line:
        greet(line, 6)
    with journal_of(tmp_path, 7) as line:
        line.greet(5, memory)
        assert memory.open(5) != key


def test_an_array_that_a_round_has_replaced_goes(tmp_path):
    memory = Memory(RecordDict())
    for value in (1.0, 2.0):
        with journal_of(tmp_path, 7) as line:
            line.greet(5, memory)
            memory.open(5)
            memory.state["after.arrays"] = ArrayRecord([np.full(3, value)])
            line.keep(memory)
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        assert db.execute("SELECT count(*) FROM locked_arrays").fetchone() == (1,)


@pytest.mark.parametrize("error", [OSError("disk"), sqlite3.OperationalError("state")])
def test_an_error_of_the_step_is_not_called_one_of_the_journal(tmp_path, error):
    with pytest.raises(type(error)), journal_of(tmp_path, 7):
        raise error


def test_refused_or_killed_before_its_reply_a_party_answers_again(tmp_path):
    with journal_of(tmp_path, 7) as line:
        greet(line, 5)
    with pytest.raises(ZeroDivisionError), journal_of(tmp_path, 7) as line:
        line.round = 1 // 0
    with journal_of(tmp_path, 7) as line:
        assert line == Journal(5, sessions=1)
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    assert killed.returncode == -signal.SIGKILL
    with journal_of(tmp_path, 7) as line:
        assert line == Journal(5, sessions=1)


def test_one_message_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("vfl_flower.party.journal.PATIENCE", 0.1)
    with (
        journal_of(tmp_path, 7),
        pytest.raises(PartyError, match="journal in this party's state-dir"),
        journal_of(tmp_path, 7),
    ):
        pass


def test_runs_are_apart_and_old_ones_go(tmp_path):
    for run in range(120):
        with journal_of(tmp_path, run) as line:
            line.shared = {"rows": pack_rows(np.ones(N, dtype=bool))}
            greet(line, run)
    kept, last = {*range(20, 120)}, {*range(120 - MOST_STATES, 120)}
    tables = {"sessions": kept, "shared": kept}
    tables |= {"locked_states": last, "locked_arrays": last}
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        for table, runs in tables.items():
            rows = db.execute(f"SELECT run FROM {table}").fetchall()
            assert sorted(rows) == sorted((f"{run}",) for run in runs)


def test_large_states_are_kept_of_fewer_sessions(tmp_path, monkeypatch):
    """Of the last five in any case, and of more within so many bytes."""
    monkeypatch.setattr(journal, "MOST_BYTES", 300_000)
    sizes = [100] * 3 + [10_000] * 4 + [100] * 4
    kept = []
    for run, size in enumerate(sizes):
        with journal_of(tmp_path, run) as line:
            greet(line, run, size)
        with closing(sqlite3.connect(tmp_path / FILE)) as db:
            (count,) = db.execute("SELECT count(*) FROM locked_states").fetchone()
        kept.append(count)
    assert kept == [1, 2, 3, 4, 5, 6, SURE_STATES, SURE_STATES, SURE_STATES, 6, 7]


def test_only_its_user_can_read_it_and_links_are_not_followed(tmp_path):
    with journal_of(tmp_path, 7):
        pass
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / FILE).symlink_to(tmp_path / FILE)
    with pytest.raises(PartyError, match="journal"), journal_of(tmp_path / "other", 7):
        pass


def test_a_run_begins_ten_times_at_most(tmp_path):
    """What is answered once in a session would be told as often as a server greets."""
    for session in range(10):
        with journal_of(tmp_path, 7) as line:
            greet(line, session)
            greet(line, session)  # the same one, asked again
    refused = pytest.raises(PartyError, match="cannot start more than 10 sessions")
    with journal_of(tmp_path, 7) as line, refused:
        greet(line, 10)


def test_a_party_that_was_restarted_needs_the_key_of_its_state(tmp_path):
    memory, restarted = Memory(RecordDict()), Memory(RecordDict())
    with journal_of(tmp_path, 7) as line:
        line.greet(5, memory)
        key = memory.open(5)
        memory.state["after.arrays"] = ArrayRecord([np.arange(3.0)])
        line.keep(memory)
    with journal_of(tmp_path, 7) as line:
        assert line.greet(5, restarted, goes_on=True) == key
        with pytest.raises(PartyError, match="lacks the key to the session"):
            line.recall(restarted)
        with pytest.raises(PartyError, match="does not decrypt this party's session"):
            line.recall(restarted, bytes(32))
        line.recall(restarted, memory.state_key)
    assert restarted.public_key == key
    assert restarted.pack() == memory.pack()


def test_refusals_count_before_the_first_message(tmp_path):
    """Those of data that cannot be loaded, at a party without a journal."""
    consent = Consent(max_refusals=2)
    for _ in range(2):
        journal.check_refusals(tmp_path, consent)
        journal.note_refusal(tmp_path)
    with pytest.raises(PartyError, match="max-refusals"):
        journal.check_refusals(tmp_path, consent)


@pytest.mark.parametrize("peers", [None, {}])
def test_rows_of_sums_are_guarded_but_in_one_process(tmp_path, peers):
    party = Party(np.ones((N, 1)), consent=Consent(peers=peers))
    with journal_of(tmp_path, 7) as line:
        line.enter(party)
    assert (party.row_sets is None) == (peers is None)
