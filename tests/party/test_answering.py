"""What a party answers to any message, fair or foul."""

import logging
import stat
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest
from consents import free
from flwr.app import Error, Message, RecordDict
from flwr.clientapp import ClientApp

from vfl_flower import Party, PartyFailed, __version__, register
from vfl_flower.app.register import make_client_app
from vfl_flower.party import identity
from vfl_flower.party.answering import hello
from vfl_flower.party.consent import Consent, Limit
from vfl_flower.party.journal import FILE
from vfl_flower.party.memory import Memory
from vfl_flower.party.parts import load_part, save_part
from vfl_flower.party.party import PartyError, Predictions, stored_as
from vfl_flower.protocol import messages
from vfl_flower.protocol.contract import IN_SUM, Reals, Whole
from vfl_flower.protocol.frame import MOST_CLIPPED
from vfl_flower.protocol.steps import STEPS, Step
from vfl_flower.protocol.terms import Terms
from vfl_flower.secure_aggregation.groups import group
from vfl_flower.secure_aggregation.masks import unmask_sum
from vfl_flower.server.exchange import Exchange
from vfl_flower.server.parties import Parties
from vfl_flower.simulation import InProcessGrid
from vfl_flower.typing import Array

SECRET = 271828.1828
SESSION = 11
PART = {"seed": "a1", "sizes": [2, 3], "coef": np.array([0.5, SECRET])}
LATER = 17
MODEL = f"{SESSION:016x}"


@stored_as("counted")
class Counted:
    calls: int = 0
    sum: Array | None = None


class CounterReply(TypedDict):
    calls: int
    sum: Annotated[Array, Reals("n_columns")]


class TotalReply(TypedDict):
    total: Annotated[Array, Reals("n_rows"), IN_SUM]
    calls: int


class AnyReply(TypedDict, total=False):
    allowed: bool
    had: int
    seed: str
    numbers: Annotated[Array, Whole("4")]


def _counted(party: Party) -> Counted:
    try:
        return party.recall(Counted)
    except PartyError:
        party.remember(Counted())
        return party.recall(Counted)


def counter(party: Party, add: int = 1) -> CounterReply:
    state = _counted(party)
    state.calls += add
    state.sum = party.X[0] + (0 if state.sum is None else state.sum)
    return {"calls": state.calls, "sum": state.sum}


def total(party: Party, add: int = 0) -> TotalReply:
    state = _counted(party)
    state.calls += 1
    return {"total": party.X[:, 0] + state.calls + add, "calls": 0}


def failing(party: Party) -> AnyReply:
    party.remember(Counted(100))
    raise ValueError(f"/home/ann/flights.csv row 3 is {SECRET}")


def refusing(party: Party) -> AnyReply:
    raise PartyError("column 'delay' has no label")


def protecting(party: Party) -> AnyReply:
    """Say whether the party may take part in what does not protect it."""
    return {"allowed": party.allow_plain}


def training(party: Party) -> AnyReply:
    had = len(party.part)
    party.part = dict(PART)
    return {"had": had}


def spoiling(party: Party) -> AnyReply:
    party.part = dict(PART)
    raise ValueError("too late")


def probing(party: Party) -> AnyReply:
    return {"seed": party.part["seed"]}


def predicting(party: Party) -> AnyReply:
    assert party.part["seed"] == "a1"
    party.predictions = Predictions(np.array([1.5, -2.0, 0.1]))
    return {}


def drawing(party: Party) -> AnyReply:
    return {"numbers": party.rng("draw").integers(2**62, size=4)}


@pytest.fixture(autouse=True)
def steps(monkeypatch):
    known = (counter, total, failing, refusing, protecting, drawing)
    parts = (training, spoiling, probing, predicting)
    for function in known + parts:
        name = function.__name__
        monkeypatch.setitem(STEPS, name, Step(function, name, "test_answering"))


