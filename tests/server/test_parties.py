"""The greeting, the round trip, and every way in which they may fail."""

import contextlib
import logging
from collections.abc import Sequence
from functools import wraps
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
import pytest
from annotated_types import Ge
from faults import Fault, FaultyGrid, LyingGrid
from malformed import in_bundle
from transcripts import Listening

from vfl_flower import FederationError, Party, PartyFailed, __version__
from vfl_flower.party.party import PartyError
from vfl_flower.protocol import contract
from vfl_flower.protocol.frame import MOST_CLIPPED
from vfl_flower.protocol.messages import (
    BUNDLE,
    n_bytes,
    n_units,
    pack,
    unbundle,
    unpack,
)
from vfl_flower.protocol.steps import STEPS, Step, Sum, each
from vfl_flower.protocol.terms import Terms
from vfl_flower.secure_aggregation.groups import group
from vfl_flower.server.exchange import RETRIES, Exchange
from vfl_flower.server.parties import Parties
from vfl_flower.simulation import InProcessGrid
from vfl_flower.typing import Array

TIMEOUT = 10.0


class Probe(TypedDict):
    index: int
    own: int
    seed: int
    n_parties: int
    x: Annotated[Array, contract.Reals("*")]
    value: NotRequired[int]


class Total(TypedDict):
    total: Annotated[Array, contract.Reals("*"), contract.IN_SUM]
    own: int


class Bare(TypedDict, total=False):
    total: Annotated[Array, contract.Reals("2")]


class Turns(TypedDict):
    total: Annotated[Array, contract.Whole("1"), contract.IN_SUM]


class Report(TypedDict):
    """Reply of `report`: one value of each kind."""

    task: Literal["train", "predict"]
    count: Annotated[int, Ge(1)]
    share: float
    rows: Annotated[Array, contract.Whole("m", below="n_rows")]
    X: Annotated[Array, contract.Reals("m n_columns")]
    total: Annotated[Array, contract.Reals("m"), contract.IN_SUM]
    angles: Annotated[dict[int, Array], contract.Reals("m")]


class Told(TypedDict, total=False):
    key: Annotated[bytes, contract.SECRET]


def _probe(
    party: Party,
    own: int = 0,
    value: int | None = None,
    x: Annotated[Array, contract.Reals("*")] | None = None,
) -> Probe:
    assert party.index is not None
    reply: Probe = {
        "index": party.index,
        "own": own,
        "seed": party.seed,
        "n_parties": party.n_parties,
        "x": np.ones(3) if x is None else x,
    }
    return reply if value is None else {**reply, "value": value}


def _total(
    party: Party, scale: Annotated[float, contract.OWN] = 1.0, shapes: bool = False
) -> Total:
    assert party.index is not None
    width = party.index + 1 if shapes else 2
    return {"total": np.full(width, scale * (party.index + 1)), "own": party.index}


def _refusing(party: Party) -> Bare:
    raise PartyError("column 'delay' has no label")


def _turns(party: Party, dtype: str = "<u2") -> Turns:
    assert party.index is not None
    return {"total": np.array([20_000 * (party.index + 1)], dtype=dtype)}


def _report(party: Party, m: Annotated[int, Ge(0)]) -> Report:
    return {
        "task": "train",
        "count": 1,
        "share": 0.5,
        "rows": np.arange(m),
        "X": party.X[:m],
        "total": np.ones(m),
        "angles": {0: np.zeros(m), 1: np.ones(m)},
    }


def _tell(party: Party, senders: int = 1) -> Told:
    assert party.index is not None
    return {"key": b"secret"} if party.index < senders else {}


probe, total = Step(_probe, "probe"), Step(_total, "total")
refusing, turns = Step(_refusing, "refusing"), Step(_turns, "turns")
report, tell = Step(_report, "report"), Step(_tell, "tell")


@pytest.fixture(autouse=True)
def steps(monkeypatch):
    for step in (probe, total, refusing, turns, report, tell):
        monkeypatch.setitem(STEPS, step.action, step)


class Edited(Listening):
    """A grid whose parties say something else in one step than they would."""

    def __init__(
        self,
        parties: Sequence[Party],
        edits: Sequence[dict[str, Any]] = (),
        action: str = "hello",
    ) -> None:
        super().__init__(parties)
        self.edits = dict(zip(self._parties, edits, strict=False))
        self.action = action

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)[::-1]
        for reply in replies:
            asked = reply.metadata.message_type == f"train.{self.action}"
            if asked and reply.has_content():
                values, frame = unpack(reply.content)
                del frame["digest"]
                edit = dict(self.edits.get(reply.metadata.src_node_id, {}))
                frame |= edit.pop("frame", {})
                values |= edit
                kept = {k: v for k, v in values.items() if v is not None}
                reply.content = pack(kept, frame)
        return replies


