"""What stays at a party after a training that failed, or after a removal."""

from dataclasses import replace

import numpy as np
import pytest
from deviating import RealParties
from faults import Fault, FaultyGrid
from forgetting import removal

from vfl_flower import MUFC, FederationError, Party, PartyFailed, simulate
from vfl_flower.clients.mufc.state import list_models
from vfl_flower.party.consent import ALLOW_ALL
from vfl_flower.party.identity import public_identity
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
def test_a_training_that_is_given_up_leaves_no_ids(tmp_path, monkeypatch, name, saved):
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


def with_some_outside(tmp_path, names):
    """Return parties of which those with such names refuse: rows are out of the box."""
    three = parties(tmp_path)
    for party in three:
        party.X = (9 if party.name in names else 1) * party.X
    return three


def refused(tmp_path, first, grid):
    with pytest.raises(PartyFailed, match=f"party '{first}' failed in 'mufc_train'"):
        MUFC(server_state=tmp_path / "server").start(grid, timeout=10)


LATE = [
    Fault("delay", "mufc_train", 1, seconds=0.5),
    Fault("delay", "mufc_abandon", 1, seconds=1.0),
]
"""The reply to training comes while the party is asked to give up."""
LOST = [Fault("lose reply", "mufc_train", place) for place in range(3)]
UNHEARD = Fault("lose request", "mufc_abandon", nth=None)


@pytest.mark.parametrize(
    ("outside", "faults", "asked", "keep"),
    [
        ("b", [], 2, ""),  # it finds this before it writes
        ("abc", [], 0, ""),
        ("ab", LATE, 2, ""),  # a refusal comes late: its party has no state of the run
        ("a", [LOST[2], UNHEARD], 2, "bc"),  # two have written
        ("", [LOST[1]], 2, "b"),  # a party that is silent may have written before
    ],
)
def test_parties_keep_no_id_of_a_training_that_failed_or_are_named(
    clock, tmp_path, caplog, outside, faults, asked, keep
):
    """Who has refused in time is not asked to give up."""
    grid = FaultyGrid(with_some_outside(tmp_path, outside), faults, clock)
    refused(tmp_path, min(outside, default="b"), grid)
    assert sum(grid.asked("mufc_abandon", place) for place in range(3)) == asked
    numbers = left(tmp_path)["b"]
    assert len(numbers) == bool(keep)
    assert left(tmp_path) == NOTHING | dict.fromkeys(keep, numbers)
    warning = [
        f"model {number} is abandoned, but {', '.join(keep)} could not be reached: run "
        f"vfl-flower models remove {number} there"
        for number in numbers
    ]
    assert [m for m in caplog.messages if "is abandoned" in m] == warning


def test_a_party_gives_up_before_its_peers_have_signed_the_keys(tmp_path):
    """The party that refuses has signed nothing, and nothing leaves the others."""
    three = with_some_outside(tmp_path, "b")
    peers = {party.name: public_identity(party.state_dir) for party in three}
    for party in three:
        party.consent = replace(ALLOW_ALL, peers=peers)
    refused(tmp_path, "b", RealParties(three))
    assert left(tmp_path) == NOTHING


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