class Server:
    def __init__(self, *, allow_plain: bool = False) -> None:
        X = np.full((3, 2), SECRET)
        self.parties = [Party(X, name="a"), Party(X / 2, y=X[:, 0], name="b")]
        self.grid = InProcessGrid(self.parties)
        self.grid._app = make_client_app(
            lambda context: free(self.grid._parties[context.node_id]),
            allow_plain=allow_plain,
        )
        self.greet(SESSION)

    def greet(self, session: int) -> None:
        self.session = session
        keys = [self.values("hello", node=j)["public_key"] for j in range(2)]
        self.peers = b"".join(keys)

    def keep_in(self, folder: Path) -> Party:
        """Give the first party a ``state-dir``, and greet it again; return it."""
        party = self.grid._parties[1000]
        party.state_dir = folder
        self.greet(self.session)
        return party

    def frame(self, action: str, round: int, node: int) -> dict[str, Any]:
        if action == "hello":
            return {"session": self.session}
        of_run = {"session": self.session, "seed": 3, "private_draws": False}
        of_run |= {"masking": "ring", "parties": 2, "peers": self.peers}
        of_sum = {"sum.total": round, "group.total": "ring", "bound.total": 2.0**20}
        return of_run | of_sum | {"round": round, "previous": round - 1, "index": node}

    def send(self, action: str, content: RecordDict, node: int) -> Message:
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
        sent = self.frame(action, round, node) | (frame or {})
        sent = {name: value for name, value in sent.items() if name not in without}
        return self.send(action, messages.pack(values, sent), node)

    def values(self, action: str, *args: Any, **values: Any) -> dict[str, Any]:
        return messages.unpack(self.ask(action, *args, **values).content)[0]

    def error(self, action: str, *args: Any, **values: Any) -> Error:
        return self.ask(action, *args, **values).error

    def memory(self, node: int = 0) -> Memory:
        return Memory(self.grid._contexts[1000 + node].state)

    def private(self, name: str, node: int = 0) -> bytes:
        return self.grid._contexts[1000 + node].state["session"][name]


@pytest.fixture
def server() -> Server:
    return Server()


def refused(error: Error, *words: str, code: int = messages.REFUSED) -> None:
    assert error.code == code, error.reason
    for word in words:
        assert word in error.reason


# -- hello -----------------------------------------------------------------------------


def test_hello_says_these_facts_and_no_more(server):
    reply = server.values("hello", node=1)
    assert len(reply.pop("public_key")) == 32
    facts = {"name": "b", "index": 1, "n_parties": 0, "version": __version__}
    facts |= {"n_rows": 3, "n_columns": 2, "n_labels": 3, "gaps": False}
    facts |= {key: [] for key in ("columns", "names", "kinds", "widths", "lacks")}
    assert reply == facts | {"ids_digest": "", "levels_digest": ""}


def test_hello_says_what_a_consent_lets_of_what_a_run_can_do_without():
    party, terms = Party(np.ones((2, 1))), Terms(wants=["curves"], parties=3)
    assert hello(party, terms=terms)["lets"] == ["curves"]
    party.consent = Consent(leaves={"curves": Limit(life=3)})
    assert hello(party, terms=terms)["lets"] == ["curves"]
    party.consent = Consent()
    reply = hello(party, terms=terms)
    assert reply["lets"] == reply["lacks"] == []
    assert "lets" not in hello(party, terms=Terms(parties=3))


@pytest.mark.parametrize("partition", ["horizontal", "vertical"])
def test_hello_of_a_party_without_name_and_place(partition):
    """The server compares its ids where they should be the same."""
    reply = hello(Party(np.ones((2, 1)), ids=np.array([1, 2])), partition)
    assert (reply["name"], reply["index"], reply["n_labels"]) == ("", -1, 0)
    assert len(reply["ids_digest"]) == 64


