"""Coresets by ridge scores, and for logistic regression, beside uniform samples.

Ten minutes, ``--quick`` some seconds::

    python -m simulations.coreset_scores
    python -m simulations.coreset_scores --datasets a9a --repeats 5

Each data set has a table for each strength of the penalty. Repeat r of a cell has seed
``--seed`` + r and runs through :func:`~vfl_flower.simulation.simulate`; the objective
of its model on all rows is evaluated on pooled data outside of the run.

===================  ===============================================================
kc_house             ridge regression; ``kc_house.npz``; T = 2
generated            ridge regression; made by :func:`simulations.coresets.generate`
a9a, cod_rna,        logistic regression; npz files; T = 3
ijcnn1
generated classes    logistic regression; made here of the same; T = 3
rare readings        logistic regression; made by :func:`rare_readings`; T = 3
===================  ===============================================================

[1] "Improved Coresets for Vertical Federated Learning: Regularized Linear and Logistic
    Regressions", ICML 2025.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from simulations.coresets import generate
from simulations.experiments import (
    OUTPUT,
    Columns,
    DataDir,
    OutputDir,
    Quick,
    Results,
    load_npz,
    new_app,
    some_of,
    standard_error,
    standardise,
    table,
    tell,
)
from vfl_flower import CoresetVLogistic, CoresetVRLR, simulate
from vfl_flower.models.base import Model
from vfl_flower.models.coresets import LinearModel, LogisticModel
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import leverage_factor, leverage_scores
from vfl_flower.numerics.linear import mean_squared_error
from vfl_flower.numerics.logistic import log_losses
from vfl_flower.typing import Array

SIZES = (200, 500, 1000, 2000, 4000)
QUICK_SIZES, QUICK_REPEATS, QUICK_ROWS = (200, 1000), 2, 10_000
RIDGE = (0.1, 1.0, 10.0)
"""Strengths of the ridge penalty; columns and labels have standard deviation 1."""
LOGISTIC = (1e-4, 1e-2)

METHODS: dict[str, dict[str, Any]] = {
    "ridge scores": {"scores": "ridge"},
    "leverage scores": {},
    "uniform": {"sampling": "uniform"},
}
CLASS_METHODS: dict[str, dict[str, Any]] = {
    "coreset": {},
    "uniform": {"sampling": "uniform"},
}


@dataclass(frozen=True)
class Problem:
    """A data set, a penalty and the ways to draw rows.

    Attributes
    ----------
    name, note : str
        Of the data set, and how it was made ready.
    data : Columns
        The data, with labels.
    alpha : float
        Strength of the penalty.
    classes : bool
        Logistic regression, or ridge.
    """

    name: str
    note: str
    data: Columns
    alpha: float
    classes: bool

    @property
    def methods(self) -> dict[str, dict[str, Any]]:
        """Arguments of the strategy, by the way to draw rows."""
        return CLASS_METHODS if self.classes else METHODS

    def strategy(self, **arguments: Any) -> CoresetVRLR | CoresetVLogistic:
        """Return the strategy of one cell."""
        if self.classes:
            return CoresetVLogistic(alpha=self.alpha, **arguments)
        return CoresetVRLR(
            solver="central", regularizer="ridge", alpha=self.alpha, **arguments
        )

    def objective(self, model: Model) -> float:
        """Return the mean loss of a model on all rows, and the penalty."""
        assert isinstance(model, LinearModel)
        X, y = self.data.split(self.data.X), self.data.y
        assert y is not None
        if isinstance(model, LogisticModel):
            positive = y == model.classes_[1]
            loss = float(log_losses(model.decision_function(X), positive).mean())
        else:
            loss = mean_squared_error(model.predict(X) - y, None, len(y))
        return loss + self.alpha * sum(float(theta @ theta) for theta in model.coef_)

    def effective_columns(self) -> float:
        """Return the sum over parties of the ridge leverage scores of their columns."""
        total = 0.0
        for X in self.data.split(self.data.X):
            blocks = RowBlocks(X)
            penalty = np.full(X.shape[1], len(X) * self.alpha)
            factor = leverage_factor(blocks, penalty=penalty)
            total += float(leverage_scores(blocks, factor).sum())
        return total


# --- The data ---------------------------------------------------------------------


def rare_readings(n: int, seed: int) -> tuple[Array, Array]:
    """Return rows with readings that are nearly constant but for few rows, and classes.

    Parameters
    ----------
    n : int
        Number of rows.
    seed : int
        Seed of the data.

    Returns
    -------
    X : Array, shape (n, 24)
        12 normal columns, and 12 of noise (standard deviation 0.01) in which a share of
        0.0005 to 0.005 of the rows has normal values of standard deviation 3.
    y : Array, shape (n,)
        0 or 1, by a logistic model in which a column counts 0.3 to either side.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, n]))
    large = rng.random((n, 12)) < np.geomspace(0.0005, 0.005, 12)
    readings = rng.standard_normal((n, 12)) * np.where(large, 3.0, 0.01)
    X = np.hstack([rng.standard_normal((n, 12)), readings])
    odds = X @ (0.3 * rng.choice([-1.0, 1.0], 24))
    return X, (odds + rng.logistic(size=n) > 0).astype(np.float64)