def some(count: int = 3) -> list[Party]:
    X = np.arange(8.0).reshape(4, 2)
    return [Party(X, X[:, 0] if j == count - 1 else None) for j in range(count)]


def greet(grid: InProcessGrid | Sequence[Party], **arguments: Any) -> Parties:
    if not isinstance(grid, InProcessGrid):
        grid = InProcessGrid(grid)
    return Parties(Exchange(grid, timeout=TIMEOUT), **{"seed": 7} | arguments)


def refusal(edits: Sequence[dict[str, Any]], **arguments: Any) -> str:
    with pytest.raises(FederationError) as caught:
        greet(Edited(some(len(edits)), edits), **arguments)
    assert not isinstance(caught.value, PartyFailed)
    return str(caught.value)


def has(text: str, *words: str) -> bool:
    return all(word in text for word in words)


# -- hello -----------------------------------------------------------------------------


def test_what_parties_say(clock):
    parties = greet(some())
    assert len(parties) == 3
    assert parties.n_rows == 4
    assert parties.label_holder == 2
    assert [(p.name, p.n_rows, p.n_columns, p.n_labels) for p in parties] == [
        ("party-0", 4, 2, 0),
        ("party-1", 4, 2, 0),
        ("party-2", 4, 2, 4),
    ]
    assert parties[0:2] == list(parties)[:2]


def test_order_is_that_of_the_names_where_there_is_no_index(clock):
    names = [{"index": -1, "name": name} for name in ("weather", "registry", "airline")]
    parties = greet(Edited(some(), names))
    assert [party.name for party in parties] == ["airline", "registry", "weather"]
    assert [party.node_id for party in parties] == [1002, 1001, 1000]
    assert parties.ledger.entry("hello", "airline").messages == 1


def test_neither_index_nor_name(clock):
    text = refusal([{"index": -1, "name": "a"}, {"index": -1}, {"index": -1}])
    assert has(text, "partition-id", "party-name", "is set at node 1001, node 1002")


@pytest.mark.parametrize(
    ("indices", "listed"),
    [
        ((0, 2, 3), "'n0' has 0, 'n2' has 2, 'n3' has 3"),
        ((0, 1, 1), "'n0' has 0, 'n1' has 1, 'n1' has 1"),
        ((1, 2, 3), "'n1' has 1, 'n2' has 2, 'n3' has 3"),
        ((0, -1, 1), "'n-1' has none, 'n0' has 0, 'n1' has 1"),
    ],
    ids=["gap", "duplicate", "from 1", "some without"],
)
def test_indices_that_are_no_order(indices, listed, clock):
    text = refusal([{"index": j, "name": f"n{j}"} for j in indices])
    assert has(text, "partition-ids", "3 parties must be the numbers 0 to 2", listed)


def test_unequal_rows(clock):
    text = refusal([{"name": "a"}, {"name": "b"}, {"name": "c", "n_rows": 5}])
    assert has(text, "same number of rows", "'a' has 4", "'c' has 5", "run", "align")


@pytest.mark.parametrize("lacking", [{}, {"n_parties": None}])
def test_other_version(lacking, clock):
    """What an older one does not say is not what is wrong with it."""
    edits = [{"name": "b", "version": "0.0.9"} | lacking, {"name": "a"} | lacking]
    assert has(refusal(edits), "same version", __version__, "'b' has '0.0.9'")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"n_rows": None}, ("'n_rows' is missing",)),
        ({"n_rows": 0}, ("'n_rows'", "at least 1")),
        ({"n_labels": -1}, ("'n_labels'", "at least 0")),
        ({"index": -2}, ("'index'", "at least -1")),
        ({"ids_digest": 5}, ("'ids_digest'", "text")),
        ({"public_key": b"short"}, ("'public_key'", "bytes")),
        ({"public_key": None}, ("'public_key' is missing",)),
        ({"name": "b" * 101}, ("'name'", "length 100")),
        ({"name": "b\nc"}, ("'name'", "printable")),
        ({"weather": 1}, ("'weather'",)),
    ],
)
def test_a_malformed_greeting_names_its_party(edit, words, clock):
    grid = Edited(some(), [{"name": "a"}, {"name": "b"} | edit, {"name": "c"}])
    with pytest.raises(PartyFailed) as caught:
        greet(grid)
    failed = caught.value
    assert failed.party == ("node 1001" if "name" in edit else "b")
    assert (failed.action, failed.nodes) == ("hello", {1001: failed.party})
    assert has(failed.reason, "malformed", *words)


