"""Costs of ridge models from sums of products, and the precision of these sums.

`roles` runs ``SecureRidge`` with each party in a separate process, and with messages
that are packed, sealed and opened as on SuperNodes. So processor seconds and memory are
measured for each role. `gram_errors` compares a Gram matrix under shares with NumPy's.
"""

from __future__ import annotations

import math
import multiprocessing
import resource
from collections.abc import Sequence
from multiprocessing.connection import Connection
from time import perf_counter, process_time
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage

from vfl_flower import Party, SecureRidge
from vfl_flower.numerics.ridge.fit import fit_gram
from vfl_flower.secure_aggregation.fixed_point import decode, gram_fixed_point
from vfl_flower.secure_aggregation.products.angles import (
    cosine_shares,
    deal_cosines,
    hide_angles,
)
from vfl_flower.secure_aggregation.products.dealing import joint_fraction
from vfl_flower.secure_aggregation.products.shares import Deal, Dealt, add
from vfl_flower.secure_aggregation.products.triples import (
    GramTriple,
    deal_gram,
    open_gram,
)
from vfl_flower.simulation import InProcessGrid
from vfl_flower.strategies.ridge.training import MOST_PILOT

ROLES = ("label holder", "second party", "another party")
COLUMNS = 12
"""Number of columns of the generated rows of `roles`."""


def cosine_error(
    parties: int, fraction: int, angle_bits: int = 16, multiple: int = 1
) -> float:
    """Return the largest error of a shared cosine, besides the error of float64.

    Each party rounds its angle to a multiple of 1/2^b turns, which moves m theta by
    at most ``pi m T / 2^b``. Cosine and sine of delta and of r have f / 2 fraction
    bits: each of these two points of the plane moves by ``e = 2^-(f / 2 + 1/2)`` at
    most, and their scalar product by ``2 e + e^2``.
    """
    moved = 1 / math.sqrt(2.0 ** (fraction + 1))
    turned = math.pi * multiple * parties / (1 << angle_bits)
    return turned + moved * (2 + moved)


def cosine_bound(fraction: int) -> float:
    """Return the bound on a cosine that is a sum of two products of encodings.

    cos(a) and sin(a) with f / 2 fraction bits are at most 1 / sqrt(2) units from a
    vector of length 2^(f / 2), in the plane. The scalar product of two such vectors is
    at most ``(2^(f / 2) + 1 / sqrt(2))^2`` (Cauchy and Schwarz). `fraction` is f, even.
    """
    return float((1 + 1 / math.sqrt(2.0 ** (fraction + 1))) ** 2)


def gram_error(rows: int, bound: float, error: float) -> float:
    """Return the largest error of an entry of a Gram matrix.

    ``|a' b' - a b| <= error (2 bound + error)`` in each of the rows, where a' and b'
    differ from a and b by at most `error`.

    The roundings of many rows mostly cancel: a cosine with f fraction bits has errors
    with a standard deviation of ``2^-(f / 2) / sqrt(6)``, and an entry of the Gram
    matrix of cosines has about sqrt(rows) times this deviation.
    """
    return rows * error * (2 * bound + error)


def gram_errors(rows: int, features: int, parties: int) -> dict[str, Any]:
    """Compare the Gram matrix of joint features under shares with NumPy's matrix.

    The parties' angles are uniform and rounded to 16 bits of a turn; NumPy takes the
    cosine of their exact sum.
    """
    rng = np.random.default_rng([rows, features, parties])
    turns = rng.random((parties, rows, features))
    angles = np.rint(turns * 2**16).astype("<u4").astype("<u2")
    fraction = joint_fraction(rows)
    bits = gram_fixed_point(rows, cosine_bound(fraction), fraction).bits
    joint = Deal(1, "angles", 0, 0, (rows, features), bits)
    deal = Deal(1, "open", 0, 0, (rows, features), bits)
    root = rng.bytes(32)
    seeds = [joint.seed(root, party) for party in range(parties)]
    pair = [GramTriple(deal, j, dealt) for j, dealt in enumerate(deal_gram(deal, root))]
    first = Dealt.of(joint, 0, seeds[0])
    for block, second in enumerate(deal_cosines(joint, root, parties, fraction)):
        part = list(joint.blocks())[block]
        hidden = [
            hide_angles(joint, seed, own[part], block)
            for seed, own in zip(seeds, angles, strict=True)
        ]
        delta = np.sum(hidden, axis=0, dtype="<u2")
        sent = [
            own.opening(
                cosine_shares(joint, j, dealt, delta, block, fraction)[:, :features],
                block,
            )
            for j, (own, dealt) in enumerate(zip(pair, (first, second), strict=True))
        ]
        opened = add(*sent, bits=bits)
        for own in pair:
            own.add(opened, block)
    opened = open_gram(pair[0].share(), pair[1].share(), deal)
    found = decode(opened, bits, 2 * fraction)
    F = np.cos(2 * np.pi * turns.sum(axis=0))
    exact = F.T @ F
    error = np.abs(found - exact)
    return {
        "bits": bits,
        "largest": float(error.max()),
        "bound": gram_error(rows, 1.0, cosine_error(parties, fraction)),
        "rms": float(np.sqrt(np.mean(error**2))),
        "diagonal": float(np.diag(exact).mean()),
    }


