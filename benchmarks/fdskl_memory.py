"""Peak memory of a party that trains a kernel model and predicts with it.

Each party is a process of its own and takes part in a whole training and a whole
prediction of all rows.

    python benchmarks/fdskl_memory.py --rows 500000 --columns 90
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from processes import ProcessGrid, start, stop

from vfl_flower import Party
from vfl_flower.strategies import FDSKL, FDSKLPrediction

PARTIES = 3


def party(index: int, rows: int, columns: int, folder: str) -> Party:
    """Return one party with its columns; the last party has the labels."""
    import vfl_flower.numerics.kernel_solvers  # noqa: F401  # part of the baseline

    rng = np.random.default_rng(index)
    X = rng.standard_normal((rows, columns // PARTIES))
    y = np.sign(X[:, 0] * X[:, 1]) if index == PARTIES - 1 else None
    return Party(X, y=y, index=index, name=f"p{index}", state_dir=Path(folder))


def main() -> None:
    """Train and predict, and print what each party took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--columns", type=int, default=90)
    parser.add_argument("--loss", default="logistic")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pipes = start(
            party,
            [
                (j, options.rows, options.columns, f"{folder}/{j}")
                for j in range(PARTIES)
            ],
        )
        begun = time.perf_counter()
        trained = FDSKL(options.loss, solver="direct").start(ProcessGrid(pipes))
        middle = time.perf_counter()
        FDSKLPrediction(trained.model.number, solver="direct").start(ProcessGrid(pipes))
        end = time.perf_counter()
        print(f"training {middle - begun:.0f} s, {trained.ledger.round_trips} trips")
        print(f"prediction of {options.rows} rows {end - middle:.0f} s")
        stop(pipes)


if __name__ == "__main__":
    main()
