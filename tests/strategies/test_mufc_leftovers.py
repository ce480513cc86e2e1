"""What stays at a party after a training that failed, or after a removal."""

import numpy as np
import pytest

from vfl_flower import MUFC, FederationError, MUFCUnlearn, Party, PartyFailed, simulate
from vfl_flower.clients.mufc_state import list_models
from vfl_flower.strategies import mufc as strategies

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

    monkeypatch.setattr(strategies, "decoded", fail)
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


def test_a_model_that_is_saved_stays(tmp_path, monkeypatch):
    """Its next task completes it, though the run has failed."""

    def fail(*given):
        raise FederationError("the objective is none")

    monkeypatch.setattr(strategies, "_inertia", fail)
    with pytest.raises(FederationError, match="is saved, and its next task"):
        simulate(MUFC(server_state=tmp_path / "server"), parties(tmp_path))
    (number,) = list_models(tmp_path / "server")
    assert left(tmp_path) == {"a": [number], "b": [number], "c": [number]}


def test_the_run_warns_of_copies_of_forgotten_rows(tmp_path, caplog):
    kept = {"server_state": tmp_path / "server"}
    simulate(MUFC(**kept), parties(tmp_path))
    number = simulate(MUFC(**kept), parties(tmp_path)).model.model

    def warnings(ids, three):
        caplog.clear()
        simulate(MUFCUnlearn(number, {"a": ids}, **kept), three)
        lines = [record.getMessage() for record in caplog.records]
        return [line for line in lines if line.startswith(("a: ", "b: ", "c: "))]

    assert warnings([1, 4], parties(tmp_path)) == [
        "a: 2 forgotten rows are still in the data: take them out",
        "a: 2 of the ids are still in other models: forget them there too, or remove "
        "these models",
    ]
    # Those of earlier removals count in the data, and in other models they do not.
    other = (set(list_models(tmp_path / "a")) - {number}).pop()
    simulate(MUFCUnlearn(other, {"a": [7]}, **kept), parties(tmp_path))
    assert warnings([7], parties(tmp_path, [7])) == [
        "a: 2 forgotten rows are still in the data: take them out"
    ]
