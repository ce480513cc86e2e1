"""``vfl-flower check``, and the findings about a party file that commands print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vfl_flower.app.commands import options
from vfl_flower.app.config import UserConfig, party_source, tasks_of
from vfl_flower.app.plan.rehearsal import quietly
from vfl_flower.data.findings import Checked, Finding, fault
from vfl_flower.data.source import PartySource
from vfl_flower.protocol.names import printable

T = TypeVar("T")

MARKS = {"error": "fix", "warning": "look", "note": "done"}
"""The words that commands print for the levels of findings."""


Reading = tuple[Checked, list[str]]
"""Findings about a file, and the strategies to which they apply; [""] means any."""


def readings_of(config: UserConfig, strategies: Sequence[str]) -> list[Reading]:
    """Check a file for each strategy; raise ValueError if a strategy is unknown."""
    from vfl_flower.data.checking import check  # imports pyarrow

    sources: list[tuple[PartySource, list[str]]] = []
    for strategy in strategies or [""]:
        run_config: UserConfig = {"strategy": strategy} if strategy else {}
        if strategy:
            tasks_of(run_config)
        _group(sources, party_source(config, run_config), [strategy])
    readings: list[Reading] = []
    for source, names in sources:
        with quietly():
            checked = check(source)
        if names[0]:
            faults = _of_strategies(names, checked)
            checked = replace(checked, findings=[*faults, *checked.findings])
        _group(readings, checked, names)
    return readings


def _group(groups: list[tuple[T, list[str]]], key: T, names: list[str]) -> None:
    """Add names to the group with an equal key, or add a new group."""
    for known, known_names in groups:
        if known == key:
            known_names += names
            return
    groups.append((key, names))


def _of_strategies(names: Sequence[str], checked: Checked) -> list[Finding]:
    """Return a file's faults that concern only training with some strategies."""
    faults = []
    label = checked.source.label_column
    for name in names:
        strategy = tasks_of({"strategy": name})["train"]()
        least = strategy.fewest_rows(checked.columns)
        if 0 < checked.rows < least:
            text = f"{name} needs at least {least} rows for {checked.columns} columns, "
            text += f"but the file has {checked.rows}: add rows or exclude columns"
            faults.append(fault("strategy", None, text))
        about = {f.about for f in checked.findings if f.column == label and label}
        text = ""
        if strategy.labelled and "constant" in about:
            text = f"{name} needs at least two different labels, but label-column "
            text += f"{label!r} has the same value in all rows"
        elif strategy.numeric and about & {"classes", "categories"}:
            text = f"{name} needs labels that are numbers, but label-column {label!r} "
            text += "holds classes"
        if text:
            faults.append(fault("strategy", label, text, "label-column"))
    return faults


def print_findings(readings: Sequence[Reading], show: bool) -> None:
    """Print each finding once, in a table per group of strategies, then the counts."""
    tables: dict[tuple[str, ...], list[Finding]] = {}
    everyone = tuple(name for _, names in readings for name in names)
    findings = chain.from_iterable(checked.findings for checked, _ in readings)
    for finding in dict.fromkeys(findings):
        groups = (names for checked, names in readings if finding in checked.findings)
        tables.setdefault(tuple(chain.from_iterable(groups)), []).append(finding)
    for some in sorted(tables, key=lambda some: some != everyone):
        if some != everyone:
            typer.echo(f"For {', '.join(some)}:")
        _print_table(tables[some], show)
    for checked, names in readings:
        counts = Counter(finding.level for finding in checked.findings)
        whom = f"{', '.join(names)}: " if len(readings) > 1 else ""
        typer.echo(
            f"{whom}{checked.rows} rows, {checked.columns} columns of numbers; to "
            f"fix: {counts['error']}, to look at: {counts['warning']}, done: "
            f"{counts['note']}"
        )


def as_json(readings: Sequence[Reading], show: bool) -> list[dict[str, Any]]:
    """Return findings for JSON; include data values only if `show` is true."""
    return [
        {
            "strategies": names,
            "rows": checked.rows,
            "columns": checked.columns,
            "findings": [
                {k: v for k, v in asdict(finding).items() if show or k != "examples"}
                for finding in checked.findings
            ],
        }
        for checked, names in readings
    ]


def _print_table(findings: Sequence[Finding], show: bool) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("", "column", "finding", "option"):
        table.add_column(title, overflow="fold")
    for finding in findings:
        text = finding.text
        if show and finding.examples:
            text += f" [{', '.join(finding.examples[:10])}]"
        cells = (MARKS[finding.level], finding.column or "", text, finding.option)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    Console(soft_wrap=False).print(table)


@options.reads_a_file
def check(
    file: Annotated[str, typer.Argument(help="The party file, or a DuckDB query.")],
    strategies: Annotated[
        list[str] | None,
        typer.Option("--for", help="A strategy to check the file for; repeatable."),
    ] = None,
    show: Annotated[bool, typer.Option(help="Show values of the data.")] = False,
    format_: options.FormatOption = "text",
    **reading: Any,
) -> None:
    """Report the faults of a party file before a run, and how the file will be read.

    Nothing leaves the machine, and no value of the data is printed without --show.
    --for adds findings that concern only one strategy. The exit code is 1 if something
    must be fixed before a run.
    """
    config = options.node_keys(file, **reading)
    options.check_there(file)
    readings = readings_of(config, list(dict.fromkeys(strategies or [])))
    if format_ == "json":
        options.print_json(as_json(readings, show))
    else:
        print_findings(readings, show)
    if not all(checked.sound for checked, _ in readings):
        raise typer.Exit(1)
