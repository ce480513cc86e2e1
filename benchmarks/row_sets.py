"""What the guard of row sets costs: a check against many known sets of many rows.

python benchmarks/row_sets.py --rows 1000000 --sets 1000
"""

from __future__ import annotations

import argparse
import resource
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from vfl_flower import Party
from vfl_flower.protocol.consent import Consent
from vfl_flower.protocol.row_sets import RowSets, confirm_journal
from vfl_flower.typing import Array


def main(rows: int, sets: int, repeats: int) -> None:
    """Print the milliseconds of each kind of check, and the largest memory."""
    rng = np.random.default_rng(0)
    party = Party(
        np.zeros((rows, 1)), ids=np.arange(rows), consent=Consent(), checked=True
    )
    party.names = ["a", "b", "c"]
    everything = np.arange(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite"
        confirm_journal(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as db:

            def check(chosen: Array | None, weights: Array | None = None) -> float:
                """Return the seconds of one check, as in a new message."""
                db.execute("BEGIN IMMEDIATE")
                start = time.perf_counter()
                guard = RowSets(db, path, party, bytes(32))
                guard.check(chosen, weights, by_choice=False)
                seconds = time.perf_counter() - start
                db.execute("COMMIT")
                return seconds

            def report(what: str, seconds: list[float]) -> None:
                middle, most = 1e3 * np.median(seconds), 1e3 * max(seconds)
                print(f"{what:44} {middle:8.1f} ms, at most {most:.1f}", flush=True)

            report("all rows, the first time (tags of all ids)", [check(None)])
            half = np.sort(rng.permutation(rows)[: rows // 2])
            first = [check(everything[rng.random(rows) < 0.8]) for _ in range(sets - 1)]
            report(f"new set of 80 %, up to {sets} known", first[-20:])
            again = [check(half) for _ in range(repeats)]
            report("known set of half of the rows", again[1:])
            report("all rows again", [check(None) for _ in range(repeats)])
            report(
                "new set of half of the rows",
                [check(everything[rng.random(rows) < 0.5]) for _ in range(repeats)],
            )
            few = min(2000, rows // 4)
            report(
                f"new coreset of {few} rows with weights",
                [
                    check(rng.integers(0, rows, few), rng.gamma(2, size=few))
                    for _ in range(repeats)
                ],
            )
            print(f"journal: {path.stat().st_size / 1e6:.0f} MB")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"largest memory of the process: {peak:.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=10)
    main(**vars(parser.parse_args()))
