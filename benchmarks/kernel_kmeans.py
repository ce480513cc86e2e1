"""Federated kernel k-means beside a plain NumPy loop: wall time and a party's memory.

``python benchmarks/kernel_kmeans.py`` runs both methods in turn, on one thread, on the
rows of mnist (``VFL_FLOWER_DATA``; otherwise generated rows of its shape) at five
parties. The plain loop has all rows in one place, and no messages, masks or state. In
each iteration it computes the features of each party, the Gram matrix, its eigenpairs
and B, and at the end it runs the same distributed k-means. ``--memory`` instead runs
each party in its own process, with generated rows, and prints the growth of its
resident memory; ``--profile`` prints a profile of the time.

    python benchmarks/kernel_kmeans.py --repeats 3
    python benchmarks/kernel_kmeans.py --memory
"""

from __future__ import annotations

import argparse
import cProfile
import logging
import math
import os
import pstats
import statistics
import time
from pathlib import Path

import numpy as np
from processes import ProcessGrid, start, stop
from threadpoolctl import threadpool_limits

from vfl_flower import Party
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import cluster_summary
from vfl_flower.numerics.distributed_kmeans import combine, sample, split_budget
from vfl_flower.numerics.kmeans import assign
from vfl_flower.simulation import simulate
from vfl_flower.strategies import FKKMeans

PARTIES, CLUSTERS, COMPONENTS, CORESET = 5, 10, 20, 1000


def data(rows: int, columns: int) -> np.ndarray:
    """Return mnist's rows in float32, or otherwise rows of ten blobs."""
    folder = os.environ.get("VFL_FLOWER_DATA")
    if folder and columns == 784:
        with np.load(Path(folder) / "mnist.npz") as file:
            return file["X"][:rows]
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, columns), dtype=np.float32)
    X += rng.standard_normal((10, columns), dtype=np.float32)[
        rng.integers(10, size=rows)
    ]
    return X


def strategy(features: int, iterations: int) -> FKKMeans:
    """Return the strategy to be timed; it never stops before the last iteration."""
    return FKKMeans(
        CLUSTERS,
        COMPONENTS,
        features,
        iterations,
        clustering="coreset",
        coreset_size=CORESET,
        subspace_tol=0.0,
    )


def plain_loop(parts: list[np.ndarray], D: int, T: int, seed: int) -> list[np.ndarray]:
    """Return the labels of each party, by Algorithm 1 in plain NumPy."""
    rng = np.random.default_rng(seed)
    s, k, d = COMPONENTS, CLUSTERS, parts[0].shape[1]
    N = sum(map(len, parts))
    total = sum(X.sum(axis=0, dtype=np.float64) for X in parts)
    squares = sum(np.einsum("ij,ij->", X, X, dtype=np.float64) for X in parts)
    gamma = 1 / (4 * (squares / N - (total / N) @ (total / N)))
    B = [np.zeros((len(X), 0)) for X in parts]
    for t in range(1, T + 1):
        eta = 1 / t
        omega = rng.standard_normal((d, D)) * math.sqrt(2 * gamma)
        b = rng.uniform(0, 2 * math.pi, D)
        W = []
        for X, B_m in zip(parts, B, strict=True):
            A = math.sqrt(2) * np.cos(X @ omega + b)
            W.append(np.hstack([math.sqrt(eta / D) * A, math.sqrt(1 - eta) * B_m]))
        values, V = np.linalg.eigh(sum(W_m.T @ W_m for W_m in W))
        values, V = values[::-1], V[:, ::-1]
        if t == 1:
            mean_rest = (values.sum() - values[: s + 1].sum()) / (len(values) - s - 1)
            threshold = max(0.0, values[s] - mean_rest)
        kept = values > eta * threshold
        scale = np.sqrt(1 - eta * threshold / values[kept])
        B = [W_m @ (V[:, kept] * scale) for W_m in W]
    scale = np.sqrt(1 + (1 - eta) * threshold / values[:s])
    blocks = [RowBlocks(W_m @ (V[:, :s] * scale)) for W_m in W]
    local = [cluster_summary(H, k, rng) for H in blocks]
    costs = np.array([solution.costs.sum() for solution in local])
    shares = split_budget(costs, CORESET)
    drawn = [
        sample(H, solution, int(share), rng)
        for H, solution, share in zip(blocks, local, shares, strict=True)
    ]
    points, weights = (np.concatenate(part) for part in zip(*drawn, strict=True))
    centers = combine(points, weights, k, rng, 30)
    return [np.concatenate([assign(h, centers)[0] for h in H]) for H in blocks]


# --- Memory of a party ---------------------------------------------------------------


def party(index: int, rows: int, columns: int) -> Party:
    """Return one party with generated rows."""
    rng = np.random.default_rng(index)
    X = rng.standard_normal((rows, columns), dtype=np.float32)
    return Party(X, index=index, name=f"p{index}")


def memory(rows: int, columns: int, features: int, iterations: int) -> None:
    """Print the growth of each party's memory, by step."""
    pipes = start(party, [(m, rows // PARTIES, columns) for m in range(PARTIES)])
    strategy(features, iterations).start(ProcessGrid(pipes))
    stop(pipes)


def main() -> None:
    """Time both methods, and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=70_000)
    parser.add_argument("--columns", type=int, default=784)
    parser.add_argument("--features", type=int, default=100, help="D")
    parser.add_argument("--iterations", type=int, default=20, help="T")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--double", action="store_true", help="rows in float64")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    D, T = options.features, options.iterations
    if options.memory:
        memory(options.rows, options.columns, D, T)
        return
    X = data(options.rows, options.columns)
    if options.double:
        X = X.astype(np.float64)
    parts = np.array_split(X, PARTIES)
    parties = [Party(rows) for rows in parts]
    shape = f"{len(X):,} x {X.shape[1]} {X.dtype}, {PARTIES} parties, D = {D}, T = {T}"
    seconds: dict[str, list[float]] = {"plain loop": [], "FKKMeans": []}
    # Each run warns that it has a seed, which is intended here.
    logging.getLogger("vfl_flower").setLevel(logging.ERROR)
    with threadpool_limits(1):
        if options.profile:
            profile = cProfile.Profile()
            with profile:
                simulate(strategy(D, T), parties, seed=0)
            pstats.Stats(profile).sort_stats("tottime").print_stats(15)
            return
        for seed in range(options.repeats):
            begun = time.perf_counter()
            plain_loop(parts, D, T, seed)
            middle = time.perf_counter()
            simulate(strategy(D, T), parties, seed=seed)
            end = time.perf_counter()
            seconds["plain loop"].append(middle - begun)
            seconds["FKKMeans"].append(end - middle)
        pairs = zip(seconds["FKKMeans"], seconds["plain loop"], strict=True)
        print(f"{shape}: median of {options.repeats}")
        for name, times in seconds.items():
            print(f"{name:12} {statistics.median(times):8.2f} s")
        print(f"ratio        {statistics.median(a / b for a, b in pairs):8.2f}")


if __name__ == "__main__":
    main()
