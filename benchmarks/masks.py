"""Speed of masks compared with a plain NumPy sum, on one thread.

Run ``OMP_NUM_THREADS=1 python benchmarks/masks.py [MEGABYTES]``. Megabytes are 10^6
bytes of group elements; for the mask, of the key streams of all other parties. The last
column of the circle's table is the ratio to the time that NumPy takes to add two arrays
of the size of the message.
"""

import sys
from collections.abc import Callable
from time import perf_counter

import numpy as np

from vfl_flower.secure_aggregation import (
    PairwiseMasks,
    Relay,
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


def row(what: str, n_bytes: float, time: float, plain: float = 0.0) -> None:
    """Print one line of a table."""
    speed = f"{n_bytes / time / 1e6:.0f}" if n_bytes else ""
    ratio = f"{time / plain:.1f}" if plain else ""
    print(f"{what:<44}{1e3 * time:>11.3f}{speed:>8}{ratio:>9}")


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
    print(f"{'':<44}{'ms':>11}{'MB/s':>8}")
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


def circle_table(parties: int, elements: Array) -> None:
    """Print the table of 16-bit angles that are elements already."""
    count, size = len(elements), elements.nbytes
    private = [new_private_key() for _ in range(parties)]
    public = [public_key(key) for key in private]
    masks = PairwiseMasks(private[0], public, 0, 1)
    relay = Relay(private[0], public, 0, 1)
    context = ("action", "name", 0)
    circle = group("circle16", 1.0, parties)
    terms = [elements.copy() for _ in range(parties)]
    total, message = elements.copy(), elements.tobytes()
    sealed = relay.seal(0, message, *context)

    print(f"\n{parties} parties, circle16, {count} elements, {size / 1e6:.0f} MB")
    print(f"{'':<44}{'ms':>11}{'MB/s':>8}{'x NumPy':>9}")
    plain = seconds(lambda: np.add(elements, terms[0]))
    work: list[tuple[str, int, Callable[[], object]]] = [
        (
            "mask (a party)",
            (parties - 1) * size,
            lambda: masked(elements, circle, masks, *context),
        ),
        ("pad (its owner)", size, lambda: masks.pad(circle, count, *context)),
        (
            "pad off, in place (its owner)",
            size,
            lambda: circle.subtract(
                total, masks.pad(circle, count, *context), out=total
            ),
        ),
        ("add (server)", parties * size, lambda: unmask_sum(terms, circle)),
        ("seal (a party)", size, lambda: relay.seal(0, message, *context)),
        ("open (a party)", size, lambda: relay.open(0, sealed, *context)),
    ]
    row("NumPy sum of two such arrays", size, plain, plain)
    for what, n_bytes, step in work:
        row(what, n_bytes, seconds(step), plain)


def main(megabytes: float) -> None:
    """Print the tables for each number of parties."""
    rng = np.random.default_rng(0)
    values = rng.uniform(-1, 1, int(megabytes * 1e6) // 8)
    elements = rng.integers(2**16, size=int(megabytes * 1e6) // 2, dtype=np.uint16)
    for parties in (2, 3, 5):
        table(parties, values)
        circle_table(parties, elements)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 64.0)
