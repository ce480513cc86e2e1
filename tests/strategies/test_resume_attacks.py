"""What a server gains that goes on with a session otherwise than it was.

The parties run the code of SuperNodes and have folders; each new grid is a run of its
own, in which they know what is in their folders and no more.
"""

import copy
import shutil

import numpy as np
import pytest
from consents import limited
from deviating import RealParties

from vfl_flower import Party, PartyFailed
from vfl_flower.clients import coresets, linear
from vfl_flower.protocol import journal
from vfl_flower.protocol.checkpoint import Checkpoint
from vfl_flower.protocol.exchange import Exchange
from vfl_flower.protocol.journal import MOST_SESSIONS
from vfl_flower.protocol.ledger import Ledger
from vfl_flower.protocol.parties import Parties
from vfl_flower.protocol.steps import each

N, LIMIT = 60, 10
VICTIM = 1


def grid_on(folder):
    """Return a run with the parties of a folder."""
    rng = np.random.default_rng(1)
    blocks = np.hsplit(rng.normal(size=(N, 6)), 3)
    y = np.hstack(blocks).sum(axis=1)
    parties = [
        Party(
            B,
            y=y if name == "c" else None,
            ids=np.arange(N),
            name=name,
            state_dir=folder / name,
            consent=limited(LIMIT),
        )
        for name, B in zip("abc", blocks, strict=True)
    ]
    return RealParties(parties)


class Salts(Checkpoint):
    """The server's draws, which are the same when a run goes on."""

    def token(self, size):
        """Return the same bytes each time."""
        return bytes(size)


def begun(folder):
    """Begin a session, as a server that follows the protocol."""
    return Parties(grid_on(folder), Ledger(), seed=0, checkpoint=Salts())


def taken_up(parties, folder, greet=True):
    """Go on with a session in another run, with all that the server knew of it."""
    again = copy.copy(parties)
    again.grid, again._last = grid_on(folder), list(parties._last)
    again._exchange = Exchange(again.grid, Ledger(), 10.0)
    if greet:
        names = {info.node_id: info.name for info in parties}
        contents = dict.fromkeys(names, parties._greeting(3))
        replies = again._exchange("hello", contents, names)
        keys = b"".join(reply.values["public_key"] for reply in replies)
        assert keys == parties._peers
    return again


def pool(parties, rows):
    rows = np.asarray(rows, dtype=np.uint32)
    return parties.ask(coresets.pooled_rows, test_fraction=0.0, labels=False, rows=rows)


def hidden(parties, coefficient=1.0):
    """Ask for residuals of ten rows; return what the victim sends under its mask."""
    seen = {}
    checked = parties._checked

    def keep(step, j, *rest):
        seen[j] = checked(step, j, *rest)
        return seen[j]

    parties._checked = keep
    parties.secure_sum(
        linear.residuals.summing(residual=16.0),
        coefficients=each([np.full(p.n_columns, coefficient) for p in parties]),
        intercept=0.0,
        test_fraction=0.0,
        test=False,
        trained=False,
        start=0,
        stop=LIMIT,
    )
    return seen[VICTIM].hidden["residual"]


def test_the_same_question_gets_the_same_reply(tmp_path):
    """As where the server was killed before it had kept the reply."""
    first = begun(tmp_path)
    before = copy.copy(first)
    before._last = list(first._last)
    reply = hidden(first)
    np.testing.assert_array_equal(hidden(taken_up(before, tmp_path)), reply)


def test_another_question_under_the_same_mask_is_refused(tmp_path):
    """The difference of two replies would be that of the addends."""
    first = begun(tmp_path)
    before = copy.copy(first)
    before._last = list(first._last)
    hidden(first)
    again = taken_up(before, tmp_path)
    with pytest.raises(PartyFailed, match="round 1 is over, says this party's journal"):
        hidden(again, 2.0)
    again._round, again._last = first._round, list(first._last)
    again._sum_request = lambda spec, number: first._sum_request(spec, 1)  # mask 1
    with pytest.raises(PartyFailed, match="masks of residual 1 have been used"):
        hidden(again, 2.0)


def test_where_a_folder_is_put_back_the_reply_is_that_of_the_copy(tmp_path):
    """What the page on security says; the masks differ still, with the question."""
    first = begun(tmp_path / "now")
    before = copy.copy(first)
    before._last = list(first._last)
    shutil.copytree(tmp_path / "now", tmp_path / "copy")
    reply = hidden(first)
    other = hidden(taken_up(before, tmp_path / "copy"), 2.0)
    difference = (reply - other).view(np.int64)
    assert np.abs(difference).min() > 2**40  # noise, and no fixed-point number


