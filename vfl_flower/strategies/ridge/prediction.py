"""What is dealt for a ridge model, and the scores of rows by its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.clients.evaluation import Measures
from vfl_flower.clients.ridge import dealing, scores
from vfl_flower.clients.ridge.state import AngleBits
from vfl_flower.models.ridge import RidgeModel
from vfl_flower.protocol.settings import settings
from vfl_flower.protocol.steps import Steps, Sum, each, each_of, opened
from vfl_flower.protocol.terms import Terms
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
from vfl_flower.server.strategy import Run
from vfl_flower.strategies.later import RowPrediction, check_places
from vfl_flower.strategies.products import ComputingParties, passed_on, secret
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
        """Return what the second party gets for cosines; a party sent it as `name`."""
        if not roles.served:
            return {name: passed_on(hidden, name)}
        made = cosines_of(use, self.root, roles, self.bits, multiple)
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


def row_roles(roles: Roles, local: Sequence[int], rows: int, turn: int = 0) -> Roles:
    """Return who does what for the scores of some rows.

    The label holder adds what its own local columns give by itself.
    """
    owners = [0 if j == roles.first else width for j, width in enumerate(local)]
    fraction = NEW_ROWS.fraction
    return replace(roles, owners=owners, rows=rows, fraction=fraction, turn=turn)


def score_rows(
    parties: Parties, roles: Roles, rows: Array, dealt: Dealing, **how: bool
) -> Measures:
    """Let the label holder open the scores of rows: three round trips.

    `how` is as :func:`vfl_flower.clients.ridge.scores.scores` has it.
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


@settings
class RidgePrediction(ComputingParties, RowPrediction):
    """Predictions for new rows by a ridge model whose parts stay with the parties.

    =============  =====================================  ==========================
    round trip     party j sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, key                       all of it
    part           place, sizes, label holder, kernel,    all of it
                   bandwidth
    rows           angles and its own columns, masked,    nothing
                   for two parties that compute; the
                   label holder its weights, masked
    products       the second party a share of the        nothing
                   scores
    scores         the label holder alone: metrics, if    the metrics
                   it is asked for them
    =============  =====================================  ==========================

    The label holder of training writes the predictions to a file in its ``state-dir``.
    Nothing is drawn, so a seed is refused.

    Raises
    ------
    FederationError
        A party is in another place than in training, or does not take part.
    PartyFailed
        A party has no part of this model, a part that does not fit the others, or other
        columns than in training.
    """

    _: KW_ONLY
    bits: Literal[16, 32] = 16
    """Bits of an angle; see :class:`~vfl_flower.strategies.SecureRidge`."""

    model_class = RidgeModel
    steps: ClassVar[Steps] = (
        *(dealing.part, dealing.deal),
        *(scores.rows, scores.products, scores.scores),
    )

    @property
    def terms(self) -> Terms:
        """Products with the weights."""
        return replace(super().terms, needs=("moments",), computing=self.computing)

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Check the parts, then let the label holder open the scores of all rows."""
        dealt_by, second = self.places(parties)
        described = parties.ask(dealing.part, dealt_by=dealt_by, second=second)
        first = described[0]
        common = ("parties", "holder", "n_features", "kernel", "bandwidth")
        check_places(parties, described, common)
        holder, M = first["holder"], first["n_features"]
        if holder >= len(parties) or not described[holder]["outputs"]:
            reason = "its part must name a label holder that has the coefficients"
            raise parties.failure(0, dealing.part, reason)
        roles = self.roles(
            *(parties, [], 0, holder), joint=M, fraction=NEW_ROWS.fraction
        )
        reply = self._scored(parties, roles, described)
        widths = [info.n_columns for info in parties]
        model = RidgeModel(
            *(self.model_id, first["kernel"], first["bandwidth"], M, widths), kept=True
        )
        return self.finish(parties, run, holder, reply, model)

    def _scored(
        self, parties: Parties, roles: Roles, described: Replies[dealing.PartInfo]
    ) -> Measures:
        """Return what the label holder reports of all rows, which come in blocks."""
        local, outputs = described.each("local"), described[roles.first]["outputs"]
        curves = self.evaluates and parties.let("curves", roles.first)
        bits: AngleBits = self.bits
        reply: Measures = {}
        blocks = dealing.row_blocks(parties.n_rows, sum(local) + roles.joint)
        for turn, block in enumerate(blocks):
            of_rows = row_roles(roles, local, len(block), turn)
            if "first_rows" in described.secrets and not turn:
                early = {"first_rows": passed_on(described, "first_rows")}
                dealt = Dealing(bits, outputs, b"", {}, early)
            else:
                dealt = Dealing.of(parties, bits, outputs, of_rows=of_rows)
            last = turn == len(blocks) - 1
            how = {"evaluate": self.evaluates, "last": last, "curves": curves and last}
            reply = score_rows(parties, of_rows, block, dealt, **how)
        return reply


@settings
class RidgeEvaluation(RidgePrediction):
    """What a ridge model whose parts stay with the parties is worth on new rows.

    The same messages as of :class:`RidgePrediction`. The label holder has the labels of
    the new rows, of at least 20, and writes no predictions: it reports to the server
    their error and the other metrics of the rows held out in training, and the curves
    if it consents, once a session.
    """

    task = "evaluate"
    question = "How good is a trained model on new rows?"
    evaluates = True
