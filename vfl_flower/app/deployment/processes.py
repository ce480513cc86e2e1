"""Processes of one private Flower environment, and ``flwr`` commands run in it."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import psutil
import tomli_w

START = 60.0
"""Seconds within which a SuperLink or SuperNodes must start."""
GRACE = 8.0
"""Seconds between SIGTERM and SIGKILL for a process."""
COMMANDS = Path(__file__).with_name("flower_commands.py")
"""The program that runs ``flwr`` commands."""
MARK = "VFL_FLOWER_RUN"
"""Variable in the environment of all processes that :class:`Processes` has started."""
COLOR = re.compile(r"\x1b\[[0-9;]*m")


class RunFailed(RuntimeError):
    """A run did not reach ``finished:completed``; the text states the reason.

    `reason` is a sentence from Flower or the ServerApp, if there is one.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


class Processes(AbstractContextManager["Processes"]):
    """Processes of one private Flower environment, which stop together.

    Flower's daemons and Ray start child processes in new sessions; :meth:`stop` finds
    these processes by a mark in their inherited environment. Flower's folder is
    `home`; by default it is a temporary folder or, if `private` is false, the user's
    folder.
    """

    def __init__(self, home: str | Path | None = None, *, private: bool = True) -> None:
        # Paths of sockets, which Ray puts below this folder, must be short.
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
        """Start a process in a new session, with options of Popen.

        Ctrl-C reaches only this process, which calls :meth:`stop`. In the new process,
        SIGINT has its default action, which shells disable for background processes.
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
        """Return the answer of ``flwr ... --format json``, or raise RunFailed."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with self.command((*arguments, "--format", "json"), out, err) as running:
                code = running.wait()
            out.seek(0)
            err.seek(0)
            shown, errors = (
                file.read().decode(errors="replace") for file in (out, err)
            )
        try:
            answer: dict[str, Any] = json.loads(shown[shown.index("{") :])
        except ValueError:
            answer = {"error-message": (shown + errors).strip()}
        if code or not answer.get("success"):
            reason = answer.get("error-message") or f"exit code {code}"
            raise RunFailed(f"flwr {arguments[0]}: {reason}")
        return answer

    @contextmanager
    def command(
        self, arguments: Sequence[str], out: IO[bytes], err: IO[bytes]
    ) -> Iterator[_Commands]:
        """Run a ``flwr`` command, at most until the end of the block."""
        commands = self._idle.pop() if self._idle else _Commands(self)
        try:
            commands.begin(arguments, out, err)
            yield commands
        finally:
            if commands.busy:
                commands.close()
            else:
                self._idle.append(commands)

    def no_more_commands(self) -> None:
        """Stop the processes that wait for a ``flwr`` command."""
        while self._idle:
            self._idle.pop().close()

    def stop(self) -> None:
        """Stop all processes and their descendants.

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
    """Return the running processes, with ``ppid`` and ``environ`` as their ``info``.

    An environment that only another user may read is empty here.
    """
    ended = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    processes = psutil.process_iter(["ppid", "status", "environ"], ad_value={})
    return [process for process in processes if process.info["status"] not in ended]


class _Commands:
    """A process that has imported Flower and runs ``flwr`` commands, one at a time.

    The process leads the session that contains these commands.
    """

    def __init__(self, processes: Processes) -> None:
        self.busy = False
        self._channel, stdin = socket.socketpair()
        self._answers = self._channel.makefile("r")
        with stdin:
            self.process = processes.popen(
                [sys.executable, "-P", str(COMMANDS)],
                stdin=stdin.fileno(),
                stdout=subprocess.DEVNULL,
            )

    def begin(self, arguments: Sequence[str], out: IO[bytes], err: IO[bytes]) -> None:
        """Start a command; see :meth:`Processes.command`."""
        self.busy = True
        line = json.dumps([str(Path.cwd()), list(arguments)])
        with suppress(ConnectionError):  # the process has ended, as wait() reports
            socket.send_fds(self._channel, [b"+"], [out.fileno(), err.fileno()])
            self._channel.sendall(f"{line}\n".encode())

    def wait(self) -> int:
        """Return the exit code of the command; raise RunFailed if it was killed."""
        answer = ""
        with suppress(ConnectionError):
            answer = self._answers.readline()
        if not answer:
            raise RunFailed("the process for flwr commands was killed")
        self.busy = False
        return int(answer)

    def kill(self) -> None:
        """Kill the process and its command, if a command is running."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process, and close the channel to it."""
        self.kill()
        self.process.wait()
        self._answers.close()
        self._channel.close()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore a second Ctrl-C during the clean-up."""
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


def wait_for(
    answer: Callable[[], object], seconds: float, what: str, pause: float = 0.05
) -> None:
    """Call `answer` every `pause` seconds until it returns true, or raise RunFailed."""
    deadline = time.monotonic() + seconds
    while not answer():
        if time.monotonic() > deadline:
            raise RunFailed(f"waited {seconds:g} s in vain for {what}")
        time.sleep(pause)


def free_port() -> int:
    """Return a free TCP port on the loopback interface.

    The port is above Ray's ports and below the ports of outgoing connections, so
    that it is still free when used.
    """
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def write_flower_config(
    home: Path, name: str, port: int, options: Mapping[str, bool | str]
) -> None:
    """Write a ``config.toml`` for ``flwr`` with a SuperLink on this machine.

    `options` are the options of the connection. The file is written to `home`, which
    serves as ``FLWR_HOME``; nothing in ``~/.flwr`` changes.
    """
    superlink = {"address": f"127.0.0.1:{port}", **options}
    config = {"superlink": {"default": name, name: superlink}}
    (home / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
