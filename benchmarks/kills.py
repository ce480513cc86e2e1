"""Kill -9 of each kind of process of a deployment, and what becomes of the run.

A coordinator and three parties on loopback, as ``vfl-flower coordinator`` and
``vfl-flower party`` start them; a run with a seed is killed at a random moment between
its first and its last round trip, and is then left alone or started again::

    python benchmarks/kills.py --cases coreset-vrlr --moments 1

*Restart* means: systemd starts a command of ``vfl-flower`` again after the seconds of
its unit; a run that has failed is started again with ``resume`` (a later task of mufc
as it is). Each line says what was killed and in which step; the exit status of
``vfl-flower run``, its last line, and the seconds from the kill to that; whether the
result is, bit for bit, that of a run that nobody killed; which processes and files are
left that should not be; and how many files hold an id that was to be forgotten.
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
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

from wiring.commands import COMMAND, Running, said, started_in  # noqa: E402

from vfl_flower.app.federation import RESTART  # noqa: E402
from vfl_flower.app.flower_run import free_port  # noqa: E402

NAMES = ("airline", "weather", "registry")
LABELS = NAMES[-1]

KINDS = {
    "ClientApp": "the process of one message",
    "forkserver": "the process that forks one for each message",
    "ServerApp": "the process of one run",
    "SuperNode": "the SuperNode below vfl-flower party",
    "SuperLink": "flower-superlink below vfl-flower coordinator",
    "executor": "vfl_flower.app.server_executor, which starts ServerApps",
    "gate": "the gate below vfl-flower coordinator",
    "party": "vfl-flower party itself",
    "coordinator": "vfl-flower coordinator itself",
}

RESTARTS = {"SuperNode": (False, True), "party": (False, True)}
"""Kinds that a run can outlive if systemd starts them again; others: no difference."""

START = 400.0
"""Seconds that a command may take to be ready."""

HANGS = 150.0
"""Seconds after which a run that has not ended is stopped."""


class Case(NamedTuple):
    """A strategy, and how it runs."""

    strategy: str
    split: str
    settings: tuple[str, ...] = ()
    task: str = "train"


CASES = {
    "coreset-vrlr": Case(
        "coreset-vrlr", "columns", ("solver=cg", "max-iter=3", "size=80")
    ),
    "coreset-vkmc": Case("coreset-vkmc", "columns", ("size=40",)),
    "fdskl": Case(
        "fdskl", "columns", ("features=64", "loss=square", "target=continuous")
    ),
    "fk-kmeans": Case("fk-kmeans", "rows", ("n-clusters=3",)),
    "mufc": Case("mufc", "rows", ("n-clusters=3", "box=-9,9")),
    "mufc unlearn": Case("mufc", "rows", (), "unlearn"),
    "align": Case("align", "columns", ("alignment=session-of-rows",)),
}

SENT = re.compile(rb"Receiving: train\.(\w+) message")
"""What a SuperNode logs when a message has come."""


class Cell(NamedTuple):
    """What became of one run that was killed, or of the one that went on with it."""

    case: str
    killed: str
    step: str
    restart: str
    status: str
    seconds: float
    same: bool | None
    left: str
    sentence: str

    def __str__(self) -> str:
        """Return a line of the table."""
        same = {True: "same", False: "OTHER", None: "-"}[self.same]
        return (
            f"| {self.case} | {self.killed} | {self.step} | {self.restart} | "
            f"{self.status} | {self.seconds:.0f} | {same} | {self.left or 'nothing'} | "
            f"{self.sentence} |"
        )


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


def processes() -> Iterator[tuple[int, int, list[str]]]:
    """Yield the number, the parent's and the command line of each live process."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            words = (folder / "cmdline").read_bytes().decode(errors="replace")
            if state not in "ZX":
                yield int(folder.name), int(parent), words.split("\0")


def named(words: Sequence[str], name: str) -> bool:
    """Return whether a command line is of a command, itself or by its interpreter."""
    return any(Path(word).name == name for word in words[:3])


