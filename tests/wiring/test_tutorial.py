"""The tutorial docs/tutorials/three-files.md, typed word by word.

Three parties and the coordinator are real processes. At the end no log of any of them
has a value of the data, an id, a key, or a path of another party. In between two of the
parties train without the third.
"""

import json
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pages import commands, examples

from vfl_flower.app.deployment.processes import free_port
from wiring.commands import Running, started_in
from wiring.test_afternoon import Federation, nothing_leaks

pytestmark = pytest.mark.second

TUTORIAL = "docs/tutorials/three-files.md"
PORT, MODEL = "8000", "5328bf6441a925ad"
"""The port and the id of the model that stand in the tutorial."""


class Reader(Federation):
    """Somebody who types the tutorial, on ports that are free."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.port, self.local, self.model = free_port(), free_port(), MODEL
        while self.local == self.port:
            self.local = free_port()
        self.link: Running | None = None

    def type(self, words: list[str]) -> str:
        told = {PORT: str(self.port), MODEL: self.model}
        _, command, *rest = (re.sub(f"{PORT}|{MODEL}", swap(told), w) for w in words)
        if command == "coordinator":
            ports = [f"--port={self.port}", f"--local-port={self.local}"]
            ports += ["--host=127.0.0.1"]
            self.link = self._started("link", command, *rest, *ports)
            self.link.wait_to_say("SuperNodes connect to port")
        elif command == "party":
            name = rest[0]
            if name in self.parties and self.parties[name].poll() is None:
                self.parties[name].end(signal.SIGINT)
            self.parties[name] = self._started(name, command, *rest)
        else:
            for party in self.parties.values():
                party.wait_to_say("SuperNode ID")
            return self.said(command, *rest)
        return ""

    def _started(self, name: str, *words: str) -> Running:
        self.commands += 1
        return Running(self.place, f"{name}-{self.commands}", *words)

    def end(self) -> None:
        running = [*self.parties.values(), *filter(None, [self.link])]
        for command in running:
            if command.poll() is None:
                command.end(signal.SIGINT)


def swap(told: Mapping[str, str]) -> Callable[[re.Match[str]], str]:
    """Return what puts its own words in the place of those that were found."""
    return lambda found: told[found[0]]


def allow(folder: Path, *lines: str) -> None:
    """Put lines of a ``consent.toml`` in the place of those with the same keys."""
    text = (path := folder / "consent.toml").read_text()
    for line in lines:
        key, _, _ = line.partition(" = ")
        text, count = re.subn(rf"(?m)^(# )?{key} = .*$", line, text)
        assert count == 1, line
    path.write_text(text)


def two_train(made: Federation, *settings: str) -> None:
    """Let two of the parties train: each learns what its consent lacks."""
    needed = "row-sums", "totals", "coefficients", "moments", "predictions"
    lines = "two-parties = true", *(f"{kind} = true" for kind in needed)
    for name in ("insurer", "laboratory"):
        allow(made.place / name, *lines)
    allow(made.place / "insurer", 'dealers = ["server"]')
    shown = made.run("ridge", *settings, code=1)
    lacks = (
        "the consent.toml of 'laboratory' would need dealers = [\"server\"]. With two"
    )
    assert f"1 of 2 parties refuse the run: {lacks}" in shown
    assert "neither party may operate the dealer (the server)" in shown
    allow(made.place / "laboratory", 'dealers = ["server"]')
    settings = *settings, "--set=allow-two-parties=true", "--set=test-fraction=0.2"
    made.run("coreset-vrlr", *settings)
    results = json.loads(made.result("result.json").read_text())["results"]
    assert 0 < results["coreset"]["metrics"]["1"]["test_r2"] < 1
    assert results["coreset"]["ledger"]["round_trips"] == 7


def test_the_tutorial(tmp_path, monkeypatch):
    """From raw files to predictions for new rows, which only one party has."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in examples(TUTORIAL):
        exec(compile(code, TUTORIAL, "exec"), names)
    files = {name: tmp_path / f"{name}.csv" for name in names["COLUMNS"]}
    new = {name: tmp_path / f"{name}-new.csv" for name in files}
    common = set.intersection(*(set(pd.read_csv(f)["patient"]) for f in files.values()))
    lines = [w for k, w in commands("vfl-flower").items() if k.startswith(TUTORIAL)]
    predicting = next(k for k, words in enumerate(lines) if "-new.csv" in str(words))
    made, shown = Reader(tmp_path), ""
    try:
        for words in lines[:predicting]:
            shown += made.type(words)
        assert f"{len(common)} rows that all parties hold" in shown
        assert "INFO" not in shown
        steps = re.findall(r"(?m)^ *\d*%? (\w+) +round trip", shown)
        assert steps[:2] == ["hello", "alignment_encrypt_ids"], shown
        assert steps[-1] == "ridge_scores"
        # About 10 %, and 50 % for the more frequent class. Of 145 rows the bound is six
        # standard deviations above the first, the training's own counted.
        error = re.search(r"(?m)^\| +test error \| +([\d.]+)", shown)[1]
        assert float(error) < 30
        made.model = re.search(r"(?m)^model ([0-9a-f]{16}):", shown)[1]
        made.parties["hospital"].end()
        two_train(made, "--set=alignment=2026-q4")

        for words in lines[predicting:]:
            shown = made.type(words)
        (path,) = tmp_path.glob(f"*/state/predictions-{made.model}-*.csv")
        assert path.parent.parent.name == "insurer"
        assert path.name in shown
        predicted = pd.read_csv(path, index_col="id")
        scores = {s for s in pd.read_csv(path, dtype=str)["score"] if len(s) > 6}
        for file in tmp_path.rglob("*"):  # nobody else has one
            if file.is_file() and "insurer" not in file.parts:
                words = re.split(r"[^\w.-]+", file.read_text(errors="replace"))
                assert not scores.intersection(words), file
        true = names["new"].set_index("patient")["readmitted"] == "yes"
        # About 0.9; a guess has 0.5. Of 300 rows the bound is more than six standard
        # deviations from both.
        assert np.mean(predicted["prediction"] == true.loc[predicted.index]) > 0.7
        assert made.model in made.said("models", "list")
        nothing_leaks(made, files, names["old"].set_index("patient"))
        nothing_leaks(made, new, names["new"].set_index("patient"))
    finally:
        made.end()
    assert started_in(tmp_path) == []
