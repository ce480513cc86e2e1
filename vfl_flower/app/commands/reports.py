"""``vfl-flower report``: the results of a finished run, from its folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from vfl_flower.app.commands.options import FormatOption, print_json
from vfl_flower.app.config import output_dir
from vfl_flower.app.extras import check_installed
from vfl_flower.app.report.report import PAGE, REPORT, RESULT, read_result, write_page

OutputDir = Annotated[
    str,
    typer.Option(
        "--output-dir",
        help="The output-dir of the runs.",
        callback=lambda folder: str(Path(folder).absolute()) if folder else "",
    ),
]
"""Option of the commands that read results of runs."""


def runs_in(folder: Path) -> list[Path]:
    """Return the folders of finished runs, the oldest first."""

    def age(result: Path) -> tuple[str, int]:
        """Return the time in the folder's name and the result's modification time."""
        return result.parent.name.rpartition("-")[0], result.stat().st_mtime_ns

    return [path.parent for path in sorted(folder.glob(f"*/{RESULT}"), key=age)]


def find_run(name: str, folder: Path) -> Path:
    """Return a run's folder, given the folder, its name, or Flower's run number.

    "" stands for the last run. Raises ValueError if there is no such run.
    """
    if name and (Path(name) / RESULT).is_file():
        return Path(name)
    runs = runs_in(folder)
    matching = [run for run in runs if name in ("", run.name, run.name.split("-")[-1])]
    if not matching:
        what = f"run {name!r}" if name else "finished run"
        raise ValueError(
            f"there is no {what} in {folder}, which has {len(runs)} runs: look for "
            "results on the machine of the SuperLink, or set --output-dir"
        )
    return matching[-1]


@dataclass(frozen=True)
class Stored:
    """A model that a run has written."""

    file: Path
    """The model's file, in the folder of the run."""
    id: str
    """Id under which parties store their local models; "" if they store none."""
    strategy: str
    task: str
    variant: str
    """The model's name in the report."""

    @property
    def name(self) -> str:
        """The model's name in commands: its id, or else its run and its variant."""
        return self.id or f"{self.file.parent.name}/{self.variant}"


def stored_models(folder: Path, removed: bool = False) -> Iterator[Stored]:
    """Yield the models of readable runs in a folder, the oldest first.

    With `removed`, also yield models whose files were removed.
    """
    for run in runs_in(folder):
        try:
            read = read_result(run)
        except ValueError:
            continue
        config: dict[str, Any] = read["run_config"]
        for variant, result in read["results"].items():
            file = run / f"model-{variant}.npz"
            if removed or file.is_file():
                strategy, task = str(config["strategy"]), str(config["task"])
                # Earlier versions called the id "model".
                model_id = result.get("model_id") or result.get("model") or ""
                yield Stored(file, model_id, strategy, task, variant)


def find_models(name: str, folder: Path) -> list[Stored]:
    """Return the models that a name denotes: all with this id, or all of this run."""
    return [
        model
        for model in stored_models(folder)
        if name and name in (model.name, model.id, model.file.parent.name)
    ]


def remove_files(model_id: str, folder: Path) -> list[Path]:
    """Remove a model's files in the folders of runs, and return their paths."""
    files = [model.file for model in find_models(model_id, folder) if model.id]
    for file in files:
        file.unlink()
    return files


def report(
    run: Annotated[
        str, typer.Argument(help="The run's folder or number; default: the last run.")
    ] = "",
    output_dir_: OutputDir = "",
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Rebuild the page and its figures.")
    ] = False,
    open_: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
    format_: FormatOption = "text",
) -> None:
    """Show the report of a finished run, on the machine of its SuperLink.

    If the run's folder has no page (report.html), the command creates it.
    """
    if rebuild:
        check_installed("matplotlib")
    folder = find_run(run, output_dir({"output-dir": output_dir_}))
    page = folder / PAGE
    if rebuild or not page.is_file():
        page = write_page(folder)
    if format_ == "text":
        typer.echo((folder / REPORT).read_text(encoding="utf-8"))
        typer.echo(f"Page: {page}")
    else:
        paths = {"folder": str(folder), "page": str(page)}
        print_json(paths | read_result(folder))
    if open_ and typer.launch(str(page)):
        raise ValueError(f"no browser can be opened here: open {page} yourself")