def forks_of(
    table: Sequence[tuple[int, int, list[str]]], above: Collection[int]
) -> list[int]:
    """Return processes that fork others, below some."""
    return [
        pid
        for pid, parent, words in table
        if parent in above and any("forkserver" in word for word in words)
    ]


class Site:
    """A coordinator and three parties, as their owners start them.

    Parameters
    ----------
    place : path
        An empty folder.
    case : Case
        Whose data the parties have, and what their consent lets leave them.
    """

    def __init__(self, place: Path, case: Case) -> None:
        self.place, self.case = place, case
        self.ports = free_port(), free_port()
        self.started: dict[str, Running] = {}
        self.count = 0
        os.environ["VFL_FLOWER_CACHE"] = str(place / "cache")
        os.environ["TMPDIR"] = str(place / "tmp")
        (place / "tmp").mkdir()
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
            if self.case.split == "columns":
                keys = self.ids[NAMES[0]]
                columns = {f"{key}-{name}": value for key, value in columns.items()}
            if self.case.split == "columns" and name == LABELS:
                columns["delay"] = X.sum(axis=(0, 2)) + rng.normal(size=70)
            file = self.place / f"{name}.csv"
            pd.DataFrame({"row": keys} | columns).to_csv(file, index=False)
            label = ["--label-column=delay"] if "delay" in columns else []
            said(self.place, "init", name, f"--data={file}", ids, *label)
            consent = self.place / name / "consent.toml"
            text = consent.read_text().replace(
                "allow-seed = false", "allow-seed = true"
            )
            rules, leaves = text.split("\n[leaves]")
            leaves = leaves.replace("= false", "= true ")
            consent.write_text(f"{rules}\n[leaves]{leaves}")
        said(self.place, "certificates", "localhost")

    def start(self, *names: str) -> None:
        """Start the commands that do not run, and wait until they are ready."""
        names = names or ("coordinator", *NAMES)
        for name in names:
            running = self.started.get(name)
            if running is None or running.process.poll() is not None:
                self.started[name] = Running(*self._command(name))
            if name == "coordinator":
                self.started[name].wait_to_say("SuperNodes connect", START)
        for name in set(names) & set(NAMES):
            self.started[name].wait_to_say("SuperNode ID", START)

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
        """End all commands, and return how many processes are left then."""
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
        """Bring back what has ended, and end what has outlived its command."""
        for pid in self.orphans():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.start()

    def orphans(self) -> list[int]:
        """Return processes of this site that have outlived the command they are of."""
        started = set(started_in(self.place))
        commands = {running.process.pid for running in self.started.values()}
        table = {pid: parent for pid, parent, _ in processes()}

        def owned(pid: int) -> bool:
            while pid > 1:
                if pid in commands:
                    return True
                pid = table.get(pid, 0)
            return False

        # Flower starts some of its own in sessions of their own, below process 1.
        if self.started["coordinator"].process.poll() is None:
            started = {
                p for p in started if f"{self.place}/federation/" not in home_of(p)
            }
        return sorted(pid for pid in started if not owned(pid))

    def pid(self, kind: str, name: str) -> int | None:
        """Return the process of a kind, the one of a party where each has one."""
        table = list(processes())
        if kind in ("party", "coordinator"):
            return self.started[name if kind == "party" else kind].process.pid
        key = f"{self.place}/{name}/supernode.key"
        nodes = [pid for pid, _, w in table if any(key in word for word in w)]
        if kind == "SuperNode":
            return nodes[0] if nodes else None
        started = set(started_in(self.place))
        modules = {
            "executor": "vfl_flower.app.server_executor",
            "gate": "vfl_flower.app.gate",
        }
        servers = [
            pid for pid, _, w in table if pid in started and modules["executor"] in w
        ]
        if kind in ("executor", "gate", "SuperLink"):
            for pid, _, words in table:
                if pid in started and (
                    modules[kind] in words
                    if kind in modules
                    else named(words, "flower-superlink")
                ):
                    return pid
            return None
        above = servers if kind == "ServerApp" else nodes
        forks = forks_of(table, above)
        if kind == "forkserver":
            return forks[0] if forks else None
        workers = [pid for pid, parent, _ in table if parent in forks]
        return workers[-1] if workers else None

    def passing(self) -> list[str]:
        """Return processes that are of a run or of one message, and not of the site."""
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

    def words(self, *more: str) -> list[str]:
        """Return the words of a run."""
        given = ("seed=1", "n-parties=3", f"output-dir={self.place}/out")
        given += (*self.case.settings, *more)
        sets = [word for item in given for word in ("--set", item)]
        task = ["--task", self.case.task]
        return ["run", self.case.strategy, *task, "--federation", "federation", *sets]

    def log_of(self, name: str) -> str:
        """Return the log of the running command of a name."""
        return self.started[name].log.name

    def received(self, name: str) -> list[str]:
        """Return the steps that a party has been asked for, since its start."""
        text = self.started[name].log.read_bytes()
        return [step.decode() for step in SENT.findall(text)]

    def run(self, *more: str, seen: Callable[[], None] | None = None) -> Followed:
        """Run to the end, or until it seems to hang."""
        log, self.begun = self.place / "run.log", time.time()
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*COMMAND, *self.words(*more)],
                cwd=self.place,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        start = self.killed_at = None
        if seen is not None:
            self.killer = threading.Thread(target=seen, daemon=True)
            self.killer.start()
        while process.poll() is None:
            time.sleep(0.05)
            start = self.killed_at or start
            if start is not None and time.monotonic() - start > HANGS:
                process.kill()
                process.wait()
                self._stop(log.read_text(errors="replace"))
                break
        ended = time.monotonic()
        lines = log.read_text(errors="replace").splitlines()
        hangs = start is not None and ended - start > HANGS
        status = "HANGS" if hangs else f"exit {process.returncode}"
        if any("Traceback" in line for line in lines):
            status += ", STACK"
        return Followed(status, [line for line in lines if line.strip()], ended)

    killed_at: float | None = None
    begun = 0.0

    def _stop(self, text: str) -> None:
        """Stop the run that a log is of."""
        number = re.search(r"flwr stop (\d+) (\S+)", text)
        home = str(self.place / "federation" / "flwr")
        if number is not None:
            subprocess.run(
                [str(Path(sys.executable).with_name("flwr")), "stop", *number.groups()],
                env={**os.environ, "FLWR_HOME": home},
                capture_output=True,
                check=False,
            )

    def folder(self) -> Path | None:
        """Return the folder of the last run."""
        folders = [p for p in (self.place / "out").glob("2*-*") if p.is_dir()]
        return max(folders, default=None, key=lambda path: path.stat().st_mtime)

    def result(self) -> dict[str, Any]:
        """Return what the last run has left at the server and at the parties."""
        folder = self.folder()
        values: dict[str, Any] = {}
        if folder is None:
            return values
        for path in folder.glob("model-*.npz"):
            values |= {f"server {k}": v for k, v in arrays_of(path).items()}
        about = folder / "result.json"
        if about.exists():
            text = json.loads(about.read_text())
            values["metrics"] = json.dumps(metrics_of(text), sort_keys=True)
        for name in NAMES:
            paths = [
                path
                for kind in ("*.npz", "predictions-*.csv", "*session-of-rows*")
                for path in (self.place / name / "state").rglob(kind)
                if path.stat().st_mtime > self.begun
            ]
            path = max(paths, default=None, key=lambda path: path.stat().st_mtime)
            if path is None:
                continue
            if path.suffix == ".npz":
                values |= {f"{name} {k}": v for k, v in arrays_of(path).items()}
            else:
                values[name] = path.read_bytes()
        return values

    def half_written(self) -> list[str]:
        """Return files that no complete run leaves."""
        endings = (".part", ".tmp", "-journal", "-wal")
        return sorted(
            path.name
            for path in self.place.rglob("*")
            if path.is_file()
            and not path.name.startswith("superlink.")  # which is in use
            and (path.name.endswith(endings) or path.name == "checkpoint.sqlite")
        )

    def holding(self, ids: Sequence[str]) -> list[str]:
        """Return the files on any disk of the site that hold one of these ids."""
        words = [key.encode() for key in ids]
        return sorted(
            str(path.relative_to(self.place))
            for path in self.place.rglob("*")
            if path.is_file() and any(word in path.read_bytes() for word in words)
        )


