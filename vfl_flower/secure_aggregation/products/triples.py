"""Products of shared matrices with a dealer's correlated randomness.

A product of shared numbers needs one triple (D. Beaver, "Efficient multiparty protocols
using circuit randomization", CRYPTO 1991), and so does a product of shared matrices (P.
Mohassel and Y. Zhang, "SecureML", IEEE S&P 2017). Parties 0 and 1 hold shares of F
modulo 2^k.

**F^T F.** Parties 0 and 1 get the seeds of random matrices A_0 and A_1, and open
E = F - A_0 - A_1, which is uniform. Party j then has H_j = E + 2 A_j. Since
H_0 + H_1 = 2 F and H_0 - H_1 = 2 (A_0 - A_1), the parallelogram law gives

.. code-block:: text

    2 F^T F = H_0^T H_0 + H_1^T H_1 - 2 C,    C = (A_0 - A_1)^T (A_0 - A_1)

modulo 2^(k + 1), with shares of C from the dealer. So the dealer and both parties each
compute one symmetric product. With the usual triple, which uses A^T A, one party
computes two symmetric products, and the other party one product at twice the cost.

**F w**, where party 0 knows w and nobody knows F. Party 1 has a seed of A, party 0 has
a seed of b, and both have shares of c = A b. Party 1 sends [F]_1 - A, and party 0 sends
d = w - b:

.. code-block:: text

    [F w]_0 = ([F]_0 + [F]_1 - A) w + [c]_0,    [F w]_1 = A d + [c]_1.

**A dealer that sends a wrong C or c** would change the result. So some columns (rows)
of A are used only for a check. With V = (V'; I), where V' is random and unknown to the
dealer, the parties open U = (A_0 - A_1) V, which is uniform because of these columns.
They compare C V with (A_0 - A_1)^T U on shares. A column of V' distinguishes a wrong C
from the right one with probability at least 1/2: for a nonzero d and a uniform v, the
probability of d v = 0 modulo 2^k is at most 1/2. So a single random factor, which
suffices in a field, does not suffice here (R. Cramer, I. Damgard, D. Escudero, P.
Scholl, C. Xing, "SPDZ2k", CRYPTO 2018, make the ring wider instead).

**A dealer that gives an owner a wrong seed** for its columns of A_0 or A_1 would change
the owner's columns of F to F + Delta, with a Delta that the dealer knows. So the owner
sends a digest of each seed (:func:`seed_digest`) with its columns, and a party that has
A_0 or A_1 compares the digest with its own (:func:`owner_digest`) before it multiplies.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence

import numpy as np

from vfl_flower.secure_aggregation.fixed_point import reduce
from vfl_flower.secure_aggregation.masks import derive_key
from vfl_flower.secure_aggregation.products.ring import SquareSum, product
from vfl_flower.secure_aggregation.products.shares import (
    BLOCK_ROWS,
    SEED_BYTES,
    Deal,
    Dealt,
    Elements,
    add,
    pack,
    subtract,
    unpack,
    width_of,
)
from vfl_flower.typing import Array

OWNER = "owner"
"""Distinguishes the dealer's messages to owners from those to computing parties."""

SACRIFICED = 40
"""Number of columns (rows) used only for a check. A wrong triple passes the check with
probability 2^-40."""


def triangle_size(columns: int) -> int:
    """Return the number of elements of an upper triangle."""
    return columns * (columns + 1) // 2


def upper(matrix: Array) -> Array:
    """Return the upper triangle of a symmetric matrix, row by row."""
    return matrix[np.triu_indices(len(matrix))]


def symmetric(triangle: Array, columns: int) -> Array:
    """Return the symmetric matrix with a given upper triangle."""
    matrix = np.empty((columns, columns), triangle.dtype)
    rows, others = np.triu_indices(columns)
    matrix[rows, others] = triangle
    matrix[others, rows] = triangle
    return matrix


def deal_gram(deal: Deal, root: bytes) -> tuple[Dealt, Dealt]:
    """Return the dealer's messages to parties 0 and 1 for one Gram matrix.

    Party 0 gets its seed; party 1 gets its seed and its share of C.
    """
    seeds = [deal.seed(root, party) for party in (0, 1)]
    squares = SquareSum(deal.shape[1] + SACRIFICED, deal.bits)
    for block, _ in enumerate(deal.blocks()):
        first, second = (_gram_mask(deal, seed, block) for seed in seeds)
        squares.add(subtract(first, second, deal.bits))
    triangle = upper(squares.total())
    first = deal.elements(seeds[0], "product", 0, triangle.shape)
    correction = pack(subtract(triangle, first, deal.bits), deal.bits)
    return Dealt.of(deal, 0, seeds[0]), Dealt.of(deal, 1, seeds[1], correction)


