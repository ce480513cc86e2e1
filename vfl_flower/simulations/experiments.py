"""What the experiments share: data sets, files of results, and the command line."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from vfl_flower.clients.base import Party
from vfl_flower.report import write_text
from vfl_flower.typing import Array


class MissingData(Exception):
    """A data set cannot be had, with a sentence that says why."""


def load_npz(folder: Path | None, name: str) -> tuple[Array, Array]:
    """Read a data set.

    Parameters
    ----------
    folder : Path or None
        Of the data; None: not given.
    name : str
        ``<name>.npz`` holds X, shape (n, d), and y, shape (n,).

    Returns
    -------
    X, y : Array of float64
        Rows and labels.

    Raises
    ------
    MissingData
        There is no folder or no file.
    """
    if folder is None:
        raise MissingData(
            f"set VFL_FLOWER_DATA or --data-dir to a folder with {name}.npz"
        )
    path = folder / f"{name}.npz"
    if not path.is_file():
        raise MissingData(f"there is no {name}.npz in {folder}")
    with np.load(path, allow_pickle=False) as file:
        return file["X"].astype(np.float64), file["y"].astype(np.float64)


def standardise(X: Array, n: int | None = None) -> None:
    """Give the columns mean 0 and standard deviation 1, in place; constants are 0.

    Parameters
    ----------
    X : Array of float64, shape (n', d)
        Rows.
    n : int, optional
        Mean and deviation are those of the first n rows; default: of all.
    """
    for column in X.T:
        column -= column[:n].mean()
        column /= column[:n].std() or 1.0


@dataclass(frozen=True)
class Columns:
    """A data set that is split over parties by columns.

    Attributes
    ----------
    X : Array, shape (n, d)
        Training rows of all parties.
    widths : tuple of int
        d_j of each party.
    y : Array, shape (n,), or None
        Labels of the training rows.
    holder : int
        The party with the labels.
    test : (Array, Array) or None
        X and y of rows held out.
    """

    X: Array
    widths: tuple[int, ...]
    y: Array | None = None
    holder: int = -1
    test: tuple[Array, Array] | None = None

    def split(self, X: Array) -> list[Array]:
        """Return the columns of each party, as views."""
        edges = np.cumsum([0, *self.widths]).tolist()
        return [X[:, a:b] for a, b in pairwise(edges)]

    def parties(self) -> list[Party]:
        """Return the parties, made once for all repeats."""
        holder = range(len(self.widths))[self.holder]
        return [
            Party(X, y=self.y if j == holder else None)
            for j, X in enumerate(self.split(self.X))
        ]


def versions() -> dict[str, str]:
    """Return the versions of what the figures depend on."""
    packages = ("vfl-flower", "flwr", "numpy", "scipy", "scikit-learn")
    return {"python": platform.python_version()} | {p: version(p) for p in packages}


def write_results(results: Mapping[str, Any], page: str, stem: Path) -> None:
    """Write ``<stem>.json`` and the page ``<stem>.md``, each whole or not at all."""
    write_text(stem.with_suffix(".json"), json.dumps(results, indent=1))
    write_text(stem.with_suffix(".md"), page)


def check_some(skipped: Mapping[str, str], names: Iterable[str]) -> None:
    """Raise ``MissingData`` where none of the data sets could be had."""
    if set(skipped) >= set(names):
        reasons = [f"{name}: {reason}" for name, reason in skipped.items()]
        raise MissingData("; ".join(reasons))


def show_tables(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    run: Callable[[str], str],
) -> None:
    """Print the page that `run` makes of each table; exit with 1 without data."""
    for table in options.tables:
        try:
            print(run(table), flush=True)
        except MissingData as reason:
            parser.exit(1, f"{parser.prog}: {reason}\n")
    print(f"results in {options.output_dir.absolute()}")


def new_parser(
    module: str, paper: str, datasets: Iterable[str], tables: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """Return a parser of what experiments have in common.

    Parameters
    ----------
    module : str
        Name of the experiments' module in this package.
    paper : str
        What they reproduce.
    datasets : iterable of str
        What ``--datasets`` may name; all where nothing is said.
    tables : sequence of str
        Tables to choose from, if there is a choice.

    Returns
    -------
    argparse.ArgumentParser
        To which the module adds its own options.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m vfl_flower.simulations.{module}",
        description=f"Reproduce the experiments of {paper}.",
    )
    if tables:
        parser.add_argument(
            "tables", nargs="+", choices=tables, metavar="TABLE", help=", ".join(tables)
        )
    names = list(datasets)
    parser.add_argument(
        "--datasets",
        nargs="+",
        choices=names,
        default=names,
        metavar="NAME",
        help=", ".join(names),
    )
    return parser


def read_options(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    least: Mapping[str, int],
) -> argparse.Namespace:
    """Add the folders to a parser, and read a command line.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        With the options of its own.
    arguments : sequence of str or None
        None: those of the process.
    least : mapping of str to int
        Least values of numbers, and of the numbers in lists, that are given.

    Returns
    -------
    argparse.Namespace
        Also with ``data_dir``, a path or None, and ``output_dir``, a path.
    """
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=os.environ.get("VFL_FLOWER_DATA") or None,
        help="folder of the npz files (default: VFL_FLOWER_DATA)",
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=None,
        help="folder of the results (default: in the user's data folder)",
    )
    options = parser.parse_args(arguments)
    for name, bound in least.items():
        given = getattr(options, name)
        values = given if isinstance(given, list) else [given]
        wrong = [value for value in values if value is not None and value < bound]
        if wrong:
            parser.error(f"--{name} must be at least {bound}, got {min(wrong)}")
    if options.output_dir is None:
        from platformdirs import user_data_path

        options.output_dir = user_data_path("vfl_flower") / "experiments"
    # Each run warns that it has a seed, which here is meant.
    logging.getLogger("vfl_flower").setLevel(logging.ERROR)
    return options
