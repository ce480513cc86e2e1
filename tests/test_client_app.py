"""What a party answers to any message, fair or foul."""

import csv
import errno
import logging
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import context_from_proto, context_to_proto
from transcripts import Recorder

from vfl_flower import (
    FederationError,
    Ledger,
    Party,
    PartyFailed,
    __version__,
    client_app,
)
from vfl_flower.client_app import (
    DAMAGED,
    FAILED,
    REFUSED,
    hello,
    kept_part,
    load_from_context,
    make_client_app,
    register,
    run_of,
)
from vfl_flower.clients.base import STEPS, PartyError, Step
from vfl_flower.messages import digest, pack, unpack
from vfl_flower.model_parts import ModelPart, load_part, save_part
from vfl_flower.secure_aggregation import group, unmask_sum
from vfl_flower.simulations import InProcessGrid
from vfl_flower.strategies import CoresetVRLR, sampling
from vfl_flower.strategies.parties import Parties

SECRET = 271828.1828
SESSION = 11


def counter(party: Party, add: int = 1) -> dict[str, Any]:
    """Count in the party's memory, in a setting and in an array."""
    party.state["calls"] = party.state.get("calls", 0) + add
    party.state["sum"] = party.state.get("sum", np.zeros(2)) + party.X[0, 0]
    return {"calls": party.state["calls"], "sum": party.state["sum"]}


def total(party: Party, add: int = 0) -> dict[str, Any]:
    """Send a masked sum that depends on the memory."""
    party.state["calls"] = party.state.get("calls", 0) + 1
    return {"total": party.X[:, 0] + party.state["calls"] + add, "calls": 0}


def failing(party: Party) -> dict[str, Any]:
    party.state["calls"] = 100
    raise ValueError(f"/home/ann/flights.csv row 3 is {SECRET}")


def refusing(party: Party) -> dict[str, Any]:
    raise PartyError("column 'delay' has no label")


def protecting(party: Party) -> dict[str, Any]:
    """Say whether the party may take part in what does not protect it."""
    return {"allowed": party.allow_plain}


def training(party: Party) -> dict[str, Any]:
    """Make a part of a model; say how much of one there was."""
    had = len(party.part)
    party.part = dict(PART)
    return {"had": had}


def spoiling(party: Party) -> dict[str, Any]:
    party.part = dict(PART)
    raise ValueError("too late")


def probing(party: Party) -> dict[str, Any]:
    """Read the part of the model."""
    return {"seed": party.part["seed"]}


def predicting(party: Party) -> dict[str, Any]:
    """Predict three values."""
    assert party.part["seed"] == "a1"
    party.predictions = np.array([1.5, -2.0, 0.1])
    return {}


def drawing(party: Party) -> dict[str, Any]:
    return {"numbers": party.rng("draw").integers(2**62, size=4)}


@pytest.fixture(autouse=True)
def steps(monkeypatch):
    """Give the app some more steps."""
    known = (counter, failing, refusing, drawing, protecting)
    for function in (*known, training, spoiling, probing, predicting, total):
        name = function.__name__
        sums = ("total",) if function is total else ()
        monkeypatch.setitem(STEPS, name, Step(name, function, sums))


class Server:
    """A server that sends whatever it is told."""

    def __init__(self, *, allow_plain: bool = False) -> None:
        X = np.full((3, 2), SECRET)
        self.parties = [Party(X, name="a"), Party(X / 2, y=X[:, 0], name="b")]
        self.grid = InProcessGrid(self.parties)
        self.grid._app = make_client_app(
            lambda context: self.grid._parties[context.node_id], allow_plain=allow_plain
        )
        self.session = SESSION
        self.peers = b"".join(
            self.values("hello", node=j)["public_key"] for j in range(2)
        )

    def frame(self, action: str, round: int, node: int) -> dict[str, Any]:
        """Return what a server that follows the protocol sends besides values."""
        if action == "hello":
            return {"session": self.session}
        return {
            "session": self.session,
            "seed": 3,
            "masking": "ring",
            "round": round,
            "previous": round - 1,
            "parties": 2,
            "index": node,
            "peers": self.peers,
            "sum.total": round,
            "group.total": "ring",
            "bound.total": 2.0**20,
        }

    def send(self, action: str, content: RecordDict, node: int) -> Message:
        """Send any content; return the reply."""
        message = Message(content, 1000 + node, f"train.{action}")
        (reply,) = self.grid.send_and_receive([message])
        return reply

    def ask(
        self,
        action: str,
        round: int = 1,
        node: int = 0,
        frame: dict[str, Any] | None = None,
        without: tuple[str, ...] = (),
        **values: Any,
    ) -> Message:
        """Send values, and the frame with changes; return the reply."""
        sent = self.frame(action, round, node) | (frame or {})
        sent = {name: value for name, value in sent.items() if name not in without}
        return self.send(action, pack(values, sent), node)

    def values(self, action: str, *args: Any, **values: Any) -> dict[str, Any]:
        """Return the values of the reply to :meth:`ask`."""
        return unpack(self.ask(action, *args, **values).content)[0]

    def error(self, action: str, *args: Any, **values: Any) -> Error:
        """Return the error that :meth:`ask` meets."""
        return self.ask(action, *args, **values).error