def test_digests_that_differ(clock):
    digests = [{"ids_digest": "aa"}, {"ids_digest": "aa"}, {"ids_digest": "ab"}]
    assert has(refusal(digests), "same row ids", "order", "'party-2'", "'party-0'")


@pytest.mark.parametrize(("with_ids", "without"), [(0, "party-1"), (1, "party-0")])
def test_ids_at_some_only(with_ids, without, clock):
    edits: list[dict[str, Any]] = [{}, {}]
    edits[with_ids] = {"ids_digest": "aa"}
    assert has(refusal(edits), "ids to all parties or to none", repr(without))


@pytest.mark.parametrize(
    ("labels", "holders", "sentence"),
    [
        ((0, 0, 0), [], "exactly one party must hold the labels, but none does"),
        ((4, 0, 4), [0, 2], "exactly one party must hold the labels, but a, c do"),
        ((1, 0, 3), [0, 2], "exactly one party must hold the labels, but a, c do"),
        ((0, 3, 0), [1], "'b' must hold the labels of all 4 rows, but 1 are missing"),
    ],
)
def test_label_holders(labels, holders, sentence, clock):
    edits = [{"name": n, "n_labels": labels[j]} for j, n in enumerate("abc")]
    parties = greet(Edited(some(), edits))
    with pytest.raises(FederationError, match=sentence):
        _ = parties.label_holder
    if holders:
        assert parties.label_holders == holders
    else:
        with pytest.raises(FederationError, match="must hold the labels, but none"):
            _ = parties.label_holders


# -- split rows ------------------------------------------------------------------------


def rows_of(*sizes: int, columns: Sequence[str] | None = None) -> list[Party]:
    ids = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return [Party(np.ones((len(own), 2)), ids=own, columns=columns) for own in ids]


@pytest.mark.parametrize("partition", ["vertical", "horizontal"])
def test_parties_are_told_how_data_are_split(partition, clock):
    grid = Edited(some(2))
    greet(grid, partition=partition)
    told = [unpack(m.content)[0]["partition"] for m in grid.sent]
    assert told == [partition] * 2


def test_ids_and_row_counts_are_not_compared_where_rows_are_split(clock):
    digests = [{"ids_digest": text, "n_rows": 4 + len(text)} for text in ("", "a", "b")]
    parties = greet(Edited(some(), digests), partition="horizontal")
    assert parties.n_rows == 4 + 5 + 5


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"kinds": ["number"]}, "'kinds' must have one item for each of 'columns'"),
        ({"kinds": ["number", "secret"]}, "'kinds'"),
        ({"widths": [1]}, "'widths' must have one item for each of 'columns'"),
        ({"widths": [1, 0]}, "'widths'"),
        ({"columns": ["a" * 300, "b"]}, "'columns'"),
        ({"gaps": 1}, "'gaps'"),
    ],
)
def test_what_a_party_says_of_its_columns_has_a_form(edit, words, clock):
    parties = rows_of(3, 4, 5, columns=["age", "weight"])
    with pytest.raises(PartyFailed, match="malformed") as caught:
        greet(Edited(parties, [{}, {}, edit]), partition="horizontal")
    assert caught.value.party == "node 1002"
    assert words in caught.value.reason


def test_other_number_of_columns_where_rows_are_split(clock):
    edits = [{"name": "a"}, {"name": "b"}, {"name": "c", "n_columns": 3}]
    text = refusal(edits, partition="horizontal")
    assert has(text, "same columns", "'a' has 2", "'c' has 3")
    greet(Edited(some(), edits))


@pytest.mark.parametrize("partition", ["vertical", "horizontal"])
@pytest.mark.parametrize("second", [{"name": "party-1"}, {}], ids=["said", "by place"])
def test_names_of_parties_differ_however_data_are_split(partition, second, clock):
    text = refusal([{"name": "party-1"}, second], partition=partition)
    assert has(text, "names must differ", "'party-1'")


def test_one_party_where_one_is_enough(clock):
    parties = greet(
        rows_of(4), partition="horizontal", masking="plain", terms=Terms(parties=1)
    )
    assert (len(parties), parties.n_rows) == (1, 4)


