"""The grid in one process does what Flower's do, and shares no memory."""

import copy
import pickle
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from vfl_flower import Party, PartyFailed
from vfl_flower.party.party import stored_as
from vfl_flower.protocol.contract import Reals
from vfl_flower.protocol.messages import pack, unpack
from vfl_flower.protocol.steps import STEPS, Step
from vfl_flower.server.exchange import Exchange
from vfl_flower.server.parties import Parties
from vfl_flower.simulation import InProcessGrid, simulate
from vfl_flower.strategies import CoresetVKMC, CoresetVRLR, FDSKLDirect
from vfl_flower.typing import Array


@pytest.fixture
def grid(three) -> InProcessGrid:
    return InProcessGrid(three)


def hello(node: int) -> Message:
    return Message(pack({}, {"session": 1}), node, "train.hello")


# -- the grid --------------------------------------------------------------------------


def test_is_a_grid(grid):
    assert isinstance(grid, Grid)
    assert len(grid.get_node_ids()) == 3
    grid.set_run(None)
    with pytest.raises(NotImplementedError, match="no record at a SuperLink"):
        _ = grid.run


ONE = Party(np.ones((3, 1)))
CENTRAL = CoresetVRLR(size=4, solver="central")


@pytest.mark.parametrize(
    ("strategy", "parties", "rule"),
    [
        (CENTRAL, [], "needs at least 2 parties, got 0"),
        (CENTRAL, [ONE], "needs at least 2 parties, got 1"),
        ("coreset-vrlr", [ONE, ONE], "^strategy must be"),
        (CoresetVRLR, [ONE, ONE], "^strategy must be"),
        (CENTRAL, [np.zeros((2, 2))] * 2, "must be of class Party, got ndarray"),
        *(
            (CENTRAL, wrong, "parties must be a list of parties, got")
            for wrong in (None, ONE, {"a": 1}, iter(()))
        ),
    ],
)
def test_what_cannot_be_simulated(strategy, parties, rule):
    with pytest.raises(ValueError, match=rule):
        simulate(strategy, parties)
    with pytest.raises(ValueError, match="needs at least one party, got none"):
        InProcessGrid([])


def test_a_reply_comes_once_and_only_to_whom_asks(grid):
    first, second = grid.push_messages([hello(1000), hello(1002)])
    assert first != second
    assert grid.pull_messages(["nonsense"]) == []
    (reply,) = grid.pull_messages([second])
    assert reply.metadata.reply_to_message_id == second
    assert reply.metadata.src_node_id == 1002
    assert unpack(reply.content)[0]["name"] == "registry"
    assert grid.pull_messages([second]) == []
    assert len(grid.pull_messages([first, second])) == 1


def test_create_message(grid):
    content = pack({}, {"session": 1})
    message = grid.create_message(content, "train.hello", 1001, "g", ttl=12.0)
    metadata = message.metadata
    assert (metadata.dst_node_id, metadata.group_id, metadata.ttl) == (1001, "g", 12.0)
    (reply,) = grid.send_and_receive([message])
    assert unpack(reply.content)[0]["name"] == "weather"


@stored_as("simulated")
class State:
    x: Array


class Reply(TypedDict):
    x: Annotated[Array, Reals("3")]


def test_nothing_passes_by_sharing_memory(three, monkeypatch):
    """What is sent, taken, kept, received and stored are five arrays."""
    arrays = {}

    def keep(party: Party, x: Annotated[Array, Reals("3")]) -> Reply:
        arrays["taken"], arrays["kept"] = x, np.ones(3)
        party.remember(State(arrays["kept"]))
        return {"x": arrays["kept"]}

    step = Step(keep, "keep")
    monkeypatch.setitem(STEPS, "keep", step)
    grid = InProcessGrid(three)
    parties, arrays["sent"] = Parties(Exchange(grid), seed=0), np.zeros(3)
    arrays["received"] = parties.ask_one(0, step, x=arrays["sent"])["x"]
    arrays["stored"] = grid.memories()[0].remembered("x")
    np.testing.assert_array_equal(arrays["stored"], arrays["received"])
    assert len(arrays) == 5
    for name, array in arrays.items():
        for other in set(arrays) - {name}:
            assert not np.shares_memory(array, arrays[other]), (name, other)