def _split(d: int, parties: int) -> tuple[int, ...]:
    """Return how many columns each party has, as nearly equal as can be."""
    return tuple(len(part) for part in np.array_split(np.arange(d), parties))


def _load(name: str, folder: Path | None, quick: bool) -> tuple[Columns, str, bool]:
    """Return a data set, how it was made ready, and whether it has classes."""
    n = QUICK_ROWS if quick else 60_000
    note, classes, T = "standardised columns", name not in ("kc_house", "generated"), 3
    if name == "rare readings":
        X, y = rare_readings(n, seed=0)
        note = "12 normal columns, 12 of noise but for 0.05 to 0.5 % of the rows"
    elif name.startswith("generated"):
        X, y = generate(n, 30 if classes else 90, seed=0)
        y = (y - np.median(y)) / y.std()
        if classes:
            even = np.random.default_rng(1).logistic(size=n)
            y = (3 * y + even > 0).astype(np.float64)
    else:
        X, y = load_npz(folder, name)
        T = 2 if name == "kc_house" else 3
        if quick:
            X, y = X[:QUICK_ROWS], y[:QUICK_ROWS]
    if name != "rare readings":
        standardise(X)
    if not classes:
        y = (y - y.mean()) / y.std()
        note += ", labels in units of their standard deviation"
    return Columns(X, _split(X.shape[1], T), y), note, classes


DATASETS = [
    *("kc_house", "generated", "a9a", "cod_rna", "ijcnn1"),
    *("generated classes", "rare readings"),
]


def problems(name: str, folder: Path | None, quick: bool) -> Iterator[Problem]:
    """Yield a data set with each strength of the penalty."""
    data, note, classes = _load(name, folder, quick)
    for alpha in LOGISTIC if classes else RIDGE:
        yield Problem(name, note, data, alpha, classes)


# --- The cells ----------------------------------------------------------------------


def measure(
    problem: Problem, sizes: Sequence[int], repeats: int, seed: int
) -> dict[str, Any]:
    """Run all cells of a table.

    Returns
    -------
    dict
        What the data are, ``full``, the lowest objective, and ``cells``: of each method
        and size ``excess``, the mean of the objective less the lowest one, and
        ``error``, the standard error of this mean.
    """
    parties = problem.data.parties()
    full = problem.objective(simulate(problem.strategy(sampling="full"), parties).model)
    cells = []
    for method, arguments in problem.methods.items():
        for m in sizes:
            strategy = problem.strategy(size=m, **arguments)
            excess = [
                problem.objective(simulate(strategy, parties, seed=seed + r).model)
                - full
                for r in range(repeats)
            ]
            cell = {"method": method, "size": m, "excess": float(np.mean(excess))}
            cells.append(cell | {"error": standard_error(excess), "excesses": excess})
        tell(
            f"{problem.name}, alpha {problem.alpha:g}, {method}: "
            + ", ".join(f"{c['excess']:.4g}" for c in cells[-len(sizes) :])
        )
    return {
        "name": problem.name,
        "note": problem.note,
        "classes": problem.classes,
        "n": len(problem.data.X),
        "widths": list(problem.data.widths),
        "alpha": problem.alpha,
        "effective_columns": problem.effective_columns(),
        "full": full,
        "cells": cells,
    }


# --- The page -----------------------------------------------------------------------


