"""Seconds, memory and bytes of an alignment, on the processors of this machine.

Run ``python benchmarks/alignment.py [IDS] [PARTIES ..] [--keyed]``; the default is 10^5
ids at each of 2, 3 and 5 parties. All parties run in this process, one after the other,
so their seconds are added up; on separate machines, parties work at the same time.
Bytes are the bytes that each party sends and receives.
"""

import logging
import resource
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

import vfl_flower as vf
from vfl_flower.clients.alignment import KEY_FILE
from vfl_flower.simulation import InProcessGrid


def parties(count: int, n: int, folder: Path) -> list[vf.Party]:
    """Return parties; any two of them share about nine tenths of their ids."""
    rng, made = np.random.default_rng(0), []
    for j in range(count):
        state_dir = folder / f"p{j}"
        state_dir.mkdir(mode=0o700)
        (state_dir / KEY_FILE).touch(mode=0o600)
        (state_dir / KEY_FILE).write_bytes(bytes(32))
        numbers = rng.choice(n + n // 9, n, replace=False)
        ids = np.array([f"2026-{k:08}" for k in numbers.tolist()])
        party = vf.Party(np.zeros((n, 1)), ids=ids, name=f"p{j}", state_dir=state_dir)
        made.append(party)
    return made


def row(count: int, n: int, method: str) -> None:
    """Align, compare with Python's sets, and print one line of the table."""
    with tempfile.TemporaryDirectory() as folder:
        federation = parties(count, n, Path(folder))
        grid = InProcessGrid(federation)
        start = perf_counter()
        result = vf.Alignment("benchmark", method=method).start(grid)
        seconds = perf_counter() - start
        rows = [memory.remembered("rows") for memory in grid.memories()]
        common = [
            party.ids[k].tolist() for party, k in zip(federation, rows, strict=True)
        ]
    assert all(ids == common[0] for ids in common)
    assert set(common[0]) == set.intersection(
        *(set(p.ids.tolist()) for p in federation)
    )
    ledger = result.ledger
    computed = sum(entry.seconds_computed for entry in ledger.entries.values())
    sent, got = ledger.bytes_up / count / 1e6, ledger.bytes_down / count / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(
        f"{method:>6}{count:>9}{n:>10}{len(common[0]):>10}{ledger.round_trips:>7}"
        f"{seconds:>10.1f}{computed / count:>13.1f}{peak:>9.0f}"
        f"{sent:>10.1f}{got:>10.1f}",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    logging.getLogger("vfl_flower").setLevel(logging.ERROR)
    numbers = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    n = numbers[0] if numbers else 10**5
    method = "keyed" if "--keyed" in sys.argv else "ecdh"
    print(
        f"{'method':>6}{'parties':>9}{'ids':>10}{'common':>10}{'trips':>7}"
        f"{'seconds':>10}{'s a party':>13}{'MiB':>9}{'MB up':>10}{'MB down':>10}"
    )
    for count in numbers[1:] or [2, 3, 5]:
        row(count, n, method)


if __name__ == "__main__":
    main()