def test_missing_values_are_filled_before_columns_are_split():
    party = Party(np.ones((2, 1)))
    party.encoding = {"columns": [{"name": "a", "levels": None, "later": True}]}
    assert hello(party, "horizontal")["gaps"]
    with pytest.raises(PartyError, match="parties must fill their missing values"):
        hello(party, "vertical")


NAMES = ["age", "weight"]


def test_hello_where_rows_are_split_has_digests_of_the_column_names(server):
    party = server.grid._parties[1000]
    party.columns, party.consent = NAMES, Consent(peers=None)
    first = server.values("hello", partition="horizontal")
    assert [len(digest) for digest in first["columns"]] == [32, 32]
    assert (first["names"], first["kinds"]) == ([], ["number", "number"])
    assert server.values("hello", partition="vertical")["columns"] == []
    assert server.values("hello")["kinds"] == []
    message = server.ask("hello", partition="horizontal")
    assert not any(name in str(message.content) for name in NAMES)
    party.columns = ["weight", "height"]
    again = server.values("hello", partition="horizontal")["columns"]
    assert again[0] == first["columns"][1]
    assert again[1] not in first["columns"]
    party.columns = None
    assert server.values("hello", partition="horizontal")["columns"] == []


def test_hello_tells_names_of_columns_only_where_consent_says_so(server):
    party = server.grid._parties[1000]
    party.columns, party.consent = NAMES, Consent(column_names=True, peers=None)
    assert server.values("hello", partition="horizontal")["names"] == NAMES
    party.columns = ["a\n\x1b[2K", "b"]  # a header may have line breaks
    names = server.values("hello", partition="horizontal")["names"]
    assert names == ["a\\n\\x1b[2K", "b"]
    assert server.values("hello", partition="vertical")["names"] == []


@pytest.mark.parametrize(
    ("frame", "values", "word"),
    [
        *(({"session": -1}, {}, "session"), ({"session": "11"}, {}, "session")),
        *(({"session": True}, {}, "session"), ({"seed": 3}, {}, "seed")),
        ({}, {"partition": "diagonal"}, "partition"),
        ({}, {"rows": 3}, "rows"),
    ],
)
def test_a_malformed_hello_names_the_rule_and_the_party(server, frame, values, word):
    error = server.error("hello", frame=frame, **values)
    refused(error, "'a'", "malformed", word, code=messages.MALFORMED)


def test_a_session_keeps_its_key_and_the_next_one_forgets_it(server):
    first, secret = server.values("hello")["public_key"], server.private("run_secret")
    draws = drawn(server, **PRIVATE)
    assert server.values("hello")["public_key"] == first
    assert server.private("run_secret") == secret
    assert server.values("counter", 2, frame=PRIVATE)["calls"] == 1
    assert server.values("hello")["public_key"] == first
    server.greet(SESSION + 1)
    assert server.values("hello")["public_key"] != first
    assert server.private("run_secret") != secret
    assert drawn(server, **PRIVATE) != draws
    assert server.values("counter", 2, frame=PRIVATE)["calls"] == 1


@pytest.mark.parametrize("name", ["private_key", "run_secret"])
def test_no_secret_of_a_session_leaves_the_party(server, name):
    secret = server.private(name)
    assert len(secret) == 32
    assert secret != server.private(name, node=1)
    asked = [server.ask("hello"), server.ask("drawing", frame=PRIVATE)]
    for reply in (*asked, server.ask("total", 2, frame=PRIVATE)):
        content = messages.unbundle(reply.content)
        for record in ("settings", "frame"):
            assert secret not in content[record].values()
        for array in content["arrays"].values():
            assert secret not in array.data


# -- rounds and memory -----------------------------------------------------------------


def test_memory_goes_from_round_to_round(server):
    for round in (1, 2, 3):
        reply = server.values("counter", round)
        assert reply["calls"] == round
        np.testing.assert_array_equal(reply["sum"], np.full(2, round * SECRET))
    assert server.values("counter", node=1)["calls"] == 1  # of another party


