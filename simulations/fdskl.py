"""The experiments of the FDSKL paper: errors, topologies, and time against size.

All tables take some hours, and the tables of one data set a quarter of an hour::

    python -m simulations.fdskl errors --datasets ijcnn1 --datasets a9a
    python -m simulations.fdskl splits --datasets cod_rna
    python -m simulations.fdskl topologies scaling

==========  ========================================================================
errors      test error against bytes, round trips and seconds of all methods: Figures
            3 and 6 and Table 4 of [1], with bytes for minutes
splits      test errors of the quicker methods over ten splits, as in [1]
whole       the same with all rows, and a support vector machine on all training rows
regression  mean squared error beside support vector regression and boosted trees
forms       the savings by angles of 8 bits
defaults    the implicit step and the published update at their defaults, and
            FDSKLDirect at its own
topologies  star, ring and tree against the number of parties: Figure 4
scaling     training time against the number of rows: Figure 5
==========  ========================================================================

Three parties have consecutive columns, and the third has the labels. Columns are
standardised by the training rows. The methods that FDSKL is compared with are in
:mod:`simulations.baselines`. The data are npz files with X and y in ``--data-dir`` or
the folder ``VFL_FLOWER_DATA``; missing values of give_credit become the mean of their
column. Of the ten sets of [1], gisette, real-sim and epsilon are not included.

[1] B. Gu, Z. Dang, X. Li, H. Huang, "Federated Doubly Stochastic Kernel Learning for
    Vertically Partitioned Data", KDD 2020.
"""

from __future__ import annotations

import inspect
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import pandas as pd
import typer

from simulations.baselines import (
    SCALAR,
    Fitted,
    Score,
    central_dsg,
    fd_svrg,
    gradient_boosting,
    linear,
    pp_svmv,
    svm,
    test_error,
    tuned_alike,
)
from simulations.experiments import (
    OUTPUT,
    Columns,
    DataDir,
    OutputDir,
    Results,
    load_npz,
    new_app,
    some_of,
    standardise,
    table,
    tables_of,
    tell,
)
from simulations.ridge_pooled import secure_ridge
from vfl_flower import Party, simulate
from vfl_flower.models.fdskl import KernelModel
from vfl_flower.strategies.fdskl.angles import Topology
from vfl_flower.strategies.fdskl.learning import KernelLearning
from vfl_flower.strategies.fdskl.training import FDSKL, FDSKLDirect

DATASETS = {
    **dict.fromkeys(("phishing", "a9a", "ijcnn1", "cod_rna", "w8a"), 1),
    **dict.fromkeys(("default_credit", "give_credit"), 1),
    **{"mushrooms": 1, "covtype": 2},
}
"""The label that becomes +1 (all others: -1); the last two sets are not in [1]."""

CLASSES = {**DATASETS, "breast_cancer": 1}
"""These sets, and the set of scikit-learn for quick commands."""

LARGER = ("default_credit", "a9a", "ijcnn1", "cod_rna", "w8a", "give_credit")
"""Sets of [1] with more than 20,000 rows."""

SEVERAL = ("covtype15k",)
"""Data sets with more than two classes."""

NUMBERS = ("kc_house", "protein", "pol")
"""Data sets whose labels are numbers."""

AS_NUMBERS = (*NUMBERS, "diabetes")
"""These sets, and the set of scikit-learn."""

FORMS: dict[str, dict[str, Any]] = {"default": {}, "8 bits": {"bits": 8}}
"""Settings of FDSKLDirect that save bytes."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "direct": {"bits": 8},
    "implicit": {"strategy": FDSKL},
    "explicit": {"strategy": FDSKL, "step": "explicit"},
}
"""Strategies and settings of the table of defaults."""

OF_DEFAULTS = ("ijcnn1", "a9a", *SEVERAL, "cod_rna", "phishing", "w8a", *NUMBERS)

PARTIES = 3
BUDGETS = [1_000_000, 4_000_000, 16_000_000, 64_000_000]
"""Bytes of angles that a party sends."""

BLOCKS, STEPS = (16, 64), (1.0, 3.0, 10.0, 30.0, 100.0)
"""Blocks and steps from which the published update's settings are chosen."""

SIZES = [1000, 2000, 5000, 10_000, 15_000, 50_000, 500_000]
"""Training rows of the scaling table."""

PP_SVMV_MEMORY = 2_000_000_000
"""Bytes that the kernel matrix of PP-SVMV may take: up to 15,811 rows."""

