"""The experiments of the coreset paper: its Table 1 and the data of Figures 2 and 3.

All tables take about an hour, ``--quick`` some minutes::

    python -m simulations.coresets --datasets kc_house --tasks regression
    python -m simulations.coresets defaults --datasets made
    python -m simulations.coresets published --authors FOLDER

=========  =========================================================================
costs      the costs on coresets and uniform samples, and what is sent for them
defaults   the loss of ``CoresetVRLR`` at its defaults against least squares on pooled
           rows: the table of "Size of the coreset" in docs/papers/coresets-results.md
published  figures in the authors' files and in the paper; FOLDER is a clone
           of https://github.com/haoyuzhao123/coreset-vfl-codes
=========  =========================================================================

C-X is solver X on a coreset, U-X on a uniform sample of the same size. Repeat r of a
cell has seed ``--seed`` + r. Everything runs through
:func:`~vfl_flower.simulation.simulate` with masked sums; the cost of a model on all
rows (or on rows held out) is evaluated on pooled data outside of the run, which is not
communication.

=============  =====================================================================
flights        party files made by ``simulations.flights_files``; T = 3
kc_house       ``kc_house.npz`` with X (21613, 18) and the price y; T = 2
covtype        ``covtype.npz`` with X (581012, 54); T = 3
generated      a stand-in made here, of the size of YearPredictionMSD; T = 3 and 5
=============  =====================================================================

The npz files must be in ``--data-dir`` or the folder ``VFL_FLOWER_DATA``.

[1] L. Huang, Z. Li, J. Sun, H. Zhao, "Coresets for Vertical Federated Learning:
    Regularized Linear Regression and K-Means Clustering", NeurIPS 2022.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer
from platformdirs import user_cache_path

from simulations.experiments import (
    OUTPUT,
    Columns,
    DataDir,
    MissingData,
    OutputDir,
    Quick,
    Results,
    load_npz,
    new_app,
    some_of,
    standardise,
    table,
    tables_of,
    tell,
)
from simulations.flights_files import (
    AIRCRAFT,
    FLIGHTS,
    ID,
    LABEL,
    WEATHER,
    make_party_files,
)
from vfl_flower import Party, simulate
from vfl_flower.data import load_party
from vfl_flower.data.source import PartySource
from vfl_flower.models.base import Model
from vfl_flower.models.coresets import KMeansModel, LinearModel
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import assign
from vfl_flower.numerics.linear import Penalty, solve_pooled
from vfl_flower.numerics.split import split_rows
from vfl_flower.strategies.coresets.training import CoresetVKMC, CoresetVRLR
from vfl_flower.typing import Array

TASKS = ["regression", "k-means"]
QUICK_SIZES, QUICK_REPEATS, QUICK_ROWS = (200, 600), 2, 20_000
DRAWN = ("coreset", "uniform")
SIZES = (1000, 2000, 3000, 4000, 5000, 6000)


# --- Cells of a table -----------------------------------------------------------------


@dataclass(frozen=True)
class Solver:
    """A solver of a table."""

    arguments: dict[str, Any] = field(default_factory=dict)  # of the strategy
    samplings: tuple[str, ...] = ("full", *DRAWN)
    repeats: int = 1000  # at most


@dataclass(frozen=True)
class Experiment:
    """One table: a data set, a task, its solvers."""

    name: str
    note: str  # how the data were prepared
    task: str  # "regression": CoresetVRLR, or "k-means": CoresetVKMC
    data: Columns
    arguments: dict[str, Any]  # of the strategy, for all solvers
    solvers: Mapping[str, Solver]  # by their names in the table
    sizes: tuple[int, ...] = SIZES
    full_starts: int = 10  # of k-means on all rows at the server

    def strategy(
        self, solver: str, sampling: str, size: int
    ) -> CoresetVRLR | CoresetVKMC:
        """Return the strategy of one cell."""
        arguments = self.arguments | self.solvers[solver].arguments
        arguments |= {"size": size, "sampling": sampling}
        if self.task == "k-means" and sampling == "full":
            arguments |= {"n_init": self.full_starts}
        make = CoresetVRLR if self.task == "regression" else CoresetVKMC
        return make(**arguments)

    def most_repeats(self, solver: str, sampling: str) -> int:
        """Return how often a cell may be repeated; a fit on all rows draws nothing."""
        if sampling == "full":
            return 1 if self.task == "regression" else 3
        return self.solvers[solver].repeats

    def cost(self, model: Model) -> float:
        """Return the test loss, or the cost per row on all rows if none is held out.

        It is evaluated on pooled data, which is not part of the run.
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

    On m `rows` (n without sampling) at T parties of d_j columns (`widths`), drawing
    takes T + 3mT units for a coreset and mT for a uniform sample; solving takes m d for
    central, k d + mT for distdim, and 2mT + 3T for each of the `draws` of saga. The
    paper has no cg and no gram: None.

    Examples
    --------
    C-CENTRAL of YearPredictionMSD at m = 1000 in Table 1 of [1] is 9.9e4:

    >>> paper_units("coreset", "central", 1000, [30, 30, 30], 0, 0)
    99003
    """
    T, d = len(widths), sum(widths)
    if solver in ("cg", "gram"):
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
    """Run one cell of a table."""
    strategy = experiment.strategy(solver, sampling, size)
    runs: list[dict[str, float]] = []
    for r in range(repeats):
        start = time.process_time()
        result = simulate(strategy, parties, seed=seed + r)
        seconds = time.process_time() - start
        ledger = result.ledger
        runs.append(
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
    means = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    costs = [run["cost"] for run in runs]
    m = None if sampling == "full" else size
    draws = means.get("metric_iterations", 0.0) * getattr(strategy, "batch_size", 0)
    return {
        "solver": solver,
        "sampling": sampling,
        "size": m,
        "repeats": repeats,
        **means,
        "cost_std": float(np.std(costs, ddof=1)) if repeats > 1 else 0.0,
        "costs": costs,
        "paper_units": paper_units(
            sampling,
            strategy.solver,
            m or len(experiment.data.X),
            experiment.data.widths,
            getattr(strategy, "n_clusters", 0),
            round(draws),
        ),
    }


def run_experiment(experiment: Experiment, repeats: int, seed: int) -> dict[str, Any]:
    """Run all cells of a table, each `repeats` times if it may be repeated."""
    data, parties = experiment.data, experiment.data.parties()
    cells: list[dict[str, Any]] = []
    for solver, settings in experiment.solvers.items():
        for sampling in settings.samplings:
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
        "cells": cells,
    }


# The solvers of [1], and two of this package: CG, and k-means++ seeding alone.
REGRESSION = {
    "CENTRAL": Solver({"solver": "central"}),
    "CG": Solver({"solver": "cg", "allow_two_parties": True}, repeats=3),
}
SAGA = Solver(
    {"solver": "saga", "batch_size": 250, "max_iter": 60, "tol": 1e-3}, DRAWN, 15
)
CLUSTERING = {
    "KMEANS++": Solver(),
    "KMEANS++ (seeding)": Solver({"local_clustering": "seeding"}, ("coreset",)),
    "DISTDIM": Solver({"solver": "distdim"}),
}


# --- The data ---------------------------------------------------------------------


def _kc_house(folder: Path | None, quick: bool) -> Iterator[Experiment]:
    """King County house sales, T = 2, nine columns each, as in the published code."""
    X, y = load_npz(folder, "kc_house")
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
    )
    yield Experiment(
        name="kc_house, k-means, k = 5",
        note="standardised columns; cost: squared distance a row, all rows",
        task="k-means",
        data=Columns(standardise(X.copy()), (9, 9)),
        arguments={"n_clusters": 5},
        solvers=CLUSTERING,
        sizes=sizes,
    )


BY_OWNER = {
    "1_airline.parquet": FLIGHTS,
    "2_weather.parquet": WEATHER,
    "3_registry.parquet": AIRCRAFT,
}
"""The columns of the flights, by party."""


def _flights(folder: Path | None, quick: bool) -> Iterator[Experiment]:
    """Flights from New York: an airline (labels), a weather service, a registry."""
    try:
        files = make_party_files(user_cache_path("vfl_flower") / "flights", BY_OWNER)
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
    X = np.hstack([np.vstack(list(party.rows.blocks())) for party in parties])
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
        data=Columns(standardise(X.copy()), widths),
        arguments={"n_clusters": 10},
        solvers=CLUSTERING,
    )


def _covtype(folder: Path | None, quick: bool) -> Iterator[Experiment]:
    """Forest cover types, T = 3, 18 columns each."""
    X, _ = load_npz(folder, "covtype")
    X = _thinned(X, quick)
    standardise(X[:, :10])
    for k in (10, 15):
        yield Experiment(
            name=f"covtype, k-means, k = {k}",
            note="10 standardised columns, 44 columns of 0 and 1 as they are; cost: "
            "squared distance a row, all rows",
            task="k-means",
            data=Columns(X, (18, 18, 18)),
            arguments={"n_clusters": k},
            solvers=CLUSTERING,
            full_starts=2,
        )


_PENALTIES: dict[str, dict[str, Any]] = {
    "ridge": {"regularizer": "ridge", "alpha": 0.1},
    "none": {},
    "lasso": {"regularizer": "lasso", "alpha": 2.0},
    "elastic net": {"regularizer": "elasticnet", "alpha": 3.0, "l1_ratio": 2 / 3},
}


def generate(n: int, d: int, seed: int) -> tuple[Array, Array]:
    """Return data with clusters, correlated columns and heavy tails, X and y.

    x = c (mu + f) L + e: 12 clusters of unequal size in 15 factors f, loadings L that
    all columns share, so that columns of different parties are correlated, and noise e
    of half their size; c is the scale of a t distribution with 4 degrees of freedom. y
    is a linear function of the scaled factors (standard deviation 5), a product of two
    that no linear model can fit (2), and t-distributed noise (9).
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
    """Make a stand-in for YearPredictionMSD, of its size: 90 columns, T = 3 and 5."""
    n, n_test = (QUICK_ROWS, 2000) if quick else (463_715, 51_630)
    X, y = generate(n + n_test, 90, seed=0)
    standardise(X)
    test = (X[n:], y[n:])
    made = (
        "made by `generate`: 12 unequal clusters in 15 factors that all columns share, "
        "each row scaled as a t distribution with 4 degrees of freedom"
    )
    for T in (3, 5):
        data = Columns(X[:n], (90 // T,) * T, y[:n], test=test)
        for name, arguments in _PENALTIES.items():
            # CG gives the model of CENTRAL, however many parties: once is enough.
            solvers = dict(REGRESSION if T == 3 else {"CENTRAL": REGRESSION["CENTRAL"]})
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
            )
        for k in (10, 5, 15) if T == 3 else (10,):
            yield Experiment(
                name=f"generated, T = {T}, k-means, k = {k}",
                note=f"{made}, standardised; cost: squared distance a row, these rows",
                task="k-means",
                data=replace(data, y=None, test=None),
                arguments={"n_clusters": k},
                solvers=CLUSTERING,
                sizes=(1000, 3000, 6000),
                full_starts=2,
            )


LOADERS: dict[str, Callable[[Path | None, bool], Iterator[Experiment]]] = {
    "flights": _flights,
    "kc_house": _kc_house,
    "covtype": _covtype,
    "generated": _generated,
}


def _thinned(rows: Array, quick: bool) -> Array:
    return rows[:: max(1, len(rows) // QUICK_ROWS)] if quick else rows


# --- The page -----------------------------------------------------------------------


def coreset_wins(experiment: Mapping[str, Any], least: int = 200) -> list[str]:
    """Return a sentence per solver: the sizes at which the coreset has the lower mean.

    Sizes below `least` are left out.
    """
    sentences = []
    for solver in experiment["solvers"]:
        coreset, uniform = (
            {
                cell["size"]: cell["cost"]
                for cell in experiment["cells"]
                if (cell["solver"], cell["sampling"]) == (solver, sampling)
                and cell["size"] >= least
            }
            for sampling in DRAWN
        )
        lost = [str(m) for m in coreset if m in uniform and coreset[m] >= uniform[m]]
        if both := coreset.keys() & uniform.keys():
            where = " at every m shown"
            if lost:
                where = f", but not at m = {', '.join(lost)}"
            if len(lost) == len(both):
                where = " at no m shown"
            sentences.append(
                f"From m = {least} on, the mean of C-{solver} is below that of "
                f"U-{solver}{where}"
            )
    return sentences


Cell = Mapping[str, Any]


def in_short(experiments: Sequence[Mapping[str, Any]]) -> str:
    """Summarise all cells with a coreset and a sample."""
    pairs = [pair for experiment in experiments for pair in _pairs(experiment)]
    if not pairs:
        return ""
    lower = sum(C["cost"] < U["cost"] for C, U in pairs)
    clear = sum(
        U["ratio"] - C["ratio"] > 2 * np.hypot(C["ratio_error"], U["ratio_error"])
        for C, U in pairs
    )
    points = [
        f"- **Coreset against uniform sample.** The coreset has the lower mean cost in "
        f"{lower} of {len(pairs)} cells (a solver and a size m), and in {clear} by "
        "more than two standard errors of the difference."
    ]
    of_size: dict[int, list[tuple[Cell, Cell]]] = {}
    for C, U in pairs:
        of_size.setdefault(C["size"], []).append((C, U))
    for m in sorted({min(of_size), max(of_size)}):
        costs = [
            [cell["ratio"] for cell in side] for side in zip(*of_size[m], strict=True)
        ]
        medians = [f"{np.median(ratios):.3f}" for ratios in costs]
        most = [f"{max(ratios):.3f}" for ratios in costs]
        points.append(
            f"- **m = {m}.** The mean cost is {medians[0]} times that of all rows with "
            f"the coreset, and {medians[1]} times with the uniform sample (the median "
            f"over {len(of_size[m])} pairs of a solver and a data set; at most "
            f"{most[0]} and {most[1]})."
        )
    return "\n".join(points)


def _pairs(experiment: Mapping[str, Any]) -> Iterator[tuple[Cell, Cell]]:
    """Yield the cells of each solver and size with a coreset and a sample."""
    cells = {
        (cell["solver"], cell["size"], cell["sampling"]): cell
        for cell in experiment["cells"]
    }
    for (solver, size, sampling), cell in cells.items():
        if sampling == "coreset" and (U := cells.get((solver, size, "uniform"))):
            yield cell, U


def ratio(cell: Mapping[str, Any]) -> str:
    """Return the cost over that of all rows, and its standard error."""
    return f"{cell['ratio']:.4f} ({cell['ratio_error']:.4f})"


def cost_table(experiment: Mapping[str, Any]) -> str:
    """Return the left halves of Table 1 of [1]: costs by solver, size and sampling."""
    figures = ("mean", "std", "/ full (s.e.)")
    header = ["solver", "m"] + [f"{letter} {k}" for letter in "CU" for k in figures]
    header += ["repeats C, U"]
    rows: dict[tuple[str, int | None], dict[str, str]] = {}
    for cell in experiment["cells"]:
        row = rows.setdefault(
            (cell["solver"], cell["size"]),
            dict.fromkeys(header, "")
            | {"solver": cell["solver"], "m": str(cell["size"] or "full")},
        )
        letter = "U" if cell["sampling"] == "uniform" else "C"
        texts = f"{cell['cost']:.5g}", f"{cell['cost_std']:.2g}", ratio(cell)
        row |= {f"{letter} {k}": text for k, text in zip(figures, texts, strict=True)}
        before = row["repeats C, U"]
        row["repeats C, U"] = f"{before}, " * bool(before) + str(cell["repeats"])
    return table(rows.values())


def communication_table(experiment: Mapping[str, Any]) -> str:
    """Return the costs of each cell: units, bytes, round trips, seconds."""
    letters = {"coreset": "C-", "uniform": "U-", "full": ""}
    return table(
        {
            "algorithm": letters[cell["sampling"]] + cell["solver"],
            "m": str(cell["size"] or "full"),
            "units": f"{cell['units']:,.0f}",
            "paper's formula": f"{n:,}" if (n := cell["paper_units"]) else "",
            "kB up": f"{cell['bytes_up'] / 1000:,.0f}",
            "kB down": f"{cell['bytes_down'] / 1000:,.0f}",
            "round trips": f"{cell['round_trips']:.4g}",
            "CPU seconds": f"{cell['seconds']:.3g}",
            "parties, elapsed": f"{cell['seconds_parties']:.3g}",
        }
        for cell in experiment["cells"]
    )


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
            if (seeding := cells.get((f"{solver} (seeding)", size))) is None:
                continue
            seconds = lloyd["seconds_parties"], seeding["seconds_parties"]
            rows.append(
                {
                    "": experiment["name"],
                    "m": str(size),
                    "lloyd: C / full (s.e.)": ratio(lloyd),
                    "seeding: C / full (s.e.)": ratio(seeding),
                    "lloyd: seconds": f"{seconds[0]:.3g}",
                    "seeding: seconds": f"{seconds[1]:.3g}",
                    "times faster": f"{seconds[0] / seconds[1]:.1f}",
                }
            )
    return table(rows)


def page(experiments: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the summary, and the tables of all experiments."""
    if text := in_short(experiments):
        yield "## In short"
        yield text
    for experiment in experiments:
        widths = experiment["widths"]
        yield f"## {experiment['name']}"
        yield (
            f"n = {experiment['n']:,}, d = {sum(widths)}, T = {len(widths)}; "
            f"{experiment['note']}."
        )
        yield cost_table(experiment)
        yield "\n".join(f"{sentence}.  " for sentence in coreset_wins(experiment))
        yield communication_table(experiment)
    if seeding := seeding_table(experiments):
        yield "## k-means++ seeding instead of Lloyd's iteration at the parties"
        yield seeding


# --- Defaults -------------------------------------------------------------------------

FILES = ["kc_house", "protein", "pol", "covtype15k", "mushrooms", "give_credit"]
DEFAULTS = ["made", "flights", *FILES]
"""Data sets of the table of defaults."""


def made(n: int = 12_000, seed: int = 0) -> tuple[Array, Array]:
    """Return 18 columns like the columns of the set elevators, and labels.

    Two columns are constant except in one common row, and a third except in five rows.
    In the common row three other columns are 300 deviations off, and the labels do not
    follow them.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 18)) @ rng.normal(size=(18, 18))
    X[:, [2, 8, 14]] = 0.0
    y = X @ rng.normal(size=18) + 5 * rng.normal(size=n)
    X[7, [2, 8]] = -1e-3, 400.0
    X[[7, 70, 700, 1700, 2700], 14] = 1.0
    X[7, [0, 7, 13]] += 300 * X[:, [0, 7, 13]].std(axis=0)
    return X, y


def columns(name: str, folder: Path | None) -> Columns:
    """Return a data set, split over three parties."""
    if name == "flights":
        return next(LOADERS[name](folder, False)).data
    X, y = made() if name == "made" else load_npz(folder, name)
    X = np.where(np.isnan(X), np.nanmean(X, axis=0), X)
    d = X.shape[1]
    return Columns(X, tuple(len(part) for part in np.array_split(np.arange(d), 3)), y)


def loss_ratio(data: Columns, strategy: CoresetVRLR, seeds: int) -> float:
    """Return the median loss of runs with different seeds, over the optimum."""
    assert data.y is not None
    ones = np.ones(len(data.X))
    theta, b = solve_pooled(data.X, data.y, ones, len(ones), Penalty(), True)
    X, y = data.test or (data.X, data.y)
    parties = data.parties()
    models = [
        cast(LinearModel, simulate(strategy, parties, seed=seed).model)
        for seed in range(seeds)
    ]
    errors = [X @ theta + b - y] + [m.predict(data.split(X)) - y for m in models]
    best, *losses = (np.square(error).mean() for error in errors)
    return float(np.median(losses) / best)


def defaults(names: Sequence[str], folder: Path | None, repeats: int) -> str:
    """Return the table of the size of coresets in docs/papers/coresets-results.md."""
    rows = []
    for name in names:
        data = columns(name, folder)
        n, d = data.X.shape
        runs = {
            "default": (CoresetVRLR("auto"), repeats if n > max(2000, 50 * d) else 1),
            "1,000 rows": (CoresetVRLR(1000), repeats),
            "all rows": (CoresetVRLR("auto", sampling="full"), 1),
        }
        row = {"data": name, "rows x columns": f"{n:,} x {d}"}
        row |= {what: f"{loss_ratio(data, *run):.4f}" for what, run in runs.items()}
        tell(str(row))
        rows.append(row)
    return table(rows)


# --- The authors' files -------------------------------------------------------------

KC_SIZES = (100, 200, 300, 400, 500, 600)

AUTHORS: dict[str, tuple[str, str, tuple[int, ...], tuple[str, ...]]] = {
    "YearPredictionMSD, ridge, T = 3": (
        *("regression", "ridge-res/ridge-{solver}{drawn}-test.npy", SIZES),
        ("CENTRAL", "SAGA"),
    ),
    "YearPredictionMSD, ridge, T = 5": (
        *("regression", "ridge/ridge-{solver}{drawn}5p-test.npy", SIZES),
        ("CENTRAL", "SAGA"),
    ),
    "YearPredictionMSD, linear, T = 3": (
        *("regression", "lr/lr-{solver}{drawn}-test.npy", SIZES),
        ("CENTRAL", "SAGA"),
    ),
    "YearPredictionMSD, lasso, T = 3": (
        *("regression", "lasso/lasso-{solver}{drawn}-test.npy", SIZES),
        ("CENTRAL",),
    ),
    "YearPredictionMSD, elastic net, T = 3": (
        *("regression", "en/en-{solver}{drawn}-test.npy", SIZES),
        ("CENTRAL",),
    ),
    **{
        f"YearPredictionMSD, k-means, k = {k}, T = {T}": (
            *("k-means", f"{folder}/{{solver}}{{drawn}}-{k}c{{size}}{end}.npy", SIZES),
            ("KMEANS++", "DISTDIM"),
        )
        for k, T, folder, end in (
            (10, 3, "kmeans-res", ""),
            (10, 5, "kmeans", "5p"),
            (5, 3, "kmeans", ""),
            (15, 3, "kmeans", ""),
        )
    },
    "kc_house, linear, T = 2 (training rows)": (
        *("regression", "ridge-kc/ridge-{solver}{drawn}-train.npy", KC_SIZES),
        ("CENTRAL", "SAGA"),
    ),
    "kc_house, k-means, k = 5, T = 2": (
        *("k-means", "kmeans/kc-{solver}{drawn}-5c{size}.npy", KC_SIZES),
        ("KMEANS++", "DISTDIM"),
    ),
}
"""The task, the names of files, the sizes m and the solvers of each table."""

NAMES = {
    **{"CENTRAL": "centralized", "SAGA": "saga"},
    **{"KMEANS++": "kmeans", "DISTDIM": "distkmeans"},
}

PRINTED: dict[str, dict[tuple[str, str], tuple[float, ...]]] = {
    "YearPredictionMSD, ridge, T = 3": {
        ("CENTRAL", "full"): (90.45,),
        ("CENTRAL", "coreset"): (100.50, 95.01, 93.39, 92.73, 92.42, 91.97),
        ("CENTRAL", "uniform"): (108.79, 99.65, 96.68, 95.32, 94.08, 93.54),
        ("SAGA", "coreset"): (105.93, 99.55, 97.13, 95.90, 94.75, 94.83),
        ("SAGA", "uniform"): (110.43, 102.96, 100.64, 99.10, 97.64, 96.88),
    },
    "YearPredictionMSD, k-means, k = 10, T = 3": {
        ("KMEANS++", "full"): (71.65,),
        ("KMEANS++", "coreset"): (73.76, 72.68, 72.23, 72.14, 71.97, 71.92),
        ("KMEANS++", "uniform"): (74.91, 73.52, 73.25, 72.74, 72.54, 72.57),
        ("DISTDIM", "full"): (74.89,),
        ("DISTDIM", "coreset"): (77.75, 76.82, 75.52, 75.49, 75.27, 75.32),
        ("DISTDIM", "uniform"): (78.87, 78.13, 77.85, 76.70, 76.38, 76.44),
    },
}
"""Means in Table 1 of [1], in the order of the sizes."""


def file_of(task: str, pattern: str, solver: str, sampling: str, m: int | None) -> str:
    """Return the name of the authors' file of a cell, below ``res``.

    Examples
    --------
    >>> _, pattern, _, _ = AUTHORS["YearPredictionMSD, ridge, T = 3"]
    >>> file_of("regression", pattern, "SAGA", "uniform", 2000)
    'ridge-res/ridge-saga-u2000s-test.npy'
    >>> _, pattern, _, _ = AUTHORS["YearPredictionMSD, k-means, k = 10, T = 5"]
    >>> file_of("k-means", pattern, "DISTDIM", "coreset", 1000)
    'kmeans/distkmeans-coreset-10c1000s5p.npy'
    """
    if task == "regression":
        drawn, size = f"-{sampling[0]}{m}s" if m else "", ""
    else:
        drawn, size = f"-{sampling}" if m else "", f"{m}s" if m else ""
    return pattern.format(solver=NAMES[solver], drawn=drawn, size=size)


def figures_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return mean, sample standard deviation and runs of each cell, by table.

    ``printed`` is the mean in Table 1 of [1], or None. Cells without files are left
    out.
    """
    figures: dict[str, list[dict[str, Any]]] = {}
    for name, (task, pattern, sizes, solvers) in AUTHORS.items():
        figures[name] = []
        for solver in solvers:
            for sampling in ("full", "coreset", "uniform"):
                printed = PRINTED.get(name, {}).get((solver, sampling), ())
                for i, m in enumerate(sizes if sampling != "full" else [None]):
                    file = folder / file_of(task, pattern, solver, sampling, m)
                    if not file.is_file():
                        continue
                    values = np.load(file, allow_pickle=False)
                    figures[name].append(
                        {
                            **{"solver": solver, "sampling": sampling, "size": m},
                            "mean": float(values.mean()),
                            "std": float(values.std(ddof=1).round(9)),
                            "runs": len(values),
                            "printed": printed[i] if printed else None,
                        }
                    )
    return figures


def published_page(figures: Mapping[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield a table for each set and task."""
    yield "## What the paper prints, and the authors' files"
    for name, cells in figures.items():
        yield f"### {name}"
        rows: dict[tuple[str, int | None], dict[str, str]] = {}
        for cell in cells:
            row = rows.setdefault(
                (cell["solver"], cell["size"]),
                {"solver": cell["solver"], "m": str(cell["size"] or "full")},
            )
            letter = "U" if cell["sampling"] == "uniform" else "C"
            row[f"authors' files {letter} (std)"] = (
                f"{cell['mean']:.5g} ({cell['std']:.2g})"
            )
            if cell["printed"] is not None:
                row[f"printed {letter}"] = f"{cell['printed']:.2f}"
        yield table(rows.values())


# --- The command --------------------------------------------------------------------

app = new_app()
DATASETS = list(LOADERS)
TABLES = ("costs", "defaults", "published")


@app.command()
def main(
    context: typer.Context,
    tables: Annotated[list[str] | None, tables_of(TABLES)] = None,
    datasets: Annotated[
        list[str] | None,
        some_of(dict.fromkeys([*DATASETS, *DEFAULTS]), "Data sets; default: all."),
    ] = None,
    tasks: Annotated[list[str], some_of(TASKS, "Tasks.")] = TASKS,
    sizes: Annotated[
        list[int] | None, typer.Option(min=1, help="m; default: of each experiment.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Of each cell: 20, of defaults 7.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the first repeat.")] = 0,
    authors: Annotated[
        Path | None, typer.Option(help="Clone of the authors' repository.")
    ] = None,
    quick: Quick = False,
    data_dir: DataDir = None,
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Reproduce the experiments of the coreset paper; TABLE is costs by default.

    The page is written after each experiment, whole or not at all.
    """
    for name in tables or ["costs"]:
        if name == "published":
            if authors is None or not (authors / "res").is_dir():
                raise MissingData(f"there is no folder res in {authors}")
            results = Results(context, "coresets", name)
            figures = figures_of(authors / "res")
            results.write(figures, published_page(figures))
        elif name == "defaults":
            tell(defaults(datasets or DEFAULTS, data_dir, repeats or 7))
        else:
            times = min(repeats or 20, QUICK_REPEATS) if quick else repeats or 20
            seeds = f"{times} repeats unless a table says fewer, seeds from {seed}"
            title = "Coresets: figures of the experiments"
            results = Results(context, "coresets", title=title, seeds=seeds)
            chosen = datasets or DATASETS
            measured: list[dict[str, Any]] = []
            for dataset in chosen:
                with results.skipping(dataset, chosen):
                    count = len(measured)
                    for experiment in LOADERS[dataset](data_dir, quick):
                        if experiment.task in tasks:
                            ms = sizes or (QUICK_SIZES if quick else experiment.sizes)
                            experiment = replace(experiment, sizes=tuple(ms))
                            measured.append(run_experiment(experiment, times, seed))
                            results.write(measured, page(measured))
                    if len(measured) == count:
                        raise MissingData(f"it has no {' or '.join(tasks)} experiment")
            results.write(measured, page(measured))
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.coresets")
