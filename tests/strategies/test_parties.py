"""The greeting, the round trip, and every way in which they may fail."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from faults import Fault, FaultyGrid
from flwr.app import Message
from flwr.common.serde import context_from_proto, context_to_proto

from vfl_flower import FederationError, Ledger, Party, PartyFailed, __version__
from vfl_flower.clients.base import STEPS, PartyError, Step
from vfl_flower.messages import n_bytes, n_units, pack, unpack
from vfl_flower.simulations import InProcessGrid
from vfl_flower.strategies import CoresetVKMC, CoresetVRLR
from vfl_flower.strategies.exchange import RETRIES
from vfl_flower.strategies.parties import Parties
from vfl_flower.strategies.replies import Sum, order_of

TIMEOUT = 10.0


def probe(party: Party, own: int = 0, **values: Any) -> dict[str, Any]:
    """Say who answers, and with what it was asked."""
    return {
        "index": party.index,
        "own": own,
        "seed": party.seed,
        "n_parties": party.n_parties,
        "x": np.ones(3),
    } | values


def total(party: Party, scale: float = 1.0, shapes: bool = False) -> dict[str, Any]:
    """Send a vector into a sum."""
    width = party.index + 1 if shapes else 2
    return {"total": np.full(width, scale * (party.index + 1)), "own": party.index}


def bare(party: Party, send: bool = False) -> dict[str, Any]:
    """Send in the clear, or not at all, what the server wants as a sum."""
    return {"total": np.ones(2)} if send else {}


def failing(party: Party) -> dict[str, Any]:
    if party.index == 1:
        raise ValueError("/home/ann/flights.csv: 2718.28")
    return {}


def refusing(party: Party) -> dict[str, Any]:
    raise PartyError("column 'delay' has no label")


@pytest.fixture(autouse=True)
def steps(monkeypatch):
    """Register steps that only these tests ask for."""
    for function in (probe, total, bare, failing, refusing):
        name = function.__name__
        sums = ("total",) if function is total else ()
        monkeypatch.setitem(STEPS, name, Step(name, function, sums))


class Edited(InProcessGrid):
    """A grid whose parties say something else in ``hello`` than they would."""

    def __init__(
        self, parties: Sequence[Party], edits: Sequence[dict[str, Any]] = ()
    ) -> None:
        super().__init__(parties)
        self.edits = dict(zip(self._parties, edits, strict=False))
        self.sent: list[Message] = []

    def push_messages(self, messages):
        """Keep what the server sends."""
        messages = list(messages)
        self.sent += messages
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        """Return replies, last party first, with their edits."""
        replies = super().pull_messages(message_ids)[::-1]
        for reply in replies:
            if reply.metadata.message_type == "train.hello" and reply.has_content():
                values, frame = unpack(reply.content)
                del frame["digest"]
                values |= self.edits.get(reply.metadata.src_node_id, {})
                reply.content = pack(values, frame)
        return replies


def some(count: int = 3) -> list[Party]:
    """Return parties without names; the last one has labels."""
    X = np.arange(8.0).reshape(4, 2)
    return [Party(X, X[:, 0] if j == count - 1 else None) for j in range(count)]


def greet(grid: InProcessGrid | Sequence[Party], **arguments: Any) -> Parties:
    """Return the parties of a grid after their greeting."""
    if not isinstance(grid, InProcessGrid):
        grid = InProcessGrid(grid)
    settings: dict[str, Any] = {"seed": 7, "timeout": TIMEOUT} | arguments
    return Parties(grid, settings.pop("ledger", None) or Ledger(), **settings)


def refusal(edits: Sequence[dict[str, Any]], **arguments: Any) -> str:
    """Return why parties that say these things do not fit together."""
    with pytest.raises(FederationError) as caught:
        greet(Edited(some(len(edits)), edits), **arguments)
    assert not isinstance(caught.value, PartyFailed)
    return str(caught.value)


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


def test_order_is_that_of_the_index(clock):
    grid = Edited(some(), [{"index": 2}, {"index": 0}, {"index": 1}])
    parties = greet(grid)
    assert [party.node_id for party in parties] == [1001, 1002, 1000]
    assert [party.name for party in parties] == ["party-0", "party-1", "party-2"]


def test_order_is_that_of_the_names_where_there_is_no_index(clock):
    names = [{"index": -1, "name": name} for name in ("weather", "registry", "airline")]
    parties = greet(Edited(some(), names))
    assert [party.name for party in parties] == ["airline", "registry", "weather"]
    assert [party.node_id for party in parties] == [1002, 1001, 1000]
    assert parties.ledger.entry("hello", "airline").messages == 1


def test_neither_index_nor_name(clock):
    assert refusal([{"index": -1, "name": "a"}, {"index": -1}, {"index": -1}]) == (
        "each node needs a partition-id or a party-name in its node config, or its "
        "Party an index or a name: 2 have neither"
    )


@pytest.mark.parametrize(
    ("indices", "listed"),
    [
        ((0, 2, 3), "[0, 2, 3]"),
        ((0, 1, 1), "[0, 1, 1]"),
        ((1, 2, 3), "[1, 2, 3]"),
        ((0, -1, 1), "[-1, 0, 1]"),
    ],
    ids=["gap", "duplicate", "from 1", "some without"],
)
def test_indices_that_are_no_order(indices, listed, clock):
    edits = [{"index": j, "name": f"n{j}"} for j in indices]
    assert refusal(edits) == (
        "the partition-ids (or indexes) of 3 parties must be 0 to 2, each once, got "
        + listed
    )


def test_duplicate_names(clock):
    names = [{"name": "airline"}, {"name": "weather"}, {"name": "airline"}]
    assert refusal(names) == "party names must differ, two are 'airline'"


def test_a_name_that_another_gets_by_its_place(clock):
    assert "two are 'party-1'" in refusal([{"name": "party-1"}, {}, {}])


def test_unequal_rows(clock):
    assert refusal([{"name": "a"}, {"name": "b"}, {"name": "c", "n_rows": 5}]) == (
        "all parties must hold the same number of rows: 'a' has 4, 'c' has 5"
    )


def test_other_version(clock):
    assert refusal([{"name": "a"}, {"name": "b", "version": "0.0.9"}]) == (
        "all parties must run the same version of vfl_flower as the server, "
        f"{__version__}: 'b' has 0.0.9"
    )


def test_other_version_with_another_greeting(clock):
    class Older(Edited):
        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            for reply in replies:
                values, frame = unpack(reply.content)
                del values["n_parties"], frame["digest"]
                reply.content = pack(values, frame)
            return replies

    edits = [{"name": "a", "version": "0.0.9"}, {"name": "b", "version": "0.0.9"}]
    with pytest.raises(FederationError, match="the same version of vfl_flower"):
        greet(Older(some(2), edits))


def test_digests_that_differ(clock):
    digests = [{"ids_digest": "aa"}, {"ids_digest": "aa"}, {"ids_digest": "ab"}]
    assert refusal(digests) == (
        "all parties must hold the same row ids in the same order: those of 'party-2' "
        "differ from those of 'party-0'"
    )


@pytest.mark.parametrize(("with_ids", "without"), [(0, "party-1"), (1, "party-0")])
def test_ids_at_some_only(with_ids, without, clock):
    edits: list[dict[str, Any]] = [{}, {}]
    edits[with_ids] = {"ids_digest": "aa"}
    assert refusal(edits) == (
        f"give ids to all parties or to none: {without!r} has none"
    )


def test_same_ids_are_fine(clock):
    X = np.ones((3, 1))
    greet([Party(X, ids=np.arange(3)), Party(X, ids=np.array(["0", "1", "2"]))])


def test_order_of_ids_matters(clock):
    X = np.ones((3, 1))
    with pytest.raises(FederationError, match="in the same order"):
        greet([Party(X, ids=np.arange(3)), Party(X, ids=np.array([1, 0, 2]))])


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ((0, 0, 0), "exactly one party must hold the labels, but none does"),
        ((4, 0, 4), "exactly one party must hold the labels, but a, c do"),
        ((1, 0, 3), "exactly one party must hold the labels, but a, c do"),
        ((0, 3, 0), "'b' must hold the labels of all 4 rows, 1 are missing"),
    ],
)
def test_label_holder(labels, sentence, clock):
    edits = [{"name": n, "n_labels": labels[j]} for j, n in enumerate("abc")]
    parties = greet(Edited(some(), edits))
    with pytest.raises(FederationError) as caught:
        _ = parties.label_holder
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("labels", "holders"),
    [((0, 0, 4), [2]), ((1, 0, 3), [0, 2]), ((4, 4, 4), [0, 1, 2]), ((0, 1, 0), [1])],
)
def test_label_holders(labels, holders, clock):
    parties = greet(Edited(some(), [{"n_labels": count} for count in labels]))
    assert parties.label_holders == holders


def test_no_label_holders(clock):
    parties = greet(Edited(some(), [{"n_labels": 0}] * 3))
    with pytest.raises(FederationError) as caught:
        _ = parties.label_holders
    assert str(caught.value) == "a party must hold the labels, but none does"


@pytest.mark.parametrize("solver", ["central", "cg", "saga"])
def test_labels_of_some_rows_only_are_refused_where_all_are_needed(solver, clock):
    y = np.array([1.0, np.nan, 2.0, np.nan])
    X = np.arange(8.0).reshape(4, 2)
    grid = Edited([Party(X, name="airline"), Party(X), Party(X, y=y, name="registry")])
    with pytest.raises(FederationError) as caught:
        CoresetVRLR(size=2, solver=solver).start(grid, timeout=TIMEOUT)
    assert str(caught.value) == (
        "'registry' must hold the labels of all 4 rows, 2 are missing"
    )
    assert {m.metadata.message_type for m in grid.sent} == {"train.hello"}


def test_labels_in_two_halves_are_refused_where_one_holder_is_needed(clock):
    X = np.arange(8.0).reshape(4, 2)
    y = np.array([1.0, 2.0, np.nan, np.nan])
    grid = Edited([Party(X, y=y, name="a"), Party(X, y=y[::-1], name="b")])
    with pytest.raises(FederationError, match="must hold the labels, but a, b do"):
        CoresetVRLR(size=2).start(grid, timeout=TIMEOUT)
    assert {m.metadata.message_type for m in grid.sent} == {"train.hello"}


# -- split rows ------------------------------------------------------------------------


def rows_of(*sizes: int, columns: Sequence[str] | None = None) -> list[Party]:
    """Return parties of so many rows of two columns, with ids of their own."""
    ids = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return [Party(np.ones((len(own), 2)), ids=own, columns=columns) for own in ids]


def test_rows_of_all_parties_where_rows_are_split(clock):
    parties = greet(rows_of(4, 1, 7), partition="horizontal")
    assert parties.n_rows == 12
    assert [party.n_rows for party in parties] == [4, 1, 7]


@pytest.mark.parametrize("partition", ["vertical", "horizontal"])
def test_parties_are_told_how_data_are_split(partition, clock):
    grid = Edited(some(2))
    greet(grid, partition=partition)
    assert [unpack(m.content)[0] for m in grid.sent] == [{"partition": partition}] * 2


def test_ids_and_row_counts_are_not_compared_where_rows_are_split(clock):
    digests = [{"ids_digest": text, "n_rows": 4 + len(text)} for text in ("", "a", "b")]
    parties = greet(Edited(some(), digests), partition="horizontal")
    assert parties.n_rows == 4 + 5 + 5


def test_names_of_columns_are_compared_where_rows_are_split(clock):
    names = ["age", "weight"]
    ours = rows_of(3, 4, columns=names) + rows_of(5, columns=names[::-1])
    with pytest.raises(FederationError) as caught:
        greet(ours, partition="horizontal")
    assert str(caught.value) == (
        "all parties must hold the same columns in the same order: the names of "
        "'party-2' differ from those of 'party-0' (a text column becomes one for each "
        "of its levels)"
    )
    greet(rows_of(3, 4, columns=names) + rows_of(5), partition="horizontal")
    X = np.ones((4, 2))
    greet([Party(X, columns=names), Party(X, columns=["a", "b"])])


def test_other_number_of_columns_where_rows_are_split(clock):
    edits = [{"name": "a"}, {"name": "b"}, {"name": "c", "n_columns": 3}]
    assert refusal(edits, partition="horizontal") == (
        "all parties must hold the same columns: 'a' has 2, 'c' has 3 (a text column "
        "becomes one for each of its levels)"
    )
    greet(Edited(some(), edits))


@pytest.mark.parametrize("partition", ["vertical", "horizontal"])
def test_names_of_parties_differ_however_data_are_split(partition, clock):
    names = [{"name": "clinic"}, {"name": "clinic"}]
    assert refusal(names, partition=partition) == (
        "party names must differ, two are 'clinic'"
    )


def test_one_party_where_one_is_enough(clock):
    parties = greet(rows_of(4), partition="horizontal", least=1, masking="plain")
    assert (len(parties), parties.n_rows) == (1, 4)


# -- a run without a party that failed -------------------------------------------------


def given(*indices: int) -> dict[int, dict[str, Any]]:
    """Return what nodes 100, 101, .. say of their place."""
    return {100 + k: {"index": j, "name": f"n{j}"} for k, j in enumerate(indices)}


@pytest.mark.parametrize(
    ("indices", "order"),
    [
        ((0, 2, 3), [100, 101, 102]),
        ((3, 0, 2), [101, 102, 100]),
        ((7,), [100]),
        ((1, 0), [101, 100]),
    ],
)
def test_order_with_gaps(indices, order):
    assert order_of(given(*indices), gaps=True) == order


@pytest.mark.parametrize("indices", [(0, 0, 2), (2, -1, 0)])
def test_order_with_gaps_that_is_none(indices):
    with pytest.raises(FederationError, match="each once, got"):
        order_of(given(*indices), gaps=True)


def test_order_of_names_with_gaps():
    replies = given(-1, -1)
    replies[100]["name"], replies[101]["name"] = "b", "a"
    assert order_of(replies, gaps=True) == order_of(replies) == [101, 100]


def test_parties_without_one(clock):
    grid = Edited(rows_of(3, 4, 5, 6))
    parties = greet(grid, without=[1001], partition="horizontal")
    assert [party.node_id for party in parties] == [1000, 1002, 1003]
    assert parties.n_rows == 14
    assert {m.metadata.dst_node_id for m in grid.sent} == {1000, 1002, 1003}
    replies = parties.ask("probe")
    assert replies.each("index") == [0, 1, 2]  # masks are between those that are left
    sums = parties.secure_sum("total", {"total": 8.0})
    np.testing.assert_array_equal(sums["total"], [6.0, 6.0])


def test_parties_that_were_announced_without_one(clock):
    """Nodes say that there are three; the server waits for the two others alone."""
    grid = Edited(some(3), [{"n_parties": 3}] * 3)
    parties = greet(grid, without=[1002], n_parties=3)
    assert [party.node_id for party in parties] == [1000, 1001]
    assert clock.now == 0


def test_too_few_parties_are_left(clock):
    """They have connected before, so that nobody else is waited for."""
    with pytest.raises(FederationError) as caught:
        greet(some(2), without=[1000])
    assert str(caught.value) == "the run needs 2 parties, 1 left"
    assert clock.now == 0


@pytest.mark.parametrize("kind", ["lose request", "lose reply"])
def test_who_failed_is_known_by_node_and_name(kind, clock):
    parties = greet(FaultyGrid(some(), [Fault(kind, "probe", 1)], clock))
    with pytest.raises(PartyFailed) as caught:
        parties.ask("probe")
    assert caught.value.nodes == {1001: "party-1"}


@pytest.mark.parametrize("action", ["failing", "refusing"])
def test_who_refused_is_known_by_node_and_name(action, clock):
    with pytest.raises(PartyFailed) as caught:
        greet(some()).ask(action)
    name = caught.value.party
    assert caught.value.nodes == {1000 + int(name[-1]): name}


# -- two parties -----------------------------------------------------------------------

BETWEEN_TWO = (
    "FDSKL gives the parties sums over all, and between two the sum shows each the "
    "other's part"
)


def test_two_parties_are_refused(clock):
    with pytest.raises(FederationError) as caught:
        greet(some(2)).refuse_two("FDSKL", False)
    assert str(caught.value) == (
        f"{BETWEEN_TWO}: it needs at least three parties, or allow_two_parties "
        "(in a run config allow-two-parties=true)"
    )


def test_two_parties_that_are_allowed_are_warned(clock, caplog):
    greet(some(2)).refuse_two("FDSKL", True)
    assert caplog.messages == [BETWEEN_TWO]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING


@pytest.mark.parametrize("allowed", [False, True])
def test_three_parties_are_neither(allowed, clock, caplog):
    greet(some(3)).refuse_two("FDSKL", allowed)
    assert caplog.messages == []


@pytest.mark.parametrize("labels", [(), (0, 1)])
def test_label_holder_is_asked_for_before_any_training(labels, clock):
    X = np.arange(8.0).reshape(4, 2)
    y = {j: X[:, 0] for j in labels}
    grid = Edited([Party(X, y.get(0)), Party(X, y.get(1))])
    with pytest.raises(FederationError, match="exactly one party must hold the labels"):
        CoresetVRLR(size=2).start(grid, timeout=TIMEOUT)
    assert {m.metadata.message_type for m in grid.sent} == {"train.hello"}


@pytest.mark.parametrize(
    ("strategy", "count", "sentence"),
    [
        (
            CoresetVRLR(size=5, sampling="uniform"),
            3,
            "size must be at most the number of training rows for uniform sampling, "
            "got 5 for 4 rows",
        ),
        (
            CoresetVRLR(size=3, sampling="uniform", test_fraction=0.5),
            3,
            "size must be at most the number of training rows for uniform sampling, "
            "got 3 for 2 rows",
        ),
        (
            CoresetVKMC(n_clusters=5, size=5),
            3,
            "n_clusters must be at most the number of training rows, got 5 for 4 rows",
        ),
        (
            CoresetVRLR(size=3, test_fraction=0.9),
            3,
            "test_fraction must leave training rows, got 0.9 of 4 rows",
        ),
        (
            CoresetVKMC(n_clusters=4, size=4, evaluate="full"),
            3,
            "evaluate='full' shows the server the distance of each row to each centre, "
            "so n_clusters must be at most the number of columns, got 4 for 3: use "
            "check_size",
        ),
        (
            CoresetVRLR(size=3, solver="cg"),
            2,
            "solver 'cg' gives the parties sums over all, and between two the sum "
            "shows each the other's part: it needs at least three parties, or "
            "allow_two_parties (in a run config allow-two-parties=true)",
        ),
        (
            CoresetVRLR(size=3, solver="saga"),
            2,
            "solver 'saga' gives the parties sums over all, and between two the sum "
            "shows each the other's part: it needs at least three parties, or "
            "allow_two_parties (in a run config allow-two-parties=true)",
        ),
    ],
    ids=["uniform", "uniform, test rows", "k", "no rows", "full", "cg", "saga"],
)
def test_what_only_the_data_forbid_is_said_before_any_training(
    strategy, count, sentence, clock
):
    narrow = [Party(p.X[:, :1], p.y) for p in some(count)]
    grid = Edited(narrow)
    with pytest.raises(FederationError) as caught:
        strategy.start(grid, timeout=TIMEOUT)
    assert str(caught.value) == sentence
    assert {m.metadata.message_type for m in grid.sent} == {"train.hello"}


@pytest.mark.parametrize(
    ("strategy", "count"),
    [
        (CoresetVKMC(n_clusters=3, size=4, n_init=1, evaluate="full"), 3),
        (CoresetVKMC(n_clusters=4, size=4, n_init=1), 3),
        (CoresetVRLR(size=3, solver="cg", allow_two_parties=True), 2),
        (CoresetVRLR(size=3, solver="saga", allow_two_parties=True, max_iter=1), 2),
        (CoresetVRLR(size=3, solver="cg"), 3),
        (CoresetVRLR(size=3), 2),
    ],
)
def test_what_the_data_just_allow(strategy, count, clock):
    X = np.random.default_rng(2).normal(size=(4, 3))
    last = count - 1
    ours = [Party(X[:, [j]], X[:, 0] if j == last else None) for j in range(count)]
    result = strategy.start(InProcessGrid(ours), timeout=TIMEOUT)
    assert ("full_cost" in result.metrics) == (strategy.evaluate == "full")


def test_party_that_cannot_load_its_data(clock):
    grid = InProcessGrid(some())

    def load(context):
        raise PartyError("party 'airline' has no column 'x'")

    from vfl_flower.client_app import make_client_app

    grid._app = make_client_app(load)
    with pytest.raises(PartyFailed) as caught:
        greet(grid)
    assert caught.value.action == "hello"
    assert caught.value.reason == "party 'airline' has no column 'x'"


# -- waiting for parties ---------------------------------------------------------------


class Slow(InProcessGrid):
    """A grid whose nodes connect one after the other."""

    def __init__(self, parties: Sequence[Party], clock: Any, times: Sequence[float]):
        super().__init__(parties)
        self.clock, self.times = clock, times

    def get_node_ids(self):
        """Return the nodes that have connected by now."""
        nodes = super().get_node_ids()
        return [
            node
            for node, time in zip(nodes, self.times, strict=True)
            if time <= self.clock.now
        ]


def test_waits_for_two(clock):
    parties = greet(Slow(some(2), clock, [0.0, 5.0]))
    assert len(parties) == 2
    assert 5 <= clock.now < 5.6  # a look every half second


def test_waits_for_as_many_as_the_run_says(clock, caplog):
    caplog.set_level(logging.INFO, "vfl_flower")
    parties = greet(Slow(some(3), clock, [0.0, 0.0, 3.0]), n_parties=3)
    assert len(parties) == 3
    assert clock.now >= 3
    assert caplog.messages == [
        "waiting for 3 parties, 2 connected",
        "3 parties: party-0, party-1, party-2; row ids were not compared",
    ]


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
    assert len(parties.ask("probe")) == 3


@pytest.mark.parametrize(
    ("n_parties", "sentence"),
    [
        (0, "the run needs 2 parties, 1 connected within 10 s"),
        (2, "the run needs 2 parties, 1 connected within 10 s"),
        (3, "the run needs 3 parties, 1 connected within 10 s"),
    ],
)
def test_too_few(n_parties, sentence, clock):
    grid = Slow(some(3), clock, [0.0, 99.0, 99.0])
    with pytest.raises(FederationError) as caught:
        greet(grid, n_parties=n_parties)
    assert str(caught.value) == sentence
    assert TIMEOUT < clock.now < TIMEOUT + 0.6


def test_too_many(clock):
    with pytest.raises(FederationError) as caught:
        greet(some(3), n_parties=2)
    assert str(caught.value) == (
        "the run is for 2 parties, 3 are connected (one that was stopped counts for a "
        "minute or two)"
    )


def test_nodes_that_say_different_numbers_of_parties(clock):
    with pytest.raises(FederationError, match="needs 3 parties, 2 connected within"):
        greet(Edited(some(2), [{"n_parties": 2}, {"n_parties": 3}]))


# -- asking ----------------------------------------------------------------------------


def test_replies_are_in_party_order(clock):
    parties = greet(Edited(some(), [{"index": 2}, {"index": 0}, {"index": 1}]))
    replies = parties.ask("probe", value=5)
    assert len(replies) == 3
    assert replies.each("index") == [0, 1, 2]
    assert replies.each("value") == [5, 5, 5]
    assert replies.each("seed") == [7, 7, 7]
    assert replies.each("n_parties") == [3, 3, 3]
    assert replies[1]["index"] == 1
    assert [reply["index"] for reply in replies[1:]] == [1, 2]


def test_each_party_its_own(clock):
    replies = greet(some()).ask_each(
        "probe", [{"own": 10}, {"own": 11}, {"own": 12}], value=1
    )
    assert replies.each("own") == [10, 11, 12]
    assert replies.each("value") == [1, 1, 1]


def test_own_values_come_before_common_ones(clock):
    replies = greet(some(2)).ask_each("probe", [{"own": 1}, {}], own=9)
    assert replies.each("own") == [1, 9]


def test_each_needs_one_entry_a_party(clock):
    with pytest.raises(ValueError, match="each must have 3 entries, got 2"):
        greet(some()).ask_each("probe", [{}, {}])


def test_one_party_is_asked_alone(clock):
    grid = Edited(some(), [{"index": 2}, {"index": 0}, {"index": 1}])
    parties = greet(grid)
    assert parties.ask_one(1, "probe", value=5) == {
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


def test_one_party_that_fails_alone(clock):
    parties = greet(some())
    assert parties.ask_one(0, "failing") == {}
    with pytest.raises(PartyFailed) as caught:
        parties.ask_one(1, "failing")
    assert (caught.value.party, caught.value.action) == ("party-1", "failing")


def test_parties_that_were_not_asked_go_on_from_where_they_were(clock):
    """Each is told in which round it was asked last, so that it notices a gap."""
    grid = Edited(some())
    parties = greet(grid)
    for party in (1, 1, 0):
        parties.ask_one(party, "probe")
    assert parties.ask("probe").each("index") == [0, 1, 2]
    assert parties.ask("total", sums={"total": 8.0}).sums["total"].tolist() == [6, 6]
    told = [(f["index"], f["previous"], f["round"]) for a, f in frames(grid)[3:]]
    assert told == [
        *[(1, 0, 1), (1, 1, 2), (0, 0, 3)],
        *[(0, 3, 4), (1, 2, 4), (2, 0, 4)],
        *[(0, 4, 5), (1, 4, 5), (2, 4, 5)],
    ]
    with_keys = [f["index"] for a, f in frames(grid)[3:] if "peers" in f]
    assert with_keys == [1, 0, 2]


def test_party_that_lost_a_round_in_which_it_was_asked_alone(clock):
    grid = InProcessGrid(some())
    parties = greet(grid)
    parties.ask("probe")
    old = context_to_proto(grid._contexts[1001])
    parties.ask_one(1, "probe")
    grid._contexts[1001] = context_from_proto(old)
    with pytest.raises(PartyFailed) as caught:
        parties.ask("probe")
    assert str(caught.value) == (
        "party 'party-1' failed in 'probe': round 3 does not follow round 1: this "
        "party has lost the state of a round"
    )


def test_masks_of_a_name_are_numbered_upwards(clock):
    grid = Edited(some(2))
    parties = greet(grid)
    parties.ask("total", sums={"total": 4.0})
    parties.ask("probe")
    parties.ask_exactly("total", {"total": 1.0})
    found = [f.get("sum.total") for a, f in frames(grid)[2:]]
    assert found == [1, 1, None, None, 3, 3, 4, 4]
    bounds = [f["bound.total"] for a, f in frames(grid)[2:] if "bound.total" in f]
    assert bounds == [4.0, 4.0, 1.0, 1.0, 2.0**20, 2.0**20]


@pytest.mark.parametrize("masking", ["ring", "plain"])
def test_sum_in_another_group_than_the_runs(masking, clock, monkeypatch):
    def turns(party: Party) -> dict[str, Any]:
        return {"total": np.array([20_000 * (party.index + 1)], dtype="<u2")}

    monkeypatch.setitem(STEPS, "turns", Step("turns", turns, ("total",)))
    parties = greet(some(), masking=masking)
    sums = parties.ask("turns", sums={"total": Sum(group="circle16")}).sums
    assert sums["total"].tolist() == [120_000 % 2**16]
    assert sums["total"].dtype == np.uint16


def test_clipped_sum_in_a_group_is_asked_again_with_a_wider_bound(clock):
    parties = greet(some())
    replies = parties.ask_exactly("total", {"total": Sum(1.0, "ring")}, scale=2.0**15)
    np.testing.assert_array_equal(replies.sums["total"], np.full(2, 6 * 2.0**15))


@pytest.mark.parametrize("masking", ["ring", "plain"])
def test_sums(masking, clock):
    parties = greet(some(), masking=masking)
    replies = parties.ask("total", sums={"total": 8.0})
    np.testing.assert_array_equal(replies.sums["total"], [6.0, 6.0])
    assert replies.each("own") == [0, 1, 2]
    assert all("total" not in reply for reply in replies)
    assert replies.clipped == 0
    sums = parties.secure_sum("total", {"total": 8.0}, [{"scale": j} for j in range(3)])
    np.testing.assert_array_equal(sums["total"], [8.0, 8.0])


def test_clipping_is_said(clock, caplog):
    parties = greet(some())
    replies = parties.ask("total", sums={"total": 2.5})
    assert replies.clipped == 2  # both entries of the third party
    np.testing.assert_array_equal(replies.sums["total"], [5.5, 5.5])
    assert "2 values of total were clipped to the bound of their sum" in caplog.text
    assert parties.ledger.clipped == 2
    assert parties.ask("total", sums={"total": 8.0}).clipped == 0


def test_exact_sums_are_asked_again_with_wider_bounds(clock, caplog):
    parties = greet(some())
    replies = parties.ask_exactly("total", {"total": 1.0}, scale=2.0**15)
    np.testing.assert_array_equal(replies.sums["total"], np.full(2, 6 * 2.0**15))
    assert replies.clipped == 0
    assert len(parties.ledger.waits["total"]) == 2
    assert "clipped" not in caplog.text
    assert parties.ledger.clipped == 0  # in what was used


@pytest.mark.parametrize("send", [False, True], ids=["missing", "of another type"])
def test_reply_without_the_masked_array(send, clock):
    with pytest.raises(PartyFailed) as caught:
        greet(some()).ask("bare", sums={"total": 1.0}, send=send)
    assert str(caught.value) == (
        "party 'party-0' failed in 'bare': its reply lacks the masked array 'total'"
    )


def test_masked_arrays_of_several_shapes(clock):
    with pytest.raises(PartyFailed) as caught:
        greet(some()).ask("total", sums={"total": 8.0}, shapes=True)
    assert str(caught.value) == (
        "party 'party-1' failed in 'total': 'total' has shape (2,), that of 'party-0' "
        "has (1,)"
    )


def test_exception_at_a_party(clock, caplog):
    with pytest.raises(PartyFailed) as caught:
        greet(some()).ask("failing")
    failed = caught.value
    assert (failed.party, failed.action) == ("party-1", "failing")
    assert failed.reason == "ValueError; the stack is in the party's own log"
    assert isinstance(failed, FederationError)
    assert "2718.28" in caplog.text  # the party's own log, here in the same process
    assert clock.now == 0


def test_refusal_at_a_party(clock):
    with pytest.raises(PartyFailed) as caught:
        greet(some()).ask("refusing")
    assert caught.value.reason == "column 'delay' has no label"


def test_plain_sums_are_refused_by_a_party_of_the_field(clock):
    from vfl_flower.client_app import make_client_app

    grid = InProcessGrid(some())
    grid._app = make_client_app(lambda context: grid._parties[context.node_id])
    parties = greet(grid, masking="plain")
    with pytest.raises(PartyFailed, match="sends its addends only under masks"):
        parties.ask("total", sums={"total": 8.0})


def test_party_that_lost_its_state(clock):
    grid = InProcessGrid(some())
    parties = greet(grid)
    parties.ask("probe")
    grid._contexts[1001].state.clear()
    with pytest.raises(PartyFailed) as caught:
        parties.ask("probe")
    assert str(caught.value) == (
        "party 'party-1' failed in 'probe': this party was restarted and has lost the "
        "run's state"
    )


# -- messages --------------------------------------------------------------------------


def frames(grid: Edited) -> list[tuple[str, dict[str, Any]]]:
    return [
        (m.metadata.message_type.partition(".")[2], unpack(m.content)[1])
        for m in grid.sent
    ]


def test_keys_ride_on_the_first_message_after_hello_only(clock):
    grid = Edited(some(), [{"index": 2}, {"index": 0}, {"index": 1}])
    parties = greet(grid)
    for _ in range(3):
        parties.ask("probe")
    carried = [(action, "peers" in frame) for action, frame in frames(grid)]
    assert carried == [("hello", False)] * 3 + [("probe", True)] * 3 + (
        [("probe", False)] * 6
    )
    keys = {frame["peers"] for _, frame in frames(grid)[3:6]}
    assert [len(key) for key in keys] == [3 * 32]


def test_hello_carries_nothing_but_the_session(clock):
    grid = Edited(some())
    greet(grid)
    for _, frame in frames(grid):
        assert set(frame) == {"session", "digest"}


def test_what_the_strategy_tells_in_every_message(clock):
    grid = Edited(some(2))
    parties = greet(grid, frame={"topic": "ab", "session": 1})
    parties.ask("total", sums={"total": 4.0})
    parties.ask("total", sums={"total": 4.0})
    told = [frame for action, frame in frames(grid) if action != "hello"]
    assert [frame["topic"] for frame in told] == ["ab"] * 4
    # The frame's own stay what they are.
    assert {frame["session"] for frame in told} == {parties.session}
    assert parties.session != 1


def test_rounds_grow_and_sessions_differ(clock):
    grid = Edited(some(2))
    parties = greet(grid)
    parties.ask("probe")
    parties.ask("total", sums={"total": 4.0})
    rounds = [frame["round"] for action, frame in frames(grid) if action != "hello"]
    assert rounds == [1, 1, 2, 2]
    sessions = {frame["session"] for _, frame in frames(grid)}
    assert len(sessions) == 1
    other = Edited(some(2))
    greet(other)
    assert frames(other)[0][1]["session"] not in sessions


def test_ledger_counts_each_message_as_it_was_sent(clock):
    grid = Edited(some(2))
    parties = greet(grid)
    parties.ask("probe", x=np.ones(5))
    parties.ask("probe", x=np.ones(5))
    ledger = parties.ledger
    assert ledger.round_trips == 3
    assert ledger.messages == len(grid.sent) == 6
    assert ledger.bytes_down == sum(n_bytes(m.content) for m in grid.sent)
    assert sum(n_units(m.content) for m in grid.sent) == 2 * 2 * 5
    entry = ledger.entry("probe", "party-1")
    assert (entry.messages, entry.units_down, entry.units_up) == (2, 10, 10)
    assert entry.bytes_up > 2 * 8 * 5
    assert entry.seconds_computed > 0
    assert list(ledger.waits) == ["hello", "probe"]


# -- trying again ----------------------------------------------------------------------


def messages_after(
    clock: Any, *faults: Fault, ask: int = 1
) -> tuple[list[int], Parties]:
    """Return how many messages each party got for one step."""
    parties = greet(FaultyGrid(some(), faults, clock))
    for _ in range(ask):
        replies = parties.ask("probe")
        assert replies.each("index") == [0, 1, 2]
    return [parties.ledger.entry("probe", p.name).messages for p in parties], parties


@pytest.mark.parametrize("kind", ["unavailable", "damage request setting"])
def test_lost_message_is_sent_again_at_once(kind, clock):
    faults = [Fault(kind, "probe", 1, nth) for nth in range(RETRIES)]
    messages, parties = messages_after(clock, *faults)
    assert messages == [1, 1 + RETRIES, 1]
    assert parties.ledger.round_trips == 2
    assert clock.now < 0.1
    entry = parties.ledger.entry("probe", "party-1")
    assert entry.bytes_down == 3 * parties.ledger.entry("probe", "party-0").bytes_down


def test_message_is_not_sent_for_ever(clock):
    faults = [Fault("unavailable", "probe", 1, nth) for nth in range(RETRIES + 1)]
    with pytest.raises(PartyFailed, match="as planned"):
        messages_after(clock, *faults)


def test_retries_start_anew_in_the_next_round(clock):
    faults = [Fault("unavailable", "probe", 1, nth) for nth in (0, 1, 3, 4)]
    messages, _ = messages_after(clock, *faults, ask=2)
    assert messages == [2, 6, 2]


@pytest.mark.parametrize("kind", ["lose request", "lose reply"])
def test_silent_party_is_not_asked_again(kind, clock, caplog):
    grid = FaultyGrid(some(), [Fault(kind, "probe", 1)], clock)
    parties = greet(grid)
    with pytest.raises(PartyFailed) as caught:
        parties.ask("probe")
    assert str(caught.value) == (
        "party 'party-1' failed in 'probe': no reply within 10 s"
    )
    assert [grid.asked("probe", j) for j in range(3)] == [1, 1, 1]
    assert [parties.ledger.entry("probe", p.name).messages for p in parties] == [1] * 3
    assert TIMEOUT < clock.now <= TIMEOUT + 0.1
    assert "again" not in caplog.text


def test_slow_party_is_waited_for(clock):
    messages, _ = messages_after(clock, Fault("delay", "probe", 1, seconds=9.0))
    assert messages == [1, 1, 1]
    assert 9 <= clock.now < TIMEOUT


def test_silent_is_who_never_replied_although_asked_again(clock):
    """The transient error does not give the party more time."""
    faults = [Fault("unavailable", "probe", 1, 0), Fault("lose request", "probe", 1, 1)]
    grid = FaultyGrid(some(), faults, clock)
    with pytest.raises(PartyFailed, match=r"'party-1'.*no reply within 10 s"):
        greet(grid).ask("probe")
    assert [grid.asked("probe", j) for j in range(3)] == [1, 2, 1]
    assert TIMEOUT < clock.now <= TIMEOUT + 0.1


def test_second_reply_is_the_same(clock):
    grid = FaultyGrid(some(), [Fault("duplicate", "total", 1)], clock)
    sums = greet(grid).secure_sum("total", {"total": 8.0})
    np.testing.assert_array_equal(sums["total"], [6.0, 6.0])
    ((first, second),) = grid.twins
    np.testing.assert_array_equal(
        unpack(first.content)[0]["total"], unpack(second.content)[0]["total"]
    )


def test_one_message_a_party_is_pending(clock):
    """A lost one is no longer looked for when the next one is on its way."""
    looked: list[list[str]] = []

    class Watched(FaultyGrid):
        def pull_messages(self, message_ids):
            looked.append(list(message_ids))
            return super().pull_messages(looked[-1])

    faults = [Fault("unavailable", "probe", 1, nth) for nth in range(RETRIES)]
    faults += [Fault("delay", "probe", 1, RETRIES, seconds=2.0)]
    faults += [Fault("delay", "probe", 2, 0, seconds=4.0)]
    parties = greet(Watched(some(), faults, clock))
    looked.clear()
    parties.ask("probe")
    first, *later = looked
    assert len(first) == 3
    assert all(first[0] not in numbers for numbers in later)  # has replied
    assert all(first[1] not in numbers for numbers in later)  # is lost
    assert all(first[2] in numbers for numbers in later)
    again = [number for numbers in later for number in numbers if number != first[2]]
    assert len(set(again)) == RETRIES
    assert max(map(len, later)) == 2


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


@pytest.mark.parametrize("kind", ["duplicate", "reply unavailable"])
def test_reply_of_the_round_before_counts_for_nothing(kind, clock):
    class Late(FaultyGrid):
        held: Sequence[Sequence[Message]] = ((), ())

        def pull_messages(self, message_ids):
            *self.held, due = self._unasked, *self.held
            self._unasked = [*due]
            self.came = [len(due), *getattr(self, "came", [])]
            return super().pull_messages(message_ids)

    grid = Late(some(), [Fault(kind, "probe", 1)], clock)
    parties = greet(grid)
    assert parties.ask("probe", own=1).each("own") == [1, 1, 1]
    assert not any(grid.came)
    for own in (2, 3):
        assert parties.ask("probe", own=own).each("own") == [own] * 3
    assert any(grid.came)
    units = [parties.ledger.entry("probe", p.name).units_up for p in parties]
    assert units == [9, 9, 9]


@pytest.mark.parametrize("code", [3, 4, 5, 8])
def test_transient_codes_of_flower(code, clock, monkeypatch):
    monkeypatch.setattr("faults.UNAVAILABLE", code)
    assert messages_after(clock, Fault("unavailable", "probe", 1))[0] == [1, 2, 1]


@pytest.mark.parametrize("code", [0, 1, 2, 6, 7])
def test_lasting_codes_of_flower(code, clock, monkeypatch):
    monkeypatch.setattr("faults.UNAVAILABLE", code)
    with pytest.raises(PartyFailed, match="as planned"):
        messages_after(clock, Fault("unavailable", "probe", 1))


def test_polls_often_at_first(clock):
    grid = FaultyGrid(some(), [Fault("delay", "probe", 1, seconds=0.03)], clock)
    parties = greet(grid)
    parties.ask("probe")
    assert parties.ledger.waits["probe"][0] < 0.06
    assert parties.ledger.entry("probe", "party-1").messages == 1
