"""The commands of the pages run, as a reader types them.

Those of docs/tutorials/three-files.md run on a real federation
(tests/wiring/test_tutorial.py). Of the other pages each command runs here, one after
another, in a folder with the files that the page speaks of; a run has its parties in
this process in the place of SuperNodes. What does not run here is in ``NOT_HERE``, with
the reason.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict
from pages import PAGES
from results import undrawn
from typer.testing import CliRunner

from vfl_flower.app.client_app import load
from vfl_flower.app.commands import cli, runs, stored
from vfl_flower.app.commands.reports import read_result, runs_in
from vfl_flower.app.commands.simulate import party_sources
from vfl_flower.app.config import check_run_config
from vfl_flower.app.plan import progress
from vfl_flower.app.report import figures
from vfl_flower.app.server_app import execute
from vfl_flower.simulation import InProcessGrid

pytestmark = pytest.mark.second

MODEL = "1f0c5d2a9b3e4c71"
"""Number of a model in the pages; in a test it is that of the last training."""

PROGRAMS = (
    *("vfl-flower", "python", "flwr", "flower-superlink", "flower-supernode", "make"),
    *("ssh-keygen", "pip", "mkdir", "head", "source", "systemctl", "sudo"),
    *("git", "docker", "export", "FLWR_HOME=\\S+ flwr", "printf", "echo"),
)
"""First words of commands."""

NOT_HERE = {
    "README.md": {r"git|make (demo|test)|source": "of a clean clone, which CI makes"},
    "CONTRIBUTING.md": {r"make (test|lint)": "CI itself"},
    "docs/contribute.md": {
        r"make (test|lint|help)": "CI itself, and a list",
        r"python docs/tables.py": "compared with the page in test_docs.py",
    },
    "docs/deploy.md": {
        r"(FLWR_HOME=\S+ )?flwr |flower-super": (
            "vfl-flower starts these and prints them, in tests/wiring"
        ),
        r"vfl-flower (supernode|gate) ": "as the line above",
        r".*(bank|shop|n-parties=2)": "of two parties: consents in test_docs.py",
    },
    "docs/papers/experiments.md": {
        r"python |make papers": "minutes and hours; tests/simulations/test_papers.py"
    },
    **{
        f"docs/papers/{name}-results.md": {r"python ": "minutes or hours, and data"}
        for name in ("coresets", "fdskl", "kernel_kmeans", "mufc", "ridge")
    },
    "docs/reports.md": {r"vfl-flower report": "of runs that are there: tests/app"},
    "docs/ridge.md": {r"vfl-flower party ": "of a folder, which docs/deploy.md makes"},
    "docs/simulate.md": {
        r"git|make demo|source ": "of a clean clone, which CI makes",
        r"export|flwr run |vfl-flower simulate-app": (
            "tests/wiring/test_flower_run.py"
        ),
    },
    "docs/troubleshooting.md": {
        r"vfl-flower run .* resume=": "of a run that was killed: tests/strategies"
    },
    "docs/tutorials/three-files.md": {
        r"(python -m venv|source|pip)": "of a clean clone, which CI makes",
        r"": "tests/wiring/test_tutorial.py",
    },
    "docs/tutorials/existing-app.md": {
        r"pip|export|flwr run": "tests/examples/test_existing_app.py runs it",
        r"vfl-flower (bundle-hash|supernode)": (
            "tests/examples/test_existing_app.py has its parties"
        ),
    },
    "docs/tutorials/fifth-algorithm.md": {
        r"pip|export|flwr run": "tests/examples/test_fifth_algorithm.py does both"
    },
}
"""By page, beginnings of commands that this file does not run, and the reason."""


def lines(page: str) -> list[str]:
    """Return all commands of a page, in their order."""
    joined = re.sub(r"\\\n *", "", PAGES[page])
    found = re.findall(rf"(?m)^ {{4,}}((?:{'|'.join(PROGRAMS)})\b .*)$", joined)
    return [re.sub(r" +# .*", "", line) for line in found]


def left_out(page: str, line: str) -> bool:
    """Whether a command does not run here."""
    return any(re.match(start, line) for start in NOT_HERE.get(page, ()))


RUN = {p: [line for line in lines(p) if not left_out(p, line)] for p in PAGES}


def test_what_is_left_out_exists():
    for page, reasons in NOT_HERE.items():
        for start in reasons:
            assert any(re.match(start, line) for line in lines(page)), (page, start)


FEW = {"fk-kmeans.iterations": 3, "fk-kmeans.passes": 3, "fk-kmeans.n-init": 3}
"""Settings that leave out round trips like those before."""

# -- files that the pages speak of -----------------------------------------------------


def columns(
    label: str = "arr_delay", ids: str = "flight_id"
) -> dict[str, pd.DataFrame]:
    """Return three parties' columns of the same rows; the first has the labels."""
    X = np.random.default_rng(0).normal(size=(520, 6))
    every = {ids: np.arange(len(X))}
    y = X.sum(axis=1) + X[:, 0] * X[:, 2]
    labels = y if label == "arr_delay" else np.where(y > 0, "yes", "no")
    return {
        "airline": pd.DataFrame({**every, "a": X[:, 0], "b": X[:, 1], label: labels}),
        "weather": pd.DataFrame({**every, "c": X[:, 2], "d": X[:, 3]}),
        "registry": pd.DataFrame({**every, "e": X[:, 4], "f": X[:, 5]}),
    }


