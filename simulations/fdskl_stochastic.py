"""The doubly stochastic solver of FDSKL: blocks, and what its error depends on.

::

    python -m simulations.fdskl_stochastic defaults
    python -m simulations.fdskl_stochastic blocks --datasets ijcnn1
    python -m simulations.fdskl_stochastic changes

========  ===========================================================================
defaults  the implicit step and the published update at their defaults, and the direct
          solver at its own
blocks    one instance and one feature an iteration, as in [1], beside blocks of them,
          at the same number of inner products
changes   many draws of one split, with one thing changed at a time
========  ===========================================================================

Data, parties and columns are those of :mod:`simulations.fdskl`.

[1] B. Gu, Z. Dang, X. Li, H. Huang, "Federated Doubly Stochastic Kernel Learning for
    Vertically Partitioned Data", KDD 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from simulations.baselines import Score, central_dsg
from simulations.experiments import (
    OUTPUT,
    Columns,
    DataDir,
    OutputDir,
    Results,
    new_app,
    some_of,
    table,
    tables_of,
    tell,
)
from simulations.fdskl import (
    AS_NUMBERS,
    BLOCKS,
    CLASSES,
    DATASETS,
    NUMBERS,
    SEVERAL,
    STEPS,
    iterations,
    load,
    published,
    score,
    tuned,
)

BUDGETS = {
    "defaults": [],
    **{"blocks": [1_000_000, 4_000_000], "changes": [1_000_000, 64_000_000]},
}
"""Bytes of angles that a party sends, by table; none: the default."""

FORMS: dict[str, dict[str, Any]] = {
    "direct": {"bits": 8},
    "implicit": {"solver": "doubly-stochastic"},
    "explicit": {"solver": "doubly-stochastic", "step": "explicit"},
}
"""Settings of the table of defaults."""

TUNING = 5
"""Draws of pooled DSG whose mean test error chooses a step or a block."""

Figures = dict[str, Any]


def pooled_draws(
    data: Columns, budget: int, block: int, step: float, draws: int, **more: Any
) -> list[float]:
    """Return test errors of pooled DSG on other rows and features each time."""
    settings = {"regularization": 1 / len(data.X), **more}
    T = iterations(budget, block)
    return [
        central_dsg(
            data, block=block, step=step, iterations=T, seed=seed, **settings
        ).error
        for seed in range(draws)
    ]


def tuned_over_draws(
    data: Columns, budget: int, blocks: Sequence[int]
) -> tuple[int, float]:
    """Return the block and the step with the least mean test error of some draws.

    This favours DSG, as :func:`simulations.fdskl.tuned` does, but not one draw of it.
    """
    return min(
        product(blocks, STEPS),
        key=lambda pair: np.mean(pooled_draws(data, budget, pair[0], pair[1], TUNING)),
    )


def federated(
    data: Columns, seed: int, budget: int, block: int, step: float, **more: Any
) -> Score:
    """Train with the doubly stochastic solver."""
    most = {"budget": 4 * budget}  # in float64 as many angles have as many bytes
    chosen = published(budget, block, step) | most | more
    return score("doubly stochastic", data, seed, **chosen)


# --- Defaults -------------------------------------------------------------------------


def defaults(
    name: str, folder: Path | None, *, budgets: Sequence[int], rows: int, seeds: int
) -> list[Figures]:
    """Train the forms at their defaults, with less bytes where a budget is given.

    Returns
    -------
    list of dict
        ``data``, ``base`` (error of the most frequent class, or of the mean), and
        ``scores`` by form: error in %, or mean squared error over the variance.

    Raises
    ------
    MissingData
        The data set is not there.
    """
    given: Figures = {"bits": "auto"} | ({"budget": budgets[0]} if budgets else {})
    if name in SEVERAL:
        given["target"] = "multiclass"
    elif name in AS_NUMBERS:
        given |= {"target": "continuous", "loss": "square"}
    bases: list[float] = []
    scores: dict[str, list[Figures]] = {form: [] for form in FORMS}
    for seed in range(seeds):
        data = load(name, folder, seed, rows * 9 // 13, rows * 4 // 13)
        y = data.train_and_test()[3]
        counts = np.unique(y, return_counts=True)[1]
        real = name in AS_NUMBERS
        bases.append(float(y.var()) if real else 100 * (1 - counts.max() / len(y)))
        for form, settings in FORMS.items():
            result = asdict(score(form, data, seed, **given | settings))
            result["error"] /= bases[-1] if real else 1
            scores[form].append(result)
            tell(f"{name} {seed}, {form}: {result}")
    base = 1.0 if name in AS_NUMBERS else float(np.mean(bases))
    return [{"data": name, "base": base, "rows": len(data.X), "scores": scores}]


def defaults_page(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of defaults."""
    yield "## Defaults"
    rows = []
    for cell in measured:
        digits = 3 if cell["data"] in AS_NUMBERS else 2
        row = {"": cell["data"], "rows": f"{cell['rows']:,}"}
        row["base"] = f"{cell['base']:.{digits}f}"
        for form, runs in cell["scores"].items():
            errors = [run["error"] for run in runs]
            row[form] = f"{np.mean(errors):.{digits}f} ({np.std(errors):.{digits}f})"
        for form, runs in cell["scores"].items():
            size = np.mean([run["bytes"] for run in runs]) / 1e6
            row[f"{form}: MB, round trips"] = f"{size:.1f}, {runs[0]['round_trips']}"
        rows.append(row)
    yield table(rows)