@pytest.fixture
def server() -> Server:
    return Server()


# -- hello -----------------------------------------------------------------------------


def test_hello_says_these_facts_and_no_more(server):
    found = server.values("hello", node=1)
    assert len(found.pop("public_key")) == 32
    assert found == {
        "name": "b",
        "index": 1,
        "n_parties": 0,
        "n_rows": 3,
        "n_columns": 2,
        "n_labels": 3,
        "ids_digest": "",
        "columns_digest": "",
        "version": __version__,
    }


def test_hello_of_a_party_without_name_and_place():
    found = hello(Party(np.ones((2, 1)), ids=np.array([1, 2])))
    assert (found["name"], found["index"], found["n_labels"]) == ("", -1, 0)
    assert len(found["ids_digest"]) == 64


def test_hello_counts_the_labels_that_the_party_knows():
    y = np.array([1.0, np.nan, -1.0, np.nan])
    assert hello(Party(np.ones((4, 1)), y=y))["n_labels"] == 2


NAMES = ["age", "weight"]


def test_hello_where_rows_are_split_has_a_digest_of_the_column_names(server):
    party = server.grid._parties[1000]
    party.columns = NAMES
    found = server.values("hello", partition="horizontal")["columns_digest"]
    assert len(found) == 64
    assert server.values("hello", partition="vertical")["columns_digest"] == ""
    assert server.values("hello")["columns_digest"] == ""
    message = server.ask("hello", partition="horizontal")
    assert not any(name in str(message.content) for name in NAMES)
    for other in (NAMES[::-1], ["age", "height"], ["agew", "eight"]):
        party.columns = other
        again = server.values("hello", partition="horizontal")
        assert again["columns_digest"] != found
    party.columns = None
    assert server.values("hello", partition="horizontal")["columns_digest"] == ""


@pytest.mark.parametrize("partition", ["horizontal", "vertical"])
def test_hello_digests_ids_however_data_are_split(partition):
    """The server compares them where they should be the same."""
    party = Party(np.ones((2, 1)), ids=np.array([1, 2]))
    assert len(hello(party, partition)["ids_digest"]) == 64


def test_key_is_the_same_within_a_session_and_new_in_the_next(server):
    first = server.values("hello")["public_key"]
    assert server.values("hello")["public_key"] == first
    server.values("counter")
    assert server.values("hello")["public_key"] == first
    server.session += 1
    assert server.values("hello")["public_key"] != first


def test_new_session_forgets_the_last_run(server):
    assert server.values("counter")["calls"] == 1
    server.session += 1
    server.peers = b"".join(
        server.values("hello", node=j)["public_key"] for j in (0, 1)
    )
    assert server.values("counter")["calls"] == 1


def test_no_private_key_leaves_the_party(server):
    context = server.grid._contexts[1000]
    private = context.state["session"]["private_key"]
    for reply in (server.ask("hello"), server.ask("counter"), server.ask("total", 2)):
        content = reply.content
        for record in ("settings", "frame"):
            assert private not in content[record].values()
        for array in content["arrays"].values():
            assert private not in array.data


# -- rounds and memory -----------------------------------------------------------------


def test_memory_goes_from_round_to_round(server):
    for round in (1, 2, 3):
        found = server.values("counter", round)
        assert found["calls"] == round
        np.testing.assert_array_equal(found["sum"], np.full(2, round * SECRET))


def test_memory_is_the_partys_own(server):
    server.values("counter", node=0)
    assert server.values("counter", node=1)["calls"] == 1


@pytest.mark.parametrize("round", [3, 5])
def test_round_that_does_not_follow(server, round):
    server.values("counter", 1)
    error = server.error("counter", round)
    assert (error.code, error.reason) == (
        REFUSED,
        f"round {round} does not follow round 1: this party has lost the state of a "
        "round",
    )
    assert server.values("counter", 2)["calls"] == 2  # and nothing was done


def test_first_round_is_the_first(server):
    error = server.error("total", 2)
    assert (error.code, error.reason) == (
        REFUSED,
        "round 2 does not follow round 0: this party has lost the state of a round",
    )


def test_party_that_is_back_in_the_state_of_an_older_round(server):
    server.values("total", 1)
    old = context_to_proto(server.grid._contexts[1000])
    server.values("total", 2)
    server.grid._contexts[1000] = context_from_proto(old)
    assert server.error("total", 3).code == REFUSED


def test_same_round_gets_the_same_reply(server):
    for round in (1, 2):
        first = server.values("counter", round)
        np.testing.assert_equal(server.values("counter", round), first)
        np.testing.assert_equal(server.values("counter", round), first)
    assert server.values("counter", 3)["calls"] == 3


def test_same_round_gets_the_same_masked_reply(server):
    first = server.values("total")
    np.testing.assert_equal(server.values("total"), first)


@pytest.mark.parametrize("action", ["counter", "total"])
def test_same_round_with_another_reply_is_refused(server, action):
    """Under one mask the two replies would show their difference."""
    before = digest(pack(server.values(action, 1)))
    party = server.grid._parties[1000]
    true, party.X = party.X, party.X + 1
    error = server.error(action, 1)
    assert (error.code, error.reason) == (
        REFUSED,
        "round 1 has another reply than before: the party's data have changed during "
        "the run",
    )
    party.X = true
    assert digest(pack(server.values(action, 1))) == before
    party.X = true + 1  # new rounds have new masks
    server.values(action, 2)


