"""The experiments of the coreset paper: its Table 1 and the data of Figures 2 and 3.

All tables take about an hour, ``--quick`` some minutes::

    python -m simulations.coresets --datasets kc_house --tasks regression
    python -m simulations.coresets --quick

C-X is solver X on a coreset, U-X on a uniform sample of the same size. Repeat r of a
cell has seed ``--seed`` + r. How a cell is run and its cost evaluated:
:mod:`simulations.tables`.

=============  =====================================================================
flights        party files made by ``simulations.flights_files``; T = 3
kc_house       ``kc_house.npz`` with X (21613, 18) and the price y; T = 2
covtype        ``covtype.npz`` with X (581012, 54); T = 3
generated      a stand-in made here, of the size of YearPredictionMSD; T = 3 and 5
=============  =====================================================================

The npz files are looked for in ``--data-dir`` or the folder ``VFL_FLOWER_DATA``.

[1] L. Huang, Z. Li, J. Sun, H. Zhao, "Coresets for Vertical Federated Learning:
    Regularized Linear Regression and K-Means Clustering", NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

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
from simulations.tables import (
    DRAWN,
    Experiment,
    Solver,
    page,
    run_experiment,
)
from vfl_flower.data import load_party
from vfl_flower.data.source import PartySource
from vfl_flower.numerics.split import split_rows
from vfl_flower.typing import Array

TASKS = ["regression", "k-means"]
QUICK_SIZES, QUICK_REPEATS, QUICK_ROWS = (200, 600), 2, 20_000


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
"""The columns of the flights, by who has them."""


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
    """Return data with clusters, correlated columns and heavy tails.

    Parameters
    ----------
    n, d : int
        Rows and columns.
    seed : int
        Seed of the data.

    Returns
    -------
    X : Array, shape (n, d)
        ``x = c (mu_c + f) L + e`` in units of its standard deviation: 12 clusters of
        unequal size (weights 1 / rank) in 15 factors f, loadings L shared by all
        columns, so that columns of different parties are correlated; e is noise of
        half their size. The row's scale c is that of a t distribution with 4 degrees
        of freedom, so some rows are large in all columns at once.
    y : Array, shape (n,)
        The sum of a linear function of the scaled factors (standard deviation 5), a
        product of two factors that no linear model can fit (2), and noise (9) from a t
        distribution with 5 degrees of freedom. The best linear model explains about a
        quarter of the variance.
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


# --- The command --------------------------------------------------------------------

app = new_app()
DATASETS = list(LOADERS)


@app.command()
def main(
    context: typer.Context,
    datasets: Annotated[list[str], some_of(DATASETS, "Data sets.")] = DATASETS,
    tasks: Annotated[list[str], some_of(TASKS, "Tasks.")] = TASKS,
    sizes: Annotated[
        list[int] | None, typer.Option(min=1, help="m; default: of each experiment.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Of each cell.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of the first repeat.")] = 0,
    quick: Quick = False,
    data_dir: DataDir = None,
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Reproduce the experiments of the coreset paper.

    The page is written after each of them, whole or not at all.
    """
    times = min(repeats, QUICK_REPEATS) if quick else repeats
    seeds = f"{times} repeats unless a table says fewer, seeds from {seed}"
    title = "Coresets: figures of the experiments"
    results = Results(context, "coresets", title=title, seeds=seeds)
    measured: list[dict[str, Any]] = []
    for name in datasets:
        with results.skipping(name, datasets):
            count = len(measured)
            for experiment in LOADERS[name](data_dir, quick):
                if experiment.task in tasks:
                    chosen = sizes or (QUICK_SIZES if quick else experiment.sizes)
                    experiment = replace(experiment, sizes=tuple(chosen))
                    measured.append(run_experiment(experiment, times, seed))
                    results.write(measured, page(measured))
            if len(measured) == count:
                raise MissingData(f"it has no {' or '.join(tasks)} experiment")
    results.write(measured, page(measured))
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.coresets")
