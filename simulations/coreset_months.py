"""Coresets to which each month adds its rows, beside coresets of all rows at once.

::

    python -m simulations.coreset_months
    python -m simulations.coreset_months --datasets kc_house --sizes 500

The flights have their months of 2013. The sales of kc_house are cut into twelve parts
in the order of the file, as if each were a month.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from simulations.coresets import LOADERS
from simulations.experiments import (
    OUTPUT,
    Columns,
    DataDir,
    OutputDir,
    Quick,
    Results,
    mean_and_error,
    new_app,
    some_of,
    table,
    tell,
)
from simulations.tables import Experiment
from vfl_flower import CoresetVKMC, CoresetVRLR, Party
from vfl_flower.models.coresets import KMeansModel, LinearModel
from vfl_flower.numerics.kmeans import assign, weighted_kmeans
from vfl_flower.protocol.parts import load_part
from vfl_flower.protocol.strategy import ProtocolStrategy
from vfl_flower.simulation import SimulatedResult, simulate
from vfl_flower.strategies import CoresetVKMCAdd, CoresetVRLRAdd
from vfl_flower.typing import Array

DATASETS = ["flights", "kc_house"]
MONTHS = 12
SIZES = [500, 2000]
SHOWN = (1, 2, 3, 4, 7, 8, 11, 12)
"""Months after which the streamed model is compared: one level is full at each power
of two, and all levels are just before."""


def months_of(experiment: Experiment) -> list[Array]:
    """Return the numbers of the rows of each month."""
    data = experiment.data
    if experiment.name.startswith("flights"):  # the airline's first column
        month = data.X[:, 0]
        rows = [np.flatnonzero(month == value) for value in np.unique(month)]
        if len(rows) == MONTHS:
            return rows
    return np.array_split(np.arange(len(data.X)), MONTHS)


def parties_of(data: Columns, rows: Array, folder: Path | None = None) -> list[Party]:
    """Return the parties with some rows, and where they keep their parts."""
    some = replace(data, X=data.X[rows], y=None if data.y is None else data.y[rows])
    return [
        Party(
            party.X,
            party.y,
            ids=rows,
            state_dir=None if folder is None else folder / str(j),
        )
        for j, party in enumerate(some.parties())
    ]


def loss(experiment: Experiment, model: Any, rows: Array) -> float:
    """Return the mean loss of a model on rows of all parties."""
    data = experiment.data
    blocks = data.split(data.X[rows])
    if isinstance(model, LinearModel):
        assert data.y is not None
        return float(((model.predict(blocks) - data.y[rows]) ** 2).mean())
    assert isinstance(model, KMeansModel)
    return float(assign(data.X[rows], np.hstack(model.cluster_centers_))[1].mean())


def best(experiment: Experiment, rows: Array) -> float:
    """Return the loss of the model that is trained on all rows."""
    X, y = experiment.data.X[rows], experiment.data.y
    if experiment.task == "regression":
        assert y is not None
        A = np.column_stack([X, np.ones(len(X))])
        scale = np.abs(A).max(axis=0)
        scale[scale == 0] = 1.0
        theta = np.linalg.lstsq(A / scale, y[rows], rcond=None)[0]
        return float(((A / scale @ theta - y[rows]) ** 2).mean())
    k, w = experiment.arguments["n_clusters"], np.ones(len(X))
    return float(weighted_kmeans(X, k, w, np.random.default_rng(0), 3)[1] / len(X))


def trained(experiment: Experiment, size: int, **more: Any) -> ProtocolStrategy:
    """Return the strategy of a training, or with a `model` of an addition."""
    common: dict[str, Any] = {"size": size, "solver": "central", **more}
    if experiment.task == "regression":
        kind = CoresetVRLRAdd if "model" in more else CoresetVRLR
        return kind(**common)
    common["n_clusters"] = experiment.arguments["n_clusters"]
    return (CoresetVKMCAdd if "model" in more else CoresetVKMC)(**common)


def stream(
    experiment: Experiment, months: Sequence[Array], size: int, seed: int
) -> Iterator[tuple[SimulatedResult, int]]:
    """Yield the result of each month, and how many rows the parties keep after it."""
    with TemporaryDirectory() as place:
        folder, model = Path(place), ""
        for t, rows in enumerate(months):
            more = {"model": model} if model else {"keep_coreset": True}
            parties = parties_of(experiment.data, rows, folder)
            result = simulate(
                trained(experiment, size, **more), parties, 1000 * seed + t
            )
            model = str(result.model.number)
            part = load_part(folder / "0", model)
            yield result, len(part.arrays["kept_weights"])


def measure(experiment: Experiment, size: int, repeats: int) -> dict[str, Any]:
    """Return losses, bytes and rows of the ways to have a model of all months."""
    months = months_of(experiment)
    every = np.concatenate(months)
    union = size * MONTHS.bit_count()
    so_far = {t: np.concatenate(months[:t]) for t in SHOWN}
    optimum = {t: best(experiment, so_far[t]) for t in SHOWN}
    ways: dict[str, list[float]] = {}
    cost: dict[str, dict[str, float]] = {}
    by_month: dict[int, dict[str, list[float]]] = {
        t: {"streamed": [], "at once": []} for t in SHOWN
    }
    kept_most = 0

    def note(
        way: str, results: Sequence[SimulatedResult], read: int, seed: int
    ) -> None:
        value = loss(experiment, results[-1].model, every) / optimum[MONTHS]
        ways.setdefault(way, []).append(value)
        up = [r.ledger.bytes_up + r.ledger.bytes_down for r in results]
        cost[way] = {
            "bytes": float(np.sum(up)),
            "bytes of the last": float(up[-1]),
            "round trips of the last": results[-1].ledger.round_trips,
            "rows read": read,
        }

    for seed in range(repeats):
        results = []
        read = 0
        for t, (result, kept) in enumerate(stream(experiment, months, size, seed), 1):
            read += len(months[t - 1]) + (kept if t > 1 else 0)
            results.append(result)
            kept_most = max(kept_most, kept)
            if t not in SHOWN:
                continue
            value = loss(experiment, result.model, so_far[t]) / optimum[t]
            by_month[t]["streamed"].append(value)
            one = simulate(
                trained(experiment, size), parties_of(experiment.data, so_far[t]), seed
            )
            value = loss(experiment, one.model, so_far[t]) / optimum[t]
            by_month[t]["at once"].append(value)
        note("streamed", results, read, seed)
        all_rows = parties_of(experiment.data, every)
        for way, strategy, parties, n in (
            ("at once, as many rows", trained(experiment, union), all_rows, every),
            ("at once, size of a level", trained(experiment, size), all_rows, every),
            (
                "uniform of all months",
                trained(experiment, union, sampling="uniform"),
                all_rows,
                every,
            ),
            (
                "last month alone",
                trained(experiment, min(union, len(months[-1]))),
                parties_of(experiment.data, months[-1]),
                months[-1],
            ),
        ):
            note(way, [simulate(strategy, parties, seed)], len(n), seed)
    return {
        "name": experiment.name,
        "n": len(every),
        "d": experiment.data.X.shape[1],
        "T": len(experiment.data.widths),
        "size": size,
        "kept most": kept_most,
        "repeats": repeats,
        "ways": ways,
        "cost": cost,
        "by month": {str(t): values for t, values in by_month.items()},
    }


def page(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the parts of the page."""
    for one in measured:
        yield f"### {one['name']}, size {one['size']:,}"
        yield (
            f"n = {one['n']:,}, d = {one['d']}, T = {one['T']}; {MONTHS} months; "
            f"{one['repeats']} repeats; a party keeps {one['kept most']:,} rows or "
            "fewer."
        )
        yield table(
            {
                "": way,
                "loss / all rows (s.e.)": mean_and_error(values, 4),
                "rows read": f"{one['cost'][way]['rows read']:,.0f}",
                "kB": f"{one['cost'][way]['bytes'] / 1000:,.0f}",
                "kB, last run": f"{one['cost'][way]['bytes of the last'] / 1000:,.0f}",
                "round trips, last run": str(
                    one["cost"][way]["round trips of the last"]
                ),
            }
            for way, values in one["ways"].items()
        )
        yield table(
            {
                "months": t,
                "levels": f"{int(t):b}",
                "streamed": mean_and_error(values["streamed"], 4),
                "at once": mean_and_error(values["at once"], 4),
            }
            for t, values in one["by month"].items()
        )


app = new_app()


@app.command()
def main(
    context: typer.Context,
    datasets: Annotated[list[str], some_of(DATASETS, "Data sets.")] = DATASETS,
    sizes: Annotated[
        list[int], typer.Option(min=100, help="Sizes m of a level.")
    ] = SIZES,
    repeats: Annotated[int, typer.Option(min=1, help="Seeds, from 0.")] = 10,
    quick: Quick = False,
    data_dir: DataDir = None,
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Add the rows of twelve months to coresets, and compare with all rows at once."""
    title = "Coresets of twelve months"
    results = Results(context, "coreset_months", title=title, seeds="seeds from 0")
    measured: list[dict[str, Any]] = []
    for name in datasets:
        with results.skipping(name, datasets):
            for experiment in LOADERS[name](data_dir, quick):
                for size in sizes:
                    measured.append(measure(experiment, size, repeats))
                    tell(f"{experiment.name}, size {size}: done")
    results.write(measured, page(measured))
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.coreset_months")
