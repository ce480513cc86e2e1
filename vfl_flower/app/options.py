"""Options that several commands of ``vfl-flower`` have, declared once."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from vfl_flower.data.source import QUERY
from vfl_flower.data.tables import files_of

IdColumn = Annotated[str, typer.Option(help="Column with the row ids.")]
LabelColumn = Annotated[str, typer.Option(help="Column with the labels.")]
Columns = Annotated[
    str, typer.Option(help="Columns to use, as a,b,c, and no others; otherwise all.")
]
Missing = Annotated[str, typer.Option(help="Texts for a missing value, as ?,NA,-999.")]
MaxLevels = Annotated[
    int,
    typer.Option(
        help="Most levels of a text column; the others become one.",
        show_default="20, where there are more than 100",
    ),
]
Levels = Annotated[
    str, typer.Option(help="Levels of text columns, as sex=f|m, or a file.")
]
Delimiter = Annotated[
    str, typer.Option(help="What separates fields: one character, or tab.")
]
Encoding = Annotated[str, typer.Option(help="Encoding of a CSV.")]
Header = Annotated[bool, typer.Option(help="The first line has the names.")]
Standardize = Annotated[
    bool, typer.Option(help="Scale columns to mean 0 and deviation 1.")
]
Impute = Annotated[
    str, typer.Option(help="What fills a missing value: mean, median; or none.")
]

Task = Annotated[str, typer.Option(help="train, or a later task on a trained model.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="key=value of docs/settings.md; may be repeated."),
]
Config = Annotated[
    Path | None, typer.Option(help="A TOML file of settings; --set wins.")
]


class Format(StrEnum):
    """How a command prints its answer."""

    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[
    Format, typer.Option("--format", help="text, or one JSON value on standard output.")
]


class Command(typer.core.TyperCommand):
    """A command of which the list of all commands has the whole summary."""

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the first sentence of the help, however long it is."""
        return super().get_short_help_str(limit=1000)


class Group(typer.core.TyperGroup):
    """The same of a group of commands."""

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the first sentence of the help, however long it is."""
        return super().get_short_help_str(limit=1000)


def print_json(value: Any) -> None:
    """Print the answer of a command as JSON."""
    typer.echo(json.dumps(value, indent=2))


_DEFAULTS = {"max-levels": 0, "header": True, "standardize": False, "impute": "mean"}


def absolute(data: str) -> str:
    """Return a data file as a node config names it; a query stays as it is."""
    return data if data.startswith(QUERY) else str(Path(data).expanduser().absolute())


def check_there(data: str) -> None:
    """Check that a data file is there, or one that a pattern or folder stands for.

    Raises ValueError if none is.
    """
    if data.startswith(QUERY):
        return
    if not any(file.is_file() for file in files_of(Path(data).expanduser())):
        raise ValueError(f"data must be a file that is there, got {data!r}")


def node_keys(data: str, **options: bool | int | str) -> dict[str, bool | int | str]:
    """Return the node config of a data file and its options, without their defaults.

    `data` is a party file or a query. The options are other keys of a node config, with
    ``_`` for ``-``.
    """
    keys = {name.replace("_", "-"): value for name, value in options.items()}
    chosen = {k: v for k, v in keys.items() if v not in ("", _DEFAULTS.get(k))}
    return {"data": absolute(data), **chosen}
