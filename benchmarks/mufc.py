"""What a removal that redraws nothing costs a party, whatever its number of rows.

Three costs of removing one row of a party with n rows, d = 10 and K = 10:

numerics   what the algorithm needs: a check that no centroid is removed, and the
           subtraction of the row from the size of its cluster
redraw     the numerics of a new initialisation, for comparison
step       the whole step of the protocol: it tags all ids of the data, to check that
           all training rows are there, reads and writes SQLite with a flush to disk,
           and encodes counts for a sum over 3 parties

Run it with ``python benchmarks/mufc.py``; it takes about a minute.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from vfl_flower import Party
from vfl_flower.app.report import markdown_table
from vfl_flower.clients.mufc import MUFCState, commit, forget, train
from vfl_flower.clients.mufc_state import TrainingSettings
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.mufc import initialise, local_labels, surviving

SIZES = (1_000, 10_000, 100_000, 1_000_000)
D, K = 10, 10
MODEL = "0123456789abcdef"


def seconds(function: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def numerics(X: np.ndarray, drawn: np.ndarray, labels: np.ndarray) -> float:
    """Return the seconds of a removal in memory."""
    kept = np.ones(len(X), dtype=bool)
    sizes = np.bincount(labels, minlength=K)
    centroids = X[drawn]
    row = np.setdiff1d(np.arange(2 * K), drawn)[:1]

    def remove() -> None:
        assert len(surviving(drawn, row)) == K
        kept[row] = False
        sizes[local_labels(X[row], centroids)] -= 1

    return seconds(remove, 1000)


def step(X: np.ndarray, folder: Path) -> float:
    """Return the seconds of the step that a party runs when rows are removed."""
    party = Party(X, ids=np.arange(len(X)), name="a", index=0, state_dir=folder)
    party.seed, party.n_parties = 1, 3
    settings = TrainingSettings(
        n_clusters=K,
        local_clusters=K,
        gamma=1 / len(X) ** 0.5,
        lower=np.asarray(-0.5),
        upper=np.asarray(0.5),
        server_points="uniform",
        client_training="init",
        privacy="scma",
        field="hash",
        n_init=10,
    )
    key, centers = bytes(16), np.zeros((1, D))
    train(party, MODEL, settings, key)
    commit(party, 1, MODEL, centers)
    drawn = party.recall(MUFCState).drawn
    rows = iter(np.setdiff1d(np.arange(10 * K), drawn).tolist())
    version, before = 1, MODEL
    times = []
    for _ in range(5 if len(X) < 1e6 else 3):
        party.resume({})  # each run begins with nothing
        start = time.perf_counter()
        run = f"{version:016x}"
        forget(party, MODEL, version, before, run, key, ids=[str(next(rows))])
        times.append(time.perf_counter() - start)
        version, before = version + 1, run
        commit(party, version, run, centers)
    return float(np.median(times))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    # Forgotten rows are still in the data here, and parties warn about that.
    logging.getLogger("vfl_flower").setLevel(logging.ERROR)
    rows = []
    for n in parser.parse_args(arguments).sizes:
        rng = np.random.default_rng(0)
        X = rng.uniform(-0.5, 0.5, (n, D))
        blocks = RowBlocks(X)
        drawn, labels = initialise(blocks, K, rng)
        redraw = seconds(lambda b=blocks, g=rng: initialise(b, K, g), 5)
        with tempfile.TemporaryDirectory() as folder:
            step_seconds = step(X, Path(folder))
        cells = [1e6 * numerics(X, drawn, labels), 1e6 * redraw, 1e3 * step_seconds]
        rows.append([f"{n:,}", *(f"{cell:,.1f}" for cell in cells)])
    header = ["n", "numerics, us", "redraw, us", "step, ms"]
    print(markdown_table(header, rows))


if __name__ == "__main__":
    main()
