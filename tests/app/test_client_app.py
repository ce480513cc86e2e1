"""The ready ClientApp: its steps, and the loader of a SuperNode."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from consents import limited
from flwr.app import Context, RecordDict

from vfl_flower import CoresetVRLR, Party, PartyFailed
from vfl_flower.app.client_app import load_from_context
from vfl_flower.app.register import make_client_app
from vfl_flower.party.answering import hello
from vfl_flower.party.parts import ModelPart, save_part
from vfl_flower.party.party import PartyError
from vfl_flower.server.exchange import Exchange
from vfl_flower.server.parties import Parties
from vfl_flower.simulation import InProcessGrid
from vfl_flower.strategies.coresets import sampling
from vfl_flower.testing import Recorder

MODEL = f"{11:016x}"


def test_the_package_makes_no_app_when_it_is_imported():
    """That would load the algorithms of other packages, which import this one."""
    code = "import sys, vfl_flower; print('vfl_flower.app.client_app' in sys.modules)"
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


# -- how many parties there are --------------------------------------------------------


class Nodes(InProcessGrid):
    def __init__(self, configs: Sequence[dict[str, Any]]) -> None:
        super().__init__([Party(np.ones((1, 1)))] * max(2, len(configs)))
        self._app = make_client_app(load_from_context)
        for context, config in zip(self._contexts.values(), configs, strict=False):
            context.node_config.update(config)


def places(count: int) -> list[dict[str, Any]]:
    return [{"partition-id": j, "num-partitions": count} for j in range(count)]


def test_loader_says_how_many_parties_there_are():
    party = load_from_context(Nodes(places(3))._contexts[1001])
    assert (party.index, party.n_parties) == (1, 3)
    assert hello(party)["n_parties"] == 3


# -- what a node config may not say ----------------------------------------------------


@pytest.mark.parametrize("name", ["rome", None])
def test_config_of_a_node_that_cannot_be_right(name, clock):
    wrong = places(2)[1] | {"label_column": "y"}
    grid = Nodes([places(2)[0], wrong | ({"party-name": name} if name else {})])
    with pytest.raises(PartyFailed, match="'label-column'") as caught:
        Parties(Exchange(grid, timeout=10.0), seed=1)
    assert (caught.value.party, caught.value.action) == (name or "node 1001", "hello")
    assert str(caught.value).count(repr(name)) == (1 if name else 0)


# -- consent ---------------------------------------------------------------------------


def limited_grid(run, kind=InProcessGrid):
    """Return a grid of two SuperNodes; the first lets `run` rows leave it in a run."""
    grid = kind([Party(np.ones((9, 1)))] * 2)
    for index, context in enumerate(grid._contexts.values()):
        context.node_config = {"partition-id": index, "num-partitions": 2}
        context.run_config = {"data": "synthetic:n=40,d=4", "seed": 1}

    def load(context):
        party = load_from_context(context)
        if not context.node_config["partition-id"]:
            party.consent = limited(run)
        return party

    grid._app = make_client_app(load)
    return grid


@pytest.mark.parametrize(
    ("arguments", "drawn"),
    [
        ({"size": 30}, 30),
        ({"size": 30, "rounds": "paper"}, 30),
        ({"size": 20, "check_size": 10}, 30),
        ({"size": 12, "sampling": "uniform"}, 12),
        ({"sampling": "full"}, 40),
    ],
)
def test_a_party_bounds_the_rows_that_leave_it(arguments, drawn):
    """Each row once: what is drawn twice, or again by the second draw, counts once."""
    grid = limited_grid(40, Recorder)
    strategy = CoresetVRLR(**arguments, solver="central", seed=4)
    strategy.start(grid)
    sent = [
        entry.values["X"]
        for entry in grid.transcript
        if entry.up and not entry.party and "X" in entry.values
    ]
    rows = np.concatenate(sent)
    asked = len(np.unique(rows, axis=0))
    assert len(rows) == drawn
    assert (asked < drawn) == ("size" in arguments and "sampling" not in arguments)
    strategy.start(limited_grid(asked))
    with pytest.raises(PartyFailed, match="consent") as caught:
        strategy.start(limited_grid(asked - 1))
    for count in (asked - 1, asked):
        assert f" {count}" in caught.value.reason


def test_blocks_of_rows_are_added_up(monkeypatch):
    monkeypatch.setattr(sampling, "MESSAGE_NUMBERS", 40)
    with pytest.raises(PartyFailed, match=r"at most 39 rows to leave .* requests 40"):
        CoresetVRLR(sampling="full", solver="central").start(limited_grid(39))


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
    context.run_config = {"task": "predict", "model-id": MODEL}
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
    assert list(party.read_ids()) == ["u", "v"]


def test_rows_to_train_on_are_encoded_anew(node):
    node.run_config = {"task": "train"}
    party = load_from_context(node)
    assert list(party.columns) == ["height", "kind=a", "kind=b"]
    np.testing.assert_allclose(party.X[:, 0], [1.0, -1.0])
    assert party.state_dir == Path(node.node_config["state-dir"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state-dir": ""}, ("party-0", "state-dir must be set")),
        ({"state-dir": "state"}, ("state-dir must be an absolute path",)),
        ({"state-dir": "/dev/null/state"}, ("party-0", "cannot be written")),
    ],
)
def test_a_node_that_cannot_predict(node, change, words):
    node.node_config |= change
    with pytest.raises(PartyError) as caught:
        load_from_context(node)
    for word in words:
        assert word in str(caught.value)
    assert "/dev" not in str(caught.value)
