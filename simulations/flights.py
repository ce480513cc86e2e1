"""Errors of the flights demo's parties alone, beside the error of the demo's run.

The demo has the files of all parties on one machine, so it can make comparisons that
no run can: least squares on the columns of each party, as if it had the labels, and on
all columns in one place. Training rows and held-out rows are the same as in the run::

    python -m simulations.flights FOLDER RUNS
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

from simulations.flights_files import ID, LABEL
from vfl_flower.app.commands.reports import find_run
from vfl_flower.app.report.figures import last
from vfl_flower.app.report.page import TOGETHER
from vfl_flower.app.report.report import RESULT, read_result, write_page, write_text
from vfl_flower.numerics.split import split_rows
from vfl_flower.typing import Array

TEXT = (
    "All are linear models, judged by the same rows held out. Alone, only the label "
    "holder can train a model, on its own columns; the models of other parties' "
    "columns use labels that these parties do not have. Pooled: trained on all columns "
    "and all training rows in one place, without any protection."
)


def losses(tables: Mapping[str, Array], y: Array, train: Array, test: Array) -> Any:
    """Return the mean squared errors on the held-out rows, by model."""

    def loss(*names: str) -> float:
        X = np.column_stack([np.ones(len(y)), *(tables[name] for name in names)])
        theta = np.linalg.lstsq(X[train], y[train])[0]
        return float(np.mean((y[test] - X[test] @ theta) ** 2))

    holder, *others = tables
    return {
        "pooled": loss(*tables),
        f"{holder} alone": loss(holder),
        **{f"{name}, given the labels": loss(name) for name in others},
    }


def main(
    folder: Annotated[Path, typer.Argument(help="The folder of the party files.")],
    runs: Annotated[Path, typer.Argument(help="The folder of the demo's runs.")],
) -> None:
    """Add question, unit and errors of parties alone to the last run's report."""
    run = find_run("", runs)
    record = read_result(run)
    result = next(iter(record["results"].values()))
    tables = {
        file.stem: pd.read_parquet(file).drop(columns=ID)
        for file in sorted(folder.glob("*.parquet"))
    }
    y = tables[next(iter(tables))].pop(LABEL).to_numpy(np.float64)
    fraction = record["run_config"]["coreset-vrlr.test-fraction"]
    train, test = split_rows(len(y), fraction, result["seed"])
    assert train is not None
    beside = losses(
        {name: table.to_numpy(np.float64) for name, table in tables.items()},
        *(y, train, test),
    )
    result["question"], result["unit"] = "How late will a flight arrive?", "minutes"
    result["beside"] = {"test_loss": beside, "text": TEXT}
    write_text(run / RESULT, json.dumps(record, indent=1))
    typer.echo(f"\nmean squared error in minutes^2, {len(test):,} flights held out:")
    for name, loss in ({TOGETHER: last(result)["test_loss"]} | beside).items():
        typer.echo(f"{loss:8,.0f}  {name}")
    typer.echo(f"report: {write_page(run)}")


if __name__ == "__main__":
    typer.run(main)
