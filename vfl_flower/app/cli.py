"""The command ``vfl-flower``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from vfl_flower.app import label, reports, runs, simulate, stored
from vfl_flower.app.config import party_source
from vfl_flower.app.federation import certificates, coordinator, init, party
from vfl_flower.app.findings import print_findings, silence
from vfl_flower.app.party_folder import consent_text
from vfl_flower.data.checking import check
from vfl_flower.data.source import QUERY
from vfl_flower.data.tables import name_of
from vfl_flower.files import write_whole

app = typer.Typer(
    help="Federated learning over split columns or rows, with Flower.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def root() -> None:
    """Prepare a party, run strategies, and look at results."""


@app.command("check")
def check_command(
    file: Annotated[str, typer.Argument(help="The party file, or a query of DuckDB.")],
    id_column: Annotated[str, typer.Option(help="Column with the row ids.")] = "",
    label_column: Annotated[str, typer.Option(help="Column with the labels.")] = "",
    columns: Annotated[str, typer.Option(help="Features to use, a,b,c.")] = "",
    missing: Annotated[str, typer.Option(help="Texts for a missing value.")] = "",
    max_levels: Annotated[int, typer.Option(help="Most levels of a text column.")] = 0,
    levels: Annotated[str, typer.Option(help="Levels, sex=f|m, or a file.")] = "",
    delimiter: Annotated[str, typer.Option(help="One character, or tab.")] = "",
    encoding: Annotated[str, typer.Option(help="Encoding of a CSV.")] = "",
    header: Annotated[bool, typer.Option(help="The first line has the names.")] = True,
    standardize: Annotated[bool, typer.Option(help="Scale each column.")] = False,
    impute: Annotated[str, typer.Option(help="mean, median or none.")] = "mean",
    name: Annotated[str, typer.Option(help="The party-name to propose.")] = "",
    show: Annotated[bool, typer.Option(help="Show values of the data.")] = False,
    write: Annotated[
        Path | None,
        typer.Option(help="Folder for a node config and a consent.toml to begin with."),
    ] = None,
) -> None:
    """Say at once what is wrong with a party file, and what will be done with it.

    Nothing leaves the machine, and no value of the data is printed without --show. The
    command ends with 1 where something must be mended before a run.
    """
    data = file if file.startswith(QUERY) else str(Path(file).expanduser().absolute())
    config: dict[str, bool | int | float | str] = {
        "data": data,
        "party-name": name,
        "id-column": id_column,
        "label-column": label_column,
        "columns": columns,
        "missing": missing,
        "max-levels": max_levels,
        "levels": levels,
        "delimiter": delimiter,
        "encoding": encoding,
        "header": header,
        "standardize": standardize,
        "impute": impute,
    }
    try:
        if write is not None and not (write.parent.is_dir() or write.is_dir()):
            raise ValueError("write must be a folder, or a new one in one that exists")
        with silence():
            checked = check(party_source(config, {}))
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    print_findings(checked, show)
    if write is not None:
        write_proposal(write.absolute(), config)
        typer.echo(f"\nwritten: {write / 'node-config'}, {write / 'consent.toml'}")
    if not checked.sound:
        raise typer.Exit(1)


app.command("run")(runs.run)
app.command("report")(reports.report)
app.command("simulate")(simulate.simulate)
app.command("label")(label.main)
app.add_typer(stored.app, name="models")


def write_proposal(folder: Path, config: dict[str, bool | int | float | str]) -> None:
    """Write a node config and a consent.toml to begin with; no file is replaced.

    Raises
    ------
    typer.Exit
        One of them is there already, or the folder cannot be written to.
    """
    name = str(config["party-name"]) or name_of(Path(str(config["data"])))
    defaults = {"max-levels": 0, "header": True, "standardize": False, "impute": "mean"}
    chosen = {
        key: value
        for key, value in config.items()
        if value != "" and value != defaults.get(key)
    } | {"party-name": name}
    chosen |= {"state-dir": str(folder / "state")}
    chosen |= {"consent": str(folder / "consent.toml")}
    line = " ".join(f"{key}={_value(value)}" for key, value in chosen.items())
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "state").mkdir(mode=0o700, exist_ok=True)
        for file, text in (
            ("node-config", f"--node-config {shlex.quote(line)}\n"),
            ("consent.toml", consent_text()),
        ):
            if (folder / file).exists():
                raise FileExistsError(17, f"there is a {file} already")
            write_whole(folder / file, text.encode(), private=True)
    except OSError as error:
        typer.echo(f"the folder of write: {error.strerror}", err=True)
        raise typer.Exit(1) from None


def _value(value: bool | int | float | str) -> str:
    return json.dumps(value, ensure_ascii=False)


for command in (init, certificates, coordinator, party):
    app.command()(command)


if __name__ == "__main__":
    app()
