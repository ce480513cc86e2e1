"""The experiments of the coreset paper: its Table 1 and the data of Figures 2 and 3.

All tables take about an hour, ``--quick`` some minutes::

    python -m vfl_flower.simulations.coresets --data kc_house --task regression
    python -m vfl_flower.simulations.coresets --quick

C-X is solver X on a coreset, U-X on a uniform sample of the same size. Everything runs
through :func:`~vfl_flower.simulations.simulate` with masked sums; the cost of a model
on all rows (or on rows held out) is evaluated on pooled data outside of the run, which
is not communication. Repeat r of a cell has seed ``--seed`` + r.

=============  =====================================================================
flights        party files made by ``vfl_flower.simulations.flights``; T = 3
kc_house       ``kc_house.npz`` with X (21613, 18) and the price y; T = 2
covtype        ``covtype.npz`` with X (581012, 54); T = 3
generated      made here, of the size of YearPredictionMSD; T = 3 and 5
=============  =====================================================================

The npz files are looked for in ``--data-dir`` or the folder ``VFL_FLOWER_DATA``.

[1] L. Huang, Z. Li, J. Sun, H. Zhao, "Coresets for Vertical Federated Learning:
    Regularized Linear Regression and K-Means Clustering", NeurIPS 2022.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from vfl_flower.clients.base import Party
from vfl_flower.config import PartySource
from vfl_flower.data import load_party
from vfl_flower.models import KMeansModel, LinearModel, Model
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import assign
from vfl_flower.numerics.split import split_rows
from vfl_flower.report import markdown_table, write_text
from vfl_flower.simulations.flights import ID, LABEL, make_party_files
from vfl_flower.simulations.in_process import simulate
from vfl_flower.strategies.coresets import CoresetVKMC, CoresetVRLR
from vfl_flower.strategies.sampling import SAMPLINGS
from vfl_flower.typing import Array

TASKS = ("regression", "k-means")
DRAWN = ("coreset", "uniform")
SIZES = (1000, 2000, 3000, 4000, 5000, 6000)
QUICK_SIZES, QUICK_REPEATS, QUICK_ROWS = (200, 600), 2, 20_000


class MissingData(Exception):
    """A data set cannot be had, with a sentence that says why."""


@dataclass(frozen=True)
class Columns:
    """A data set that is split over parties by columns.

    Attributes
    ----------
    X : Array, shape (n, d)
        Training rows of all parties.
    widths : tuple of int
        d_j of each party.
    y : Array, shape (n,), or None
        Labels of the training rows.
    holder : int
        The party with the labels.
    test : (Array, Array) or None
        X and y of rows held out.
    """

    X: Array
    widths: tuple[int, ...]
    y: Array | None = None
    holder: int = -1
    test: tuple[Array, Array] | None = None

    def split(self, X: Array) -> list[Array]:
        """Return the columns of each party, as views."""
        edges = np.cumsum([0, *self.widths]).tolist()
        return [X[:, a:b] for a, b in pairwise(edges)]

    def parties(self) -> list[Party]:
        """Return the parties, made once for all repeats."""
        holder = range(len(self.widths))[self.holder]
        return [
            Party(X, y=self.y if j == holder else None)
            for j, X in enumerate(self.split(self.X))
        ]


@dataclass(frozen=True)
class Solver:
    """A solver of a table.

    Attributes
    ----------
    arguments : dict
        Of the strategy.
    samplings : tuple of str
        Which of coreset, uniform, full it is run with.
    repeats : int
        At most so many repeats.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    samplings: tuple[str, ...] = SAMPLINGS
    repeats: int = 1000


# The solvers of [1], and our own: CG, and coresets from k-means++ seeding alone.
REGRESSION = {
    "CENTRAL": Solver(),
    "CG": Solver({"solver": "cg", "allow_two_parties": True}, repeats=3),
}
SAGA = Solver(
    {"solver": "saga", "batch_size": 250, "max_iter": 60, "tol": 1e-3}, DRAWN, 1
)
CLUSTERING = {
    "KMEANS++": Solver(),
    "KMEANS++ (seeding)": Solver({"local_clustering": "seeding"}, ("coreset",)),
    "DISTDIM": Solver({"solver": "distdim"}),
}

Published = Mapping[tuple[str, int | None], Mapping[str, float]]