# --- Blocks ---------------------------------------------------------------------------


def blocks(
    name: str, folder: Path | None, *, budgets: Sequence[int], rows: int, seeds: int
) -> list[Figures]:
    """Train with blocks of 1, 16 and 64, with about as many inner products.

    The step of each is that of the least mean test error of pooled DSG on the first
    split. The direct solver with the same bytes comes first.

    Returns
    -------
    list of dict
        ``data``, ``budget``, ``block`` (0: direct), and ``scores`` of the splits.

    Raises
    ------
    MissingData
        The data set is not there.
    """
    splits = [load(name, folder, s, rows * 3 // 4, rows // 4) for s in range(seeds)]
    measured = []
    for budget in budgets:
        runs = {0: partial(score, "direct", budget=budget)}
        for block in (1, *BLOCKS):
            _, step = tuned_over_draws(splits[0], budget, [block])
            runs[block] = partial(federated, budget=budget, block=block, step=step)
        for block, run in runs.items():
            scores = [asdict(run(data, seed=s)) for s, data in enumerate(splits)]
            cell = {"data": name, "budget": budget, "block": block, "scores": scores}
            measured.append(cell)
            tell(f"{name}, {budget / 1e6:g} MB, block {block}: {scores}")
    return measured


def blocks_page(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of blocks."""
    yield "## Blocks"
    rows = []
    for cell in measured:
        scores, block = cell["scores"], cell["block"]
        first = scores[0]["settings"]
        errors = [run["error"] for run in scores]
        size = sum(run["bytes"] for run in scores) / len(scores) / 1e6
        products = first["features"] * (
            (first["features"] + block) / 2 if block else first["rows"]
        )
        rows.append(
            {
                "": cell["data"],
                "budget": f"{cell['budget'] / 1e6:g} MB",
                "solver": f"block {block}" if block else "direct",
                "step": f"{first['step']:g}" if block else "",
                "inner products": f"{products:,.0f}",
                "error in % (std)": mean_and_std(errors),
                "MB": f"{size:,.1f}",
                "round trips": f"{scores[0]['round_trips']:,}",
                "seconds": f"{np.mean([run['seconds'] for run in scores]):.1f}",
                "splits": str(len(scores)),
            }
        )
    yield table(rows)


def mean_and_std(errors: Sequence[float]) -> str:
    """Return mean and standard deviation of some errors, as a cell."""
    deviation = f" ({np.std(errors, ddof=1):.2f})" if len(errors) > 1 else ""
    return f"{np.mean(errors):.2f}{deviation}"


# --- One change at a time -------------------------------------------------------------


def changes(
    name: str,
    folder: Path | None,
    *,
    budgets: Sequence[int],
    rows: int,
    draws: int,
) -> list[Figures]:
    """Return the errors of many draws on the first split, one thing changed at a time.

    Block and step are those of the least mean error of pooled DSG. The last change is
    how :func:`simulations.fdskl.errors` chooses them: by the error of one draw. With
    all but the least budget the only change is that of pooled columns, in half as many
    draws with the largest block.

    Returns
    -------
    list of dict
        ``data``, ``budget``, ``change``, ``errors`` of the draws, and ``block`` and
        ``step``.

    Raises
    ------
    MissingData
        The data set is not there.
    """
    data = load(name, folder, 0, rows * 3 // 4, rows // 4)
    n, measured = len(data.X), []
    for budget in budgets:
        every = budget == min(budgets)
        count = draws if every else draws // 2
        block, step = tuned_over_draws(data, budget, BLOCKS if every else BLOCKS[-1:])
        settings: Figures = {"budget": budget, "block": block, "step": step}
        pooled = partial(pooled_draws, data, draws=count, **settings)

        def errors_with(
            count: int = count, settings: Figures = settings, **change: Any
        ) -> list[float]:
            given = settings | change
            return [federated(data, seed, **given).error for seed in range(count)]

        lines = {
            "pooled, the same settings": pooled(),
            "in the protocol": errors_with(),
        }
        if every:
            other = next(one for one in BLOCKS if one != block)
            lines |= {
                "angles in float64": errors_with(masking="plain"),
                "features that all know": errors_with(masking="paper", topology="ring"),
                f"block {other}": errors_with(block=other),
                "a third of the step": errors_with(step=step / 3),
                "three times the step": errors_with(step=3 * step),
                "ten times lambda": errors_with(regularization=10 / n),
                "pooled, step / t": pooled(diminishing=True),
                "pooled, mean of the last half of f_t": pooled(averaged=True),
                "pooled, the best of ten settings in each draw": [
                    tuned(data, budget, seed).error for seed in range(count)
                ],
            }
        for change, errors in lines.items():
            cell = {"data": name, "budget": budget, "change": change}
            measured.append(cell | {"block": block, "step": step, "errors": errors})
            tell(f"{name}, {budget / 1e6:g} MB, {change}: {mean_and_std(errors)}")
    return measured


def changes_page(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of changes."""
    yield "## One change at a time"
    rows = []
    for cell in measured:
        errors = cell["errors"]
        deviation = np.std(errors, ddof=1) / np.sqrt(len(errors))
        rows.append(
            {
                "": cell["data"],
                "budget": f"{cell['budget'] / 1e6:g} MB",
                "block, step": f"{cell['block']}, {cell['step']:g}",
                "change": cell["change"],
                "error in % (std)": mean_and_std(errors),
                "standard error of the mean": f"{deviation:.2f}",
                "least and largest": f"{min(errors):.2f}, {max(errors):.2f}",
                "draws": str(len(errors)),
            }
        )
    yield table(rows)


# --- The command ----------------------------------------------------------------------

PAGES: dict[str, Callable[[Sequence[Mapping[str, Any]]], Iterator[str]]] = {
    "defaults": defaults_page,
    "blocks": blocks_page,
    "changes": changes_page,
}

app = new_app()
TABLES = ("defaults", "blocks", "changes")
NAMES = [*DATASETS]
OF_DEFAULTS = ("ijcnn1", "a9a", *SEVERAL, "cod_rna", "phishing", "w8a", *NUMBERS)
ALL_NAMES = dict.fromkeys([*CLASSES, *SEVERAL, *AS_NUMBERS])


@app.command()
def main(
    context: typer.Context,
    tables: Annotated[list[str], tables_of(TABLES)],
    datasets: Annotated[
        list[str] | None, some_of(ALL_NAMES, "Data sets; by default those of a table.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Splits, but for changes.")] = 3,
    draws: Annotated[int, typer.Option(min=4, help="Draws for changes.")] = 20,
    rows: Annotated[
        int | None, typer.Option(min=26, help="13,000 for defaults, else 20,000.")
    ] = None,
    budgets: Annotated[
        list[int] | None, typer.Option(min=1, help="Bytes of angles of a party.")
    ] = None,
    data_dir: DataDir = None,
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Measure the doubly stochastic solver."""
    measures: dict[str, Callable[..., list[Figures]]] = {
        "defaults": partial(defaults, seeds=seeds),
        "blocks": partial(blocks, seeds=seeds),
        "changes": partial(changes, draws=draws),
    }
    for name in tables:
        results = Results(context, "fdskl_stochastic", name)
        measured: list[Figures] = []
        of = name == "defaults"
        some = datasets or (OF_DEFAULTS if of else NAMES)
        for dataset in some:
            with results.skipping(dataset, some):
                measured += measures[name](
                    dataset,
                    data_dir,
                    budgets=budgets or BUDGETS[name],
                    rows=rows or (13_000 if of else 20_000),
                )
        tell(results.write(measured, PAGES[name](measured)))
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.fdskl_stochastic")
