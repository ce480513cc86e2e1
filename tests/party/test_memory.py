"""What a party keeps between messages; the rest is in ``test_answering.py``."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from consents import limited
from flwr.app import RecordDict

from vfl_flower import Party
from vfl_flower.clients.coresets import linear
from vfl_flower.clients.coresets import sampling as coresets
from vfl_flower.party.memory import Memory
from vfl_flower.party.party import PartyError, stored_as
from vfl_flower.protocol.frame import Frame, SumRequest
from vfl_flower.typing import Array

X = np.ones((20, 2))
REPLY = b"digest of a reply"


@stored_as("labels")
class Labels:
    labels: Array
    count: int = 0


class Run:
    def __init__(self, session: int = 7) -> None:
        self.memory = Memory(RecordDict())
        self.step: Any = coresets.scores
        key = self.memory.open(session)
        of_party = {"parties": 2, "index": 1, "peers": bytes(32) + key}
        self.frame = Frame(session, 3, False, "ring", 0, previous=0, **of_party)

    def enter(self, again: bool = False, **changes: Any) -> Party:
        last = self.frame.round
        new = {} if again else {"round": last + 1, "previous": last}
        self.frame = replace(self.frame, **new | changes)
        party = Party(X)
        party.consent = limited(15)
        self.memory.enter(self.frame, party)
        return party

    def leave(self, party: Party) -> None:
        self.memory.leave(self.frame, party, self.step, b"inputs", REPLY)


def test_shared_rows_add_up_over_rounds_and_no_step_can_forget_them():
    run = Run()
    party = run.enter()
    party.share(np.arange(10), "rows")
    run.leave(party)
    party = run.enter()
    assert party.shared["rows"].sum() == 10
    party.shared = {}  # a step that would begin to count anew
    run.leave(party)
    party = run.enter()
    party.shared = {"rows": np.zeros(20, dtype=bool)}
    run.leave(party)
    with pytest.raises(PartyError, match=r"at most 15 .* requests 16"):
        run.enter().share(np.arange(10, 16), "rows")
    assert run.memory.open(8)
    assert "shared.rows" not in run.memory._session  # a new run


def test_rows_of_a_failed_or_repeated_round_count_once():
    run = Run()
    run.enter().share(np.arange(10), "rows")  # the step fails after that
    party = run.enter(again=True)
    party.share(np.arange(15), "rows")
    run.leave(party)
    party = run.enter(again=True)
    party.share(np.arange(15), "rows")
    run.leave(party)
    assert run.enter().shared["rows"].sum() == 15


def test_what_is_remembered_can_be_read_by_name():
    run = Run()
    assert run.memory.remembered("labels") is None
    party = run.enter()
    party.remember(Labels(np.arange(4), 5))
    run.leave(party)
    np.testing.assert_array_equal(run.memory.remembered("labels"), np.arange(4))
    assert run.memory.remembered("count") is None  # no array
    assert run.memory.remembered("centers") is None


def test_a_refused_message_leaves_no_trace_in_the_party():
    run = Run()
    run.leave(run.enter(sums={"total": SumRequest(3, 1.0, "ring")}))
    party, again = Party(X), replace(run.frame, round=2, previous=1)
    with pytest.raises(PartyError, match="sum 3 of total would reuse"):
        run.memory.enter(again, party)
    assert party.index is None
    assert party.n_parties == party.seed == 0


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"parties": 3}, "the run has 2 parties, but the message states 3"),
        ({"previous": 0}, "round 2 does not follow round 1"),
        ({"peers": bytes(64)}, "public keys changed"),
        ({"seed": 4}, "the seed changed"),
        ({"private_draws": True}, "the seed changed"),
        ({"again": True, "digest": b"other"}, "round 1 is over: the last round was 1"),
    ],
)
def test_a_message_that_says_other_things_of_its_run(changes, rule):
    run = Run()
    run.leave(run.enter())
    with pytest.raises(PartyError, match=rule):
        run.enter(**changes)


def test_a_step_that_is_answered_once():
    """Only the same sums may be asked again, and only right after the first time."""
    run = Run()
    run.step = linear.coefficients

    def repeats(inputs=b"inputs"):
        return run.memory.repeats(run.frame, run.step, inputs)

    party = run.enter()
    assert not repeats()
    run.leave(party)
    assert repeats()  # the same message
    party = run.enter()
    assert repeats()  # with wider bounds, say
    with pytest.raises(PartyError, match="may be requested only once in a session"):
        repeats(b"other inputs")
    with pytest.raises(PartyError, match="requested only once"):
        repeats(b"")  # it gives no sums
    run.step = coresets.scores
    run.leave(party)
    run.step = linear.coefficients
    party = run.enter()
    with pytest.raises(PartyError, match="requested only once"):
        repeats()
    run.memory.leave(run.frame, party, run.step, b"", REPLY)
    run.enter()
    with pytest.raises(PartyError, match="requested only once"):
        repeats(b"")  # without sums there is nothing to widen


@pytest.mark.parametrize("other", [X[:19], np.ones((20, 3)), "order"])
def test_rows_that_change_during_a_run(other):
    """Such as those of a file that is sorted anew between two messages."""
    ids = np.arange(20)
    run = Run()
    run.enter()
    run.leave(Party(X, ids=ids))
    frame = replace(run.frame, round=2, previous=1)
    run.memory.enter(frame, Party(X, ids=ids))
    party = Party(X, ids=ids[::-1]) if isinstance(other, str) else Party(other)
    with pytest.raises(PartyError, match="the data changed during the run"):
        run.memory.enter(frame, party)


def test_no_session_has_a_place_before_the_first():
    assert Memory(RecordDict()).place == (-1, 0)