DIRECT = re.compile(r"FDSKL direct, ([\d.]+ MB)")
"""Names of scores of FDSKLDirect by budgets."""


def load(name: str, folder: Path | None, seed: int, train: int, test: int) -> Columns:
    """Draw rows of a data set, split them, and standardise the columns.

    If there are fewer rows than `train` + `test`, they are split 3:1. The last of
    the three parties has the labels: -1 and +1, classes, or standardised numbers.
    """
    X, y = load_npz(folder, name)
    rows = np.random.default_rng(seed).permutation(len(y))[: train + test]
    n = train if len(rows) == train + test else len(rows) * 3 // 4
    X, y = X[rows], y[rows]
    if name in CLASSES:
        y = np.where(y == CLASSES[name], 1.0, -1.0)
    elif name not in SEVERAL:
        y = standardise(y[:, None], n)[:, 0]
    X = np.where(np.isnan(X), np.nanmean(X[:n], axis=0), X)
    standardise(X, n)
    widths = tuple(len(part) for part in np.array_split(np.arange(X.shape[1]), PARTIES))
    return Columns(X[:n], widths, y[:n], test=(X[n:], y[n:]))


def score(
    name: str,
    data: Columns,
    seed: int,
    strategy: type[KernelLearning] = FDSKLDirect,
    **arguments: Any,
) -> Score:
    """Train a kernel model, and predict test rows outside of the run.

    `name` is its name in the table. Angles have 16 bits by default.
    """
    start = time.process_time()
    bits = {} if "masking" in arguments else {"bits": 16}
    result = simulate(strategy(**bits | arguments), data.parties(), seed=seed)
    seconds = time.process_time() - start
    _, _, X, y = data.train_and_test()
    assert isinstance(result.model, KernelModel)
    ledger, metrics = result.ledger, result.metrics
    settings = {k: arguments[k] for k in ("step",) if k in arguments}
    if "iterations" in arguments:
        settings["block"] = arguments["features"] // arguments["iterations"]
    answers = result.model.predict(data.split(X))
    several = arguments.get("target") == "multiclass"
    return Score(
        name,
        100 * float(np.mean(answers != y)) if several else test_error(answers, y),
        seconds,
        ledger.bytes_up + ledger.bytes_down,
        ledger.round_trips,
        {"features": metrics["features"]}
        | {k: metrics[k] for k in ("rows", "regularization") if k in metrics}
        | settings,
    )


# --- Test errors --------------------------------------------------------------------


