"""Run a Flower project with the installed ``flwr`` command and check how the run ends.

The exit code of ``flwr run`` says only that a run was submitted, not that it succeeded,
and the SuperLink that the command starts for a simulation keeps running. :func:`run`
raises an error with the reason if the run failed, and stops every process that it
started.
"""

from __future__ import annotations

import http.client
import math
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click
import tomli_w
import typer

from vfl_flower.app.deployment.certificates import AUTHORITY, CERTIFICATE
from vfl_flower.app.deployment.processes import (
    COLOR,
    START,
    Processes,
    RunFailed,
    free_port,
    wait_for,
    write_flower_config,
)
from vfl_flower.app.extras import check_installed
from vfl_flower.app.flwr_internals.config import flatten_dict, parse_config_args
from vfl_flower.protocol.names import did_you_mean

CONNECTION = "loopback"
"""Name of the private SuperLink in the private ``config.toml``."""
KILLED = "the ServerApp was killed"
"""Start of a run's details if its ServerApp was killed."""

REASON = re.compile(r"ERROR\b|[A-Za-z_][\w.]*(Error|Exception|Failed)\b.*:")


@dataclass(frozen=True)
class RunOutcome:
    """A run that completed."""

    run_id: int
    status: str
    output: str
    """The log of the run."""


def run(
    app_dir: str | Path,
    run_config: Mapping[str, Any],
    num_supernodes: int = 2,
    timeout: float | None = None,
) -> RunOutcome:
    """Simulate a Flower project, show its log and return when it has completed.

    A private SuperLink on loopback simulates the SuperNodes with Ray, and stops at the
    end. Raises RunFailed if the run was refused, failed, was stopped or took longer
    than `timeout` seconds, and ValueError if Ray is missing.
    """
    check_installed("ray")
    # One CPU per party: with Flower's default of 2, a small machine has too few.
    simulation = f"client-resources-num-cpus=1 num-supernodes={num_supernodes}"
    with Processes() as processes:
        start_superlink(processes, "--simulation")
        return submit(
            processes,
            app_dir,
            run_config=run_config,
            options=["--federation-config", simulation],
            timeout=timeout,
        )


def submit(
    processes: Processes,
    app_dir: str | Path,
    connection: str = CONNECTION,
    *,
    run_config: Mapping[str, Any] | None = None,
    options: Sequence[str] = (),
    timeout: float | None = None,
    started: Callable[[str], None] = lambda run_id: None,
    show: Callable[[str], None] = lambda line: print(line, end="", flush=True),
) -> RunOutcome:
    """Submit a project to a running SuperLink, show the log, and await the run's end.

    Calls `started` with the number of the run, and `show` with each line of its log.
    Raises RunFailed like :func:`run`.
    """
    # Passed as a file, since Flower's KEY=VALUE pairs have no escape for a quote.
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        tomli_w.dump(run_config or {}, file)
        file.flush()
        config = f"--run-config={file.name}"
        answer = processes.flwr("run", str(app_dir), connection, config, *options)
    run_id = str(answer["run-id"])
    started(run_id)
    lines: list[str] = []
    give_up = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        _show_log(processes, run_id, connection, give_up, lines, show)
        if time.monotonic() > give_up:
            with suppress(RunFailed):
                processes.flwr("stop", run_id, connection)
            raise RunFailed(f"run {run_id} did not finish within {timeout:g} s")
        if row := _ended(processes, run_id, connection):
            break  # otherwise only the connection was lost
    # Flower ends a stream when the run has finished, perhaps without the last lines.
    _show_log(processes, run_id, connection, give_up, lines, show)
    output = "".join(lines)
    if row["status"] != "finished:completed":
        plain = [COLOR.sub("", line).rstrip() for line in output.splitlines()]
        errors = [line for line in plain if REASON.match(line)]
        reasons = [f"run {run_id} is {row['status']}: {row['status-details']}"]
        reason = why(row["status"], str(row["status-details"] or ""), run_id)
        raise RunFailed("\n  ".join(reasons + errors[-3:]), reason)
    return RunOutcome(int(run_id), row["status"], output)


def _ended(processes: Processes, run_id: str, connection: str) -> dict[str, Any] | None:
    """Return Flower's row for a finished run, or None if the run continues.

    Raises RunFailed if the SuperLink has stopped, or does not know the run.
    """
    deadline = time.monotonic() + 30
    while True:
        try:
            row = processes.flwr("ls", connection, "--run-id", run_id)["runs"][0]
        except RunFailed as error:
            if time.monotonic() > deadline:
                last = str(error).strip().splitlines()[-1].strip()
                raise RunFailed(
                    str(error),
                    "the SuperLink no longer lists the run, perhaps after being killed "
                    f"or restarted ({last}){_how_to_continue(run_id)}",
                ) from None
        else:
            if row["status"].startswith("finished"):
                return dict(row)
            if time.monotonic() > deadline:
                return None
        time.sleep(1)


def why(status: str, details: str, run_id: str) -> str:
    """Return the reason why a run failed, as a sentence made from Flower's details."""
    details = " ".join(details.split())
    if status == "finished:stopped":
        return "it was stopped"
    if "heartbeat" in details:
        return (
            f"the ServerApp has gone silent: it may have been killed ({details})"
            f"{_how_to_continue(run_id)}"
        )
    if details.startswith(KILLED):
        return f"{details}{_how_to_continue(run_id)}"
    _, marker, sentence = details.partition("failed with exception: ")
    return sentence if marker else details or f"it is {status}"


