"""What commit 41196810 wrote, which any later one must read.

These are runs that were killed, models, parties' parts of models, and the state of
clusters that can forget, all in ``earlier.tar.xz``. ``earlier.py`` of commit 63334214
made it:

    git worktree add /tmp/before 41196810
    git worktree add /tmp/script 63334214
    PYTHONPATH=/tmp/before:/tmp/script/tests python /tmp/script/tests/earlier.py
"""

import csv
import json
import math
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deviating import RealParties
from transcripts import our_steps

from vfl_flower import Party, load_model, request_changes, simulate, strategies
from vfl_flower.party import journal, party
from vfl_flower.server import checkpoint
from vfl_flower.server.checkpoint import FILE
from vfl_flower.server.strategy import ProtocolStrategy

ARCHIVE = Path(__file__).with_name("earlier.tar.xz")
NAMES = "north", "south", "west"
ROWS = 48

REGRESSION = strategies.CoresetVRLR(size=80, seed=3)
RIDGE = strategies.SecureRidge(target="continuous", joint_features=2, seed=3)
KERNEL = strategies.FDSKL(
    loss="square", target="continuous", features=12, bandwidth=2.0, seed=3
)
CLUSTERS = strategies.FKKMeans(
    n_clusters=2, n_components=2, n_features=6, n_init=1, seed=3
)
FORGETTING = strategies.MUFC(2, 0.05, box="-9,9", n_init=1, seed=3)

TRAINED: dict[str, tuple[ProtocolStrategy, type[Any] | None]] = {
    "regression": (REGRESSION, strategies.CoresetPrediction),
    "k-means": (
        strategies.CoresetVKMC(n_clusters=2, size=30, seed=3),
        strategies.CoresetPrediction,
    ),
    "ridge": (RIDGE, strategies.RidgePrediction),
    "kernel": (KERNEL, strategies.FDSKLPrediction),
    "clusters": (CLUSTERS, strategies.FKKMeansPrediction),
    "forgetting": (FORGETTING, strategies.MUFCUnlearn),
    "order": (strategies.Alignment("shared"), strategies.Removal),
}
"""Strategies that train, and the task that then uses what the parties have stored."""

KILLED: dict[str, tuple[str, str]] = {
    "k-means": ("", "coresets_totals"),
    "regression": ("", "linear_gram_columns"),
    "descent": ("", "linear_start"),
    "ridge": ("", "ridge_prepare"),
    "kernel": ("", "fdskl_start"),
    "clusters": ("", "kernel_kmeans_begin"),
    "forgetting": ("", "mufc_train"),
    "order": ("", "alignment_encrypt_ids"),
    "regression predict": ("regression", "coreset_predictions_addends"),
    "ridge predict": ("ridge", "ridge_rows"),
}
"""Runs, the one whose model they use, and the step after which they are killed."""


def parties(folder: Path, strategy: ProtocolStrategy) -> list[Party]:
    """Return parties with folders, and with the data of a strategy that trains."""
    rng = np.random.default_rng(5)
    X = rng.integers(-8, 9, size=(ROWS, 6)) / 8 + 4 * rng.integers(2, size=(ROWS, 1))
    y, ids = X @ np.arange(6.0), np.array([f"r{row}" for row in range(ROWS)])
    if strategy.partition == "vertical":
        blocks, labels, known = np.split(X, 3, axis=1), [None, None, y], [ids] * 3
    else:  # an alignment has lists that overlap
        size = 30 if strategy.partition == "either" else 16
        starts = range(0, ROWS, 16) if size == 16 else range(3)
        blocks, labels = [X[start:][:size] for start in starts], [None] * 3
        known = [ids[start:][:size] for start in starts]
    return [
        Party(X, y=y, ids=ids, name=name, state_dir=folder / name)
        for X, y, ids, name in zip(blocks, labels, known, NAMES, strict=True)
    ]


def strategy_of(name: str, folder: Path, model: str = "") -> ProtocolStrategy:
    """Return the strategy that trains, or with a model's id the later task."""
    if name == "descent":
        return REGRESSION.replace(solver="cg", size=20)
    strategy, later = TRAINED[name.removesuffix(" predict")]
    options: dict[str, Any] = {}
    if isinstance(strategy, strategies.MUFC):
        options = {"server_state": folder / "server", "seed": 3}
    if not model:
        return strategy.replace(**options)
    assert later is not None
    return later(model, **options)


