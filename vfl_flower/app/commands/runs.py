"""``vfl-flower run``: start a run on a SuperLink, and report its outcome.

The command sends a bundle of the installed package
(:mod:`vfl_flower.app.commands.template`), which has the same bytes wherever the same
version is installed. Parties can therefore pin the bundle.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from vfl_flower.app.commands import options
from vfl_flower.app.commands.template import write_app
from vfl_flower.app.config import Key, check_run_config, output_dir, run_keys
from vfl_flower.app.deployment.federation import HOME
from vfl_flower.app.deployment.flower_run import RunOutcome, read_settings, submit
from vfl_flower.app.deployment.processes import COLOR, Processes, RunFailed
from vfl_flower.app.plan.progress import LINE
from vfl_flower.app.server_app import RESUME, command_of, make_strategies
from vfl_flower.protocol.names import did_you_mean, printable
from vfl_flower.server.checkpoint import FILE
from vfl_flower.strategies import ALGORITHMS

_FLOWERS = re.compile(
    r"(DEBUG|INFO|WARNING|ERROR)\s*:|Using SuperLink:|Successfully installed |[╭│╰]"
)
"""Start of a line that Flower itself logs, or of a box that Flower draws."""

_WORDS = {"true": True, "false": False}


def parse_settings(strategy: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Return the settings from ``--set key=value`` options, by key of the run config.

    The algorithm's keys may be given without the algorithm's name, and take precedence
    over common keys. Raises ValueError for an invalid pair or an unknown key.
    """
    keys, values = run_keys(), {}
    for item in pairs:
        name, equals, text = map(str.strip, item.partition("="))
        if not equals:
            raise ValueError(f"--set must be key=value, got {item!r}")
        key = keys.get(f"{strategy}.{name}") or keys.get(name)
        if key is None:
            # Keys of this strategy may be given without its name.
            short = {key.removeprefix(f"{strategy}."): key for key in keys}
            hint = did_you_mean(name, {key: key for key in keys} | short)
            raise ValueError(f"run config has no key {name!r}{hint}")
        values[key.name] = _value(key, text)
    return values


def _value(key: Key, text: str) -> bool | int | float | str:
    """Convert text to the key's type if possible; ``@FILE`` stands for FILE's lines."""
    kinds = key.setting.kinds
    if text.startswith("@"):
        try:
            lines = Path(text[1:]).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ValueError(f"--set cannot read {text[1:]}: {reason}") from None
        plain = (line.partition("#")[0].strip() for line in lines)
        text = ";".join(filter(None, plain))
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if bool in kinds and text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        if kind in kinds:
            with suppress(ValueError):
                return kind(text)
    return text


def gather(
    strategy: str,
    task: str,
    pairs: Sequence[str],
    file: Path | None = None,
    more: Mapping[str, bool | str] | None = None,
) -> dict[str, Any]:
    """Return the run config of a command line, checked as on the server.

    `pairs` take precedence over the TOML `file`; `more` contains further keys. Raises
    ValueError for an invalid key or value.
    """
    if strategy not in ALGORITHMS:
        hint = did_you_mean(strategy, [*ALGORITHMS])
        hint = hint or ": an algorithm of another package comes with its own Flower app"
        raise ValueError(
            f"strategy must be one of {', '.join(ALGORITHMS)}, got {strategy!r}{hint}"
        )
    config = {} if file is None else read_settings(file)
    config |= parse_settings(strategy, pairs) | {**(more or {})}
    given = {"strategy": (strategy, "the argument STRATEGY"), "task": (task, "--task")}
    for key, (value, place) in given.items():
        if config.setdefault(key, value) != value:
            raise ValueError(
                f"{key} must be set by {place}, not as a setting, got {config[key]!r}"
            )
    make_strategies(check_run_config(config))
    return config


class Follower:
    """Shows the log of a run: a line for each step, and none of Flower's own lines.

    `rewrites` states whether the output is a terminal, where each new line of a step
    replaces the step's previous line. `resumable` states whether the log contains the
    command that resumes the run.
    """

    def __init__(self, verbose: bool = False, rewrites: bool = False) -> None:
        self._verbose, self._rewrites = verbose, rewrites
        self._step, self._ended, self.resumable = "", False, False

    def __call__(self, line: str) -> None:
        """Show one line."""
        plain = printable(COLOR.sub("", line).rstrip())
        if not self._verbose and (progress := LINE.fullmatch(plain)):
            shown, step = progress.groups()
            again = self._rewrites and step == self._step
            self._step = step
            print("\x1b[1A\x1b[2K" * again + shown, flush=True)
            return
        self._step = ""
        self.resumable |= plain.startswith(RESUME)
        if self._verbose:
            print(plain, flush=True)
            return
        # Flower's lines about a failure, such as its traceback, come last.
        self._ended |= plain.startswith("ERROR")
        if plain and not self._ended and not _FLOWERS.match(plain):
            print(plain, flush=True)