# -- two parties -----------------------------------------------------------------------


def test_two_parties_are_refused_or_warned(clock, caplog):
    with pytest.raises(FederationError, match="reveals sums over all") as caught:
        greet(some(2)).refuse_two("the strategy", False)
    assert has(str(caught.value), "three parties", "allow-two-parties=true")
    for allowed in (False, True):
        greet(some(3)).refuse_two("the strategy", allowed)
    assert caplog.messages == []
    greet(some(2)).refuse_two("the strategy", True)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("the strategy reveals sums over all")


# -- waiting for parties ---------------------------------------------------------------


class Slow(InProcessGrid):
    def __init__(self, parties: Sequence[Party], clock: Any, times: Sequence[float]):
        super().__init__(parties)
        self.clock, self.times = clock, times

    def get_node_ids(self):
        nodes = super().get_node_ids()
        return [
            node
            for node, time in zip(nodes, self.times, strict=True)
            if time <= self.clock.now
        ]


def test_waits_for_as_many_as_the_run_says(clock, caplog):
    caplog.set_level(logging.INFO, "vfl_flower")
    parties = greet(Slow(some(3), clock, [0.0, 2.0, 3.0]), n_parties=3)
    assert len(parties) == 3
    assert clock.now >= 3
    first, second, greeted = caplog.messages
    assert has(first, "3 parties", "1 connected (node 1000)", "at most")
    assert has(second, "3 parties", "2 connected (node 1000, node 1001)", "at most")
    assert has(greeted, "party-0, party-1, party-2", "row ids were not compared")


def test_waits_for_as_many_as_the_nodes_say(clock):
    """``num-partitions`` of a simulation, or of a careful node config."""
    X = np.ones((4, 1))
    late = [Party(X, name=name) for name in "abc"]
    for party in late:
        party.n_parties = 3
    parties = greet(Slow(late, clock, [0.0, 0.0, 4.0]))
    assert [party.name for party in parties] == ["a", "b", "c"]
    assert clock.now >= 4
    messages = [parties.ledger.entry("hello", name).messages for name in "abc"]
    assert messages == [2, 2, 1]
    assert len(parties.ask(probe)) == 3


@pytest.mark.parametrize(("n_parties", "wanted"), [(0, 2), (2, 2), (3, 3)])
def test_too_few(n_parties, wanted, clock):
    grid = Slow(some(3), clock, [0.0, 99.0, 99.0])
    sentence = f"needs {wanted} parties, but 1 connected within 10 s"
    with pytest.raises(FederationError, match=sentence):
        greet(grid, n_parties=n_parties)
    assert TIMEOUT < clock.now < TIMEOUT + 0.6


def test_too_many(clock):
    with pytest.raises(FederationError, match="for 2 parties, but 3 are connected"):
        greet(some(3), n_parties=2)


def test_nodes_that_say_different_numbers_of_parties(clock):
    """The error names who says the largest: it may be the one that is wrong."""
    says = [{"n_parties": 2, "name": "a"}, {"n_parties": 3, "name": "b"}]
    with pytest.raises(FederationError, match=r"3 parties according to 'b', but 2 "):
        greet(Edited(some(2), says))


# -- asking ----------------------------------------------------------------------------


def test_replies_are_in_party_order(clock):
    parties = greet(Edited(some(), [{"index": 2}, {"index": 0}, {"index": 1}]))
    assert [party.node_id for party in parties] == [1001, 1002, 1000]
    assert [party.name for party in parties] == ["party-0", "party-1", "party-2"]
    replies = parties.ask(probe, value=5)
    assert len(replies) == 3
    assert replies.each("index") == [0, 1, 2]
    assert replies.each("value") == [5, 5, 5]
    assert replies.each("seed") == [7, 7, 7]
    assert replies.each("n_parties") == [3, 3, 3]
    assert replies[1]["index"] == 1
    assert [reply["index"] for reply in replies[1:]] == [1, 2]


def test_a_value_that_a_party_may_leave_out_is_asked_of_all(clock):
    replies = greet(some()).ask(probe, value=each([5, None, 5]))
    with pytest.raises(PartyFailed, match="lacks 'value'") as caught:
        replies.each("value")
    assert (caught.value.party, caught.value.action) == ("party-1", "probe")


def test_each_party_its_own(clock):
    replies = greet(some()).ask(probe, own=each([10, 11, 12]), value=1)
    assert replies.each("own") == [10, 11, 12]
    assert replies.each("value") == [1, 1, 1]
    assert greet(some(2)).ask(probe, own=each([1, None])).each("own") == [1, 0]


