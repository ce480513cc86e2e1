"""What a checkpoint and the state of a session on the parties' disks cost.

Runs in one process with three parties that keep their folders, with and without the
file of the server::

    OMP_NUM_THREADS=1 python benchmarks/checkpoint.py
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from deviating import RealParties

from vfl_flower import FDSKL, CoresetVRLR, FKKMeans, Party
from vfl_flower.protocol.checkpoint import FILE, Checkpoint
from vfl_flower.protocol.journal import FILE as JOURNAL
from vfl_flower.protocol.journal import Journal

CASES = {
    "coreset-vrlr": CoresetVRLR(size=2000, test_fraction=0.0, solver="central"),
    "coreset-vrlr, cg": CoresetVRLR(size=2000, solver="cg", max_iter=20),
    "fdskl": FDSKL(
        solver="direct", loss="square", target="continuous", budget=16_000_000
    ),
    "fk-kmeans": FKKMeans(5, n_components=10, iterations=3),
}


def main() -> None:
    """Print bytes and milliseconds a round trip."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=21_000)
    n = parser.parse_args().rows
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 12))
    y = X.sum(axis=1)
    for name, strategy in CASES.items():
        split = np.split(X, 3) if "kmeans" in name else np.split(X, 3, axis=1)
        labels = [None, None, None if "kmeans" in name else y]
        with tempfile.TemporaryDirectory() as base:
            folder = Path(base)
            parties = [
                Party(B, own, name=who, state_dir=folder / who)
                for who, B, own in zip("abc", split, labels, strict=True)
            ]
            seconds, sizes, kept = [], [], []
            close, keep = Checkpoint.close, Journal.keep

            def timed(self, *entry, close=close, sizes=sizes):
                close(self, *entry)
                sizes.append(self._path.stat().st_size)

            def add(self, *entry, add=Checkpoint.add, seconds=seconds):
                start = time.perf_counter()
                add(self, *entry)
                seconds.append(time.perf_counter() - start)

            def keeping(self, memory, keep=keep, kept=kept):
                start = time.perf_counter()
                keep(self, memory)
                kept.append(time.perf_counter() - start)

            with (
                mock.patch.object(Checkpoint, "close", timed),
                mock.patch.object(Checkpoint, "add", add),
                mock.patch.object(Journal, "keep", keeping),
            ):
                start = time.perf_counter()
                checkpoint = Checkpoint(folder / FILE)
                strategy.start(RealParties(parties), checkpoint=checkpoint)
                whole = time.perf_counter() - start
            trips = len(sizes)
            journals = [(folder / who / JOURNAL).stat().st_size for who in "abc"]
            print(
                f"{name}: {trips} round trips in {whole:.2f} s; checkpoint "
                f"{sizes[-1] / 1e6:.2f} MB, {1e3 * sum(seconds) / trips:.1f} ms a "
                "round trip to add replies; party: journal "
                f"{max(journals) / 1e6:.2f} MB, "
                f"{1e3 * np.mean(kept):.1f} ms a message (most {1e3 * max(kept):.1f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