Federation = Annotated[
    Path | None, typer.Option(help="The coordinator's folder, instead of ~/.flwr.")
]
"""Option of the commands that start runs."""

Strategy = Annotated[
    str,
    typer.Argument(
        help=f"{', '.join(ALGORITHMS)}.", autocompletion=lambda: [*ALGORITHMS]
    ),
]
"""Argument of the commands that run a strategy."""


def connection_of(name: str, federation: Path | None = None) -> str:
    """Return the connection for a run: a SuperLink, not a simulation.

    If `federation` is given, Flower then reads the ``config.toml`` in this folder.
    Raises ValueError if there is no such connection.
    """
    from vfl_flower.app.flwr_internals.connections import read_superlink_connection

    if federation is not None:
        home = federation.absolute() / HOME
        if not (home / "config.toml").is_file():
            raise ValueError(
                "federation must be a coordinator's folder, but vfl-flower coordinator "
                f"has never run in {federation}"
            )
        os.environ["FLWR_HOME"] = str(home)
    try:
        connection = read_superlink_connection(name or None)
    except Exception as error:  # Flower's own errors, which differ by version
        reason = getattr(error, "message", "") or str(error)
        raise ValueError(f"connection: {' '.join(reason.split())}") from None
    if not connection.address or connection.address.startswith(":"):
        raise ValueError(
            f"connection must be a SuperLink in Flower's config.toml, but "
            f"{connection.name!r} is a simulation: set the coordinator's folder with "
            "--federation, or another SuperLink with --connection, or use vfl-flower "
            "simulate"
        )
    return str(connection.name)


def start(
    config: Mapping[str, Any],
    connection: str,
    federation: Path | None = None,
    *,
    verbose: bool = False,
) -> RunOutcome:
    """Run a checked run config's strategy on a SuperLink with the installed package.

    Raises RunFailed if the run is refused, fails or is stopped, and ValueError if there
    is no such connection.
    """
    from vfl_flower.app.deployment.bundle import hash_of_app  # imports flwr.cli

    name = connection_of(connection, federation)
    home = os.environ.get("FLWR_HOME", "")
    where = f"FLWR_HOME={shlex.quote(home)} " if home else ""
    run_ids: list[str] = []

    def started(run_id: str) -> None:
        run_ids.append(run_id)
        print(
            f"run {run_id}, bundle {hash_of_app()[:16]}. The run continues if this "
            f"command ends; to stop it:\n    {where}flwr stop {run_id} {name}",
            flush=True,
        )

    print(f"starting a run on {name}", flush=True)
    follower = Follower(verbose, sys.stdout.isatty())
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            Processes(private=False) as processes,
        ):
            return submit(
                processes,
                write_app(Path(folder)).parent,
                name,
                run_config=config,
                started=started,
                show=follower,
            )
    except RunFailed:
        if run_ids and not follower.resumable:  # for example, its ServerApp was killed
            print(resume_command(config, run_ids[0], federation), end="", flush=True)
        raise


def resume_command(
    config: Mapping[str, Any], run_id: str, federation: Path | None
) -> str:
    """Return the command that resumes a run, or "" without a local checkpoint."""
    complete = check_run_config(config)
    for file in output_dir(complete).glob(f"*-{run_id}/{FILE}"):
        resumed = complete | {"resume": file.parent.name}
        command = command_of(resumed, complete["n-parties"], federation=federation)
        return f"{RESUME} {command}\n"
    return ""


def run(
    strategy: Strategy,
    task: options.Task = "train",
    set_: options.Set = None,
    config: options.Config = None,
    connection: Annotated[
        str, typer.Option(help="A SuperLink in Flower's config.toml.")
    ] = "",
    federation: Federation = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the run's expected costs.")
    ] = False,
    verbose: options.Verbose = False,
    format_: options.FormatOption = "text",
) -> None:
    """Start a run on a SuperLink, follow it, and report its outcome.

    The exit code is 0 if the run completes, and 1 if it is refused, fails or is
    stopped; the last line then states the reason. With --format json the log goes to
    standard error.
    """
    as_json = format_ == "json"
    try:
        more = {"dry-run": True} if dry_run else {}
        settings = gather(strategy, task, set_ or [], config, more)
        with redirect_stdout(sys.stderr if as_json else sys.stdout):
            outcome = start(settings, connection, federation, verbose=verbose)
    except (RunFailed, ValueError) as error:
        if as_json:
            options.print_json(
                {"success": False, "error-message": options.reason_of(error)}
            )
        raise
    except KeyboardInterrupt:
        typer.echo("stopped following the run, which continues", err=True)
        raise
    if as_json:
        ended = {"run-id": str(outcome.run_id), "status": outcome.status}
        options.print_json({"success": True, **ended})
