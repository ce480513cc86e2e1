"""Seconds, bytes and memory of one training run, with each party in its own process.

``python benchmarks/capacity.py STRATEGY --rows N --columns D --parties T`` trains on
generated rows, N x D at all parties together, and prints a row of the tables of
docs/capacity.md: round trips; processor seconds of the busiest party and of the server;
megabytes that the busiest party sends, and that all parties send and receive; and the
maximum growth of resident memory, beyond Python and Flower, of the largest party and of
the server.

    OMP_NUM_THREADS=1 python benchmarks/capacity.py coreset-vrlr --rows 1000000
"""

from __future__ import annotations

import argparse
import logging
from time import process_time

import numpy as np
from processes import ProcessGrid, peak, start

from vfl_flower import Party
from vfl_flower.strategies import ALGORITHMS

ROWS = {"fk-kmeans", "mufc"}
"""Strategies whose parties hold rows, not columns."""

GROUPS = 10
"""Groups of the generated rows."""


def party(index: int, rows: int, columns: int, kind: str, labels: bool) -> Party:
    """Return one party with generated rows, around the same centres at all parties."""
    centres = np.random.default_rng(7).normal(scale=3, size=(GROUPS, columns))
    by_rows = kind in ROWS
    group = np.random.default_rng(index if by_rows else 0).integers(GROUPS, size=rows)
    X = centres[group] + np.random.default_rng(1 + index).normal(size=(rows, columns))
    if kind == "mufc":
        X /= 2 * np.abs(centres).max() + 12
    y = X[:, 0] > 0 if labels and kind != "coreset-vrlr" else X.sum(axis=1)
    return Party(X, y if labels else None, index=index, name=f"p{index}")


def main() -> None:
    """Train, and print a row of a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("strategy", choices=ALGORITHMS)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--parties", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    logging.getLogger("vfl_flower").setLevel(logging.ERROR)
    n, d, parties = options.rows, options.columns, options.parties
    kind = options.strategy
    settings = {}
    for text in options.set:
        name, _, value = text.partition("=")
        settings[name] = int(value) if value.isdigit() else value
    each = (n // parties, d) if kind in ROWS else (n, d // parties)
    pipes = start(
        party,
        [
            (index, *each, kind, kind not in ROWS and index == parties - 1)
            for index in range(parties)
        ],
    )
    strategy = ALGORITHMS[kind][0](**settings)
    grid = ProcessGrid(pipes)
    before, begun = peak(), process_time()
    result = strategy.start(grid)
    seconds, memory = [process_time() - begun], [peak() - before]
    for pipe in pipes:
        pipe.send_bytes(b"")
        size, most, taken = pipe.recv()
        memory.append(size + max(most.values()))
        seconds.append(taken)
    sent: dict[str, int] = {}
    for (_, name), entry in result.ledger.entries.items():
        sent[name] = sent.get(name, 0) + entry.bytes_up
    total = result.ledger.bytes_up + result.ledger.bytes_down
    cells = [kind, f"{n:,} x {d}", parties, result.ledger.round_trips]
    cells += [f"{max(seconds[1:]):.1f}", f"{seconds[0]:.1f}"]
    cells += [f"{max(sent.values()) / 1e6:.2f}", f"{total / 1e6:.2f}"]
    cells += [f"{max(memory[1:]):.0f}", f"{memory[0]:.0f}"]
    print("|", " | ".join(map(str, cells)), "|", *options.set)


if __name__ == "__main__":
    main()
