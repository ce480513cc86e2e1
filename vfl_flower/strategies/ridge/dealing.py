"""What is dealt for a ridge model, and the sums of angles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, TypeVar

from vfl_flower.clients.ridge import dealing as party
from vfl_flower.clients.ridge.angles import AngleBits
from vfl_flower.protocol.parties import Parties
from vfl_flower.protocol.replies import Replies
from vfl_flower.protocol.steps import Sum, each, opened
from vfl_flower.secure_aggregation.products.roles import Roles
from vfl_flower.secure_aggregation.products.shares import SEED_BYTES, Deal
from vfl_flower.strategies.products import passed_on
from vfl_flower.typing import Array

T = TypeVar("T")


@dataclass(frozen=True)
class Dealing:
    """What a dealer gives for a Gram matrix and for rows, as arguments of the steps."""

    bits: AngleBits
    """Of an angle."""
    outputs: int
    """K, the number of scores of a row."""
    root: bytes
    """Secret of the server, where it deals."""
    turn: dict[str, Any]
    """For the first step of a turn."""
    rows: dict[str, Any]
    """For the first step of scores."""

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
        known = roles or of_rows
        assert known is not None
        turn: dict[str, Any] = {}
        rows: dict[str, Any] = {}
        if not known.served:
            replies = parties.ask(
                party.deal, roles=roles, row_roles=of_rows, outputs=outputs
            )
            turn["turn_parts"] = passed_on(replies, "turn_parts")
            rows["row_parts"] = passed_on(replies, "row_parts")
            return cls(bits, outputs, root, turn, rows)
        if roles is not None:
            turn["dealt"] = each(party.deal_turn(session, root, roles))
        if of_rows is not None:
            dealt = party.deal_rows(session, root, of_rows, outputs)
            rows["dealt"] = each(dealt)
        return cls(bits, outputs, root, turn, rows)

    def cosines(
        self,
        parties: Parties,
        roles: Roles,
        use: Deal,
        hidden: Replies[Any],
        name: str,
        multiple: int = 1,
    ) -> dict[str, Any]:
        """Return what the second party gets for cosines of angles of a use.

        A party that deals has sent it under a `name`; otherwise the server deals.
        """
        if not roles.served:
            return {name: passed_on(hidden, name)}
        made = party.cosines_of(use, self.root, roles, self.bits, multiple)
        return {"cosines": only(parties, roles.second, made)}


def sums_of_angles(roles: Roles, bits: int) -> dict[str, Sum | float]:
    """Return the sums of angles to ask for, one for each party that computes."""
    places = (roles.first, roles.second) if roles.joint else ()
    return {f"angles_{j}": Sum(1.0, f"circle{bits}", to=j) for j in places}


def summed_angles(roles: Roles, hidden: Replies[Any], place: int) -> Any:
    """Return the sum of angles that one party opens; None without angles."""
    return opened(hidden.sealed.pop(f"angles_{place}")) if roles.joint else None


def only(parties: Parties, place: int, value: T) -> T:
    """Give one party a value of a parameter, and the others none."""
    return each([value if j == place else None for j in range(len(parties))])


def both(parties: Parties, roles: Roles, hidden: Replies[Any]) -> Array:
    """Give each of the two parties that compute its sum of angles."""
    computing = (roles.first, roles.second)
    return each(
        [
            summed_angles(roles, hidden, j) if j in computing else None
            for j in range(len(parties))
        ]
    )
