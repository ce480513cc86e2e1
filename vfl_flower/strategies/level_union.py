"""Unite the levels of text columns of parties that hold different rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import pydantic
from annotated_types import Ge
from flwr.app import ArrayRecord

from vfl_flower.clients import level_union as party
from vfl_flower.models.base import Model
from vfl_flower.models.level_union import LevelUnionModel
from vfl_flower.numerics.level_union import frequent
from vfl_flower.protocol.consent import LEAST_ROWS, Kind
from vfl_flower.protocol.exchange import FederationError
from vfl_flower.protocol.memory import Memory
from vfl_flower.protocol.metrics import Metric
from vfl_flower.protocol.parties import Parties
from vfl_flower.protocol.settings import settings
from vfl_flower.protocol.steps import Sum, each
from vfl_flower.protocol.strategy import ProtocolStrategy, Run
from vfl_flower.secure_aggregation import SparseSumError

log = logging.getLogger("vfl_flower")


@settings
class LevelUnion(ProtocolStrategy):
    """The union of the parties' levels that enough rows of all parties have.

    ===========  ========================================  ===========================
    round trip   party j sends                             the server learns
    ===========  ========================================  ===========================
    hello        name, sizes, digests of column names,     all of it
                 key
    begin        a digest of the names of the columns to   the digest
                 unite; the first one a key, sealed for
                 the others
    count        power sums of keyed hashes of its levels  how many levels there are,
                 and their numbers of rows, masked         and the rows of each over
                                                           all parties
    name         for the hashes with enough rows: rows,    nothing new but noise: the
                 an authenticator, and rows times the      ciphertexts of these levels
                 encrypted level, masked
    keep         whether it has kept the levels            that
    ===========  ========================================  ===========================

    A party learns each level that at least `least_rows` rows of all parties have, and
    its number of rows; all others become "other" at all parties. Nobody learns which
    party has a level, but what follows from a sum and a party's own part of it: of two
    parties each learns which levels the other has. The server knows no level. It sees
    the multiset of all counts, those of rare levels included, and whoever knows how
    frequent texts are in general can guess which count is whose.

    A server that asks for a rare level gets its ciphertext, which says nothing to it,
    and cannot tell the parties that such a level exists: they check the authenticator
    of its count, and refuse. It can leave out levels of which no single party has
    `least_rows` rows; they become "other". Together with a party, who has the key, the
    server can read all levels of all parties, though not who has them. A party that
    claims rows which it does not have learns whether the others have a few of a level.

    Notes
    -----
    The threshold union of multisets is that of L. Kissner and D. Song,
    "Privacy-Preserving Set Operations", CRYPTO 2005, there with homomorphic encryption.
    That parties with a server need only linear sketches under secure sums is from A.
    Gascón, P. Kairouz, Z. Sun and A. T. Suresh, "Federated Heavy Hitter Recovery under
    Linear Sketching", ICML 2023. Differs from it in: 1. the sketch is power sums, and
    so exact, in the place of an invertible Bloom look-up table; 2. it holds keyed
    hashes, so that the server learns no level, and texts follow for the frequent ones
    alone; 3. counts carry authenticators.

    Raises
    ------
    FederationError
        From `start`: the parties unite different columns.
    PartyFailed
        A party has no column to unite, or refuses what the server has told it.

    Examples
    --------
    >>> import numpy as np
    >>> from vfl_flower import LevelUnion, Party, simulate
    >>> parties = [Party(np.zeros((50, 1))) for _ in range(3)]
    >>> for party, rows in zip(parties, (9, 2, 10)):
    ...     party.texts = {"region": {"north": rows, "south": 30 - rows}}
    >>> parties[0].texts["region"]["west"] = 19
    >>> simulate(LevelUnion(), parties).model.levels_
    {'region': ('north', 'south', 'other')}
    """

    least_rows: Annotated[int, Ge(LEAST_ROWS)] = LEAST_ROWS
    """Fewest rows of all parties that a level must have; rarer ones become "other".
    Parties refuse fewer than 20."""
    most_levels: party.MostLevels = 1000
    """Most levels of one party that count, over all columns; of more it takes the most
    frequent. Messages and time grow with it, whatever the parties hold."""
    allow_two_parties: bool = pydantic.Field(default=False, kw_only=True)
    """Run with two parties, each of which learns which levels the other has."""

    model_class = LevelUnionModel
    question = "Which levels of text columns do enough rows of all parties have?"
    explained: ClassVar[Mapping[str, Metric]] = {
        "levels": Metric(
            "Levels kept",
            "Texts that enough rows of all parties have: each becomes a column.",
            "",
            "count",
        ),
        "rare_levels": Metric(
            "Rare levels",
            'Texts that fewer rows have. They become one level, "other".',
            "",
            "count",
        ),
    }
    partition = "horizontal"
    unites = True
    fills = True
    steps = (party.begin, party.count, party.name, party.keep)

    @property
    def needs(self) -> tuple[Kind, ...]:
        """Levels."""
        return ("levels",)

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Add up counts of hashes, and have the parties open the frequent ones."""
        parties.refuse_two("LevelUnion", self.allow_two_parties)
        replies = parties.ask(party.begin, most_levels=self.most_levels)
        told = zip(replies.each("n_texts"), replies.each("names_digest"), strict=True)
        first, *others = told
        for info, said in zip(parties[1:], others, strict=True):
            if said != first:
                raise FederationError(
                    f"all parties must unite the levels of the same columns: "
                    f"{info.name!r} has {said[0]} such columns, {parties[0].name!r} "
                    f"has {first[0]}, or others"
                )
        sealed = replies.secrets.get("key", [])
        if len(sealed) != len(parties) or sealed[0] is not None:
            sender = sealed.index(None) if sealed else 0
            raise replies.failure(sender, "the first party alone must draw the key")
        sums = parties.secure_sum(
            party.count.summing(message=Sum(group="field")),
            most_levels=self.most_levels,
            key=each(sealed),
        )
        code = party.code_of(self.most_levels, len(parties))
        try:
            tokens, counts = code.decode(
                sums["message"], parties.n_rows * first[0], exact=False
            )
        except (SparseSumError, ValueError) as error:
            raise FederationError(str(error)) from None
        named, rows, rare = frequent(tokens, counts, self.least_rows)
        totals = parties.secure_sum(
            party.name.summing(totals=Sum(group="field")), tokens=named
        )["totals"]
        kept = parties.ask(party.keep, totals=totals, least_rows=self.least_rows).each(
            "kept"
        )
        if not all(kept):
            names = [i.name for i, done in zip(parties, kept, strict=True) if not done]
            log.warning("without a state-dir, not kept at: %s", ", ".join(names))
        model = LevelUnionModel(self.least_rows, rows, rare)
        record = model.to_record()
        run.record(1, record, {"levels": len(rows), "rare_levels": rare})
        return record

    def complete(self, model: Model, memories: Sequence[Memory]) -> None:
        """Add the levels."""
        assert isinstance(model, LevelUnionModel)
        for memory in memories:
            if (united := memory.remembered("united")) is not None:
                levels = json.loads(united.tobytes())
                model.levels_ = {name: tuple(some) for name, some in levels.items()}
