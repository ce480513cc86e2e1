"""Products of one party's private integer matrix with another party's shares.

Parties 0 and 1 compute. One of them, the *holder*, has a private matrix Z (n x K): its
own bins in one-hot form, or its shares of other parties' bins. The *other* party has s
(n x m): its shares of some columns, in fixed point. The result is a share of Z^T s
modulo 2^k at each party. Z is opened only once, under a mask A, for all later products.
Each s is opened under a separate mask M (P. Mohassel and Y. Zhang, "SecureML", IEEE S&P
2017):

.. code-block:: text

    once    the holder opens E = Z - A
    each s  the other opens W = s - M
            Z^T s = Z^T W + E^T M + A^T M

The holder computes the first term, the other party computes the second term, and both
have shares of the last term.

The dealer gives the holder the seed of A and K x m numbers, which are the holder's
share of A^T M. The other party's share follows from its seed of M. E and W are uniform
to their recipients. Using A for many products reveals nothing, because E is sent only
once, and each M and each share of A^T M is new.

An integer times a number with f fraction bits has f fraction bits, so no bits are ever
cut off: Z^T s is exact as long as it fits into 2^k. If both parties have shares of s =
s_0 + s_1, the holder alone computes the product of Z^T with its own share. If Z
is one-hot, the holder sums by bin (:func:`bin_sums`); the products with E and A are
dense.

**A dealer that sends a wrong A^T M**, or seeds that do not match it, would change the
result. So A has additional columns B that hide no column of Z. Together with E, the
holder opens U = A V + B, where V is random and unknown to the dealer. For each product,
both parties compare V^T [A^T M] + [B^T M], which the other party computes as U^T M
minus its share. U is uniform, and is also opened only once for all products. An error
passes the check with probability 2^-SACRIFICED
(:mod:`vfl_flower.secure_aggregation.products.triples`). Nothing checks whether the
holder opens the correct Z or the other party opens the correct s.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from vfl_flower.secure_aggregation.fixed_point import reduce
from vfl_flower.secure_aggregation.products.ring import product
from vfl_flower.secure_aggregation.products.shares import (
    BLOCK_ROWS,
    NOTHING,
    Deal,
    Dealt,
    pack,
    subtract,
    unpack,
)
from vfl_flower.secure_aggregation.products.triples import SACRIFICED, combined, digest
from vfl_flower.typing import Array


def holder_of(deal: Deal) -> int:
    """Return the party, 0 or 1, that has Z and so owns all columns of Z.

    Since the owner is part of the use, the masks of the two directions differ. Raises
    ValueError if neither party owns all columns.
    """
    columns = deal.shape[1]
    if deal.owners not in ((columns, 0), (0, columns)):
        raise ValueError(
            f"owners must be ({columns}, 0) or (0, {columns}), got {deal.owners}"
        )
    return deal.owners.index(columns)


def factor_use(deal: Deal, number: int, columns: int) -> Deal:
    """Return the use for the product with an s that has the given number of columns.

    `number` replaces the round in the use of E, and must never be used again for a
    different s. Raises ValueError if `number` is not above this round.
    """
    if number <= deal.round:
        raise ValueError(f"number must be above the round, {deal.round}, got {number}")
    return dataclasses.replace(deal, round=number, shape=(*deal.shape, columns))


def deal_matrix(deal: Deal, root: bytes) -> Dealt:
    """Return the dealer's message to the holder of Z; the message is sent only once.

    `root` is the dealer's secret.
    """
    holder = holder_of(deal)
    return Dealt.of(deal, holder, deal.seed(root, holder))


def deal_factor(
    deal: Deal, root: bytes, number: int, columns: int
) -> tuple[Dealt, Dealt]:
    """Return the dealer's messages to parties 0 and 1 for one s."""
    use, holder = factor_use(deal, number, columns), holder_of(deal)
    other = 1 - holder
    seeds = [use.seed(root, party) for party in (0, 1)]
    second = _expanded_product(use, seeds[other])
    total = np.zeros_like(second)
    masks = _masks(deal, deal.seed(root, holder)), _masks(use, seeds[other])
    for left, right in zip(*masks, strict=True):
        total += product(left.T, right, deal.bits)
    correction = pack(subtract(total, second, deal.bits), deal.bits)
    corrections = {holder: correction, other: NOTHING}
    to_first, to_second = (Dealt.of(use, j, seeds[j], corrections[j]) for j in (0, 1))
    return to_first, to_second


