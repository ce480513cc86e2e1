"""``FDSKL(solver="moments")`` beside boosted trees, and what it costs, as one page.

The command measures cell after cell, writes the page after each, and goes on with the
cells that are missing if it was ended::

    python -m simulations.kernel_moments --output-dir docs/papers

==========  ========================================================================
errors      test errors of moments, linear, kernel and boosted models
parties     the protocol with 2, 3 and 5 parties beside its model from pooled columns
gram        Gram matrices under shares beside NumPy's
roles       seconds, memory and bytes of each role
coresets    ``CoresetVRLR(solver="moments")`` beside least squares on all rows
==========  ========================================================================

``--quick`` takes a minute, on generated rows alone, and always begins anew. ``--check``
writes nothing: it fails unless the page is that of the figures beside it and some cheap
cells give the same figures again. The data are npz files with X and y in ``--data-dir``
or the folder ``VFL_FLOWER_DATA``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

import click
import numpy as np
import typer

from simulations.baselines import KERNEL_ROWS, TUNED_ON
from simulations.experiments import (
    OUTPUT,
    DataDir,
    OutputDir,
    Results,
    new_app,
    some_of,
    table,
    tables_of,
    tell,
)
from simulations.moments_cells import (
    CORESET,
    COVTYPE_ROWS,
    EQUAL,
    EQUAL_ROWS,
    FULL,
    MODELS,
    QUICK,
    Figures,
    Size,
    Target,
    plan,
    role_cell,
)
from simulations.moments_costs import COLUMNS, ROLES

NOT_MEASURED = "not measured"
Cells = Mapping[str, Figures]
"""Figures by the names of cells, such as "errors kc_house 20 boosting"."""

STEM = "fdskl-moments-results"
TABLES = ("errors", "parties", "gram", "roles", "coresets")


# --- The page -----------------------------------------------------------------------


def seeds_of(cells: Cells, size: Size, name: str, figure: str = "error") -> list[float]:
    """Return a figure of each seed that was measured; `name` has {} for the seed."""
    found = [cells.get(name.format(seed), {}).get(figure) for seed in size.seeds]
    return [value for value in found if value is not None]


def mean_of(values: Sequence[float], digits: int) -> str:
    """Return the mean, and in brackets the values, if there are several."""
    if not values:
        return NOT_MEASURED
    mean = f"{np.mean(values):.{digits}f}"
    each = ", ".join(f"{value:.{digits}f}" for value in values)
    return f"{mean} ({each})" if len(values) > 1 else mean


def verdict(means: Mapping[str, float], target: Target) -> tuple[str, str]:
    """Return how far moments is behind, and whether that meets the target.

    Parameters
    ----------
    means : dict of str to float
        Mean error of each model that was measured with all seeds.
    target : Target
        What is asked for. Without all its models moments may be further behind.
    """
    others = [means[model] for model in target.others if model in means]
    if "moments" not in means or not others:
        return NOT_MEASURED, NOT_MEASURED
    ours, best = means["moments"], min(others)
    behind = ours / best if target.unit == "times" else ours - best
    far, lacking = behind > target.limit, len(others) < len(target.others)
    met = "no" if far else NOT_MEASURED if lacking else "yes"
    digits = 3 if target.unit == "times" else 2
    return f"{'at least ' * lacking}{behind:.{digits}f} {target.unit}", met


def mean_errors(cells: Cells, size: Size, name: str) -> dict[str, float]:
    """Return the mean error on one set of each model that has all seeds."""
    found = {
        model: seeds_of(cells, size, f"errors {name} {{}} {model}") for model in MODELS
    }
    return {
        model: float(np.mean(values))
        for model, values in found.items()
        if len(values) == len(size.seeds)
    }


def error_row(cells: Cells, size: Size, name: str) -> dict[str, str]:
    """Return the errors on one set, who wins, and whether the target is met."""
    target = size.targets[name]
    row, means = {"set": _unit(size, name)}, mean_errors(cells, size, name)
    for model in MODELS:
        values = seeds_of(cells, size, f"errors {name} {{}} {model}")
        if values or model != EQUAL:
            row[model] = mean_of(values, _digits(size, name))
    row["moments behind"], row["met"] = verdict(means, target)
    others = " and ".join(target.others)
    better = "the better of " * (len(target.others) > 1)
    row["target"] = f"at most {target.limit} {target.unit} of {better}{others}"
    if target.unit == "points":
        row["target"] = row["target"].replace(" of ", " behind ", 1)
    row["wins"] = NOT_MEASURED
    if {"moments", "boosting"} <= means.keys():
        row["wins"] = min(means, key=lambda model: means[model])
        row["wins"] += "" if "kernel" in means else ", without kernel"
    return row


DETAILS = {"AUC": ("auc", 3), "log loss": ("log_loss", 3), "seconds": ("seconds", 0)}
"""Further columns: figure, and digits."""


def details(cells: Cells, size: Size, name: str) -> Iterator[dict[str, str]]:
    """Yield a row for each model of one set: rows, other errors, what was chosen."""
    for model in MODELS:
        place = f"errors {name} {{}} {model}"
        found = [cells[k] for s in size.seeds if (k := place.format(s)) in cells]
        if not found:
            continue
        row = {
            "set": name,
            "model": model,
            "rows": f"{found[0]['rows']:,} of {found[0]['train']:,}",
        }
        for title, (figure, digits) in DETAILS.items():
            values = seeds_of(cells, size, place, figure)
            row[title] = mean_of(values, digits) if values else ""
        row["chosen, first seed"] = ", ".join(
            f"{key} {value:.3g}" for key, value in found[0].get("chosen", {}).items()
        )
        yield row


def shown(rows: Iterable[Mapping[str, str]]) -> str:
    """Return a table, or that there are no rows."""
    return table(rows) or "Not measured yet."


def errors_page(cells: Cells, size: Size) -> Iterator[str]:
    """Yield the table of errors, and where boosted trees win."""
    yield "## Test errors, and where boosted trees still win"
    rows = [error_row(cells, size, name) for name in size.targets]
    trees, others, missed, unknown = [], [], [], []
    for name, row in zip(size.targets, rows, strict=True):
        if row["wins"].startswith("boosting"):
            lacking = row["wins"].endswith("without kernel")
            trees.append(name + " (kernel not measured)" * lacking)
        elif row["wins"] != NOT_MEASURED:
            others.append(f"{name} ({row['wins']})")
        missed += [name] if row["met"] == "no" else []
        unknown += [name] if NOT_MEASURED in (row["met"], row["wins"]) else []
    unjudged = ""
    if unknown:
        unjudged = f"; too little is measured to say so of {_listed(unknown)}"
    yield f"""
        Boosted trees have the lowest mean error on {_listed(trees)}; another model has
        it on {_listed(others)}. The target is missed on {_listed(missed)}{unjudged}.
    """
    yield shown(rows)
    yield f"""
        Mean over the seeds, and each seed in brackets: of numbers (kc_house) the
        mean squared error over the variance of the test labels, of classes the
        wrong ones in %. A fifth of the rows is for tests, on which no choice was
        made; covtype has {COVTYPE_ROWS:,} random rows, class 2 against the rest.
        Each model is tuned on two halves of the training rows. *moments* has its
        defaults and three parties; its columns are pooled here, which gives the
        model of a run ([below](#two-three-and-five-parties)); *one turn* is
        `relevance=false`. *linear* is ridge or logistic regression. *kernel* is
        kernel ridge regression or a support vector machine (SVC), tuned on
        {TUNED_ON:,} rows and fitted on at most {KERNEL_ROWS:,}. *boosting* is
        scikit-learn's histogram gradient boosting; *equal rows*: on {EQUAL_ROWS:,}
        rows, the most that moments takes with all its features. Seconds are those
        of tuning and fitting, by the clock of a machine that other work kept busy.
    """
    yield shown(row for name in size.targets for row in details(cells, size, name))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _digits(size: Size, name: str) -> int:
    return 3 if size.targets[name].unit == "times" else 2


def _unit(size: Size, name: str) -> str:
    return name if size.targets[name].unit == "times" else f"{name}, %"


def gram_page(cells: Cells, size: Size) -> Iterator[str]:
    """Yield the errors of Gram matrices."""
    yield "## The Gram matrix under shares beside NumPy's"
    yield """
        Joint features alone, from random angles: NumPy takes the cosines of the
        exact sums of the angles, in float64. The bound is that of `gram_error`, for
        errors that all point one way; the largest entries are about half the rows.
    """
    rows = []
    for counts in size.grams:
        if cell := cells.get("gram " + " ".join(map(str, counts))):
            names = ("rows", "features", "parties")
            rows.append(
                {k: f"{n:,}" for k, n in zip(names, counts, strict=True)}
                | {
                    "ring": f"{cell['bits']} bits",
                    "largest error": f"{cell['largest']:.3f}",
                    "bound": f"{cell['bound']:.1f}",
                    "root mean square": f"{cell['rms']:.4f}",
                    "mean of the diagonal": f"{cell['diagonal']:.1f}",
                }
            )
    yield shown(rows)


def roles_page(cells: Cells, size: Size) -> Iterator[str]:
    """Yield what each role takes, and how that grows."""
    yield "## Seconds, memory and bytes of each role"
    yield f"""
        Training on generated rows of {COLUMNS} columns, each party in a process of
        its own. NumPy: the Gram matrix and the fit, of pooled
        features, in each turn. A role: seconds of processor, how many times NumPy's
        that is, and the largest memory above that at the start of the run. The
        server deals, and has the messages of all.
    """
    roles, costs, sent = (*ROLES, "dealing server"), [], []
    found = [cells.get(role_cell(*run)) for run in size.runs]
    for (rows, joint, count, two), cell in zip(size.runs, found, strict=True):
        if cell is None:
            continue
        run = {
            "rows": f"{rows:,}",
            "joint + local": f"{joint:,} + {cell['local']}",
            "parties": str(count),
            "turns": "2" if two else "1",
        }
        used = {role: cell[role] for role in roles if role in cell}
        costs.append(
            run
            | {"NumPy": f"{cell['numpy']:.1f} s"}
            | {
                role: f"{of['seconds']:.1f} s, {of['seconds'] / cell['numpy']:.1f} x, "
                f"{of['megabytes'] / 1000:.2f} GB"
                for role, of in used.items()
            }
        )
        sent.append(
            run
            | {"round trips": str(cell["round_trips"])}
            | {
                f"{role}: {way}": f"{of[way]:.1f}"
                for role, of in used.items()
                for way in ("sent", "received")
                if way in of
            }
        )
    yield shown(costs)
    yield "Bytes of messages for each row and each feature of the model, of both turns:"
    yield shown(sent)
    yield "How seconds and memory grow from one of these runs to another:"
    grown = []
    for before, after in size.growth:
        first, last = found[before], found[after]
        if first is None or last is None:
            continue
        numbers = zip(size.runs[before], size.runs[after], strict=True)
        names = zip(
            ("rows", "joint features", "parties", "turns"), numbers, strict=True
        )
        row = {"": ", ".join(f"{m:,} to {n:,} {k}" for k, (m, n) in names if m != n)}
        for role in roles:
            if role in first and role in last:
                row[role] = ", ".join(
                    f"{last[role][figure] / first[role][figure]:.1f} x"
                    for figure in ("seconds", "megabytes")
                    if first[role][figure] > 0
                )
        grown.append(row)
    yield shown(grown)


def parties_page(cells: Cells, size: Size) -> Iterator[str]:
    """Yield the protocol beside the model from pooled columns."""
    yield "## Two, three and five parties"
    yield f"""
        {size.one}, seed {size.seeds[0]}, in one process with the defaults of FDSKL:
        the run under shares beside the same model from pooled columns. Off: the
        root mean square of the difference of their predictions of the test rows,
        over the standard deviation of these. Two runs under shares differ as well,
        by the rounding of joint features and by penalties that do equally well
        ([precision](fdskl.md#the-solver-moments)).
    """
    rows = []
    for count in size.parties:
        if cell := cells.get(f"parties {size.one} {count}"):
            rows.append(
                {
                    "parties": str(count),
                    "test error": f"{cell['error']:.4f}",
                    "of pooled columns": f"{cell['pooled_error']:.4f}",
                    "off": f"{cell['off']:.4f}",
                    "round trips to train": str(cell["train_trips"]),
                    "to predict": str(cell["predict_trips"]),
                    "MB to train, all": f"{cell['megabytes']:,.0f}",
                    "largest sender": f"{cell['largest']:,.0f}",
                    "MB to predict 1,000 rows": f"{cell['predict']:,.1f}",
                }
            )
    yield shown(rows)


def coresets_page(cells: Cells, size: Size) -> Iterator[str]:
    """Yield what linear regression from sums of products gives."""
    yield '## `CoresetVRLR(solver="moments")`'
    yield (
        f"{size.one}, coresets of {CORESET} rows: the mean squared error on all rows "
        "over that of least squares on all rows, pooled."
    )
    rows = []
    for count in size.parties:
        if cell := cells.get(f"coresets {size.one} {count}"):
            rows.append(
                {
                    "parties": str(count),
                    "loss ratio": f"{cell['ratio']:.4f}",
                    "largest": f"{cell['worst']:.4f}",
                    "repeats": str(cell["repeats"]),
                    "round trips": str(cell["round_trips"]),
                    "columns left out, all repeats": str(cell["left_out"]),
                }
            )
    yield shown(rows)
    if cell := cells.get("coresets flights"):
        yield (
            f"{cell['rows']:,} rows of flights, {cell['columns']} columns, three "
            "parties: the coefficients (of columns in standard deviations) are off "
            f"pooled least squares by {cell['coefficients']:.1e} of their length, and "
            f"the loss is larger by {cell['loss']:.1e} of itself; "
            f"{cell['round_trips']} round trips, {cell['megabytes']:,.0f} MB."
        )


def in_short(cells: Cells, size: Size) -> Iterator[str]:
    """Yield what a reader should take away, of what is measured: a list."""
    points = [
        *_errors_in_short(cells, size),
        *_costs_in_short(cells, size),
    ]
    if points:
        yield "## In short"
        yield "\n".join(f"- {' '.join(point.split())}" for point in points)


def _errors_in_short(cells: Cells, size: Size) -> Iterator[str]:
    errors = {name: mean_errors(cells, size, name) for name in size.targets}
    called = {
        "linear": "the linear model",
        "kernel": "the kernel model of pooled columns",
        "boosting": "boosted trees",
    }
    sentences = []
    for model, what in called.items():
        known = {k: of for k, of in errors.items() if {"moments", model} <= of.keys()}
        lower = [k for k, of in known.items() if of["moments"] < of[model]]
        other = _listed([k for k in known if k not in lower])
        where = f"on {len(lower)} of {len(known)} sets"
        if lower and len(lower) < len(known):
            where += f" (not on {other})"
        sentences += [f"that of {what} {where}"] if known else []
    if sentences:
        yield f"""**Test errors.** The mean test error of moments is below
            {", and below ".join(sentences)}."""
    judged = {k: verdict(of, size.targets[k])[1] for k, of in errors.items()}
    met, missed = ([k for k in judged if judged[k] == way] for way in ("yes", "no"))
    if met or missed:
        yield f"""**Targets**, which we had set ourselves, are met on {_listed(met)},
            and missed on {_listed(missed)}."""


def _costs_in_short(cells: Cells, size: Size) -> Iterator[str]:
    found = [cells.get(f"parties {size.one} {count}") for count in size.parties]
    if runs := [cell for cell in found if cell]:
        off = max(abs(cell["error"] - cell["pooled_error"]) for cell in runs)
        yield f"""**Runs of {size.one}.** The test error of a run under shares differs
            by at most {off:.4f} from that of the same model of pooled columns; training
            takes {_range(runs, "train_trips", "d")} round trips and
            {_range(runs, "megabytes", ",.0f")} MB of all parties, and predicting
            {_range(runs, "predict_trips", "d")} round trips."""
    found = [cells.get(role_cell(*run)) for run in size.runs]
    if costs := [cell | cell[ROLES[0]] for cell in found if cell]:
        for cell in costs:
            cell["times"] = cell["seconds"] / cell["numpy"]
        most = max(cell["megabytes"] for cell in costs) / 1000
        yield f"""**Work.** The {ROLES[0]} needs {_range(costs, "times", ".1f")} times
            the seconds that NumPy needs for the same matrices and fit of pooled
            columns, and at most {most:.2f} GB."""
    found = [cells.get(f"coresets {size.one} {count}") for count in size.parties]
    if ratios := [cell for cell in found if cell]:
        yield f"""**Linear regression** (`CoresetVRLR`) on coresets of {CORESET} rows
            has {_range(ratios, "ratio", ".3f")} times the loss of least squares on all
            rows, in the mean, and at most
            {max(cell["worst"] for cell in ratios):.3f} times."""


def _range(cells: Sequence[Figures], figure: str, form: str) -> str:
    """Return the least and the largest of a figure, or the one that all have."""
    ends = [f"{end(cell[figure] for cell in cells):{form}}" for end in (min, max)]
    return " to ".join(dict.fromkeys(ends))


PAGES = (errors_page, gram_page, roles_page, parties_page, coresets_page)


def paragraphs(measured: Mapping[str, Any], size: Size) -> Iterator[str]:
    """Yield headings, texts and tables of the page.

    Parameters
    ----------
    measured : dict
        ``cells``, and ``stamps``, to which each cell's ``stamp`` is an index.
    size : Size
        What is to be measured.
    """
    cells = measured["cells"]
    yield "# FDSKL from sums of products: measurements"
    quick = " --quick" if size is QUICK else " --output-dir docs/papers"
    yield f"    python -m simulations.kernel_moments{quick}"
    yield f"""
        This command has written this page and all its figures, which are beside it
        as JSON; it goes on where it was ended.
        [fdskl.md](fdskl.md#the-solver-moments) explains the method, and
        [experiments.md](../experiments.md#data) where the data come from. The seeds
        are {_listed([*map(str, size.seeds)])}, and those of coresets begin at 0.
    """
    numbers = [cell["stamp"] for cell in cells.values()]
    yield shown(
        {
            "cells": str(numbers.count(i)),
            "tables": _listed(
                sorted({k.split()[0] for k, c in cells.items() if c["stamp"] == i})
            ),
            **stamp,
        }
        for i, stamp in enumerate(measured["stamps"])
        if i in numbers
    )
    planned = [cell.name for cell in plan(size, None)]
    tables = dict.fromkeys(name.split()[0] for name in planned)
    missing = []
    for kind in tables:
        of_table = [name for name in planned if name.split()[0] == kind]
        if lacking := sum(name not in cells for name in of_table):
            missing.append(f"{lacking} of {len(of_table)} of {kind}")
    yield f"**Cells that are not measured yet**: {_listed(missing)}."
    yield from in_short(cells, size)
    for part in PAGES:
        yield from part(cells, size)


def page(measured: Mapping[str, Any], size: Size) -> Iterator[str]:
    """Yield the whole page, with wrapped lines; see :func:`paragraphs`."""
    for text in paragraphs(measured, size):
        if text.startswith(("|", "#", "    python")):
            yield text
        elif text.startswith("- "):
            points = text.splitlines()
            yield "\n".join(_wrapped(point, subsequent_indent="  ") for point in points)
        else:
            yield _wrapped(text)


def _wrapped(text: str, **options: Any) -> str:
    return fill(" ".join(text.split()), 100, break_on_hyphens=False, **options)


# --- The command --------------------------------------------------------------------

TOLERANCES = {
    **{"error": 0.02, "largest": 0.1, "rms": 0.1, "ratio": 0.01},
    **{"bits": 0.0, "local": 0.0, "round_trips": 0.0},
}
"""By how much of itself a figure may differ when it is measured again."""


def check(results: Results, size: Size, folder: Path | None) -> None:
    """Compare the page with its figures, and cheap cells with what they give now.

    Raises
    ------
    click.ClickException
        They differ.
    """
    measured = results.earlier()
    if measured is None:
        raise click.ClickException("there are no figures in --output-dir to check")
    text = results.stem.with_suffix(".md").read_text()
    faults = [] if text == results.text(page(measured, size)) else ["the page"]
    for cell in plan(size, folder):
        before = measured["cells"].get(cell.name)
        if before is None or not cell.cheap:
            continue
        if folder is None and cell.dataset in FULL.targets:
            continue
        now = cell.measure()
        for figure in TOLERANCES.keys() & now.keys():
            a, b = before[figure], now[figure]
            tell(f"{cell.name}: {figure} was {a:.6g}, is {b:.6g}")
            if abs(a - b) > TOLERANCES[figure] * abs(a):
                faults.append(f"{figure} of {cell.name}")
    if faults:
        raise click.ClickException(f"not as measured: {', '.join(faults)}")


app = new_app()
NAMES = [*FULL.targets, "flights"]


@app.command()
def main(
    context: typer.Context,
    tables: Annotated[list[str] | None, tables_of(TABLES)] = None,
    datasets: Annotated[
        list[str], some_of(NAMES, "Data sets of the tables that have some.")
    ] = NAMES,
    quick: Annotated[bool, typer.Option(help="A minute, on generated rows.")] = False,
    check_: Annotated[
        bool, typer.Option("--check", help="Compare with the figures there.")
    ] = False,
    data_dir: DataDir = None,
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Measure what is missing, all or some tables, and write the page."""
    size = QUICK if quick else FULL
    results = Results(context, "kernel_moments", "measured", STEM + "-quick" * quick)
    if check_:
        check(results, size, data_dir)
        return
    earlier = None if quick else results.earlier()
    measured = earlier or {"stamps": [], "cells": {}}
    stamp = results.stamp
    for cell in plan(size, data_dir):
        if cell.name in measured["cells"] or cell.dataset in results.skipped:
            continue
        if tables and cell.name.split()[0] not in tables:
            continue
        if cell.dataset in NAMES and cell.dataset not in datasets:
            continue
        with results.skipping(cell.dataset, datasets):
            figures = cell.measure()
            if stamp not in measured["stamps"]:
                measured["stamps"].append(stamp)
            figures["stamp"] = measured["stamps"].index(stamp)
            measured["cells"][cell.name] = figures
            results.write(measured, page(measured, size))
            tell(f"{cell.name}: {figures}")
    results.write(measured, page(measured, size))
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.kernel_moments")
