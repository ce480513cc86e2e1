"""Time a party's partial angles against the plain NumPy product of the same block.

``python benchmarks/partial_products.py --rows 4096 --features 2048``: for 10, 30 and 90
columns it computes in turn the angles at 16 bits, which includes drawing omega and b
from the seed, and ``X @ omega.T`` with omega given. It prints medians and the median of
the ratios of the pairs, at one and at two BLAS threads, each in a new process.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from vfl_flower.numerics.random_features import RandomFeatures

COLUMNS = (10, 30, 90)
THREADS = (1, 2)


def seconds(work: Callable[[], object]) -> float:
    """Return the time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(n: int, d: int, M: int, repeats: int) -> None:
    """Run both in turn and print one line of the table."""
    X = np.random.default_rng(0).standard_normal((n, d))
    part = RandomFeatures("gaussian", d, d**0.5, seed=1)
    omega, _ = part.weights(0, M)
    pairs = [
        (
            seconds(lambda: X @ omega.T),
            seconds(lambda: part.angles(X, 0, M, 16)),
            seconds(lambda: part.weights(0, M)),
        )
        for _ in range(repeats + 1)
    ][1:]  # the first warms up
    plain, angles, weights = (
        1e3 * statistics.median(times) for times in zip(*pairs, strict=True)
    )
    ratio = statistics.median(pair[1] / pair[0] for pair in pairs)
    print(f"{d:7}{plain:11.1f}{angles:11.1f}{weights:14.1f}{ratio:9.2f} x", flush=True)


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--threads", type=int, help="used by the script itself")
    args = parser.parse_args()
    if args.threads is None:
        for threads in THREADS:
            number = str(threads)
            subprocess.run(
                [sys.executable, *sys.argv, "--threads", number],
                check=True,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": number,
                    "OPENBLAS_NUM_THREADS": number,
                    "MKL_NUM_THREADS": number,
                },
            )
        return
    print(f"\n{args.rows} rows, {args.features} features, {args.threads} BLAS threads")
    print("columns   plain ms  angles ms  of that draw    ratio")
    for d in COLUMNS:
        compare(args.rows, d, args.features, args.repeats)


if __name__ == "__main__":
    main()