@dataclass(frozen=True)
class Experiment:
    """One table: a data set, a task, its solvers.

    Attributes
    ----------
    name, note : str
        Title, and how the data were made ready.
    task : {"regression", "k-means"}
        The strategy: ``CoresetVRLR`` or ``CoresetVKMC``.
    data : Columns
        The data.
    arguments : dict
        Of the strategy, for all solvers.
    solvers : mapping of str to Solver
        By the name of the table's rows.
    sizes : tuple of int
        m.
    slow_repeats : int
        At most so many repeats of a k-means run in which parties cluster all rows.
    full_starts : int
        Starts of k-means on all rows at the server.
    published, source : mapping, str
        Mean costs in print by (solver, size; None: full) and sampling; whose they are.
    """

    name: str
    note: str
    task: str
    data: Columns
    arguments: dict[str, Any]
    solvers: Mapping[str, Solver]
    sizes: tuple[int, ...] = SIZES
    slow_repeats: int = 1000
    full_starts: int = 10
    published: Published = field(default_factory=dict)
    source: str = ""

    def strategy(
        self, solver: str, sampling: str, size: int
    ) -> CoresetVRLR | CoresetVKMC:
        """Return the strategy of one cell."""
        arguments = self.arguments | self.solvers[solver].arguments
        if self.task == "k-means" and sampling == "full":
            arguments = arguments | {"n_init": self.full_starts}
        make = CoresetVRLR if self.task == "regression" else CoresetVKMC
        return make(size=size, sampling=sampling, **arguments)

    def most_repeats(self, solver: str, sampling: str) -> int:
        """Return how often a cell may be repeated; a fit on all rows draws nothing."""
        if sampling == "full":
            return 1 if self.task == "regression" else min(3, self.slow_repeats // 2)
        slow = self.task == "k-means" and sampling == "coreset"
        if slow and "local_clustering" not in self.solvers[solver].arguments:
            return min(self.solvers[solver].repeats, self.slow_repeats)
        return self.solvers[solver].repeats

    def cost(self, model: Model) -> float:
        """Return the test loss, or the cost a row on all rows where none is held out.

        Evaluated on pooled data: it is not part of the run.
        """
        if isinstance(model, KMeansModel):
            centers = np.hstack(model.cluster_centers_)
            total = sum(
                float(assign(rows, centers)[1].sum()) for rows in RowBlocks(self.data.X)
            )
            return total / len(self.data.X)
        assert isinstance(model, LinearModel)
        X, y = self.data.test or (self.data.X, self.data.y)
        return float(np.mean((model.predict(self.data.split(X)) - y) ** 2))


def paper_units(
    sampling: str, solver: str, rows: int, widths: Sequence[int], k: int, draws: int
) -> int | None:
    """Return the units of communication as the published code counts them.

    Parameters
    ----------
    sampling : {"coreset", "uniform", "full"}
        Coreset: T + 3mT; uniform: mT; full: 0.
    solver : {"central", "distdim", "saga", "cg"}
        Central: m d; DISTDIM: k d + m T; SAGA: 3T a row drawn + 2mT. The paper has no
        cg.
    rows : int
        m; n for full.
    widths : sequence of int
        d_j of the T parties.
    k : int
        Clusters.
    draws : int
        Rows that SAGA drew.

    Returns
    -------
    int or None
        None where the paper has no formula.

    Examples
    --------
    C-CENTRAL of YearPredictionMSD at m = 1000 in Table 1 of [1] is 9.9e4:

    >>> paper_units("coreset", "central", 1000, [30, 30, 30], 0, 0)
    99003
    """
    T, d = len(widths), sum(widths)
    if solver == "cg":
        return None
    drawing = {"coreset": T + 3 * rows * T, "uniform": rows * T, "full": 0}[sampling]
    solving = {
        "central": rows * d,
        "distdim": k * d + rows * T,
        "saga": 3 * T * draws + 2 * rows * T,
    }[solver]
    return drawing + solving


def run_cell(
    experiment: Experiment,
    parties: list[Party],
    solver: str,
    sampling: str,
    size: int,
    repeats: int,
    seed: int,
) -> dict[str, Any]:
    """Run one cell of a table.

    Returns
    -------
    dict
        ``cost`` and ``cost_std`` (sample standard deviation) over the repeats, every
        single ``costs``; means of ``units``, ``bytes_up``, ``bytes_down``,
        ``round_trips``, ``seconds``, and of each metric of the run; ``paper_units``.
    """
    strategy = experiment.strategy(solver, sampling, size)
    found: list[dict[str, float]] = []
    for r in range(repeats):
        start = time.perf_counter()
        result = simulate(strategy, parties, seed=seed + r)
        seconds = time.perf_counter() - start
        ledger = result.ledger
        found.append(
            {
                "cost": experiment.cost(result.model),
                "seconds": seconds,
                "seconds_parties": ledger.seconds_computed,
                "round_trips": ledger.round_trips,
                "units": ledger.units,
                "bytes_up": ledger.bytes_up,
                "bytes_down": ledger.bytes_down,
                **{f"metric_{k}": float(v) for k, v in result.metrics.items()},
            }
        )
    means = {name: float(np.mean([f[name] for f in found])) for name in found[0]}
    costs = [f["cost"] for f in found]
    n = len(experiment.data.X)
    draws = means.get("metric_iterations", 0.0) * getattr(strategy, "batch_size", 0)
    return {
        "solver": solver,
        "sampling": sampling,
        "size": None if sampling == "full" else size,
        "repeats": repeats,
        **means,
        "cost_std": float(np.std(costs, ddof=1)) if repeats > 1 else 0.0,
        "costs": costs,
        "paper_units": paper_units(
            sampling,
            strategy.solver,
            n if sampling == "full" else size,
            experiment.data.widths,
            getattr(strategy, "n_clusters", 0),
            round(draws),
        ),
        "published": experiment.published.get(
            (solver, None if sampling == "full" else size), {}
        ).get(sampling),
    }


def run_experiment(
    experiment: Experiment,
    repeats: int,
    seed: int,
    tell: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Run all cells of a table.

    Parameters
    ----------
    experiment : Experiment
        What to run.
    repeats : int
        Of each cell, unless the experiment has fewer.
    seed : int
        Of the first repeat.
    tell : callable
        Called with one line a cell.

    Returns
    -------
    dict
        Settings and ``cells``, each as :func:`run_cell` gives it with ``ratio`` and
        ``ratio_error``: mean cost over that of the first solver on all rows, and its
        standard error.
    """
    data, parties = experiment.data, experiment.data.parties()
    cells: list[dict[str, Any]] = []
    for solver, settings in experiment.solvers.items():
        for sampling in ("full", *DRAWN):
            if sampling not in settings.samplings:
                continue
            sizes = experiment.sizes if sampling != "full" else experiment.sizes[-1:]
            times = min(repeats, experiment.most_repeats(solver, sampling))
            for size in sizes:
                cell = run_cell(
                    experiment, parties, solver, sampling, size, times, seed
                )
                base = cells[0]["cost"] if cells else cell["cost"]
                cell["ratio"] = cell["cost"] / base
                cell["ratio_error"] = cell["cost_std"] / base / times**0.5
                cells.append(cell)
                tell(
                    f"{experiment.name}: {solver} {sampling} {cell['size'] or ''} "
                    f"cost {cell['cost']:.6g}, {cell['ratio']:.4f} of full, "
                    f"{times} x {cell['seconds']:.2f} s"
                )
    return {
        "name": experiment.name,
        "note": experiment.note,
        "task": experiment.task,
        "n": len(data.X),
        "widths": list(data.widths),
        "n_test": 0 if data.test is None else len(data.test[1]),
        "arguments": experiment.arguments,
        "solvers": {name: s.arguments for name, s in experiment.solvers.items()},
        "source": experiment.source,
        "cells": cells,
    }


# --- The data ---------------------------------------------------------------------


def _kc_house(folder: Path | None, quick: bool) -> Iterator[Experiment]:
    """King County house sales, T = 2, nine columns each, as in the published code."""
    X, y = _npz(folder, "kc_house")
    sizes = (100, 200, 400, 600, 1000, 2000, 4000)
    yield Experiment(
        name="kc_house, plain regression",
        note="raw columns, least squares (rank 17 of 18) with an intercept; cost: mean "
        "squared error on all rows",
        task="regression",
        data=Columns(X, (9, 9), y),
        arguments={},
        solvers=REGRESSION,
        sizes=sizes,
        published={
            ("CENTRAL", None): {"full": 4.047e10},
            ("CENTRAL", 100): {"coreset": 4.78e10, "uniform": 7.52e10},
            ("CENTRAL", 600): {"coreset": 4.13e10, "uniform": 4.37e10},
        },
        source="the published code run again with least squares, no intercept",
    )
    yield Experiment(
        name="kc_house, k-means, k = 5",
        note="standardised columns; cost: squared distance a row, all rows",
        task="k-means",
        data=Columns(_standardised(X), (9, 9)),
        arguments={"n_clusters": 5},
        solvers=CLUSTERING,
        sizes=sizes,
        published={
            ("KMEANS++", None): {"full": 11.40},
            ("KMEANS++", 600): {"coreset": 11.43},
        },
        source="the paper (the published code run again gave 11.59 at m = 600)",
    )


def _flights(folder: Path | None, quick: bool) -> Iterator[Experiment]:
    """Flights from New York: an airline (labels), a weather service, a registry."""
    from platformdirs import user_cache_path

    try:
        files = make_party_files(user_cache_path("vfl_flower") / "flights")
    except ModuleNotFoundError as error:
        raise MissingData(str(error)) from None
    parties = [
        load_party(
            PartySource(
                data=str(files[0].parent),
                index=j,
                count=len(files),
                id_column=ID,
                label_column=LABEL,
            )
        )
        for j in range(len(files))
    ]
    X = np.hstack([party.X for party in parties])
    holder = next(j for j, party in enumerate(parties) if party.y is not None)
    y = parties[holder].y
    assert y is not None
    X, y = _thinned(X, quick), _thinned(y, quick)
    widths = tuple(party.X.shape[1] for party in parties)
    train, test = split_rows(len(X), 0.2, 0)
    yield Experiment(
        name="flights, plain regression",
        note="raw columns, arrival delay in minutes, with an intercept; cost: mean "
        "squared error on the fifth of the rows held out",
        task="regression",
        data=Columns(X[train], widths, y[train], holder, (X[test], y[test])),
        arguments={},
        solvers=REGRESSION,
    )
    yield Experiment(
        name="flights, k-means, k = 10",
        note="standardised columns; cost: squared distance a row, all rows",
        task="k-means",
        data=Columns(_standardised(X), widths),
        arguments={"n_clusters": 10},
        solvers=CLUSTERING,
        slow_repeats=5,
    )


def _covtype(folder: Path | None, quick: bool) -> Iterator[Experiment]:
    """Forest cover types, T = 3, 18 columns each."""
    X, _ = _npz(folder, "covtype")
    X = _thinned(X, quick)
    X[:, :10] = _standardised(X[:, :10])
    published: Published = {
        ("KMEANS++", None): {"full": 5.16},
        ("KMEANS++", 6000): {"coreset": 5.170, "uniform": 5.166},
    }
    for k in (10, 15):
        yield Experiment(
            name=f"covtype, k-means, k = {k}",
            note="10 standardised columns, 44 columns of 0 and 1 as they are; cost: "
            "squared distance a row, all rows",
            task="k-means",
            data=Columns(X, (18, 18, 18)),
            arguments={"n_clusters": k},
            solvers=CLUSTERING,
            slow_repeats=2,
            full_starts=2,
            published=published if k == 15 else {},
            source="the published code run again on floats" if k == 15 else "",
        )


# Table 1 of [1] and, for plain regression, the ends of its Figure 4.
_YEAR: dict[str, Published] = {
    "ridge": {
        ("CENTRAL", None): {"full": 90.45},
        ("CENTRAL", 1000): {"coreset": 100.50, "uniform": 108.79},
        ("CENTRAL", 2000): {"coreset": 95.01, "uniform": 99.65},
        ("CENTRAL", 3000): {"coreset": 93.39, "uniform": 96.68},
        ("CENTRAL", 4000): {"coreset": 92.73, "uniform": 95.32},
        ("CENTRAL", 5000): {"coreset": 92.42, "uniform": 94.08},
        ("CENTRAL", 6000): {"coreset": 91.97, "uniform": 93.54},
        ("SAGA", 1000): {"coreset": 105.93, "uniform": 110.43},
        ("SAGA", 2000): {"coreset": 99.55, "uniform": 102.96},
        ("SAGA", 3000): {"coreset": 97.13, "uniform": 100.64},
        ("SAGA", 4000): {"coreset": 95.90, "uniform": 99.10},
        ("SAGA", 5000): {"coreset": 94.75, "uniform": 97.64},
        ("SAGA", 6000): {"coreset": 94.83, "uniform": 96.88},
    },
    "none": {
        ("CENTRAL", None): {"full": 90.44},
        ("CENTRAL", 1000): {"coreset": 99.51, "uniform": 103.27},
        ("CENTRAL", 6000): {"coreset": 91.91, "uniform": 92.16},
    },
    "k-means": {
        ("KMEANS++", None): {"full": 71.65},
        ("KMEANS++", 1000): {"coreset": 73.76, "uniform": 74.91},
        ("KMEANS++", 2000): {"coreset": 72.68, "uniform": 73.52},
        ("KMEANS++", 3000): {"coreset": 72.23, "uniform": 73.25},
        ("KMEANS++", 4000): {"coreset": 72.14, "uniform": 72.74},
        ("KMEANS++", 5000): {"coreset": 71.97, "uniform": 72.54},
        ("KMEANS++", 6000): {"coreset": 71.92, "uniform": 72.57},
        ("DISTDIM", None): {"full": 74.89},
        ("DISTDIM", 1000): {"coreset": 77.75, "uniform": 78.87},
        ("DISTDIM", 2000): {"coreset": 76.82, "uniform": 78.13},
        ("DISTDIM", 3000): {"coreset": 75.52, "uniform": 77.85},
        ("DISTDIM", 4000): {"coreset": 75.49, "uniform": 76.70},
        ("DISTDIM", 5000): {"coreset": 75.27, "uniform": 76.38},
        ("DISTDIM", 6000): {"coreset": 75.32, "uniform": 76.44},
    },
}

_PENALTIES: dict[str, dict[str, Any]] = {
    "ridge": {"regularizer": "ridge", "alpha": 0.1},
    "none": {},
    "lasso": {"regularizer": "lasso", "alpha": 2.0},
    "elastic net": {"regularizer": "elasticnet", "alpha": 3.0, "l1_ratio": 2 / 3},
}


def generate(n: int, d: int, seed: int) -> tuple[Array, Array]:
    """Return data with clusters, correlated columns and heavy tails.

    Parameters
    ----------
    n, d : int
        Rows and columns.
    seed : int
        Of the data.

    Returns
    -------
    X : Array, shape (n, d)
        ``x = c (mu_c + f) L + e`` in units of its standard deviation: 12 clusters of
        unequal size (weights 1 / rank) in 15 factors f, loadings L shared by all
        columns, so that columns of different parties are correlated; e is noise of
        half their size. The row's scale c is that of a t distribution with 4 degrees
        of freedom, so some rows are large in all columns at once.
    y : Array, shape (n,)
        A linear function of the scaled factors (standard deviation 5), a product of
        two factors that no linear model can fit (2), and noise (9) of a t distribution
        with 5 degrees of freedom. The best linear model explains about a quarter.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, n, d]))
    n_clusters, n_factors = 12, 15
    weights = 1 / np.arange(1, n_clusters + 1)
    cluster = rng.choice(n_clusters, n, p=weights / weights.sum())
    factors = rng.standard_normal((n, n_factors))
    factors += 1.5 * rng.standard_normal((n_clusters, n_factors))[cluster]
    scale = np.sqrt(4 / rng.chisquare(4, n))
    loadings = rng.standard_normal((n_factors, d)) / np.sqrt(n_factors)
    theta = rng.standard_normal(n_factors)
    X = np.empty((n, d))
    for start in range(0, n, 2**14):
        part = slice(start, start + 2**14)
        rng.standard_normal(out=X[part])
        X[part] *= 0.5
        X[part] += factors[part] @ loadings
        X[part] *= scale[part, None]
    signal, product = factors @ theta, factors[:, 0] * factors[:, 1]
    noise = rng.standard_t(5, n)
    y = sum(
        size * (part - part.mean()) / part.std()
        for size, part in ((5.0, scale * signal), (2.0, product), (9.0, noise))
    )
    return X, np.asarray(y)