def test_same_round_after_a_failed_one_gets_the_same_reply_or_none(server):
    """The mask of round 1 must not come back over another value."""
    first = server.values("total", 1)["total"]
    assert server.error("failing", 2).code == FAILED
    again = server.ask("total", 1)
    if again.has_content():
        np.testing.assert_array_equal(unpack(again.content)[0]["total"], first)


def test_failed_step_leaves_the_memory_as_it_was(server):
    server.values("counter", 1)
    assert server.error("failing", 2).code == FAILED
    assert server.values("counter", 2)["calls"] == 2
    assert server.values("counter", 3)["calls"] == 3


def test_round_that_is_over(server):
    server.values("total", 1)
    server.values("total", 2)
    error = server.error("total", 1)
    assert (error.code, error.reason) == (
        REFUSED,
        "round 1 is over, the last one was 2",
    )


@pytest.mark.parametrize(
    "change",
    [{"add": 1}, {"frame": {"bound.total": 2.0**10}}, {"frame": {"seed": 4}}],
    ids=["value", "bound", "seed"],
)
def test_other_question_in_the_same_round(server, change):
    server.values("total", 1)
    error = server.error("total", 1, **change)
    assert (error.code, error.reason) == (
        REFUSED,
        "round 1 is over, the last one was 1",
    )


def test_other_step_in_the_same_round(server):
    # The content is the same, bit for bit: only the type of the message differs.
    server.values("total", 1)
    assert server.ask("counter", 1).has_error()


def after(round: int) -> dict[str, Any]:
    return {"frame": {"previous": round}}


def test_rounds_in_which_a_party_was_not_asked(server):
    server.values("counter", 2, **after(0))
    assert server.values("counter", 5, **after(2))["calls"] == 2
    assert server.values("counter", 5, **after(2))["calls"] == 2
    error = server.error("counter", 9, **after(7))
    assert (error.code, error.reason) == (
        REFUSED,
        "round 9 does not follow round 5: this party has lost the state of a round",
    )
    error = server.error("counter", 4, **after(2))
    assert (error.code, error.reason) == (
        REFUSED,
        "round 4 is over, the last one was 5",
    )
    assert server.values("counter", 9, **after(5))["calls"] == 3


def test_party_that_lost_its_memory(server):
    server.values("counter", 1)
    server.grid._contexts[1000].state.clear()
    error = server.error("counter", 2)
    assert (error.code, error.reason) == (
        REFUSED,
        "this party was restarted and has lost the run's state",
    )


def test_message_of_another_session(server):
    server.session += 1
    assert server.error("counter").reason == (
        "this party was restarted and has lost the run's state"
    )


# -- keys and masks --------------------------------------------------------------------


def test_keys_are_needed_once(server):
    server.values("total", 1)
    assert "total" in server.values("total", 2, without=("peers",))


def test_party_that_was_greeted_twice(server):
    server.values("counter", 1)
    server.grid._contexts[1000].state.clear()
    server.values("hello")
    for round in (1, 2):
        error = server.error("counter", round, without=("peers",))
        assert (error.code, error.reason) == (
            REFUSED,
            "this party was greeted twice and has lost the run's keys",
        )


def test_other_keys_later(server):
    server.values("counter", 1)
    peers = server.peers[:32] + bytes(range(32))
    error = server.error("counter", 2, frame={"peers": peers})
    assert (error.code, error.reason) == (
        REFUSED,
        "the parties' public keys changed during the run",
    )


@pytest.mark.parametrize(
    "peers",
    [
        lambda own: own[32:] + own[:32],
        lambda own: own[:32] * 2,
        lambda own: own[:32],
        lambda own: own[:40],
        lambda own: own[:32] + bytes(32),
    ],
    ids=["swapped", "twice its own", "one", "cut", "of small order"],
)
def test_keys_that_do_not_protect(server, peers):
    error = server.error("total", frame={"peers": peers(server.peers)})
    assert error.code in (FAILED, REFUSED)


def test_masks_hide_each_and_cancel_in_the_sum(server):
    replies = [server.values("total", node=j)["total"] for j in (0, 1)]
    ring = group("ring", 2.0**20, 2)
    expected = np.full(3, 1.5 * SECRET) + 2
    np.testing.assert_allclose(unmask_sum(replies, ring), expected, rtol=1e-12)
    for reply, party in zip(replies, server.parties, strict=True):
        assert reply.dtype == np.uint64
        bare, _ = ring.encode(party.X[:, 0] + 1)
        assert (np.abs(ring.decode(reply - bare)) > 1).all()


def test_clipped_values_are_counted(server):
    content = server.ask("total", frame={"bound.total": 10.0}).content
    assert unpack(content)[1]["clipped"] == 3


def test_sum_that_was_not_asked_as_one(server):
    error = server.error("total", without=("bound.total",))
    assert (error.code, error.reason) == (
        REFUSED,
        "total sends 'total' only into a sum, and the server asked for none",
    )


