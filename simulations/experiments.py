"""Common code of the experiments: data sets, tables, result files, command line."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import click
import numpy as np
import sklearn.datasets
import typer
from click.core import ParameterSource
from platformdirs import user_data_path

from vfl_flower import Party
from vfl_flower.app.report.report import markdown_table, write_text
from vfl_flower.typing import Array

tell = partial(print, flush=True)


class MissingData(click.ClickException):
    """A data set is not available; the command ends with a message that says why."""


# --- Data ---------------------------------------------------------------------------


BUNDLED = ("breast_cancer", "diabetes")
"""Data sets in scikit-learn: one with two classes, one with numbers."""


def load_npz(folder: Path | None, name: str) -> tuple[Array, Array]:
    """Return X, shape (n, d), and y, shape (n,), of ``<name>.npz`` as float64.

    The sets of `BUNDLED` are in scikit-learn and need no file.
    """
    if name in BUNDLED:
        X, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
        return X.astype(np.float64), y.astype(np.float64)
    if folder is None:
        raise MissingData(
            f"set VFL_FLOWER_DATA or --data-dir to a folder with {name}.npz"
        )
    path = folder / f"{name}.npz"
    if not path.is_file():
        raise MissingData(f"there is no {name}.npz in {folder}")
    with np.load(path, allow_pickle=False) as file:
        return file["X"].astype(np.float64), file["y"].astype(np.float64)


def standardise(X: Array, n: int | None = None) -> Array:
    """Give the columns of X mean 0 and standard deviation 1, in place, and return X.

    Mean and deviation are computed over the first n rows, by default all; a constant
    column becomes 0.
    """
    for column in X.T:
        column -= column[:n].mean()
        column /= column[:n].std() or 1.0
    return X


@dataclass(frozen=True)
class Columns:
    """A data set that is split over parties by columns."""

    X: Array  # training rows of all parties, shape (n, d)
    widths: tuple[int, ...]  # d_j of each party
    y: Array | None = None  # labels of the training rows
    holder: int = -1  # the party with the labels
    test: tuple[Array, Array] | None = None  # X and y of rows held out

    def split(self, X: Array) -> list[Array]:
        """Return the columns of each party, as views."""
        edges = np.cumsum([0, *self.widths]).tolist()
        return [X[:, a:b] for a, b in pairwise(edges)]

    def parties(self) -> list[Party]:
        """Return the parties; make them once for all repeats."""
        holder = range(len(self.widths))[self.holder]
        return [
            Party(X, y=self.y if j == holder else None)
            for j, X in enumerate(self.split(self.X))
        ]

    def train_and_test(self) -> tuple[Array, Array, Array, Array]:
        """Return X and y of the training rows, then X and y of the rows held out."""
        assert self.y is not None
        assert self.test is not None
        return self.X, self.y, *self.test


# --- Tables and files of results ----------------------------------------------------


def table(rows: Iterable[Mapping[str, str]]) -> str:
    """Return rows as a Markdown table, with a column for each key of any row."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[row.get(name, "") for name in names] for row in rows]
    return markdown_table(names, cells) if rows else ""


def standard_error(values: Sequence[float] | Array) -> float:
    """Return the standard error of the mean, or 0 for a single value."""
    if len(values) == 1:
        return 0.0
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def mean_and_error(values: Sequence[float], digits: int) -> str:
    """Return a mean and, in brackets, its standard error; none for a single value.

    Examples
    --------
    >>> mean_and_error([1.0, 3.0], 2), mean_and_error([1.0], 1)
    ('2.00 (1.00)', '1.0')
    """
    text = f"{np.mean(values):.{digits}f}"
    if len(values) == 1:
        return text
    return f"{text} ({standard_error(values):.{digits}f})"


ROOT = Path(__file__).parents[1]


