"""The command ``vfl-flower``."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import typer
import typer.core

from vfl_flower.app.commands import label, options, reports, runs, simulate, stored
from vfl_flower.app.commands.findings import as_json, print_findings, readings_of
from vfl_flower.app.commands.guard import align, journal
from vfl_flower.app.deployment.federation import certificates, coordinator, init, party
from vfl_flower.version import __version__

typer.core.HAS_RICH = False  # with it, help has a backslash before each bracket

app = typer.Typer(
    help="Federated learning over split columns or rows, with Flower.",
    no_args_is_help=True,
    rich_markup_mode=None,
    suggest_commands=False,  # click does
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vfl-flower {__version__}, flwr {version('flwr')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of this package and of Flower.",
        ),
    ] = False,
) -> None:
    """Prepare a party, run strategies, and look at results."""


@app.command("check", cls=options.Command)
@options.reads_a_file
def check_command(
    file: Annotated[str, typer.Argument(help="The party file, or a query of DuckDB.")],
    strategies: Annotated[
        list[str] | None,
        typer.Option("--for", help="A strategy to check the file for; repeatable."),
    ] = None,
    show: Annotated[bool, typer.Option(help="Show values of the data.")] = False,
    format_: options.FormatOption = "text",
    **reading: Any,
) -> None:
    """Say what must be fixed in a party file, and how it will be read.

    Nothing leaves the machine, and no value of the data is printed without --show. What
    concerns some strategies alone is said where --for names one of them. The command
    ends with 1 where something must be fixed before a run.
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


app.command("run", cls=options.Command)(runs.run)
app.command("report", cls=options.Command)(reports.report)
app.command("simulate", cls=options.Command)(simulate.simulate)
app.command("label", cls=options.Command)(label.main)
app.add_typer(stored.app, name="models", cls=options.Group)


for command in (init, certificates, coordinator, party, align, journal):
    app.command(cls=options.Command)(command)


if __name__ == "__main__":
    app()
