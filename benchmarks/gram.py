"""Gram matrices under shares beside ``F.T @ F`` of the pooled features in NumPy.

``OMP_NUM_THREADS=1 python benchmarks/gram.py`` prints, for some numbers of rows,
features and parties, what each role takes for joint features and their Gram matrix: the
seconds of computation, how many times those of NumPy they are, and the memory above
that of the imported modules. ``--quick`` leaves out the largest.

Each role runs alone in a process of its own, on random bytes in the place of what the
others send: that is what they look like. Messages are made, and given, block by block,
so memory is what the role needs beside the messages that it sends or gets as a whole.
The seconds are of the processor, so that other programs disturb them less.
"""

import argparse
import contextlib
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from time import process_time

import numpy as np

from simulations.product_errors import cosine_bound
from vfl_flower.secure_aggregation.angle_shares import (
    cosine_shares,
    deal_cosines,
    hide_angles,
)
from vfl_flower.secure_aggregation.fixed_point import (
    decode,
    gram_fixed_point,
)
from vfl_flower.secure_aggregation.shares import Deal, Dealt, add, pack, unpack
from vfl_flower.secure_aggregation.triples import (
    SACRIFICED,
    GramTriple,
    deal_gram,
    open_gram,
)
from vfl_flower.typing import Array

FRACTION = 16
ROLES = ("NumPy", "dealer", "party 0", "party 1", "another party")
SIZES = [
    (4096, 512, 2),
    (4096, 512, 5),
    (4096, 1024, 3),
    (8192, 1024, 3),
    (16384, 1024, 3),
    (16384, 2048, 3),
]


class Clock:
    """Adds up the processor seconds of some blocks of code."""

    seconds = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count what runs inside."""
        start = process_time()
        yield
        self.seconds += process_time() - start


def noise(*shape: int, dtype: str = "u1") -> Array:
    """Return random integers, as another's message looks."""
    itemsize = np.dtype(dtype).itemsize
    count = int(np.prod(shape)) * itemsize
    data = np.random.default_rng(0).bytes(count)
    return np.frombuffer(data, dtype).reshape(shape)


def peak() -> float:
    """Return the largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def pooled(rows: int, features: int, parties: int, clock: Clock) -> None:
    """Make the Gram matrix of pooled features."""
    F = np.random.default_rng(0).standard_normal((rows, features))
    with clock.running():
        _ = F.T @ F


def dealer(rows: int, features: int, parties: int, clock: Clock) -> None:
    """Deal angles and a triple."""
    joint, deal = deals(rows, features)
    with clock.running():
        for _ in deal_cosines(joint, bytes(32), parties, FRACTION):
            pass
        deal_gram(deal, bytes(32))


def computing(party: int, rows: int, features: int, parties: int, clock: Clock) -> None:
    """Compute as party 0 or 1, from its angles to the Gram matrix."""
    joint, deal = deals(rows, features)
    seed, bits, size = bytes(32), deal.bits, deal.bits // 8
    columns = features + SACRIFICED
    data = noise(party * columns * (columns + 1) // 2 * size)
    message = Dealt.of(deal, party, seed, data)
    angles = noise(rows, features, dtype="u2")
    with clock.running():
        triple = GramTriple(deal, party, message)
    for block, part in enumerate(deal.blocks()):
        length = part.stop - part.start
        others = [noise(length, features, dtype="u2") for _ in range(1, parties)]
        data = noise(2 * length * features * size if party else 0)
        name = f"cosines {block}" if party else ""
        message = Dealt.of(joint, party, seed, data, name)
        received = noise(length * features * size)
        with clock.running():
            delta = hide_angles(joint, seed, angles[part], block)
            for other in others:
                delta += other
            share = cosine_shares(joint, party, message, delta, block, FRACTION)
            own = triple.opening(share, block)
            pack(own, bits)
            peer = unpack(received, bits, own.shape)
            triple.add(add(own, peer, bits=bits), block)
    opened = noise(rows, SACRIFICED, dtype="u8") >> np.uint64(64 - bits)
    with clock.running():
        share = triple.share()
        for _ in triple.sacrifice(seed):
            pass
        triple.proof(seed, (opened, opened))
        if party == 0:
            decode(open_gram(share, share, deal), bits, 2 * FRACTION)


def another(rows: int, features: int, parties: int, clock: Clock) -> None:
    """Hide the angles of a party that does not compute."""
    joint, _ = deals(rows, features)
    angles = noise(rows, features, dtype="u2")
    with clock.running():
        for block, part in enumerate(joint.blocks()):
            hide_angles(joint, bytes(32), angles[part], block)


def deals(rows: int, features: int) -> tuple[Deal, Deal]:
    """Return the uses of the dealt angles and of the triple."""
    numbers = gram_fixed_point(rows, cosine_bound(FRACTION), FRACTION)
    shape, bits = (rows, features), numbers.bits
    return Deal(1, "angles", 0, 0, shape, bits), Deal(1, "open", 0, 0, shape, bits)


def run(role: str, rows: int, features: int, parties: int) -> None:
    """Run one role and print its seconds and megabytes."""
    clock, before = Clock(), peak()
    if role.startswith("party"):
        computing(int(role[-1]), rows, features, parties, clock)
    else:
        work = {"NumPy": pooled, "dealer": dealer, "another party": another}[role]
        work(rows, features, parties, clock)
    print(json.dumps([clock.seconds, peak() - before]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--role", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        role, *sizes = options.role
        run(role, *map(int, sizes))
        return
    print(f"{'rows':>6}{'features':>9}{'parties':>8}  role{'s':>16}{'x':>8}{'MB':>7}")
    for size in SIZES[: 3 if options.quick else None]:
        plain = 0.0
        for role in ROLES:
            command = [sys.executable, __file__, "--role", role, *map(str, size)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            seconds, megabytes = json.loads(output)
            plain = plain or seconds
            print(
                f"{size[0]:>6}{size[1]:>9}{size[2]:>8}  {role:<13}{seconds:>7.2f}"
                f"{seconds / plain:>8.1f}{megabytes:>7.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
