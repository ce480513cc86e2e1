"""The only writer of results: JSON, Markdown and models, and what a run prints."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from vfl_flower.files import write_whole
from vfl_flower.protocol.strategy import ProtocolResult

SPREAD = "_se"
"""How the name of a standard error ends: it stands beside the number that it is of."""


def write_report(
    folder: Path, results: Mapping[str, ProtocolResult], settings: Mapping[str, Any]
) -> str:
    """Write the results of a run into a folder.

    Parameters
    ----------
    folder : Path
        Created if it does not exist.
    results : mapping of str to ProtocolResult
        By the name of the variant, such as its sampling.
    settings : mapping
        The run config.

    Returns
    -------
    str
        The report as text: a table of the results, the ledger of the first result, and
        the folder, which has ``result.json``, ``report.md`` and ``model-<name>.npz``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        name: {
            "seed": result.seed,
            "model": result.model.number,
            "warnings": list(result.warnings),
            "metrics": {
                t: {metric: _number(value) for metric, value in metrics.items()}
                for t, metrics in result.train_metrics_clientapp.items()
            },
            **({"curves": dict(result.curves)} if result.curves else {}),
            "ledger": result.ledger.to_dict(),
        }
        for name, result in results.items()
    }
    write_text(
        folder / "result.json",
        json.dumps({"run_config": dict(settings), "results": figures}, indent=1),
    )
    for name, result in results.items():
        result.model.save(folder / f"model-{name}.npz")
    first = next(iter(results))
    table = markdown_table(*summary_rows(results))
    note = results[first].model.note
    kept = f"\n\n{note}" if note else ""
    kept += "".join(f"\n\nWarning: {text}." for text in warnings_of(results))
    ledger = results[first].ledger.table()
    write_text(
        folder / "report.md",
        f"# {settings.get('strategy', 'Result')}\n\n{table}{kept}\n\n"
        f"## Ledger of {first}\n\n"
        f"```\n{ledger}\n```\n",
    )
    return f"{table}\n\nledger of {first}:\n{ledger}{kept}\n\nresults in {folder}"


def warnings_of(results: Mapping[str, ProtocolResult]) -> list[str]:
    """Return why results may be worse than they should be, a sentence each."""
    several = len(results) > 1
    return [
        f"{name}: {warning}" if several else warning
        for name, result in results.items()
        for warning in result.warnings
    ]


def _number(value: Any) -> Any:
    """Return a value for JSON: as text if it is infinite or NaN, which JSON lacks."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def summary_rows(
    results: Mapping[str, ProtocolResult],
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the table of results, a column for each."""
    names = dict.fromkeys(
        name for result in results.values() for name in result.metrics
    )
    rows = [
        [name, *(_cell(result.metrics, name) for result in results.values())]
        for name in names
        if not (name.endswith(SPREAD) and name.removesuffix(SPREAD) in names)
    ]
    costs = {
        "round trips": lambda result: f"{result.ledger.round_trips}",
        "bytes up": lambda result: f"{result.ledger.bytes_up:,}",
        "evaluation bytes up": lambda result: f"{result.evaluation.bytes_up:,}",
        "bytes down": lambda result: f"{result.ledger.bytes_down:,}",
        "units": lambda result: f"{result.ledger.units:,}",
        "seconds": lambda result: f"{result.ledger.seconds_waited:.2f}",
    }
    rows += [[cost, *map(of, results.values())] for cost, of in costs.items()]
    return ["", *results], [[row[0].replace("_", " "), *row[1:]] for row in rows]


def _cell(metrics: Mapping[str, Any], name: str) -> str:
    """Return a metric, with its standard error where it has one."""
    if (value := metrics.get(name)) is None:
        return ""
    spread = metrics.get(f"{name}{SPREAD}")
    return f"{value:.6g}" + ("" if spread is None else f" +- {spread:.2g}")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns."""
    table = Table(*header, box=MARKDOWN)
    for column in table.columns:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    Console(file=text, width=10**4, highlight=False, markup=False).print(table)
    lines = text.getvalue().strip().splitlines()
    lines[1] = lines[1].replace("-|", ":|")  # rich writes no alignment in Markdown
    return "\n".join(lines)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    write_whole(path, text.encode())