def hide_matrix(
    deal: Deal, dealt: Dealt, matrix: Iterable[Array], challenge: bytes
) -> Iterator[Array]:
    """Yield blocks of (E, U), (b, K + SACRIFICED), to be sent to the other party once.

    The blocks are uniform. `challenge` is a secret of the two parties, which the dealer
    never learns. Raises ValueError if the dealer's message is for a different use or
    has been altered.
    """
    dealt.check(deal, holder_of(deal))
    factors = _challenge(deal, challenge)
    for rows, mask in zip(matrix, _masks(deal, dealt.seed), strict=True):
        hidden = subtract(rows, mask[:, : deal.shape[1]], deal.bits)
        yield np.hstack([hidden, combined(mask, factors, deal.bits)])


class PrivateProduct:
    """One party's role in computing Z^T s for one s.

    The other party sends :meth:`opening` to the holder. Both compute their shares
    (:meth:`share`): the holder from Z^T W, and the other party from
    :meth:`masked_sums`. Before anybody adds the shares, both compare their
    :meth:`proof`. Raises ValueError if the dealer's message is for a different use or
    has been altered.
    """

    def __init__(
        self, deal: Deal, party: int, dealt: Dealt, number: int, columns: int
    ) -> None:
        use, holds = factor_use(deal, number, columns), party == holder_of(deal)
        shape = deal.shape[1] + SACRIFICED, columns
        dealt.check(use, party, holds * math.prod(shape) * -(-deal.bits // 8))
        self._deal, self._use, self._seed = deal, use, dealt.seed
        if holds:
            self._product = unpack(dealt.correction, deal.bits, shape)
        else:
            self._product = _expanded_product(use, dealt.seed)

    def opening(self, factor: Array) -> Array:
        """Return W = s - M, (n, m), which the other party sends; it is uniform."""
        masks = np.concatenate([*_masks(self._use, self._seed)])
        return subtract(factor, masks, self._use.bits)

    def masked_sums(self, opened: Iterable[Array]) -> Array:
        """Return (E, U)^T M, (K + SACRIFICED, m), at the other party.

        `opened` yields the blocks of (E, U).
        """
        total = np.zeros_like(self._product)
        masks = _masks(self._use, self._seed)
        for rows, mask in zip(opened, masks, strict=True):
            total += product(rows.T, mask, self._use.bits)
        return reduce(total, self._use.bits)

    def share(self, sums: Array) -> Array:
        """Return this party's share of Z^T s, uint64, (K, m); it is uniform.

        `sums` is Z^T W at the holder, and :meth:`masked_sums` at the other party.
        """
        columns = self._use.shape[1]
        return reduce(sums[:columns] + self._product[:columns], self._use.bits)

    def proof(self, challenge: bytes, masked_sums: Array | None = None) -> bytes:
        """Return a digest that is the same at both parties if the dealer was honest.

        Only the other party, not the holder, passes its :meth:`masked_sums`.
        """
        bits, columns = self._use.bits, self._use.shape[1]
        residual = combined(self._product.T, _challenge(self._deal, challenge), bits)
        if masked_sums is not None:
            residual = masked_sums[columns:].T - residual
        return digest(residual, bits)


def one_hot(bins: Array, widths: Sequence[int]) -> Array:
    """Return the columns of Z that represent bins, uint64, (b, sum of widths).

    Column j of `bins`, integers of shape (b, p), has values below ``widths[j]``.
    """
    hot = [bins[:, [j]] == np.arange(width) for j, width in enumerate(widths)]
    return np.hstack(hot).astype("<u8")


def bin_sums(bins: Array, widths: Sequence[int], values: Array, bits: int) -> Array:
    """Return Z^T W for one-hot Z, modulo 2^bits: the sum of the rows in each bin.

    `values` is W, uint64, (n, m); `bins` and `widths` are as in :func:`one_hot`.
    """
    columns = values.shape[1]
    sums = np.zeros(sum(widths) * columns, "<u8")
    starts, places = np.cumsum([0, *widths[:-1]]), np.arange(columns)
    for first in range(0, len(bins), BLOCK_ROWS):
        block = values[first : first + BLOCK_ROWS].ravel()
        for column in (bins[first : first + BLOCK_ROWS] + starts).T:
            np.add.at(sums, (column[:, None] * columns + places).ravel(), block)
    return reduce(sums.reshape(-1, columns), bits)


def _masks(deal: Deal, seed: bytes) -> Iterator[Array]:
    """Yield the blocks of (A, B), or the blocks of M if the use is for a single s."""
    columns = deal.shape[1] + SACRIFICED if len(deal.shape) == 2 else deal.shape[2]
    for block, rows in enumerate(deal.blocks()):
        yield deal.elements(seed, "mask", block, (rows.stop - rows.start, columns))


def _expanded_product(use: Deal, seed: bytes) -> Array:
    """Return the other party's share of (A, B)^T M."""
    return use.elements(seed, "product", 0, (use.shape[1] + SACRIFICED, use.shape[2]))


def _challenge(deal: Deal, challenge: bytes) -> Array:
    """Return V."""
    return deal.elements(challenge, "challenge", 0, (deal.shape[1], SACRIFICED))
