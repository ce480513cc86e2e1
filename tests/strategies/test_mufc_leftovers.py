"""What stays at a party after a training that failed, or after a removal."""

from dataclasses import replace

import numpy as np
import pytest
from deviating import RealParties
from forgetting import removal

from vfl_flower import MUFC, FederationError, Party, PartyFailed, simulate
from vfl_flower.clients.mufc.state import list_models
from vfl_flower.party.consent import ALLOW_ALL
from vfl_flower.party.identity import public_identity
from vfl_flower.simulation import InProcessGrid
from vfl_flower.strategies.mufc import training as strategies

X = np.random.default_rng(0).uniform(-0.5, 0.5, size=(90, 2))


def parties(tmp_path, without=()):
    return [
        Party(rows[stay], ids=ids[stay], name=name, state_dir=tmp_path / name)
        for j, name in enumerate("abc")
        for rows, ids in [(X[j::3], np.arange(30))]
        for stay in [~np.isin(ids, without if name == "a" else ())]
    ]


def left(tmp_path):
    return {name: list_models(tmp_path / name) for name in "abc"}


NOTHING = {"a": [], "b": [], "c": []}


@pytest.mark.parametrize(
    ("name", "saved"), [("SparseSum.decode", False), ("_inertia", True)]
)
def test_a_training_that_the_server_gives_up_leaves_no_ids(
    tmp_path, monkeypatch, name, saved
):
    """Unless the model is saved: its next task completes it."""

    def fail(*given):
        raise FederationError("the sums are no counts")

    monkeypatch.setattr(f"{strategies.__name__}.{name}", fail)
    rule = "the sums are no counts" + ".*is saved, and its next task" * saved
    with pytest.raises(FederationError, match=rule):
        simulate(MUFC(server_state=tmp_path / "server"), parties(tmp_path))
    numbers = list_models(tmp_path / "server")
    assert len(numbers) == saved
    assert left(tmp_path) == {"a": numbers, "b": numbers, "c": numbers}


def refused(tmp_path, outside, grid, timeout=3600):
    """Run a training in which parties refuse, since their rows are outside the box."""
    three = parties(tmp_path)
    for party in three:
        party.X = (9 if party.name in outside else 1) * party.X
    first = min(outside, default="b")
    with pytest.raises(PartyFailed, match=f"party '{first}' failed in 'mufc_train'"):
        MUFC(server_state=tmp_path / "server").start(grid(three), timeout=timeout)


class LateGrid(InProcessGrid):
    """A grid that holds back replies of training until parties are asked again.

    Attributes
    ----------
    asked : list of str
        The types of the messages, in their order.
    """

    def __init__(self, parties, held):
        super().__init__(parties)
        self._held, self._late, self.asked = held, [], []

    def _push(self, message):
        node = message.metadata.dst_node_id
        self.asked.append(message.metadata.message_type)
        if message.metadata.message_type == "train.mufc_abandon":
            self._late = [(n, m) for n, m in self._late if n != node]
        number = super()._push(message)
        training = message.metadata.message_type == "train.mufc_train"
        if training and node - 1000 in self._held:
            self._late.append((node, number))
        return number

    def pull_messages(self, message_ids):
        """Return the replies that are not held back."""
        late = {number for _, number in self._late}
        return super().pull_messages([m for m in message_ids if m not in late])


@pytest.mark.parametrize(
    ("outside", "held"),
    [
        ("b", set()),  # it finds this before it writes
        ("abc", set()),
        ("ab", {1, 2}),  # a refusal comes late: its party has no state of the run
    ],
)
def test_where_parties_refuse_nobody_keeps_an_id(tmp_path, caplog, outside, held):
    """No warning names a party; who has refused in time is not asked to give up."""
    grids = []

    def grid(three):
        grids.append(LateGrid(three, held))
        return grids[0]

    refused(tmp_path, outside, grid)
    assert left(tmp_path) == NOTHING
    abandoned = grids[0].asked.count("train.mufc_abandon")
    assert abandoned == {"b": 2, "abc": 0, "ab": 2}[outside]
    assert "is given up" not in caplog.text


def test_a_party_gives_up_before_its_peers_have_signed_the_keys(tmp_path):
    """The party that refuses has signed nothing, and nothing leaves the others."""
    peers = {p.name: public_identity(p.state_dir) for p in parties(tmp_path)}

    def grid(three):
        for party in three:
            party.consent = replace(ALLOW_ALL, peers=peers)
        return RealParties(three)

    refused(tmp_path, "b", grid)
    assert left(tmp_path) == NOTHING


class LossyGrid(LateGrid):
    """Loses the requests to give up."""

    def _push(self, message):
        if message.metadata.message_type == "train.mufc_abandon":
            raise FederationError("the line is down")
        return super()._push(message)


@pytest.mark.parametrize(
    ("outside", "grid", "keep"),
    [
        # One has written and loses its reply; another one has refused.
        ("a", lambda three: LossyGrid(three, {2}), "bc"),
        # A party that is silent may have written its state before.
        ("", lambda three: LateGrid(three, {1}), "b"),
    ],
)
def test_parties_that_may_keep_a_training_are_named(
    tmp_path, caplog, outside, grid, keep
):
    refused(tmp_path, outside, grid, timeout=1)
    (number,) = left(tmp_path)["b"]
    assert left(tmp_path) == NOTHING | {name: [number] for name in keep}
    assert (
        f"model {number} is given up; {', '.join(keep)} could not be asked: vfl-flower "
        f"models remove {number} removes what is left there"
    ) in caplog.text


IN_ITS_FILE = "forgotten rows are still in the data"
IN_ITS_MODELS = "of the ids are still in other models"
IN_FILES = "forgotten rows are still in the parties' files"
IN_MODELS = f"{IN_ITS_MODELS} of the parties"


def test_the_run_warns_of_copies_of_forgotten_rows(tmp_path, caplog):
    """Once, in numbers over all parties, after each party has told its own log."""
    settings = {"server_state": tmp_path / "server"}
    simulate(MUFC(**settings), parties(tmp_path))
    number = simulate(MUFC(**settings), parties(tmp_path)).model.id

    def warnings(requests, three):
        caplog.clear()
        simulate(removal(three, tmp_path / "server", number, requests), three)
        lines = [message.partition(":")[0] for message in caplog.messages]
        return [line for line in lines if " still in " in line]

    assert warnings({"a": [1, 4], "b": [2]}, parties(tmp_path)) == [
        f"2 {IN_ITS_FILE}",
        f"2 {IN_ITS_MODELS}",
        f"1 {IN_ITS_FILE}",
        f"1 {IN_ITS_MODELS}",
        f"3 {IN_FILES}",
        f"3 {IN_MODELS}",
    ]
    # Those of earlier removals count in the data, and in other models they do not.
    other = (set(list_models(tmp_path / "a")) - {number}).pop()
    three = parties(tmp_path)
    simulate(removal(three, tmp_path / "server", other, {"a": [7]}), three)
    assert warnings({"a": [7]}, parties(tmp_path, [7])) == [
        f"2 {IN_ITS_FILE}",
        f"1 {IN_ITS_FILE}",
        f"3 {IN_FILES}",
    ]
