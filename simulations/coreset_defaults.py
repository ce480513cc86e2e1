"""What the defaults of ``CoresetVRLR`` lose against least squares on pooled rows.

Two minutes::

    python -m simulations.coreset_defaults
    python -m simulations.coreset_defaults --datasets made

Three parties hold the columns, and the last one the labels. A loss is the mean squared
error on all rows of training, or of flights on the rows held out, over that of least
squares on all rows of training, pooled. Missing values are the means of their columns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import numpy as np
import typer

from simulations.coresets import LOADERS
from simulations.experiments import (
    Columns,
    DataDir,
    load_npz,
    new_app,
    some_of,
    table,
    tell,
)
from vfl_flower import CoresetVRLR, simulate
from vfl_flower.models.coresets import LinearModel
from vfl_flower.numerics.linear import Penalty, solve_pooled
from vfl_flower.typing import Array

FILES = ["kc_house", "protein", "pol", "covtype15k", "mushrooms", "give_credit"]
DATASETS = ["made", "flights", *FILES]


def made(n: int = 12_000, seed: int = 0) -> tuple[Array, Array]:
    """Return 18 columns like those of the set elevators, and labels.

    Two columns differ in the same row alone, one in five rows, and in that row three
    others are 300 deviations off, which the labels do not follow.
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
    """Return the median loss of runs with other seeds, over the optimum."""
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


app = new_app()


@app.command()
def main(
    datasets: Annotated[list[str], some_of(DATASETS, "Data sets.")] = DATASETS,
    repeats: Annotated[int, typer.Option(min=1, help="Of each coreset.")] = 7,
    data_dir: DataDir = None,
) -> None:
    """Print the table of docs/coresets.md."""
    rows = []
    for name in datasets:
        data = columns(name, data_dir)
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
    tell(table(rows))


if __name__ == "__main__":
    app(prog_name="python -m simulations.coreset_defaults")
