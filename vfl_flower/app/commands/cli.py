"""The command ``vfl-flower``, which imports each subcommand only when needed."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import click
import typer
import typer.core

from vfl_flower.version import __version__

typer.core.HAS_RICH = False  # with Rich, help shows a backslash before each bracket

_COMMANDS = {
    "check": "commands.findings",
    "simulate": "commands.simulate",
    "init": "deployment.federation",
    "certificates": "deployment.federation",
    "coordinator": "deployment.federation",
    "party": "deployment.federation",
    "run": "commands.runs",
    "align": "commands.guard",
    "report": "commands.reports",
    "models": "commands.stored",
    "label": "commands.label",
    "journal": "commands.guard",
    "who-learns-what": "plan.learned",
    "new-app": "commands.template",
    "simulate-app": "deployment.flower_run",
    "bundle-hash": "deployment.bundle",
    "identity-key": "commands.identity",
    "supernode": "deployment.executor",
    "gate": "deployment.gate",
}
"""The names of the commands, and the modules that contain their functions.

The commands for a first federation come first, in the order of use. The commands for
use with Flower's own commands come last.
"""


class _Later(typer.core.TyperCommand):
    """Stands in for a command until the command is called or its help is shown."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        from vfl_flower.app.commands.options import Command

        name = str(self.name)
        module = import_module(f"vfl_flower.app.{_COMMANDS[name]}")
        app = getattr(module, "app", None)
        if app is None:
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command(cls=Command)(getattr(module, name.replace("-", "_")))
        return typer.main.get_command(app).make_context(*args, **kwargs)


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    suggest_commands=False,  # click does
)


def _print_version(wanted: bool) -> None:
    from importlib.metadata import version

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
    """Run federated learning over split columns or rows, with Flower.

    The commands from new-app on are for use with Flower's commands, such as flwr run.
    """


for _name, _module in _COMMANDS.items():
    _file = Path(__file__).parents[1] / f"{_module.replace('.', '/')}.py"
    # The first line of the docstring, without importing the module.
    _line = re.compile(rf'(?s)\ndef {_name.replace("-", "_")}\(.*?"""(.+?)(?:"""|\n)')
    _summary = _line.findall(_file.read_text(encoding="utf-8"))[0]
    app.command(_name, cls=_Later, short_help=_summary)(lambda: None)


if __name__ == "__main__":
    app()
