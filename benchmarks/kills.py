"""Kill -9 of each kind of process of a deployment, and the outcome of the runs.

A coordinator and three parties on loopback, as ``vfl-flower coordinator`` and
``vfl-flower party`` start them. The runs of all strategies for one split of the data
take place at the same time, so that they share the minutes in which a killed deployment
only waits; each is killed at a random moment between its first and its last message,
and is then left alone or started again::

    python benchmarks/kills.py columns --moments 1

*Restart* means: systemd starts a command of ``vfl-flower`` again after the seconds of
its unit; a failed run is started again with ``resume`` (a later task of mufc without
it). Each line shows the killed process and the step, the exit status of ``vfl-flower
run``, the seconds from the kill until this exit, whether the result equals the result
of a run that nobody killed (bit for bit, except for rounding under shares in
``ridge``), and the last line. Then follow the processes and files that should not be
left, with the files that hold an id of a row.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vfl_flower.app.deployment.foreground import RESTART
from vfl_flower.app.deployment.processes import (
    RunFailed,
    free_port,
    live_processes,
    wait_for,
)

ROOT = Path(__file__).parents[1]
COMMAND = (sys.executable, "-m", "vfl_flower.app.commands.cli")
NAMES = ("airline", "weather", "registry")
LABELS = NAMES[-1]

KINDS = {
    "ClientApp": "the process of one message",
    "forkserver": "the process that forks one for each message",
    "starter": "the process that forks one for each run",
    "ServerApp": "the process of one run",
    "SuperNode": "the SuperNode below vfl-flower party",
    "SuperLink": "flower-superlink below vfl-flower coordinator",
    "executor": "vfl_flower.app.deployment.server_executor, which starts ServerApps",
    "gate": "the gate below vfl-flower coordinator",
    "party": "vfl-flower party itself",
    "coordinator": "vfl-flower coordinator itself",
    "announcing": "the SuperNode, when it has announced a reply and sent nothing",
}

RESTARTS = ("SuperNode", "party")
"""Kinds that a run can survive if systemd restarts them; no effect on other kinds."""

PARTYS = ("ClientApp", "forkserver", "SuperNode", "party", "announcing")
"""Kinds of process that each party has."""

START = 400.0
"""Seconds that a command may take to be ready."""

MOST_RUNS = 4
"""Maximum number of runs that one kill should hit."""

MOST_STARTS = 10
"""Maximum number of starts of a failing command."""

LIFE = 0.2
"""Seconds within which most processes of one message end."""

HANGS = 150.0
"""Seconds after which a run that has not ended is stopped."""

WAITS = 60.0, "waiting for 3 parties"
"""Seconds after which a run with this output is stopped, since it has not begun."""


class Case(NamedTuple):
    """A strategy, its settings, and whether two of its runs are equal bit for bit."""

    strategy: str
    split: str
    settings: tuple[str, ...] = ()
    task: str = "train"
    exact: bool = True


ROUNDED = 0.05
"""Share of the largest number by which inexact runs of 70 rows differ."""


CASES = {
    "coreset-vrlr": Case("coreset-vrlr", "columns", ("size=80",)),
    "coreset-vkmc": Case("coreset-vkmc", "columns", ("size=40",)),
    "ridge": Case(
        "ridge", "columns", ("joint-features=4", "target=continuous"), exact=False
    ),
    "fk-kmeans": Case(
        "fk-kmeans", "rows", ("n-clusters=3", "iterations=2", "passes=4")
    ),
    "mufc": Case("mufc", "rows", ("n-clusters=3", "box=-9,9")),
    "mufc unlearn": Case("mufc", "rows", (), "unlearn"),
}

SPLITS = {
    split: [name for name, case in CASES.items() if case.split == split]
    for split in ("columns", "rows")
}

ASKED = re.compile(r"\[RUN (\d+)\] Receiving: train\.(\w+) message")
"""The log line of a SuperNode when a message has arrived."""

DYING = """
import os, signal, sys
if "supernode" in sys.orig_argv[2:4]:
    from functools import wraps
    from flwr.supercore.inflatable import inflatable_utils as utils
    push = utils.push_objects
    @wraps(push)
    def dying(*args, **kwargs):
        flag = os.path.join({place!r}, "dies-" + str(os.getpid()))
        if os.path.exists(flag):
            os.remove(flag)
            os.kill(os.getpid(), signal.SIGKILL)
        return push(*args, **kwargs)
    utils.push_objects = dying
