"""The tables of the experiments with coresets: their cells and their costs.

The data sets and the command line are in :mod:`vfl_flower.simulations.coresets`.
Everything runs through
:func:`~vfl_flower.simulations.simulate` with masked sums; the cost of a model on all
rows (or on rows held out) is evaluated on pooled data outside of the run, which is not
communication.

[1] L. Huang, Z. Li, J. Sun, H. Zhao, "Coresets for Vertical Federated Learning:
    Regularized Linear Regression and K-Means Clustering", NeurIPS 2022.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vfl_flower.clients.base import Party
from vfl_flower.models import KMeansModel, LinearModel, Model
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import assign
from vfl_flower.report import markdown_table
from vfl_flower.simulations.experiments import Columns
from vfl_flower.simulations.in_process import simulate
from vfl_flower.strategies.coresets import CoresetVKMC, CoresetVRLR
from vfl_flower.strategies.sampling import SAMPLINGS

DRAWN = ("coreset", "uniform")
SIZES = (1000, 2000, 3000, 4000, 5000, 6000)


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