def _how_to_continue(run_id: str) -> str:
    """Return advice on continuing a run whose ServerApp could not log this advice."""
    return (
        "; to continue, start the run with resume= and the name of its folder in "
        f"output-dir (...-{run_id}), or without resume= if there is no such folder"
    )


def start_superlink(processes: Processes, *options: str) -> int:
    """Start a SuperLink on loopback as `CONNECTION`; return the port of its APIs.

    The SuperLink's working directory is the private folder, so that ServerApps do not
    depend on the user's directory. Raises RunFailed if the SuperLink ended or did not
    answer in time.
    """
    port = free_port()
    write_flower_config(processes.home, CONNECTION, port, {"insecure": True})
    superlink = processes.start(
        "superlink", "flower-superlink", "--insecure", f"--port={port}", *options
    )
    try:
        wait_for_superlink(superlink, port)
    except RunFailed as error:
        raise RunFailed(f"{error}:\n{processes.log('superlink')}") from None
    return port


def wait_for_superlink(
    superlink: subprocess.Popen[Any], port: int, ca: Path | None = None
) -> None:
    """Wait until a SuperLink on this machine answers, over TLS if `ca` is given.

    Raises RunFailed if the SuperLink ended or did not answer in time, and ValueError if
    its certificate is not for 127.0.0.1 or not signed by `ca`.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    if ca is not None:
        context = ssl.create_default_context(cafile=ca)
        connection = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=1, context=context
        )

    def answers() -> bool:
        if superlink.poll() is not None:
            raise RunFailed("the SuperLink ended: see the last lines of its output")
        with closing(connection):
            try:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
            except ssl.SSLCertVerificationError as error:
                raise ValueError(
                    f"{CERTIFICATE} must be for 127.0.0.1 and signed by {AUTHORITY}: "
                    f"{error.verify_message}"
                ) from None
            except OSError:
                return False

    wait_for(answers, START, f"the SuperLink on port {port} to answer")


def _show_log(
    processes: Processes,
    run_id: str,
    connection: str,
    give_up: float,
    lines: list[str],
    show: Callable[[str], None],
) -> None:
    """Show new lines of a run's log until its end or `give_up`; add them to `lines`."""
    known, (source, sink) = len(lines), os.pipe()
    with (
        os.fdopen(source, errors="replace") as shown,
        os.fdopen(sink, "wb") as log,
        processes.command(("log", run_id, connection, "--stream"), log, log) as viewer,
    ):
        log.close()  # so that `shown` ends with the command
        timer = threading.Timer(max(0.0, give_up - time.monotonic()), viewer.kill)
        if give_up < math.inf:
            timer.start()
        try:
            for number, line in enumerate(shown):
                if number >= known:
                    show(line)
                    lines.append(line)
            with suppress(RunFailed):  # killed by the timer
                viewer.wait()
        finally:
            timer.cancel()


_PAIR = re.compile(r"""(\S+?)=('[^']*'|"[^"]*"|\S+)""")
"""A ``key=value`` pair as Flower reads it."""


def read_run_config(app_dir: str | Path, run_config: Sequence[str]) -> dict[str, Any]:
    """Return the values of a run config by key, as Flower reads them."""
    config = dict(pair for item in run_config for pair in _parsed(item).items())
    _check_keys(Path(app_dir), config)
    return config


def _parsed(item: str) -> dict[str, Any]:
    """Return the values of pairs or of a TOML file by key, as Flower reads them."""
    if item.endswith(".toml"):
        return read_settings(Path(item))
    no_pairs = _PAIR.sub("", item).split()
    if no_pairs:  # which Flower would silently ignore
        raise ValueError(f"run config must be KEY=VALUE pairs, got {no_pairs[0]!r}")
    try:
        return parse_config_args([item])
    except (click.ClickException, ValueError) as error:
        raise ValueError(f"run config {item!r} cannot be read: {error}") from None


def read_settings(path: Path) -> dict[str, Any]:
    """Return the flattened keys of a TOML file; raise ValueError if it is invalid."""
    try:
        return dict(flatten_dict(tomllib.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"run config {path} cannot be read: {reason}") from None


def _check_keys(project: Path, keys: Iterable[str]) -> None:
    """Raise ``ValueError`` for a key that the project's own config does not have."""
    try:
        table = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
        known = [*flatten_dict(table["tool"]["flwr"]["app"]["config"])]
    except (OSError, ValueError, KeyError):
        return  # Flower reports what is wrong with the project
    short = {name.rpartition(".")[2]: name for name in reversed(known)}
    for key in keys:
        if key not in known:
            hint = did_you_mean(key, {name: name for name in known} | short)
            raise ValueError(f"run config has no key {key!r}{hint}")


def simulate_app(
    app_dir: Annotated[str, typer.Argument(help="Folder of the app.")] = ".",
    num_supernodes: Annotated[int, typer.Option(help="SuperNodes to simulate.")] = 2,
    run_config: Annotated[
        list[str] | None,
        typer.Option(help="KEY=VALUE pairs or a TOML file; later values win."),
    ] = None,
) -> None:
    """Run a Flower app on SuperNodes that Ray simulates; fail if the run fails."""
    for kind in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(kind, lambda number, _: sys.exit(128 + number))
    config = read_run_config(app_dir, run_config or [])
    outcome = run(app_dir, config, num_supernodes)
    typer.echo(f"Run {outcome.run_id} is {outcome.status}.")
