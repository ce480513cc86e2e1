"""Time and memory of coreset regression against the same steps in plain NumPy.

``python benchmarks/coresets_floor.py``: n = 463,715 rows, 90 columns, 3 parties, a
coreset of 2,000 rows. Both sides compute leverage scores by Gram and Cholesky (the
package: by eigenvalues) of each party's columns, labels included, draw, weigh and solve
least squares. They run in turn, on one thread, on the same data. The package runs
through ``simulate``: Flower serialises every message, and scores are summed under
masks.

Peak memory is the growth of ``ru_maxrss`` (the largest resident set) in a process of
its own, counted once the data are made and a small run has loaded all modules. Unlike
``tracemalloc`` it includes what BLAS, protobuf and the ciphers allocate. All parties
and the server live in that process.

Exits 1 where the ratio of times is above 1.3 or the growth above 25 % of the data.
"""

import argparse
import cProfile
import pstats
import resource
import statistics
import subprocess
import sys
import time

import numpy as np
from sklearn.linear_model import LinearRegression
from threadpoolctl import threadpool_limits

from vfl_flower import Party
from vfl_flower.simulation import simulate
from vfl_flower.strategies import CoresetVRLR
from vfl_flower.typing import Array

MAX_RATIO, MAX_GROWTH = 1.3, 0.25


def make_data(n: int, d: int, count: int) -> tuple[list[Array], Array]:
    """Return the parties' columns and the labels, made without a second copy."""
    rng = np.random.default_rng(0)
    blocks = [np.empty((n, d // count)) for _ in range(count)]
    y = np.empty(n)
    rng.standard_normal(out=y)
    for X in blocks:
        rng.standard_normal(out=X)
        y += X[:, 0]
    return blocks, y


def straight(blocks: list[Array], y: Array, m: int, intercept: bool) -> Array:
    """Return the coefficients, computed by NumPy on the pooled columns."""
    n, rng = len(y), np.random.default_rng(1)
    g = []
    for j, X in enumerate(blocks):
        extra = [np.ones(n)] if intercept else []
        extra += [y] if j == len(blocks) - 1 else []
        Z = np.column_stack([X, *extra]) if extra else X
        U = Z @ np.linalg.inv(np.linalg.cholesky(Z.T @ Z)).T
        scores = np.einsum("ij,ij->i", U, U) + 1 / n
        if intercept and j < len(blocks) - 1:
            scores -= 1 / n  # the ones count once, at the label holder
        g.append(scores)
    G = np.array([scores.sum() for scores in g])
    a = rng.multinomial(m, G / G.sum())
    S = np.concatenate(
        [
            np.searchsorted(
                cumulative := np.cumsum(scores), rng.random(size) * cumulative[-1]
            )
            for scores, size in zip(g, a, strict=True)
        ]
    )
    w = G.sum() / (m * sum(scores[S] for scores in g))
    rows = np.hstack([X[S] for X in blocks])
    model = LinearRegression(fit_intercept=intercept)
    return np.asarray(model.fit(rows, y[S], sample_weight=w).coef_)


def through_simulate(blocks: list[Array], y: Array, m: int, intercept: bool) -> Array:
    """Return the coefficients, computed by the package."""
    *others, last = blocks
    parties = [*map(Party, others), Party(last, y=y)]  # `Party` checks for NaN
    strategy = CoresetVRLR(size=m, fit_intercept=intercept, solver="central")
    return np.concatenate(simulate(strategy, parties, seed=1).model.coef_)


RUNS = {"straight": straight, "simulate": through_simulate}


def growth(name: str, n: int, d: int, count: int, m: int, intercept: bool) -> None:
    """Print by how many bytes a run raises the largest resident set."""
    RUNS[name](*make_data(2 * m, d, count), m, intercept)
    blocks, y = make_data(n, d, count)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    RUNS[name](blocks, y, m, intercept)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print((after - before) * (1 if sys.platform == "darwin" else 1024))


def growth_in_child(
    name: str, intercept: bool, n: int, d: int, count: int, m: int
) -> int:
    """Return what `growth` prints in a process of its own."""
    command = [sys.executable, __file__, "--growth", name, str(intercept)]
    for option, value in (("n", n), ("d", d), ("parties", count), ("size", m)):
        command += [f"--{option}", str(value)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout)


def main() -> None:
    """Parse the arguments and run.

    Raises
    ------
    SystemExit
        With 1 where a target is missed.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=463_715, help="rows")
    parser.add_argument("--d", type=int, default=90, help="columns in all")
    parser.add_argument("--parties", type=int, default=3)
    parser.add_argument("--size", type=int, default=2000, help="rows of the coreset")
    parser.add_argument("--repeats", type=int, default=7, help="interleaved pairs")
    parser.add_argument("--profile", action="store_true", help="show where time goes")
    parser.add_argument("--growth", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    shape = (args.n, args.d, args.parties)
    with threadpool_limits(1):
        if args.growth:
            name, intercept = args.growth
            growth(name, *shape, args.size, intercept == "True")
            return
        # Before the data are made here: a child's ru_maxrss starts at its parent's.
        grown = {
            (name, intercept): growth_in_child(name, intercept, *shape, args.size)
            for intercept in (False, True)
            for name in ("straight", "simulate")
        }
        blocks, y = make_data(*shape)
        if args.profile:
            profile = cProfile.Profile()
            profile.runcall(through_simulate, blocks, y, args.size, True)
            pstats.Stats(profile).sort_stats("tottime").print_stats(20)
        data = sum(X.nbytes for X in blocks) + y.nbytes
        missed = False
        print(
            f"n = {args.n}, d = {args.d}, T = {args.parties}, m = {args.size};", end=""
        )
        print(f" {args.repeats} pairs, one thread, {data / 2**20:.0f} MiB of data")
        for intercept in (False, True):
            seconds: dict[str, list[float]] = {"straight": [], "simulate": []}
            for repeat in range(args.repeats + 1):
                for name, run in RUNS.items():
                    start = time.perf_counter()
                    run(blocks, y, args.size, intercept)
                    if repeat:  # the first pair warms up
                        seconds[name].append(time.perf_counter() - start)
            pairs = zip(seconds["simulate"], seconds["straight"], strict=True)
            ratio = statistics.median(a / b for a, b in pairs)
            share = grown["simulate", intercept] / data
            missed |= ratio > MAX_RATIO or share > MAX_GROWTH
            print(f"\nintercept {intercept}")
            for name, times in seconds.items():
                added = grown[name, intercept]
                print(
                    f"  {name:9} median {statistics.median(times):.3f} s, least "
                    f"{min(times):.3f} s; memory +{added / 2**20:.1f} MiB, "
                    f"+{added / data:.1%} of the data"
                )
            print(
                f"  simulate / straight, median of pairs: {ratio:.2f} (at most "
                f"{MAX_RATIO}); memory at most +{MAX_GROWTH:.0%}"
            )
    sys.exit(int(missed))


if __name__ == "__main__":
    main()
