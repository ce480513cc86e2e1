"""The experiments of the coreset paper: its Table 1 and the data of Figures 2 and 3.

All tables take about an hour, ``--quick`` some minutes::

    python -m vfl_flower.simulations.coresets --datasets kc_house --tasks regression
    python -m vfl_flower.simulations.coresets --quick

C-X is solver X on a coreset, U-X on a uniform sample of the same size. Repeat r of a
cell has seed ``--seed`` + r. How a cell is run and its cost evaluated:
:mod:`vfl_flower.simulations.tables`.

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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vfl_flower.config import PartySource
from vfl_flower.data import load_party
from vfl_flower.numerics.split import split_rows
from vfl_flower.simulations.experiments import (
    Columns,
    MissingData,
    check_some,
    load_npz,
    new_parser,
    read_options,
    standardise,
    versions,
    write_results,
)
from vfl_flower.simulations.flights import ID, LABEL, make_party_files
from vfl_flower.simulations.tables import (
    DRAWN,
    Experiment,
    Published,
    Solver,
    markdown,
    run_experiment,
)
from vfl_flower.typing import Array

TASKS = ("regression", "k-means")
QUICK_SIZES, QUICK_REPEATS, QUICK_ROWS = (200, 600), 2, 20_000


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
    X, _ = load_npz(folder, "covtype")
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
    standardise(X)
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


def _thinned(rows: Array, quick: bool) -> Array:
    return rows[:: max(1, len(rows) // QUICK_ROWS)] if quick else rows


def _standardised(X: Array) -> Array:
    copy = np.array(X)
    standardise(copy)
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
        As :func:`~vfl_flower.simulations.tables.run_experiment`.
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
                write_results(results, markdown(results), output / "coresets")
            if not found:
                results["skipped"][name] = f"it has no {' or '.join(tasks)} experiment"
        except MissingData as reason:
            results["skipped"][name] = str(reason)
        if name in results["skipped"]:
            print(f"{name} skipped: {results['skipped'][name]}", flush=True)
    write_results(results, markdown(results), output / "coresets")
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line says."""
    parser = new_parser("coresets", "the coreset paper", LOADERS)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[], metavar="M")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="small, to see it work")
    args = read_options(parser, arguments, {"repeats": 1, "sizes": 1})
    try:
        found = run_all(
            args.datasets,
            args.tasks,
            output=args.output_dir,
            repeats=args.repeats,
            seed=args.seed,
            sizes=args.sizes,
            quick=args.quick,
            data_dir=args.data_dir,
        )
        check_some(found["skipped"], args.datasets)
    except MissingData as reason:
        parser.exit(1, f"{parser.prog}: {reason}\n")
    print(f"results in {args.output_dir.absolute()}")


if __name__ == "__main__":
    main()
