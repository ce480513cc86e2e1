"""What a server gains that goes on with a session otherwise than it was.

The parties run the code of SuperNodes and have folders; each new grid is a run of its
own, in which they know what is in their folders and no more.
"""

import copy
import hashlib
import shutil
import sqlite3
from contextlib import closing
from unittest.mock import patch

import numpy as np
import pytest
from consents import distances, limited, pool
from deviating import RealParties
from federations import by_columns
from flwr.app import RecordDict

from vfl_flower import PartyFailed
from vfl_flower.clients.coresets import sampling as coresets
from vfl_flower.party import journal
from vfl_flower.party.journal import MOST_SESSIONS
from vfl_flower.party.memory import Memory
from vfl_flower.party.party import PartyError
from vfl_flower.party.vault import Vault
from vfl_flower.protocol.messages import pack
from vfl_flower.secure_aggregation.groups import group
from vfl_flower.server import parties as server
from vfl_flower.server.checkpoint import Checkpoint
from vfl_flower.server.exchange import Exchange
from vfl_flower.server.ledger import Ledger
from vfl_flower.server.parties import Parties

N, LIMIT = 60, 10
VICTIM = 1


def grid_on(folder):
    """Return a run with the parties of a folder."""
    rng = np.random.default_rng(1)
    X, given = rng.normal(size=(N, 6)), {"ids": np.arange(N), "consent": limited(LIMIT)}
    parties = by_columns(X, X.sum(axis=1), names=[*"abc"], folder=folder, **given)
    return RealParties(parties)


class Salts(Checkpoint):
    """The server's draws, which are the same when a run goes on."""

    def token(self, size):
        """Return the same bytes each time."""
        return bytes(size)


def begun(folder):
    """Begin a session, as a server that follows the protocol."""
    return Parties(Exchange(grid_on(folder), checkpoint=Salts()), seed=0)


@pytest.fixture
def first(tmp_path):
    return begun(tmp_path)


def before(parties):
    """Return what the server knows of a session now."""
    known = copy.copy(parties)
    known._last = list(parties._last)
    return known


def greet(exchange, content):
    """Send one greeting to all parties; return what they say."""
    names = {node: str(node) for node in exchange.grid.get_node_ids()}
    replies = exchange("hello", dict.fromkeys(names, content), names)
    return [reply.values for reply in replies]


def keys(said):
    return b"".join(values["public_key"] for values in said)


def taken_up(parties, folder):
    """Go on with a session in another run, with all that the server knew of it."""
    again = before(parties)
    again.grid = grid_on(folder)
    again._exchange = Exchange(again.grid, Ledger(), 10.0)
    said = greet(again._exchange, parties._greeter.message(3, goes_on=True))
    assert keys(said) == parties._peers
    return again


def hidden(parties, center=1.0):
    """Ask for distances of ten rows; return what the victim sends under its mask."""
    seen = {}
    checked = server.checked

    def keep(step, j, *rest):
        seen[j] = checked(step, j, *rest)
        return seen[j]

    with patch.object(server, "checked", keep):
        distances(parties, LIMIT, center=center)
    return seen[VICTIM].hidden["distances"]


def test_the_same_question_gets_the_same_reply(tmp_path, first):
    """As where the server was killed before it had kept the reply."""
    known = before(first)
    reply = hidden(first)
    np.testing.assert_array_equal(hidden(taken_up(known, tmp_path)), reply)


def test_another_question_under_the_same_mask_is_refused(tmp_path, first):
    """The difference of two replies would be that of the addends."""
    known = before(first)
    hidden(first)
    again = taken_up(known, tmp_path)
    with pytest.raises(PartyFailed, match="round 1 is over: the last round was 1"):
        hidden(again, 2.0)
    again._round, again._last = first._round, list(first._last)
    again._sum_request = lambda spec, number: first._sum_request(spec, 1)  # mask 1
    with pytest.raises(PartyFailed, match="sum 1 of distances would reuse"):
        hidden(again, 2.0)