def iterations(budget: int, block: int) -> int:
    """Return how many iterations of FDSKL a budget allows.

    Iteration t takes the angles of B rows with the features of all blocks so far, t B:
    2 B^2 t bytes at 16 bits, and T of them B^2 T (T + 1) bytes.

    Examples
    --------
    >>> iterations(64_000_000, 1), iterations(64_000_000, 64)
    (7999, 124)
    """
    return max(1, (math.isqrt(1 + 4 * budget // block**2) - 1) // 2)


def published(budget: int, block: int, step: float) -> dict[str, Any]:
    """Return the settings of the published update with blocks, for a budget."""
    T = iterations(budget, block)
    settings = {"iterations": T, "rows": T * block, "features": T * block}
    return {"strategy": FDSKL, "step": step, **settings}


def tuned(data: Columns, budget: int, seed: int) -> Score:
    """Return the pooled DSG with the block and step of the smallest test error.

    This favours DSG and the doubly stochastic FDSKL, which has the same settings: among
    the other methods, only the SVMs are chosen by their test error.
    """
    return min(
        (
            central_dsg(
                data,
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
        key=lambda score: score.error,
    )


def scores(
    data: Columns,
    seed: int,
    budgets: Sequence[int],
    chosen: dict[int, dict[str, Any]],
    memory_limit: int,
) -> Iterator[Score]:
    """Yield the scores of all methods on one split of a data set.

    Two runs with the square loss, which is quicker, show the cost of 16 bits. The
    second run, in float64, has a budget of four times the bytes, so it has the rows,
    features and lambda of the first run: only the bits differ. PP-SVMV, which is SVC on
    all rows, has the C and gamma of SVC, and is run only on the split of seed 0.
    """
    n = len(data.X)
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
        name = f"FDSKL doubly stochastic, {budget / 1e6:g} MB"
        yield score(name, data, seed, **published(budget, **chosen[budget]))
    T = iterations(budgets[-1], chosen[budgets[-1]]["block"])
    settings = chosen[budgets[-1]] | {"iterations": T}
    yield central_dsg(data, **settings, regularization=1 / n, seed=seed)
    machine = svm(data, seed=seed)
    yield machine
    if n > machine.settings["rows"]:
        yield replace(svm(data, max_rows=n, seed=seed), name="SVC, all rows, pooled")
    if seed == 0 and SCALAR * n**2 <= memory_limit:
        grid = [(machine.settings["C"], machine.settings["gamma x median"])]
        yield pp_svmv(data, grid=grid, memory_limit=memory_limit, seed=seed)
    yield fd_svrg(data, seed=seed)
    yield linear(data)
    yield gradient_boosting(data, seed=seed)


def errors(
    name: str,
    folder: Path | None,
    *,
    rows: int = 20_000,
    seeds: int = 3,
    budgets: Sequence[int] = BUDGETS,
    memory_limit: int = PP_SVMV_MEMORY,
) -> dict[str, Any]:
    """Run all methods on a data set."""
    chosen: dict[int, dict[str, Any]] = {}
    measured: list[dict[str, Any]] = []
    for seed in range(seeds):
        data = load(name, folder, seed, rows * 3 // 4, rows // 4)
        for result in scores(data, seed, budgets, chosen, memory_limit):
            measured.append(asdict(result) | {"seed": seed})
            figures = f"{result.error:.2f} %, {result.seconds:.1f} s"
            tell(f"{name} {seed}: {result.name}: {figures}")
    return {
        "n": len(data.X),
        "n_test": len(data.train_and_test()[3]),
        "widths": list(data.widths),
        "scores": measured,
    }


def mean_errors(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean test error of each method over the splits."""
    frame = pd.DataFrame(entry["scores"])
    return dict(frame.groupby("name", sort=False)["error"].mean())


def summary(entries: Mapping[str, Any], sizes: Sequence[str]) -> str:
    """Return a table with a row for each data set: the main errors side by side."""
    largest = sizes[-1]
    columns = {
        f"direct, {largest}": f"FDSKL direct, {largest}",
        "square loss": f"FDSKL direct, square loss, {largest}",
        "the same in float64": f"FDSKL direct, square loss, {largest} x 4 in float64",
        f"doubly stochastic, {largest}": f"FDSKL doubly stochastic, {largest}",
        "SVC, 8,000 rows": "SVC, pooled",
        "SVC, all rows": "SVC, all rows, pooled",
        "FD-SVRG": "FD-SVRG",
        "boosting": "gradient boosting, pooled",
    }
    means = {name: mean_errors(entry) for name, entry in entries.items()}
    return table(
        {"test error in %": name}
        | {
            title: f"{errors[method]:.2f}" if method in errors else ""
            for title, method in columns.items()
        }
        for name, errors in means.items()
    )


def direct_wins(entry: Mapping[str, Any], sizes: Sequence[str]) -> str:
    """Return a sentence that names the budgets at which FDSKLDirect is better."""
    means = mean_errors(entry)
    won: list[str] = []
    lost: list[str] = []
    for size in sizes:
        direct = means[f"FDSKL direct, {size}"]
        stochastic = means[f"FDSKL doubly stochastic, {size}"]
        (won if direct < stochastic else lost).append(size)
    return (
        f"Direct below doubly stochastic in the mean at {', '.join(won) or 'no size'}"
        + (f", not at {', '.join(lost)}." if lost else ".")
    )


def beside_direct(entries: Mapping[str, Any], sizes: Sequence[str]) -> str:
    """List the data sets on which other methods have the lower mean error."""
    largest = f"FDSKL direct, {sizes[-1]}"
    means = {name: mean_errors(entry) for name, entry in entries.items()}
    lines = []
    for method in (
        "SVC, pooled",
        "SVC, all rows, pooled",
        "FD-SVRG",
        "gradient boosting, pooled",
    ):
        ahead: dict[str, list[str]] = {"lower": [], "higher": [], "the same": []}
        for name, errors in means.items():
            if method in errors:
                theirs, ours = round(errors[method], 2), round(errors[largest], 2)
                which = "lower" if theirs < ours else "higher"
                place = ahead["the same" if theirs == ours else which]
                place.append(f"{name} ({theirs:.2f}, direct {ours:.2f})")
        found = [f"{k} on {', '.join(sets)}" for k, sets in ahead.items() if sets]
        if found:
            lines.append(f"- {method}: error in % {'; '.join(found)}.")
    return "\n".join(lines)


def bits_matter(entries: Mapping[str, Any], sizes: Sequence[str]) -> str:
    """Return a sentence on the effect of 16 bits compared with float64."""
    name = f"FDSKL direct, square loss, {sizes[-1]}"
    differ = []
    for entry in entries.values():
        of = {(run["name"], run["seed"]): run["error"] for run in entry["scores"]}
        differ += [
            round(
                abs(error - of[f"{name} x 4 in float64", seed]) * entry["n_test"] / 100
            )
            for (method, seed), error in of.items()
            if method == name
        ]
    return (
        f"With 16 bits as many test rows are wrong as in float64 on {differ.count(0)} "
        f"of the {len(differ)} splits; the numbers differ by at most {max(differ)}."
    )


def sizes_of(entries: Mapping[str, Any]) -> list[str]:
    """Return the budgets of the scores, as "4 MB", the largest last."""
    names = {score["name"] for entry in entries.values() for score in entry["scores"]}
    found = {match[1] for name in names if (match := DIRECT.fullmatch(name))}
    return sorted(found, key=lambda size: float(size.split()[0]))


def errors_page(entries: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tables of test errors."""
    yield "## Test error against bytes, round trips and seconds"
    sizes = sizes_of(entries)
    yield summary(entries, sizes)
    yield beside_direct(entries, sizes)
    yield bits_matter(entries, sizes)
    for name, entry in entries.items():
        yield f"### {name}"
        yield (
            f"{entry['n']:,} rows to train and {entry['n_test']:,} to test, columns "
            f"{' + '.join(map(str, entry['widths']))}. {direct_wins(entry, sizes)}"
        )
        rows = []
        for method, runs in pd.DataFrame(entry["scores"]).groupby("name", sort=False):
            mean = runs[["error", "bytes", "round_trips", "seconds"]].mean()
            std = runs["error"].std()
            sent = runs["bytes"].notna().all()
            settings = runs["settings"].iloc[0].items()
            rows.append(
                {
                    "": str(method),
                    "error in % (std)": f"{mean['error']:.2f}"
                    + (f" ({std:.2f})" if std > 0 else ""),
                    "MB": f"{mean['bytes'] / 1e6:,.1f}" if sent else "pooled",
                    "round trips": f"{mean['round_trips']:,.0f}" if sent else "",
                    "seconds": f"{mean['seconds']:.1f}",
                    "splits": str(len(runs)),
                    "settings of the first split": ", ".join(
                        f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}"
                        for k, v in settings
                    ),
                }
            )
        yield table(rows)


# --- Ten splits ---------------------------------------------------------------------

ALL_ROWS = 2**31
"""A number of rows that no data set has: all of them are split 3:1."""


def splits(
    name: str,
    folder: Path | None,
    *,
    rows: int,
    seeds: int,
    budgets: Sequence[int] = BUDGETS,
    whole: bool = False,
) -> dict[str, Any]:
    """Return the errors of the quicker methods on splits, in the form of `errors`.

    The model of ``SecureRidge`` is made from pooled columns: it is the model of a run,
    computed without shares. Block and step of the published update are chosen as in
    :func:`errors`. With `whole` all rows are split, and on the first split there is
    also ``SVC``, trained on all rows with the C and gamma that are best on 8,000 rows.
    """
    budget, measured = budgets[-1], []
    size = f"{budget / 1e6:g} MB"
    rows = ALL_ROWS if whole else rows
    for seed in range(seeds):
        data = load(name, folder, seed, rows * 3 // 4, rows // 4)
        X, y, _, y_test = data.train_and_test()
        if seed == 0:
            best = tuned(data, budget, seed).settings
            chosen = published(budget, best["block"], best["step"])
        for result in (
            score(f"direct, {size}", data, seed, budget=budget),
            fitted("SecureRidge", partial(secure_ridge, X, y, PARTIES, seed), data),
            score(f"doubly stochastic, {size}", data, seed, **chosen),
            fd_svrg(data, seed=seed),
            replace(gradient_boosting(data, seed=seed), name="boosting"),
        ):
            measured.append(asdict(result) | {"seed": seed})
            tell(f"{name} {seed}: {result.name}: {result.error:.2f} %")
        if whole and seed == 0:
            machine = svm(data, seed=seed).settings
            grid = [(machine["C"], machine["gamma x median"])]
            result = svm(data, max_rows=len(X), seed=seed, grid=grid)
            measured.append(asdict(result) | {"name": "SVC", "seed": seed})
            tell(f"{name}: SVC: {result.error:.2f} %, {result.seconds:.0f} s")
    return {"n": len(data.X), "n_test": len(y_test), "scores": measured}


def fitted(name: str, fit: Callable[[], Fitted], data: Columns) -> Score:
    """Return the score of a model trained on pooled columns."""
    _, _, X_test, y_test = data.train_and_test()
    start = time.process_time()
    f, _ = fit()
    error = test_error(f(X_test)[0], y_test)
    return Score(name, error, time.process_time() - start)


def splits_page(entries: Mapping[str, Any], title: str = "Ten splits") -> Iterator[str]:
    """Yield the table of splits."""
    yield f"## {title}"
    yield table(
        {
            "test error in %, mean (std)": name,
            "rows, tests": f"{entry['n']:,}, {entry['n_test']:,}",
            "splits": str(len({run["seed"] for run in entry["scores"]})),
        }
        | errors_of_methods(entry, 2)
        for name, entry in entries.items()
    )


def errors_of_methods(entry: Mapping[str, Any], digits: int) -> dict[str, str]:
    """Return mean and standard deviation over the splits for each method, as cells."""
    frame = pd.DataFrame(entry["scores"]).groupby("name", sort=False)["error"]
    return {
        str(method): f"{errors.mean():.{digits}f}"
        + (f" ({errors.std():.{digits}f})" if len(errors) > 1 else "")
        for method, errors in frame
    }


# --- Fewer bytes --------------------------------------------------------------------


def forms(name: str, folder: Path | None, *, rows: int) -> dict[str, Any]:
    """Return the scores of each of `FORMS` on the first split.

    Errors of numbers are shares of the variance, in percent.
    """
    data = load(name, folder, 0, rows * 3 // 4, rows // 4)
    more: dict[str, Any] = {}
    if name in AS_NUMBERS:
        more = {"target": "continuous", "loss": "square"}
    variance = float(data.train_and_test()[3].var())
    measured = {}
    for form, settings in FORMS.items():
        result = score(form, data, 0, **more, **settings)
        if name in AS_NUMBERS:
            result = replace(result, error=100 * result.error / variance)
        measured[form] = asdict(result)
        tell(f"{name}: {result}")
    return measured


def forms_page(entries: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of forms; a prediction counts the bytes of its angles."""
    yield "## Fewer bytes"
    rows = []
    for name, measured in entries.items():
        for form, run in measured.items():
            M = run["settings"]["features"]
            angle = FORMS[form].get("bits", 16) // 8
            rows.append(
                {
                    "": name + " (numbers)" * (name in AS_NUMBERS),
                    "form": form,
                    "rows": f"{run['settings']['rows']:,}",
                    "features": f"{M:,}",
                    "error in %": f"{run['error']:.2f}",
                    "MB": f"{run['bytes'] / 1e6:.1f}",
                    "round trips": str(run["round_trips"]),
                    "seconds": f"{run['seconds']:.0f}",
                    "predict 10,000 rows, MB": f"{(PARTIES + 1) * angle * M / 100:.0f}",
                }
            )
    yield table(rows)


# --- Regression ---------------------------------------------------------------------


def regression(
    name: str, folder: Path | None, *, rows: int, seeds: int
) -> dict[str, Any]:
    """Return the errors of FDSKL and of pooled models on a set with numbers.

    They are mean squared errors over the variance of the labels, in ``scores`` as in
    :func:`errors`. The model of ``SecureRidge`` is made from pooled columns.
    """
    measured = []
    for seed in range(seeds):
        data = load(name, folder, seed, rows * 3 // 4, rows // 4)
        n = len(data.X)
        X, y, _, _ = data.train_and_test()
        few, every = (svm(data, max_rows=m, seed=seed) for m in (8000, n))
        for result in (
            fitted("SecureRidge", partial(secure_ridge, X, y, PARTIES, seed), data),
            score("direct, 64 MB", data, seed, target="continuous", loss="square"),
            replace(few, name=f"SVR, {few.settings['rows']:,} rows"),
            replace(every, name="SVR, all rows"),
            fitted("kernel ridge", partial(tuned_alike, "kernel", X, y, seed), data),
            replace(gradient_boosting(data, seed=seed), name="boosted trees"),
        ):
            measured.append(asdict(result) | {"seed": seed})
            tell(f"{name} {seed}: {result.name}: {result.error:.4f}")
    return {"n": n, "widths": list(data.widths), "scores": measured}


def regression_page(entries: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of regression."""
    yield "## Regression"
    yield table(
        {"": name} | errors_of_methods(entry, 3) for name, entry in entries.items()
    )


# --- Defaults -----------------------------------------------------------------------


def defaults(
    name: str,
    folder: Path | None,
    *,
    rows: int,
    seeds: int,
    budgets: Sequence[int] = (),
) -> dict[str, Any]:
    """Train `DEFAULTS` on at most 9,000 rows, with a budget instead of their defaults.

    Errors are in percent, or mean squared errors over the variance; ``base`` is the
    error of the most frequent class, or of the mean.
    """
    given: dict[str, Any] = {"bits": "auto"} | (
        {"budget": budgets[0]} if budgets else {}
    )
    rows = min(rows, 13_000)
    if name in SEVERAL:
        given["target"] = "multiclass"
    elif name in AS_NUMBERS:
        given |= {"target": "continuous", "loss": "square"}
    bases: list[float] = []
    scores: dict[str, list[dict[str, Any]]] = {form: [] for form in DEFAULTS}
    for seed in range(seeds):
        data = load(name, folder, seed, rows * 9 // 13, rows * 4 // 13)
        y = data.train_and_test()[3]
        counts = np.unique(y, return_counts=True)[1]
        real = name in AS_NUMBERS
        bases.append(float(y.var()) if real else 100 * (1 - counts.max() / len(y)))
        for form, settings in DEFAULTS.items():
            result = asdict(score(form, data, seed, **given | settings))
            result["error"] /= bases[-1] if real else 1
            scores[form].append(result)
            tell(f"{name} {seed}, {form}: {result}")
    base = 1.0 if name in AS_NUMBERS else float(np.mean(bases))
    return {"base": base, "rows": len(data.X), "scores": scores}


def defaults_page(entries: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of defaults."""
    yield "## Defaults"
    rows = []
    for name, cell in entries.items():
        digits = 3 if name in AS_NUMBERS else 2
        row = {"": name, "rows": f"{cell['rows']:,}"}
        row["base"] = f"{cell['base']:.{digits}f}"
        for form, runs in cell["scores"].items():
            errors = [run["error"] for run in runs]
            row[form] = f"{np.mean(errors):.{digits}f} ({np.std(errors):.{digits}f})"
        for form, runs in cell["scores"].items():
            size = np.mean([run["bytes"] for run in runs]) / 1e6
            row[f"{form}: MB, round trips"] = f"{size:.1f}, {runs[0]['round_trips']}"
        rows.append(row)
    yield table(rows)


# --- Topologies ---------------------------------------------------------------------


def topologies(
    counts: Sequence[int] = (2, 3, 4, 8, 16), *, rows: int = 1024, features: int = 256
) -> list[dict[str, Any]]:
    """Send one block of `rows` x `features` sums along each topology.

    `counts` are the numbers of parties, each with two columns.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 2 * max(counts)))
    y = np.where(X[:, 0] * X[:, 2] > 0, 1.0, -1.0)
    measured: list[dict[str, Any]] = []
    for count in counts:
        blocks = np.split(X[:, : 2 * count], count, axis=1)
        parties = [Party(block) for block in blocks[:-1]] + [Party(blocks[-1], y=y)]
        for topology in get_args(Topology):
            strategy = FDSKLDirect(
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
            measured.append(
                {
                    "parties": count,
                    "topology": topology,
                    "round_trips": ledger.of("fdskl_angles").round_trips,
                    "bytes_up": sums.bytes_up,
                    "bytes_down": sums.bytes_down,
                    "error": test_error(result.model.predict(blocks), y),
                }
            )
            tell(f"{measured[-1]}")
    return measured


def topologies_page(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of topologies."""
    rows: dict[int, dict[str, str]] = {}
    for figure in ("round_trips", "bytes_up", "bytes_down"):
        for run in measured:
            row = rows.setdefault(run["parties"], {"parties": str(run["parties"])})
            if figure == "round_trips":
                row[f"round trips, {run['topology']}"] = str(run[figure])
            else:
                name = f"MB {figure.removeprefix('bytes_')}, {run['topology']}"
                row[name] = f"{run[figure] / 1e6:.2f}"
    yield "## Star, ring and tree"
    yield table(rows.values())


# --- Time against size --------------------------------------------------------------


def scaling(
    name: str,
    folder: Path | None,
    *,
    sizes: Iterable[int] = SIZES,
    test: int = 5000,
    memory_limit: int = PP_SVMV_MEMORY,
) -> list[dict[str, Any]]:
    """Train FDSKL and PP-SVMV on more and more rows."""
    measured: list[dict[str, Any]] = []
    for n in sizes:
        data = load(name, folder, 0, n, test)
        if len(data.X) != n:
            break
        line: dict[str, Any] = {"n": n, "fdskl": asdict(score("FDSKL", data, 0))}
        try:
            machine = pp_svmv(data, grid=[(10.0, 4.0)], memory_limit=memory_limit)
            line["pp_svmv"] = asdict(machine)
        except ValueError as reason:
            line["pp_svmv"] = str(reason)
        measured.append(line)
        tell(f"{name}: {line}")
    return measured


def scaling_page(entries: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of training times of each data set."""
    for name, lines in entries.items():
        rows = []
        for line in lines:
            rows.append({"rows": f"{line['n']:,}"})
            for method in ("FDSKL", "PP-SVMV"):
                run = line[method.lower().replace("-", "_")]
                texts = [f"out of memory: {8 * line['n'] ** 2 / 1e9:,.0f} GB", "", ""]
                if not isinstance(run, str):
                    texts = [f"{run['seconds']:.1f}", f"{run['bytes'] / 1e6:,.0f}"]
                    texts += [f"{run['error']:.1f}"]
                figures = (f"{method}: {k}" for k in ("seconds", "MB", "error in %"))
                rows[-1] |= zip(figures, texts, strict=True)
        yield f"## Training time against rows: {name}"
        yield table(rows)


# --- The command --------------------------------------------------------------------

app = new_app()
NAMES = [*DATASETS, *NUMBERS]
EVERY = [*CLASSES, *SEVERAL, *AS_NUMBERS]
TABLES: dict[str, tuple[Callable[..., Any], Callable[..., Iterator[str]], Any, Any]] = {
    "errors": (errors, errors_page, DATASETS, CLASSES),
    "splits": (splits, splits_page, DATASETS, CLASSES),
    "whole": (
        *(partial(splits, whole=True), partial(splits_page, title="All rows")),
        *(DATASETS, CLASSES),
    ),
    "regression": (regression, regression_page, NUMBERS, AS_NUMBERS),
    "forms": (forms, forms_page, NAMES, EVERY),
    "defaults": (defaults, defaults_page, OF_DEFAULTS, EVERY),
    "topologies": (topologies, topologies_page, (), ()),
    "scaling": (scaling, scaling_page, ("covtype",), CLASSES),
}
"""For each table: function, page, default data sets and all data sets."""


@app.command()
def main(
    context: typer.Context,
    tables: Annotated[list[str], tables_of(TABLES)],
    datasets: Annotated[
        list[str] | None, some_of(EVERY, "Data sets; default: of each table.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Splits of each data set.")] = 3,
    rows: Annotated[int, typer.Option(min=8, help="Of each data set.")] = 20_000,
    budgets: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Bytes of angles that a party sends."),
    ] = None,
    sizes: Annotated[list[int], typer.Option(min=1, help="Rows of scaling.")] = SIZES,
    data_dir: DataDir = None,
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Reproduce the experiments of the FDSKL paper.

    The page is written after each data set, whole or not at all.
    """
    options: dict[str, Any] = {"rows": rows, "seeds": seeds, "sizes": sizes}
    options["budgets"] = sorted(budgets or [])
    for name in tables:
        results = Results(context, "fdskl", name)
        measure, write, some, every = TABLES[name]
        taken = inspect.signature(measure).parameters
        given = {k: value for k, value in options.items() if k in taken and value}
        chosen = [dataset for dataset in datasets or some if dataset in every]
        entries: Any = topologies() if name == "topologies" else {}
        for dataset in chosen:
            with results.skipping(dataset, chosen):
                entries[dataset] = measure(dataset, data_dir, **given)
                results.write(entries, write(entries))
        tell(results.write(entries, write(entries)))
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.fdskl")
