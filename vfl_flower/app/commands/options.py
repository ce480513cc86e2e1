"""Options that several ``vfl-flower`` commands share."""

from __future__ import annotations

import inspect
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import click
import typer
import typer.core

from vfl_flower.app.deployment.processes import RunFailed
from vfl_flower.data.files import files_of
from vfl_flower.data.options import FileOptions
from vfl_flower.data.source import QUERY
from vfl_flower.protocol.errors import PartyError, PartyFailed
from vfl_flower.protocol.names import printable
from vfl_flower.protocol.settings import settings_of

C = TypeVar("C", bound=Callable[..., None])

IdColumn = Annotated[str, typer.Option(help="Column with the row ids.")]
Task = Annotated[str, typer.Option(help="train, or a later task on a trained model.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="key=value (docs/settings.md); may be repeated."),
]
Config = Annotated[
    Path | None, typer.Option(help="A TOML file of settings; --set takes precedence.")
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the whole log.")]


FormatOption = Annotated[
    Literal["text", "json"],
    typer.Option("--format", help="text, or one JSON value on standard output."),
]


def print_json(value: Any) -> None:
    """Print the result of a command as JSON."""
    typer.echo(json.dumps(value, indent=2))


def absolute(data: str) -> str:
    """Return the absolute path of a data file; a query is unchanged."""
    return data if data.startswith(QUERY) else str(Path(data).expanduser().absolute())


def check_there(data: str) -> None:
    """Raise ValueError unless a file matches the data's path, pattern or folder."""
    if data.startswith(QUERY):
        return
    if not any(file.is_file() for file in files_of(Path(data).expanduser())):
        raise ValueError(f"data file not found: {data!r}")


_FILE_OPTIONS = {
    setting.name: inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=setting.default,
        annotation=Annotated[type(setting.default), typer.Option(help=setting.meaning)],
    )
    for setting in settings_of(FileOptions)
    if setting.name != "one_hot"  # without it a text column is only an error
}
"""The options of a command that takes a party file, by name."""


def reads_a_file(command: C) -> C:
    """Replace the ``**options`` of a command with the options of a party file."""
    signature = inspect.signature(command, eval_str=True)
    *declared, _ = signature.parameters.values()
    parameters = [*declared, *_FILE_OPTIONS.values()]
    vars(command)["__signature__"] = signature.replace(parameters=parameters)
    return command


def node_keys(data: str, **options: bool | int | str) -> dict[str, bool | int | str]:
    """Return a data file's node config, with the options that differ from defaults."""
    chosen = {
        name.replace("_", "-"): value
        for name, value in options.items()
        if value != _FILE_OPTIONS[name].default
    }
    return {"data": absolute(data), **chosen}


class Command(typer.core.TyperCommand):
    """A command that, if it fails, prints the reason and exits with code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except typer.Exit:  # a RuntimeError too
            raise
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except (OSError, PartyError, RuntimeError, ValueError, sqlite3.Error) as error:
            typer.echo(reason_of(error), err=True)
            raise typer.Exit(1) from None


def reason_of(error: Exception) -> str:
    """Return the reason why a command failed, without control characters."""
    text = f"Error: {error}"
    if isinstance(error, RunFailed) and error.reason:
        text = f"the run failed: {error.reason}"
    if isinstance(error, PartyFailed):
        text = f"the run failed: {error}"
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        text = f"Error: {where}{error.strerror}"
    return "\n".join(map(printable, text.split("\n")))