def test_where_a_folder_is_put_back_the_reply_is_that_of_the_copy(tmp_path):
    """What the page on security says; the masks differ still, with the question."""
    known = before(first := begun(tmp_path / "now"))
    shutil.copytree(tmp_path / "now", tmp_path / "copy")
    reply = hidden(first)
    other = hidden(taken_up(known, tmp_path / "copy"), 2.0)
    difference = group("ring", 2.0**20, 3).decode(reply - other)[:, 0]
    X = first.grid._parties[1000 + VICTIM].X[:LIMIT]
    truth = ((X - 1) ** 2).sum(axis=1) - ((X - 2) ** 2).sum(axis=1)
    # Noise: of ten numbers in [-2^22, 2^22) one is right with a chance below 1e-11.
    assert np.abs(difference - truth).min() > 1e-6


def test_the_run_that_was_left_answers_no_more(tmp_path, first):
    """Its state in memory is older than the one on the disk."""
    pool(first, range(2))
    pool(taken_up(first, tmp_path), range(4))
    with pytest.raises(PartyFailed, match="has discarded the session"):
        pool(first, range(6))


def test_rows_are_counted_on(tmp_path, first):
    pool(first, range(LIMIT))
    again = taken_up(first, tmp_path)
    pool(again, range(LIMIT))
    with pytest.raises(PartyFailed, match=f"at most {LIMIT} rows to leave"):
        pool(again, range(LIMIT, LIMIT + 1))


def totals(parties, size):
    return parties.ask(coresets.totals, size=size, test_fraction=0.0, intercept=True)


def test_what_is_answered_once_is_not_answered_again(tmp_path, first):
    totals(first, 4)
    with pytest.raises(PartyFailed, match="requested only once in a session"):
        totals(taken_up(first, tmp_path), 5)


def test_a_session_is_forgotten_after_a_day(tmp_path, monkeypatch, first):
    """It does not begin anew, with new keys. How many are kept: test_journal.py."""
    pool(first, range(2))
    later = journal.time.time() + journal.STATE_SECONDS + 1
    monkeypatch.setattr(journal.time, "time", lambda: later)
    with pytest.raises(PartyFailed, match="has discarded the session"):
        taken_up(first, tmp_path)


def test_sessions_are_counted_on(tmp_path, first):
    for _ in range(MOST_SESSIONS - 1):
        first = Parties(Exchange(first.grid), seed=0)
    with pytest.raises(PartyFailed, match=f"more than {MOST_SESSIONS} sessions"):
        Parties(Exchange(taken_up(first, tmp_path).grid), seed=0)


def test_a_run_that_has_begun_takes_up_no_session(tmp_path, first):
    """Its own counts would be lost."""
    with pytest.raises(PartyFailed, match="cannot resume another run"):
        greet(begun(tmp_path)._exchange, first._greeter.message(3))


# -- what a disk tells -----------------------------------------------------------------


def secrets_of(grid):
    """Return what takes the masks off, and draws rows, of each party of a run."""
    names = ("private_key", "run_secret")
    known = [context.state["session"] for context in grid._contexts.values()]
    return [[session[name] for name in names] for session in known]


def opened(folder, key):
    """Return the state that a disk has, as one reads it who has a key."""
    with closing(sqlite3.connect(folder / journal.FILE)) as db:
        numbers = "SELECT run, session FROM sessions ORDER BY rowid DESC"
        run, session = db.execute(numbers).fetchone()
        state = "SELECT content FROM locked_states WHERE run = ?"
        (content,) = db.execute(state, (run,)).fetchone()
    memory = Memory(RecordDict())
    memory.restore(Vault(key, session).open(b"state", content), lambda _: b"", key)
    return memory.state["session"]