def rows(*texts: str) -> dict[str, pd.DataFrame]:
    """Return three parties' rows of the same columns, in five clusters."""
    rng = np.random.default_rng(0)
    centre = rng.integers(5, size=360)
    table = pd.DataFrame(
        {
            "id": np.arange(360) % 120,
            "age": 10 + 25 * centre + rng.normal(0, 1, 360).clip(-3, 3),
            "income": 1000 * (100 + 150 * centre + rng.normal(0, 9, 360).clip(-50, 50)),
            "sex": rng.choice(["f", "m"], 360),
            "region": rng.choice(["north", "south"], 360),
        }
    ).drop(columns=[name for name in ("sex", "region") if name not in texts])
    parts = (f"clinic-{letter}" for letter in "abc")
    return {name: table[120 * j :][:120] for j, name in enumerate(parts)}


def others(page: str) -> dict[str, pd.DataFrame]:
    """Return further files that a page speaks of, by their paths."""
    if page == "docs/simulate.md":
        parts = columns("sold", "id")
        files = {f"parties/{name}.csv": part for name, part in parts.items()}
        return files | {
            "a.csv": parts["weather"],
            "b.parquet": parts["registry"].assign(y=parts["weather"]["c"]),
        }
    if page == "docs/party-files.md":
        return {
            "airline.csv": columns()["airline"],
            "clinic.csv": rows("sex", "region")["clinic-a"],
        }
    return {"new.csv": rows()["clinic-a"]} if page == "docs/kernel-kmeans.md" else {}


def write(table: pd.DataFrame, path: Path) -> None:
    """Write a file, as its name ends."""
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path)


