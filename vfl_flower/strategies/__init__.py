"""The server's side: a module or package per algorithm, and a table of algorithms."""

import os
from functools import cache
from importlib.metadata import entry_points

from vfl_flower.models.base import Model, load_one_of
from vfl_flower.server.strategy import ProtocolStrategy
from vfl_flower.strategies.alignment import Alignment
from vfl_flower.strategies.coresets.prediction import (
    CoresetEvaluation,
    CoresetPrediction,
)
from vfl_flower.strategies.coresets.training import CoresetVKMC, CoresetVRLR
from vfl_flower.strategies.fdskl.prediction import FDSKLEvaluation, FDSKLPrediction
from vfl_flower.strategies.fdskl.training import FDSKL, FDSKLDirect
from vfl_flower.strategies.kernel_kmeans.prediction import (
    FKKMeansEvaluation,
    FKKMeansPrediction,
)
from vfl_flower.strategies.kernel_kmeans.training import FKKMeans
from vfl_flower.strategies.mufc.tasks import (
    MUFCAdd,
    MUFCEvaluation,
    MUFCForgetClient,
    MUFCPrediction,
    MUFCStatus,
    MUFCUnlearn,
)
from vfl_flower.strategies.mufc.training import MUFC
from vfl_flower.strategies.removal import MUFCRemoval, Removal
from vfl_flower.strategies.ridge.prediction import RidgeEvaluation, RidgePrediction
from vfl_flower.strategies.ridge.training import SecureRidge

Tasks = tuple[type[ProtocolStrategy], ...]

ALGORITHMS: dict[str, Tasks] = {
    "coreset-vrlr": (CoresetVRLR, CoresetPrediction, CoresetEvaluation, Removal),
    "coreset-vkmc": (CoresetVKMC, CoresetPrediction, CoresetEvaluation, Removal),
    "fdskl": (FDSKL, FDSKLPrediction, FDSKLEvaluation, Removal),
    "fdskl-direct": (FDSKLDirect, FDSKLPrediction, FDSKLEvaluation, Removal),
    "fk-kmeans": (FKKMeans, FKKMeansPrediction, FKKMeansEvaluation, Removal),
    "mufc": (
        *(MUFC, MUFCUnlearn, MUFCForgetClient, MUFCAdd, MUFCStatus),
        *(MUFCPrediction, MUFCEvaluation, MUFCRemoval),
    ),
    "ridge": (SecureRidge, RidgePrediction, RidgeEvaluation, Removal),
    "align": (Alignment,),
}
"""Each algorithm's name in the run config, and its strategies, one for each task."""

GROUP = "vfl_flower.algorithms"
"""Entry point group for other packages.

Each entry is a strategy, or a tuple of strategies, one for each task.
"""


@cache
def algorithms() -> dict[str, Tasks]:
    """Return the strategies of all algorithms; raise ValueError if two share a name."""
    table = dict(ALGORITHMS)
    for entry in entry_points(group=GROUP):
        if entry.name in table:
            raise ValueError(f"two algorithms are called {entry.name!r}")
        loaded = entry.load()
        table[entry.name] = loaded if isinstance(loaded, tuple) else (loaded,)
    return table


def uses_of_steps() -> dict[str, frozenset[tuple[str, str]]]:
    """Return the algorithms and tasks that use each step, by the step's action."""
    uses: dict[str, set[tuple[str, str]]] = {}
    for name, strategies in algorithms().items():
        for strategy in strategies:
            for step in strategy.steps:
                uses.setdefault(step.action, set()).add((name, strategy.task))
    return {action: frozenset(pairs) for action, pairs in uses.items()}


def add_algorithm(name: str, *strategies: type[ProtocolStrategy]) -> None:
    """Register an algorithm by hand if its package is not installed.

    A Flower bundle has no entry points, so its ServerApp and its ClientApp call this
    function. Pass one strategy per task. In the run config, `name` is the name of the
    algorithm and of the section with its settings.
    """
    algorithms()[name] = strategies


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read a model of any kind that :meth:`~vfl_flower.models.base.Model.save` wrote.

    Parameters
    ----------
    path : path
        The file, which states the kind of model that it contains; no pickle is read.

    Raises
    ------
    ValueError
        The file is not a saved model, was written by a later version, or contains a
        model of a kind whose package is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from tempfile import TemporaryDirectory
    >>> from vfl_flower.models.coresets import LinearModel
    >>> with TemporaryDirectory() as folder:
    ...     path = LinearModel([np.array([1.0, 2.0])], 5.0).save(f"{folder}/model")
    ...     load_model(path)
    LinearModel(coef_=[array([1., 2.])], intercept_=5.0, id='')
    """
    tasks = algorithms().values()
    kinds = (strategy.model_class for strategies in tasks for strategy in strategies)
    return load_one_of(kinds, path)


__all__ = [
    "FDSKL",
    "MUFC",
    "Alignment",
    "CoresetEvaluation",
    "CoresetPrediction",
    "CoresetVKMC",
    "CoresetVRLR",
    "FDSKLDirect",
    "FDSKLEvaluation",
    "FDSKLPrediction",
    "FKKMeans",
    "FKKMeansEvaluation",
    "FKKMeansPrediction",
    "MUFCAdd",
    "MUFCEvaluation",
    "MUFCForgetClient",
    "MUFCPrediction",
    "MUFCRemoval",
    "MUFCStatus",
    "MUFCUnlearn",
    "Removal",
    "RidgeEvaluation",
    "RidgePrediction",
    "SecureRidge",
    "load_model",
]
