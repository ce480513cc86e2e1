"""The experiments of the FDSKL paper: errors, topologies, and time against size.

All three tables take about half an hour::

    python -m vfl_flower.simulations.fdskl errors --datasets ijcnn1 a9a
    python -m vfl_flower.simulations.fdskl topologies scaling

==========  ========================================================================
errors      test error against bytes, round trips and seconds of all methods: Figures
            3 and 6 and Table 4 of [1], with bytes for minutes
topologies  star, ring and tree against the number of parties: Figure 4
scaling     training time against the number of rows: Figure 5
==========  ========================================================================

Three parties have consecutive columns, the third the labels. Columns are standardised
by the training rows. The methods that FDSKL is compared with are in
:mod:`vfl_flower.simulations.baselines`. The data are npz files with X and y in
``--data-dir`` or the folder ``VFL_FLOWER_DATA``: ijcnn1, a9a, cod_rna, mushrooms,
covtype.

[1] B. Gu, Z. Dang, X. Li, H. Huang, "Federated Doubly Stochastic Kernel Learning for
    Vertically Partitioned Data", KDD 2020.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vfl_flower.clients.base import Party
from vfl_flower.models import KernelModel
from vfl_flower.report import markdown_table
from vfl_flower.secure_aggregation import TOPOLOGIES
from vfl_flower.simulations.baselines import (
    SCALAR,
    Score,
    central_dsg,
    fd_svrg,
    gradient_boosting,
    linear,
    pp_svmv,
    svc,
    test_error,
)
from vfl_flower.simulations.experiments import (
    Columns,
    MissingData,
    check_some,
    load_npz,
    new_parser,
    read_options,
    show_tables,
    standardise,
    versions,
    write_results,
)
from vfl_flower.simulations.in_process import simulate
from vfl_flower.strategies.fdskl import FDSKL

DATASETS = {"ijcnn1": 1, "a9a": 1, "cod_rna": 1, "mushrooms": 1, "covtype": 2}
"""The label that is +1; all others are -1."""

PARTIES = 3
BUDGETS = (1_000_000, 4_000_000, 16_000_000, 64_000_000)
"""Bytes of angles that a party sends."""

BLOCKS, STEPS = (16, 64), (1.0, 3.0, 10.0, 30.0, 100.0)
"""What the doubly stochastic solver is tuned over."""

SIZES = (1000, 2000, 5000, 10_000, 15_000, 50_000, 500_000)
"""Training rows of the scaling table."""

PP_SVMV_MEMORY = 2_000_000_000
"""Bytes that the kernel matrix of PP-SVMV may take: up to 15,811 rows."""

Tell = Callable[[str], None]


def load(name: str, folder: Path | None, seed: int, train: int, test: int) -> Columns:
    """Draw rows of a data set, split them, and standardise the columns.

    Parameters
    ----------
    name : str
        One of `DATASETS`.
    folder : Path or None
        Where ``<name>.npz`` is.
    seed : int
        Of the rows.
    train, test : int
        Rows; where there are fewer they are split 3:1.

    Returns
    -------
    Columns
        Of three parties, the last with the labels -1 and +1.

    Raises
    ------
    MissingData
        There is no such file.
    """
    X, y = load_npz(folder, name)
    rows = np.random.default_rng(seed).permutation(len(y))[: train + test]
    n = train if len(rows) == train + test else len(rows) * 3 // 4
    X, y = X[rows], np.where(y[rows] == DATASETS[name], 1.0, -1.0)
    standardise(X, n)
    widths = tuple(len(part) for part in np.array_split(np.arange(X.shape[1]), PARTIES))
    return Columns(X[:n], widths, y[:n], test=(X[n:], y[n:]))


def score(name: str, data: Columns, seed: int, **arguments: Any) -> Score:
    """Train FDSKL, and predict the test rows outside of the run.

    Parameters
    ----------
    name : str
        In the table.
    data : Columns
        With test rows.
    seed : int
        Of the run.
    **arguments
        Of the strategy.
    """
    assert data.test is not None
    start = time.perf_counter()
    result = simulate(FDSKL(**arguments), data.parties(), seed=seed)
    seconds = time.perf_counter() - start
    X, y = data.test
    assert isinstance(result.model, KernelModel)
    ledger, metrics = result.ledger, result.metrics
    settings = {k: arguments[k] for k in ("block", "step") if k in arguments}
    return Score(
        name,
        test_error(result.model.predict(data.split(X)), y),
        seconds,
        ledger.bytes_up + ledger.bytes_down,
        ledger.round_trips,
        {"features": metrics["features"]}
        | {k: metrics[k] for k in ("rows", "regularization") if k in metrics}
        | settings,
    )


# --- Test errors --------------------------------------------------------------------


def iterations(budget: int, block: int) -> int:
    """Return how many iterations of the doubly stochastic solver a budget pays for.

    Iteration t takes the angles of B rows with the features of all blocks so far, t B:
    2 B^2 t bytes at 16 bits, and T of them B^2 T (T + 1) bytes.

    Examples
    --------
    >>> iterations(64_000_000, 1), iterations(64_000_000, 64)
    (7999, 124)
    """
    return max(1, (math.isqrt(1 + 4 * budget // block**2) - 1) // 2)


def tuned(data: Columns, budget: int, seed: int) -> Score:
    """Return the pooled DSG of the block and step with the least test error.

    This is in favour of DSG and of the doubly stochastic FDSKL, which takes the same:
    no other method but the SVMs is chosen by its test error.
    """
    assert data.test is not None
    X_test, y_test = data.test
    assert data.y is not None
    return min(
        (
            central_dsg(
                data.split(data.X),
                data.y,
                data.split(X_test),
                y_test,
                block=block,
                step=step,
                iterations=iterations(budget, block),
                regularization=1 / len(data.X),
                seed=seed,
            )
            for block in BLOCKS
            for step in STEPS
            if step <= len(data.X)  # step times lambda must be at most 1
        ),
        key=lambda found: found.error,
    )


def scores(
    data: Columns,
    seed: int,
    budgets: Sequence[int],
    chosen: dict[int, dict[str, Any]],
    memory_limit: int,
) -> Iterable[Score]:
    """Yield the scores of all methods on one split of a data set.

    What 16 bits cost is seen with the square loss, which is quicker: in float64 the
    direct solver has four times the bytes, so the same rows and features as in the run
    before it, and takes its lambda: the two differ in the bits alone. PP-SVMV, which is
    SVC on all rows, takes SVC's C and gamma, and is run on the split of seed 0 alone.

    Parameters
    ----------
    data : Columns
        Training and test rows.
    seed : int
        Of all methods.
    budgets : sequence of int
        Bytes of angles that a party sends.
    chosen : dict
        By budget, ``block`` and ``step`` of the doubly stochastic solver; filled where
        it lacks one.
    memory_limit : int
        Of PP-SVMV's matrix; beyond it there is no score of PP-SVMV.
    """
    assert data.test is not None
    assert data.y is not None
    X_test, y_test = data.test
    split = (data.split(data.X), data.y, data.split(X_test), y_test)
    for budget in budgets:
        yield score(f"FDSKL direct, {budget / 1e6:g} MB", data, seed, budget=budget)
    name = f"FDSKL direct, square loss, {budgets[-1] / 1e6:g} MB"
    square: dict[str, Any] = {"loss": "square", "budget": budgets[-1]}
    coarse = score(name, data, seed, **square)
    yield coarse
    square |= {"budget": 4 * budgets[-1], "masking": "plain"}
    square |= {"regularization": coarse.settings["regularization"]}
    yield score(f"{name} x 4 in float64", data, seed, **square)
    for budget in budgets:
        if budget not in chosen:
            best = tuned(data, budget, seed)
            chosen[budget] = {k: best.settings[k] for k in ("block", "step")}
        settings = chosen[budget]
        settings = settings | {"iterations": iterations(budget, settings["block"])}
        name = f"FDSKL doubly stochastic, {budget / 1e6:g} MB"
        yield score(name, data, seed, solver="doubly-stochastic", **settings)
    yield central_dsg(*split, **settings, regularization=1 / len(data.y), seed=seed)
    machine = svc(*split, seed=seed)
    yield machine
    if seed == 0 and SCALAR * len(data.y) ** 2 <= memory_limit:
        grid = [(machine.settings["C"], machine.settings["gamma x median"])]
        yield pp_svmv(*split, grid=grid, memory_limit=memory_limit, seed=seed)
    yield fd_svrg(*split, seed=seed)
    yield linear(*split)
    yield gradient_boosting(*split, seed=seed)


def errors(
    name: str,
    folder: Path | None,
    *,
    rows: int = 20_000,
    seeds: int = 3,
    budgets: Sequence[int] = BUDGETS,
    memory_limit: int = PP_SVMV_MEMORY,
    tell: Tell = print,
) -> dict[str, Any]:
    """Run all methods on a data set.

    Parameters
    ----------
    name : str
        The data set.
    folder : Path or None
        Where it is.
    rows : int
        At most so many of it, split 3:1.
    seeds : int
        Splits, each with its own draws, numbered from 0.
    budgets, memory_limit
        As of :func:`scores`.
    tell : callable
        Called with one line a score.

    Returns
    -------
    dict
        ``n``, ``n_test``, ``widths``, and ``scores``, the splits one after another.

    Raises
    ------
    MissingData
        The data set is not there.
    """
    chosen: dict[int, dict[str, Any]] = {}
    found: list[dict[str, Any]] = []
    for seed in range(seeds):
        data = load(name, folder, seed, rows * 3 // 4, rows // 4)
        for one in scores(data, seed, budgets, chosen, memory_limit):
            found.append(asdict(one) | {"seed": seed})
            tell(f"{name} {seed}: {one.name}: {one.error:.2f} %, {one.seconds:.1f} s")
    assert data.test is not None
    return {
        "n": len(data.X),
        "n_test": len(data.test[1]),
        "widths": list(data.widths),
        "scores": found,
    }


def by_method(scores: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the scores of each method, in the order of the first ones."""
    found: dict[str, list[dict[str, Any]]] = {}
    for one in scores:
        found.setdefault(one["name"], []).append(one)
    return found


