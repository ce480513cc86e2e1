"""Parties in separate processes, as on SuperNodes, and their memory.

Each party makes its rows, receives the serialised messages of whole runs, and reports
the maximum growth of its resident memory: ``VmHWM`` less its value just before the
first message, which covers the interpreter, Flower and NumPy.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.supercore.task_identity import TaskIdentity

from vfl_flower import Party
from vfl_flower.app.register import make_client_app
from vfl_flower.party.consent import ALLOW_ALL
from vfl_flower.simulation import InProcessGrid

MB = 2**20


def peak() -> float:
    """Return the largest resident memory of this process so far, in MB."""
    # Not ru_maxrss, which starts at the value of the parent process.
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024 / MB


def serve(pipe: Connection, make: Callable[..., Party], *arguments: Any) -> None:
    """Answer messages until an empty message comes, then report memory and seconds."""
    party = make(*arguments)
    party.consent = ALLOW_ALL
    app = make_client_app(lambda context: party)
    context = Context(1, 1000, {}, RecordDict(), {})
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    before, begun = peak(), process_time()
    most: dict[str, float] = {}
    while message := pipe.recv_bytes():
        arrived = message_from_proto(MessageProto.FromString(message))
        del message
        action = arrived.metadata.message_type
        reply = app(arrived, context)
        reply.metadata.__dict__["_message_id"] = "reply"
        pipe.send_bytes(message_to_proto(reply).SerializeToString())
        del arrived, reply
        most[action] = max(most.get(action, 0.0), peak() - before)
    n, d = party.rows.shape
    pipe.send((8 * n * d / MB, most, process_time() - begun))


def start(make: Callable[..., Party], parties: Iterable[tuple]) -> list[Connection]:
    """Start a process for each party ``make(*arguments)``; return the pipes to them."""
    spawn = multiprocessing.get_context("spawn")
    pipes = []
    for arguments in parties:
        pipe, party_end = spawn.Pipe()
        spawn.Process(
            target=serve, args=(party_end, make, *arguments), daemon=True
        ).start()
        pipes.append(pipe)
    return pipes


def stop(pipes: list[Connection]) -> None:
    """End the processes, and print the growth of their memory, by step."""
    for j, pipe in enumerate(pipes):
        pipe.send_bytes(b"")
        size, most, _ = pipe.recv()
        steps = ", ".join(f"{a.split('.')[1]} {v:.0f}" for a, v in most.items())
        print(f"party {j}: data {size:.0f} MB, beyond them at most: {steps} MB")


class ProcessGrid(InProcessGrid):
    """A grid whose parties are separate processes."""

    def __init__(self, pipes: list[Connection]) -> None:
        super().__init__([Party(np.zeros((1, 1))) for _ in pipes])
        self._pipes = dict(zip(self.get_node_ids(), pipes, strict=True))
        self._asked: dict[str, Connection] = {}

    def _push(self, message: Message) -> str:
        self._pushed += 1
        number = message.metadata.__dict__["_message_id"] = f"message-{self._pushed}"
        pipe = self._pipes[message.metadata.dst_node_id]
        pipe.send_bytes(message_to_proto(message).SerializeToString())
        self._asked[number] = pipe
        return number

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Wait for the replies."""
        return [
            message_from_proto(
                MessageProto.FromString(self._asked.pop(number).recv_bytes())
            )
            for number in message_ids
            if number in self._asked
        ]
