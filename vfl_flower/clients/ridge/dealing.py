"""What a dealer gives for a kernel model: the server, or a party in its place.

For the Gram matrices of training and for the scores of rows: seeds of random angles,
what the second party needs to make shares of their cosines, and the triples. The dealer
sees none of the data, and must not work with either party that computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NotRequired, TypedDict, cast

import numpy as np

from vfl_flower.clients import fdskl
from vfl_flower.clients.fdskl import Columns, PartInfo
from vfl_flower.clients.products import Bytes, deal_all
from vfl_flower.clients.products_roles import Place, Roles, check_roles
from vfl_flower.clients.ridge.angles import angle_deals, joint_fraction, place_of
from vfl_flower.protocol.contract import PRIVATE
from vfl_flower.protocol.party import Party
from vfl_flower.protocol.steps import parts_of, step, sums_over
from vfl_flower.secure_aggregation import labels
from vfl_flower.secure_aggregation.fixed_point import FixedPoint
from vfl_flower.secure_aggregation.masks import derive_key
from vfl_flower.secure_aggregation.products.angles import deal_cosines
from vfl_flower.secure_aggregation.products.shares import Deal, Dealt
from vfl_flower.secure_aggregation.products.triples import (
    deal_predictions,
    deal_row_owner,
)
from vfl_flower.typing import Array

NEW_ROWS = FixedPoint(56, 28, 1.01)
"""Encoding of the features of rows to predict, however many there are: a score adds up
those of one row. Beside 28 fraction bits weights have 26 of the sum of their sizes."""

ROW_NUMBERS = 2**25
"""Most numbers in the columns of the rows that are predicted together."""


def _deal_angles(deals: Sequence[Deal], root: bytes, roles: Roles) -> list[list[Array]]:
    """Return the seeds of angles for each party."""
    seeds: list[list[Array]] = [[] for _ in roles.owners]
    for deal in deals:
        for party, sent in enumerate(seeds):
            place = place_of(roles, party)
            sent.append(Dealt.of(deal, place, deal.seed(root, place)).pack())
    return seeds


def _deal_cosines(
    deals: Sequence[Deal],
    root: bytes,
    roles: Roles,
    angle_bits: int,
    part: Sequence[range],
    multiple: int = 1,
) -> Array:
    """Return what the second party needs for cosines, of a part of the blocks."""
    dealt = [
        message.pack()
        for deal, blocks in zip(deals, part, strict=True)
        for message in deal_cosines(
            *(deal, root, len(roles.owners), roles.fraction, (multiple,)),
            angle_bits=angle_bits,
            blocks=blocks,
        )
    ]
    return np.concatenate(dealt)


def deal_turn(session: int, root: bytes, roles: Roles) -> list[Array]:
    """Return what a dealer sends to each party for a turn.

    `root` is the secret of the dealer, 32 bytes.
    """
    deals = roles.deals(session)
    angles = angle_deals(roles, session, "angles", deals[0].bits)
    return [
        np.concatenate([*seeds, more])
        for seeds, more in zip(
            _deal_angles(angles, root, roles),
            deal_all(deals, root, roles),
            strict=True,
        )
    ]


def turn_cosines_of(
    session: int,
    root: bytes,
    roles: Roles,
    angle_bits: int,
    number: int,
    multiple: int = 1,
) -> Array:
    """Return what the second party needs for the cosines of a part of the rows.

    `number` says which of ``roles.parts``; each angle is taken `multiple` times.
    """
    bits = roles.deals(session)[0].bits
    deals = angle_deals(roles, session, "angles", bits)
    part = roles.parts[number]
    return _deal_cosines(deals, root, roles, angle_bits, part, multiple)


def row_deal(roles: Roles, session: int, outputs: int) -> Deal:
    """Return the use of the triple for the scores of rows."""
    shape = roles.rows[0], roles.columns, outputs
    owners = (*roles.owners, roles.joint)
    return Deal(session, "scores", roles.turn, 0, shape, NEW_ROWS.bits, owners)


def deal_rows(session: int, root: bytes, roles: Roles, outputs: int) -> list[Array]:
    """Return what a dealer sends to each party for rows that are scored.

    Each row has K `outputs`; the other arguments are those of :func:`deal_turn`.
    """
    made = _deal_angles(row_angle_deals(roles, session), root, roles)
    deal = row_deal(roles, session, outputs)
    for owner, sent in enumerate(made):
        sent.append(deal_row_owner(deal, root, owner).pack())
    for party, dealt in zip(
        (roles.first, roles.second), deal_predictions(deal, root), strict=True
    ):
        made[party].append(dealt.pack())
    return [np.concatenate(sent) for sent in made]


def row_cosines_of(session: int, root: bytes, roles: Roles, angle_bits: int) -> Array:
    """Return what the second party needs for cosines of rows that are scored.

    The arguments are those of :func:`turn_cosines_of`.
    """
    deals = row_angle_deals(roles, session)
    return _deal_cosines(deals, root, roles, angle_bits, roles.whole)


def row_angle_deals(roles: Roles, session: int) -> list[Deal]:
    """Return the use of dealt angles of rows that are scored."""
    return angle_deals(roles, session, "new angles", NEW_ROWS.bits)


def row_blocks(rows: int, columns: int) -> list[Array]:
    """Return the numbers of the rows that are predicted together, block by block."""
    return np.array_split(np.arange(rows), max(1, -(-rows * columns // ROW_NUMBERS)))


def root_of(party: Party) -> bytes:
    """Return the secret of a party that deals: what it deals twice is the same."""
    return derive_key(party.run_secret, [labels.ANGLES_DEALER])


class Delivered(TypedDict):
    """Reply of :func:`deal`: for each party."""

    turn_parts: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]
    row_parts: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]


@step
@sums_over("none", "it sends random numbers alone")
@parts_of("fdskl")
def deal(
    party: Party,
    roles: Roles | None = None,
    row_roles: Roles | None = None,
    outputs: Columns = 1,
) -> Delivered:
    """Deal, at the party that deals in the place of the server.

    The Gram matrices use `roles`, and the scores `row_roles`. What the second party
    needs for cosines follows while the others hide their angles.
    """
    reply: Delivered = {}
    if roles is not None:
        fraction = joint_fraction(sum(roles.rows))
        check_roles(party, roles, fraction=fraction)
        if party.index == roles.dealer:
            dealt = deal_turn(party.session, root_of(party), roles)
            reply["turn_parts"] = dict(enumerate(dealt))
    if row_roles is not None:
        check_roles(party, row_roles, fraction=NEW_ROWS.fraction, labels=False)
        if party.index == row_roles.dealer:
            dealt = deal_rows(party.session, root_of(party), row_roles, outputs)
            reply["row_parts"] = dict(enumerate(dealt))
    return reply


class PartDealt(PartInfo):
    """Reply of :func:`part`; the dealing party has more for each party."""

    first_rows: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]


@step
@sums_over("none", "it sends random numbers alone")
@parts_of("fdskl")
def part(party: Party, dealer: Place, second: Place | None = None) -> PartDealt:
    """Describe the local model, and deal for the first rows that are predicted.

    The dealing party knows from its local model who has how many columns, so the others
    need not wait for what it deals.

    dealer: index of the party that deals.
    second: index of the party that computes with the label holder; default: the first
        of the others.
    """
    reply = cast(PartDealt, fdskl.part(party))
    if party.index != dealer or "widths" not in party.part:
        return reply
    holder, widths = reply["holders"][0], [int(width) for width in party.part["widths"]]
    joint = reply["n_features"]
    rows = row_blocks(party.n_rows, sum(widths) + joint)[0]
    widths[holder] = 0
    if second is None:
        second = min({*range(party.n_parties)} - {holder, dealer})
    fraction = NEW_ROWS.fraction
    roles = Roles(holder, second, widths, [len(rows)], dealer, joint, fraction)
    check_roles(party, roles, fraction=fraction, labels=False)
    dealt = deal_rows(party.session, root_of(party), roles, party.part["outputs"])
    reply["first_rows"] = dict(enumerate(dealt))
    return reply