PLAIN = {"masking": "plain", "group.total": "plain"}


@pytest.mark.parametrize(
    ("action", "frame"),
    [
        ("total", PLAIN),
        ("total", {"masking": "plain"}),
        ("total", {"group.total": "plain"}),  # of a run that masks its other sums
        ("counter", {"masking": "plain"}),
    ],
)
def test_plain_sums_are_refused(server, action, frame):
    error = server.error(action, frame=frame)
    assert (error.code, error.reason) == (
        REFUSED,
        "this party sends its addends only under masks",
    )


def test_plain_sums_where_they_are_allowed():
    found = Server(allow_plain=True).values("total", frame=PLAIN)
    np.testing.assert_array_equal(found["total"], np.full(3, SECRET + 1))


def test_the_ready_app_refuses_plain_sums(monkeypatch):
    seen = []
    monkeypatch.setattr(client_app, "register", lambda *a, **k: seen.append(k))
    make_client_app(lambda context: None)
    assert seen == [{"allow_plain": False}]


def test_unknown_masking(server):
    assert server.error("total", frame={"group.total": "none"}).code == FAILED


def test_a_step_is_told_whether_the_party_takes_part_unprotected(server):
    assert server.values("protecting")["allowed"] is False
    assert Server(allow_plain=True).values("protecting")["allowed"] is True


@pytest.mark.parametrize("number", [1, 0, -1])
def test_mask_that_has_been_used(server, number):
    server.values("total", 1)
    error = server.error("total", 2, frame={"sum.total": number})
    assert (error.code, error.reason) == (
        REFUSED,
        f"the masks of sum.total {number} have been used",
    )
    assert "total" in server.values("total", 2)  # and nothing was done


def test_mask_number_is_whole(server):
    """1.5 is more than 1, and would be cut to it."""
    server.values("total", 1)
    assert server.error("total", 2, frame={"sum.total": 1.5}).code == FAILED


def test_masks_of_other_names_and_of_none_count_for_themselves(server):
    server.values("total", 1, frame={"sum.total": 7})
    server.values("counter", 2, without=("sum.total",))
    assert server.error("total", 3, frame={"sum.total": 7}).code == REFUSED
    other = {"sum.total": 8, "sum.angles": 3}
    assert "total" in server.values("total", 3, frame=other)


def test_sum_without_a_number(server):
    assert server.error("total", without=("sum.total",)).code == FAILED


# -- errors ----------------------------------------------------------------------------


def test_exception_leaves_no_value_path_or_stack(server, caplog):
    error = server.error("failing")
    assert error.code == FAILED
    assert error.reason == "ValueError; the stack is in the party's own log"
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("vfl_flower", logging.ERROR)
    assert record.getMessage() == "step failing failed"
    assert str(SECRET) in caplog.text
    assert "test_client_app.py" in caplog.text


def test_refusal_says_why(server, caplog):
    error = server.error("refusing")
    assert (error.code, error.reason) == (REFUSED, "column 'delay' has no label")
    assert caplog.messages == ["refused refusing: column 'delay' has no label"]


def test_data_that_cannot_be_loaded(server, caplog):
    def load(context):
        raise {1000: PartyError("no column 'x'"), 1001: OSError("/a/b.csv")}[
            context.node_id
        ]

    server.grid._app = make_client_app(load)
    assert (server.error("hello").code, server.error("hello").reason) == (
        REFUSED,
        "no column 'x'",
    )
    error = server.error("hello", node=1)
    assert error.code == FAILED
    assert error.reason == "OSError; the stack is in the party's own log"


@pytest.mark.parametrize("action", ["hello", "counter"])
def test_damaged_message(server, action):
    content = pack({}, server.frame(action, 1, 0))
    content["frame"]["session"] += 1
    error = server.send(action, content, 0).error
    assert (error.code, error.reason) == (DAMAGED, "the message was damaged on its way")
    if action == "counter":  # and nothing was done
        assert server.values("counter")["calls"] == 1


def test_wrong_arguments_are_a_failure(server):
    error = server.error("counter", nonsense=1)
    assert error.code == FAILED
    assert "TypeError" in error.reason


def test_seconds_are_measured(server):
    frame = unpack(server.ask("counter").content)[1]
    assert 0 < frame["seconds"] < 5
    assert frame["clipped"] == 0


def test_data_of_the_party_stay_as_they_were(server):
    before = [party.X.copy() for party in server.parties]
    server.values("counter")
    server.values("total", 2)
    for party, X in zip(server.parties, before, strict=True):
        np.testing.assert_array_equal(party.X, X)
        assert party.state == {}
        assert party.n_parties == party.seed == party.secret == 0


# -- private draws ---------------------------------------------------------------------

PRIVATE = {"private_draws": True}


def drawn(server: Server, round: int = 1, node: int = 0, **frame: Any) -> list[int]:
    return server.values("drawing", round, node, frame=frame)["numbers"].tolist()


def test_draws_of_a_seed_are_the_same_at_every_party_of_that_place():
    one, other = Server(), Server()
    assert drawn(one) == drawn(one, 2) == drawn(other) == drawn(other, 2)
    assert drawn(one, 3, private_draws=False) == drawn(other, 2)
    assert drawn(one, 4, seed=4) != drawn(other, 2)


