"""Run a Flower project with the installed ``flwr`` command and check its final status.

The exit code of ``flwr run`` says that a run was submitted, not that it succeeded, and
the SuperLink that it starts for a simulation stays behind. :func:`run` asks for the
status of the run, raises :class:`RunFailed` with the reason when it is not
``finished:completed``, and ends every process that it started.

From a shell, exit code 1 and the reason for a run that failed::

    python -m vfl_flower.app.flower_run --num-supernodes 3
"""

from __future__ import annotations

import http.client
import json
import math
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

import click
import psutil
import tomli_w
import typer
from flwr.common.config import flatten_dict, parse_config_args

from vfl_flower.app.extras import check_installed
from vfl_flower.protocol.names import did_you_mean

T = TypeVar("T")

CONNECTION = "loopback"
"""Name of the private SuperLink in the private ``config.toml``."""
START = 60.0
"""Seconds in which a SuperLink or SuperNodes must start."""
GRACE = 8.0
"""Seconds that a process has between SIGTERM and SIGKILL."""
KILLED = "the ServerApp was killed"
"""What the SuperLink is told of one."""
COMMANDS = Path(__file__).with_name("flower_commands.py")
"""The program that runs ``flwr`` commands."""

MARK = "VFL_FLOWER_RUN"
"""Variable in the environment of all processes that :class:`Processes` has started."""

COLOR = re.compile(r"\x1b\[[0-9;]*m")
REASON = re.compile(r"ERROR\b|[A-Za-z_][\w.]*(Error|Exception|Failed)\b.*:")


class RunFailed(RuntimeError):
    """A run did not reach ``finished:completed``; the text says why.

    `reason` is a sentence, if Flower or the ServerApp has given one.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True)
class RunOutcome:
    """A run that completed."""

    run_id: int
    """Flower's id of the run."""
    status: str
    """``finished:completed``."""
    output: str
    """The log of the run."""


