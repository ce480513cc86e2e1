"""The commands of ``vfl-flower`` as a person runs them, each in its own process."""

import multiprocessing
import os
import pkgutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import util
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from vfl_flower.app.deployment.node import PROCESSES, preload
from vfl_flower.app.deployment.processes import RunFailed, live_processes, wait_for

PLACE = Path(__file__).parents[2]


def said(folder: Path, *words: object, code: int = 0) -> str:
    """Run a command of ``vfl-flower`` to its end, and return what it prints.

    It must end with the exit code.
    """
    with tempfile.TemporaryDirectory() as scratch:
        logs = [Path(scratch) / name for name in ("out", "err")]
        process = begun(folder, words, *logs)
        process.join()
        out, err = (log.read_text(errors="replace") for log in logs)
    assert process.exitcode == code, out + err
    return out + err if code else out


def begun(
    folder: Path,
    words: Sequence[object],
    out: Path,
    err: Path,
    program: str = "vfl_flower.app.commands.cli:app",
    environment: dict[str, str] | None = None,
) -> ForkServerProcess:
    """Start a command of ``vfl-flower``, or of another program that Python can import.

    Its process is forked from one that has imported the package, as all of them would.
    """
    preload()
    environment = environment or {**os.environ, "PYTHONPATH": str(PLACE)}
    arguments = program, folder, environment, list(map(str, words)), out, err
    process = PROCESSES.Process(target=_command, args=arguments, daemon=True)
    process.start()
    return process


def _command(
    program: str, folder: Path, env: dict[str, str], words: list[str], *logs: Path
) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    for stream, log in enumerate(logs, start=1):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    multiprocessing.current_process().daemon = False  # it may have children
    util.spawnv_passfds = _fork
    sys.argv = ["vfl-flower", *words]
    pkgutil.resolve_name(program)()


def _fork(_: str, words: Sequence[str], descriptors: Sequence[int]) -> int:
    """Fork the process that forks for messages, which would import all anew."""
    if process := os.fork():
        return process
    try:
        for descriptor in map(int, os.listdir("/dev/fd")):
            if descriptor > 2 and descriptor not in descriptors:
                with suppress(OSError):  # that of the folder
                    os.close(descriptor)
        exec(words[-1])
    finally:
        os._exit(0)


class Running:
    def __init__(self, folder: Path, log: str, *words: object, **options: Any) -> None:
        self.log = folder / f"{log}.log"
        self.log.touch()
        self.process = begun(folder, words, self.log, self.log, **options)

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, seconds: float) -> int | None:
        """Wait until the command ends, and return its exit code; None: it does not."""
        self.process.join(seconds)
        return self.process.exitcode

    def wait_to_say(self, words: str, seconds: float = 90) -> None:
        def has_said() -> bool:
            text = self.log.read_text(errors="replace")
            if words not in text and self.poll() is not None:
                raise RunFailed(f"ended:\n{text}")
            return words in text

        wait_for(has_said, seconds, f"{words!r} in\n{self.log}")

    def end(self, kind: signal.Signals = signal.SIGTERM) -> None:
        os.kill(self.process.pid, kind)
        assert self.wait(30) == 0


def started_in(folder: Path) -> list[int]:
    """Return live processes whose home is in a folder, whoever has started them."""
    homes = {p.pid: p.info["environ"].get("FLWR_HOME", "") for p in live_processes()}
    return [pid for pid, home in homes.items() if home.startswith(f"{folder}/")]
