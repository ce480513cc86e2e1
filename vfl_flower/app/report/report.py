"""The only module that writes results: JSON, Markdown, models, page and figures."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from vfl_flower.app.plan.learned import who_learns
from vfl_flower.app.report.figures import figures_of
from vfl_flower.app.report.page import costs_of, metrics_of, page_of, warnings_of
from vfl_flower.files import write_whole
from vfl_flower.party.answering import hello
from vfl_flower.protocol.names import printable
from vfl_flower.protocol.settings import settings_of
from vfl_flower.protocol.terms import KINDS
from vfl_flower.server.strategy import ProtocolResult, ProtocolStrategy
from vfl_flower.version import __version__

RESULT, REPORT, PAGE, FIGURES = "result.json", "report.md", "report.html", "figures"
"""Names in a run's folder: the files with the numbers, the printed text and the page,
and the folder of figures. The page and the figures are made from the numbers."""

_TRACE = "round_trips", "bytes", "value"
"""The numbers at each point of a trace."""

MOST_COUNTS = 40
"""Maximum number of a model's counts in the result; the rest are added up."""


def write_report(
    folder: Path,
    results: Mapping[str, ProtocolResult],
    settings: Mapping[str, Any],
    command: str = "",
) -> str:
    """Write ``result.json``, ``report.md`` and the models; return the report as text.

    `results` maps variants, such as the sampling, to results. `settings` is the run
    config, and `command` starts the run again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = record_of(results, settings, command)
    write_text(folder / RESULT, json.dumps(record, indent=1))
    for name, result in results.items():
        result.model.save(folder / f"model-{name}.npz")
    first, shown = next(iter(results)), record["results"]
    ledger = results[first].ledger.table()
    lines = [["", *results]]
    for row in [*metrics_of(shown), *costs_of(shown)]:
        lines.append([row["name"].replace("_", " "), *row["values"]])
    notes = list(filter(None, [shown[first]["note"]]))
    for name, warning in warnings_of(shown):
        notes.append(f"Warning{f', {name}' if len(shown) > 1 else ''}: {warning}.")

    def results_as(show: Callable[[str], str]) -> str:
        cells = [list(map(show, line)) for line in lines]
        return "\n\n".join([markdown_table(cells[0], cells[1:]), *map(show, notes)])

    write_text(
        folder / REPORT,
        f"# {markdown(str(settings.get('strategy', 'Result')))}\n\n"
        f"{results_as(markdown)}\n\n## Ledger of {markdown(first)}\n\n"
        f"{textwrap.indent(ledger, '    ')}\n",
    )
    printed = results_as(printable)
    return f"{printed}\n\nledger of {first}:\n{ledger}\n\nresults in {folder}"


def markdown(text: str) -> str:
    r"""Return text that Markdown shows unchanged, on one line and in one cell.

    >>> print(markdown("a|b <script>"))
    a\|b \<script\>
    """
    return re.sub(r"([\\`*_\[\]<>|#&~!$])", r"\\\1", printable(text))


def page_text(result: ProtocolResult) -> str:
    """Return the report page of a result as text, without writing a file."""
    record = record_of({result.strategy.variant: result}, *of_python(result))
    # JSON turns all keys into text, as in a result that is read from its file.
    record = json.loads(json.dumps(record))
    return page_of(record, figures_of(record["results"]))


def of_python(result: ProtocolResult) -> tuple[dict[str, Any], str]:
    """Return a run config for a run from Python, and the call that repeats the run."""
    strategy = result.strategy
    settings = changed(strategy)
    given = ", ".join(f"{k}={v!r}" for k, v in settings.items() if k != "seed")
    name = type(strategy).__name__
    named = {"strategy": name, "task": strategy.task}
    return named, f"vf.simulate(vf.{name}({given}), parties, seed={result.seed})"


def changed(strategy: ProtocolStrategy) -> dict[str, Any]:
    """Return the settings, except folders, that differ from their defaults."""
    return {
        s.name: value if isinstance(value, bool | int | float | str) else str(value)
        for s in settings_of(type(strategy))
        if not s.folder and repr(value := getattr(strategy, s.name)) != repr(s.default)
    }


def record_of(
    results: Mapping[str, ProtocolResult], settings: Mapping[str, Any], command: str
) -> dict[str, Any]:
    """Return the content of ``result.json``: all that the page shows."""
    label = str(settings.get("label-column") or "the label")
    return {
        "version": __version__,
        "written": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "command": command,
        "run_config": dict(settings),
        "results": {name: _result(result, label) for name, result in results.items()},
    }


def _result(result: ProtocolResult, label: str) -> dict[str, Any]:
    """Return one result as plain numbers and text."""
    strategy, recorded = result.strategy, result.train_metrics_clientapp
    named = {*result.traces}.union(*recorded.values())
    names = [metric for metric in strategy.explained if metric in named]
    learned = [*who_learns([hello]), *who_learns(strategy.steps, result.ledger.seen)]
    revealed = {kind for row in learned for kind in row.kinds}
    return {
        "strategy": type(strategy).__name__,
        "task": strategy.task,
        "question": strategy.question.replace("{label}", label),
        "label": label,
        "partition": strategy.partition,
        "settings": changed(strategy),
        "repeats": strategy.repeats,
        "parties": [
            {
                "name": info.name,
                "rows": info.n_rows,
                "columns": info.n_columns,
                "labels": info.n_labels,
            }
            for info in result.parties
        ],
        "seed": result.seed,
        "model_id": result.model.id,
        "note": result.model.note,
        "warnings": list(result.warnings),
        "metrics": {
            t: {metric: _number(value) for metric, value in metrics.items()}
            for t, metrics in recorded.items()
        },
        "explained": {metric: strategy.explained[metric]._asdict() for metric in names},
        "traces": {
            name: dict(zip(_TRACE, map(list, zip(*finite, strict=True)), strict=True))
            for name, points in result.traces.items()
            if (finite := [point for point in points if math.isfinite(point[2])])
        },
        **({"curves": dict(result.curves)} if result.curves else {}),
        "clusters": result.model.plane(),
        "counts": _first(result.model.counts([info.name for info in result.parties])),
        "learned": [row._asdict() for row in learned],
        "kinds": {kind: KINDS[kind] for kind in KINDS if kind in revealed},
        "seconds": result.seconds,
        "evaluation_bytes_up": result.evaluation.bytes_up,
        "ledger": result.ledger.to_dict(),
    }


def _first(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the largest counts, and the sum of the rest."""
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    largest, rest = dict(ranked[:MOST_COUNTS]), ranked[MOST_COUNTS:]
    return largest | ({f"{len(rest)} others": sum(n for _, n in rest)} if rest else {})