@pytest.mark.parametrize("values", [[], [1, 2], [1, 2, 3, 4]])
def test_each_needs_one_value_a_party(values, clock):
    parties = greet(some())
    with pytest.raises(ValueError, match=f"own must have 3 .* got {len(values)}"):
        parties.ask(probe, own=each(values))
    assert parties.ledger.round_trips == 1


def test_values_are_given_by_name(clock):
    parties = greet(some())
    for ask in (parties.ask, parties.secure_sum, parties.ask_exactly):
        with pytest.raises(TypeError, match="by name"):
            ask(probe, 5)
    with pytest.raises(TypeError, match="by name"):
        parties.ask_one(0, probe, 5)
    assert parties.ledger.round_trips == 1


def test_one_party_is_asked_alone(clock):
    grid = Edited(some(), [{"index": 2}, {"index": 0}, {"index": 1}])
    parties = greet(grid)
    assert parties.ask_one(1, probe, value=5) == {
        "index": 1,
        "own": 0,
        "seed": 7,
        "n_parties": 3,
        "value": 5,
        "x": pytest.approx(np.ones(3)),
    }
    assert [m.metadata.dst_node_id for m in grid.sent[3:]] == [1002]
    assert parties.ledger.round_trips == 2
    entries = [parties.ledger.entry("probe", p.name).messages for p in parties]
    assert entries == [0, 1, 0]


def test_parties_that_were_not_asked_go_on_from_where_they_were(clock):
    """Each is told in which round it was asked last, so that it notices a gap."""
    grid = Edited(some())
    parties = greet(grid)
    for party in (1, 1, 0):
        parties.ask_one(party, probe)
    assert parties.ask(probe).each("index") == [0, 1, 2]
    sums = parties.ask(total.summing(total=8.0)).sums
    assert sums["total"].tolist() == [6, 6]
    told = [(f["index"], f["previous"], f["round"]) for a, f in frames(grid)[3:]]
    assert told == [
        *[(1, 0, 1), (1, 1, 2), (0, 0, 3)],
        *[(0, 3, 4), (1, 2, 4), (2, 0, 4)],
        *[(0, 4, 5), (1, 4, 5), (2, 4, 5)],
    ]
    keys = [(f["index"], len(f["peers"])) for a, f in frames(grid) if "peers" in f]
    assert keys == [(1, 3 * 32), (0, 3 * 32), (2, 3 * 32)]  # once each


def test_masks_of_a_name_are_numbered_upwards(clock):
    grid = Edited(some(2))
    parties = greet(grid)
    parties.ask(total.summing(total=4.0))
    parties.ask(probe)
    parties.ask_exactly(total.summing(total=1.0))
    numbers = [f.get("sum.total") for a, f in frames(grid)[2:]]
    assert numbers == [1, 1, None, None, 3, 3, 4, 4]
    bounds = [f["bound.total"] for a, f in frames(grid)[2:] if "bound.total" in f]
    assert bounds == [4.0, 4.0, 1.0, 1.0, 2.0**20, 2.0**20]


@pytest.mark.parametrize("masking", ["ring", "plain"])
def test_sums(masking, clock):
    parties = greet(some(), masking=masking)
    replies = parties.ask(total.summing(total=8.0))
    np.testing.assert_array_equal(replies.sums["total"], [6.0, 6.0])
    assert replies.each("own") == [0, 1, 2]
    assert all("total" not in reply for reply in replies)
    assert replies.clipped == 0
    scales = each([0.0, 1.0, 2.0])
    sums = parties.secure_sum(total.summing(total=8.0), scale=scales)
    np.testing.assert_array_equal(sums["total"], [8.0, 8.0])
    with pytest.raises(ValueError, match="shapes must be the same for all parties"):
        parties.secure_sum(total.summing(total=8.0), shapes=each([True, False, False]))
    circle = parties.ask(turns.summing(total=Sum(group="circle16"))).sums["total"]
    assert (circle.dtype, circle.tolist()) == (np.uint16, [120_000 % 2**16])


def test_clipping_is_said(clock, caplog):
    parties = greet(some())
    replies = parties.ask(total.summing(total=2.0))
    assert replies.clipped == 2  # both entries of the third party
    np.testing.assert_array_equal(replies.sums["total"], [5.0, 5.0])
    assert "2 values of total were clipped" in caplog.text
    assert parties.ledger.clipped == 2
    assert parties.ask(total.summing(total=8.0)).clipped == 0