def stamp_of(versions: str) -> dict[str, str]:
    """Return commit, date, machine and versions, to be stored beside figures."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(ROOT), *words]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    code = ("vfl_flower", "simulations")
    changed = " and changes" if git("status", "--porcelain", "--", *code) else ""
    cpu = Path("/proc/cpuinfo")
    models = [
        line.partition(":")[2].strip()
        for line in (cpu.read_text() if cpu.is_file() else "").splitlines()
        if line.startswith("model name")
    ]
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    return {
        "commit of vfl_flower": git("log", "-1", "--format=%h", "--", "vfl_flower")
        + changed,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{(models or [platform.machine()])[0]}, {os.cpu_count()} cores, "
        f"OMP_NUM_THREADS={threads}",
        "versions": versions,
    }


class Results:
    """The page and the figures of one table."""

    def __init__(
        self,
        context: typer.Context,
        module: str,
        name: str = "",
        stem: str = "",
        title: str = "",
        seeds: str = "",
    ) -> None:
        self._name, self._title, self._seeds = name or "experiments", title, seeds
        stem = stem or (f"{module}-{name}" if name else module)
        self.stem = Path(context.params["output_dir"]) / stem
        self._options = dict(context.params)
        words = ["python", "-m", f"simulations.{module}"]
        for parameter in context.command.params:
            key, option = parameter.name or "", parameter.opts[:1]
            value = context.params[key]
            if isinstance(parameter.type, click.Path):
                del self._options[key]
                value = "FOLDER" if Path(value or "").is_absolute() else value
            if context.get_parameter_source(key) is not ParameterSource.COMMANDLINE:
                continue
            for word in value if isinstance(value, tuple) else [value]:
                words += option if isinstance(parameter, click.Option) else []
                words += [] if word is True else [str(word)]
        self.command = shlex.join(words)
        packages = ("vfl-flower", "flwr", "numpy", "scipy", "scikit-learn")
        self.versions = f"python {platform.python_version()}, " + ", ".join(
            f"{package} {version(package)}" for package in packages
        )
        self.stamp = stamp_of(self.versions)
        self.skipped: dict[str, str] = {}
        # Each run warns that it has a seed, which is intended here.
        logging.getLogger("vfl_flower").setLevel(logging.ERROR)

    @contextmanager
    def skipping(self, dataset: str, datasets: Sequence[str]) -> Iterator[None]:
        """Leave out a data set that is not available."""
        try:
            yield
        except MissingData as reason:
            self.skipped[dataset] = str(reason)
            tell(f"{dataset} skipped: {reason}")
            if set(datasets) <= set(self.skipped):
                reasons = (f"{name}: {text}" for name, text in self.skipped.items())
                raise MissingData("; ".join(reasons)) from None

    def earlier(self) -> Any:
        """Return the figures that an earlier command has written here, or None."""
        file = self.stem.with_suffix(".json")
        return json.loads(file.read_text())[self._name] if file.is_file() else None

    def text(self, page: Iterable[str]) -> str:
        """Return the text of the page."""
        notes = (f"**{k}** was skipped: {why}." for k, why in self.skipped.items())
        parts = [*page, *notes]
        if not parts[0].startswith("# "):
            made = ", ".join(filter(None, [f"`{self.command}`", self._seeds]))
            title = [f"# {self._title}"] if self._title else []
            parts = [*title, f"{made}; {self.versions}.", *parts]
        return "\n\n".join(filter(None, parts)) + "\n"

    def write(self, figures: Any, page: Iterable[str]) -> str:
        """Write the figures as JSON and the page as Markdown, and return the page."""
        text = self.text(page)
        results = {"command": self.command, "options": self._options}
        results |= {"stamp": self.stamp, "skipped": self.skipped}
        self.stem.parent.mkdir(parents=True, exist_ok=True)
        write_text(
            self.stem.with_suffix(".json"),
            json.dumps(results | {self._name: figures}, indent=1),
        )
        write_text(self.stem.with_suffix(".md"), text)
        return text


# --- The command line ---------------------------------------------------------------

DataDir = Annotated[
    Path | None, typer.Option(envvar="VFL_FLOWER_DATA", help="Folder of the npz files.")
]
OutputDir = Annotated[
    Path, typer.Option(help="Folder of the results.", show_default=False)
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Few rows, sizes and repeats: does it work?")
]
OUTPUT = user_data_path("vfl_flower") / "experiments"


def new_app() -> typer.Typer:
    """Return a command to which a module adds its `main`."""
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def tables_of(names: Iterable[str]) -> Any:
    """Return a command argument that takes any of these tables."""
    return typer.Argument(click_type=click.Choice(list(names)), metavar="TABLE...")


def some_of(names: Iterable[str], what: str) -> Any:
    """Return a command option that takes one of these names and may be repeated."""
    return typer.Option(click_type=click.Choice(list(names)), help=what)