def mean(scores: Sequence[dict[str, Any]], what: str) -> float:
    """Return the mean of one figure over the splits."""
    return float(np.mean([one[what] for one in scores]))


def summary(found: dict[str, Any], budgets: Sequence[int]) -> str:
    """Return a table with a line a data set: the errors that matter, side by side."""
    largest = f"{budgets[-1] / 1e6:g} MB"
    columns = {
        f"direct, {largest}": f"FDSKL direct, {largest}",
        "square loss": f"FDSKL direct, square loss, {largest}",
        "the same in float64": f"FDSKL direct, square loss, {largest} x 4 in float64",
        f"doubly stochastic, {largest}": f"FDSKL doubly stochastic, {largest}",
        "SVC": "SVC, pooled",
        "FD-SVRG": "FD-SVRG",
        "boosting": "gradient boosting, pooled",
    }
    rows = []
    for name, entry in found.items():
        methods = by_method(entry["scores"])
        means = [mean(methods[method], "error") for method in columns.values()]
        rows.append([name, *(f"{error:.2f}" for error in means)])
    return markdown_table(["test error in %", *columns], rows)


def direct_wins(entry: dict[str, Any], budgets: Sequence[int]) -> str:
    """Return, as a sentence, at which bytes the direct solver has the lower error."""
    methods = by_method(entry["scores"])
    won: list[str] = []
    lost: list[str] = []
    for budget in budgets:
        size = f"{budget / 1e6:g} MB"
        direct = mean(methods[f"FDSKL direct, {size}"], "error")
        stochastic = mean(methods[f"FDSKL doubly stochastic, {size}"], "error")
        (won if direct < stochastic else lost).append(size)
    return (
        f"Direct below doubly stochastic in the mean at {', '.join(won) or 'no size'}"
        + (f", not at {', '.join(lost)}." if lost else ".")
    )


