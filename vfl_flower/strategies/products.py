"""The server's side of computing a Gram matrix, which only one party reconstructs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Any

from vfl_flower.clients import products as party
from vfl_flower.protocol.settings import settings
from vfl_flower.protocol.steps import each
from vfl_flower.protocol.terms import SERVER, Computing
from vfl_flower.secure_aggregation.products.dealing import deal_all
from vfl_flower.secure_aggregation.products.roles import Roles
from vfl_flower.secure_aggregation.products.shares import SEED_BYTES
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.parties import Parties
from vfl_flower.server.replies import Replies
from vfl_flower.server.strategy import ProtocolStrategy
from vfl_flower.typing import Array

COMPUTING = ["dealer", "computes"]
"""The settings that :class:`ComputingParties` adds."""

log = logging.getLogger("vfl_flower")


@settings
class ComputingParties(ProtocolStrategy):
    """Base class of strategies that compute products on secret shares."""

    _: KW_ONLY
    dealer: str = "server"
    """Who generates the correlated randomness: "server", or a party (one more round
    trip). The dealer must not collude with a computing party."""
    computes: str = ""
    """Party that computes with the label holder; the two must not collude. Default: the
    first other party that is not the dealer."""

    @property
    def computing(self) -> Computing:
        """The dealer and the computing parties, for the terms of the run."""
        return Computing(self.dealer, self.computes or None)

    def places(self, parties: Parties) -> tuple[int | None, int | None]:
        """Return the indices of `dealer` and `computes`; None means no such party."""
        places = {info.name: place for place, info in enumerate(parties)}
        return places.get(self.dealer), places.get(self.computes)

    def roles(
        self,
        parties: Parties,
        owners: Sequence[int],
        rows: int,
        holder: int | None = None,
        **more: int,
    ) -> Roles:
        """Check the parties; return their roles. `holder` reconstructs the result."""
        holder = parties.label_holder if holder is None else holder
        (dealing, second), dealer = self.places(parties), self.dealer
        names = ", ".join(info.name for info in parties)
        others = [j for j in range(len(parties)) if j not in (holder, dealing)]
        if (dealing is None) != (dealer == SERVER) or dealing == holder or not others:
            raise FederationError(
                f"dealer must be {SERVER!r} or the name of a party without labels, in "
                f"addition to two computing parties, got {dealer!r} (parties: {names})"
            )
        if self.computes and second not in others:
            raise FederationError(
                "computes must be the name of a party that is neither the label holder "
                f"nor the dealer, got {self.computes!r} (parties: {names})"
            )
        second = others[0] if second is None else second
        return Roles(holder, second, list(owners), rows, dealing, **more)


def warn_of_constant(constant: bool) -> None:
    """Warn of a constant model, and name the log that gives the reason."""
    if constant:
        log.warning(
            "the model predicts a constant: the label holder did not use its labels, "
            "and its log states which rule the labels break"
        )


def deal(parties: Parties, roles: Roles) -> dict[str, Any]:
    """Return the dealer's correlated randomness, as arguments of a step."""
    if roles.dealer is None:
        root = parties.checkpoint.token(SEED_BYTES)
        dealt = deal_all(roles.deal(parties.session), root, roles)
        return {"dealt": each(dealt)}
    replies = parties.ask(party.deal, roles=roles)
    return {"delivered": passed_on(replies, "delivered")}


def secret(replies: Replies[Any], name: str) -> list[dict[int, Array]]:
    """Return, for each party, the values encrypted for it, by sender."""
    sent: list[dict[int, Array]] = replies.secrets.get(name, [{}] * len(replies))
    return sent


def passed_on(replies: Replies[Any], name: str) -> dict[int, Array]:
    """Return, for each party, the values sent to it under `name`, or None."""
    return each([sent or None for sent in secret(replies, name)])


def multiply(
    parties: Parties,
    roles: Roles,
    hidden: Replies[Any],
    joint: Replies[Any] | None = None,
) -> dict[int, Array]:
    """Have two parties multiply; return the share for the party that adds both shares.

    This party is the first of the two.
    """
    replies = parties.ask(
        party.multiply,
        openings=passed_on(hidden, "openings"),
        checks=passed_on(hidden, "checks"),
        joint=None if joint is None else passed_on(joint, "joint"),
    )
    return secret(replies, "share")[roles.first]
