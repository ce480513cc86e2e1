"""Correlated randomness for a ridge model, and the scores of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from vfl_flower.clients.evaluation import Measures
from vfl_flower.clients.ridge import dealing, scores
from vfl_flower.clients.ridge.state import AngleBits
from vfl_flower.protocol.steps import Sum, each, each_of, opened
from vfl_flower.secure_aggregation.products.dealing import (
    NEW_ROWS,
    cosines_of,
    deal_rows,
    deal_turn,
    row_angles,
)
from vfl_flower.secure_aggregation.products.roles import Roles
from vfl_flower.secure_aggregation.products.shares import SEED_BYTES, Deal
from vfl_flower.server.parties import Parties
from vfl_flower.server.replies import Replies
from vfl_flower.strategies.products import passed_on, secret
from vfl_flower.typing import Array


@dataclass(frozen=True)
class Dealing:
    """Correlated randomness for a Gram matrix and for rows, as arguments of steps."""

    bits: AngleBits
    outputs: int
    """K, the number of scores per row."""
    root: bytes
    """The server's secret, if the server is the dealer."""
    turn: dict[str, Any]
    rows: dict[str, Any]
    """Randomness for the step ``rows``; `turn` holds randomness for ``hide_rows``."""

    @classmethod
    def of(
        cls,
        parties: Parties,
        bits: AngleBits,
        outputs: int,
        roles: Roles | None = None,
        of_rows: Roles | None = None,
    ) -> Self:
        """Generate correlated randomness.

        If a party is the dealer, this takes a round trip.
        """
        session, root = parties.session, parties.checkpoint.token(SEED_BYTES)
        made = cls(bits, outputs, root, {}, {})
        if not all(r.served for r in (roles, of_rows) if r is not None):
            replies = parties.ask(
                dealing.deal, roles=roles, row_roles=of_rows, outputs=outputs
            )
            made.turn["turn_parts"] = passed_on(replies, "turn_parts")
            made.rows["row_parts"] = passed_on(replies, "row_parts")
            return made
        if roles is not None:
            made.turn["dealt"] = each(deal_turn(session, root, roles))
        if of_rows is not None:
            dealt = deal_rows(session, root, of_rows, outputs)
            made.rows["dealt"] = each(dealt)
        return made

    def cosines(
        self,
        parties: Parties,
        roles: Roles,
        use: Deal,
        hidden: Replies[Any],
        name: str,
        multiple: int = 1,
    ) -> dict[str, Any]:
        """Return the second party's cosines, under `name` if a party is the dealer."""
        if not roles.served:
            return {name: passed_on(hidden, name)}
        made = cosines_of(use, self.root, roles, self.bits, multiple)
        return {"cosines": each_of(parties, {roles.second: made})}


def sums_of_angles(roles: Roles, bits: int) -> dict[str, Sum | float]:
    """Return the sums of angles to request, one for each computing party."""
    places = (roles.first, roles.second) if roles.joint else ()
    return {f"angles_{j}": Sum(1.0, f"circle{bits}", to=j) for j in places}


def summed_angles(
    parties: Parties, roles: Roles, hidden: Replies[Any], *places: int
) -> Array:
    """Return the sums of angles that the parties at `places` unmask, as an argument."""
    given = places if roles.joint else ()
    sums = {j: opened(hidden.sealed.pop(f"angles_{j}")) for j in given}
    return each_of(parties, sums)


def row_roles(roles: Roles, local: Sequence[int], rows: int, turn: int = 0) -> Roles:
    """Return the parties' roles for the scores of some rows.

    The label holder itself adds the contribution of its local columns.
    """
    owners = [0 if j == roles.first else width for j, width in enumerate(local)]
    fraction = NEW_ROWS.fraction
    return replace(roles, owners=owners, rows=rows, fraction=fraction, turn=turn)


def score_rows(
    parties: Parties, roles: Roles, rows: Array, dealt: Dealing, **how: bool
) -> Measures:
    """Have the label holder reconstruct the scores of rows, in three round trips.

    `how` is passed to the step :func:`vfl_flower.clients.ridge.scores.scores`.
    """
    first, bits, outputs = roles.first, dealt.bits, dealt.outputs
    hidden = parties.ask(
        scores.rows.summing(**sums_of_angles(roles, bits)),
        roles=roles,
        outputs=outputs,
        bits=bits,
        numbers=rows.astype(np.uint32),
        **dealt.rows,
    )
    of_angles: dict[str, Any] = {}
    if roles.joint:
        use = row_angles(roles, parties.session)
        of_angles = dealt.cosines(parties, roles, use, hidden, "row_cosines")
    made = parties.ask(
        scores.products,
        outputs=outputs,
        bits=bits,
        angles=summed_angles(parties, roles, hidden, roles.second),
        weights=passed_on(hidden, "weights"),
        **of_angles,
    )
    return parties.ask_one(
        first,
        scores.scores,
        angles=summed_angles(parties, roles, hidden, first),
        bits=bits,
        products=secret(made, "products")[first],
        hidden=secret(hidden, "hidden")[first],
        **how,
    )