def run(
    app_dir: str | Path = ".",
    federation: str | None = None,
    *,
    run_config: Sequence[str] = (),
    num_supernodes: int | None = None,
    timeout: float | None = None,
) -> RunOutcome:
    """Run a Flower project, show its log and return when it has completed.

    federation: a SuperLink of ``$FLWR_HOME/config.toml``; default: a private one on
        loopback, which simulates the SuperNodes with Ray, and is stopped at the end.
    run_config: ``key=value`` pairs and TOML files in any mixture; later values win.
    num_supernodes: how many SuperNodes to simulate; Flower's default is 2.
    timeout: seconds until the run is abandoned; default: never.

    Raises RunFailed if the run was refused, failed, was stopped or timed out, and
    ValueError if Ray is missing, `num_supernodes` is given for a federation, or
    `run_config` is invalid.
    """
    if federation is not None and num_supernodes is not None:
        raise ValueError(
            f"num_supernodes belongs to a simulation, federation {federation!r} has "
            f"its own SuperNodes, got {num_supernodes}"
        )
    if federation is None:
        check_installed("ray")
    config = read_run_config(app_dir, run_config)  # before any process is started
    with Processes(private=federation is None) as processes:
        options = []
        if federation is None:
            start_superlink(processes, "--simulation")
            # One CPU a party: Flower's default of 2 leaves a small machine with none.
            simulation = ["client-resources-num-cpus=1"]
            if num_supernodes is not None:
                simulation.append(f"num-supernodes={num_supernodes}")
            options = ["--federation-config", " ".join(simulation)]
        return submit(
            processes,
            app_dir,
            federation or CONNECTION,
            run_config=config,
            options=options,
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
    """Submit a project to a running SuperLink, show its log, return when completed.

    `started` is called with the number of the run once it has one, and `show` with each
    line of its log. Raises RunFailed as :func:`run` does.
    """
    # As a file: in a KEY=VALUE pair, Flower has no escape for a quote.
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
        row = _ended(processes, run_id, connection)
        if row is not None:  # otherwise only the connection has broken off
            break
    # Flower ends a stream by a status that it reads after the log, and so without the
    # lines that came in between.
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
    """Return Flower's row of a finished run, or None if the run continues.

    Raises RunFailed if the SuperLink does not say: it has stopped, or knows no such
    run.
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
                    "the SuperLink no longer lists it, as one that was "
                    f"killed or has started anew ({last}){_how_to_go_on(run_id)}",
                ) from None
        else:
            if row["status"].startswith("finished"):
                return dict(row)
            if time.monotonic() > deadline:
                return None
        time.sleep(1)


def why(status: str, details: str, run_id: str) -> str:
    """Return why a run has failed, in a sentence, from Flower's words."""
    details = " ".join(details.split())
    if status == "finished:stopped":
        return "it was stopped"
    if "heartbeat" in details:
        return (
            f"the ServerApp has gone silent, as one that was killed ({details})"
            f"{_how_to_go_on(run_id)}"
        )
    if details.startswith(KILLED):
        return f"{details}{_how_to_go_on(run_id)}"
    _, told, sentence = details.partition("failed with exception: ")
    return sentence if told else details or f"it is {status}"


def _how_to_go_on(run_id: str) -> str:
    """Return what to do after a run whose ServerApp could not say it any more."""
    return (
        "; to go on, start it with resume= and the name of the folder in output-dir "
        f"that ends in -{run_id}, or as it was where there is none"
    )


def start_superlink(processes: Processes, *options: str) -> int:
    """Start a SuperLink on loopback, name it `CONNECTION`; return the port of its APIs.

    It has answered by then. Its working directory is the private folder, since a
    ServerApp must not depend on where the user is. Raises RunFailed if it ended or did
    not answer in time.
    """
    port = free_port()
    (processes.home / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        f'address = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    superlink = processes.start(
        "superlink", "flower-superlink", "--insecure", f"--port={port}", *options
    )

    def healthy() -> bool:
        if superlink.poll() is not None:
            raise RunFailed(f"the SuperLink ended:\n{processes.log('superlink')}")
        return answers(http.client.HTTPConnection("127.0.0.1", port, timeout=1))

    wait_for(healthy, START, f"the SuperLink on port {port} to answer")
    return port


def answers(connection: http.client.HTTPConnection) -> bool:
    """Return whether a SuperLink answers at a new connection.

    Raises SSLCertVerificationError if its certificate is for another host.
    """
    with closing(connection):
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except ssl.SSLCertVerificationError:
            raise
        except OSError:
            return False


class Processes(AbstractContextManager["Processes"]):
    """Processes of one private Flower environment, which stop together.

    Flower's daemons start children in sessions of their own, and so does Ray. All of
    them inherit a mark in their environment, by which :meth:`stop` finds them. Flower's
    folder is `home`; by default it is a temporary one or, unless `private`, the user's.
    """

    def __init__(self, home: str | Path | None = None, *, private: bool = True) -> None:
        # Ray puts sockets below this folder, and their paths must stay short.
        base = "/tmp" if Path("/tmp").is_dir() else None
        self._scratch = Path(tempfile.mkdtemp(prefix="flwr-", dir=base))
        self._mark = uuid.uuid4().hex
        self._started: list[subprocess.Popen[Any]] = []
        self._idle: list[_Commands] = []
        self.home = Path(home).absolute() if home is not None else self._scratch
        self.home.mkdir(parents=True, exist_ok=True)
        self.env = {**os.environ, MARK: self._mark}
        # RAY_ADDRESS would send the run to the user's cluster.
        self.env.pop("RAY_ADDRESS", None)
        if private or home is not None:
            self.env["FLWR_HOME"] = str(self.home)
        scripts = str(Path(sys.executable).parent)
        self.env |= {
            "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]),
            "PYTHONUNBUFFERED": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(self._scratch),
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }
        for name in ("NO_PROXY", "no_proxy"):
            hosts = os.environ.get(name)
            self.env[name] = f"127.0.0.1,{hosts}" if hosts else "127.0.0.1"

    def __exit__(self, *_: object) -> None:
        """Stop every process and remove the temporary folder."""
        self.stop()

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a daemon whose output goes to the log `name`."""
        with self._log_file(name).open("ab") as log:
            return self.popen(command, stdout=log)

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process; `options` are those of Popen.

        It has a session of its own, so that a Ctrl-C reaches only this process, which
        then calls :meth:`stop`. It heeds SIGINT, also where this process ignores it, as
        shells let it do in the background.
        """
        process: subprocess.Popen[Any] = subprocess.Popen(
            command,
            env=self.env,
            cwd=self.home,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
            **{"stdin": subprocess.DEVNULL} | options,
        )
        self._started.append(process)
        return process

    def log(self, name: str, lines: int = 20) -> str:
        """Return the last lines of the log of a daemon."""
        text = self._log_file(name).read_text(errors="replace")
        return "\n".join(COLOR.sub("", text).splitlines()[-lines:])

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Return the answer of a command, ``flwr ... --format json``.

        Raises RunFailed, with the reason, if the command failed.
        """
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with self.command((*arguments, "--format", "json"), out, err) as running:
                code = running.wait()
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read().decode(errors="replace"))
        shown = texts[0]
        try:
            answer: dict[str, Any] = json.loads(shown[shown.index("{") :])
        except ValueError:
            answer = {"error-message": "".join(texts).strip()}
        if code or not answer.get("success"):
            reason = answer.get("error-message") or f"exit code {code}"
            raise RunFailed(f"flwr {arguments[0]}: {reason}")
        return answer

    @contextmanager
    def command(
        self, arguments: Sequence[str], out: IO[bytes], err: IO[bytes]
    ) -> Iterator[_Commands]:
        """Run a ``flwr`` command, which stops with the block at the latest.

        `arguments` is the command line without the program.
        """
        try:
            commands = self._idle.pop()
        except IndexError:
            commands = _Commands(self)
        try:
            commands.begin(arguments, out, err)
            yield commands
        finally:
            if commands.busy:
                commands.close()
            else:
                self._idle.append(commands)

    def no_more_commands(self) -> None:
        """End the processes that wait for a ``flwr`` command: none comes soon."""
        while self._idle:
            self._idle.pop().close()

    def stop(self) -> None:
        """Stop every process that carries the mark, and what they have started.

        Raises RuntimeError if a process survives SIGKILL.
        """
        with _undisturbed():
            alive: set[int] = set()
            for kind in (signal.SIGTERM, signal.SIGKILL):
                signalled: set[int] = set()
                deadline = time.monotonic() + GRACE
                while (alive := self.pids(alive)) and time.monotonic() < deadline:
                    for pid in alive - signalled:
                        with suppress(ProcessLookupError):
                            os.kill(pid, kind)
                    signalled |= alive
                    time.sleep(0.05)
            if alive:
                raise RuntimeError(f"processes {sorted(alive)} survive SIGKILL")
            for process in self._started:
                process.wait()
            self.no_more_commands()  # closes their sockets
            shutil.rmtree(self._scratch, ignore_errors=True)

    def pids(self, also: Iterable[int] = ()) -> set[int]:
        """Return live processes with the mark or in `also`, and their descendants."""
        live = live_processes()
        pids = {p.pid for p in live if p.info["environ"].get(MARK) == self._mark}
        pids |= {p.pid for p in live if p.pid in also}
        while children := {p.pid for p in live if p.info["ppid"] in pids} - pids:
            pids |= children
        return pids

    def _log_file(self, name: str) -> Path:
        return self.home / f"{name}.log"


def live_processes() -> list[psutil.Process]:
    """Return the processes that run, with ``ppid`` and ``environ`` as their ``info``.

    The environment is empty where only another user may read it.
    """
    ended = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    processes = psutil.process_iter(["ppid", "status", "environ"], ad_value={})
    return [process for process in processes if process.info["status"] not in ended]


class _Commands:
    """A process that has imported Flower and runs ``flwr`` commands, one at a time.

    process: leader of a session of its own, to which the commands belong.
    busy: whether a command runs.
    """

    def __init__(self, processes: Processes) -> None:
        self.busy = False
        self._channel, theirs = socket.socketpair()
        self._answers = self._channel.makefile("r")
        with theirs:
            self.process = processes.popen(
                [sys.executable, "-P", str(COMMANDS)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
            )

    def begin(self, arguments: Sequence[str], out: IO[bytes], err: IO[bytes]) -> None:
        """Start a command; see :meth:`Processes.command`."""
        self.busy = True
        line = json.dumps([str(Path.cwd()), list(arguments)])
        with suppress(ConnectionError):  # it has ended, as wait() says
            socket.send_fds(self._channel, [b"+"], [out.fileno(), err.fileno()])
            self._channel.sendall(f"{line}\n".encode())

    def wait(self) -> int:
        """Wait until the command has ended, and return its exit code.

        Raises RunFailed if the process was killed.
        """
        answer = ""
        with suppress(ConnectionError):
            answer = self._answers.readline()
        if not answer:
            raise RunFailed("the process for flwr commands was killed")
        self.busy = False
        return int(answer)

    def kill(self) -> None:
        """End the process, and the command if one runs."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process, and close what leads to it."""
        self.kill()
        self.process.wait()
        self._answers.close()
        self._channel.close()


def _show_log(
    processes: Processes,
    run_id: str,
    connection: str,
    give_up: float,
    lines: list[str],
    show: Callable[[str], None],
) -> None:
    """Show the log of a run until it ends, or until the time `give_up`.

    The lines are added to `lines`; those that it has already are not shown again.
    """
    known, (source, sink) = len(lines), os.pipe()
    with (
        os.fdopen(source, errors="replace") as shown,
        os.fdopen(sink, "wb") as log,
        processes.command(("log", run_id, connection, "--stream"), log, log) as viewer,
    ):
        log.close()  # so that what is shown ends with the command
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


def wait_for(
    answer: Callable[[], T | None], seconds: float, what: str, pause: float = 0.05
) -> T:
    """Call `answer` every `pause` seconds until its value is true; return the value.

    Raises RunFailed after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not (value := answer()):
        if time.monotonic() > deadline:
            raise RunFailed(f"waited {seconds:g} s in vain for {what}")
        time.sleep(pause)
    return value


def free_port() -> int:
    """Return a TCP port of loopback that nobody listens on.

    It lies below the range from which systems take the ports of outgoing connections
    and above Ray's, so that neither takes it before it is used.
    """
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


_PAIR = re.compile(r"""(\S+?)=('[^']*'|"[^"]*"|\S+)""")
"""A ``key=value`` pair as Flower reads it."""


def read_run_config(app_dir: str | Path, run_config: Sequence[str]) -> dict[str, Any]:
    """Return the values of a run config by their keys, as Flower reads them.

    The arguments are those of :func:`run`, and so is the ValueError.
    """
    config = dict(pair for item in run_config for pair in _parsed(item).items())
    _check_keys(Path(app_dir), config)
    return config


def _parsed(item: str) -> dict[str, Any]:
    """Return keys and values, as Flower reads them, of pairs or of the file named."""
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
    """Return the keys of a TOML file, with those of the tables around them in front.

    Raises ValueError if it cannot be read.
    """
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
        return  # Flower will say what is wrong with the project
    short = {name.rpartition(".")[2]: name for name in reversed(known)}
    for key in keys:
        if key not in known:
            hint = did_you_mean(key, {name: name for name in known} | short)
            raise ValueError(f"run config has no key {key!r}{hint}")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let no second Ctrl-C interrupt the clean-up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, signal.SIG_IGN) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def main(
    app_dir: Annotated[str, typer.Argument(help="Project folder.")] = ".",
    federation: Annotated[
        str | None, typer.Argument(help="A SuperLink of $FLWR_HOME/config.toml.")
    ] = None,
    num_supernodes: Annotated[
        int | None, typer.Option(help="SuperNodes to simulate; Flower's default is 2.")
    ] = None,
    run_config: Annotated[
        list[str] | None,
        typer.Option(help="KEY=VALUE pairs or a TOML file; a later one wins."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds until the run is given up.")
    ] = None,
) -> None:
    """Run a Flower project, show its log, and fail if the run fails."""
    for kind in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(kind, lambda number, _: sys.exit(128 + number))
    try:
        outcome = run(
            app_dir,
            federation,
            run_config=run_config or [],
            num_supernodes=num_supernodes,
            timeout=timeout,
        )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (RunFailed, ValueError) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"Run {outcome.run_id} is {outcome.status}.")


def command() -> typer.Typer:
    """Return the command, whose help ends with every key of the run config."""
    from vfl_flower.app.settings import help_text

    command = typer.Typer(add_completion=False)
    keys = "\n\n".join(help_text().splitlines())
    command.command(epilog=f"Keys of this package's run config:\n\n{keys}")(main)
    return command


if __name__ == "__main__":
    command()()