def memory() -> float:
    """Return the largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


class Processes(InProcessGrid):
    """Parties that each answer in a separate process."""

    def __init__(self, parties: Sequence[Party]) -> None:
        super().__init__(parties)
        fork = multiprocessing.get_context("fork")
        self.ends: dict[int, Connection] = {}
        for node in self._contexts:
            self.ends[node], end = fork.Pipe()
            fork.Process(target=self._serve, args=(node, end), daemon=True).start()

    def _serve(self, node: int, end: Connection) -> None:
        before = memory()
        while data := end.recv_bytes():
            message = message_from_proto(ProtoMessage.FromString(data))
            del data
            reply = self._app(message, self._contexts[node])
            reply.metadata.__dict__["_message_id"] = "reply"
            end.send_bytes(message_to_proto(reply).SerializeToString())
        end.send([process_time(), memory() - before])

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
        """Return the seconds of each party, and its memory above the initial memory."""
        for end in self.ends.values():
            end.send_bytes(b"")
        return [end.recv() for end in self.ends.values()]


def pooled(rows: int, columns: int) -> float:
    """Return the seconds of the Gram matrix and the fit of pooled features."""
    rng = np.random.default_rng(0)
    F = rng.standard_normal((rows, columns + 2))
    F[:, -1] = 1.0
    start = process_time()
    gram = F.T @ F
    thirds = np.linspace(0, columns, 4).astype(int)
    fit_gram(gram, np.diff(thirds).tolist(), "continuous")
    return process_time() - start


def roles(rows: int, features: int, count: int, relevance: bool) -> dict[str, Any]:
    """Train on generated rows of `count` parties, and measure each role.

    Call this in a separate process, so that the memory belongs to this run.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, COLUMNS))
    y = np.sin(X).sum(axis=1) + 0.1 * rng.normal(size=rows)
    parties = [
        Party(block, y if j == 0 else None)
        for j, block in enumerate(np.array_split(X, count, axis=1))
    ]
    before = memory()
    grid = Processes(parties)
    strategy = SecureRidge(
        target="continuous", joint_features=features, relevance=relevance
    )
    start, wall = process_time(), perf_counter()
    result = strategy.start(grid)
    wall = perf_counter() - wall
    used = [*grid.ended(), [process_time() - start, memory() - before]]
    names = [*(ROLES[min(j, 2)] for j in range(count)), "dealing server"]
    local = int(result.metrics["local_columns"])
    turns = [min(features, 2 * MOST_PILOT)] * relevance + [features]
    figures: dict[str, Any] = {
        "local": local,
        "round_trips": result.ledger.round_trips,
        "numpy": sum(pooled(rows, local + joint) for joint in turns),
        "wall": wall,
    }
    for j, (name, (seconds, megabytes)) in enumerate(zip(names, used, strict=True)):
        if name not in figures:
            figures[name] = {"seconds": seconds, "megabytes": megabytes}
        if j < min(count, len(ROLES)):
            entries = [
                e for e in result.ledger.entries.values() if e.party == f"party-{j}"
            ]
            for key, way in (("sent", "bytes_up"), ("received", "bytes_down")):
                size = sum(getattr(entry, way) for entry in entries)
                figures[name][key] = size / rows / (features + local)
    return figures
