"""``vfl-flower simulate``: a run on one machine, from files or example data.

All files are checked first, and their faults are reported together. The run takes place
in this process, and trains the same model as a run on SuperNodes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from flwr.app import Context, RecordDict

from vfl_flower.app.client_app import load
from vfl_flower.app.commands import options
from vfl_flower.app.commands.findings import MARKS
from vfl_flower.app.commands.runs import Follower, Strategy, gather
from vfl_flower.app.config import check_run_config, make_strategy, party_source
from vfl_flower.app.plan.rehearsal import quietly
from vfl_flower.app.server_app import execute
from vfl_flower.data import is_file, party_file
from vfl_flower.data.files import folder_files, name_of
from vfl_flower.data.source import BUNDLED, PartySource
from vfl_flower.simulation import InProcessGrid

log = logging.getLogger("vfl_flower")


def party_sources(
    config: Mapping[str, Any],
    files: Sequence[Path],
    n_parties: int = 3,
    state_dir: Path | None = None,
) -> list[PartySource]:
    """Return the source of each party's data.

    Without `files`, ``data`` of the run config is a folder of party files, or a data
    set that is split over `n_parties`. Raises ValueError if a file is missing or two
    files share a name, and PartyError if the folder has no party files.
    """
    data = Path(str(config.get("data", ""))).expanduser()
    common = party_source({}, dict(config))
    for file in files:
        options.check_there(str(file))
    if not files and is_file(common):
        if not data.is_dir():
            raise ValueError(
                "data must be a folder of party files, synthetic:n=..,d=.. or one of "
                f"{', '.join(BUNDLED)}, got {str(config.get('data', ''))!r}; use "
                "--party for single files"
            )
        files = folder_files(data, replace(common, index=0))
    if not files:
        sources = [
            replace(common, index=j, count=n_parties, name=f"party-{j}")
            for j in range(n_parties)
        ]
    else:
        names = [name_of(file) for file in files]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"party files must not share the name {name!r}")
        sources = [
            replace(common, data=str(file.absolute()), index=j, name=name)
            for j, (file, name) in enumerate(zip(files, names, strict=True))
        ]
        sources = _shared_out(sources)
    if state_dir is None:
        return sources
    return [replace(s, state_dir=state_dir.absolute() / str(s.name)) for s in sources]


def _shared_out(sources: Sequence[PartySource]) -> list[PartySource]:
    """Apply each option that names columns to the files with these columns.

    If an option names a column that is in no file, the option is applied to all files,
    so that their checks report the unknown column.
    """
    held = [_columns(source) for source in sources]
    every = set().union(*held)
    result = []
    for source, present in zip(sources, held, strict=True):
        label, columns = source.label_column, source.columns
        if label in every and label not in present:
            label = None
        if columns is not None and set(columns) & present:
            columns = tuple(c for c in columns if c in present or c not in every)
        result.append(replace(source, label_column=label, columns=columns))
    return result


def _columns(source: PartySource) -> set[str]:
    """Return the names of a file's columns, or none if they cannot be read."""
    from vfl_flower.data.conversion import header_of  # imports pyarrow

    try:
        return set(header_of(party_file(source)))
    except Exception:  # errors of any reader, which the check turns into sentences
        return set()


@contextmanager
def _logged_by(follower: Follower) -> Iterator[None]:
    """Show the run's log as ``vfl-flower run`` does, and in no other way."""

    def shown(record: logging.LogRecord) -> bool:
        follower(record.getMessage())
        return False

    level = log.level
    log.setLevel(logging.INFO)
    log.addFilter(shown)
    try:
        yield
    finally:
        log.removeFilter(shown)
        log.setLevel(level)


def simulate(
    strategy: Strategy,
    party: Annotated[
        list[Path] | None,
        typer.Option(help="A party's file; repeatable, in the parties' order."),
    ] = None,
    data: Annotated[
        str, typer.Option(help="Folder of party files, or a data set (diabetes, ...).")
    ] = "",
    parties: Annotated[
        int, typer.Option(min=1, help="Number of parties to split a data set over.")
    ] = 3,
    id_column: options.IdColumn = "",
    label_column: Annotated[
        str, typer.Option(help="Column with the labels, in one of the files.")
    ] = "",
    task: options.Task = "train",
    set_: options.Set = None,
    config: options.Config = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for the parties' local models, for later tasks."),
    ] = None,
    verbose: options.Verbose = False,
) -> None:
    """Run a strategy on this machine, on party files or an example data set.

    All files are checked first, and all faults are reported together. The exit code is
    0 if the run completes.
    """
    files = list(party or [])
    more = {"id-column": id_column, "label-column": label_column, "data": data}
    if files and data:
        raise ValueError("data must not be given together with --party")
    if data and (folder := Path(data).expanduser()).is_dir():
        more["data"] = str(folder.absolute())
    keys = {name: value for name, value in more.items() if value}
    chosen = gather(strategy, task, set_ or [], config, keys)
    complete = check_run_config(chosen)
    if not files and "data" not in chosen:
        typer.echo(
            "neither --party nor --data is given: using the example data set "
            f"{complete['data']}, split over {parties} parties"
        )
    sources = party_sources(complete, files, parties, state_dir)
    made = make_strategy(complete)
    made.check_count(len(sources))
    if _must_be_fixed(sources, made.partition):
        raise typer.Exit(1)
    with _logged_by(Follower(verbose)):
        grid = InProcessGrid([load(source, chosen) for source in sources])
        context = Context(grid.run_id, 0, {}, RecordDict(), chosen)
        execute(grid, context, _words(files, parties, state_dir))


def _words(files: Sequence[Path], n_parties: int, state_dir: Path | None) -> list[str]:
    """Return the options of the command that are not in the run config."""
    words = [word for file in files for word in ("--party", str(file))]
    words += [] if files else ["--parties", str(n_parties)]
    return words + ([] if state_dir is None else ["--state-dir", str(state_dir)])


def _must_be_fixed(sources: Sequence[PartySource], partition: str) -> bool:
    """Print errors and warnings about files; return whether there are errors."""
    if not is_file(sources[0]):
        return False
    from vfl_flower.data.checking import check  # imports pyarrow

    with quietly():
        checks = {str(source.name): check(source) for source in sources}
    texts: dict[str, list[str]] = {"error": [], "warning": []}
    for name, checked in checks.items():
        for finding in checked.findings:
            if finding.level in texts:
                hint = f" ({finding.option})" if finding.option else ""
                texts[finding.level].append(f"{name}: {finding.text}{hint}")
    kinds = {"vertical": "rows", "horizontal": "columns"}
    what = "" if sources[0].alignment else kinds.get(partition, "")
    sizes = {n: getattr(c, what) for n, c in checks.items() if what and c.rows}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        texts["error"].append(f"parties must have the same number of {what}: {listed}")
    for level, lines in texts.items():
        for line in lines:
            typer.echo(f"{MARKS[level]}  {line}")
    if texts["error"]:
        typer.echo(f"problems to fix before the run: {len(texts['error'])}", err=True)
    return bool(texts["error"])
