"""Processes that are killed at their writes, as parties and servers may be.

Tests run these in a separate script, since pytest's process has threads and should not
fork.
"""

import functools
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import vfl_flower

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""A folder in memory, if there is one: a kill has the same effect, and is faster."""


def printed_by(test_file: str) -> Any:
    """Run a file of tests that forks as a script, and return the JSON it prints."""
    home = Path(vfl_flower.__file__).parents[1]
    paths = os.pathsep.join(map(str, [home, *Path(__file__).parents[:2]]))
    done = subprocess.run(
        [sys.executable, test_file],
        # One thread: a forked process has no threads of OpenMP, and would wait for
        # them for ever.
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


class Killed(sqlite3.Connection):
    """Kills the process after a number of statements that may write."""

    left = 0
    reads = re.compile(r"SELECT|BEGIN$|PRAGMA (?!application_id =|user_version =)")

    @classmethod
    def count(cls) -> None:
        cls.left -= 1
        if cls.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def _run(self, run: Callable[..., Any], sql: str, *args: Any) -> Any:
        result = run(sql, *args)
        if not self.reads.match(sql):
            self.count()
        return result

    def execute(self, sql: str, *args: Any) -> Any:
        return self._run(super().execute, sql, *args)

    def executemany(self, sql: str, *args: Any) -> Any:
        return self._run(super().executemany, sql, *args)


def _counted(call: Callable[..., None]) -> Callable[..., None]:
    def both(*args: Any, **kwargs: Any) -> None:
        Killed.count()
        call(*args, **kwargs)
        Killed.count()

    return both


def killed(act: Callable[[Path], object], folder: Path, k: int) -> bool:
    """Act on a folder in a process that is killed at its k-th write.

    A write is an SQL write, or a change of a file's name, before and after it. A file
    is written under a different name before it gets its own. Return whether the process
    was killed before its end.
    """
    child = os.fork()
    if not child:
        try:
            Killed.left = k
            sqlite3.connect = functools.partial(sqlite3.connect, factory=Killed)
            for name in ("replace", "unlink"):
                setattr(os, name, _counted(getattr(os, name)))
            act(folder)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])
