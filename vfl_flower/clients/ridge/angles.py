"""Joint features of rows under shares, as a party of a kernel model makes them.

The angle of a joint feature is a sum over all parties. Each party adds random angles,
of which a dealer gave it the seed, and sends the result for the two parties that
compute. These two get the sums, which are uniform, and each makes its shares of the
cosines and sines (:mod:`vfl_flower.secure_aggregation.products.angles`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from vfl_flower.clients.products import Portion, dealt_to, width_of
from vfl_flower.clients.products_roles import LARGEST, MOST_JOINT, Roles
from vfl_flower.protocol.contract import SEALED, Reals
from vfl_flower.protocol.errors import refusing
from vfl_flower.protocol.party import Party, PartyError
from vfl_flower.secure_aggregation.fixed_point import finest_gram_fixed_point
from vfl_flower.secure_aggregation.products.angles import cosine_shares, hide_angles
from vfl_flower.secure_aggregation.products.shares import BLOCK_ROWS, Deal, Dealt
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

FRACTION = 16
"""Fraction bits of a feature of many rows; its two factors have half of them each."""

FEW_ROWS = 2**12
"""Fewer training rows have as many fraction bits as the widest ring holds: rounding
moves their models more, and the third more bytes that a run sends are few."""

HEAD = 64
"""Bytes of what is dealt without a correction."""

AngleBits = Literal[16, 32]

OpenedAngles = Annotated[Array, Reals("*"), SEALED]
"""Sums of all parties' angles, which this party alone can open, flattened."""


def joint_fraction(rows: int) -> int:
    """Return the fraction bits of the features of training rows, an even number.

    A cosine with f of them is off by some ``2^-(f / 2)``. In a ring of 48 bits few rows
    have room for hardly more than many, so they take the widest one.

    >>> [joint_fraction(rows) for rows in (300, 3000, 30_000)]
    [26, 24, 16]
    """
    if rows >= FEW_ROWS:
        return FRACTION
    rows = max(rows, 1)
    numbers = finest_gram_fixed_point(rows, LARGEST, square_sum=MOST_JOINT * rows)
    return numbers.fraction // 2 * 2


def angle_deals(roles: Roles, session: int, name: str, bits: int) -> list[Deal]:
    """Return the uses of dealt angles, one for each set of rows."""
    return [
        Deal(session, name, roles.turn, half, (rows, roles.joint // 2), bits)
        for half, rows in enumerate(roles.rows)
    ]


def place_of(roles: Roles, party: int) -> int:
    """Return the place of a party among those with angles: first, second, others."""
    if party in (roles.first, roles.second):
        return int(party == roles.second)
    return 2 + [
        j for j in range(len(roles.owners)) if j not in (roles.first, roles.second)
    ].index(party)


def hidden_angles(
    party: Party,
    roles: Roles,
    deals: Sequence[Deal],
    heads: Array,
    angles: Array,
    part: Sequence[range],
) -> dict[int, Array]:
    """Return angles plus the dealer's random ones, for both parties that compute.

    The angles, shape (rows of the part, angles), are of all sets of rows in turn;
    `part` says which blocks of each. The dealer has sent `heads` to this party. Raises
    PartyError if the correlated randomness is of another use, short or changed.
    """
    place, portion = place_of(roles, party.index or 0), Portion(heads)
    hidden, start = np.empty_like(angles), 0
    with refusing():
        for deal, blocks in zip(deals, part, strict=True):
            dealt, rows = portion.take(), list(deal.blocks())
            dealt.check(deal, place)
            for block in blocks:
                stop = start + rows[block].stop - rows[block].start
                shown = hide_angles(deal, dealt.seed, angles[start:stop], block)
                hidden[start:stop], start = shown, stop
    return {roles.first: hidden, roles.second: hidden}


@shapes_only
@dataclass(frozen=True)
class AngleSums:
    """The sums of all parties' angles, and what makes shares of features of them."""

    party: int
    deltas: Array
    heads: Array
    cosines: Array | None
    fraction: int

    def shares(
        self, deals: Sequence[Deal], part: Sequence[range], multiple: int = 1
    ) -> list[Iterator[Array]]:
        """Return for each set of rows the blocks of this party's shares.

        `part` says which blocks of each set the angles are of, and `multiple` how many
        times each angle is taken.
        """
        rows = [
            [list(deal.blocks())[block] for block in blocks]
            for deal, blocks in zip(deals, part, strict=True)
        ]
        sizes = [sum(s.stop - s.start for s in of_deal) for of_deal in rows]
        if self.deltas.size != sum(sizes) * deals[0].shape[1]:
            raise PartyError(f"angles must be of {sum(sizes)} rows, got others")
        if (self.cosines is None) != (self.party == 0):
            raise PartyError("the second party, and no other one, is dealt cosines")
        deltas = np.split(self.deltas.reshape(sum(sizes), -1), np.cumsum(sizes)[:-1])
        heads, cosines = Portion(self.heads), Portion(self.cosines)  # type: ignore[arg-type]
        return [
            self._blocks(deal, delta, heads.take(), cosines, blocks, multiple)
            for deal, delta, blocks in zip(deals, deltas, part, strict=True)
        ]

    def _blocks(
        self,
        deal: Deal,
        deltas: Array,
        head: Dealt,
        cosines: Portion,
        blocks: range,
        multiple: int,
    ) -> Iterator[Array]:
        for place, block in enumerate(blocks):
            delta = deltas[place * BLOCK_ROWS : (place + 1) * BLOCK_ROWS]
            dealt = head
            if self.party:
                dealt = cosines.take(2 * delta.size * width_of(deal.bits))
            yield cosine_shares(
                *(deal, self.party, dealt, delta, block, self.fraction, (multiple,)),
                sines=True,
            )


def angle_sums(
    party: Party,
    roles: Roles,
    angles: Array,
    heads: Array,
    cosines: Array | None,
    delivered: dict[int, Array] | None,
    joint_bits: int,
) -> AngleSums:
    """Return the sums of flattened angles at one of the two parties that compute.

    The dealer has sent `heads` to this party for its angles, and for cosines to the
    second party `cosines` (if the server deals) or `delivered` (if a party does).
    Raises PartyError if this party does not compute, or if the dealer has not sent what
    it must.
    """
    if party.index not in (roles.first, roles.second):
        raise PartyError("angles must be for the two parties that compute")
    if angles.dtype != np.dtype(f"u{joint_bits // 8}"):
        raise PartyError(f"angles must have {joint_bits} bits")
    second = party.index == roles.second
    given = dealt_to(cosines, delivered, roles) if second else None
    return AngleSums(int(second), angles, heads, given, roles.fraction)