def test_private_draws_are_the_partys_own():
    one, other = Server(), Server()
    assert drawn(one, **PRIVATE) == drawn(one, **PRIVATE) == drawn(one, 2, **PRIVATE)
    seen = [drawn(one, 2, **PRIVATE), drawn(other, **PRIVATE), drawn(other, 2)]
    seen += [drawn(one, node=1, **PRIVATE)]
    assert len(set(map(tuple, seen))) == 4


def test_secret_is_new_in_each_session(server):
    first = drawn(server, **PRIVATE)
    kept = server.grid._contexts[1000].state["session"]["secret"]
    server.values("hello")  # again in the same session
    assert server.grid._contexts[1000].state["session"]["secret"] == kept
    server.session += 1
    server.peers = b"".join(
        server.values("hello", node=j)["public_key"] for j in (0, 1)
    )
    assert server.grid._contexts[1000].state["session"]["secret"] != kept
    assert drawn(server, **PRIVATE) != first


def test_no_secret_of_the_draws_leaves_the_party(server):
    secret = server.grid._contexts[1000].state["session"]["secret"]
    assert len(secret) == 16
    assert secret != server.grid._contexts[1001].state["session"]["secret"]
    for reply in (server.ask("hello"), server.ask("drawing", frame=PRIVATE)):
        for record in ("settings", "frame"):
            assert secret not in reply.content[record].values()


# -- a part of a model, and predictions ------------------------------------------------

KEPT, KINDS = ("before", "after", "part"), ("arrays", "settings")
PART = {"seed": "a1", "sizes": [2, 3], "coef": np.array([0.5, SECRET])}
MODEL = f"{SESSION:016x}"


@pytest.fixture
def kept(server, tmp_path) -> Path:
    """Return the ``state-dir`` of the first party, where the step `training` was."""
    server.grid._parties[1000].state_dir = tmp_path
    server.grid._parties[1000].encoding = {"scales": [1.0, 2.0]}
    assert server.values("training", 1) == {"had": 0}
    return tmp_path


def kept_by(server: Server, node: int = 0) -> dict[str, Any]:
    return kept_part(server.grid._contexts[1000 + node].state)


def test_a_new_part_is_kept_in_the_run_and_on_disk(server, kept):
    np.testing.assert_equal(kept_by(server), PART)
    found = load_part(kept, MODEL)
    assert found.strategy == "test_client_app"
    settings = {"seed": "a1", "sizes": [2, 3], "encoding": {"scales": [1.0, 2.0]}}
    assert found.settings == settings
    np.testing.assert_equal(found.arrays, {"coef": PART["coef"]})
    assert kept_by(server, 1) == {}


def test_a_part_is_there_in_the_next_rounds_of_its_run(server, kept):
    server.values("counter", 2)
    assert server.values("training", 3) == {"had": 3}


def test_a_part_is_gone_with_the_run(server, kept):
    server.session += 1
    server.peers = b"".join(
        server.values("hello", node=j)["public_key"] for j in (0, 1)
    )
    assert kept_by(server) == {}
    assert server.values("training") == {"had": 0}


def test_a_part_is_written_only_where_a_step_makes_a_new_one(server, kept):
    (file,) = kept.iterdir()
    file.unlink()
    server.values("counter", 2)
    server.values("probing", 3)
    assert list(kept.iterdir()) == []
    np.testing.assert_equal(kept_by(server), PART)


def test_a_failed_step_keeps_no_part(server, tmp_path):
    server.grid._parties[1000].state_dir = tmp_path
    assert server.error("spoiling").code == FAILED
    assert kept_by(server) == {}
    assert list(tmp_path.iterdir()) == []


def test_without_a_state_dir_a_part_is_kept_in_the_run_only(server, tmp_path):
    server.values("training", 1)
    np.testing.assert_equal(kept_by(server), PART)
    assert server.values("probing", 2) == {"seed": "a1"}


def test_the_same_round_writes_the_same_part(server, kept):
    (file,) = kept.iterdir()
    before = load_part(kept, MODEL)
    server.values("training", 1)
    assert list(kept.iterdir()) == [file]
    np.testing.assert_equal(vars(load_part(kept, MODEL)), vars(before))


def asked_of(model: str = MODEL) -> dict[str, Any]:
    return {"frame": {"model": model}}


def test_a_later_run_recalls_the_part(server, kept):
    later = Server()
    later.grid._parties[1000].state_dir = kept
    later.grid._parties[1000].encoding = {"scales": [1.0, 2.0]}
    assert later.values("probing", **asked_of()) == {"seed": "a1"}
    assert kept_by(later) == {}  # it lies in the folder


