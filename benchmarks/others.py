"""Other systems for split columns, beside ours, on house prices of three parties.

``VFL_FLOWER_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/others.py SYSTEM`` prints a
row of a table: the mean squared error on held-out rows, over their variance; the number
of messages that wait for one another; the bytes that all parties send; and the seconds
of all parties on one machine. The systems:

- *ours*: ``CoresetVRLR`` and ``SecureRidge`` at their defaults, in one process;
- *spu*: ridge regression in SecretFlow's SPU between two parties: normal equations, and
  conjugate gradients on them. SPU counts messages and bytes itself; the shares of its
  inputs are added;
- *xgboost*: XGBoost's own vertical federated training, which NVFlare starts, without
  encryption. Bytes and calls are counted between the parties and its server;
- *split*: a split network with the layers, the optimiser and the rounds of Flower's
  example *vertical-fl*, for a number instead of two classes. Only the bytes of arrays
  are counted.

Each of the last three systems needs a separate environment: ``pip install spu``, ``pip
install xgboost scikit-learn`` and ``pip install torch``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np

PARTIES = 3
SYSTEMS = ("ours", "spu", "xgboost", "split")

STEPS = 30
"""Conjugate gradients of ridge regression."""

TREES = {"eta": 0.1, "max_depth": 6, "tree_method": "hist", "nthread": 1}
"""Settings of XGBoost, with 200 trees."""

EPOCHS, EMBEDDED = 250, 64
"""Rounds of the split network, and number of values that a party sends per row."""


@dataclass(frozen=True)
class Rows:
    """Standardised rows, with a block of columns for each party."""

    train: list[Any]
    y: Any
    test: list[Any]
    y_test: Any

    def error(self, predicted: Any) -> float:
        """Return the mean squared error over the variance."""
        return float(np.mean((self.y_test - predicted) ** 2) / self.y_test.var())


def load(seed: int) -> Rows:
    """Return four rows in five for training, and the other rows."""
    file = np.load(Path(os.environ["VFL_FLOWER_DATA"]) / "kc_house.npz")
    X, y = file["X"].astype(float), file["y"].astype(float)
    rows = np.random.default_rng(100 + seed).permutation(len(y))
    train, test = np.split(rows, [int(0.8 * len(y))])
    X = (X - X[train].mean(0)) / X[train].std(0)
    y = (y - y[train].mean()) / y[train].std()
    blocks = np.array_split(X, PARTIES, axis=1)
    return Rows(
        [b[train] for b in blocks], y[train], [b[test] for b in blocks], y[test]
    )


def say(
    name: str, error: float, messages: int | str, sent: float, start: float
) -> None:
    """Print a row of the table."""
    seconds = time.perf_counter() - start
    print(
        f"| {name} | {error:.3f} | {messages:,} | {sent / 1e6:,.1f} | {seconds:.0f} |"
    )


def ours(seed: int) -> None:
    """Train our strategies at their defaults."""
    import vfl_flower as vf

    rows = load(seed)
    last = PARTIES - 1
    for strategy in (
        vf.CoresetVRLR(sampling="full"),
        vf.CoresetVRLR(size=2000),
        vf.SecureRidge(target="continuous"),
    ):
        parties = [
            vf.Party(block, rows.y if j == last else None)
            for j, block in enumerate(rows.train)
        ]
        start = time.perf_counter()
        result = vf.simulate(strategy, parties, seed=seed)
        predicted = np.ravel(result.model.predict(rows.test))
        ledger = result.ledger
        name = f"{type(strategy).__name__}, {strategy.variant}"
        error = rows.error(predicted)
        say(name, error, ledger.round_trips, ledger.bytes_up, start)


def spu(seed: int) -> None:
    """Solve ridge regression under shares of two parties."""
    run = [sys.executable, __file__, "spu", "--seed", f"{seed}", "--worker"]
    start = time.perf_counter()
    done = subprocess.run(run, check=True, capture_output=True, text=True)
    # Its log counts the messages of the first party; the other sends as many.
    log = done.stdout + done.stderr
    sent, messages = re.search(
        r"Link details: total send bytes (\d+),.* send actions (\d+),", log
    ).groups()
    error, inputs = re.search(r"RESULT (\S+) (\d+)", log).groups()
    total = 2 * int(sent) + int(inputs)
    say("SPU, ridge regression", float(error), int(messages), total, start)


def spu_worker(seed: int) -> None:
    """Run in a separate process, whose log is read."""
    import jax.numpy as jnp
    from spu import libspu
    from spu.utils import simulation

    rows = load(seed)
    config = libspu.RuntimeConfig(
        protocol=libspu.ProtocolKind.SEMI2K, field=libspu.FieldType.FM128
    )
    config.fxp_fraction_bits, config.enable_pphlo_profile = 40, True

    def fit(y: Any, *blocks: Any) -> Any:
        X = jnp.concatenate(blocks, axis=1)
        gram, r = X.T @ X / len(y), X.T @ y / len(y)
        theta, p, square = jnp.zeros(len(r)), r, r @ r
        for _ in range(STEPS):
            product = gram @ p + 1e-4 * p
            step = square / (p @ product)
            theta, r = theta + step * p, r - step * product
            before, square = square, r @ r
            p = r + square / before * p
        return theta

    simulator = simulation.Simulator(2, config)
    theta = simulation.sim_jax(simulator, fit)(rows.y, *rows.train)
    error = rows.error(np.hstack(rows.test) @ np.asarray(theta))
    inputs = 16 * rows.y.size + sum(16 * block.size for block in rows.train)
    print(f"RESULT {error} {inputs}", flush=True)


@dataclass
class Proxy:
    """A proxy between parties and a server that counts calls and bytes."""

    server: int
    sent: int = 0
    calls: int = 0
    listener: socket.socket = field(
        default_factory=lambda: socket.create_server(("127.0.0.1", 0))
    )

    @property
    def port(self) -> int:
        """The port to which parties connect."""
        return int(self.listener.getsockname()[1])

    def serve(self) -> None:
        """Accept connections, each in its own threads."""
        while True:
            party, _ = self.listener.accept()
            server = socket.create_connection(("127.0.0.1", self.server))
            for ends in ((party, server, True), (server, party, False)):
                threading.Thread(target=self._copy, args=ends, daemon=True).start()

    def _copy(self, source: socket.socket, to: socket.socket, counts: bool) -> None:
        frames, skip = b"", 24  # the preface of HTTP/2
        while received := source.recv(2**16):
            to.sendall(received)
            if not counts:
                continue
            self.sent += len(received)
            frames += received
            while len(frames) >= skip + 9:
                length, kind = int.from_bytes(frames[skip : skip + 3]), frames[skip + 3]
                self.calls += kind == 1  # its headers begin a call
                frames, skip = frames[skip + 9 :], length
            drop = min(skip, len(frames))
            frames, skip = frames[drop:], skip - drop
        to.close()


def xgboost_server(port: int) -> None:
    """Serve the parties."""
    from xgboost.federated import run_federated_server

    run_federated_server(n_workers=PARTIES, port=port)


def xgboost_party(rank: int, port: int, seed: int, errors: Queue[float]) -> None:
    """Train with the columns of a party; the first party has the labels."""
    import xgboost

    rows = load(seed)
    with xgboost.collective.CommunicatorContext(
        dmlc_communicator="federated",
        federated_server_address=f"localhost:{port}",
        federated_world_size=PARTIES,
        federated_rank=rank,
    ):
        y = rows.y if rank == 0 else None
        train = xgboost.DMatrix(rows.train[rank], y, data_split_mode=1)
        model = xgboost.train(TREES, train, num_boost_round=200)
        test = xgboost.DMatrix(rows.test[rank], data_split_mode=1)
        predicted = model.predict(test)
        if rank == 0:
            errors.put(rows.error(predicted))


def xgboost(seed: int) -> None:
    """Train in processes of three parties and a server."""
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = context.Process(target=xgboost_server, args=(port,), daemon=True)
    server.start()
    proxy, errors = Proxy(port), context.Queue()
    while server.is_alive():
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            time.sleep(0.1)  # the server has not started yet
    threading.Thread(target=proxy.serve, daemon=True).start()
    start = time.perf_counter()
    parties = [
        context.Process(target=xgboost_party, args=(rank, proxy.port, seed, errors))
        for rank in range(PARTIES)
    ]
    for party in parties:
        party.start()
    error = errors.get()
    for party in parties:
        party.join()
    calls = proxy.calls // PARTIES
    say("XGBoost, vertical", error, calls, proxy.sent, start)
    server.terminate()


def split(seed: int) -> None:
    """Train a split network: parties send embeddings, the server sends gradients."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    rows = load(seed)
    train, test = (
        [torch.tensor(block, dtype=torch.float32) for block in blocks]
        for blocks in (rows.train, rows.test)
    )
    y = torch.tensor(rows.y, dtype=torch.float32)[:, None]
    bottoms = [
        nn.Sequential(
            nn.Linear(block.shape[1], 128), nn.ReLU(), nn.Linear(128, EMBEDDED)
        )
        for block in train
    ]
    top = nn.Sequential(
        *(nn.Linear(PARTIES * EMBEDDED, 96), nn.ReLU(), nn.BatchNorm1d(96)),
        nn.Linear(96, 1),
    )
    networks = [top, *bottoms]
    optimisers = [torch.optim.Adam(n.parameters(), lr=0.01) for n in networks]
    start, sent = time.perf_counter(), 0
    for _ in range(EPOCHS):
        embedded = [b(block) for b, block in zip(bottoms, train, strict=True)]
        loss = nn.functional.mse_loss(top(torch.hstack(embedded)), y)
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
        sent += sum(4 * e.numel() for e in embedded)
    top.eval()
    with torch.no_grad():
        f = top(torch.hstack([b(t) for b, t in zip(bottoms, test, strict=True)]))
    say("split network", rows.error(f.numpy()[:, 0]), 2 * EPOCHS, sent, start)


def main() -> None:
    """Measure one system."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    systems = {"ours": ours, "spu": spu, "xgboost": xgboost, "split": split}
    (spu_worker if args.worker else systems[args.system])(args.seed)


if __name__ == "__main__":
    main()
