"""Processes in the foreground, and systemd units that start the commands."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import typer

from vfl_flower.app.deployment.processes import Processes, RunFailed

RESTART = 10
"""Seconds after which systemd restarts a failed command, as often as necessary.

A SuperLink treats a killed SuperNode as still connected until it has missed two
heartbeats, and refuses its key until then, so the first restarts may fail. A run
waits much longer for the party: see :data:`vfl_flower.server.exchange.ABSENCE`.
"""

TIED = (
    "import ctypes, os, sys\n"
    "parent, kind, *command = sys.argv[1:]\n"
    "ctypes.CDLL(None).prctl(1, int(kind))\n"  # PR_SET_PDEATHSIG
    "if os.getppid() == int(parent): os.execvp(command[0], command)\n"
)
"""Runs a command that Linux ends with a signal when the parent process ends; the first
arguments are the parent's process id and the signal."""


class Shown:
    """Processes whose output is shown, and which stop together.

    On Linux they also stop if this process is killed.
    """

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self._ended: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._last: deque[str] = deque(maxlen=200)

    def start(
        self, name: str, command: Sequence[str], kind: signal.Signals = signal.SIGTERM
    ) -> subprocess.Popen[str]:
        """Start a command, which gets the signal `kind` if this process is killed.

        The command and its output are printed. Error messages refer to the process as
        `name`.
        """
        typer.echo(f"$ {shlex.join(command)}")
        tied = [sys.executable, "-Ic", TIED, str(os.getpid()), str(int(kind))]
        process = self.processes.popen(
            [*(tied if sys.platform == "linux" else []), *command],
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        threading.Thread(target=self._show, args=(process,), daemon=True).start()
        threading.Thread(target=self._watch, args=(name, process), daemon=True).start()
        return process

    def wait(self, reasons: Mapping[str, str] | None = None) -> None:
        """Wait until a process ends by itself, and raise RunFailed with its name.

        `reasons` maps parts of the processes' output to explanations.
        """
        name = self._ended.get()
        time.sleep(0.5)  # so that its last lines arrive
        printed = "".join(self._last)
        for line, reason in (reasons or {}).items():
            if line in printed:
                raise RunFailed(f"{name} ended. {reason}")
        raise RunFailed(f"{name} ended: see the last lines of its output")

    def _show(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._last.append(line)
                print(line, end="", flush=True)

    def _watch(self, name: str, process: subprocess.Popen[str]) -> None:
        process.wait()
        self._ended.put(name)


@contextlib.contextmanager
def until_ended(home: Path) -> Iterator[Shown]:
    """Let processes run until one ends; a signal to this process is not an error.

    All processes will have ended when the context ends.
    """
    for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(kind) != signal.SIG_IGN:  # as under nohup
            signal.signal(kind, signal.default_int_handler)
    try:
        with Processes(home) as processes:
            yield Shown(processes)
    except KeyboardInterrupt:
        typer.echo("ended")


def program() -> list[str]:
    """Return the command that starts the ``vfl-flower`` installed for this Python."""
    script = Path(sys.executable).with_name("vfl-flower")
    # `pip install --user` puts the script into another folder.
    module = [sys.executable, "-m", "vfl_flower.app.commands.cli"]
    return [str(script)] if script.exists() else module


def unit(what: str, command: Sequence[str]) -> str:
    """Return a systemd unit that runs a command of ``vfl-flower``."""
    words = [*program(), *command]
    return f"""\
[Unit]
Description={what.replace("%", "%%")}
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={" ".join(map(_unit_word, words))}
User={getpass.getuser()}
UMask=0077
NoNewPrivileges=true
# The command stops the processes that it has started.
KillMode=mixed
# A SuperLink treats a killed SuperNode as still connected for half a minute.
Restart=on-failure
RestartSec={RESTART}

[Install]
WantedBy=multi-user.target"""


def _unit_word(word: str) -> str:
    if not re.fullmatch(r"[\w./:=@,+-]+", word):
        word = json.dumps(word, ensure_ascii=False)
    return word.replace("%", "%%").replace("$", "$$")