class Reader:
    """Somebody who types the commands of a page, in a folder with its files.

    The folder takes the place of ``/data`` too. `files` has each party's table by its
    name, and `more` are keys that stand in the parties' node configs.
    """

    def __init__(
        self, folder: Path, files: Mapping[str, pd.DataFrame], **more: Any
    ) -> None:
        self.folder, self.config = folder, more
        self.files = {name: folder / f"{name}.csv" for name in files}
        for name, table in files.items():
            write(table, self.files[name])
            write(table, folder / f"{name}.parquet")

    def start(
        self, config: dict[str, Any], connection: str, folder: Path | None = None, **_
    ) -> None:
        """Run on the parties in this process, as simulate does."""
        assert connection or folder is not None or config["task"] == "remove"
        config = config | self.config
        if (config["strategy"], config["task"]) == ("fk-kmeans", "train"):
            config |= FEW
        files, complete = list(self.files.values()), check_run_config(config)
        sources = party_sources(complete, files, 3, self.folder / "state")
        grid = InProcessGrid([load(source, config) for source in sources])
        execute(grid, Context(grid.run_id, 0, {}, RecordDict(), config))

    def model(self, line: str) -> str:
        """Return the number of the last model, of the strategy that a line names."""
        numbers = []
        for run in runs_in(self.folder / "data" / "vfl_flower" / "runs"):
            read = read_result(run)
            strategy = read["run_config"]["strategy"]
            if strategy in line.split() or " run " not in line:
                numbers += [result["model_id"] for result in read["results"].values()]
        return next(filter(None, reversed(numbers)))

    def type(self, line: str) -> str:
        """Type a command, and return what it prints."""
        if MODEL in line:
            line = line.replace(MODEL, self.model(line))
        state = self.folder / "state" / next(iter(self.files), "")
        line = re.sub("/data/state|clinic-a/state", str(state), line)
        line = line.replace("/data/", f"{self.folder}/").replace("HOST", "localhost")
        words = shlex.split(line.partition(" > ")[0])
        if words[0] == "vfl-flower":
            starts = words[1] in ("party", "coordinator") and "--systemd" not in words
            words = [*words[1:], *["--systemd"] * starts]
            if words[0] == "align":  # the state-dir takes the place of a folder
                words[1] = str(state)
            if words[:2] == ["simulate", "fk-kmeans"]:
                words += [f"--set={key}={value}" for key, value in FEW.items()]
        else:
            subprocess.run(line, shell=True, check=True, cwd=self.folder)
            return ""
        ended = CliRunner().invoke(cli.app, words)
        assert ended.exit_code == 0, f"{line}\n{ended.output}\n{ended.stderr}"
        for pattern in ("*/*.card", "federation/ca.crt"):  # what all exchange
            for path in self.folder.glob(pattern):
                shutil.copy(path, self.folder)
        return ended.output


PARTIES: dict[str, tuple[Callable[[], Mapping[str, pd.DataFrame]], dict[str, Any]]] = {
    "README.md": (dict, {}),
    "docs/alignment.md": (columns, {"label-column": "arr_delay"}),
    "docs/coresets.md": (columns, {"label-column": "arr_delay"}),
    "docs/deploy.md": (columns, {"label-column": "arr_delay"}),
    "docs/fdskl.md": (lambda: columns("late"), {"label-column": "late"}),
    "docs/ridge.md": (lambda: columns("late"), {"label-column": "late"}),
    "docs/kernel-kmeans.md": (rows, {}),
    "docs/mufc.md": (rows, {}),
    "docs/party-files.md": (
        lambda: rows("sex", "region"),
        {"levels": "region=north|south;sex=f|m"},
    ),
    "docs/simulate.md": (dict, {}),
    "docs/tutorials/existing-app.md": (dict, {}),
}
"""By page, what the parties hold, and what their node configs say of it."""


@pytest.mark.parametrize("page", PARTIES)
def test_commands_run(page, tmp_path, monkeypatch):
    """One after the other, as one would type them."""
    monkeypatch.setattr(figures, "make_figure", undrawn)
    # Without the rehearsals that count them: tests/app/plan/test_progress.py.
    monkeypatch.setattr(progress, "planned_trips", lambda *_: 0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    made, config = PARTIES[page]
    files = made()
    if files:
        config = {"id-column": next(iter(files.values())).columns[0], **config}
    reader = Reader(tmp_path, files, **config)
    monkeypatch.setattr(runs, "start", reader.start)
    monkeypatch.setattr(stored, "start", reader.start)
    for path, table in others(page).items():
        write(table, tmp_path / path)
    if page == "docs/mufc.md":
        (tmp_path / "bounds.txt").write_text("age = 0, 120\nincome = 0, 1000000\n")
    for line in RUN[page]:
        output = reader.type(line)
        if page == "README.md":
            assert re.search(r"(?s)```text\n(\|.*?)```", PAGES[page])[1] in output
        if "forget-client" in line:  # the next lines are of a model of three parties
            reader.type(next(one for one in RUN[page] if "box=" in one))
        if line.startswith("vfl-flower init airline"):
            for name in ("weather", "registry"):
                told = line.replace("airline", name)
                reader.type(told.replace(" --label-column arr_delay", ""))


def test_every_command_runs_somewhere():
    assert {page for page, some in RUN.items() if some} == set(PARTIES)
