"""Additive shares modulo 2^k, and the dealer's randomness for these shares.

Parties 0 and 1 are the computing parties. A matrix X is shared if party j has [X]_j,
for j = 0, 1, and X = [X]_0 + [X]_1 modulo 2^k; each share alone is uniform. A dealer,
who can read no message between the parties, gives them correlated randomness (D.
Beaver, "Commodity-based cryptography", STOC 1997). This randomness is mostly a seed,
which a party expands block by block. A correction provides the values that do not
follow from seeds alone.

Every stream is bound to its use, a :class:`Deal`: in a different run, step, round, half
or shape, the same seed gives different elements, so that no mask ever hides two values.
A dealer's message has a tag computed with its seed, so that a message is refused if it
was meant for a different use, truncated, or altered in transit. The tag does not
protect against the dealer, who knows the seed.

The shares are secure only if nobody colludes: the dealer and either computing party
together can read the shared values, and so can the two computing parties. The parties
send nothing to the dealer. But a dealer that sends inconsistent randomness adds an
error, known to the dealer, to the results. Values derived from these results can then
reveal information about the shared data. A check detects such errors for products and
for the seeds of their masks (:mod:`vfl_flower.secure_aggregation.products.triples`).
There is no such check for cosines and the seeds of angles.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vfl_flower.secure_aggregation import labels
from vfl_flower.secure_aggregation.fixed_point import reduce
from vfl_flower.secure_aggregation.masks import context, derive_key, stream
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

SEED_BYTES = 32

BLOCK_ROWS = 1024
"""Number of rows per block. Blocks have separate streams, so any order is allowed."""

NOTHING = np.empty(0, "u1")
"""The empty correction, for a party that gets only a seed."""


@dataclass(frozen=True)
class Deal:
    """One use of the dealer's randomness; the same at the dealer and all its parties.

    **Contract of the caller**: never repeat a use with different data. Two openings
    under the same mask reveal the difference of the hidden values. The same data may be
    opened again (a retry): the message is then the same, bit for bit.

    Raises ValueError if a size in `shape` is not positive, or if `owners` do not add up
    to the columns in `shape`.
    """

    run_id: int
    action: str
    """Step of the protocol."""
    round: int
    """Strictly increasing within a run for the same action, at least 0."""
    half: int
    """Index of the subset of rows, at least 0."""
    shape: tuple[int, ...]
    """Rows, columns and, if any, outputs."""
    bits: int
    """Width k of the ring."""
    owners: tuple[int, ...] = ()
    """The number of columns of each party, in party order, if each party hides its own
    columns instead of sharing them; see
    :func:`~vfl_flower.secure_aggregation.products.triples.hide_columns`."""

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.owners and (min(self.owners) < 0 or sum(self.owners) != self.shape[1]):
            raise ValueError(
                f"owners must add up to {self.shape[1]} columns, got {self.owners}"
            )
        if not self.shape or min(self.shape) < 1:
            raise ValueError(f"shape must have sizes of at least 1, got {self.shape}")

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.shape[0]

    def parts(self, name: str) -> list[bytes]:
        """Return the context that, with a seed, determines every key of this use."""
        numbers = (self.half, self.bits, len(self.shape), *self.shape, *self.owners)
        return [
            labels.DEALT_RANDOMNESS,
            *context(self.run_id, self.action, name, self.round),
            *(str(number).encode() for number in numbers),
        ]

    def seed(self, root: bytes, receiver: int) -> bytes:
        """Return the seed that a dealer with the secret `root` gives to `receiver`."""
        return derive_key(root, [*self.parts("seed"), str(receiver).encode()])

    def elements(
        self, seed: bytes, name: str, block: int, shape: tuple[int, ...], bits: int = 0
    ) -> Array:
        """Expand a seed to the same uniform integers of the given shape at each call.

        The integers are ChaCha20 output under a key derived from seed, use, name and
        block; the name distinguishes the purposes of integers within this use. With 16
        or 32 `bits`, the integers are angles, uint16 or uint32; with 0, they are
        elements of the ring, uint64.
        """
        count = math.prod(shape)
        take = stream(seed, [*self.parts(name), str(block).encode()])
        if bits:
            angles = np.frombuffer(take(bits // 8 * count), f"<u{bits // 8}")
            return angles.reshape(shape)
        words = np.frombuffer(take(8 * count), "<u8").reshape(shape)
        return words & np.uint64(2**self.bits - 1)

    def blocks(self) -> Iterator[slice]:
        """Yield the rows of each block, in order."""
        for start in range(0, self.rows, BLOCK_ROWS):
            yield slice(start, min(start + BLOCK_ROWS, self.rows))


@shapes_only
@dataclass(frozen=True)
class Dealt:
    """A dealer's message to one party for one use."""

    seed: bytes
    """The party's seed, 32 bytes. Whoever reads it can remove the party's masks."""
    correction: Array
    """Packed elements, uint8, (b,), which look uniform; empty if the seed suffices."""
    tag: bytes
    """Keyed hash of use, recipient and correction, 32 bytes."""

    @classmethod
    def of(
        cls,
        deal: Deal,
        receiver: int,
        seed: bytes,
        correction: Array = NOTHING,
        name: str = "",
    ) -> Dealt:
        """Make the message; `name` distinguishes several messages of one use."""
        return cls(seed, correction, _tag(deal, receiver, seed, correction, name))

    def pack(self) -> Array:
        """Return the message as bytes: seed, tag and correction."""
        head = np.frombuffer(self.seed + self.tag, "u1")
        return np.concatenate([head, self.correction])

    @classmethod
    def unpack(cls, data: Array) -> Dealt:
        """Return the message that :meth:`pack` packed; :meth:`check` verifies it."""
        seed, tag = data[:SEED_BYTES].tobytes(), data[SEED_BYTES : 2 * SEED_BYTES]
        return cls(seed, np.ascontiguousarray(data[2 * SEED_BYTES :]), tag.tobytes())

    def check(self, deal: Deal, receiver: int, length: int = 0, name: str = "") -> None:
        """Raise ValueError unless this message is intact, for `receiver` and this use.

        `length` is the number of bytes in the correction; `name` is as in :meth:`of`.
        """
        if len(self.seed) != SEED_BYTES:
            raise ValueError(f"seed must have {SEED_BYTES} bytes, got {len(self.seed)}")
        if self.correction.dtype != np.uint8 or self.correction.shape != (length,):
            raise ValueError(
                f"correction must be {length} bytes, got {self.correction.dtype} of "
                f"shape {self.correction.shape}"
            )
        tag = _tag(deal, receiver, self.seed, self.correction, name)
        if not hmac.compare_digest(tag, self.tag):
            raise ValueError(
                f"the dealer's message to party {receiver} for {deal.action}, round "
                f"{deal.round}, half {deal.half}, has a wrong tag: it was altered or "
                "is meant for a different use"
            )


