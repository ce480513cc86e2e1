"""Later tasks on trained models, and the parties with their local models."""

import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from federations import by_columns

from vfl_flower import (
    MUFC,
    CoresetVRLR,
    FDSKLDirect,
    FKKMeans,
    Party,
    request_changes,
    strategies,
)
from vfl_flower.server.strategy import ProtocolStrategy
from vfl_flower.simulation import InProcessGrid

HOME = TemporaryDirectory(ignore_cleanup_errors=True)
NAMES = "north", "south", "west"
Task = Callable[[Path], tuple[ProtocolStrategy, Callable[[], list[Party]]]]
"""A function from a folder to a strategy and a function that remakes its parties."""


def clinics(folder: Path, rows: int = 8) -> list[Party]:
    """Return parties with this number of rows, whose state is below the folder."""
    rng = np.random.default_rng(0)
    return [
        Party(
            rng.uniform(-0.4, 0.4, size=(rows, 2)),
            ids=np.array([f"{name}.{row}" for row in range(rows)]),
            name=name,
            state_dir=folder / name,
        )
        for name in NAMES
    ]


def columns(folder: Path, labelled: bool = True, n: int = 240) -> list[Party]:
    """Return parties of a linear model, whose state is below the folder."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, 6))
    y = X @ np.arange(6.0) + 3 + rng.normal(size=n)
    return by_columns(X, y if labelled else None, names=NAMES, folder=folder)


_kernel: dict[str, Any] = {"target": "continuous", "features": 16, "seed": 3}
_ridge: dict[str, Any] = {"target": "continuous", "seed": 3}
_embedded = FKKMeans(2, 2, n_features=6, iterations=2, passes=2, n_init=1, seed=3)
_many = partial(clinics, rows=20)
TRAINED: dict[str, tuple[ProtocolStrategy, Callable[[Path], list[Party]]]] = {
    "linear": (CoresetVRLR(80, seed=3), columns),
    "direct": (FDSKLDirect("square", **_kernel), columns),
    "ridge": (strategies.SecureRidge(joint_features=16, **_ridge), columns),
    "ridge linear": (strategies.SecureRidge("linear", **_ridge), columns),
    "kernel": (_embedded, _many),
    "mufc": (MUFC(2, 0.05, n_init=1, seed=3), clinics),
}


def state_of(name: str, folder: Path) -> dict[str, Path]:
    return {"server_state": folder / "server"} if name == "mufc" else {}


def made(name: str, folder: Path) -> tuple[ProtocolStrategy, list[Party]]:
    strategy, parties = TRAINED[name]
    return strategy.replace(**state_of(name, folder)), parties(folder)


@cache
def trained(name: str) -> tuple[str, Path]:
    """Return the id of a trained model, and the folder with its local models."""
    strategy, parties = made(name, folder := Path(HOME.name) / name)
    return str(strategy.start(InProcessGrid(parties)).model.id), folder


def on_parts(
    name: str,
    task: type[ProtocolStrategy],
    parties: Callable[[Path], list[Party]],
    **settings: Any,
) -> Task:
    """Return a task on a trained model."""

    def in_folder(folder: Path) -> tuple[ProtocolStrategy, Callable[[], list[Party]]]:
        model, parts = trained(name)

        def make() -> list[Party]:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(parts, folder)
            return parties(folder)

        return task(model_id=model, **state_of(name, folder), **settings), make

    return in_folder


def requested(folder: Path, rows: int = 8) -> list[Party]:
    """Return clinics that want to forget, to add or to leave."""
    model = trained("mufc")[0]
    members = clinics(folder, rows)
    for clinic in members:
        new = clinic.ids[8:].tolist() if rows == 11 else ()
        request_changes(clinic, forget=[f"{clinic.name}.1"], add=new)
    request_changes(members[1], leave=[model])
    return members


_new = partial(columns, labelled=False)
_mufc = partial(on_parts, "mufc")
TASKS: dict[str, Task] = {
    "linear predict": on_parts("linear", strategies.CoresetPrediction, _new),
    "linear evaluate": on_parts("linear", strategies.CoresetEvaluation, columns),
    "direct predict": on_parts("direct", strategies.FDSKLPrediction, _new),
    "direct evaluate": on_parts("direct", strategies.FDSKLEvaluation, columns),
    "ridge predict": on_parts("ridge", strategies.RidgePrediction, _new),
    "ridge evaluate": on_parts("ridge", strategies.RidgeEvaluation, columns),
    "ridge linear predict": on_parts("ridge linear", strategies.RidgePrediction, _new),
    "kernel predict": on_parts("kernel", strategies.FKKMeansPrediction, _many),
    "kernel evaluate": on_parts("kernel", strategies.FKKMeansEvaluation, _many),
    "mufc unlearn": _mufc(strategies.MUFCUnlearn, requested, seed=5),
    "mufc forget client": _mufc(
        strategies.MUFCForgetClient, requested, clients="south", seed=5
    ),
    "mufc add": _mufc(strategies.MUFCAdd, partial(requested, rows=11), seed=5),
    "mufc status": _mufc(strategies.MUFCStatus, requested),
    "mufc predict": _mufc(strategies.MUFCPrediction, requested),
    "mufc evaluate": _mufc(strategies.MUFCEvaluation, partial(requested, rows=20)),
    "mufc remove": _mufc(strategies.MUFCRemoval, requested),
}
"""A task of each kind."""
