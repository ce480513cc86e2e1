"""What stays at a party after a training that failed, or after a removal."""

from dataclasses import replace

import numpy as np
import pytest
from deviating import RealParties
from forgetting import removal

from vfl_flower import MUFC, FederationError, MUFCUnlearn, Party, PartyFailed, simulate
from vfl_flower.clients.mufc.state import list_models
from vfl_flower.party.consent import ALLOW_ALL
from vfl_flower.party.identity import public_identity
from vfl_flower.simulation import InProcessGrid
from vfl_flower.strategies.mufc import training as strategies
from vfl_flower.testing import Recorder

X = np.random.default_rng(0).uniform(-0.5, 0.5, size=(90, 2))


def parties(tmp_path, without=()):
    return [
        Party(own[stay], ids=ids[stay], name=name, state_dir=tmp_path / name)
        for j, name in enumerate("abc")
        for own, ids in [(X[j::3], np.arange(30))]
        for stay in [~np.isin(ids, without if name == "a" else ())]
    ]


def left(tmp_path):
    return {name: list_models(tmp_path / name) for name in "abc"}


def test_a_training_that_the_server_gives_up_leaves_no_ids(tmp_path, monkeypatch):
    def fail(*given):
        raise FederationError("the sums are no counts")

    monkeypatch.setattr(strategies.SparseSum, "decode", fail)
    with pytest.raises(FederationError, match="the sums are no counts"):
        simulate(MUFC(server_state=tmp_path / "server"), parties(tmp_path))
    assert left(tmp_path) == {"a": [], "b": [], "c": []}
    assert list_models(tmp_path / "server") == []


def test_a_party_that_refuses_leaves_no_ids_anywhere(tmp_path):
    """It is outside of the box, which it finds before it writes."""
    three = parties(tmp_path)
    three[1] = Party(9 * X[:30], ids=np.arange(30), name="b", state_dir=tmp_path / "b")
    with pytest.raises(PartyFailed, match="party 'b' failed in 'mufc_train'"):
        simulate(MUFC(server_state=tmp_path / "server"), three)
    assert left(tmp_path) == {"a": [], "b": [], "c": []}


def test_a_party_gives_up_before_its_peers_have_signed_the_keys(tmp_path):
    """The party that refuses has signed nothing, and nothing leaves the others."""
    three = parties(tmp_path)
    three[1].X = 9 * three[1].X
    peers = {party.name: public_identity(party.state_dir) for party in three}
    for party in three:
        party.consent = replace(ALLOW_ALL, peers=peers)
    with pytest.raises(PartyFailed, match="party 'b' failed in 'mufc_train'"):
        MUFC(server_state=tmp_path / "server").start(RealParties(three))
    assert left(tmp_path) == {"a": [], "b": [], "c": []}


def test_a_model_that_is_saved_stays(tmp_path, monkeypatch):
    """Its next task completes it, though the run has failed."""

    def fail(*given):
        raise FederationError("the objective is none")

    monkeypatch.setattr(strategies, "_inertia", fail)
    with pytest.raises(FederationError, match="is saved, and its next task"):
        simulate(MUFC(server_state=tmp_path / "server"), parties(tmp_path))
    (number,) = list_models(tmp_path / "server")
    assert left(tmp_path) == {"a": [number], "b": [number], "c": [number]}


IN_FILES = (
    "forgotten rows are still in the parties' files: take them out; each party's own "
    "log says how many are in its file"
)
IN_MODELS = (
    "of the ids are still in other models of the parties: forget them there too, or "
    "remove these models; each party's own log says how many are in its models"
)
IN_ITS_FILE = "forgotten rows are still in the data: take them out of the file"
IN_ITS_MODELS = (
    "of the ids are still in other models: forget them there too, or remove these "
    "models"
)


def test_the_run_warns_of_copies_of_forgotten_rows(tmp_path, caplog):
    """Once, in numbers over all parties, after each party has told its own log."""
    kept = {"server_state": tmp_path / "server"}
    simulate(MUFC(**kept), parties(tmp_path))
    number = simulate(MUFC(**kept), parties(tmp_path)).model.model

    def warnings(requests, three):
        caplog.clear()
        simulate(removal(three, tmp_path / "server", number, requests), three)
        lines = [record.getMessage() for record in caplog.records]
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