@pytest.mark.parametrize("encoding", [None, {}, {"scales": [1.0, 3.0]}])
def test_new_rows_of_another_encoding_are_refused(server, kept, encoding):
    later = Server()
    later.grid._parties[1000].state_dir = kept
    later.grid._parties[1000].encoding = encoding
    error = later.error("probing", **asked_of())
    assert (error.code, error.reason) == (
        REFUSED,
        "new rows must be encoded as those of training: set task to 'predict' and "
        "model in the run config, or load them with the encoding of the part",
    )


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            "0123456789abcdef",
            "this party has no part of model 0123456789abcdef; its state-dir has parts "
            "of 1 other ones",
        ),
        (
            "../" + MODEL,
            "the id of a model must be 8 to 32 lower-case hexadecimal digits, got "
            f"'../{MODEL}'",
        ),
    ],
)
def test_a_model_that_the_party_does_not_know(server, kept, model, sentence):
    later = Server()
    later.grid._parties[1000].state_dir = kept
    error = later.error("probing", **asked_of(model))
    assert (error.code, error.reason) == (REFUSED, sentence)


def test_a_part_of_another_strategy(server, kept):
    part = load_part(kept, MODEL)
    save_part(kept, replace(part, strategy="coresets"))
    assert server.error("probing", 2, **asked_of()).reason == (
        f"the part of model {MODEL} at this party must be one of strategy "
        "'test_client_app', got 'coresets'"
    )


def test_a_party_that_keeps_no_parts(server):
    error = server.error("probing", **asked_of())
    assert (error.code, error.reason) == (
        REFUSED,
        "this party has no state-dir, so it keeps no part of a model",
    )


def predictions_in(folder: Path) -> Path:
    (file,) = folder.glob("predictions-*")
    return file


def test_predictions_of_rows_without_ids(server, kept):
    assert server.values("predicting", 2, **asked_of()) == {}
    file = predictions_in(kept)
    assert file.name == f"predictions-{MODEL}-{SESSION:016x}.csv"
    assert file.read_text() == "row,prediction\n0,1.5\n1,-2.0\n2,0.1\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(list(kept.iterdir())) == 2  # the part and the predictions


