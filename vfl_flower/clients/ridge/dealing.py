"""A party that, instead of the server, generates the dealer's randomness for ridge.

The randomness is in :mod:`vfl_flower.secure_aggregation.products.dealing`. The dealer
must not collude with either computing party.
"""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict

import numpy as np
from annotated_types import Ge, Le

from vfl_flower.clients.evaluation import MAX_CLASSES, Columns, check_columns
from vfl_flower.clients.products import Secrets, check_roles
from vfl_flower.numerics.random_features import Kernel
from vfl_flower.party.party import Party, PartyError
from vfl_flower.protocol.settings import Count, Natural, Positive
from vfl_flower.protocol.steps import step_of, sums_over
from vfl_flower.secure_aggregation import labels
from vfl_flower.secure_aggregation.masks import derive_key
from vfl_flower.secure_aggregation.products import dealing
from vfl_flower.secure_aggregation.products.roles import Place, Roles
from vfl_flower.typing import Array

step = step_of("ridge")

ROW_NUMBERS = 2**25
"""Maximum number of values in the rows that are predicted together."""


def row_blocks(rows: int, columns: int) -> list[Array]:
    """Return the numbers of the rows that are predicted together, block by block."""
    return np.array_split(np.arange(rows), max(1, -(-rows * columns // ROW_NUMBERS)))


def root_of(party: Party) -> bytes:
    """Return the dealer's secret, which is the same for repeated requests."""
    return derive_key(party.run_secret, [labels.ANGLES_DEALER])


class DealtParts(TypedDict, total=False):
    """Reply of :func:`deal`: messages for each party."""

    turn_parts: Secrets
    row_parts: Secrets


@step
@sums_over("none", "the step sends only random numbers")
def deal(
    party: Party,
    roles: Roles | None = None,
    row_roles: Roles | None = None,
    outputs: Columns = 1,
) -> DealtParts:
    """On behalf of the server, send the dealer's randomness to each party.

    `roles` requests randomness for a Gram matrix, and `row_roles` requests randomness
    for the scores of rows. The second party's randomness for cosines is sent later,
    while the parties hide their angles.
    """
    reply: DealtParts = {}
    if roles is not None:
        check_roles(party, roles, fraction=dealing.joint_fraction(roles.rows))
        if roles.deals(party.index):
            dealt = dealing.deal_turn(party.session, root_of(party), roles)
            reply["turn_parts"] = dict(enumerate(dealt))
    if row_roles is not None:
        check_roles(party, row_roles, fraction=dealing.NEW_ROWS.fraction, labels=False)
        if row_roles.deals(party.index):
            dealt = dealing.deal_rows(party.session, root_of(party), row_roles, outputs)
            reply["row_parts"] = dict(enumerate(dealt))
    return reply


class RidgePartInfo(TypedDict):
    """Reply of :func:`part`; a dealer also sends randomness for each party."""

    index: Count
    parties: Natural
    holder: Count
    outputs: Annotated[int, Ge(0), Le(MAX_CLASSES)]
    local: Count
    n_features: Count
    kernel: Kernel
    bandwidth: Positive
    first_rows: NotRequired[Secrets]


@step
@sums_over("none", "the step sends only random numbers")
def part(
    party: Party, dealt_by: Place | None = None, second: Place | None = None
) -> RidgePartInfo:
    """Describe the local model; as a dealer, send randomness for the first new rows.

    If a party is the dealer, it knows each party's number of columns from its local
    model, so the other parties need not wait for the randomness. By default, the server
    is the dealer, and the other computing party is the first party that is neither
    dealer nor label holder.
    """
    if "local" not in party.part:
        raise PartyError("this run has no model for this strategy")
    model = party.part
    check_columns(party, model["n_columns"], list(model["columns"]))
    holder, joint = model["holder"], model["n_features"]
    reply: RidgePartInfo = {
        "index": model["index"],
        "parties": model["n_parties"],
        "holder": holder,
        "outputs": len(model["intercept"]) if "coef" in model else 0,
        "local": model["local"],
        "n_features": joint,
        "kernel": model["kernel"],
        "bandwidth": model["bandwidth"],
    }
    if dealt_by is None or party.index != dealt_by:
        return reply
    widths = [int(width) for width in model["widths"]]
    rows = row_blocks(party.n_rows, sum(widths) + joint)[0]
    widths[holder] = 0
    if second is None:
        second = min({*range(party.n_parties)} - {holder, dealt_by})
    fraction = dealing.NEW_ROWS.fraction
    roles = Roles(holder, second, widths, len(rows), dealt_by, joint, fraction)
    check_roles(party, roles, fraction=fraction, labels=False)
    dealt = dealing.deal_rows(party.session, root_of(party), roles, model["outputs"])
    reply["first_rows"] = dict(enumerate(dealt))
    return reply