@pytest.mark.parametrize(("before", "round"), [(1, 3), (1, 5), (0, 2)])
def test_round_that_does_not_follow(server, before, round):
    for done in range(1, before + 1):
        server.values("counter", done)
    error = server.error("counter", round)
    refused(error, f"round {round}", f"follow round {before}")
    reply = server.values("counter", before + 1)
    assert reply["calls"] == before + 1  # the refused round changed nothing


@pytest.mark.parametrize("action", ["counter", "total"])
def test_same_round_gets_the_same_reply(server, action):
    for round in (1, 2):
        first = server.values(action, round)
        np.testing.assert_equal(server.values(action, round), first)
        np.testing.assert_equal(server.values(action, round), first)
    assert server.values("counter", 3)["calls"] == 3


@pytest.mark.parametrize("action", ["counter", "total"])
def test_same_round_with_another_reply_is_refused(server, action):
    """Under one mask the two replies would show their difference."""
    before = messages.digest_of_values(messages.pack(server.values(action, 1)))
    party = server.grid._parties[1000]
    true, party.X = party.X, party.X + 1
    refused(server.error(action, 1), "round 1", "data have changed")
    party.X = true
    assert messages.digest_of_values(messages.pack(server.values(action, 1))) == before
    party.X = true + 1  # new rounds have new masks
    server.values(action, 2)


def test_same_round_after_a_failed_one_gets_the_same_reply_or_none(server):
    """The mask of round 1 must not come back over another value."""
    first = server.values("total", 1)["total"]
    assert server.error("failing", 2).code == messages.FAILED
    again = server.ask("total", 1)
    if again.has_content():
        np.testing.assert_array_equal(messages.unpack(again.content)[0]["total"], first)
    assert server.values("counter", 2)["calls"] == 2  # its step has left no memory
    assert server.values("counter", 3)["calls"] == 3


@pytest.mark.parametrize(
    ("action", "change"),
    [
        ("total", {"add": 1}),
        ("total", {"frame": {"bound.total": 2.0**10}}),
        ("total", {"frame": {"seed": 4}}),
        ("counter", {}),  # the content is the same, bit for bit, and not the type
    ],
    ids=["value", "bound", "seed", "step"],
)
def test_another_question_in_the_same_round(server, action, change):
    server.values("total", 1)
    refused(server.error(action, 1, **change), "round 1 is over")


def after(round: int) -> dict[str, Any]:
    return {"frame": {"previous": round}}


def test_rounds_in_which_a_party_was_not_asked(server):
    server.values("counter", 2, **after(0))
    assert server.values("counter", 5, **after(2))["calls"] == 2
    assert server.values("counter", 5, **after(2))["calls"] == 2
    refused(server.error("counter", 9, **after(7)), "round 9 does not follow round 5")
    refused(server.error("counter", 4, **after(2)), "round 4 is over")
    assert server.values("counter", 9, **after(5))["calls"] == 3


def test_party_that_knows_nothing_of_a_session(server):
    server.values("counter", 1)
    server.session += 1
    refused(server.error("counter", 2), "restarted")
    server.session -= 1
    server.grid._contexts[1000].state.clear()
    refused(server.error("counter", 2), "restarted")
    server.values("hello")  # a second time
    for round in (1, 2):
        refused(server.error("counter", round, without=("peers",)), "hello twice and l")


# -- keys and masks --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peers", "code"),
    [
        (lambda keys: keys[32:] + keys[:32], messages.REFUSED),
        (lambda keys: keys[:32] * 2, messages.REFUSED),
        (lambda keys: keys[:32] + bytes(32), messages.REFUSED),
        (lambda keys: keys[:32], messages.MALFORMED),
        (lambda keys: keys[:40], messages.MALFORMED),
        (lambda keys: keys.hex(), messages.MALFORMED),
    ],
    ids=["swapped", "twice its own", "of small order", "one", "cut", "text"],
)
def test_keys_that_do_not_protect(server, peers, code):
    refused(server.error("total", frame={"peers": peers(server.peers)}), code=code)


