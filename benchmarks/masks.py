"""Speed of masks beside the plain NumPy sum, on one thread.

Run ``OMP_NUM_THREADS=1 python benchmarks/masks.py [MEGABYTES]``. Gigabytes are 10^9
bytes of group elements; for the mask, of the key streams of all other parties.
"""

import sys
from collections.abc import Callable
from time import perf_counter

import numpy as np

from vfl_flower.secure_aggregation import (
    PairwiseMasks,
    group,
    masked,
    new_private_key,
    public_key,
    unmask_sum,
)
from vfl_flower.typing import Array

REPEATS = 5


def seconds(work: Callable[[], object]) -> float:
    """Return the best time of a few calls: the one least disturbed."""
    times = []
    for _ in range(REPEATS):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return min(times)


def row(what: str, n_bytes: float, time: float) -> None:
    """Print one line of the table."""
    speed = f"{n_bytes / time / 1e9:.2f}" if n_bytes else ""
    print(f"{what:<44}{1e3 * time:>11.3f}{speed:>8}")


def table(parties: int, values: Array) -> None:
    """Print the table of one number of parties."""
    count = len(values)
    private = [new_private_key() for _ in range(parties)]
    public = [public_key(key) for key in private]
    masks = PairwiseMasks(private[0], public, 0, 1)
    context = ("action", "name", 0)
    plain, ring = group("plain", 1.0, parties), group("ring", 1.0, parties)
    terms = [values.copy() for _ in range(parties)]
    elements = [ring.encode(values)[0] for _ in range(parties)]

    print(f"\n{parties} parties, {count} values")
    print(f"{'':<44}{'ms':>11}{'GB/s':>8}")
    work: list[tuple[str, int, Callable[[], object]]] = [
        (
            "agree on keys, once a run (a party)",
            0,
            lambda: PairwiseMasks(private[0], public, 0, 1),
        ),
        ("mask of one value (a party)", 0, lambda: masks.mask(ring, 1, *context)),
        (
            "mask (a party)",
            (parties - 1) * count,
            lambda: masks.mask(ring, count, *context),
        ),
        ("encode (a party)", count, lambda: ring.encode(values)),
        (
            "encode and mask (a party)",
            count,
            lambda: masked(values, ring, masks, *context),
        ),
        (
            "encode, plain (a party)",
            count,
            lambda: masked(values, plain, None, *context),
        ),
        (
            "add and decode (server)",
            parties * count,
            lambda: unmask_sum(elements, ring),
        ),
        ("add, plain (server)", parties * count, lambda: unmask_sum(terms, plain)),
        ("NumPy sum of the same arrays", parties * count, lambda: sum(terms)),
    ]
    for what, n, step in work:
        row(what, 8 * n, seconds(step))


def main(megabytes: float) -> None:
    """Print one table for each number of parties."""
    values = np.random.default_rng(0).uniform(-1, 1, int(megabytes * 1e6) // 8)
    for parties in (2, 3, 5):
        table(parties, values)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 64.0)