def test_the_disk_of_a_party_alone_tells_nothing_of_a_session(tmp_path, first):
    """Its journal had the private key: whoever had recorded messages unmasked them."""
    totals(first, 4)
    hidden(first)
    for name, secrets in zip("abc", secrets_of(first.grid), strict=True):
        folder = tmp_path / name
        disk = b"".join(p.read_bytes() for p in folder.iterdir() if p.is_file())
        assert not [secret for secret in secrets if secret in disk]
        with pytest.raises(PartyError, match="not decrypt this party's session state"):
            opened(folder, bytes(32))
        assert [p.name for p in folder.iterdir() if "journal-" in p.name] == []
        assert (folder / journal.FILE).stat().st_mode & 0o777 == 0o600


def test_nor_does_it_confirm_a_guess(tmp_path, first):
    """Arrays that a step remembers were known by their SHA-256: labels, say."""
    pool(first, range(4))
    totals(first, 4)
    for name, context in zip("abc", first.grid._contexts.values(), strict=True):
        _, arrays = Memory(context.state).pack()
        disk = (tmp_path / name / journal.FILE).read_bytes()
        assert arrays
        for digest, value in arrays.items():
            assert digest == hashlib.sha256(value).digest()
            assert digest not in disk


# -- the key that a server sends -------------------------------------------------------


def forgetful(grid):
    """Let the SuperNodes of a run be started again: they remember nothing."""
    for context in grid._contexts.values():
        Memory(context.state).forget()


def test_a_supernode_that_is_started_again_takes_the_key_of_a_message(first):
    pool(first, range(2))
    known = secrets_of(first.grid)
    forgetful(first.grid)
    pool(first, range(4))
    assert secrets_of(first.grid) == known


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        (bytes(32), "does not decrypt this party's session state"),
        (bytes(31), "'state_key' must have 32 bytes|'state_key'"),
        (None, "lacks the key to the session"),
    ],
)
def test_a_bad_key_is_refused_in_a_sentence(tmp_path, key, rule, first):
    pool(first, range(2))
    again = taken_up(first, tmp_path)
    again._state_keys = [*first._state_keys[:2], key]
    with pytest.raises(PartyFailed, match=rule) as failure:
        pool(again, range(4))
    assert failure.value.party == "c"


def greeted_anew(parties, goes_on=False):
    """Greet SuperNodes that were started again, in a session by its number."""
    forgetful(parties.grid)
    frame = {"session": parties.session, "goes_on": goes_on}
    exchange = Exchange(parties.grid, Ledger(), 10.0)
    return greet(exchange, pack({"partition": "vertical"}, frame))


def test_a_party_gives_its_key_to_nobody_who_goes_on(first):
    """One who knows the number of a session alone learns what is public."""
    pool(first, range(2))
    for goes_on in (False, True):
        said = greeted_anew(first, goes_on)
        assert keys(said) == first._peers
        assert not any("state_key" in reply for reply in said)


def test_a_greeting_whose_reply_was_lost_gives_new_keys(first):
    """Nobody has the key of the state, and nothing was answered in the session."""
    said = greeted_anew(first)
    assert not any(reply["public_key"] in first._peers for reply in said)
    assert all("state_key" in reply for reply in said)


def memories(parties):
    contexts = parties.grid._contexts.items()
    return {node: copy.deepcopy(dict(context.state)) for node, context in contexts}


def restore(parties, states):
    """Give SuperNodes the memory that they had."""
    forgetful(parties.grid)
    for node, records in states.items():
        for name, record in records.items():
            parties.grid._contexts[node].state[name] = record


def test_of_two_greetings_one_session_goes_on(first):
    """Else the party would answer two requests in each round."""
    states, other = memories(first), before(first)
    said = greeted_anew(first)
    other._peers = keys(said)
    other._state_keys = [reply["state_key"] for reply in said]
    after = memories(first)
    restore(first, states)
    pool(first, range(2))
    restore(first, after)
    other._round += 1
    with pytest.raises(PartyFailed, match="not decrypt this party's session state"):
        pool(other, range(4))