@pytest.mark.parametrize("privacy", ["scma", "none"])
def test_the_server_cannot_tell_whose_forgotten_rows_are_left(tmp_path, privacy):
    """Nothing in the clear, or of another size, says which party has copies."""
    kept = {"server_state": tmp_path / "server"}
    simulate(MUFC(privacy=privacy, **kept), parties(tmp_path))
    number = simulate(MUFC(privacy=privacy, **kept), parties(tmp_path)).model.model
    (tmp_path / "b" / "forget.txt").write_text("3\n5\n")
    grid = Recorder(parties(tmp_path))
    MUFCUnlearn(number, **kept).start(grid)
    replies = [e for e in grid.transcript if e.up and e.action == "mufc_forget"]
    clear = {"centroids", "sizes"} if privacy == "none" else {"message"}
    for reply in replies:
        assert set(reply.values) == clear | {"totals"}
        assert reply.values["totals"].dtype == np.uint64
        assert reply.values["totals"].shape == (4,)
        # A count that left as it is would be small; of 24 numbers below 2^61 one is
        # below 2^30 with a chance of 1e-8.
        assert (reply.values["totals"] > 2**30).all()


def test_parties_that_all_refuse_have_nothing_left(tmp_path, caplog):
    """Nobody is told to drop what it has not written, nor named as not told."""
    three = parties(tmp_path)
    for party in three:
        party.X = 9 * party.X
    grid = LateGrid(three, {})
    with pytest.raises(PartyFailed, match="party 'a' failed in 'mufc_train'"):
        MUFC(server_state=tmp_path / "server").start(grid)
    assert left(tmp_path) == {"a": [], "b": [], "c": []}
    assert grid.asked == [*["train.hello"] * 3, *["train.mufc_train"] * 3]
    assert "is given up" not in caplog.text


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
        if message.metadata.message_type == "train.mufc_train" and (
            node - 1000 in self._held
        ):
            self._late.append((node, number))
        return number

    def pull_messages(self, message_ids):
        """Return the replies that are not held back."""
        late = {number for _, number in self._late}
        return super().pull_messages([m for m in message_ids if m not in late])


def test_a_refusal_that_comes_late_leaves_nothing_either(tmp_path, caplog):
    """Its party cannot be told: it has no state of the run."""
    three = parties(tmp_path)
    for party in three[:2]:
        party.X = 9 * party.X
    with pytest.raises(PartyFailed, match="party 'a' failed in 'mufc_train'"):
        MUFC(server_state=tmp_path / "server").start(LateGrid(three, {1, 2}))
    assert left(tmp_path) == {"a": [], "b": [], "c": []}
    assert "is given up" not in caplog.text


def test_parties_that_may_keep_a_training_are_named(tmp_path, caplog):
    """One has written and loses its reply; another one has refused."""
    three = parties(tmp_path)
    three[0].X = 9 * three[0].X
    grid = LateGrid(three, {2})
    push = grid._push

    def lossy(message):
        if message.metadata.message_type == "train.mufc_abandon":
            raise FederationError("the line is down")
        return push(message)

    grid._push = lossy
    with pytest.raises(PartyFailed, match="party 'a' failed in 'mufc_train'"):
        MUFC(server_state=tmp_path / "server").start(grid)
    (number,) = left(tmp_path)["b"]
    assert left(tmp_path) == {"a": [], "b": [number], "c": [number]}
    assert (
        f"model {number} is given up; b, c could not be asked: vfl-flower models "
        f"remove {number} removes what is left there"
    ) in caplog.text


def test_a_party_that_is_silent_is_named(tmp_path, caplog):
    """It may have written its state before it fell silent."""
    grid = LateGrid(parties(tmp_path), {1})
    with pytest.raises(PartyFailed, match="party 'b' failed in 'mufc_train': no reply"):
        MUFC(server_state=tmp_path / "server").start(grid, timeout=1)
    (number,) = left(tmp_path)["b"]
    assert left(tmp_path) == {"a": [], "b": [number], "c": []}
    assert f"model {number} is given up; b could not be asked" in caplog.text