def errors_page(found: dict[str, Any], budgets: Sequence[int]) -> str:
    """Return the tables of test errors."""
    lines = ["## Test error against bytes, round trips and seconds", ""]
    lines += [summary(found, budgets)]
    for name, entry in found.items():
        rows = []
        for method, of in by_method(entry["scores"]).items():
            sent = of[0]["bytes"] is not None
            errors = [one["error"] for one in of]
            std = float(np.std(errors, ddof=1)) if len(of) > 1 else 0.0
            rows.append(
                [
                    method,
                    f"{mean(of, 'error'):.2f}" + (f" ({std:.2f})" if std else ""),
                    f"{mean(of, 'bytes') / 1e6:,.1f}" if sent else "pooled",
                    f"{mean(of, 'round_trips'):,.0f}" if sent else "",
                    f"{mean(of, 'seconds'):.1f}",
                    str(len(of)),
                    ", ".join(
                        f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}"
                        for k, v in of[0]["settings"].items()
                    ),
                ]
            )
        header = ["", "error in % (std)", "MB", "round trips", "seconds"]
        lines += [
            "",
            f"### {name}",
            "",
            f"{entry['n']:,} rows to train and {entry['n_test']:,} to test, columns "
            f"{' + '.join(map(str, entry['widths']))}. {direct_wins(entry, budgets)}",
            "",
            markdown_table([*header, "splits", "settings of the first split"], rows),
        ]
    return "\n".join(lines)


