"""Kernel models from sums of products: seconds and memory of each role in real runs.

``OMP_NUM_THREADS=1 python benchmarks/kernel_moments.py``: for some numbers of rows,
joint features and parties the seconds of processor and the largest memory of each role,
and how many times the seconds those of the fit of pooled features in NumPy are. Each
party answers in a process of its own, with messages that are packed, sealed and opened
as on SuperNodes. ``--quick`` leaves out the largest.

``VFL_FLOWER_DATA=FOLDER python benchmarks/kernel_moments.py --data kc_house``: the test
error and the choice of a data set of that folder, split among three parties.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
from collections.abc import Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage

from vfl_flower import FDSKL, Party, simulate
from vfl_flower.numerics.gram_fit import Block, fit_grams
from vfl_flower.simulation import InProcessGrid
from vfl_flower.typing import Array

SIZES = [(4096, 256, 2), (4096, 256, 3), (8192, 512, 3), (16384, 1536, 3)]


def memory() -> float:
    """Return the largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Processes(InProcessGrid):
    """Parties that answer each in a process of its own."""

    def __init__(self, parties: Sequence[Party]) -> None:
        super().__init__(parties)
        fork = multiprocessing.get_context("fork")
        self.ends: dict[int, Connection] = {}
        for node in self._contexts:
            self.ends[node], end = fork.Pipe()
            fork.Process(target=self._serve, args=(node, end), daemon=True).start()

    def _serve(self, node: int, end: Connection) -> None:
        while data := end.recv_bytes():
            message = message_from_proto(ProtoMessage.FromString(data))
            del data
            reply = self._app(message, self._contexts[node])
            reply.metadata.__dict__["_message_id"] = "reply"
            end.send_bytes(message_to_proto(reply).SerializeToString())
        end.send([process_time(), memory()])

    def _push(self, message: Message) -> str:
        self._pushed += 1
        number = f"message-{self._pushed}"
        message.metadata.__dict__["_message_id"] = number
        end = self.ends[message.metadata.dst_node_id]
        end.send_bytes(message_to_proto(message).SerializeToString())
        reply = ProtoMessage.FromString(end.recv_bytes())
        self._replies[number] = message_from_proto(reply)
        return number

    def ended(self) -> list[Any]:
        """Return the seconds and the memory of each party."""
        for end in self.ends.values():
            end.send_bytes(b"")
        return [end.recv() for end in self.ends.values()]


def pooled(rows: int, columns: int) -> float:
    """Return the seconds of the Gram matrices and the fit of pooled features."""
    rng = np.random.default_rng(0)
    F = rng.standard_normal((rows, columns + 2))
    F[:, -1] = 1.0
    start = process_time()
    grams = [half.T @ half for half in np.split(F, 2)]
    thirds = np.linspace(0, columns, 4).astype(int).tolist()
    blocks = [Block("", a, b) for a, b in pairwise(thirds)]
    fit_grams(grams, blocks, "continuous")
    return process_time() - start


def roles(rows: int, features: int, count: int) -> None:
    """Print seconds and memory of each role of one run."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 12))
    y = np.sin(X).sum(axis=1) + 0.1 * rng.normal(size=rows)
    parties = [
        Party(block, y if j == 0 else None)
        for j, block in enumerate(np.array_split(X, count, axis=1))
    ]
    before = memory()
    grid = Processes(parties)
    # Half of the columns are local ones, where the rows allow no more.
    strategy = FDSKL(solver="moments", target="continuous", features=features)
    start, wall = process_time(), perf_counter()
    result = strategy.start(grid)
    wall = perf_counter() - wall
    server = [process_time() - start, memory()]
    local = result.metrics["local_columns"]
    plain = pooled(rows, features + local)
    print(
        f"{rows} rows, {features} joint and {local} local features, {count} parties: "
        f"NumPy {plain:.1f} s, {result.ledger.round_trips} round trips, {wall:.0f} s"
    )
    names = ["label holder", "second party", *["another party"] * (count - 2)]
    used = dict(zip(names, grid.ended(), strict=True)) | {"server, dealing": server}
    entries = result.ledger.entries.values()
    for name, (seconds, megabytes) in used.items():
        members = parties_of(name, names)
        sent = sum(e.bytes_up for e in entries if e.party in members)
        each = sent / max(1, len(members)) / rows / (features + local)
        print(
            f"  {name:<16}{seconds:>7.1f} s{seconds / plain:>6.1f} x"
            f"{megabytes - before:>7.0f} MB"
            + (f"{each:>6.1f} bytes a feature and row" if members else "")
        )


def parties_of(name: str, names: Sequence[str]) -> set[str]:
    """Return what the ledger calls the parties of a role."""
    return {f"party-{j}" for j, role in enumerate(names) if role == name}


def data(folder: Path, name: str, target: str, seeds: int) -> None:
    """Print the test error on a data set."""
    with np.load(folder / f"{name}.npz") as file:
        X, y = file["X"].astype(float), file["y"].astype(float)
    order = np.random.default_rng(1).permutation(X.shape[1])
    blocks: list[Array] = np.array_split(X[:, order], 3, axis=1)
    parties = [Party(b, y if j == 2 else None) for j, b in enumerate(blocks)]
    for seed in range(seeds):
        start = perf_counter()
        strategy = FDSKL(solver="moments", target=target, test_fraction=0.2)
        metrics = simulate(strategy, parties, seed=seed).metrics
        shown = dict(metrics)
        if target == "continuous":
            shown["over variance"] = metrics["test_loss"] / y.var()
        print(f"{name}, seed {seed}: {shown}, {perf_counter() - start:.0f} s")


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data", default="")
    parser.add_argument("--target", default="continuous")
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    if options.data:
        folder = Path(os.environ["VFL_FLOWER_DATA"])
        data(folder, options.data, options.target, options.seeds)
        return
    fork = multiprocessing.get_context("fork")
    for size in SIZES[: 3 if options.quick else None]:
        run = fork.Process(target=roles, args=size)  # so the memory is of this run
        run.start()
        run.join()


if __name__ == "__main__":
    main()