@pytest.mark.parametrize("count", [-1, 6, 7])
def test_more_clipped_values_than_there_are_show_that_masks_do_not_cancel(clock, count):
    """One party adds to the masked count; the three have six values in all."""

    def lie(request, values, frame):
        more, _ = group("ring", MOST_CLIPPED, 3).encode(np.array([float(count)]))
        clipped = np.frombuffer(frame["clipped"], "<u8") + more
        return pack(values, {**frame, "clipped": clipped.tobytes()})

    parties = greet(LyingGrid(some(), "total", 1, lie))
    if 0 <= count <= 6:
        assert parties.ask(total.summing(total=8.0)).clipped == count
    else:
        with pytest.raises(FederationError, match="masks of total do not cancel"):
            parties.ask(total.summing(total=8.0))


@pytest.mark.parametrize("first", [1.0, Sum(1.0, "ring")])
def test_exact_sums_are_asked_again_with_wider_bounds(first, clock, caplog):
    parties = greet(some())
    replies = parties.ask_exactly(total.summing(total=first), scale=2.0**15)
    np.testing.assert_array_equal(replies.sums["total"], np.full(2, 6 * 2.0**15))
    assert replies.clipped == 0
    assert len(parties.ledger.waits["total"]) == 2
    assert "clipped" not in caplog.text
    assert parties.ledger.clipped == 0  # in what was used


def test_parties_that_always_clip_are_not_asked_for_ever(clock, monkeypatch):
    def one_more(self, step, replies):
        self.ledger.clips[step.action] = 1
        return 1

    monkeypatch.setattr(Parties, "_clipped", one_more)
    parties = greet(some())
    with pytest.raises(FederationError, match=r"absolute .* 1e\+200, but 1 are"):
        parties.ask_exactly(turns.summing(total=Sum(1.0, "circle16")))
    assert parties.ledger.round_trips < 50


# -- replies that are not what their step declares -------------------------------------


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"task": None}, ("'task' is missing",)),
        ({"rows": np.arange(3)}, ("'rows'", "(2)", "got (3)")),
        ({"X": np.full((2, 2), np.nan)}, ("'X'", "finite")),
        ({"total": None}, ("masked array 'total'",)),
        ({"total": np.ones(2)}, ("masked array 'total'",)),
        ({"total": 5}, ("masked array 'total'",)),
        ({"total": np.ones(3, np.uint64)}, ("'total'", "(2)", "got (3)")),
        ({"angles_1": np.ones(3)}, ("'angles_1'", "(2)", "got (3)")),
        ({"weather": 1}, ("'weather'",)),
        ({"frame": {"seconds": -1.0}}, ("'seconds'", "at least 0")),
        ({"frame": {"clipped": b"1"}}, ("'clipped'", "length 8")),
        ({"frame": {"more": 1}}, ("'more'",)),
    ],
    ids=str,
)
def test_a_malformed_reply_names_party_value_and_rule(edit, words, clock):
    parties = greet(Edited(some(), [{}, edit], action="report"))
    with pytest.raises(PartyFailed) as caught:
        parties.ask(report.summing(total=1.0), m=2)
    assert (caught.value.party, caught.value.action) == ("party-1", "report")
    assert caught.value.nodes == {1001: "party-1"}
    assert has(caught.value.reason, "malformed", *words)


def test_a_plain_sum_of_what_is_not_finite(clock):
    edits = [{}, {"total": np.array([1.0, np.inf])}]
    parties = greet(Edited(some(), edits, action="report"), masking="plain")
    with pytest.raises(PartyFailed, match="'total' must hold finite") as caught:
        parties.ask(report.summing(total=1.0), m=2)
    assert caught.value.party == "party-1"


def test_an_element_that_is_not_of_the_group(clock):
    edits = [{}, {"total": np.full(1, 2**64 - 1, np.uint64)}]
    parties = greet(Edited(some(), edits, action="turns"))
    with pytest.raises(PartyFailed, match="'total' must hold elements") as caught:
        parties.ask(turns.summing(total=Sum(group="field")), dtype="<u8")
    assert caught.value.party == "party-1"


def test_masked_arrays_of_several_shapes(clock):
    with pytest.raises(PartyFailed, match="'total' has shape") as caught:
        greet(some()).ask(total.summing(total=8.0), shapes=True)
    assert (caught.value.party, caught.value.action) == ("party-1", "total")
    assert has(caught.value.reason, "(2,)", "'party-0'", "(1,)")


