"""What a removal that redraws nothing costs a client, whatever its number of rows.

Three costs of one removed row of a client with n rows, d = 10 and K = 10:

numerics   what the algorithm needs: no centroid is among the removed rows, and the
           row leaves the size of its cluster
redraw     the numerics of a new initialisation, for comparison
step       the whole step of the protocol: it tags all ids of the data, to be sure that
           those of training are there, reads and writes SQLite with a flush to the
           disk, and encodes the counts of 3 clients

Run it with ``python benchmarks/mufc.py``; it takes about a minute.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from vfl_flower import Party
from vfl_flower.clients.mufc import commit, forget, train
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.mufc import initialise, local_labels, surviving
from vfl_flower.report import markdown_table

SIZES = (1_000, 10_000, 100_000, 1_000_000)
D, K = 10, 10
MODEL, RUN = "0123456789abcdef", "run"


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
    """Return the seconds of the step that a client runs when rows are removed."""
    party = Party(X, ids=np.arange(len(X)), name="a", index=0, state_dir=folder)
    party.seed = 1
    settings = {"n_clusters": K, "local_clusters": K, "gamma": 1 / len(X) ** 0.5}
    settings |= {"lower": np.asarray(-0.5), "upper": np.asarray(0.5), "n_init": 10}
    settings |= {"server_points": "uniform", "client_training": "init"}
    settings |= {"privacy": "scma", "field": "hash"}
    key = bytes(16)
    train(party, MODEL, 3, key, **settings)
    commit(party, MODEL, 1, MODEL, np.zeros((1, D)))
    version, before = 1, MODEL
    times = []
    rows = iter(np.setdiff1d(np.arange(10 * K), party.state["drawn"]).tolist())
    for _ in range(5 if len(X) < 1e6 else 3):
        party.state.clear()
        start = time.perf_counter()
        ids = [str(next(rows))]
        run = f"{RUN}{version}"
        forget(party, MODEL, version, before, run, 3, key, ids)
        times.append(time.perf_counter() - start)
        version, before = version + 1, run
        commit(party, MODEL, version, run, np.zeros((1, D)))
    return float(np.median(times))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    rows = []
    for n in parser.parse_args(arguments).sizes:
        rng = np.random.default_rng(0)
        X = rng.uniform(-0.5, 0.5, (n, D))
        blocks = RowBlocks(X)
        drawn, labels = initialise(blocks, K, rng)
        redraw = seconds(lambda b=blocks, g=rng: initialise(b, K, g), 5)
        with tempfile.TemporaryDirectory() as folder:
            whole = step(X, Path(folder))
        cells = [1e6 * numerics(X, drawn, labels), 1e6 * redraw, 1e3 * whole]
        rows.append([f"{n:,}", *(f"{cell:,.1f}" for cell in cells)])
    header = ["n", "numerics, us", "redraw, us", "step, ms"]
    print(markdown_table(header, rows))


if __name__ == "__main__":
    main()
