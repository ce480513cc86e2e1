"""What a check of a party file has found, as commands print it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vfl_flower.data.checking import Checked

MARKS = {"error": "mend", "warning": "look", "note": "done"}
"""The levels of findings as commands print them."""


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Keep the log quiet: what it says is among the findings, or said by a command."""
    logger = logging.getLogger("vfl_flower")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def print_findings(checked: Checked, show: bool) -> None:
    """Print what was found as a table, and a last line that counts."""
    table = Table(box=None, pad_edge=False)
    for title in ("", "column", "finding", "option"):
        table.add_column(title, overflow="fold")
    counts = dict.fromkeys(MARKS, 0)
    for finding in checked.findings:
        counts[finding.level] += 1
        text = finding.text
        if show and finding.examples:
            text += f" [{', '.join(finding.examples[:10])}]"
        cells = (MARKS[finding.level], finding.column or "", text, finding.option)
        table.add_row(*(Text(_printable(cell)) for cell in cells))
    console = Console(soft_wrap=False)
    if checked.findings:
        console.print(table)
    typer.echo(
        f"{checked.rows} rows, {checked.columns} columns of numbers; to mend: "
        f"{counts['error']}, to look at: {counts['warning']}, done: {counts['note']}"
    )


def _printable(text: str) -> str:
    """Return a text without signs that would steer a terminal."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)