"""
"""The ``sitecustomize`` of a SuperNode that dies in ``Node.send`` when told to."""


class Followed(NamedTuple):
    """A ``vfl-flower run`` that has ended."""

    status: str
    lines: list[str]
    ended: float

    @property
    def sentence(self) -> str:
        """Return the last line that it printed."""
        return self.lines[-1] if self.lines else ""


# -- processes -------------------------------------------------------------------------


def begun(folder: Path, log: Path, words: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a command of ``vfl-flower`` that prints into a file."""
    with log.open("wb") as file:
        return subprocess.Popen(
            [*COMMAND, *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder / 'dying'}"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def run_to_end(folder: Path, *words: str) -> None:
    """Run a command of ``vfl-flower`` that must succeed."""
    log = folder / "command.log"
    assert begun(folder, log, words).wait() == 0, log.read_text()


class Running:
    """A command of ``vfl-flower`` that runs until it is stopped."""

    def __init__(self, folder: Path, log: str, *words: str) -> None:
        self.log = folder / f"{log}.log"
        self.process = begun(folder, self.log, words)

    def wait_to_say(self, words: str) -> None:
        """Wait until the command has printed these words."""

        def has_said() -> bool:
            text = self.log.read_text(errors="replace")
            if words not in text and self.process.poll() is not None:
                raise RunFailed(f"ended:\n{text}")
            return words in text

        wait_for(has_said, START, f"{words!r} in\n{self.log}")


def started_in(folder: Path) -> list[int]:
    """Return live processes whose home is in a folder, whoever started them."""
    homes = {p.pid: p.info["environ"].get("FLWR_HOME", "") for p in live_processes()}
    return [pid for pid, home in homes.items() if home.startswith(f"{folder}/")]


def processes() -> Iterator[tuple[int, int, list[str]]]:
    """Yield number, parent's number and command line of each live process."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            words = (folder / "cmdline").read_bytes().decode(errors="replace")
            if state not in "ZX":
                yield int(folder.name), int(parent), words.split("\0")


def named(words: Sequence[str], name: str) -> bool:
    """Return whether a command line runs a command, itself or by its interpreter."""
    return any(Path(word).name == name for word in words[:3])


def forks_of(
    table: Sequence[tuple[int, int, list[str]]], above: Collection[int]
) -> list[int]:
    """Return processes that fork other processes, below some processes."""
    return [
        pid
        for pid, parent, words in table
        if parent in above and any("forkserver" in word for word in words)
    ]


class Site:
    """A coordinator and three parties, as their owners start them."""

    def __init__(self, place: Path, split: str) -> None:
        self.place, self.split = place, split
        self.ports = free_port(), free_port()
        self.started: dict[str, Running] = {}
        self.count = 0
        os.environ["VFL_FLOWER_CACHE"] = str(place / "cache")
        os.environ["TMPDIR"] = str(place / "tmp")
        (place / "tmp").mkdir()
        (place / "dying").mkdir()
        (place / "dying" / "sitecustomize.py").write_text(
            DYING.format(place=str(place))
        )
        self.ids = {
            name: [f"{name}-{k:06}-of-2026" for k in range(70)] for name in NAMES
        }
        self._prepare()

    def _prepare(self) -> None:
        rng = np.random.default_rng(0)
        centres = rng.choice([-5.0, 0.0, 5.0], size=(3, 70, 1))
        X = centres + rng.normal(size=(3, 70, 2))
        ids = "--id-column=row"
        for name, values in zip(NAMES, X, strict=True):
            keys = self.ids[name]
            columns = {"one": values[:, 0], "two": values[:, 1]}
            if self.split == "columns":
                keys = self.ids[NAMES[0]]
                columns = {f"{key}-{name}": value for key, value in columns.items()}
            if self.split == "columns" and name == LABELS:
                columns["delay"] = X.sum(axis=(0, 2)) + rng.normal(size=70)
            file = self.place / f"{name}.csv"
            pd.DataFrame({"row": keys} | columns).to_csv(file, index=False)
            label = ["--label-column=delay"] if "delay" in columns else []
            run_to_end(self.place, "init", name, f"--data={file}", ids, *label)
            consent = self.place / name / "consent.toml"
            text = consent.read_text().replace(
                "allow-seed = false", "allow-seed = true"
            )
            rules, leaves = text.split("\n[leaves]")
            leaves = leaves.replace("= false", "= true ")
            consent.write_text(f"{rules}\n[leaves]{leaves}")
        run_to_end(self.place, "certificates", "localhost")

    def start(self, *names: str) -> None:
        """Start the commands that are not running, and wait until they are ready."""
        names = names or ("coordinator", *NAMES)
        for name in names:
            running = self.started.get(name)
            if running is None or running.process.poll() is not None:
                self.started[name] = Running(*self._command(name))
            if name == "coordinator":
                self.started[name].wait_to_say("SuperNodes connect")
        for name in set(names) & set(NAMES):
            self.started[name].wait_to_say("SuperNode ID")

    def _command(self, name: str) -> tuple[Any, ...]:
        self.count += 1
        log, (port, local) = f"{name}-{self.count}", self.ports
        if name == "coordinator":
            cards = (f"--card={party}/{party}.card" for party in NAMES)
            ports = f"--port={port}", f"--local-port={local}", "--host=127.0.0.1"
            return self.place, log, "coordinator", "federation", *cards, *ports
        peers = (f"--peer={peer}/{peer}.card" for peer in NAMES if peer != name)
        link = f"--superlink=localhost:{port}", "--ca=federation/ca.crt"
        return self.place, log, "party", name, *link, *peers

    def close(self) -> int:
        """End all commands, and return the number of remaining processes."""
        for running in self.started.values():
            if running.process.poll() is None:
                running.process.send_signal(signal.SIGTERM)
        for name, running in self.started.items():
            try:
                running.process.wait(60)
            except subprocess.TimeoutExpired:
                print(f"{name} does not end", flush=True)
        left = started_in(self.place)
        print(f"{len(left)} processes are left at the end", flush=True)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(left)

    def heal(self) -> None:
        """Restart ended commands, and end processes that outlived their commands."""
        for pid in self.orphans():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.start()

    def orphans(self) -> list[int]:
        """Return processes of this site that have outlived their commands."""
        started = set(started_in(self.place))
        commands = {running.process.pid for running in self.started.values()}
        table = {pid: parent for pid, parent, _ in processes()}

        def owned(pid: int) -> bool:
            while pid > 1:
                if pid in commands:
                    return True
                pid = table.get(pid, 0)
            return False

        # Flower starts some processes in separate sessions, below process 1.
        if self.started["coordinator"].process.poll() is None:
            started = {
                p for p in started if f"{self.place}/federation/" not in home_of(p)
            }
        return sorted(pid for pid in started if not owned(pid))

    def pids(self, kind: str, party: str) -> list[int]:
        """Return the processes of a kind, at one party if each party has its own.

        For ServerApps these are the processes of all runs.
        """
        if kind in ("party", "coordinator"):
            name = party if kind == "party" else kind
            return [self.started[name].process.pid]
        table, started = list(processes()), set(started_in(self.place))
        key = f"{self.place}/{party}/supernode.key"
        nodes = [pid for pid, _, words in table if any(key in word for word in words)]
        if kind in ("SuperNode", "announcing"):
            return nodes[:1]
        modules = {
            "executor": "vfl_flower.app.deployment.server_executor",
            "gate": "vfl_flower.app.deployment.gate",
        }
        servers = {
            name: [pid for pid, _, w in table if pid in started and module in w]
            for name, module in modules.items()
        }
        if kind in servers:
            return servers[kind][:1]
        if kind == "SuperLink":
            links = (p for p, _, w in table if named(w, "flower-superlink"))
            return [pid for pid in links if pid in started][:1]
        of_server = kind in ("ServerApp", "starter")
        forks = forks_of(table, servers["executor"] if of_server else nodes)
        if kind in ("forkserver", "starter"):
            return forks[:1]
        workers = [pid for pid, parent, _ in table if parent in forks]
        return workers if kind == "ServerApp" else workers[-1:]

    def passing(self) -> list[str]:
        """Return processes that belong to a run or a message, and not to the site."""
        started = set(started_in(self.place))
        table = list(processes())
        forks = forks_of(table, started)
        passing = [
            "process of a message or a run"
            for pid, parent, _ in table
            if pid in started and parent in forks
        ]
        return passing + ["orphan" for _ in self.orphans()]

    # -- runs --------------------------------------------------------------------------

    def words(self, case: Case, folder: str, *more: str) -> list[str]:
        """Return the command line of a run."""
        given = ("seed=1", "n-parties=3", f"output-dir={self.place}/{folder}")
        given += (*case.settings, *more)
        sets = [word for item in given for word in ("--set", item)]
        task = ["--task", case.task]
        return ["run", case.strategy, *task, "--federation", "federation", *sets]

    def asked(self, name: str) -> list[tuple[str, str]]:
        """Return the run and the step of each message to a party since its start."""
        text = self.started[name].log.read_text(errors="replace")
        return ASKED.findall(text)

    def stop(self, text: str) -> None:
        """Stop the run that wrote a log."""
        number = re.search(r"flwr stop (\d+) (\S+)", text)
        home = str(self.place / "federation" / "flwr")
        if number is not None:
            subprocess.run(
                [str(Path(sys.executable).with_name("flwr")), "stop", *number.groups()],
                env={**os.environ, "FLWR_HOME": home},
                capture_output=True,
                check=False,
            )

    def half_written(self, failed: bool) -> list[str]:
        """Return files that no run leaves behind; a failed run keeps its checkpoint."""
        endings = (".part", ".tmp", "-journal", "-wal", "checkpoint.sqlite")
        in_use = ("superlink.", *(["checkpoint.sqlite"] if failed else []))
        return sorted(
            str(path.relative_to(self.place))
            for path in self.place.rglob("*")
            if path.is_file()
            and path.name.endswith(endings)
            and not path.name.startswith(in_use)
        )

    def holding(self, ids: Sequence[str]) -> set[str]:
        """Return the files on any disk of the site that hold one of these ids."""
        words = [key.encode() for key in ids]
        return {
            str(path.relative_to(self.place))
            for path in self.place.rglob("*")
            if path.is_file() and any(word in path.read_bytes() for word in words)
        }


def home_of(pid: int) -> str:
    """Return the ``FLWR_HOME`` of a process."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        for word in text.split("\0"):
            if word.startswith("FLWR_HOME="):
                return word
    return ""


def arrays_of(path: Path) -> dict[str, Any]:
    """Return the arrays of a file, without the id of the model."""
    with np.load(path) as stored:
        names = [name for name in stored.files if name not in ("about", "model")]
        return {name: stored[name] for name in names}


def metrics_of(text: Any, place: str = "report") -> dict[str, Any]:
    """Return the values of a report, except times, ids of models and paths."""
    passing = ("second", "time", "model_id", "config", "ledger", "version", "folder")
    passing += ("written", "note")  # whom the run has asked again
    passing += ("removed", "changed")  # nothing, where a run has done it before
    if not isinstance(text, dict):
        return {place: json.dumps(text)}
    return {
        name: value
        for key, of in text.items()
        if not any(word in key for word in passing)
        for name, value in metrics_of(of, f"{place} {key}").items()
    }


def other_values(
    result: dict[str, Any], truth: dict[str, Any], exact: bool
) -> list[str]:
    """Return the names of values that differ: by a bit, or by more than rounding.

    For inexact runs only floats are compared, without the label holder's floats: its
    penalties, found from few rows, can depend on the rounding.
    """

    def same(key: str, a: Any, b: Any) -> bool:
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
            return a == b or not exact
        floats = a.dtype.kind == "f"
        if exact:
            return np.array_equal(a, b, equal_nan=floats)
        if not floats or key.startswith(LABELS):
            return True
        most = ROUNDED * np.abs(b).max(initial=0.0)
        return a.shape == b.shape and bool((np.abs(a - b) <= most).all())

    missing = result.keys() ^ truth.keys()
    both = result.keys() & truth.keys()
    return sorted(missing | {k for k in both if not same(k, result[k], truth[k])})


# -- the matrix ------------------------------------------------------------------------


@dataclass
class Trial:
    """A strategy whose runs are killed, and the result of a run that nobody kills."""

    name: str
    truth: dict[str, Any] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    hits: int = 0

    @property
    def forgets(self) -> bool:
        """Whether its runs change the model of another run."""
        return CASES[self.name].task == "unlearn"


@dataclass
class Started:
    """A ``vfl-flower run`` of a trial."""

    trial: Trial
    log: Path
    process: subprocess.Popen[bytes]
    begun: float = field(default_factory=time.monotonic)

    @property
    def number(self) -> str:
        """The number of the run at Flower, or nothing."""
        said = re.search(r"run (\d+),", self.log.read_text(errors="replace"))
        return said[1] if said else ""


class Matrix:
    """Kills runs of several strategies on one site."""

    def __init__(self, site: Site, names: Sequence[str], dice: random.Random) -> None:
        self.site, self.dice = site, dice
        self.trials = [Trial(name) for name in names]
        self.bad = self.count = 0
        self.killed_at: float | None = None
        self.model, self.forgotten = "", list[str]()
        self.kept = site.place / "kept"

    # -- runs --

    def run(self, trial: Trial, *more: str) -> Started:
        """Start a run."""
        self.count += 1
        case = CASES[trial.name]
        if trial.forgets and self.model:
            more = (*more, f"model-id={self.model}")
        log = self.site.place / f"run-{self.count}.log"
        words = self.site.words(case, f"out-{trial.name}", *more)
        process = begun(self.site.place, log, words)
        return Started(trial, log, process)

    def follow(self, runs: Sequence[Started]) -> list[Followed]:
        """Wait until all runs have ended, or hang."""
        ended: dict[int, Followed] = {}
        while len(ended) < len(runs):
            time.sleep(0.05)
            for place, run in enumerate(runs):
                since = time.monotonic() - (self.killed_at or run.begun + START)
                running = run.process.poll() is None
                text = run.log.read_text(errors="replace")
                waits = since > WAITS[0] and WAITS[1] in text[-100:]
                if place in ended or (running and since < HANGS and not waits):
                    continue
                status = f"exit {run.process.returncode}"
                if running:
                    status = "WAITS" if waits else "HANGS"
                    run.process.kill()
                    run.process.wait()
                    self.site.stop(text)
                if "Traceback" in text:
                    status += ", STACK"
                lines = [line for line in text.splitlines() if line.strip()]
                ended[place] = Followed(status, lines, time.monotonic())
        return [ended[place] for place in range(len(runs))]

    def checkpoint(self, run: Started) -> list[str]:
        """Return the arguments that let the next run continue a failed run."""
        paths = self.site.place.glob(f"out-*/2*-{run.number or 'none'}/*.sqlite")
        return [f"resume={path.parent.name}" for path in paths]

    def result(self, lines: Sequence[str]) -> dict[str, Any]:
        """Return the results that a run reports, here and at the parties."""
        values: dict[str, Any] = {}
        (place,) = (line for line in lines if line.startswith("results in "))
        folder = Path(place.removeprefix("results in "))
        for path in folder.glob("model-*.npz"):
            values |= {f"server {k}": v for k, v in arrays_of(path).items()}
        text = (folder / "result.json").read_text()
        values |= metrics_of(json.loads(text))
        model = re.search(r'"model_id": "([0-9a-f]{16})"', text)
        for party in NAMES if model else ():
            for path in (self.site.place / party / "state").rglob(f"*{model[1]}*"):
                if path.suffix == ".csv":
                    values[f"{party} predictions"] = path.read_bytes()
                elif path.suffix == ".npz":
                    arrays = arrays_of(path).items()
                    values |= {f"{party} {k}": v for k, v in arrays}
        return values

    def begin(self) -> None:
        """Run without a kill, and keep the results."""
        self.site.start()
        if any(trial.forgets for trial in self.trials):
            self.train()
        runs = [self.run(trial) for trial in self.trials]
        seen: dict[str, list[float]] = {}
        while any(run.process.poll() is None for run in runs):
            for number, _ in self.site.asked(NAMES[0])[sum(map(len, seen.values())) :]:
                seen.setdefault(number, []).append(time.monotonic())
            time.sleep(0.02)
        for run, followed in zip(runs, self.follow(runs), strict=True):
            assert followed.status == "exit 0", followed
            trial = run.trial
            trial.truth = self.result(followed.lines)
            trial.seconds = [at - run.begun for at in seen[run.number]]
            print(
                f"{trial.name}: {len(trial.seconds)} messages a party, "
                f"{followed.ended - run.begun:.0f} s, {len(trial.truth)} values",
                flush=True,
            )
        print(f"left: {self.left() or 'nothing'}", flush=True)

    def train(self) -> None:
        """Train the model whose rows later runs forget; keep all states."""
        trial = Trial("mufc unlearn")
        case, CASES[trial.name] = CASES[trial.name], CASES["mufc"]
        (followed,) = self.follow([self.run(trial)])
        assert followed.status == "exit 0", followed
        CASES[trial.name] = case
        (self.model,) = {
            path.stem
            for name in NAMES
            for path in (self.site.place / name / "state").glob("*.sqlite")
            if re.fullmatch("[0-9a-f]{16}", path.stem)
        }
        for name in NAMES[:2]:
            rows = [self.site.ids[name][k] for k in (3, 40)]
            file = self.site.place / f"{name}.csv"
            table = pd.read_csv(file)
            table[~table["row"].isin(rows)].to_csv(file, index=False)
            (self.site.place / name / "state" / "forget.txt").write_text(
                "\n".join(rows)
            )
            self.forgotten += rows
        for part in self.states():
            copy = self.kept / part.relative_to(self.site.place)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(part, copy)

    def states(self) -> list[Path]:
        """Return the files of the model that is to forget rows."""
        return [
            path
            for part in (*(f"{n}/state" for n in NAMES), "out-mufc unlearn/state")
            for path in (self.site.place / part).rglob("*")
            if self.model in path.name or path.name == "forget.txt"
        ]

    def restore(self) -> None:
        """Restore the model that is to forget rows."""
        if self.model:
            for path in self.states():
                path.unlink()
            for path in self.kept.rglob("*"):
                if path.is_file():
                    place = self.site.place / path.relative_to(self.kept)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, place)

    # -- kills --

    def kill(self, kind: str, restart: bool, moments: int) -> None:
        """Kill runs of each strategy, at this number of moments."""
        for trial in self.trials:
            trial.hits = 0
        for _ in range(2 * moments):
            trials = [trial for trial in self.trials if trial.hits < moments]
            if not trials:
                return
            # One model changes in one run.
            more = [t for t in trials if t.hits + 1 < moments and not t.forgets]
            self.kill_once([*trials, *more][:MOST_RUNS], kind, restart)
        print(f"{kind}: {[(t.name, t.hits) for t in self.trials]}", flush=True)

    def kill_once(self, trials: Sequence[Trial], kind: str, restart: bool) -> None:
        """Kill once, and print the outcome of each run; continue failed runs."""
        site, self.killed_at = self.site, None
        site.heal()
        if any(trial.forgets for trial in trials):
            self.restore()
        party = self.dice.choice(NAMES)
        # The runs reach their drawn messages at about the same time, and the kill
        # waits for the first message of all runs and for most of the drawn messages.
        drawn = [(t, self.dice.randrange(len(t.seconds) - 1)) for t in trials]
        drawn.sort(key=lambda pair: -pair[0].seconds[pair[1]])
        last = drawn[0][0].seconds[drawn[0][1]]
        before = {name: len(site.asked(name)) for name in NAMES}
        begin, runs = time.monotonic(), list[Started]()
        for trial, nth in drawn:
            delay = last - trial.seconds[nth]
            time.sleep(max(0.0, begin + delay - time.monotonic()))
            runs.append(self.run(trial))
        firsts, nths = [0] * len(runs), [nth for _, nth in drawn]
        while self.reached(runs, firsts, before) < len(runs) or 2 * self.reached(
            runs, nths, before
        ) < len(runs):
            time.sleep(0.02)
        hit = dict[str, str]()
        if kind == "ClientApp":
            hit = self.kill_replies(runs, party)
        else:
            self.kill_processes(kind, party)
        self.killed_at = time.monotonic()
        logs = {name: site.started[name].log for name in NAMES}
        steps = dict(site.asked(party)[before[party] :]) | hit
        begun = {n for name in NAMES for n, _ in site.asked(name)[before[name] :]}
        asked = {name: len(site.asked(name)) for name in NAMES}
        helper = threading.Thread(target=self.supervise, args=(kind, party))
        if restart:
            helper.start()
        killed, ended = self.killed_at, self.follow(runs)
        if restart:
            helper.join()
        self.killed_at = None
        # The parties that a run asked after the kill: none, if the kill was too late.
        later = [
            (number, name)
            for name in NAMES
            for number, _ in site.asked(name)[
                asked[name] if site.started[name].log == logs[name] else 0 :
            ]
        ]
        who = f"{kind} of {party}" if kind in PARTYS else kind
        how = "restart" if restart else "no restart"
        again: list[Started] = []
        for run, followed in zip(runs, ended, strict=True):
            number, complete = run.number, followed.status == "exit 0"
            asks = any(
                number == other and (name == party or kind not in PARTYS)
                for other, name in later
            )
            met = number in hit if kind == "ClientApp" else asks and number in steps
            if complete and not met:
                print(f"| {run.trial.name} | {who} | not met |", flush=True)
                continue
            run.trial.hits += number in begun
            seconds = followed.ended - killed
            step = steps.get(number, "asked of others" if number in begun else "none")
            self.tell(run.trial, f"{who} | {step} | {how}", followed, seconds)
            if not complete and followed.status != "WAITS":
                again.append(run)
        print(f"   after the kill: {self.left([run.trial for run in again])}")
        if again:
            site.heal()
            resumed = [self.run(run.trial, *self.checkpoint(run)) for run in again]
            for run, followed in zip(resumed, self.follow(resumed), strict=True):
                seconds = followed.ended - run.begun
                self.tell(run.trial, f"{who} | | resume", followed, seconds)
                self.bad += followed.status != "exit 0"
        print(f"   at the end: {self.left()}", flush=True)

    def reached(
        self, runs: Sequence[Started], drawn: Sequence[int], before: dict[str, int]
    ) -> int:
        """Return the number of runs that have reached their drawn message, or ended."""
        new = self.site.asked(NAMES[0])[before[NAMES[0]] :]
        counts = Counter(number for number, _ in new)
        return sum(
            run.process.poll() is not None or counts[run.number] > nth
            for run, nth in zip(runs, drawn, strict=True)
        )

    def kill_replies(self, runs: Sequence[Started], party: str) -> dict[str, str]:
        """Kill a process of each run that answers a message at a party.

        It is killed at a random moment of its life; if that is too late, the process of
        a later message is killed.
        """
        hit, count = dict[str, str](), len(self.site.asked(party))
        while any(run.process.poll() is None and run.number not in hit for run in runs):
            new = self.site.asked(party)[count:]
            if not new or new[-1][0] in hit:
                time.sleep(0.005)
                continue
            count += len(new)
            deadline = time.monotonic() + 5
            while not (targets := self.site.pids("ClientApp", party)):
                if time.monotonic() > deadline or len(self.site.asked(party)) > count:
                    break
            time.sleep(self.dice.uniform(0, LIFE))
            for pid in targets:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    hit |= [new[-1]]
        return hit

    def kill_processes(self, kind: str, party: str) -> bool:
        """Kill processes of a kind; return whether there was one."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            targets = self.site.pids(kind, party)
            if kind == "announcing" and targets:
                return self.kill_announcing(targets[0])
            for pid in targets:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if targets:
                return True
        return False

    def kill_announcing(self, pid: int) -> bool:
        """Let a SuperNode die as soon as it has announced a reply."""
        flag = self.site.place / f"dies-{pid}"
        flag.touch()
        deadline = time.monotonic() + 20
        while flag.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        died = not flag.exists()
        flag.unlink(missing_ok=True)
        return died

    def supervise(self, kind: str, party: str) -> None:
        """Restart a killed command, as often as it fails, as its unit does."""
        name = party if kind in PARTYS else "coordinator"
        self.site.started[name].process.wait(120)
        for _ in range(MOST_STARTS):
            time.sleep(RESTART)
            with suppress(RunFailed):  # a SuperNode is refused while the old one counts
                self.site.start(name)
                break

    def left(self, failed: Sequence[Trial] = ()) -> str:
        """Return the processes and files that should not be left.

        A failed run keeps its checkpoint; a failed run of mufc also keeps the model
        that it would have replaced, and the ids that it should have forgotten.
        """
        deadline = time.monotonic() + 10
        while (left := self.site.passing()) and time.monotonic() < deadline:
            time.sleep(0.2)
        left += self.site.half_written(bool(failed))
        complete = {self.model} | {
            number
            for out in self.site.place.glob("out-*/2*/result.json")
            for number in re.findall(r'"model_id": "([0-9a-f]{16})"', out.read_text())
        }
        everyone = [key for ids in self.site.ids.values() for key in ids]
        forgets = any(trial.forgets for trial in failed)
        for file in sorted(self.site.holding(everyone)):
            number = re.search(r"[0-9a-f]{16}(?=[.-])", file)
            cached = file.startswith("cache/")
            if number and number[0] not in complete and not cached:
                left.append(f"ids of a model that nobody has: {file}")
        if self.model and not forgets:
            kept = (*(f"{name}.csv" for name in NAMES), "kept")
            left += [
                f"forgotten id in {file}"
                for file in sorted(self.site.holding(self.forgotten))
                if not file.startswith(kept)
            ]
        self.bad += len(left)
        return ", ".join(left) or "nothing is left"

    def tell(self, trial: Trial, what: str, run: Followed, seconds: float) -> None:
        """Print a line of the table."""
        same, sentence = "-", run.sentence
        if run.status == "exit 0":
            result = self.result(run.lines)
            other = other_values(result, trial.truth, CASES[trial.name].exact)
            same, sentence = "OTHER" if other else "same", ", ".join(other)
        told = run.status == "exit 1" and seconds <= 90 and bool(sentence)
        good = same == "same" or run.status == "WAITS" or told
        self.bad += not good
        print(
            f"| {trial.name} | {what} | {run.status} | {seconds:.0f} | {same} | "
            f"{sentence} |",
            flush=True,
        )
        if not good:
            print("   BAD", run.lines[-12:], flush=True)


def main() -> None:
    """Kill processes, and print the outcomes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("split", choices=SPLITS)
    parser.add_argument("--cases", nargs="+", choices=CASES)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--restarts", nargs="*", default=list(RESTARTS), choices=KINDS)
    parser.add_argument("--moments", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    names = given.cases or SPLITS[given.split]
    print(f"moments of seed {given.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as base:
        site = Site(Path(base), given.split)
        matrix = Matrix(site, names, random.Random(given.seed))
        try:
            matrix.begin()
            for kind in given.restarts:
                matrix.kill(kind, True, given.moments)
            for kind in given.kinds:
                matrix.kill(kind, False, given.moments)
        finally:
            left = site.close()
    print(f"{matrix.bad + left} things are not as they should be")
    sys.exit(matrix.bad + left > 0)


if __name__ == "__main__":
    main()
