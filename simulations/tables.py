"""The tables of the coreset experiments: their cells and their costs.

The data sets and the command line are in :mod:`simulations.coresets`. Everything runs
through :func:`~vfl_flower.simulation.simulate` with masked sums; the cost of a model on
all rows (or on rows held out) is evaluated on pooled data outside of the run, which is
not communication.

[1] L. Huang, Z. Li, J. Sun, H. Zhao, "Coresets for Vertical Federated Learning:
    Regularized Linear Regression and K-Means Clustering", NeurIPS 2022.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulations.experiments import Columns, table, tell
from vfl_flower import Party, simulate
from vfl_flower.models.base import Model
from vfl_flower.models.coresets import KMeansModel, LinearModel
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import assign
from vfl_flower.strategies.coresets import CoresetVKMC, CoresetVRLR

DRAWN = ("coreset", "uniform")
SIZES = (1000, 2000, 3000, 4000, 5000, 6000)

"""Mean costs by solver and sampling, and by size m (None: of "full")."""


@dataclass(frozen=True)
class Solver:
    """A solver of a table.

    Attributes
    ----------
    arguments : dict
        Arguments of the strategy.
    samplings : tuple of str
        Those of full, coreset, uniform with which the solver is run.
    repeats : int
        Largest number of repeats.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    samplings: tuple[str, ...] = ("full", *DRAWN)
    repeats: int = 1000


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
        Arguments of the strategy, for all solvers.
    solvers : mapping of str to Solver
        Solvers by their names in the table.
    sizes : tuple of int
        m.
    full_starts : int
        Starts of k-means on all rows at the server.
    """

    name: str
    note: str
    task: str
    data: Columns
    arguments: dict[str, Any]
    solvers: Mapping[str, Solver]
    sizes: tuple[int, ...] = SIZES
    full_starts: int = 10

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
        """Return the test loss, or the cost a row on all rows where none is held out.

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
    paper has no cg and no moments: None.

    Examples
    --------
    C-CENTRAL of YearPredictionMSD at m = 1000 in Table 1 of [1] is 9.9e4:

    >>> paper_units("coreset", "central", 1000, [30, 30, 30], 0, 0)
    99003
    """
    T, d = len(widths), sum(widths)
    if solver in ("cg", "moments"):
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
        ``cost`` and ``cost_std`` (mean and sample standard deviation) of the repeats,
        whose ``costs`` are listed; means of ``units``, ``bytes_up``, ``bytes_down``,
        ``round_trips``, ``seconds``, and of each metric of the run; ``paper_units``.
    """
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
    """Run all cells of a table, each `repeats` times where it may be repeated.

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


# --- The page -----------------------------------------------------------------------


def coreset_wins(experiment: Mapping[str, Any], least: int = 200) -> list[str]:
    """Return one sentence a solver: at which sizes coreset beats uniform in the mean.

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
    """Return what a reader should take away, of all cells of a coreset and a sample."""
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
    """Yield the cells of each solver and size that has a coreset and a sample."""
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
    """Return what each cell cost: units, bytes, round trips, seconds."""
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
    """Yield what to take away, how to read the tables, and those of all experiments."""
    if text := in_short(experiments):
        yield "## In short"
        yield text
    yield (
        "C: coreset, U: uniform sample of m rows, std: sample standard deviation over "
        "the repeats, s.e.: standard error of the mean. `full` is the first solver "
        "on all rows. Units are scalars counted from the messages, beside the formula "
        "of the published code, which leaves out the labels of pooled rows; bytes are "
        "those that Flower serialises, masks included. CPU seconds are those of a "
        "whole run in one process, parties one after another; beside them is the time "
        "that passed while the parties computed."
    )
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
        yield (
            'KMEANS++ on the coreset with `local_clustering="lloyd"` and `"seeding"`; '
            "seconds are the time that passed while the parties computed, added up."
        )
        yield seeding
