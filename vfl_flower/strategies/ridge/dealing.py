"""What is dealt for a ridge model, and the sums of angles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from vfl_flower.clients.ridge import dealing as party
from vfl_flower.clients.ridge.angles import AngleBits
from vfl_flower.protocol.steps import Sum, each, each_of, opened
from vfl_flower.secure_aggregation.products import dealing
from vfl_flower.secure_aggregation.products.roles import Roles
from vfl_flower.secure_aggregation.products.shares import SEED_BYTES, Deal
from vfl_flower.server.parties import Parties
from vfl_flower.server.replies import Replies
from vfl_flower.strategies.products import passed_on
from vfl_flower.typing import Array


@dataclass(frozen=True)
class Dealing:
    """What a dealer gives for a Gram matrix and for rows, as arguments of the steps."""

    bits: AngleBits
    outputs: int
    """K, the number of scores of a row."""
    root: bytes
    """Secret of the server, where it deals."""
    turn: dict[str, Any]
    rows: dict[str, Any]
    """For the first step of a turn, and of scores."""

    @classmethod
    def of(
        cls,
        parties: Parties,
        bits: AngleBits,
        outputs: int,
        roles: Roles | None = None,
        of_rows: Roles | None = None,
    ) -> Self:
        """Deal; a party needs a round trip for it, and the server none."""
        session, root = parties.session, parties.checkpoint.token(SEED_BYTES)
        made = cls(bits, outputs, root, {}, {})
        if not all(r.served for r in (roles, of_rows) if r is not None):
            replies = parties.ask(
                party.deal, roles=roles, row_roles=of_rows, outputs=outputs
            )
            made.turn["turn_parts"] = passed_on(replies, "turn_parts")
            made.rows["row_parts"] = passed_on(replies, "row_parts")
            return made
        if roles is not None:
            made.turn["dealt"] = each(dealing.deal_turn(session, root, roles))
        if of_rows is not None:
            dealt = dealing.deal_rows(session, root, of_rows, outputs)
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
        """Return what the second party gets for cosines; a party sent it as `name`."""
        if not roles.served:
            return {name: passed_on(hidden, name)}
        made = dealing.cosines_of(use, self.root, roles, self.bits, multiple)
        return {"cosines": each_of(parties, {roles.second: made})}


def sums_of_angles(roles: Roles, bits: int) -> dict[str, Sum | float]:
    """Return the sums of angles to ask for, one for each party that computes."""
    places = (roles.first, roles.second) if roles.joint else ()
    return {f"angles_{j}": Sum(1.0, f"circle{bits}", to=j) for j in places}


def summed_angles(
    parties: Parties, roles: Roles, hidden: Replies[Any], *places: int
) -> Array:
    """Give some parties the sums of angles that they open, if there are any."""
    given = places if roles.joint else ()
    sums = {j: opened(hidden.sealed.pop(f"angles_{j}")) for j in given}
    return each_of(parties, sums)
