"""One kill -9 for the runs of several strategies at once, on one deployment.

As ``benchmarks/kills.py``, but all strategies of one way to split the data run at the
same time, so that the minutes in which a killed deployment only waits are shared::

    python benchmarks/kills_together.py columns --kinds announcing SuperLink

``announcing`` kills the SuperNode when it has announced a reply and sent nothing of it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from kills import (
    CASES,
    COMMAND,
    HANGS,
    KINDS,
    NAMES,
    PARTYS,
    RESTART,
    ROOT,
    Followed,
    Site,
    equal,
    forks_of,
    processes,
    started_in,
)
from wiring import commands

SPLITS = {
    "columns": ("coreset-vrlr", "coreset-vkmc", "fdskl"),
    "rows": ("fk-kmeans", "mufc"),
}

DYING = """
import os, signal, sys
if "vfl_flower.app.executor" in sys.orig_argv:
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


class Together:
    """Runs of several strategies on one site at the same time."""

    def __init__(self, site: Site, names: tuple[str, ...]) -> None:
        self.site, self.names = site, names
        self.truth: dict[str, dict[str, Any]] = {}
        self.total = 0

    def words(self, name: str, *more: str) -> list[str]:
        """Return the words of a run, with a folder for its strategy."""
        self.site.case = CASES[name]
        return self.site.words(f"output-dir={self.site.place}/out-{name}", *more)

    def start(self, more: dict[str, str]) -> dict[str, subprocess.Popen[bytes]]:
        """Start runs; return their processes."""
        self.begun = time.time()
        runs = {}
        for name, word in more.items():
            with (self.site.place / f"run-{name}.log").open("wb") as file:
                runs[name] = subprocess.Popen(
                    [*COMMAND, *self.words(name, *filter(None, [word]))],
                    cwd=self.site.place,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
        return runs

    def follow(self, runs: dict[str, Any]) -> dict[str, Followed]:
        """Wait until all have ended, or hang."""
        ended: dict[str, Followed] = {}
        while len(ended) < len(runs):
            time.sleep(0.05)
            for name, process in runs.items():
                if name in ended:
                    continue
                hangs = (
                    self.killed_at is not None
                    and time.monotonic() - self.killed_at > HANGS
                )
                if process.poll() is None and not hangs:
                    continue
                log = self.site.place / f"run-{name}.log"
                text = log.read_text(errors="replace")
                status = f"exit {process.returncode}"
                if process.poll() is None:
                    status = "HANGS"
                    process.kill()
                    process.wait()
                    self.site._stop(text)
                if "Traceback" in text:
                    status += ", STACK"
                lines = [line for line in text.splitlines() if line.strip()]
                ended[name] = Followed(status, lines, time.monotonic())
        return ended

    killed_at: float | None = None

    def folder(self, name: str) -> Path | None:
        """Return the folder of the last run of a strategy."""
        folders = [
            p for p in (self.site.place / f"out-{name}").glob("2*-*") if p.is_dir()
        ]
        return max(folders, default=None, key=lambda path: path.stat().st_mtime)

    def result(self, name: str) -> dict[str, Any]:
        """Return the model and the metrics of the last run of a strategy."""
        from kills import arrays_of, json, metrics_of

        values: dict[str, Any] = {}
        folder = self.folder(name)
        if folder is None:
            return values
        for path in folder.glob("model-*.npz"):
            values |= {f"server {k}": v for k, v in arrays_of(path).items()}
        about = json.loads((folder / "result.json").read_text())
        values["metrics"] = json.dumps(metrics_of(about), sort_keys=True)
        return values

    def messages(self, party: str) -> list[tuple[str, str]]:
        """Return the runs and steps that a party has been asked for."""
        text = self.site.started[party].log.read_text(errors="replace")
        return re.findall(r"\[RUN (\d+)\] Receiving: train\.(\w+) message", text)

    def begin(self) -> None:
        """Run without a kill."""
        self.site.start()
        before, start = len(self.messages(NAMES[0])), time.monotonic()
        ended = self.follow(self.start(dict.fromkeys(self.names, "")))
        for name, run in ended.items():
            assert run.status == "exit 0", run
            self.truth[name] = self.result(name)
        self.total = len(self.messages(NAMES[0])) - before
        self.held = self.holding()
        seconds = time.monotonic() - start
        print(f"{self.names}: {self.total} messages a party, {seconds:.0f} s")
        print({k: len(v) for k, v in self.truth.items()}, self.left(), flush=True)

    def holding(self) -> set[str]:
        """Return the files that hold an id of a row."""
        return set(
            self.site.holding([i for ids in self.site.ids.values() for i in ids])
        )

    def left(self) -> str:
        """Return what is left that should not be."""
        deadline = time.monotonic() + 10
        while (passing := self.site.passing()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return ", ".join(passing + self.site.half_written())

    def targets(self, kind: str, party: str) -> list[int]:
        """Return the processes to kill: of ServerApps, all."""
        if kind == "ServerApp":
            table, started = list(processes()), set(started_in(self.site.place))
            servers = [
                pid
                for pid, _, words in table
                if pid in started and "vfl_flower.app.server_executor" in words
            ]
            forks = forks_of(table, servers)
            return [pid for pid, parent, _ in table if parent in forks]
        pid = self.site.pid("SuperNode" if kind == "announcing" else kind, party)
        return [] if pid is None else [pid]

    def kill(self, kind: str, restart: bool, dice: random.Random) -> bool:
        """Kill once, and tell what became of each run; False: it was too late."""
        site, self.killed_at = self.site, None
        site.heal()
        party, nth = dice.choice(NAMES), dice.randint(2, max(2, self.total * 2 // 3))
        log = site.started[party].log
        before = len(self.messages(party))
        runs = self.start(dict.fromkeys(self.names, ""))
        while len(self.messages(party)) < before + nth:
            if all(run.poll() is not None for run in runs.values()):
                break
            time.sleep(0.01)
        targets: list[int] = []
        deadline = time.monotonic() + 20
        while not targets and time.monotonic() < deadline:
            targets = self.targets(kind, party)
            if all(run.poll() is not None for run in runs.values()):
                break
        if kind == "announcing" and targets:
            (site.place / f"dies-{targets[0]}").write_text("")
            while Path(f"/proc/{targets[0]}/stat").exists() and "Z" not in state_of(
                targets[0]
            ):
                if all(run.poll() is not None for run in runs.values()):
                    targets = []
                    break
                time.sleep(0.01)
        else:
            for pid in targets:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.killed_at = time.monotonic()
        steps = dict(self.messages(party)[before:])
        asked = {p: len(self.messages(p)) for p in NAMES}
        helper = None
        if restart:
            helper = threading.Thread(target=self.restart, args=(kind, party))
            helper.start()
        killed = self.killed_at
        ended = self.follow(runs)
        if helper is not None:
            helper.join()
        again = site.started[party].log != log
        after = self.messages(party)[0 if again else asked[party] :]
        if kind not in (*PARTYS, "announcing"):
            after = [m for p in NAMES for m in self.messages(p)[asked[p] :]]
        late = not targets or all(r.status == "exit 0" for r in ended.values())
        if late and not after:
            print(f"| {kind} of {party} | {nth} of {self.total} | too late |")
            return False
        who = f"{kind} of {party}" if kind in (*PARTYS, "announcing") else kind
        how = "restart" if restart else "no restart"
        print(f"   new files with ids: {sorted(self.holding() - self.held)}")
        rest = {}
        for name, run in ended.items():
            text = " ".join(run.lines)
            number = re.search(r"run (\d+),", text)
            step = steps.get(number[1], "not begun") if number else "not begun"
            self.tell(name, who, step, how, run, run.ended - killed)
            if run.status != "exit 0":
                folder = self.folder(name)
                rest[name] = ""
                if folder and (folder / "checkpoint.sqlite").exists():
                    rest[name] = f"resume={folder.name}"
        if rest:
            site.heal()
            self.killed_at = None
            start = time.monotonic()
            for name, run in self.follow(self.start(rest)).items():
                how = "resume" if rest[name] else "same run anew"
                self.tell(name, who, "", how, run, run.ended - start)
        print(
            f"   left: {self.left() or 'nothing'}; new files with ids: "
            f"{sorted(self.holding() - self.held)}",
            flush=True,
        )
        return True

    def restart(self, kind: str, party: str) -> None:
        """Start again what was killed, as its unit does."""
        nodes = ("SuperNode", "party", "announcing")
        name = party if kind in nodes else "coordinator"
        self.site.started[name].process.wait(120)
        time.sleep(RESTART if name == party else 2)
        self.site.start(name)

    def tell(
        self, name: str, who: str, step: str, how: str, run: Followed, seconds: float
    ) -> None:
        """Print a line of the table."""
        same, sentence = "-", run.sentence
        if run.status == "exit 0":
            equals = equal(self.result(name), self.truth[name])
            same, sentence = ("same" if equals else "OTHER"), ""
        print(
            f"| {name} | {who} | {step} | {how} | {run.status} | {seconds:.0f} | "
            f"{same} | {sentence} |",
            flush=True,
        )
        if "HANGS" in run.status or "STACK" in run.status or same == "OTHER":
            print("  ", run.lines[-12:], flush=True)


def state_of(pid: int) -> str:
    """Return the letter of the state of a process; Z: it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


def main() -> None:
    """Kill, and print what became of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("split", choices=SPLITS)
    parser.add_argument("--kinds", nargs="+", default=["announcing", *KINDS])
    parser.add_argument("--restarts", nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--names", nargs="+")
    given = parser.parse_args()
    names = tuple(given.names or SPLITS[given.split])
    dice = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as base:
        place = Path(base)
        (place / "dying").mkdir()
        (place / "dying" / "sitecustomize.py").write_text(DYING.format(place=base))
        vars(commands)["PLACE"] = f"{ROOT}{os.pathsep}{place / 'dying'}"
        site = Site(place, CASES[names[0]])
        together = Together(site, names)
        try:
            together.begin()
            todo = [(kind, True) for kind in given.restarts]
            todo += [(kind, False) for kind in given.kinds]
            for kind, restart in todo:
                for _ in range(3):
                    if together.kill(kind, restart, dice):
                        break
        finally:
            left = site.close()
    sys.exit(left > 0)


if __name__ == "__main__":
    main()
