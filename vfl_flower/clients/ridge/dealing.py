"""What a dealer gives for a kernel model: the server, or a party in its place.

For the Gram matrix of training and for the scores of rows: seeds of random angles, what
the second party needs to make shares of their cosines, and the triples. The dealer sees
none of the data, and must not work with either party that computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NotRequired, TypedDict

import numpy as np
from annotated_types import Ge, Le

from vfl_flower.clients.evaluation import MAX_CLASSES, Columns, check_columns
from vfl_flower.clients.products import Bytes, check_roles, deal_all
from vfl_flower.clients.ridge.angles import angle_deal, joint_fraction, place_of
from vfl_flower.numerics.random_features import Kernel
from vfl_flower.protocol.contract import PRIVATE
from vfl_flower.protocol.party import Party, PartyError
from vfl_flower.protocol.settings import Count, Natural, Positive
from vfl_flower.protocol.steps import step, sums_over
from vfl_flower.secure_aggregation import labels
from vfl_flower.secure_aggregation.fixed_point import FixedPoint
from vfl_flower.secure_aggregation.masks import derive_key
from vfl_flower.secure_aggregation.products.angles import deal_cosines
from vfl_flower.secure_aggregation.products.roles import Place, Roles
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


def _deal_angles(
    use_of: Callable[[Roles, int], Deal], session: int, root: bytes, roles: Roles
) -> list[list[Array]]:
    """Return the seed of angles for each party, in a list; none without angles."""
    if not roles.joint:
        return [[] for _ in roles.owners]
    use = use_of(roles, session)
    places = [place_of(roles, party) for party, _ in enumerate(roles.owners)]
    return [[Dealt.of(use, at, use.seed(root, at)).pack()] for at in places]


def training_angles(roles: Roles, session: int) -> Deal:
    """Return the use of dealt angles of the rows of training."""
    return angle_deal(roles, session, "angles", roles.numbers.bits)


def row_angles(roles: Roles, session: int) -> Deal:
    """Return the use of dealt angles of rows that are scored."""
    return angle_deal(roles, session, "new angles", NEW_ROWS.bits)


def deal_turn(session: int, root: bytes, roles: Roles) -> list[Array]:
    """Return what a dealer with the secret `root` sends to each party for a turn."""
    angles = _deal_angles(training_angles, session, root, roles)
    grams = deal_all(roles.deal(session), root, roles)
    pairs = zip(angles, grams, strict=True)
    return [np.concatenate([*seeds, gram]) for seeds, gram in pairs]


def cosines_of(
    use: Deal, root: bytes, roles: Roles, angle_bits: int, multiple: int = 1
) -> Array:
    """Return what the second party needs for cosines of `multiple` times angles."""
    dealt = deal_cosines(
        use, root, len(roles.owners), roles.fraction, multiple, angle_bits
    )
    return np.concatenate([message.pack() for message in dealt])


def row_deal(roles: Roles, session: int, outputs: int) -> Deal:
    """Return the use of the triple for the scores of rows."""
    shape = roles.rows, roles.columns, outputs
    owners = (*roles.owners, *(roles.joint,) * bool(roles.joint))
    return Deal(session, "scores", roles.turn, 0, shape, NEW_ROWS.bits, owners)


def deal_rows(session: int, root: bytes, roles: Roles, outputs: int) -> list[Array]:
    """Return what a dealer sends to each party for rows with K scores each."""
    made = _deal_angles(row_angles, session, root, roles)
    deal = row_deal(roles, session, outputs)
    for owner, sent in enumerate(made):
        sent.append(deal_row_owner(deal, root, owner).pack())
    first, second = deal_predictions(deal, root)
    made[roles.first].append(first.pack())
    made[roles.second].append(second.pack())
    return [np.concatenate(sent) for sent in made]


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
def deal(
    party: Party,
    roles: Roles | None = None,
    row_roles: Roles | None = None,
    outputs: Columns = 1,
) -> Delivered:
    """Deal in the place of the server, for a Gram matrix and for rows.

    What the second party needs for cosines follows while the others hide their angles.
    """
    reply: Delivered = {}
    if roles is not None:
        check_roles(party, roles, fraction=joint_fraction(roles.rows))
        if party.index == roles.dealer:
            dealt = deal_turn(party.session, root_of(party), roles)
            reply["turn_parts"] = dict(enumerate(dealt))
    if row_roles is not None:
        check_roles(party, row_roles, fraction=NEW_ROWS.fraction, labels=False)
        if party.index == row_roles.dealer:
            dealt = deal_rows(party.session, root_of(party), row_roles, outputs)
            reply["row_parts"] = dict(enumerate(dealt))
    return reply


class PartInfo(TypedDict):
    """Reply of :func:`part`; the dealing party has more for each party."""

    index: Count
    parties: Natural
    holder: Count
    outputs: Annotated[int, Ge(0), Le(MAX_CLASSES)]
    local: Count
    n_features: Count
    kernel: Kernel
    bandwidth: Positive
    first_rows: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]


@step
@sums_over("none", "it sends random numbers alone")
def part(
    party: Party, dealer: Place | None = None, second: Place | None = None
) -> PartInfo:
    """Describe the local model, and deal for the first rows that are predicted.

    A dealing party knows from its local model who has how many columns, so the others
    need not wait for what it deals. By default the server deals, and the second party
    is the first of the others.
    """
    if "local" not in party.part:
        raise PartyError("this run has no model of this kind")
    model = party.part
    check_columns(party, model["n_columns"], list(model["columns"]))
    holder, joint = model["holder"], model["n_features"]
    reply: PartInfo = {
        "index": model["index"],
        "parties": model["n_parties"],
        "holder": holder,
        "outputs": len(model["intercept"]) if "coef" in model else 0,
        "local": model["local"],
        "n_features": joint,
        "kernel": model["kernel"],
        "bandwidth": model["bandwidth"],
    }
    if dealer is None or party.index != dealer:
        return reply
    widths = [int(width) for width in model["widths"]]
    rows = row_blocks(party.n_rows, sum(widths) + joint)[0]
    widths[holder] = 0
    if second is None:
        second = min({*range(party.n_parties)} - {holder, dealer})
    fraction = NEW_ROWS.fraction
    roles = Roles(holder, second, widths, len(rows), dealer, joint, fraction)
    check_roles(party, roles, fraction=fraction, labels=False)
    dealt = deal_rows(party.session, root_of(party), roles, model["outputs"])
    reply["first_rows"] = dict(enumerate(dealt))
    return reply