def test_the_run_that_was_left_answers_no_more(tmp_path):
    """Its state in memory is older than the one on the disk."""
    first = begun(tmp_path)
    pool(first, range(2))
    pool(taken_up(first, tmp_path), range(4))
    with pytest.raises(PartyFailed, match="knows of another session"):
        pool(first, range(6))


def test_without_a_greeting_no_run_goes_on(tmp_path):
    first = begun(tmp_path)
    pool(first, range(2))
    with pytest.raises(PartyFailed, match="knows of another session"):
        pool(taken_up(first, tmp_path, greet=False), range(4))


@pytest.mark.parametrize("change", ["key", "fewer"])
def test_with_other_parties_it_does_not_go_on(tmp_path, change):
    first = begun(tmp_path)
    pool(first, range(2))
    again = taken_up(first, tmp_path)
    again._last = [0, 0, 0]  # so that the keys are told again
    if change == "key":
        again._peers = first._peers[:64] + bytes(range(32))
        rule = "public keys changed"
    else:
        again._peers, again._infos = first._peers[:64], first._infos[:2]
        rule = "public keys changed|has 3 parties"
    with pytest.raises(PartyFailed, match=rule):
        pool(again, range(4))


def test_rows_are_counted_on(tmp_path):
    first = begun(tmp_path)
    pool(first, range(LIMIT))
    again = taken_up(first, tmp_path)
    pool(again, range(LIMIT))
    with pytest.raises(PartyFailed, match=f"consent lets {LIMIT} rows leave"):
        pool(again, range(LIMIT, LIMIT + 1))


def totals(parties, size):
    return parties.ask(coresets.totals, size=size, test_fraction=0.0, intercept=True)


def test_what_is_answered_once_is_not_answered_again(tmp_path):
    first = begun(tmp_path)
    totals(first, 4)
    again = taken_up(first, tmp_path)
    with pytest.raises(PartyFailed, match="answered once in a session"):
        totals(again, 5)


def test_a_session_that_was_forgotten_does_not_begin_anew(tmp_path):
    """With new keys, and nothing that is answered once: a session that is not counted.

    A server that began another session made the parties forget the first one.
    """
    first = begun(tmp_path)
    pool(first, range(2))
    begun(tmp_path)
    with pytest.raises(PartyFailed, match="has forgotten the session"):
        taken_up(first, tmp_path)


def test_a_session_is_forgotten_after_a_day(tmp_path, monkeypatch):
    first = begun(tmp_path)
    pool(first, range(2))
    later = journal.time.time() + journal.STATE_SECONDS + 1
    monkeypatch.setattr(journal.time, "time", lambda: later)
    with pytest.raises(PartyFailed, match="has forgotten the session"):
        taken_up(first, tmp_path)


def test_sessions_are_counted_on(tmp_path):
    first = begun(tmp_path)
    for _ in range(MOST_SESSIONS - 1):
        first = Parties(first.grid, Ledger(), seed=0)
    again = taken_up(first, tmp_path)
    with pytest.raises(PartyFailed, match=f"has begun {MOST_SESSIONS} times"):
        Parties(again.grid, Ledger(), seed=0)


def test_a_run_that_has_begun_takes_up_no_session(tmp_path):
    """Its own counts would be lost."""
    first = begun(tmp_path)
    other = begun(tmp_path)
    names = {info.node_id: info.name for info in first}
    contents = dict.fromkeys(names, first._greeting(3))
    with pytest.raises(PartyFailed, match="must have begun none"):
        other._exchange("hello", contents, names)


def test_of_a_session_that_is_over_no_key_stays(tmp_path):
    first = begun(tmp_path)
    hidden(first)
    keys = [c.state["session"]["private_key"] for c in first.grid._contexts.values()]
    files = [(tmp_path / name / journal.FILE) for name in "abc"]
    assert all(k in f.read_bytes() for k, f in zip(keys, files, strict=True))
    begun(tmp_path)
    for key, file in zip(keys, files, strict=True):
        assert key not in file.read_bytes()
        assert [p.name for p in file.parent.iterdir() if "journal-" in p.name] == []
        assert file.stat().st_mode & 0o777 == 0o600