def write_page(folder: Path) -> Path:
    """Write a run's page and figures; raise ValueError like :func:`read_result`."""
    record = read_result(folder)
    figures = figures_of(record["results"])
    (folder / FIGURES).mkdir(exist_ok=True)
    for figure in figures:
        write_whole(folder / FIGURES / f"{figure.name}.svg", figure.svg)
        write_whole(folder / FIGURES / f"{figure.name}.png", figure.png)
    write_text(folder / PAGE, page_of(record, figures))
    return folder / PAGE


def read_result(folder: Path) -> dict[str, Any]:
    """Return a run's result; raise ValueError if it cannot be read or is damaged."""
    try:
        read = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        assert isinstance(read["results"], dict)
        assert {"strategy", "task"} <= read["run_config"].keys()
    except OSError as error:
        raise ValueError(
            f"the result in {folder} cannot be read: {error.strerror}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
        raise ValueError(f"the result in {folder} is damaged") from None
    return dict(read)


def _number(value: Any) -> Any:
    """Return a value for JSON; infinity and NaN, which JSON lacks, become text."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns."""
    table = [header, *rows]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = (
            " " * (n - cell_len(text)) + text
            for text, n in zip(row, widths, strict=True)
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines.insert(1, f"|{'|'.join('-' * (width + 1) + ':' for width in widths)}|")
    return "\n".join(lines)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    write_whole(path, text.encode())
