"""Secure sums of sparse vectors: counts of bins, sent as power sums over a prime field.

[1] C. Pan, J. Sima, S. Prakash, V. Rana, O. Milenkovic, "Machine Unlearning of
Federated Clusters", ICLR 2023, Algorithm 2 (SCMA), whose *clients* are our parties. The
vector q^(l) of party l has an entry for each of B^d bins, of which at most K are
nonzero. Instead of q^(l) the party sends 2 K L power sums of its bins, hidden by masks
in the group `Field`. The sum of these messages over the L parties gives the server
q = sum_l q^(l), and nothing else about a party.

Differences from [1]:

1. The point of a bin is a keyed hash of its coordinates in the field of 2^61 - 1. The
   number of the bin would need a prime above B^d: thousands of bits for d = 784. In
   addition to the power sums of the counts, K L more power sums per 60 bits of
   coordinates represent the bin itself, weighted by its count. The server divides by
   the count, and checks the hash of the result. ``field="paper"`` uses the points of
   [1], for B^d below 2^61 - 1.
2. Every decoded sum is checked, and an error reports which check failed.
3. The prime is 2^61 - 1 for both types of points. So values that are not sums of
   vectors fail the checks, except with negligible probability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np

from vfl_flower.numerics.prime_field import MERSENNE_61, PrimeField
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

KEY_BYTES = 16
"""Length of the hash key."""

_WORD = 60
"""Number of coordinate bits in an element, which is then below 2^61 - 1."""

_ROWS = 256
"""Number of bins unpacked at a time."""


class SparseSumError(ValueError):
    """A sum cannot be encoded or decoded, not even partially."""


@shapes_only
@dataclass(frozen=True)
class SparseSum:
    """A code for sparse sums, with the same arguments at all parties and the server.

    A message alone reveals the bins of a party, so it must be the input of a secure sum
    in the group `Field`. The size of a message does not depend on the bins or on their
    number.

    A sum is decoded only if the sum of all counts, the number of bins, each count,
    every power sum and each hash are consistent. Noise, for example from a missing
    mask, passes the first of these checks with a probability of 2^-61. No check detects
    bins that a party adds against the protocol. With ``field="paper"`` there is no
    hash, and if K L is small, the sum of more than K L bins can by chance look like a
    sum of different bins. With a small prime, as in the example of [1], noise can also
    pass the checks.

    >>> from vfl_flower.secure_aggregation.groups import Field
    >>> code = SparseSum(2, 2, n_columns=3, n_values=10, key=bytes(16))
    >>> group = Field(parties=2)
    >>> a = code.encode(np.array([[9, 0, 1], [2, 2, 2]]), np.array([5, 1]))
    >>> b = code.encode(np.array([[9, 0, 1]]), np.array([4]))
    >>> code.decode(group.add(a, b), n=10)
    (array([[2, 2, 2],
           [9, 0, 1]]), array([1, 9]))
    """

    n_clusters: int
    """K, the maximum number of bins of one party, at least 1."""
    n_parties: int
    """L, the number of parties, at least 1."""
    n_columns: int
    """d, the number of coordinates of a bin, at least 1."""
    n_values: int
    """B, the number of values of a coordinate, 0 .. B - 1; from 1 to 2^32."""
    key: bytes = b""
    """Key of the hash, 16 bytes, only for ``field="hash"``. The key hides nothing and
    can be public, but must be drawn at random for each run, after the data are fixed.
    Then nobody can prepare bins with the same hash, and the probability that any two of
    m bins have the same hash is below m^2 / 2^62. If two bins have the same hash,
    decoding fails."""
    field: Literal["hash", "paper"] = "hash"
    """Point of a bin: a hash of its coordinates ("hash"), or its number from 1 to B^d
    as in [1] ("paper")."""
    p: int = MERSENNE_61
    """The prime, above B^d and n; ``field="hash"`` allows only 2^61 - 1."""

    def __post_init__(self) -> None:
        """Check the settings."""
        PrimeField(self.p)
        if self.field == "hash":
            if len(self.key) != KEY_BYTES:
                raise ValueError(
                    f"key must have {KEY_BYTES} bytes, got {len(self.key)}"
                )
            if self.p != MERSENNE_61:
                raise ValueError(f'p must be 2^61 - 1 for field="hash", got {self.p}')
        else:
            # Compare numbers of bits first: with many columns, B^d would be huge.
            bits = self.n_columns * math.log2(self.n_values)
            if bits > 61 or self.n_values**self.n_columns >= self.p:
                raise ValueError(
                    f'n_values^n_columns must be below p = {self.p} for field="paper", '
                    f"got {self.n_values}^{self.n_columns}"
                )

    @property
    def bits(self) -> int:
        """Number of bits of a coordinate, ceil(log2 B), at least 1."""
        return max(1, (self.n_values - 1).bit_length())

    @property
    def n_slots(self) -> int:
        """K L, the maximum number of bins in a sum."""
        return self.n_clusters * self.n_parties

    @property
    def n_words(self) -> int:
        """Number of elements for the coordinates of a bin: ceil(d bits / 60), or 0."""
        return -(-self.n_columns * self.bits // _WORD) if self.field == "hash" else 0

    @property
    def size(self) -> int:
        """Number of elements in a message, 2 K L + K L n_words, of eight bytes each."""
        return self.n_slots * (2 + self.n_words)

    def encode(self, bins: Array, counts: Array) -> Array:
        """Return one party's message before masking, a uint64 array, (size,).

        [1], Algorithm 2, line 2: S_i = sum_j q_j j^(i-1), i = 1 .. 2 K L. Then, for
        i = 1 .. K L, the same sums follow, with q_j times each word of the bin's
        coordinates instead of q_j.

        `bins`, int, (k, d), holds coordinates 0 .. B - 1; k may be 0. `counts`, int,
        (k,), are q_j >= 1; the counts of equal bins add up. Raises ValueError if there
        are more than K bins, and SparseSumError if two different bins have the same
        point.
        """
        if len(bins) > self.n_clusters:
            raise ValueError(
                f"the number of bins must be at most {self.n_clusters}, got {len(bins)}"
            )
        bins, counts = bins.astype(np.int64), counts.astype(np.uint64)
        field, points = PrimeField(self.p), self._points(bins)
        if len(np.unique(points)) < len(np.unique(bins, axis=0)):
            raise SparseSumError(
                "two different bins map to the same point: use a new key"
            )
        sums = field.power_sums(points, counts, 2 * self.n_slots)
        if self.field == "paper":
            return sums
        weighted = field.multiply(counts[:, None], self._pack(bins))
        payload = field.power_sums(points, weighted, self.n_slots)
        return np.concatenate([sums, payload.ravel()])

    def decode(self, total: Array, n: int) -> tuple[Array, Array]:
        """Return the bins and counts of a sum of messages ([1], Algorithm 2, line 3).

        The bins, (m, d), are distinct and in lexicographic order; the counts, (m,), are
        q_j >= 1. `total`, a uint64 array of shape (size,), is the unmasked sum of the
        messages of all parties; `n` is the sum of all counts and is below p. Raises
        SparseSumError if a check fails; no part of the sum is then decoded.
        """
        field = PrimeField(self.p)
        sums, payload = np.split(total, [2 * self.n_slots])
        if sums[0] != n:
            raise SparseSumError(
                f"the counts of all parties must add up to {n}, but do not: a message "
                "is missing, duplicated or altered"
            )
        points, counts = self._solve(field, sums, n)
        if self.field == "paper":
            number, power = points.astype(np.int64) - 1, self._radix()
            bins = number[:, None] // power % self.n_values
        else:
            weighted = field.values_at(points, payload.reshape(self.n_slots, -1))
            words = field.multiply(weighted, field.inverse(counts)[:, None])
            bins = self._checked_bins(words, points)
        order = np.lexsort(bins.T[::-1])
        return bins[order], counts.astype(np.int64)[order]

    def _solve(self, field: PrimeField, sums: Array, n: int) -> tuple[Array, Array]:
        """Return the points and counts, both (m,), from the sums of the counts."""
        points = field.points_of(sums)
        if points is not None:
            counts = field.values_at(points, sums[:, None])[:, 0]
            last = self.p if self.field == "hash" else self.n_values**self.n_columns
            # No other set of at most K L points gives the same 2 K L sums ([1],
            # Appendix J): check that these points do. The first sum is n.
            if (
                np.all((points <= last) & (counts >= 1))
                and int(counts.sum(dtype=object)) == int(sums[0])
                and np.array_equal(field.power_sums(points, counts, len(sums)), sums)
            ):
                return points, counts
        raise SparseSumError(
            f"the sum must hold at most {self.n_slots} bins, each with a count from 1 "
            f"to {n}, but does not: a party sent more bins, or a message was altered"
        )

    def _points(self, bins: Array) -> Array:
        """Return the point of each bin, of shape (k,), from 1 to p - 1."""
        if self.field == "paper":
            return (1 + bins @ self._radix()).astype(np.uint64)

        def hashed(row: Array) -> int:
            digest = blake2b(row.tobytes(), digest_size=16, key=self.key).digest()
            # 128 bits modulo p - 1 are uniform up to 2^-67.
            return 1 + int.from_bytes(digest, "little") % (self.p - 1)

        return np.array([hashed(row) for row in bins.astype("<i8")], dtype=np.uint64)

    def _radix(self) -> Array:
        """Return B^0 .. B^(d - 1), shape (d,): bin a has number 1 + sum_i a_i B^i."""
        powers = [self.n_values**i for i in range(self.n_columns)]
        return np.array(powers, dtype=np.int64)

    def _pack(self, bins: Array) -> Array:
        """Return the coordinates of bins, 60 bits per word, of shape (k, n_words)."""
        octets = bins.astype("<u4")[:, :, None].view(np.uint8)
        bits = np.unpackbits(octets, axis=2, bitorder="little")[:, :, : self.bits]
        padded = np.zeros((len(bins), self.n_words * _WORD), dtype=np.uint8)
        width = self.n_columns * self.bits
        padded[:, :width] = bits.reshape(len(bins), width)
        words = padded.reshape(len(bins), self.n_words, _WORD)
        return np.packbits(words, axis=2, bitorder="little").view("<u8")[:, :, 0]

    def _unpack(self, words: Array) -> Array:
        """Return the bins of words, an int64 array of shape (k, d)."""
        octets = words.astype("<u8")[:, :, None].view(np.uint8)
        bits = np.unpackbits(octets, axis=2, count=_WORD, bitorder="little")
        bits = bits.reshape(len(words), -1)[:, : self.n_columns * self.bits]
        bits = bits.reshape(len(words), self.n_columns, self.bits)
        coordinates = np.zeros((len(words), self.n_columns, 4), dtype=np.uint8)
        packed = np.packbits(bits, axis=2, bitorder="little")
        coordinates[:, :, : packed.shape[2]] = packed
        return coordinates.view("<u4")[:, :, 0].astype(np.int64)

    def _checked_bins(self, words: Array, points: Array) -> Array:
        """Return the bins in `words`, each checked against its point."""
        bins = np.zeros((len(words), self.n_columns), dtype=np.int64)
        wrong = 0
        for start in range(0, len(words), _ROWS):
            rows = slice(start, start + _ROWS)
            bins[rows] = block = self._unpack(words[rows])
            fits = np.all(block < self.n_values, axis=1)
            fits &= np.all(self._pack(block) == words[rows], axis=1)
            fits &= self._points(block) == points[rows]
            wrong += int(np.sum(~fits))
        if wrong:
            raise SparseSumError(
                f"each bin's coordinates must hash to the bin's point, but in {wrong} "
                f"of {len(words)} bins they do not: two bins have the same point "
                "(use a new key), or a message was altered"
            )
        return bins