def deal_owner(deal: Deal, root: bytes, owner: int) -> Dealt:
    """Return the dealer's message to the owner of some columns of F."""
    first, second = (_owner_seed(deal, deal.seed(root, j), owner) for j in (0, 1))
    return Dealt.of(deal, owner, first, np.frombuffer(second, "u1"), OWNER)


def seed_digest(deal: Deal, owner: int, seed: bytes) -> bytes:
    """Return a digest, 32 bytes, of the use and of an owner's seed for a mask."""
    return derive_key(seed, [*deal.parts("digest"), str(owner).encode()])


def owner_digest(deal: Deal, owner: int, seed: bytes) -> bytes:
    """Return :func:`seed_digest` at a party with the seed of the whole A_0 or A_1."""
    return seed_digest(deal, owner, _owner_seed(deal, seed, owner))


def hide_columns(
    deal: Deal, owner: int, dealt: Dealt, columns: Array, first: int = 0
) -> Array:
    """Return an owner's columns of E, which it sends to parties 0 and 1.

    The owner knows its own columns of F, and gets the seeds of the same columns of A_0
    and A_1. So the owner opens its columns in one message, and need not share them
    first. The columns are passed in whole blocks of rows, starting with block `first`.
    The result is uniform to anyone who knows only one of A_0 and A_1. Raises ValueError
    if the dealer's message is for a different use or has been altered.
    """
    dealt.check(deal, owner, SEED_BYTES, OWNER)
    return _hidden(deal, [dealt.seed, dealt.correction.tobytes()], columns, first)


class _Triple:
    """The seed of one party's masks for one product, and its share of the product."""

    def __init__(
        self, deal: Deal, party: int, dealt: Dealt, shape: tuple[int, ...]
    ) -> None:
        dealt.check(deal, party, party * math.prod(shape) * width_of(deal.bits))
        self.deal, self.party, self._seed = deal, party, dealt.seed
        if party == 0:
            self._product = deal.elements(dealt.seed, "product", 0, shape)
        else:
            self._product = unpack(dealt.correction, deal.bits, shape)

    def _mask(self, block: int, owner: int | None = None) -> Array:
        """Return a block of this party's random matrix, or only an owner's columns."""
        return _matrix(self.deal, self._seed, block, owner=owner)

    def opening(self, share: Array, block: int, owner: int | None = None) -> Array:
        """Return a block of this party's share of F minus its mask; uniform.

        With an `owner`, the result has only the columns of the owner with this index.
        """
        return subtract(share, self._mask(block, owner), self.deal.bits)

    def _factors(self, challenge: bytes, count: int) -> Array:
        return self.deal.elements(challenge, "challenge", 0, (count, SACRIFICED))


class GramTriple(_Triple):
    """One party's role in computing one Gram matrix on shares.

    Open each block (:meth:`opening`), sum the openings of both parties, pass each block
    of this sum to :meth:`add`, and send or open the result (:meth:`share`,
    :func:`open_gram`). Raises ValueError if the dealer's message is for a different use
    or has been altered.
    """

    def __init__(self, deal: Deal, party: int, dealt: Dealt) -> None:
        columns = deal.shape[1] + SACRIFICED
        super().__init__(deal, party, dealt, (triangle_size(columns),))
        self._product = symmetric(self._product, columns)
        self._squares = SquareSum(deal.shape[1], deal.bits + 1)

    def add(self, opened: Array, block: int) -> None:
        """Add the products of a block of E, the sum of the openings of both parties."""
        doubled = self._mask(block) << np.uint64(1)
        self._squares.add(reduce(doubled + opened, self.deal.bits + 1))

    def add_all(self, owners: Sequence[Elements], joint: Sequence[Elements]) -> None:
        """Add the openings of all owners, and both parties' openings of joint columns.

        Raises ValueError if an opening is too short or too long.
        """
        bits, widths = self.deal.bits, self.deal.owners
        for block, rows in enumerate(self.deal.blocks()):
            count = rows.stop - rows.start
            pairs = zip(owners, widths, strict=False)  # joint columns are the last ones
            parts = [opened.take(bits, (count, width)) for opened, width in pairs]
            if joint:
                both = (opened.take(bits, (count, widths[-1])) for opened in joint)
                parts.append(add(*both, bits=bits))
            self.add(np.hstack(parts), block)
        for opened in (*owners, *joint):
            opened.end()

    def share(self) -> Array:
        """Return this party's share of 2 F^T F modulo 2^(k + 1), the upper triangle.

        The share is uniform, with two exceptions: its lowest bits equal the lowest bits
        of E^T E, which both parties know; and the sum of both shares is the value that
        :func:`open_gram` opens.
        """
        columns = self.deal.shape[1]
        dealt = self._product[:columns, :columns] << np.uint64(1)
        return upper(subtract(self._squares.total(), dealt, self.deal.bits + 1))

    def sacrifice(self, challenge: bytes) -> Iterator[Array]:
        """Yield this party's share of U = (A_0 - A_1) V, block by block; uniform.

        The `challenge` is a secret of the two parties, which the dealer must not know
        before it has sent its messages.
        """
        factors = self._factors(challenge, self.deal.shape[1])
        for block, _ in enumerate(self.deal.blocks()):
            mask = _gram_mask(self.deal, self._seed, block)
            yield combined(mask, factors, self.deal.bits)

    def proof(self, challenge: bytes, openings: tuple[Array, Array]) -> bytes:
        """Return a digest that is the same at both parties if the triple is correct.

        `openings` are the results of :meth:`sacrifice` at party 0 and at party 1.
        """
        bits = self.deal.bits
        opened = subtract(*openings, bits)
        right = np.zeros((len(self._product), SACRIFICED), "<u8")
        for block, rows in enumerate(self.deal.blocks()):
            mask = _gram_mask(self.deal, self._seed, block)
            right += product(mask.T, opened[rows], bits)
        factors = self._factors(challenge, self.deal.shape[1])
        left = combined(self._product, factors, bits)
        # Party 0 has [C]_0 V - A_0^T U, party 1 the negative of [C]_1 V + A_1^T U.
        residual = left - right if self.party == 0 else -(left + right)
        return digest(residual, bits)

    def _mask(self, block: int, owner: int | None = None) -> Array:
        if owner is not None:
            return super()._mask(block, owner)
        mask = _gram_mask(self.deal, self._seed, block)
        return np.ascontiguousarray(mask[:, : self.deal.shape[1]])