def home_of(pid: int) -> str:
    """Return the ``FLWR_HOME`` of a process."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        for word in text.split("\0"):
            if word.startswith("FLWR_HOME="):
                return word
    return ""


def arrays_of(path: Path) -> dict[str, Any]:
    """Return the arrays of a file, without the number of the model."""
    with np.load(path) as stored:
        names = [name for name in stored.files if name not in ("about", "model")]
        return {name: stored[name] for name in names}


def metrics_of(text: Any) -> Any:
    """Return what a report says but for times, numbers of models and paths."""
    passing = ("second", "time", "model", "config", "ledger", "version", "folder")
    if isinstance(text, dict):
        return {
            key: metrics_of(value)
            for key, value in text.items()
            if not any(word in key for word in passing)
        }
    return text


def equal(result: dict[str, Any], truth: dict[str, Any]) -> bool:
    """Return whether two results are the same, bit for bit."""
    return result.keys() == truth.keys() and all(
        np.array_equal(value, truth[key], equal_nan=value.dtype.kind == "f")
        if isinstance(value, np.ndarray)
        else value == truth[key]
        for key, value in result.items()
    )


# -- the matrix ------------------------------------------------------------------------


class Matrix:
    """Kills runs of one case on one site.

    Parameters
    ----------
    site : Site
    case : str
        Name of the case.
    dice : random.Random
        Of the moments and of the parties.
    """

    def __init__(
        self, site: Site, case: str, dice: random.Random, truths: int = 1
    ) -> None:
        self.site, self.case, self.dice, self.truths = site, case, dice, truths
        self.more: tuple[str, ...] = ()
        self.forgotten: list[str] = []
        self.kept: Path | None = None

    def begin(self) -> None:
        """Run twice without a kill, and keep the result."""
        site = self.site
        site.case = CASES[self.case]
        site.start()
        if site.case.task == "unlearn":
            self._train()
        truths = []
        for _ in range(self.truths):
            self._restore()
            before = {name: len(site.received(name)) for name in NAMES}
            gaps = Gaps(site)
            start = time.monotonic()
            followed = site.run(*self.more, seen=gaps.watch)
            gaps.over = True
            seconds = time.monotonic() - start
            assert followed.status == "exit 0", followed
            truths.append(site.result())
        self.trips = len(site.received(NAMES[0])) - before[NAMES[0]]
        self.gap = gaps.mean()
        self.truth = truths[-1]
        agreement = f"{len(truths)} runs"
        if not equal(truths[0], truths[-1]):
            agreement += f" that differ in {self._other(truths)}"
        print(
            f"{self.case}: {seconds:.0f} s, {self.trips} messages a party, one in "
            f"{self.gap:.2f} s; {agreement}; {len(self.truth)} values; "
            f"left {self._left() or 'nothing'}",
            flush=True,
        )

    def _other(self, truths: list[dict[str, Any]]) -> list[str]:
        result, truth = truths[0], truths[-1]
        return [k for k in result if not equal({k: result[k]}, {k: truth.get(k)})]

    def _train(self) -> None:
        """Train the model that later runs forget rows of; keep all states."""
        site, case = self.site, self.site.case
        site.case = CASES["mufc"]
        followed = site.run()
        assert followed.status == "exit 0", followed
        site.case = case
        (model,) = {
            number
            for name in NAMES
            for path in (site.place / name / "state").glob("*.sqlite")
            for number in re.findall(r"^[0-9a-f]{16}$", path.stem)
        }
        self.more = (f"model={model}",)
        for name in NAMES[:2]:
            rows = [site.ids[name][k] for k in (3, 40)]
            file = site.place / f"{name}.csv"
            table = pd.read_csv(file)
            table[~table["row"].isin(rows)].to_csv(file, index=False)
            (site.place / name / "state" / "forget.txt").write_text("\n".join(rows))
            self.forgotten += rows
        self.kept = Path(tempfile.mkdtemp(prefix="kept-", dir="/tmp"))
        for part in self._states():
            shutil.copytree(site.place / part, self.kept / part)

    def _states(self) -> list[str]:
        return [*(f"{name}/state" for name in NAMES), "out/state"]

    def _restore(self) -> None:
        """Bring back the states of before, where a run changes a model."""
        if self.kept is not None:
            for part in self._states():
                shutil.rmtree(self.site.place / part)
                shutil.copytree(self.kept / part, self.site.place / part)

    def kill(self, kind: str, restart: bool) -> list[Cell]:
        """Kill one run and see what becomes of it; go on with it if it has failed.

        A run that the kill did not meet counts for nothing: another moment is drawn,
        :data:`DRAWS` times at most.
        """
        for _ in range(DRAWS):
            if cells := self._kill(kind, restart):
                return cells
        return []

    def _kill(self, kind: str, restart: bool) -> list[Cell]:
        """Kill one run; return nothing if it was too late."""
        site = self.site
        site.case = CASES[self.case]
        site.killed_at = None
        site.heal()
        self._restore()
        party = self.dice.choice(NAMES)
        nth = self.dice.randint(1, self.trips - 1)
        delay = self.dice.uniform(0, self.gap)
        if kind == "ClientApp":
            delay = 0.0  # such a process lives for a tenth of a second
        before = len(site.received(party))
        kill: dict[str, Any] = {}

        def seen() -> None:
            while len(site.received(party)) < before + nth:
                time.sleep(0.01)
            time.sleep(delay)
            pid = None
            deadline = time.monotonic() + 20
            while pid is None and time.monotonic() < deadline:
                pid = site.pid(kind, party)
            if pid is None:
                return
            kill["step"] = site.received(party)[-1]
            kill["logs"] = {site.log_of(n): len(site.received(n)) for n in NAMES}
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            site.killed_at = kill["at"] = time.monotonic()
            if restart:
                self._supervise(
                    party if kind in ("SuperNode", "party") else "coordinator"
                )

        followed = site.run(*self.more, seen=seen)
        who = f"{kind} of {party}" if kind in PARTYS else kind
        asked = [party] if kind in PARTYS else NAMES
        if followed.status == "exit 0" and not any(
            site.log_of(name) not in kill.get("logs", {})
            or len(site.received(name)) > kill["logs"][site.log_of(name)]
            for name in asked
            if "logs" in kill
        ):
            print(f"| {self.case} | {who} | {nth} of {self.trips} | too late |")
            return []
        step = f"{kill.get('step', 'not reached')} ({nth} of {self.trips})"
        seconds = followed.ended - kill.get("at", followed.ended)
        how = "restart" if restart else "no restart"
        if kind in ("ClientApp", "forkserver"):
            how = "by itself"
        cells = [self._cell(who, step, how, followed, seconds)]
        if "exit 0" not in followed.status and "HANGS" not in followed.status:
            if restart:
                site.killer.join(HANGS)
                self._supervised()
            start = time.monotonic()
            site.heal()
            more = list(self.more)
            folder = site.folder()
            if (
                site.case.task == "train"
                and folder
                and (folder / "checkpoint.sqlite").exists()
            ):
                more.append(f"resume={folder.name}")
                how = "resume"
            else:
                how = "same run anew"
            site.killed_at = None
            again = site.run(*more)
            seconds = again.ended - start
            cells.append(self._cell(who, step, how, again, seconds))
        return cells

    def _supervise(self, name: str) -> None:
        """Start a command again as its unit does."""
        self.site.started[name].process.wait(60)
        time.sleep(RESTART)
        self.site.start(name)

    def _supervised(self) -> None:
        """Wait until the coordinator is back, and the parties after it."""
        site = self.site
        deadline = time.monotonic() + 2 * RESTART + 60
        while (
            site.started["coordinator"].process.poll() is not None
            and time.monotonic() < deadline
        ):
            time.sleep(1)

    def _cell(
        self, who: str, step: str, how: str, followed: Followed, seconds: float
    ) -> Cell:
        same = None
        complete = followed.status == "exit 0"
        if complete:
            same = equal(self.site.result(), self.truth)
        left = self._left(complete)
        sentence = "" if complete else followed.sentence
        cell = Cell(
            self.case, who, step, how, followed.status, seconds, same, left, sentence
        )
        print(cell, flush=True)
        if same is False or "STACK" in cell.status or "HANGS" in cell.status:
            other = self._other([self.site.result(), self.truth]) if complete else ""
            print(f"   {other} {followed.lines[-12:]}", flush=True)
        return cell

    def _left(self, complete: bool = True) -> str:
        """Return what is left that should not be."""
        deadline = time.monotonic() + 10
        while (passing := self.site.passing()) and time.monotonic() < deadline:
            time.sleep(0.2)
        left = passing
        if complete:
            left = left + self.site.half_written()
            left += [f"id in {path}" for path in self.site.holding(self.forgotten)]
        return ", ".join(left)


DRAWS = 3
"""How many moments are drawn until a kill meets a run."""

PARTYS = ("ClientApp", "forkserver", "SuperNode", "party")
"""Kinds of processes of which each party has one."""


class Gaps:
    """Measures the time between two messages."""

    def __init__(self, site: Site) -> None:
        self.site, self.over = site, False
        self.before = len(site.received(NAMES[0]))
        self.at: list[float] = []

    def watch(self) -> None:
        """Note when messages come, until it is over."""
        while not self.over:
            known = len(self.at) + self.before
            new = len(self.site.received(NAMES[0])) - known
            self.at += [time.monotonic()] * new
            time.sleep(0.02)

    def mean(self) -> float:
        """Return the mean number of seconds."""
        return (self.at[-1] - self.at[0]) / max(1, len(self.at) - 1)


def main() -> None:
    """Kill, and print what became of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS)[:5], choices=KINDS)
    parser.add_argument("--moments", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(f"moments of seed {given.seed}", flush=True)
    bad = 0
    places: dict[tuple[str, str], list[str]] = {}
    for name in given.cases:  # cases of the same data share a deployment
        places.setdefault((CASES[name].split, CASES[name].task), []).append(name)
    for names in places.values():
        with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as base:
            site, matrices = Site(Path(base), CASES[names[0]]), []
            try:
                for name in names:
                    dice = random.Random(f"{given.seed} {name}")
                    matrices.append(Matrix(site, name, dice))
                    matrices[-1].begin()
                for _ in range(given.moments):
                    for kind in given.kinds:
                        for restart in RESTARTS.get(kind, (False,)):
                            for matrix in matrices:
                                bad += sum(map(fails, matrix.kill(kind, restart)))
            finally:
                bad += site.close() > 0
                for matrix in matrices:
                    if matrix.kept is not None:
                        shutil.rmtree(matrix.kept)
    print(f"{bad} cells are not as they should be")
    sys.exit(bad > 0)


def fails(cell: Cell) -> bool:
    """Return whether a cell is not as it should be."""
    said = cell.status == "exit 1" and cell.seconds <= 90 and bool(cell.sentence)
    return bool(cell.left) or not (cell.same or said)


if __name__ == "__main__":
    main()
