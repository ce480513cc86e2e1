"""Show that communication does not depend on the number of rows.

``python benchmarks/coresets_scaling.py``: bytes on the wire through ``simulate`` for
n = 10^4, 10^5 and 10^6 rows at a fixed coreset size. Exits with 1 if, for any strategy,
the largest number is more than 1 % above the smallest.
"""

import argparse
import logging
import sys

import numpy as np

from vfl_flower import Party
from vfl_flower.simulation import simulate
from vfl_flower.strategies import CoresetVKMC, CoresetVRLR

TOLERANCE = 0.01


def main() -> None:
    """Parse the arguments and run.

    Raises
    ------
    SystemExit
        With 1 where bytes differ by more than 1 %.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    parser.add_argument("--d", type=int, default=12, help="columns in all")
    parser.add_argument("--parties", type=int, default=3)
    parser.add_argument("--size", type=int, default=1000, help="rows of the coreset")
    args = parser.parse_args()
    logging.getLogger("vfl_flower").setLevel(logging.ERROR)  # cg is cut short below
    strategies = {
        "regression, fused": CoresetVRLR(size=args.size, solver="central"),
        "regression, paper": CoresetVRLR(
            size=args.size, rounds="paper", solver="central"
        ),
        # A fixed number of iterations, which would otherwise vary with the data.
        "regression, cg": CoresetVRLR(size=args.size, solver="cg", max_iter=5, tol=0),
        "regression, uniform": CoresetVRLR(
            size=args.size, sampling="uniform", solver="central"
        ),
        "k-means, fused": CoresetVKMC(
            n_clusters=10, size=args.size, local_clustering="seeding"
        ),
        "k-means, distdim": CoresetVKMC(
            n_clusters=10, size=args.size, solver="distdim", local_clustering="seeding"
        ),
    }
    bytes_: dict[str, list[int]] = {name: [] for name in strategies}
    for n in args.n:
        rng = np.random.default_rng(0)
        X = rng.standard_normal((n, args.d))
        y = X.sum(axis=1) + rng.standard_normal(n)
        parties = [Party(part) for part in np.array_split(X, args.parties, axis=1)]
        parties[-1] = Party(parties[-1].X, y=y)
        for name, strategy in strategies.items():
            ledger = simulate(strategy, parties, seed=0).ledger
            bytes_[name].append(ledger.bytes_up + ledger.bytes_down)
    print(f"bytes up and down; d = {args.d}, T = {args.parties}, m = {args.size}")
    print(f"{'n':22}" + "".join(f"{n:>12,}" for n in args.n) + "  largest / smallest")
    for name, counts in bytes_.items():
        print(
            f"{name:22}"
            + "".join(f"{count:12,}" for count in counts)
            + f"{max(counts) / min(counts):20.5f}"
        )
    ratios = [max(counts) / min(counts) for counts in bytes_.values()]
    sys.exit(int(max(ratios) > 1 + TOLERANCE))


if __name__ == "__main__":
    main()