def test_masks_hide_each_and_cancel_in_the_sum(server):
    """A mask is uniform in [-2^22, 2^22): below 1e-3 in size with chance 2e-10."""
    replies = [server.values("total", node=j)["total"] for j in (0, 1)]
    ring = group("ring", 2.0**20, 2)
    expected = np.full(3, 1.5 * SECRET) + 2
    np.testing.assert_allclose(unmask_sum(replies, ring), expected, rtol=1e-12)
    for reply, party in zip(replies, server.parties, strict=True):
        assert reply.dtype == np.uint64
        bare, _ = ring.encode(party.X[:, 0] + 1)
        assert (np.abs(ring.decode(reply - bare)) > 1e-3).all()


def test_clipped_values_are_counted_under_a_mask(server):
    content = server.ask("total", frame={"bound.total": 8.0}).content
    count = np.frombuffer(messages.unpack(content)[1]["clipped"], "<u8")
    bare, _ = group("ring", MOST_CLIPPED, len(server.parties)).encode(np.array([3.0]))
    assert count.shape == (1,)
    assert count != bare


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
    refused(server.error(action, frame=frame), "only masked addends")


def test_plain_sums_where_they_are_allowed(server):
    assert server.values("protecting")["allowed"] is False
    plain = Server(allow_plain=True)
    assert plain.values("protecting")["allowed"] is True
    reply = plain.values("total", 2, frame=PLAIN)
    np.testing.assert_array_equal(reply["total"], np.full(3, SECRET + 1))


def test_masks_of_other_names_and_of_none_count_for_themselves(server):
    server.values("total", 1, frame={"sum.total": 7})
    none = ("sum.total", "group.total", "bound.total")
    server.values("counter", 2, without=none)
    refused(server.error("total", 3, frame={"sum.total": 7}), "sum 7 of total", "reuse")
    other = {"sum.total": 8, "sum.angles": 3, "group.angles": "ring"}
    assert "total" in server.values("total", 3, frame=other | {"bound.angles": 1.0})


@pytest.mark.parametrize(
    ("frame", "without", "words"),
    [
        ({}, ("sum.total",), ("'total'", "'sum' is missing")),
        ({"sealed.x": 5}, (), ("seals of 'x'",)),
    ],
)
def test_a_malformed_frame_is_refused_by_name(server, frame, without, words):
    error = server.error("total", frame=frame, without=without)
    refused(error, "malformed", *words, code=messages.MALFORMED)
    refused(server.error("total", frame={"group.total": "none"}), "group", "'none'")
    assert "total" in server.values("total")  # and nothing was done


# -- errors, and private draws ---------------------------------------------------------


def test_exception_leaves_no_value_path_stack_or_class(server, caplog):
    error = server.error("failing")
    refused(error, "failed unexpectedly", "party's log", code=messages.FAILED)
    for word in ("Error", SECRET, "home", "test_answering"):
        assert str(word) not in error.reason
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("vfl_flower", logging.ERROR)
    assert "failing" in record.getMessage()
    assert str(SECRET) in caplog.text
    assert "test_answering.py" in caplog.text
    error = server.error("refusing")  # which says why
    assert error.code == messages.REFUSED
    assert error.reason == "column 'delay' has no label"
    assert caplog.messages[1:] == ["refused refusing: column 'delay' has no label"]