# --- Topologies ---------------------------------------------------------------------


def topologies(
    counts: Sequence[int] = (2, 3, 4, 8, 16),
    *,
    rows: int = 1024,
    features: int = 256,
    tell: Tell = print,
) -> list[dict[str, Any]]:
    """Send one block of sums to the label holder along each topology.

    Parameters
    ----------
    counts : sequence of int
        Numbers of parties, each with two columns.
    rows, features : int
        Of the block.
    tell : callable
        Called with one line a run.

    Returns
    -------
    list of dict
        ``parties``, ``topology``, ``round_trips`` of the angles, ``bytes_up`` and
        ``bytes_down`` of the angles and of their delivery, ``error`` on the same rows.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 2 * max(counts)))
    y = np.where(X[:, 0] * X[:, 2] > 0, 1.0, -1.0)
    found = []
    for count in counts:
        blocks = np.split(X[:, : 2 * count], count, axis=1)
        parties = [Party(block) for block in blocks[:-1]] + [Party(blocks[-1], y=y)]
        for topology in TOPOLOGIES:
            strategy = FDSKL(
                rows=rows,
                features=features,
                bandwidth=2.0 * count**0.5,
                regularization=1e-3,
                topology=topology,
                allow_two_parties=True,
            )
            result = simulate(strategy, parties, seed=0)
            assert isinstance(result.model, KernelModel)
            ledger = result.ledger
            sums = ledger.of("fdskl_angles", "fdskl_fit")
            found.append(
                {
                    "parties": count,
                    "topology": topology,
                    "round_trips": ledger.of("fdskl_angles").round_trips,
                    "bytes_up": sums.bytes_up,
                    "bytes_down": sums.bytes_down,
                    "error": test_error(result.model.predict(blocks), y),
                }
            )
            tell(f"{found[-1]}")
    return found


def topologies_page(found: Sequence[dict[str, Any]]) -> str:
    """Return the table of topologies."""
    cells = {(one["parties"], one["topology"]): one for one in found}
    rows = []
    for count in dict.fromkeys(one["parties"] for one in found):
        of = [cells[count, topology] for topology in TOPOLOGIES]
        rows.append([str(count), *(str(one["round_trips"]) for one in of)])
        for way in ("bytes_up", "bytes_down"):
            rows[-1] += [f"{one[way] / 1e6:.2f}" for one in of]
    header = ["parties", *(f"round trips, {topology}" for topology in TOPOLOGIES)]
    header += [f"MB {way}, {t}" for way in ("up", "down") for t in TOPOLOGIES]
    return "## Star, ring and tree\n\n" + markdown_table(header, rows)


# --- Time against size --------------------------------------------------------------


def scaling(
    name: str,
    folder: Path | None,
    *,
    sizes: Sequence[int] = SIZES,
    test: int = 5000,
    memory_limit: int = PP_SVMV_MEMORY,
    tell: Tell = print,
) -> list[dict[str, Any]]:
    """Train FDSKL and PP-SVMV on more and more rows.

    Parameters
    ----------
    name, folder
        The data set, and where it is.
    sizes : sequence of int
        Training rows; those that the data set has not are left out.
    test : int
        Test rows.
    memory_limit : int
        Of PP-SVMV's matrix.
    tell : callable
        Called with one line a size.

    Returns
    -------
    list of dict
        ``n``, and a score as a dict for ``fdskl`` and for ``pp_svmv``, or the reason
        why there is none.
    """
    found: list[dict[str, Any]] = []
    for n in sizes:
        data = load(name, folder, 0, n, test)
        if len(data.X) != n:
            break
        assert data.test is not None
        assert data.y is not None
        X_test, y_test = data.test
        one: dict[str, Any] = {"n": n}
        one["fdskl"] = asdict(score("FDSKL", data, 0))
        try:
            machine = pp_svmv(
                data.split(data.X),
                data.y,
                data.split(X_test),
                y_test,
                grid=[(10.0, 4.0)],
                memory_limit=memory_limit,
            )
            one["pp_svmv"] = asdict(machine)
        except ValueError as reason:
            one["pp_svmv"] = str(reason)
        found.append(one)
        tell(f"{name}: {one}")
    return found


def scaling_page(name: str, found: Sequence[dict[str, Any]]) -> str:
    """Return the table of training times."""
    rows = []
    for one in found:
        cells = [f"{one['n']:,}"]
        for method in ("fdskl", "pp_svmv"):
            run = one[method]
            if isinstance(run, str):
                cells += [f"out of memory: {8 * one['n'] ** 2 / 1e9:,.0f} GB", "", ""]
            else:
                cells += [f"{run['seconds']:.1f}", f"{run['bytes'] / 1e6:,.0f}"]
                cells += [f"{run['error']:.1f}"]
        rows.append(cells)
    figures = ("seconds", "MB", "error in %")
    header = [f"{m}: {f}" for m in ("FDSKL", "PP-SVMV") for f in figures]
    return f"## Training time against rows: {name}\n\n" + markdown_table(
        ["rows", *header], rows
    )


# --- The command --------------------------------------------------------------------

TABLES = ("errors", "topologies", "scaling")


def run(
    table: str,
    output: Path,
    data_dir: Path | None,
    *,
    names: Sequence[str] = tuple(DATASETS),
    seeds: int = 3,
    rows: int = 20_000,
    budgets: Sequence[int] = BUDGETS,
    sizes: Sequence[int] = SIZES,
) -> str:
    """Make one table, write ``fdskl-<table>.json`` and ``.md``, and return its page.

    Both are written after each data set, whole or not at all.

    Parameters
    ----------
    table : {"errors", "topologies", "scaling"}
        Which.
    output : Path
        Folder of the files, made where it does not exist.
    data_dir : Path or None
        Folder of the npz files.
    names : sequence of str
        Data sets of ``errors``; ``scaling`` takes the last one.
    seeds, rows, budgets
        As of :func:`errors`.
    sizes : sequence of int
        As of :func:`scaling`.
    """
    output.mkdir(parents=True, exist_ok=True)
    settings = {"table": table, "datasets": list(names), "seeds": seeds, "rows": rows}
    settings |= {"budgets": list(budgets), "sizes": list(sizes)}
    skipped: dict[str, str] = {}

    def write(found: Any, page: str) -> str:
        for name, reason in skipped.items():
            page += f"\n\n**{name}** was skipped: {reason}."
        results = {"settings": settings, "versions": versions(), "skipped": skipped}
        stem = output / f"fdskl-{table}"
        write_results(results | {table: found}, page + "\n", stem)
        return page

    if table == "topologies":
        lines = topologies()
        return write(lines, topologies_page(lines))
    if table == "scaling":
        lines = scaling(names[-1], data_dir, sizes=sizes)
        return write(lines, scaling_page(names[-1], lines))
    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = errors(
                name, data_dir, rows=rows, seeds=seeds, budgets=budgets
            )
        except MissingData as reason:
            skipped[name] = str(reason)
            check_some(skipped, names)
        page = write(found, errors_page(found, budgets))
    return page


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line says."""
    parser = new_parser("fdskl", "the FDSKL paper", DATASETS, TABLES)
    parser.add_argument("--seeds", type=int, default=3, help="splits of each data set")
    parser.add_argument("--rows", type=int, default=20_000, help="of each data set")
    parser.add_argument(
        "--budgets",
        nargs="+",
        type=int,
        default=list(BUDGETS),
        metavar="BYTES",
        help="of angles that a party sends, ascending",
    )
    parser.add_argument(
        "--sizes", nargs="+", type=int, default=list(SIZES), help="rows of scaling"
    )
    least = {"seeds": 1, "rows": 8, "budgets": 1, "sizes": 1}
    args = read_options(parser, arguments, least)
    make = partial(
        run,
        output=args.output_dir,
        data_dir=args.data_dir,
        names=args.datasets,
        seeds=args.seeds,
        rows=args.rows,
        budgets=sorted(args.budgets),
        sizes=args.sizes,
    )
    show_tables(parser, args, make)


if __name__ == "__main__":
    main()
