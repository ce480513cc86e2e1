"""Joint features of rows under shares, as a party of a kernel model makes them.

The angle of a joint feature is a sum over all parties. Each party adds random angles,
of which a dealer gave it the seed, and sends the result for the two parties that
compute. These two get the sums, which are uniform, and each makes its shares of the
cosines and sines (:mod:`vfl_flower.secure_aggregation.products.angles`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

import numpy as np

from vfl_flower.clients.products import dealt_to
from vfl_flower.party.party import Party, PartyError
from vfl_flower.protocol.contract import SEALED, Reals
from vfl_flower.protocol.errors import refusing
from vfl_flower.secure_aggregation.products.angles import cosine_shares, hide_angles
from vfl_flower.secure_aggregation.products.dealing import place_of
from vfl_flower.secure_aggregation.products.roles import Roles
from vfl_flower.secure_aggregation.products.shares import (
    BLOCK_ROWS,
    SEED_BYTES,
    Deal,
    Dealt,
    Portion,
    width_of,
)
from vfl_flower.typing import Array

HEAD = 2 * SEED_BYTES
"""Bytes of what is dealt for a party's angles."""

AngleBits = Literal[16, 32]

OpenedAngles = Annotated[Array, Reals("*"), SEALED]
"""Sums of all parties' angles, which this party alone can open, flattened."""


def hidden_angles(
    party: Party, roles: Roles, use: Deal, dealt: Array, angles: Iterable[Array]
) -> dict[int, Array]:
    """Return angles plus the dealer's random ones, for both parties that compute.

    The angles, (rows, angles), come in parts of whole blocks of rows. Raises PartyError
    if what was dealt is of another use, short or changed.
    """
    with refusing():
        head = Dealt.unpack(dealt)
        head.check(use, place_of(roles, party.index or 0))
        starts = ((part, k) for part in angles for k in range(0, len(part), BLOCK_ROWS))
        hidden = [
            hide_angles(use, head.seed, part[start : start + BLOCK_ROWS], block)
            for block, (part, start) in enumerate(starts)
        ]
    both = np.concatenate(hidden)
    return {roles.first: both, roles.second: both}


def joint_shares(
    party: Party,
    roles: Roles,
    use: Deal,
    angles: Array,
    dealt: Array,
    cosines: Array | None,
    delivered: dict[int, Array] | None,
    angle_bits: int,
    multiple: int = 1,
) -> Iterator[Array]:
    """Yield the blocks of a computing party's shares of cosines and sines.

    Each angle, the sum over all parties, is taken `multiple` times. The second party
    alone gets correlated randomness for cosines: `cosines` from the server or
    `delivered` from a party. Raises PartyError if it is missing or comes from another
    sender.
    """
    if party.index not in (roles.first, roles.second):
        raise PartyError("angles must be for the two parties that compute")
    if angles.dtype != np.dtype(f"u{angle_bits // 8}"):
        raise PartyError(f"angles must have {angle_bits} bits")
    second = party.index == roles.second
    if not second and (cosines is not None or delivered):
        raise PartyError("the second party, and no other one, is dealt cosines")
    portion = Portion(dealt_to(cosines, delivered, roles)) if second else None
    if angles.size != use.rows * use.shape[1]:
        raise PartyError(f"angles must be of {use.rows} rows, got others")
    sums, head = angles.reshape(use.shape), Dealt.unpack(dealt)
    for block, rows in enumerate(use.blocks()):
        delta, given = sums[rows], head
        if portion is not None:
            given = portion.take(2 * delta.size * width_of(use.bits))
        yield cosine_shares(
            use, int(second), given, delta, block, roles.fraction, multiple
        )