def deal_row_owner(deal: Deal, root: bytes, owner: int) -> Dealt:
    """Return the dealer's message for F w to the owner of some columns of F."""
    seed = _owner_seed(deal, deal.seed(root, 1), owner)
    return Dealt.of(deal, owner, seed, name=OWNER)


def hide_rows(deal: Deal, owner: int, dealt: Dealt, columns: Array) -> Array:
    """Return an owner's columns of F - A, which it sends to party 0.

    The columns are uniform to anyone without the seed of A, which party 1 and the owner
    have. Raises ValueError if the dealer's message is for a different use or has been
    altered.
    """
    dealt.check(deal, owner, name=OWNER)
    return _hidden(deal, [dealt.seed], columns)


def open_gram(first: Array, second: Array, deal: Deal) -> Array:
    """Return F^T F modulo 2^k from both parties' shares, uint64, (columns, columns).

    The result has twice as many fraction bits as F. Raises ValueError if the parties
    have not added the same openings E: half of the elements of the sum are then odd.
    """
    doubled = reduce(first + second, deal.bits + 1)
    if (doubled & np.uint64(1)).any():
        raise ValueError("shares must come from the same openings, got odd sums")
    return symmetric(doubled >> np.uint64(1), deal.shape[1])


def deal_predictions(deal: Deal, root: bytes) -> tuple[Dealt, Dealt]:
    """Return the dealer's messages to parties 0 and 1 for one product F w.

    Party 0 gets its seed; party 1 gets its seed and its share of c. The shape of `deal`
    is (rows, columns, outputs).
    """
    seeds = [deal.seed(root, party) for party in (0, 1)]
    vectors = _vectors(deal, seeds[0])
    masks = (_matrix(deal, seeds[1], i) for i, _ in enumerate(deal.blocks()))
    products = [product(mask, vectors, deal.bits) for mask in masks]
    products.append(product(_spare_rows(deal, seeds[1]), vectors, deal.bits))
    results = np.concatenate(products)
    first = deal.elements(seeds[0], "product", 0, results.shape)
    correction = pack(subtract(results, first, deal.bits), deal.bits)
    return Dealt.of(deal, 0, seeds[0]), Dealt.of(deal, 1, seeds[1], correction)


