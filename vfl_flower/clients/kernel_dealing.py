"""What a dealer gives for a kernel model: the server, or a party in its place.

For the Gram matrices of training and for the scores of rows: seeds of random angles,
what the second party needs to make shares of their cosines, and the triples. The dealer
sees none of the data, and must not work with either party that computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NotRequired, TypedDict

import numpy as np

from vfl_flower.clients.fdskl import Columns
from vfl_flower.clients.kernel_angles import (
    FRACTION,
    AngleBits,
    angle_deals,
    place_of,
)
from vfl_flower.clients.moments import Bytes, deal_all
from vfl_flower.clients.moments_roles import Roles, check_roles
from vfl_flower.protocol.contract import PRIVATE
from vfl_flower.protocol.party import Party
from vfl_flower.protocol.steps import parts_of, step
from vfl_flower.secure_aggregation.angle_shares import deal_cosines
from vfl_flower.secure_aggregation.fixed_point import FixedPoint
from vfl_flower.secure_aggregation.masks import derive_key
from vfl_flower.secure_aggregation.shares import Deal, Dealt
from vfl_flower.secure_aggregation.triples import deal_predictions, deal_row_owner
from vfl_flower.typing import Array

NEW_ROWS = FixedPoint(56, FRACTION, 1.01)
"""Encoding of the features of rows to predict."""


def _deal_angles(deals: Sequence[Deal], root: bytes, roles: Roles) -> list[list[Array]]:
    """Return seeds of angles for each party."""
    seeds: list[list[Array]] = [[] for _ in roles.owners]
    for deal in deals:
        for party, sent in enumerate(seeds):
            place = place_of(roles, party)
            sent.append(Dealt.of(deal, place, deal.seed(root, place)).pack())
    return seeds


def _deal_cosines(
    deals: Sequence[Deal], root: bytes, roles: Roles, angle_bits: int, multiple: int = 1
) -> Array:
    """Return the cosines of the second party."""
    count = len(roles.owners)
    return np.concatenate(
        [
            dealt.pack()
            for deal in deals
            for dealt in deal_cosines(
                deal, root, count, FRACTION, (multiple,), angle_bits
            )
        ]
    )


def deal_turn(session: int, root: bytes, roles: Roles) -> list[Array]:
    """Return what a dealer sends to each party for a turn.

    Parameters
    ----------
    session : int
        Number of the session.
    root : bytes
        Secret of the dealer, 32 bytes.
    roles : Roles
        Who does what.
    """
    deals = roles.deals(session)
    angles = _deal_angles(
        angle_deals(roles, session, "angles", deals[0].bits), root, roles
    )
    others = deal_all(deals, root, roles)
    return [
        np.concatenate([*seeds, more])
        for seeds, more in zip(angles, others, strict=True)
    ]


def turn_cosines(
    session: int, root: bytes, roles: Roles, angle_bits: int, multiple: int = 1
) -> Array:
    """Return what it sends to the second party for cosines and sines.

    Parameters
    ----------
    session, root, roles : int, bytes, Roles
        As for :func:`deal_turn`.
    angle_bits : int
        Bits of an angle.
    multiple : int
        How many times each angle is taken.
    """
    bits = roles.deals(session)[0].bits
    deals = angle_deals(roles, session, "angles", bits)
    return _deal_cosines(deals, root, roles, angle_bits, multiple)


def row_deal(roles: Roles, session: int, outputs: int) -> Deal:
    """Return the use of the triple for the scores of rows."""
    shape = roles.rows[0], roles.columns, outputs
    owners = (*roles.owners, roles.joint)
    return Deal(session, "scores", roles.turn, 0, shape, NEW_ROWS.bits, owners)


def deal_rows(
    session: int, root: bytes, roles: Roles, outputs: int, angle_bits: int
) -> tuple[list[Array], Array]:
    """Return the same for rows to predict."""
    deals = angle_deals(roles, session, "new angles", NEW_ROWS.bits)
    made = _deal_angles(deals, root, roles)
    cosines = _deal_cosines(deals, root, roles, angle_bits)
    deal = row_deal(roles, session, outputs)
    for owner, sent in enumerate(made):
        sent.append(deal_row_owner(deal, root, owner).pack())
    for party, dealt in zip(
        (roles.first, roles.second), deal_predictions(deal, root), strict=True
    ):
        made[party].append(dealt.pack())
    return [np.concatenate(sent) for sent in made], cosines


class Delivered(TypedDict):
    """Reply of :func:`deal`: for each party, and for the second one."""

    turn_parts: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]
    turn_cosines: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]
    row_parts: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]
    row_cosines: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]


@step
@parts_of("fdskl")
def deal(
    party: Party,
    bits: AngleBits,
    roles: Roles | None = None,
    row_roles: Roles | None = None,
    outputs: Columns = 1,
) -> Delivered:
    """Deal, at the party that deals in the place of the server.

    For the Gram matrices of `roles`, and the scores of `row_roles`. What it deals for
    the same roles twice is the same.
    """
    reply: Delivered = {}
    root = derive_key(party.run_secret, [b"vfl_flower dealer 2"])
    if roles is not None:
        check_roles(party, roles, fraction=FRACTION)
        if party.index == roles.dealer:
            dealt = deal_turn(party.session, root, roles)
            cosines = turn_cosines(party.session, root, roles, bits)
            reply["turn_parts"] = dict(enumerate(dealt))
            reply["turn_cosines"] = {roles.second: cosines}
    if row_roles is not None:
        check_roles(party, row_roles, fraction=FRACTION, labels=False)
        if party.index == row_roles.dealer:
            dealt, cosines = deal_rows(party.session, root, row_roles, outputs, bits)
            reply["row_parts"] = dict(enumerate(dealt))
            reply["row_cosines"] = {row_roles.second: cosines}
    return reply