def _by_size(result: Mapping[str, Any]) -> dict[int, dict[str, Mapping[str, Any]]]:
    sizes: dict[int, dict[str, Mapping[str, Any]]] = {}
    for cell in result["cells"]:
        sizes.setdefault(cell["size"], {})[cell["method"]] = cell
    return sizes


def _clear(lower: Mapping[str, Any], higher: Mapping[str, Any]) -> bool:
    """Return whether a mean is below another by more than two standard errors."""
    error = float(np.hypot(lower["error"], higher["error"]))
    return bool(higher["excess"] - lower["excess"] > 2 * error)


def table_of(result: Mapping[str, Any]) -> str:
    """Return excesses in percent of the lowest objective, with standard errors."""
    rows = []
    for m, cells in _by_size(result).items():
        row = {"m": f"{m:,}"}
        for method, cell in cells.items():
            scale = 100 / result["full"]
            row[method] = f"{scale * cell['excess']:.2f} ({scale * cell['error']:.2f})"
        first, *others = cells.values()
        for other in others:
            key = f"{other['method']} / {first['method']}"
            row[key] = f"{other['excess'] / first['excess']:.2f}"
        rows.append(row)
    return table(rows)


def in_short(results: Sequence[Mapping[str, Any]]) -> str:
    """Return of each table in how many sizes the first method is clearly ahead."""
    lines = []
    for result in results:
        sizes = _by_size(result)
        first, *others = next(iter(sizes.values()))
        for other in others:
            pairs = [(cells[first], cells[other]) for cells in sizes.values()]
            ahead = sum(_clear(a, b) for a, b in pairs)
            behind = sum(_clear(b, a) for a, b in pairs)
            ratio = np.median([b["excess"] / a["excess"] for a, b in pairs])
            lines.append(
                {
                    "data": result["name"],
                    "alpha": f"{result['alpha']:g}",
                    "columns": str(sum(result["widths"])),
                    "effective": f"{result['effective_columns']:.1f}",
                    "compared": f"{other} / {first}",
                    "median ratio": f"{ratio:.2f}",
                    "ahead": f"{ahead} of {len(pairs)}",
                    "behind": f"{behind} of {len(pairs)}",
                }
            )
    return table(lines)


def page(results: Sequence[Mapping[str, Any]], repeats: int) -> Iterator[str]:
    """Yield how to read the tables, the comparison of all of them, and each."""
    yield "### All of these tables in short"
    yield (
        f"Each cell is the mean of {repeats} repeats: by how many percent the "
        "objective (the mean loss on all rows and the penalty) of the model is above "
        "the lowest one, with the standard error. `effective` is the sum over the "
        "parties of the ridge leverage scores of their columns. A ratio is that of two "
        "such means: 2 says that the first way is twice as far from the best model as "
        "the way under the stroke. This one is *ahead* or *behind* at the sizes at "
        "which it is closer or less close by more than two standard errors."
    )
    yield in_short(results)
    for result in results:
        widths = result["widths"]
        task = "logistic regression" if result["classes"] else "ridge regression"
        yield f"### {result['name']}, {task}, alpha = {result['alpha']:g}"
        yield (
            f"n = {result['n']:,}, d = {sum(widths)}, T = {len(widths)}; "
            f"{result['note']}; lowest objective {result['full']:.5g}."
        )
        yield table_of(result)


# --- The command --------------------------------------------------------------------

app = new_app()


@app.command()
def main(
    context: typer.Context,
    datasets: Annotated[list[str], some_of(DATASETS, "Data sets.")] = DATASETS,
    sizes: Annotated[
        list[int] | None, typer.Option(min=1, help="m; default: 200 to 4,000.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Of each cell.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of the first repeat.")] = 0,
    quick: Quick = False,
    data_dir: DataDir = None,
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Measure how far models of coresets and of uniform samples are from the best."""
    title = "Coresets by ridge scores, and for logistic regression"
    results = Results(
        context, "coreset_scores", title=title, seeds=f"seeds from {seed}"
    )
    measured: list[dict[str, Any]] = []
    times = min(repeats, QUICK_REPEATS) if quick else repeats
    chosen = sizes or (QUICK_SIZES if quick else SIZES)
    for name in datasets:
        with results.skipping(name, datasets):
            for problem in problems(name, data_dir, quick):
                measured.append(measure(problem, chosen, times, seed))
                results.write(measured, page(measured, times))
    results.write(measured, page(measured, times))
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.coreset_scores")