@pytest.mark.parametrize(
    "edit",
    [
        {"key.1": None},
        {"key.1": 5},
        {"key.0": np.ones(3, np.uint8)},
        {"key.7": np.ones(3, np.uint8)},
        {"key": b"in the clear"},
    ],
    ids=str,
)
def test_a_malformed_secret_names_its_party(edit, clock):
    parties = greet(Edited(some(), [edit], action="tell"))
    with pytest.raises(PartyFailed, match="'key") as caught:
        parties.ask(tell)
    assert (caught.value.party, caught.value.action) == ("party-0", "tell")


def test_a_secret_of_two_parties_is_refused(clock):
    with pytest.raises(PartyFailed, match="'key', which 'party-0' also sent") as caught:
        greet(some()).ask(tell, senders=2)
    assert caught.value.party == "party-1"


def test_a_request_that_contradicts_itself_is_not_sent(clock):
    def _weigh(
        party: Party,
        rows: Annotated[Array, contract.Whole("m")],
        weights: Annotated[Array, contract.Reals("m")],
    ) -> Bare:
        return {}

    parties = greet(some())
    with pytest.raises(contract.ContractError, match="'weights'"):
        parties.ask(Step(_weigh, "weigh"), rows=np.arange(2), weights=np.ones(3))
    assert parties.ledger.round_trips == 1


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("a\n  b", "a b"), ("x" * 9999, "x" * 500), ("", "Flower's error code 1001")],
)
def test_a_reason_is_a_line(reason, shown, clock, monkeypatch):
    """Whatever a party sends in its place."""

    @wraps(refusing.function)  # its annotations are the contract of the step
    def failed(party):
        raise PartyError(reason)

    monkeypatch.setattr(refusing, "function", failed)
    with pytest.raises(PartyFailed) as caught:
        greet(some()).ask(refusing)
    assert caught.value.reason == shown


# -- messages --------------------------------------------------------------------------


def frames(grid: Edited) -> list[tuple[str, dict[str, Any]]]:
    return [
        (m.metadata.message_type.partition(".")[2], unpack(m.content)[1])
        for m in grid.sent
    ]


def test_hello_carries_nothing_but_the_session(clock):
    sessions = []
    for _ in range(2):
        greet(grid := Edited(some()))
        assert all(set(frame) == {"session", "digest"} for _, frame in frames(grid))
        (session,) = {frame["session"] for _, frame in frames(grid)}
        sessions.append(session)
    assert sessions[0] != sessions[1]


@pytest.mark.parametrize("model", ["0123456789abcdef", None])
def test_messages_after_hello_name_the_model_that_a_run_works_with(model, clock):
    grid = Edited(some(2))
    parties = greet(grid, model=model)
    with contextlib.suppress(PartyFailed):  # these keep no part of a model
        parties.ask(probe)
    told = [frame.get("model") for action, frame in frames(grid) if action != "hello"]
    assert told == [model] * 2


def test_small_messages_travel_as_one_record_both_ways():
    greet(grid := Listening(some(2))).ask(probe, x=np.ones(5))
    assert len(grid.sent) == len(grid.seen) == 2 * 2
    assert all(list(m.content) == [BUNDLE] for m in [*grid.sent, *grid.seen])


@pytest.mark.parametrize("action", ["hello", "probe"])
def test_a_party_that_sends_a_bundle_in_a_bundle_is_named(action, clock):
    grid = Edited(some(2), action="none")
    push = grid._push

    def pushed(message):
        number = push(message)
        reply = grid._replies[number]
        liar = reply.metadata.src_node_id == 1001
        if liar and reply.metadata.message_type == f"train.{action}":
            reply.content = in_bundle(reply.content)
        return number

    grid._push = pushed
    with pytest.raises(PartyFailed, match="lacks its record") as caught:
        greet(grid).ask(probe, x=np.ones(5))
    assert caught.value.party in ("party-1", "node 1001")
    assert caught.value.action == action


def test_ledger_counts_each_message_as_it_was_sent(clock):
    grid = Edited(some(2))
    parties = greet(grid)
    parties.ask(probe, x=np.ones(5))
    parties.ask(probe, x=np.ones(5))
    ledger = parties.ledger
    assert ledger.round_trips == 3
    assert ledger.messages == len(grid.sent) == 6
    assert ledger.bytes_down == sum(n_bytes(m.content) for m in grid.sent)
    assert sum(n_units(unbundle(m.content)) for m in grid.sent) == 2 * 2 * 5
    entry = ledger.entry("probe", "party-1")
    assert (entry.messages, entry.units_down, entry.units_up) == (2, 10, 10)
    assert entry.bytes_up > 2 * 8 * 5
    assert entry.seconds_computed > 0
    assert list(ledger.waits) == ["hello", "probe"]


