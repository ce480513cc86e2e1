"""``vfl-flower models``: the models of finished runs, on the machine of the SuperLink.

The parties' local models are removed in a run, in which each party removes its own.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vfl_flower.app.commands import reports
from vfl_flower.app.commands.options import Command, FormatOption, Verbose, print_json
from vfl_flower.app.commands.runs import Federation, gather, start
from vfl_flower.app.config import output_dir
from vfl_flower.app.report.report import markdown_table
from vfl_flower.strategies import load_model

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    suggest_commands=False,
)


@app.callback()
def models() -> None:
    """List, show or remove models of finished runs, on the SuperLink's machine."""


@app.command("list", cls=Command)
def list_models(
    output_dir_: reports.OutputDir = "", format_: FormatOption = "text"
) -> None:
    """List the models of finished runs, the oldest first."""
    folder = output_dir({"output-dir": output_dir_})
    models: dict[str, list[reports.Stored]] = {}
    for stored in reports.stored_models(folder):
        if stored.id or stored.task == "train":  # other tasks train no model
            models.setdefault(stored.name, []).append(stored)
    rows = []
    for name, versions in models.items():
        tasks = list(dict.fromkeys(version.task for version in versions))
        run = versions[-1].file.parent.name
        rows.append((name, versions[-1].strategy, tasks, run))
    titles = ("model", "strategy", "tasks", "last run")
    if format_ == "json":
        print_json([dict(zip(titles, row, strict=True)) for row in rows])
        return
    cells = [(name, kind, ", ".join(tasks), run) for name, kind, tasks, run in rows]
    if models:
        typer.echo(markdown_table(titles, cells))
    typer.echo(f"{len(models)} model{'s' * (len(models) != 1)} in {folder}")


@app.command("show", cls=Command)
def show(
    model: Annotated[str, typer.Argument(help="The model's id, or its run.")],
    output_dir_: reports.OutputDir = "",
    format_: FormatOption = "text",
) -> None:
    """Show the content of a model's files."""
    folder = output_dir({"output-dir": output_dir_})
    models = reports.find_models(model, folder)
    if not models:
        raise ValueError(f"there is no model {model!r} in {folder}")
    described = [_described(stored) for stored in models]
    if format_ == "json":
        print_json(described)
        return
    for about in described:
        text = "{model}: {kind}, {strategy} {task}\n  file: {file}".format_map(about)
        typer.echo(f"{text}\n  {about['note']}".rstrip())
        for name, value in about["arrays"].items():
            shown = f"shape {value['shape']}" if isinstance(value, dict) else value
            typer.echo(f"  {name}: {shown}")


def _described(stored: reports.Stored) -> dict[str, Any]:
    """Return a file's content, with arrays of several numbers given by their shapes."""
    loaded = load_model(stored.file)
    named = {"model": stored.name, "strategy": stored.strategy, "task": stored.task}
    arrays = {
        name: array.item() if array.size == 1 else {"shape": array.shape}
        for name, array in loaded.arrays().items()
    }
    about = {"kind": loaded.kind, "note": loaded.note, "file": str(stored.file)}
    return named | about | {"arrays": arrays}


@app.command("remove", cls=Command)
def remove(
    model: Annotated[
        str, typer.Argument(help="The model's id, or its run if it has no id.")
    ],
    connection: Annotated[
        str, typer.Option(help="The SuperLink of parties that have local models.")
    ] = "",
    federation: Federation = None,
    strategy: Annotated[
        str, typer.Option(help="The model's strategy, if unknown on this machine.")
    ] = "",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value of the run, such as n-parties=3."),
    ] = None,
    output_dir_: reports.OutputDir = "",
    verbose: Verbose = False,
) -> None:
    """Remove a model at the server and, in a run, at all parties.

    The command can be repeated: a party without a local model only reports that it has
    none.
    """
    folder = output_dir({"output-dir": output_dir_})
    models = reports.find_models(model, folder)
    if models and not any(stored.id for stored in models):
        for stored in models:
            stored.file.unlink()
            typer.echo(f"removed: {stored.file}")
        return
    ids = {stored.id for stored in models if stored.id} or {model}
    if len(ids) > 1:
        raise ValueError(
            f"run {model!r} has several models: choose one of {', '.join(ids)}"
        )
    known = [m for m in reports.stored_models(folder, removed=True) if m.id in ids]
    algorithm = strategy or (known[0].strategy if known else "")
    if not algorithm:
        raise ValueError(
            f"no run on this machine has model {model!r}: set its strategy with "
            "--strategy"
        )
    pairs = [*(set_ or []), f"model-id={ids.pop()}"]
    if output_dir_:
        pairs.append(f"output-dir={output_dir_}")
    start(gather(algorithm, "remove", pairs), connection, federation, verbose=verbose)