def _generated(folder: Path | None, quick: bool) -> Iterator[Experiment]:
    """Make data of the size of YearPredictionMSD: 90 columns, T = 3 and 5."""
    n, n_test = (QUICK_ROWS, 2000) if quick else (463_715, 51_630)
    X, y = generate(n + n_test, 90, seed=0)
    _standardise(X)
    test = (X[n:], y[n:])
    source = "the paper on YearPredictionMSD: another data set of the same size"
    made = (
        "made by `generate`: 12 unequal clusters in 15 factors that all columns share, "
        "each row scaled as a t distribution with 4 degrees of freedom"
    )
    for T in (3, 5):
        data = Columns(X[:n], (90 // T,) * T, y[:n], test=test)
        for name, arguments in _PENALTIES.items():
            # CG gives the model of CENTRAL, however many parties: once is enough.
            solvers = dict(REGRESSION if T == 3 else {"CENTRAL": Solver()})
            if T == 3 and name == "ridge":
                solvers["SAGA"] = SAGA
            yield Experiment(
                name=f"generated, T = {T}, {name}",
                note=f"{made}, standardised, with an intercept; cost: mean squared "
                f"error on {n_test:,} rows held out",
                task="regression",
                data=data,
                arguments=arguments,
                solvers=solvers,
                published=_YEAR.get(name, {}) if T == 3 else {},
                source=source if T == 3 and name in _YEAR else "",
            )
        yield Experiment(
            name=f"generated, T = {T}, k-means, k = 10",
            note=f"{made}, standardised; cost: squared distance a row, these rows",
            task="k-means",
            data=replace(data, y=None, test=None),
            arguments={"n_clusters": 10},
            solvers=CLUSTERING,
            slow_repeats=2,
            full_starts=2,
            published=_YEAR["k-means"] if T == 3 else {},
            source=source if T == 3 else "",
        )


LOADERS: dict[str, Callable[[Path | None, bool], Iterator[Experiment]]] = {
    "flights": _flights,
    "kc_house": _kc_house,
    "covtype": _covtype,
    "generated": _generated,
}


def _npz(folder: Path | None, name: str) -> tuple[Array, Array]:
    if folder is None:
        raise MissingData(
            f"set VFL_FLOWER_DATA or --data-dir to a folder with {name}.npz"
        )
    path = folder / f"{name}.npz"
    if not path.is_file():
        raise MissingData(f"there is no {name}.npz in {folder}")
    with np.load(path, allow_pickle=False) as file:
        return file["X"].astype(np.float64), file["y"].astype(np.float64)


def _thinned(rows: Array, quick: bool) -> Array:
    return rows[:: max(1, len(rows) // QUICK_ROWS)] if quick else rows


def _standardise(X: Array) -> None:
    """Give the columns mean 0 and standard deviation 1, in place; constants are 0."""
    for column in X.T:
        column -= column.mean()
        column /= column.std() or 1.0


def _standardised(X: Array) -> Array:
    copy = np.array(X)
    _standardise(copy)
    return copy


# --- The tables -------------------------------------------------------------------


def run_all(
    names: Sequence[str],
    tasks: Sequence[str],
    *,
    output: Path,
    repeats: int = 20,
    seed: int = 0,
    sizes: Sequence[int] = (),
    quick: bool = False,
    data_dir: Path | None = None,
) -> dict[str, Any]:
    """Run the experiments and write ``coresets.json`` and ``coresets.md``.

    Both are written after each experiment, whole or not at all.

    Parameters
    ----------
    names, tasks : sequence of str
        Which data sets and tasks.
    output : Path
        Folder of the two files.
    repeats, seed : int
        As :func:`run_experiment`.
    sizes : sequence of int
        m; default: those of each experiment.
    quick : bool
        Two sizes, two repeats, at most about 20,000 rows: to see that all works.
    data_dir : Path, optional
        Folder of the npz files.

    Returns
    -------
    dict
        What the JSON file holds: ``settings``, ``versions``, ``skipped`` (a reason for
        each data set that was) and ``experiments``.
    """
    results: dict[str, Any] = {
        "settings": {
            "data": list(names),
            "task": list(tasks),
            "sizes": list(sizes) or "of each experiment",
            "repeats": repeats,
            "quick": quick,
            "seed": seed,
        },
        "versions": versions(),
        "skipped": {},
        "experiments": [],
    }
    output.mkdir(parents=True, exist_ok=True)

    def write() -> None:
        write_text(output / "coresets.json", json.dumps(results, indent=1))
        write_text(output / "coresets.md", markdown(results))

    for name in names:
        found = 0
        try:
            for experiment in LOADERS[name](data_dir, quick):
                if experiment.task not in tasks:
                    continue
                found += 1
                if sizes or quick:
                    chosen = tuple(sizes) or QUICK_SIZES
                    experiment = replace(experiment, sizes=chosen)
                times = min(repeats, QUICK_REPEATS) if quick else repeats
                results["experiments"].append(run_experiment(experiment, times, seed))
                write()
            if not found:
                results["skipped"][name] = f"it has no {' or '.join(tasks)} experiment"
        except MissingData as reason:
            results["skipped"][name] = str(reason)
        if name in results["skipped"]:
            print(f"{name} skipped: {results['skipped'][name]}", flush=True)
    write()
    return results


def versions() -> dict[str, str]:
    """Return the versions of what the figures depend on."""
    packages = ("vfl-flower", "flwr", "numpy", "scipy", "scikit-learn")
    return {"python": platform.python_version()} | {p: version(p) for p in packages}


def coreset_wins(experiment: Mapping[str, Any], least: int = 200) -> list[str]:
    """Return, a sentence a solver, at which sizes coreset beats uniform in the mean.

    Parameters
    ----------
    experiment : mapping
        One of ``experiments``.
    least : int
        Sizes below are left out.
    """
    sentences = []
    for solver in experiment["solvers"]:
        cells = {
            (cell["size"], cell["sampling"]): cell["cost"]
            for cell in experiment["cells"]
            if cell["solver"] == solver and (cell["size"] or 0) >= least
        }
        sizes = [m for m, s in cells if s == "coreset" and (m, "uniform") in cells]
        if not sizes:
            continue
        lost = [m for m in sizes if cells[m, "coreset"] >= cells[m, "uniform"]]
        where = (
            f"not at m = {', '.join(map(str, lost))}" if lost else "at every m shown"
        )
        sentences.append(f"C-{solver} below U-{solver} in the mean from {least}: ")
        sentences[-1] += where
    return sentences


def cost_table(experiment: Mapping[str, Any]) -> str:
    """Return the left halves of Table 1 of [1]: costs by solver, size and sampling."""
    cells = {
        (cell["solver"], cell["size"], cell["sampling"]): cell
        for cell in experiment["cells"]
    }
    header = ["solver", "m"]
    for sampling in DRAWN:
        letter = sampling[0].upper()
        header += [f"{letter} mean", f"{letter} std", f"{letter} / full (s.e.)"]
    header += ["repeats C, U"]
    header += ["printed C", "printed U"] if experiment["source"] else []
    rows = []
    for solver, size in dict.fromkeys((s, m) for s, m, _ in cells):
        row = [solver, "full" if size is None else str(size)]
        samplings = ("full", "") if size is None else DRAWN
        pair = [cells.get((solver, size, sampling)) for sampling in samplings]
        for cell in pair:
            row += (
                [
                    f"{cell['cost']:.5g}",
                    f"{cell['cost_std']:.2g}",
                    f"{cell['ratio']:.4f} ({cell['ratio_error']:.4f})",
                ]
                if cell
                else [""] * 3
            )
        row += [", ".join(str(cell["repeats"]) for cell in pair if cell)]
        if experiment["source"]:
            for cell in pair:
                printed = cell and cell["published"]
                row.append(f"{printed:.5g}" if printed else "")
        rows.append(row)
    return markdown_table(header, rows)


def communication_table(experiment: Mapping[str, Any]) -> str:
    """Return what each cell cost: units, bytes, round trips, seconds."""
    header = [
        "algorithm",
        "m",
        "units",
        "paper's formula",
        "kB up",
        "kB down",
        "round trips",
        "seconds",
        "of them parties",
    ]
    rows = []
    for cell in experiment["cells"]:
        letter = {"coreset": "C-", "uniform": "U-", "full": ""}[cell["sampling"]]
        formula = cell["paper_units"]
        rows.append(
            [
                letter + cell["solver"],
                str(cell["size"] or "full"),
                f"{cell['units']:,.0f}",
                "" if formula is None else f"{formula:,}",
                f"{cell['bytes_up'] / 1000:,.0f}",
                f"{cell['bytes_down'] / 1000:,.0f}",
                f"{cell['round_trips']:.4g}",
                f"{cell['seconds']:.3g}",
                f"{cell['seconds_parties']:.3g}",
            ]
        )
    return markdown_table(header, rows)


def seeding_table(experiments: Sequence[Mapping[str, Any]]) -> str:
    """Compare the two local clusterings, in the k-means experiments; "" without any."""
    rows = []
    for experiment in experiments:
        cells = {
            (cell["solver"], cell["size"]): cell
            for cell in experiment["cells"]
            if cell["sampling"] == "coreset"
        }
        for (solver, size), lloyd in cells.items():
            seeding = cells.get((f"{solver} (seeding)", size))
            if seeding is None:
                continue
            both = (lloyd, seeding)
            rows.append(
                [
                    experiment["name"],
                    str(size),
                    *(f"{c['ratio']:.4f} ({c['ratio_error']:.4f})" for c in both),
                    *(f"{c['seconds_parties']:.3g}" for c in both),
                    f"{lloyd['seconds_parties'] / seeding['seconds_parties']:.1f}",
                ]
            )
    header = ["", "m", "lloyd: C / full (s.e.)", "seeding: C / full (s.e.)"]
    header += ["lloyd: s at parties", "seeding: s at parties", "times faster"]
    return markdown_table(header, rows) if rows else ""


def markdown(results: Mapping[str, Any]) -> str:
    """Return the tables of all experiments as a page."""
    settings = results["settings"]
    used = ", ".join(f"{name} {v}" for name, v in results["versions"].items())
    lines = [
        "# Coresets: figures of the experiments",
        "",
        f"`python -m vfl_flower.simulations.coresets`, {settings['repeats']} repeats "
        f"unless a table says fewer, seeds from {settings['seed']}"
        + (", `--quick`" if settings["quick"] else "")
        + f"; {used}. How to read it: [coresets.md](coresets.md).",
        "",
        "C: coreset, U: uniform sample of m rows, std: sample standard deviation over "
        "the repeats, s.e.: standard error of the mean. `full` is the first solver "
        "on all rows. Units are scalars counted from the messages, beside the formula "
        "of the published code, which leaves out the labels of pooled rows; bytes are "
        "those that Flower serialises, masks included. Seconds are those of a whole "
        "run in one process, parties one after another.",
    ]
    for name, reason in results["skipped"].items():
        lines += ["", f"**{name}** was skipped: {reason}."]
    for experiment in results["experiments"]:
        T, d = len(experiment["widths"]), sum(experiment["widths"])
        lines += [
            "",
            f"## {experiment['name']}",
            "",
            f"n = {experiment['n']:,}, d = {d}, T = {T}; {experiment['note']}."
            + (f" Printed: {experiment['source']}." if experiment["source"] else ""),
            "",
            cost_table(experiment),
            "",
            *(f"{sentence}.  " for sentence in coreset_wins(experiment)),
            "",
            communication_table(experiment),
        ]
    table = seeding_table(results["experiments"])
    if table:
        lines += [
            "",
            "## k-means++ seeding instead of Lloyd's iteration at the parties",
            "",
            'KMEANS++ on the coreset with `local_clustering="lloyd"` and `"seeding"`; '
            "seconds are those that all parties computed, added up.",
            "",
            table,
        ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m vfl_flower.simulations.coresets",
        description="Reproduce the experiments of the coreset paper.",
    )
    parser.add_argument("--data", nargs="+", choices=LOADERS, default=list(LOADERS))
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[], metavar="M")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="small, to see it work")
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=os.environ.get("VFL_FLOWER_DATA") or None,
        help="folder of kc_house.npz and covtype.npz (default: VFL_FLOWER_DATA)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=None,
        help="folder of the results (default: in the user's data folder)",
    )
    args = parser.parse_args(arguments)
    if args.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {args.repeats}")
    if min(args.sizes, default=1) < 1:
        parser.error(f"--sizes must be at least 1, got {min(args.sizes)}")
    if args.output is None:
        from platformdirs import user_data_path

        args.output = user_data_path("vfl_flower") / "experiments"
    run_all(
        args.data,
        args.task,
        output=args.output,
        repeats=args.repeats,
        seed=args.seed,
        sizes=args.sizes,
        quick=args.quick,
        data_dir=args.data_dir,
    )
    print(f"results in {args.output.absolute()}")


if __name__ == "__main__":
    main()