def test_ledger_times_each_party_apart(clock):
    """One party after the other, as in one process: 3 s and 1 s, and none waits twice.

    What the server waits beyond them is a look for replies every 10 ms.
    """

    class Slow(Edited):
        def push_messages(self, messages):
            seconds = 3.0 if len(self.sent) % 2 == 0 else 1.0
            clock.sleep(seconds)
            return super().push_messages(messages)

    parties = greet(Slow(some(2)))
    parties.ask(probe, x=np.ones(5))
    first, second = (parties.ledger.entry("probe", f"party-{j}") for j in range(2))
    assert first.seconds_answered == pytest.approx(3.0, abs=0.1)
    assert second.seconds_answered == pytest.approx(1.0, abs=0.1)
    assert parties.ledger.waits["probe"] == [pytest.approx(4.0, abs=0.1)]


def test_ledger_knows_which_values_were_sent(clock):
    """Of those declared; what ``hello`` has is always the same."""
    parties = greet(Edited(some(2)))
    parties.ask(probe, x=np.ones(5))
    (action,) = parties.ledger.seen
    seen = parties.ledger.seen[action]
    assert action == "probe"
    assert seen.request == {"x"}
    assert seen.reply <= set(probe.contract.reply)
    assert seen.reply
    assert parties.ledger.of("probe").seen == parties.ledger.seen
    assert parties.ledger.of("hello").seen == {}


# -- trying again ----------------------------------------------------------------------


def messages_after(
    clock: Any, *faults: Fault, ask: int = 1
) -> tuple[list[int], Parties]:
    parties = greet(FaultyGrid(some(), faults, clock))
    for _ in range(ask):
        replies = parties.ask(probe)
        assert replies.each("index") == [0, 1, 2]
    return [parties.ledger.entry("probe", p.name).messages for p in parties], parties


def test_retries_start_anew_in_the_next_round(clock):
    """At once, and the ledger counts what is sent again."""
    last = 2 * RETRIES + 1
    faults = [Fault("unavailable", "probe", 1, n) for n in range(last) if n != RETRIES]
    messages, parties = messages_after(clock, *faults, ask=2)
    assert messages == [2, 2 + 2 * RETRIES, 2]
    assert parties.ledger.round_trips == 3
    assert clock.now < 0.1
    once, thrice = (parties.ledger.entry("probe", f"party-{j}") for j in (0, 1))
    assert thrice.bytes_down == 3 * once.bytes_down


def test_silent_is_who_never_replied_although_asked_again(clock):
    """The transient error does not give the party more time."""
    faults = [Fault("unavailable", "probe", 1, 0), Fault("lose request", "probe", 1, 1)]
    grid = FaultyGrid(some(), faults, clock)
    with pytest.raises(PartyFailed, match=r"'party-1'.*no reply within 10 s"):
        greet(grid).ask(probe)
    assert [grid.asked("probe", j) for j in range(3)] == [1, 2, 1]
    assert TIMEOUT < clock.now <= TIMEOUT + 0.1


@pytest.mark.parametrize("kind", ["duplicate", "reply unavailable"])
def test_second_reply_counts_for_nothing(kind, clock):
    """It comes while the server still waits for party 2."""
    faults = [Fault(kind, "probe", 1), Fault("delay", "probe", 2, seconds=9.0)]
    messages, parties = messages_after(clock, *faults)
    assert messages == [1, 1 if kind == "duplicate" else 2, 1]
    assert 9 <= clock.now < TIMEOUT
    entries = [parties.ledger.entry("probe", p.name) for p in parties]
    assert [entry.units_up for entry in entries] == [3, 3, 3]
    assert abs(entries[1].bytes_up - entries[0].bytes_up) < 20


@pytest.mark.parametrize("code", range(9))
def test_transient_and_lasting_codes_of_flower(code, clock, monkeypatch):
    monkeypatch.setattr("faults.UNAVAILABLE", code)
    if code in (3, 4, 5, 8):
        assert messages_after(clock, Fault("unavailable", "probe", 1))[0] == [1, 2, 1]
        return
    with pytest.raises(PartyFailed, match="as planned"):
        messages_after(clock, Fault("unavailable", "probe", 1))