@pytest.mark.parametrize("name", ["rome", None])
def test_data_that_cannot_be_loaded(server, name):
    """The server has no name of the party yet: the reason has it, once."""

    def load(context):
        raise errors[context.node_id]

    errors = {1000: PartyError("no column 'x'"), 1001: OSError("/a/b.csv")}
    server.grid._app = make_client_app(load)
    if name:
        for context in server.grid._contexts.values():
            context.node_config["party-name"] = name
    who = f"party {name!r}: " if name else ""
    error = server.error("hello")
    assert (error.code, error.reason) == (messages.REFUSED, f"{who}no column 'x'")
    error = server.error("hello", node=1)
    assert error.code == messages.FAILED
    assert error.reason.startswith(f"{who}the step failed")
    assert "b.csv" not in error.reason
    errors[1000] = PartyError(f"party {name!r} has no column 'x'")
    assert server.error("hello").reason == str(errors[1000])


@pytest.mark.parametrize("action", ["hello", "counter"])
def test_damaged_message(server, action):
    content = messages.pack({}, server.frame(action, 1, 0))
    content["frame"]["session"] += 1
    refused(server.send(action, content, 0).error, "damaged", code=messages.DAMAGED)
    if action == "counter":  # and nothing was done
        assert server.values("counter")["calls"] == 1


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"add": 1.5}, "add"),
        ({"add.0": np.ones(1)}, "add.0"),
    ],
)
def test_wrong_arguments_are_refused_by_name(server, values, word):
    refused(server.error("counter", **values), word, code=messages.MALFORMED)
    assert server.values("counter")["calls"] == 1  # and nothing was done


PRIVATE = {"private_draws": True}


def drawn(server: Server, round: int = 1, node: int = 0, **frame: Any) -> list[int]:
    return server.values("drawing", round, node, frame=frame)["numbers"].tolist()


def test_private_draws_are_the_partys_own():
    first, second = Server(), Server()
    draws = drawn(first, **PRIVATE)
    assert draws == drawn(first, **PRIVATE) == drawn(first, 2, **PRIVATE)
    seen = [draws, drawn(second, **PRIVATE), drawn(Server())]
    seen += [drawn(first, node=1, **PRIVATE)]
    assert len(set(map(tuple, seen))) == 4


# -- a part of a model, and predictions ------------------------------------------------

SCALES = {"scales": [1.0, 2.0]}


def files_in(folder: Path) -> list[Path]:
    """Return what a party keeps besides its journal and its identity."""
    own = (FILE, identity.FILE)
    return [path for path in folder.iterdir() if not path.name.startswith(own)]


@pytest.fixture
def kept(server, tmp_path) -> Path:
    """Return the ``state-dir`` of the first party, where the step `training` was."""
    server.keep_in(tmp_path).encoding = SCALES
    assert server.values("training", 1) == {"had": 0}
    return tmp_path


def later_server(kept: Path, encoding: Any = SCALES) -> Server:
    later = Server()
    later.session = LATER
    later.keep_in(kept).encoding = encoding
    return later


@pytest.fixture
def later(kept) -> Server:
    """Return a server in a later run on the model, which a session keeps."""
    return later_server(kept)


def asked_of(model: str = MODEL) -> dict[str, Any]:
    return {"frame": {"model": model}}


def test_a_new_part_is_kept_in_the_run_and_on_disk(server, kept):
    np.testing.assert_equal(server.memory().part, PART)
    part = load_part(kept, MODEL)
    assert part.strategy == "test_answering"
    assert part.settings == {"seed": "a1", "sizes": [2, 3], "encoding": SCALES}
    np.testing.assert_equal(part.arrays, {"coef": PART["coef"]})
    assert server.memory(1).part == {}
    (file,) = files_in(kept)
    assert server.values("training", 1) == {"had": 0}  # asked again
    assert files_in(kept) == [file]
    np.testing.assert_equal(vars(load_part(kept, MODEL)), vars(part))
    file.unlink()
    server.values("counter", 2)
    server.values("probing", 3)
    assert server.error("spoiling", 4).code == messages.FAILED
    assert files_in(kept) == []  # a step that succeeds writes a new part, and no other
    np.testing.assert_equal(server.memory().part, PART)
    server.greet(SESSION + 1)
    assert server.memory().part == {}
    assert server.values("training") == {"had": 0}