def test_parties_stay_as_they_were(three):
    """Their data may be read-only: memory-mapped, or a view of someone's table."""
    parties = copy.deepcopy(three)
    for array in (*(p.X for p in parties), parties[-1].y):
        array.flags.writeable = False
    for strategy in (
        CoresetVRLR(size=12, test_fraction=0.25, solver="central"),
        CoresetVRLR(size=12, solver="cg"),
        CoresetVRLR(size=12, solver="saga", max_iter=2, batch_size=4),
        CoresetVKMC(n_clusters=2, size=12, evaluate="full"),
        kernel(loss="square", target="continuous"),
    ):
        simulate(strategy, parties, seed=0)
    for party, old in zip(parties, three, strict=True):
        np.testing.assert_array_equal(party.X, old.X)
        assert party.index is None
        assert party.seed == party.n_parties == party.private_draws == 0
        assert party.remembered() == party.part == {}
        assert party.predictions is None


# -- simulate --------------------------------------------------------------------------


def test_a_seed_repeats_the_run(three):
    """It stands in for that of the strategy.

    That each strategy repeats, tests/strategies/test_faults.py shows.
    """
    strategy = CoresetVRLR(size=12, seed=9, solver="central", test_fraction=0.25)
    runs = [simulate(strategy, three, seed=n) for n in (None, 9, 0)]
    assert [run.seed for run in runs] == [9, 9, 0]
    assert strategy.seed == 9
    first, again, other = runs
    assert first.arrays.object_id == again.arrays.object_id
    assert first.metrics == again.metrics
    assert first.ledger.units == again.ledger.units
    assert other.arrays.object_id != first.arrays.object_id


def test_two_runs_at_once_do_not_meet(three):
    grids = [InProcessGrid(three), InProcessGrid(three)]
    alone = [
        simulate(CoresetVRLR(size=12, solver="central"), three, seed=seed)
        for seed in (1, 2)
    ]

    class Inner(CoresetVRLR):
        def protocol(self, parties, run):
            self.inner = CoresetVRLR(size=12, seed=2, solver="central").start(grids[1])
            return super().protocol(parties, run)

    outer = Inner(size=12, seed=1, solver="central")
    result = outer.start(grids[0])
    assert result.arrays.object_id == alone[0].arrays.object_id
    assert outer.inner.arrays.object_id == alone[1].arrays.object_id


def test_a_run_leaves_the_one_around_it_alone(three):
    """As in a ServerApp: its messages are of its own run before and after."""
    grid = InProcessGrid(three)
    run = TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id
    simulate(CoresetVKMC(2, size=12), three, seed=2)
    assert run == (TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id)
    assert run[0] == grid.run_id


def test_metrics_are_numbers_of_python(three):
    """Whichever a strategy records: :meth:`Run.record` makes them so."""
    strategy = CoresetVRLR(size=12, solver="central", evaluate="full", check_size=20)
    metrics = simulate(strategy, three, seed=1).metrics
    assert {type(value) for value in metrics.values()} <= {int, float}


# -- parts of models -------------------------------------------------------------------


def kernel(**settings) -> FDSKLDirect:
    given = {"features": 16, "bandwidth": 2.0, "regularization": 0.1}
    return FDSKLDirect(**given, **settings)


def parts(grid: InProcessGrid) -> list[dict[str, Any]]:
    return [memory.part for memory in grid.memories()]


def labelled(three: list[Party], **settings) -> list[Party]:
    *others, last = three
    return [*others, Party(last.X, np.sign(last.y), name="registry", **settings)]


def test_the_server_has_no_part(three):
    grid = InProcessGrid(labelled(three))
    result = kernel(seed=3).start(grid)
    assert result.model.parts is None
    assert not [name for name in result.arrays if name.startswith("part_")]
    assert all(parts(grid))


def test_parts_are_those_of_the_last_run(three):
    grid = InProcessGrid(labelled(three))
    kernel().start(grid)
    first = parts(grid)
    kernel().start(grid)
    seeds = {part["seed"] for part in [*first, *parts(grid)]}
    assert len(seeds) == 6
    CoresetVRLR(size=12, solver="central").start(grid)
    assert parts(grid) == [{}, {}, {}]


def test_a_failure_reaches_another_process():
    failed = PartyFailed("lab", "hello", "it is late", {7: "lab"})
    received = pickle.loads(pickle.dumps(failed))
    assert str(received) == "party 'lab' failed in 'hello': it is late"
    assert received.nodes == {7: "lab"}
