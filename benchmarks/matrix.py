"""Run the main job and the tests' first stage on several Pythons and releases of flwr.

    python benchmarks/matrix.py
    python benchmarks/matrix.py --python 3.12 --flwr 1.40 --tests tests/protocol

The main job repeats a user's first steps after installing the wheel into an empty
environment: simulate parties in one process and, once Ray is installed too, send the
app that the package writes to three simulated SuperNodes by ``flwr run``. uv finds each
Python on PATH, or downloads it. The user's cache holds the environments, which the next
call reuses, the logs, and the results on this commit, from which the table is made.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from platformdirs import user_cache_path

ROOT = Path(__file__).parents[1]
FOLDER = user_cache_path("vfl-flower") / "matrix"
PYTHONS = ("3.11", "3.12", "3.13")
FLWRS = ("1.40", "1.41", "1.42")
FIRST_STAGE = "not second"
"""The marker expression of the tests' first stage."""

UV = (sys.executable, "-m", "uv")  # which flwr depends on
VARIABLES = {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
EXTRAS = "demo,dev,docs"
RUNS = f'output-dir="{FOLDER / "runs"}"'
SIMULATE = ("simulate", "coreset-vrlr", "--data", "diabetes", "--set", RUNS)
SIMULATE_APP = ("simulate-app", "app", "--num-supernodes=3")
CONFIG = ("--run-config", RUNS)


class Failed(Exception):
    """A command has failed; the text is what it printed."""


class Combination:
    """A Python and a release of flwr, with a folder for environments and the log."""

    def __init__(self, python: str, flwr: str) -> None:
        self.python = python
        self.version = Path(python).name.removeprefix("python")
        self.flwr = flwr
        self.folder = FOLDER / f"{self.version}-{flwr}"
        self.log = self.folder / "log"
        self.result = self.folder / "result.json"

    def run(self, *command: str | Path, cwd: Path = ROOT) -> str:
        """Return the output of a command, and add it to the log."""
        with self.log.open("a+") as log:
            print("$", *command, file=log, flush=True)
            start = log.tell()
            code = subprocess.run(
                command,
                cwd=cwd,
                env=VARIABLES | os.environ,
                stdout=log,
                stderr=subprocess.STDOUT,
            ).returncode
            log.seek(start)
            said = log.read()
        if code:
            raise Failed(said)
        return said

    def install(self, environment: Path, *packages: str) -> None:
        """Install missing packages, with this release of flwr."""
        place = ("--python", environment / "bin/python")
        self.run(*UV, "pip", "install", *place, f"flwr=={self.flwr}.*", *packages)

    def main_job(self, empty: Path, wheel: Path) -> str:
        """Return the outcome of the main job."""
        try:
            self.install(empty, str(wheel))
            self.run(empty / "bin/vfl-flower", *SIMULATE, cwd=empty)
            self.install(empty, f"vfl-flower[simulation] @ {wheel.as_uri()}")
            self.run(empty / "bin/vfl-flower", "new-app", "app", cwd=empty)
            self.run(empty / "bin/vfl-flower", *SIMULATE_APP, *CONFIG, cwd=empty)
        except Failed:
            return "failed"
        return "completed"

    def first_stage(self, environment: Path, workers: str, tests: list[str]) -> str:
        """Return the counts of pytest; print the tests that fail."""
        pytest = ("-m", "pytest", "-n", workers, "--dist=worksteal", "-m", FIRST_STAGE)
        try:
            self.install(environment, "--editable", f".[{EXTRAS}]")
            said = self.run(environment / "bin/python", *pytest, *tests)
        except Failed as error:
            said = str(error)
            print(*re.findall(r"^(?:FAILED|ERROR) .*", said, re.M), sep="\n")
        counts = re.findall(r"^(\d+ (?:passed|failed|error).*) in \d", said, re.M)
        return counts[-1] if counts else "failed"

    def measure(self, wheel: Path, workers: str, tests: list[str]) -> list[str] | None:
        """Return the results of main job and first stage; None without the Python."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")
        venv = (*UV, "venv", "--python", self.python)
        empty, reused = self.folder / "wheel", self.folder / "tests"
        try:
            self.run(*venv, "--clear", empty)
            if not reused.exists():
                self.run(*venv, reused)
        except Failed:
            return None
        return [self.main_job(empty, wheel), self.first_stage(reused, workers, tests)]


def main() -> None:
    """Measure the chosen combinations, and print the table of all results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", action="append", help="3.12, or a path to it")
    parser.add_argument("--flwr", action="append", help="such as 1.40")
    parser.add_argument("--tests", nargs="+", default=[], help="files and folders")
    parser.add_argument("--workers", default="4", help="processes of pytest")
    options = parser.parse_args()
    asked = [*product(options.python or PYTHONS, options.flwr or FLWRS)]

    describe = ("git", "describe", "--always", "--dirty")
    commit = subprocess.check_output(describe, cwd=ROOT, text=True).strip()
    code, failed = [commit, *options.tests], False
    with tempfile.TemporaryDirectory() as dist:
        build = (*UV, "build", "--quiet", "--wheel", "--out-dir", dist)
        subprocess.run(build, cwd=ROOT, check=True)
        (wheel,) = Path(dist).glob("*.whl")
        for combination in (Combination(*names) for names in asked):
            cells = combination.measure(wheel, options.workers, options.tests)
            if cells is None:
                print(f"Python {combination.version} is neither on PATH nor downloaded")
                continue
            result = {"code": code, "cells": cells}
            combination.result.write_text(json.dumps(result))
            print(combination.folder.name, *cells, sep=", ", flush=True)
            failed |= "failed" in " ".join(cells)

    print(f"\n{datetime.date.today()}, {' '.join(code)}\n")
    print("| Python | flwr | main job | first stage |\n|---|---|---|---|")
    for names in dict.fromkeys([*product(PYTHONS, FLWRS), *asked]):
        combination = Combination(*names)
        cells = ["not run", "not run"]
        if combination.result.exists():
            result = json.loads(combination.result.read_text())
            cells = result["cells"] if result["code"] == code else cells
        row = [combination.version, combination.flwr, *cells]
        print(f"| {' | '.join(row)} |")
    sys.exit(failed)


if __name__ == "__main__":
    main()