def use(name: str, folder: Path, model: str) -> tuple[Any, dict[str, str]]:
    """Use what the parties have stored; return the result and their predictions."""
    strategy = strategy_of(name, folder, model)
    members = parties(folder, TRAINED[name][0])
    if isinstance(strategy, strategies.MUFCUnlearn):
        request_changes(members[0], forget=["r7"])
    result = simulate(strategy, members)
    files = sorted(folder.glob(f"*/predictions-{model}*.csv"))
    return result, {file.parent.name: file.read_text() for file in files}


def predicted(model: Any, strategy: ProtocolStrategy) -> Any:
    """Return what a model predicts of the rows of training, if it can."""
    blocks = [party.X for party in parties(Path("unused"), strategy)]
    vertical = strategy.partition == "vertical"
    return model.predict(blocks if vertical else np.vstack(blocks))


class Noting(RealParties):
    """Parties of SuperNodes; the types of what they are asked are in `types`."""

    def __init__(self, members: list[Party]) -> None:
        super().__init__(members)
        self.types: set[str] = set()

    def _push(self, message: Any) -> str:
        self.types.add(message.metadata.message_type)
        return super()._push(message)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return the folder of the files, which no test changes."""
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="tar")
    return folder


@pytest.fixture(scope="module")
def about(files):
    return json.loads((files / "about.json").read_text())


def assert_same(arrays, path, drawn=()):
    """Compare arrays with those of a file; another machine may round otherwise."""
    with np.load(path) as stored:
        names = set(stored.files) - {"kind", "format", *drawn}
        assert names
        for name in names:
            if stored[name].dtype.kind == "f":
                np.testing.assert_allclose(arrays[name], stored[name], 1e-6, 1e-9)
            else:
                np.testing.assert_array_equal(arrays[name], stored[name], name)


def test_names_are_those_of_the_files(about):
    """A file, and a party of the commit before, know a step or a state by its name."""
    assert set(about["actions"]) <= set(our_steps())
    states = {name for names in about["states"].values() for name in names}
    assert len(states) == 12
    assert states <= set(party._NAMES.values())


def test_a_model_of_each_kind_is_read(files, about):
    kinds = set()
    for name, (strategy, _) in TRAINED.items():
        for path in (files / f"{name}.npz", files / f"{name} used.npz"):
            model = load_model(path)
            kinds.add(model.kind)
            assert_same(model.arrays(), path)
        before = files / f"{name} predicted.npy"
        if before.exists():
            now = predicted(load_model(files / f"{name}.npz"), strategy)
            np.testing.assert_allclose(now, np.load(before), 1e-6, 1e-9)
    assert kinds == set(about["kinds"])


@pytest.mark.parametrize("name", TRAINED)
def test_a_later_task_uses_stored_parts(name, files, about, tmp_path):
    """Their parts of a model, or the state of clusters that then forget a row."""
    folder = shutil.copytree(files / "trained" / name, tmp_path / "run")
    result, written = use(name, folder, about["models"][name])
    assert_same(result.model.arrays(), files / f"{name} used.npz")
    assert written.keys() == about["predictions"][name].keys()
    for place, text in about["predictions"][name].items():
        before, now = (list(csv.reader(t.splitlines())) for t in (text, written[place]))
        assert [row[0] for row in now] == [row[0] for row in before]
        numbers = [[float(row[1]) for row in rows[1:]] for rows in (now, before)]
        rounded = 0.1 if name == "ridge" else 1e-9  # shares round at random
        np.testing.assert_allclose(*numbers, 1e-6, rounded)


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_run_continues(name, files, about, tmp_path, monkeypatch):
    """From the parties' journals and the server's checkpoint, on the same day."""
    monkeypatch.setattr(journal, "STATE_SECONDS", math.inf)
    monkeypatch.setattr(checkpoint, "__version__", "0.1.0")
    folder = shutil.copytree(files / "killed" / name, tmp_path / "run")
    model, after = KILLED[name]
    strategy = strategy_of(name, folder, about["models"].get(model, ""))
    grid = Noting(parties(folder, strategy_of(name, folder)))
    run = checkpoint.Checkpoint(folder / FILE)
    result = strategy.start(grid, checkpoint=run)
    run.end()
    assert f"train.{after}" not in grid.types  # it was answered before
    # A last bit decides how many vectors Lanczos takes for the six features, and that
    # number which coins the sums of the centres have: another release of NumPy differs.
    drawn = ("centers", "inertia") if name == "clusters" else ()
    assert_same(result.model.arrays(), files / f"{name} killed.npz", drawn)
