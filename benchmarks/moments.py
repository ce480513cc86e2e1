"""Linear regression from a Gram matrix under shares, beside pooled least squares.

``VFL_FLOWER_DATA=FOLDER python benchmarks/moments.py``: house sales (``kc_house.npz``)
on coresets of 600 rows, 20 times each, between two, three and five parties.

``python benchmarks/moments.py --flights FOLDER``: all flights, in the party files that
``python -m vfl_flower.app.flights FOLDER`` writes.

Without either: generated rows.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vfl_flower import CoresetVRLR, Party, simulate
from vfl_flower.typing import Array

SIZE, REPEATS = 600, 20


def pooled(X: Array, y: Array) -> tuple[Array, float]:
    """Return coefficients of columns in standard deviations, and the mean loss."""
    Z = np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), np.ones(len(X))])
    theta = np.linalg.lstsq(Z, y, rcond=None)[0]
    return theta[:-1], float(np.mean((Z @ theta - y) ** 2))


def coresets(X: Array, y: Array, count: int) -> None:
    """Print the mean loss on all rows over that of the pooled model."""
    _, least = pooled(X, y)
    blocks = np.array_split(X, count, axis=1)
    ratios, trips, left = [], 0, 0
    start = time.perf_counter()
    for seed in range(REPEATS):
        parties = [
            Party(block, y if j == count - 1 else None)
            for j, block in enumerate(blocks)
        ]
        result = simulate(CoresetVRLR(SIZE, solver="moments"), parties, seed=seed)
        ratios.append(np.mean((result.model.predict(blocks) - y) ** 2) / least)
        trips = max(trips, result.ledger.round_trips)
        left += result.metrics["left_out"]
    seconds = (time.perf_counter() - start) / REPEATS
    print(
        f"{count} parties: loss over pooled {np.mean(ratios):.4f} "
        f"(largest {max(ratios):.4f}), {trips} round trips, {seconds:.2f} s, "
        f"{left} columns left out in {REPEATS} runs"
    )


def all_rows(blocks: Sequence[Array], y: Array, holder: int) -> None:
    """Print how far the model of all rows is from pooled least squares."""
    X = np.hstack(blocks)
    theta, least = pooled(X, y)
    parties = [
        Party(block, y if j == holder else None) for j, block in enumerate(blocks)
    ]
    start = time.perf_counter()
    strategy = CoresetVRLR(solver="moments", sampling="full")
    result = simulate(strategy, parties, seed=0)
    seconds = time.perf_counter() - start
    coef = np.concatenate(result.model.coef_) * X.std(axis=0)
    off = np.linalg.norm(coef - theta) / np.linalg.norm(theta)
    loss = np.mean((result.model.predict(blocks) - y) ** 2) / least - 1
    ledger = result.ledger
    print(
        f"{len(y)} rows, {X.shape[1]} columns: coefficients off by {off:.1e}, loss by "
        f"{loss:.1e}; {ledger.round_trips} round trips, {seconds:.1f} s, "
        f"{ledger.bytes_up / 1e6:.0f} MB up, {ledger.bytes_down / 1e6:.0f} MB down"
    )


def main() -> None:
    """Parse the command line and print one line for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flights", type=Path, help="folder of the party files")
    flights = parser.parse_args().flights
    if flights is not None:
        import pandas as pd

        tables = [pd.read_parquet(file) for file in sorted(flights.glob("*.parquet"))]
        y = tables[0].pop("arr_delay").to_numpy(float)
        columns = [table.drop(columns="flight_id") for table in tables]
        all_rows([table.to_numpy(float) for table in columns], y, 0)
        return
    if folder := os.environ.get("VFL_FLOWER_DATA"):
        file = np.load(Path(folder) / "kc_house.npz")
        X, y = file["X"].astype(float), file["y"].astype(float)
    else:
        rng = np.random.default_rng(0)
        X = rng.standard_t(5, size=(20_000, 18))
        y = X @ rng.normal(size=18) + 3 * rng.normal(size=20_000)
    for count in (2, 3, 5):
        coresets(X, y, count)
    all_rows(np.array_split(X, 3, axis=1), y, 2)


if __name__ == "__main__":
    main()