class PredictionTriple(_Triple):
    """One party's role in computing one product F w, where party 0 knows w.

    Party 0 sends :meth:`hidden_weights`, and party 1 sends the :meth:`opening` of each
    block. Then both compute their shares of each block (:meth:`share_of_weights`,
    :meth:`share_of_mask`). The party that may read F w adds the two shares. Raises
    ValueError if the dealer's message is for a different use or has been altered.
    """

    def __init__(self, deal: Deal, party: int, dealt: Dealt) -> None:
        super().__init__(deal, party, dealt, (deal.rows + SACRIFICED, deal.shape[2]))

    def hidden_weights(self, weights: Array) -> Array:
        """Return d = w - b, which party 0 sends to party 1; uniform."""
        return subtract(weights, _vectors(self.deal, self._seed), self.deal.bits)

    def share_of_weights(
        self, weights: Array, share: Array, opened: Array, block: int
    ) -> Array:
        """Return party 0's share of F w for one block, uint64, (b, outputs).

        `share` is the share [F]_0 of the block, and `opened`, (b, columns), is the
        value that party 1 sent.
        """
        bits = self.deal.bits
        features = reduce(share + opened, bits)
        return self._plus(product(features, weights, bits), block)

    def share_of_mask(self, hidden: Array, block: int) -> Array:
        """Return party 1's share of F w for one block, uint64, (b, outputs).

        `hidden` is d = w - b, (columns, outputs), from party 0.
        """
        return self._plus(product(self._mask(block), hidden, self.deal.bits), block)

    def sacrifice(self, challenge: bytes) -> Array:
        """Return U = (W; I)^T A, (SACRIFICED, columns), for party 0; uniform."""
        bits = self.deal.bits
        total = _spare_rows(self.deal, self._seed)
        factors = self._factors(challenge, self.deal.rows)
        for block, rows in enumerate(self.deal.blocks()):
            columns = np.ascontiguousarray(factors[rows].T)
            total += product(columns, self._mask(block), bits)
        return reduce(total, bits)

    def proof(self, challenge: bytes, opened: Array | None = None) -> bytes:
        """Return a digest that is the same at both parties if the triple is correct.

        Only party 0 passes `opened`, which is U.
        """
        bits, rows = self.deal.bits, self.deal.rows
        factors = np.ascontiguousarray(self._factors(challenge, rows).T)
        residual = product(factors, self._product[:rows], bits) + self._product[rows:]
        if opened is None:
            return digest(-residual, bits)
        vectors = _vectors(self.deal, self._seed)
        return digest(residual - product(opened, vectors, bits), bits)

    def digests(self, owners: Sequence[int]) -> bytes:
        """Return :func:`seed_digest` for each owner's columns of A, at party 1."""
        return b"".join(owner_digest(self.deal, j, self._seed) for j in owners)

    def _plus(self, values: Array, block: int) -> Array:
        rows = list(self.deal.blocks())[block]
        return reduce(values + self._product[rows], self.deal.bits)


def _gram_mask(deal: Deal, seed: bytes, block: int) -> Array:
    """Return a block of A_j with the sacrificed columns on the right."""
    return _matrix(deal, seed, block, SACRIFICED)


def _owner_seed(deal: Deal, seed: bytes, owner: int) -> bytes:
    """Return the seed of an owner's columns of A_j."""
    return derive_key(seed, [*deal.parts("owner"), str(owner).encode()])


def _matrix(
    deal: Deal, seed: bytes, block: int, more: int = 0, owner: int | None = None
) -> Array:
    """Return a block of random numbers.

    The block is for all columns and `more` extra columns, or for one owner's columns.
    """
    rows = list(deal.blocks())[block]
    count = rows.stop - rows.start
    if not deal.owners:
        return deal.elements(seed, "matrix", block, (count, deal.shape[1] + more))
    seeds = [_owner_seed(deal, seed, place) for place, _ in enumerate(deal.owners)]
    parts = [*zip(seeds, deal.owners, strict=True), (seed, more)]
    if owner is not None:
        parts = [parts[owner]]
    return np.hstack(
        [deal.elements(key, "matrix", block, (count, width)) for key, width in parts]
    )


def _hidden(
    deal: Deal, seeds: Sequence[bytes], columns: Array, first: int = 0
) -> Array:
    """Return the columns of an owner minus their masks, from block `first` on."""
    opened = np.empty_like(columns)
    for start in range(0, len(columns), BLOCK_ROWS):
        part = columns[start : start + BLOCK_ROWS]
        for seed in seeds:
            block = first + start // BLOCK_ROWS
            mask = deal.elements(seed, "matrix", block, part.shape)
            part = subtract(part, mask, deal.bits)
        opened[start : start + BLOCK_ROWS] = part
    return opened


def _spare_rows(deal: Deal, seed: bytes) -> Array:
    return deal.elements(seed, "spare rows", 0, (SACRIFICED, deal.shape[1]))


def _vectors(deal: Deal, seed: bytes) -> Array:
    return deal.elements(seed, "vectors", 0, deal.shape[1:])


def combined(matrix: Array, factors: Array, bits: int) -> Array:
    """Return the product of `matrix` with (factors; I)."""
    columns = len(factors)
    main = product(np.ascontiguousarray(matrix[:, :columns]), factors, bits)
    return reduce(main + matrix[:, columns:], bits)


def digest(elements: Array, bits: int) -> bytes:
    """Return a hash, 32 bytes, of elements modulo 2^bits."""
    return hashlib.blake2b(reduce(elements, bits).tobytes(), digest_size=32).digest()
