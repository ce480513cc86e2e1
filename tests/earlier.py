"""What commit 41196810 wrote, which any later one must read.

These are runs that were killed, models, parties' parts of models, and the state of
clusters that can forget, all in ``earlier.tar.xz``. This file made it when it was
added, in commit 63334214, with the imports of that time:

    git worktree add /tmp/before 41196810
    git worktree add /tmp/script 63334214
    PYTHONPATH=/tmp/before:/tmp/script/tests python /tmp/script/tests/earlier.py
"""

import json
import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from deviating import RealParties

from vfl_flower import Party, request_changes, simulate, strategies
from vfl_flower.party.memory import Memory
from vfl_flower.protocol.steps import STEPS
from vfl_flower.server.checkpoint import FILE, Checkpoint
from vfl_flower.server.strategy import ProtocolStrategy

ARCHIVE = Path(__file__).with_suffix(".tar.xz")
NAMES = "north", "south", "west"
ROWS, FORGOTTEN, MISSING = 48, "r7", "0123456789abcdef"

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
        request_changes(members[0], forget=[FORGOTTEN])
    result = simulate(strategy, members)
    files = sorted(folder.glob(f"*/predictions-{model}*.csv"))
    return result, {file.parent.name: file.read_text() for file in files}


def predicted(model: Any, strategy: ProtocolStrategy) -> Any:
    """Return what a model predicts of the rows of training, if it can."""
    blocks = [party.X for party in parties(Path("unused"), strategy)]
    vertical = strategy.partition == "vertical"
    return model.predict(blocks if vertical else np.vstack(blocks))


class Killed(RealParties):
    """Parties of SuperNodes, of a run that is killed after a step."""

    def __init__(self, members: list[Party], after: str = "") -> None:
        super().__init__(members)
        self.after, self.asked = f"train.{after}", 0
        self.types: set[str] = set()

    def _push(self, message: Any) -> str:
        if self.asked == len(self._parties):
            raise KeyboardInterrupt
        self.types.add(message.metadata.message_type)
        self.asked += message.metadata.message_type == self.after
        return super()._push(message)


def start_or_resume(name: str, folder: Path, model: str, after: str = "") -> Killed:
    """Start or continue a run with a checkpoint; its grid has the result."""
    strategy = strategy_of(name, folder, model)
    grid = Killed(parties(folder, strategy_of(name, folder)), after)
    checkpoint = Checkpoint(folder / FILE)
    try:
        grid.result = strategy.start(grid, checkpoint=checkpoint)
    except KeyboardInterrupt:
        pass
    finally:
        checkpoint.end()
    return grid


# -- making the archive, with the code of that commit ----------------------------------


def make(folder: Path) -> None:
    """Write all files below a folder."""
    about: dict[str, Any] = {"models": {}, "states": {}, "predictions": {}}
    for name, (strategy, _) in TRAINED.items():
        home = folder / "trained" / name
        result = simulate(strategy_of(name, home), parties(home, strategy))
        about["models"][name] = number = result.model.id or MISSING
        result.model.save(folder / f"{name}.npz")
        if name != "order":
            np.save(folder / f"{name} predicted.npy", predicted(result.model, strategy))
        shutil.copytree(home, folder / "copy")
        used, about["predictions"][name] = use(name, folder / "copy", number)
        used.model.save(folder / f"{name} used.npz")
        shutil.rmtree(folder / "copy")
    for name, (base, after) in KILLED.items():
        home, model = folder / "killed" / name, about["models"].get(base, "")
        if base:
            shutil.copytree(folder / "trained" / base, home)
        home.mkdir(parents=True, exist_ok=True)
        grid = start_or_resume(name, home, model, after)
        states = [Memory(c.state)._kept("after") for c in grid._contexts.values()]
        about["states"][name] = sorted({k.split("/")[0] for s in states for k in s})
        shutil.copytree(home, folder / "copy")
        np.savez(
            folder / f"{name} killed.npz",
            **start_or_resume(name, folder / "copy", model).result.model.arrays(),
        )
        shutil.rmtree(folder / "copy")
    kinds = {
        s.model_class.kind for tasks in strategies.algorithms().values() for s in tasks
    }
    about |= {"actions": sorted(STEPS), "kinds": sorted(kinds)}
    (folder / "about.json").write_text(json.dumps(about, indent=1))


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        make(Path(name))
        for path in Path(name).rglob("*.sqlite"):
            with closing(sqlite3.connect(path)) as db:
                db.execute("VACUUM")
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            archive.add(name, "")
