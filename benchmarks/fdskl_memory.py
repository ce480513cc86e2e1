"""Peak memory of a party that trains a kernel model and predicts with it.

Each party is a process of its own, as on a SuperNode: it makes its data, gets the
serialised messages of a whole training and of a whole prediction of all rows, and says
how much its resident memory grew at most (``ru_maxrss``, which counts the interpreter,
Flower and NumPy too: they are subtracted, as read just before the first message).

    python benchmarks/fdskl_memory.py --rows 500000 --columns 90
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from flwr.app import Context, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.supercore.task_identity import TaskIdentity

from vfl_flower import Party
from vfl_flower.client_app import make_client_app
from vfl_flower.simulations import InProcessGrid
from vfl_flower.strategies import FDSKL, FDSKLPrediction

PARTIES = 3
MB = 2**20


def data(rows: int, columns: int, index: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the columns of one party, and labels at the last."""
    rng = np.random.default_rng(index)
    X = rng.standard_normal((rows, columns // PARTIES))
    y = np.sign(X[:, 0] * X[:, 1]) if index == PARTIES - 1 else None
    return X, y


def peak() -> float:
    """Return the largest resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB


def serve(pipe: Connection, index: int, rows: int, columns: int, folder: str) -> None:
    """Answer messages until there is none, then say how much memory it took."""
    import vfl_flower.numerics.kernel_solvers  # noqa: F401  # part of the baseline

    X, y = data(rows, columns, index)
    party = Party(X, y=y, index=index, name=f"p{index}", state_dir=Path(folder))
    app = make_client_app(lambda context: party)
    context = Context(1, 1000 + index, {}, RecordDict(), {})
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    before = peak()
    most: dict[str, float] = {}
    while message := pipe.recv_bytes():
        arrived = message_from_proto(MessageProto.FromString(message))
        del message
        action = arrived.metadata.message_type
        reply = app(arrived, context)
        reply.metadata.__dict__["_message_id"] = "reply"
        pipe.send_bytes(message_to_proto(reply).SerializeToString())
        del arrived, reply
        most.setdefault(action, 0.0)
        most[action] = max(most[action], peak() - before)
    pipe.send((X.nbytes / MB, most))


class ProcessGrid(InProcessGrid):
    """A grid whose parties are processes."""

    def __init__(self, pipes: list[Connection]) -> None:
        super().__init__([Party(np.zeros((1, 1))) for _ in pipes])
        self._pipes = dict(zip(self.get_node_ids(), pipes, strict=True))
        self._asked: dict[str, Connection] = {}

    def _push(self, message) -> str:
        self._pushed += 1
        number = message.metadata.__dict__["_message_id"] = f"message-{self._pushed}"
        pipe = self._pipes[message.metadata.dst_node_id]
        pipe.send_bytes(message_to_proto(message).SerializeToString())
        self._asked[number] = pipe
        return number

    def pull_messages(self, message_ids):
        """Wait for the replies."""
        return [
            message_from_proto(
                MessageProto.FromString(self._asked.pop(number).recv_bytes())
            )
            for number in message_ids
            if number in self._asked
        ]


def main() -> None:
    """Train and predict, and print what each party took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--columns", type=int, default=90)
    parser.add_argument("--loss", default="logistic")
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes = []
        for j in range(PARTIES):
            ours, theirs = spawn.Pipe()
            where = f"{folder}/{j}"
            arguments = (theirs, j, options.rows, options.columns, where)
            spawn.Process(target=serve, args=arguments, daemon=True).start()
            pipes.append(ours)
        start = time.perf_counter()
        trained = FDSKL(options.loss).start(ProcessGrid(pipes))
        middle = time.perf_counter()
        FDSKLPrediction(trained.model.number).start(ProcessGrid(pipes))
        end = time.perf_counter()
        print(f"training {middle - start:.0f} s, {trained.ledger.round_trips} trips")
        print(f"prediction of {options.rows} rows {end - middle:.0f} s")
        for j, pipe in enumerate(pipes):
            pipe.send_bytes(b"")
            size, most = pipe.recv()
            steps = ", ".join(f"{a.split('.')[1]} {v:.0f}" for a, v in most.items())
            print(f"party {j}: data {size:.0f} MB, beyond them at most: {steps} MB")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