@pytest.mark.parametrize("ids", [["b, c", 'd "e"', "f"], [7, 5, 6]])
@pytest.mark.parametrize("loaded", [False, True])
def test_predictions_of_rows_with_ids(server, kept, ids, loaded):
    party = server.grid._parties[1000]
    if loaded:  # the party has its file, and has not read the ids so far
        party.row_ids = lambda: [str(value) for value in ids]
    else:
        party.ids = np.array(ids)
    server.values("predicting", 2, **asked_of())
    with open(predictions_in(kept), newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["id", "prediction"]
    assert [row[0] for row in rows[1:]] == [str(value) for value in ids]
    assert [float(row[1]) for row in rows[1:]] == [1.5, -2.0, 0.1]


def test_predictions_leave_the_party_nowhere_else(server, kept):
    reply = server.ask("predicting", 2, **asked_of())
    assert unpack(reply.content)[0] == {}
    state = server.grid._contexts[1000].state
    records = [state[f"{name}.{kind}"] for name in KEPT for kind in KINDS]
    assert not any("predictions" in record for record in records)
    predictions_in(kept).unlink()
    server.values("counter", 3)
    assert list(kept.glob("predictions-*")) == []


def test_the_same_round_writes_the_same_predictions(server, kept):
    server.values("predicting", 2, **asked_of())
    before = predictions_in(kept).read_bytes()
    server.values("predicting", 2, **asked_of())
    assert predictions_in(kept).read_bytes() == before


def test_predictions_of_training_are_under_the_number_of_their_model(
    server, tmp_path, monkeypatch
):
    """Those of rows that it was trained on: the run trains the model of its number."""

    def clustering(party: Party) -> dict[str, Any]:
        party.part = {"seed": "a1"}
        party.predictions = np.array([2, 0, 2])
        return {}

    monkeypatch.setitem(STEPS, "training", Step("training", clustering))
    server.grid._app = make_client_app(lambda c: server.grid._parties[c.node_id])
    party = server.grid._parties[1000]
    party.state_dir, party.ids = tmp_path, np.array(["u", "v", "w"])
    assert server.values("training") == {}
    file = predictions_in(tmp_path)
    assert file.name == f"predictions-{SESSION:016x}.csv"
    assert file.read_text() == "id,prediction\nu,2\nv,0\nw,2\n"
    before = file.read_bytes()
    server.values("training")
    assert predictions_in(tmp_path).read_bytes() == before


def test_which_run_a_state_is_of(server):
    assert run_of(server.grid._contexts[1000].state) == f"{SESSION:016x}"
    assert run_of(RecordDict()) == ""
    server.session += 1
    server.values("hello", node=1)
    states = [server.grid._contexts[node].state for node in (1000, 1001)]
    assert [run_of(state) for state in states] == [
        f"{SESSION:016x}",
        f"{SESSION + 1:016x}",
    ]


def test_predictions_of_an_earlier_run_stay(server, kept):
    server.values("predicting", 2, **asked_of())
    server.session += 1
    server.peers = b"".join(
        server.values("hello", node=j)["public_key"] for j in (0, 1)
    )
    server.values("predicting", 1, **asked_of())
    assert len(list(kept.glob("predictions-*"))) == 2


def test_predictions_that_cannot_be_written_leave_nothing(server, kept, monkeypatch):
    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device", "/home/ann/secret")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        error = server.error("predicting", 2, **asked_of())
    assert (error.code, error.reason) == (
        REFUSED,
        f"the predictions of model {MODEL} cannot be written to this party's "
        "state-dir: No space left on device",
    )
    assert [file.suffix for file in kept.iterdir()] == [".npz"]
    server.values("predicting", 2, **asked_of())  # asked again, when there is space
    assert predictions_in(kept).stat().st_size > 0


def test_predictions_that_are_not_of_the_rows_are_not_written(server, kept):
    server.grid._parties[1000].ids = np.arange(2)
    assert server.error("predicting", 2, **asked_of()).code == FAILED
    assert [file.suffix for file in kept.iterdir()] == [".npz"]


# -- the loader of a SuperNode ---------------------------------------------------------


class Nodes(InProcessGrid):
    """A grid whose nodes have a node config, and load their data from it."""

    def __init__(self, configs: Sequence[dict[str, Any]], late: int = 0) -> None:
        super().__init__([Party(np.ones((1, 1)))] * max(2, len(configs)))
        self._app = make_client_app(load_from_context)
        self.asked = 0
        self.late = late
        for context, config in zip(self._contexts.values(), configs, strict=False):
            context.node_config.update(config)

    def get_node_ids(self) -> list[int]:
        """Return all nodes but the late one, which comes after some asking."""
        self.asked += 1
        nodes = super().get_node_ids()
        return nodes[:-1] if self.asked <= self.late else nodes


def places(count: int) -> list[dict[str, Any]]:
    return [{"partition-id": j, "num-partitions": count} for j in range(count)]


def test_loader_says_how_many_parties_there_are():
    context = Nodes(places(3))._contexts[1001]
    party = load_from_context(context)
    assert (party.index, party.n_parties) == (1, 3)
    assert hello(party)["n_parties"] == 3


def own_app(made: list[Any]) -> Nodes:
    """Return nodes whose app is an engineer's own, with a loader of one line."""
    grid = Nodes(places(len(made)))
    app = ClientApp()
    register(app, lambda context: made[context.node_config["partition-id"]])
    grid._app = app
    return grid


def test_own_loader_needs_not_say_the_place():
    X = np.arange(12.0).reshape(6, 2)
    parties = Parties(own_app([Party(X), Party(X), Party(X)]), Ledger(), seed=1)
    assert [party.node_id for party in parties] == [1000, 1001, 1002]
    made = [Party(X, index=2), Party(X, index=0), Party(X, index=1)]  # it says one
    parties = Parties(own_app(made), Ledger(), seed=1)
    assert [party.node_id for party in parties] == [1001, 1002, 1000]


@pytest.mark.parametrize("made", [None, (np.ones((2, 2)), None)])
def test_own_loader_that_returns_no_party(made):
    with pytest.raises(PartyFailed) as caught:
        Parties(own_app([made, made]), Ledger(), seed=1)
    wrong = f"load must return a Party, got {type(made).__name__}"
    assert caught.value.reason == wrong


def test_loader_of_a_node_that_does_not_know_how_many_there_are(tmp_path):
    context = Nodes(places(3))._contexts[1001]
    path = tmp_path / "airline.npz"
    np.savez(path, X=np.ones((3, 2)))
    context.node_config.clear()
    context.node_config["data"] = str(path)
    assert hello(load_from_context(context))["n_parties"] == 0


def test_server_waits_for_as_many_as_the_nodes_are_told(clock):
    grid = Nodes(places(3), late=5)
    parties = Parties(grid, Ledger(), seed=1, timeout=10.0)
    assert len(parties) == 3
    assert grid.asked > 5
    assert [party.name for party in parties] == ["party-0", "party-1", "party-2"]
    assert [parties.ledger.entry("hello", p.name).messages for p in parties] == [
        2,
        2,
        1,
    ]
    replies = parties.ask("counter")
    assert replies.each("calls") == [1, 1, 1]


def test_server_that_waits_in_vain_for_as_many_as_the_nodes_are_told(clock):
    with pytest.raises(FederationError, match="needs 3 parties, 2 connected within 10"):
        Parties(Nodes(places(3), late=10**6), Ledger(), seed=1, timeout=10.0)


def test_config_of_a_node_that_cannot_be_right(clock):
    grid = Nodes([places(2)[0], places(2)[1] | {"label_column": "y"}])
    with pytest.raises(PartyFailed) as caught:
        Parties(grid, Ledger(), seed=1, timeout=10.0)
    assert (caught.value.party, caught.value.action) == ("node 1001", "hello")
    assert caught.value.reason == (
        "node config has no key 'label_column'; did you mean 'label-column'?"
    )


def limited(share_rows, kind=InProcessGrid):
    """Return a grid of two SuperNodes, the first with ``share-rows``."""
    grid = kind([Party(np.ones((9, 1)))] * 2)
    for index, context in enumerate(grid._contexts.values()):
        context.node_config = {"partition-id": index, "num-partitions": 2}
        context.run_config = {"data": "synthetic:n=40,d=4", "seed": 1}
    first = next(iter(grid._contexts.values()))
    first.node_config |= {"data": "synthetic:n=40,d=4", "share-rows": share_rows}
    grid._app = make_client_app(load_from_context)
    return grid


@pytest.mark.parametrize(
    ("arguments", "drawn"),
    [
        ({"size": 30}, 30),
        ({"size": 30, "protocol": "paper"}, 30),
        ({"size": 20, "check_size": 10}, 30),
        ({"size": 12, "sampling": "uniform"}, 12),
        ({"sampling": "full"}, 40),
    ],
)
def test_a_party_bounds_the_rows_that_leave_it(arguments, drawn):
    """Each row once: what is drawn twice, or again by the second draw, counts once."""
    grid = limited(40, Recorder)
    CoresetVRLR(**arguments, seed=4).start(grid)
    sent = [
        e.values["X"]
        for e in grid.transcript
        if e.up and not e.party
        if "X" in e.values
    ]
    rows = np.concatenate(sent)
    asked = len(np.unique(rows, axis=0))
    assert len(rows) == drawn
    assert (asked < drawn) == ("size" in arguments and "sampling" not in arguments)
    CoresetVRLR(**arguments, seed=4).start(limited(asked))
    with pytest.raises(PartyFailed) as caught:
        CoresetVRLR(**arguments, seed=4).start(limited(asked - 1))
    assert caught.value.reason == (
        f"this party's share-rows lets {asked - 1} rows leave it in one run, this one "
        f"asks for {asked}"
    )


def test_blocks_of_rows_are_added_up(monkeypatch):
    monkeypatch.setattr(sampling, "MESSAGE_NUMBERS", 40)
    with pytest.raises(PartyFailed, match=r"lets 39 rows leave it .* asks for 40"):
        CoresetVRLR(sampling="full").start(limited(39))


def test_solvers_without_rows_share_none():
    solver = CoresetVRLR(size=12, solver="cg", allow_two_parties=True)
    assert solver.start(limited(0)).metrics["converged"]


# -- the loader of a party that predicts -----------------------------------------------


@pytest.fixture
def node(tmp_path) -> Context:
    """Return the context of a SuperNode with new rows, and with a part of a model.

    Of its columns ``kind`` had other levels in training, and ``height`` was scaled by
    what the training rows were.
    """
    (tmp_path / "new.csv").write_text("id,height,kind\nu,30,b\nv,10,a\n")
    (tmp_path / "old.csv").write_text("id,height,kind\na,0,a\nb,20,b\nc,40,c\n")
    context = Context(77, 1000, {}, RecordDict(), {})
    context.node_config = {
        "data": str(tmp_path / "old.csv"),
        "id-column": "id",
        "standardize": True,
        "partition-id": 0,
        "state-dir": str(tmp_path / "state"),
    }
    trained = load_from_context(context)
    settings = {"encoding": trained.encoding}
    save_part(tmp_path / "state", ModelPart(MODEL, "fdskl", settings))
    context.node_config["data"] = str(tmp_path / "new.csv")
    context.run_config = {"task": "predict", "model": MODEL}
    return context


def test_new_rows_are_encoded_as_in_training(node):
    party = load_from_context(node)
    assert list(party.columns) == ["height", "kind=a", "kind=b", "kind=c"]
    # Of training: mean 20 and standard deviation 20 sqrt(2 / 3); a third of each kind.
    heights = np.array([10.0, -10.0]) / (20 * np.sqrt(2 / 3))
    np.testing.assert_allclose(party.X[:, 0], heights, rtol=1e-12)
    kinds = (np.array([[0, 1, 0], [1, 0, 0]]) - 1 / 3) / (np.sqrt(2) / 3)
    np.testing.assert_allclose(party.X[:, 1:], kinds, rtol=1e-12)
    assert party.state_dir == Path(node.node_config["state-dir"])
    assert party.row_ids() == ["u", "v"]


def test_rows_to_train_on_are_encoded_anew(node):
    node.run_config = {"task": "train"}
    party = load_from_context(node)
    assert list(party.columns) == ["height", "kind=a", "kind=b"]
    np.testing.assert_allclose(party.X[:, 0], [1.0, -1.0])
    assert party.state_dir == Path(node.node_config["state-dir"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"state-dir": ""},
            "party-0: it has no state-dir, so it keeps no part of a model",
        ),
        ({"state-dir": "state"}, "state-dir must be an absolute path"),
        (
            {"state-dir": "/dev/null/state"},
            "party-0: this party's state-dir cannot be written to",
        ),
    ],
)
def test_a_node_that_cannot_predict(node, change, sentence):
    node.node_config |= change
    with pytest.raises(PartyError) as caught:
        load_from_context(node)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("", "the id of a model must be 8 to 32 lower-case hexadecimal digits, got ''"),
        (
            "0123456789abcdef",
            "this party has no part of model 0123456789abcdef; its state-dir has parts "
            "of 1 other ones",
        ),
    ],
)
def test_a_model_that_the_node_does_not_have(node, model, sentence):
    node.run_config["model"] = model
    with pytest.raises(PartyError) as caught:
        load_from_context(node)
    assert str(caught.value) == f"party-0: {sentence}"


def test_a_wrong_node_config_names_its_party():
    node = {"data": "/a.csv", "party-name": "rome", "standardize": True}
    context = Context(1, 2, node, RecordDict(), {"strategy": "fk-kmeans"})
    with pytest.raises(PartyError, match=r"^party 'rome': standardize must be in the"):
        load_from_context(context)