def test_without_a_state_dir_a_part_is_kept_in_the_run_only(server):
    assert server.error("spoiling").code == messages.FAILED
    assert server.memory().part == {}
    server.values("training", 1)
    np.testing.assert_equal(server.memory().part, PART)
    assert server.values("probing", 2) == {"seed": "a1"}
    refused(server.error("probing", 3, **asked_of()), "the model changed")


def test_a_later_run_recalls_the_part(later):
    assert later.values("probing", **asked_of()) == {"seed": "a1"}
    assert later.memory().part == {}  # it lies in the folder


@pytest.mark.parametrize("encoding", [None, {}, {"scales": [1.0, 3.0]}])
def test_new_rows_of_another_encoding_are_refused(kept, encoding):
    later = later_server(kept, encoding)
    refused(later.error("probing", **asked_of()), "encoded like the training rows")
    part = load_part(kept, MODEL)
    save_part(kept, replace(part, settings={"seed": "a1"}))
    if encoding is None:
        assert later.values("probing", **asked_of()) == {"seed": "a1"}
    else:
        assert later.error("probing", **asked_of()).code == messages.REFUSED


def test_a_part_that_the_party_does_not_have(server, later, kept):
    unknown = later.error("probing", **asked_of("0123456789abcdef"))
    refused(unknown, "no local model 0123456789abcdef")
    save_part(kept, replace(load_part(kept, MODEL), strategy="other"))
    refused(later.error("probing", **asked_of()), "'test_answering'", "'other'")
    refused(server.error("probing", node=1, **asked_of()), "state-dir is not")


def predictions_in(folder: Path) -> Path:
    (file,) = folder.glob("predictions-*")
    return file


def test_predictions_of_rows_without_ids(later, kept):
    later.grid._parties[1000].ids = np.arange(2)  # of other rows
    assert later.error("predicting", **asked_of()).code == messages.FAILED
    assert [file.suffix for file in files_in(kept)] == [".npz"]
    later.grid._parties[1000].ids = None
    assert later.values("predicting", **asked_of()) == {}
    state = later.grid._contexts[1000].state
    assert not any("predictions" in key for record in state.values() for key in record)
    file = predictions_in(kept)
    assert file.name == f"predictions-{MODEL}-{LATER:016x}.csv"
    assert file.read_text() == "row,prediction\n0,1.5\n1,-2.0\n2,0.1\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(files_in(kept)) == 2  # the part and the predictions
    file.unlink()
    later.values("counter", 2, **asked_of())
    assert list(kept.glob("predictions-*")) == []


# -- an engineer's own loader ----------------------------------------------------------


def own_app(made: list[Any]) -> Parties:
    """Greet nodes whose app is an engineer's own, with a loader of one line."""
    grid = InProcessGrid([Party(np.ones((1, 1)))] * len(made))
    for index, context in enumerate(grid._contexts.values()):
        context.node_config["partition-id"] = index

    def load(context: Any) -> Any:
        party = made[context.node_config["partition-id"]]
        return free(party) if isinstance(party, Party) else party

    grid._app = ClientApp()
    register(grid._app, load)
    return Parties(Exchange(grid), seed=1)


@pytest.mark.parametrize("places", [(None, None, None), (2, 0, 1)])
def test_own_loader_needs_not_say_the_place(places):
    parties = own_app([Party(np.ones((6, 2)), index=place) for place in places])
    nodes = [1000, 1001, 1002] if places[0] is None else [1001, 1002, 1000]
    assert [party.node_id for party in parties] == nodes


@pytest.mark.parametrize("made", [None, (np.ones((2, 2)), None)])
def test_own_loader_that_returns_no_party(made):
    with pytest.raises(PartyFailed, match="must return a Party") as caught:
        own_app([made, made])
    assert type(made).__name__ in caught.value.reason