class Portion:
    """A reader that returns the dealer's messages to one party, one at a time."""

    def __init__(self, data: Array) -> None:
        self._left = data

    def take(self, more: int = 0) -> Dealt:
        """Return the next message, with a correction of `more` bytes."""
        part, self._left = np.split(self._left, [2 * SEED_BYTES + more])
        return Dealt.unpack(part)

    def end(self) -> None:
        """Raise ``ValueError`` if there are more bytes."""
        if len(self._left):
            raise ValueError(
                f"the dealer's messages have {len(self._left)} surplus bytes"
            )


class Elements:
    """A reader that unpacks elements of a ring, block by block."""

    def __init__(self, data: Array) -> None:
        self._data, self._place = data, 0

    def take(self, bits: int, shape: tuple[int, ...]) -> Array:
        """Return the next elements; raise ``ValueError`` if there are too few."""
        start = self._place
        self._place += math.prod(shape) * width_of(bits)
        return unpack(self._data[start : self._place], bits, shape)

    def end(self) -> None:
        """Raise ``ValueError`` if there are more bytes."""
        if self._place != len(self._data):
            raise ValueError("the openings have too many bytes")


def width_of(bits: int) -> int:
    """Return the number of bytes in an element of a ring."""
    return -(-bits // 8)


def pack(elements: Array, bits: int) -> Array:
    """Return elements below 2^bits as ceil(bits / 8) bytes each, lowest byte first."""
    words = np.ascontiguousarray(elements, "<u8").reshape(-1, 1).view("u1")
    return words[:, : width_of(bits)].ravel()


def unpack(data: Array, bits: int, shape: tuple[int, ...]) -> Array:
    """Return the elements that :func:`pack` packed, uint64.

    Raises ValueError if there are too few or too many bytes, or if an element is not
    below 2^bits.
    """
    size = width_of(bits)
    count = math.prod(shape)
    if data.dtype != np.uint8 or data.shape != (size * count,):
        raise ValueError(
            f"elements must be {size * count} bytes, got {data.dtype} of shape "
            f"{data.shape}"
        )
    words = np.zeros((count, 8), "u1")
    words[:, :size] = data.reshape(count, size)
    elements = words.view("<u8").reshape(shape)
    if bits % 8 and elements.size and elements.max() >= 2**bits:
        raise ValueError(f"elements must be below 2^{bits}")
    return elements


def add(*shares: Array, bits: int) -> Array:
    """Return the sum of arrays of elements modulo 2^bits, as a new array."""
    total = shares[0].copy()
    for share in shares[1:]:
        total += share
    return reduce(total, bits)


def subtract(left: Array, right: Array, bits: int) -> Array:
    """Return the difference of two arrays modulo 2^bits, as a new array."""
    return reduce(np.subtract(left, right), bits)


def _tag(deal: Deal, receiver: int, seed: bytes, correction: Array, name: str) -> bytes:
    key = derive_key(seed, [*deal.parts("tag"), name.encode(), str(receiver).encode()])
    return hashlib.blake2b(correction.data, key=key, digest_size=32).digest()
