"""Time leverage scores and local clustering against plain NumPy and scikit-learn.

``python benchmarks/leverage.py --n 463715 --columns 30 --parties 3``: every method runs
once per repeat, in turn, on one thread and the same data; it prints medians and ratios.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from sklearn.cluster import KMeans, kmeans_plusplus
from threadpoolctl import threadpool_limits

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import (
    cluster_summary,
    leverage_factor,
    leverage_scores,
    vkmc_sensitivities,
)
from vfl_flower.numerics.kmeans import assign, lloyd, seed_centers
from vfl_flower.typing import Array


def plain_gram(X: Array) -> Array:
    """Return leverage scores by Gram matrix and Cholesky, on the whole of X."""
    L = np.linalg.cholesky(X.T @ X)
    U = X @ np.linalg.inv(L).T
    return np.einsum("ij,ij->i", U, U)


def plain_qr(X: Array) -> Array:
    """Return leverage scores by a QR factorisation of the whole of X."""
    Q = np.linalg.qr(X).Q
    return np.einsum("ij,ij->i", Q, Q)


def scores(method: str, X: Array) -> Array:
    """Return leverage scores by this package."""
    blocks = RowBlocks(X)
    return leverage_scores(blocks, leverage_factor(blocks, method))


def sensitivities(method: str, k: int, X: Array) -> Array:
    """Return the sensitivities of k-means by this package."""
    blocks = RowBlocks(X)
    summary = cluster_summary(blocks, k, np.random.default_rng(0), method)
    return np.concatenate([vkmc_sensitivities(rows, summary) for rows in blocks])


def compare(
    title: str, methods: dict[str, Callable[[Array], object]], data: list[Array], r: int
) -> None:
    """Run the methods in turn, r times; print medians, and ratios to the first."""
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for repeat in range(r + 1):
        for name, method in methods.items():
            start = time.perf_counter()
            for X in data:
                method(X)
            if repeat or not r - 1:  # the first of several warms up
                seconds[name].append(time.perf_counter() - start)
        if r == 1:
            break
    print(f"\n{title}, {len(data)} parties of {data[0].shape}, {r} repeats")
    base = next(iter(seconds.values()))
    for name, times in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(times, base, strict=True))
        print(f"{name:34} {statistics.median(times):8.3f} s {ratio:8.2f} x")


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=463_715, help="rows")
    parser.add_argument("--columns", type=int, default=30, help="columns of a party")
    parser.add_argument("--parties", type=int, default=3)
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--no-clustering", action="store_true")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    k = args.clusters
    # Clusters and correlated columns; the condition number stays moderate.
    data = []
    for _ in range(args.parties):
        mixing = rng.standard_normal((args.columns, args.columns))
        X = rng.standard_normal((args.n, args.columns)) @ mixing
        X += 3 * rng.standard_normal((20, args.columns))[rng.integers(20, size=args.n)]
        data.append(X)

    with threadpool_limits(1):
        compare(
            "leverage scores",
            {
                "plain NumPy, Gram": plain_gram,
                "gram": partial(scores, "gram"),
                "auto": partial(scores, "auto"),
                "qr": partial(scores, "qr"),
                "plain NumPy, QR": plain_qr,
            },
            data,
            args.repeats,
        )
        if args.no_clustering:
            return
        compare(
            f"k-means++ seeding, k = {k}",
            {
                "scikit-learn kmeans_plusplus": partial(
                    kmeans_plusplus, n_clusters=k, random_state=0
                ),
                "seed_centers": lambda X: seed_centers(
                    RowBlocks(X), k, np.random.default_rng(0)
                ),
            },
            data,
            3,
        )
        compare(
            f"k-means sensitivities, k = {k}",
            {
                "scikit-learn KMeans, one start": KMeans(
                    k, n_init=1, random_state=0
                ).fit,
                "lloyd": partial(sensitivities, "lloyd", k),
                "seeding": partial(sensitivities, "seeding", k),
            },
            data,
            1,
        )
        X = data[0]
        blocks = RowBlocks(X)
        seeds = seed_centers(blocks, k, np.random.default_rng(0))
        best = KMeans(k, n_init=1, random_state=0).fit(X).inertia_
        print("\ncost over that of scikit-learn KMeans, first party")
        for name, centers in ("seeding", seeds), ("lloyd", lloyd(blocks, seeds)):
            cost = sum(float(assign(rows, centers)[1].sum()) for rows in blocks)
            print(f"{name:34} {cost / best:8.3f}")


if __name__ == "__main__":
    main()
