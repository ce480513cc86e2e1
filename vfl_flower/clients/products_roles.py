"""Who does what for Gram matrices under shares, and what a party refuses of it.

One party opens the Gram matrices and a second one computes with it; a dealer, the
server or a third party, gives them correlated randomness
(:mod:`vfl_flower.clients.products`). The server says who they are and how many columns
and rows there are, and each party checks what it can.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from annotated_types import Ge, Le

from vfl_flower.protocol.consent import LEAST_ROWS, SERVER, Computing
from vfl_flower.protocol.party import Party, PartyError
from vfl_flower.protocol.settings import Count
from vfl_flower.secure_aggregation.fixed_point import (
    FixedPoint,
    finest_gram_fixed_point,
    gram_fixed_point,
)
from vfl_flower.secure_aggregation.products.shares import BLOCK_ROWS, Deal
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

BITS = 63
"""Width of the ring: 8 bytes an element."""

NORM = 0.99
"""Length of a column: the Gram matrix of unit columns, and so 31 fraction bits."""

ROWS_PER_COLUMN = 4
"""Fewest rows of a Gram matrix that is opened, for each of its columns."""

MOST_LEVERAGE = 0.5
"""Largest leverage score of a row in the columns of one party."""

MOST_COLUMNS = 2**12
"""Most columns of a Gram matrix: a triple of so many takes 64 MB."""

MOST_GRAMS = 4
"""Most Gram matrices of a run."""

MOST_JOINT = 1.02
"""Largest mean square of a column whose fraction bits are given."""

LARGEST = 64.0
"""Largest size of a number in such a column."""

PART_NUMBERS = 2**25
"""Most numbers in the columns of the rows that are multiplied together: so many that no
message has more than some 300 MB, and no party or server more than 1.5 GB in all."""

Place = Annotated[int, Ge(0), Le(2**20)]


@dataclass(frozen=True)
class Roles:
    """Who does what for the Gram matrices of a run."""

    first: Place
    """Index of the party that holds the labels, computes, and opens them."""
    second: Place
    """Index of the other party that computes."""
    owners: list[int]
    """How many columns each party has in them, in party order."""
    rows: list[int]
    """The number of rows of each Gram matrix."""
    dealer: Place | None = None
    """Index of the party that deals; None: the server."""
    joint: Count = 0
    """How many joint columns there are, the last ones."""
    fraction: Count = 0
    """Fraction bits of a column whose mean square over the rows of all Gram matrices
    together is at most `MOST_JOINT`; 0: columns have a length of at most `NORM`, and as
    many fraction bits as fit."""
    turn: Count = 0
    """Which of the run's sets of Gram matrices these are."""

    @property
    def columns(self) -> int:
        """Number of columns of a Gram matrix."""
        return sum(self.owners) + self.joint

    def numbers(self, rows: int) -> FixedPoint:
        """Return how columns of a Gram matrix of so many rows are encoded."""
        if not self.fraction:
            return encoding(rows)
        total = sum(self.rows)
        largest = MOST_JOINT * total
        return gram_fixed_point(total, LARGEST, self.fraction, square_sum=largest)

    @property
    def whole(self) -> list[range]:
        """Return the blocks of rows of each Gram matrix."""
        return [range(-(-rows // BLOCK_ROWS)) for rows in self.rows]

    @property
    def parts(self) -> list[list[range]]:
        """Return the blocks of rows of each Gram matrix that are multiplied together.

        One part after another, as many as `PART_NUMBERS` asks for.
        """
        counts = list(map(len, self.whole))
        total = sum(counts)
        parts = min(total, -(-sum(self.rows) * self.columns // PART_NUMBERS))
        ends = [total * k // parts for k in range(parts + 1)]
        offsets = [sum(counts[:half]) for half in range(len(counts))]
        return [
            [
                range(
                    min(max(start - offset, 0), count),
                    min(max(stop - offset, 0), count),
                )
                for offset, count in zip(offsets, counts, strict=True)
            ]
            for start, stop in pairwise(ends)
        ]

    def rows_of(self, part: Sequence[range]) -> list[slice]:
        """Return the rows of each Gram matrix that a part of the blocks has."""
        return [
            slice(*(min(BLOCK_ROWS * end, rows) for end in (blocks.start, blocks.stop)))
            for blocks, rows in zip(part, self.rows, strict=True)
        ]

    def deals(self, session: int) -> list[Deal]:
        """Return the use of each triple."""
        owners, columns = tuple(self.owners), self.columns
        owners += (self.joint,) * bool(self.joint)
        return [
            Deal(
                session,
                "moments",
                self.turn,
                half,
                (rows, columns),
                self.numbers(rows).bits,
                owners,
            )
            for half, rows in enumerate(self.rows)
        ]


def encoding(rows: int) -> FixedPoint:
    """Return how columns of length `NORM` become elements of the ring."""
    return finest_gram_fixed_point(rows, 1.0, BITS, square_sum=1.01 * NORM**2)


def check_roles(
    party: Party,
    roles: Roles,
    columns: int | None = None,
    fraction: int = 0,
    *,
    labels: bool = True,
    turn: int | None = None,
) -> None:
    """Refuse roles that this party's consent, its data or the protocol does not allow.

    `columns` counts this party's columns, if the step asks for any; a `fraction` of 0
    bits means no joint columns; `labels` is whether the first party holds labels; a
    step of a single turn names it. Raises PartyError, which names the rule.
    """
    places = [roles.first, roles.second]
    if roles.dealer is not None:
        places.append(roles.dealer)
    if len(set(places)) < len(places) or max(places) >= party.n_parties:
        raise PartyError(
            "the first, the second and the dealing party must be different parties: a "
            "dealer that computes reads the rows"
        )
    index = party.index or 0
    if labels and (index == roles.first) != (party.y is not None):
        raise PartyError(
            "the party with the labels, and no other one, opens the Gram matrices"
        )
    if len(roles.owners) != party.n_parties or min(roles.owners) < 0:
        raise PartyError(f"owners must be {party.n_parties} numbers of columns")
    if columns is not None and roles.owners[index] != columns:
        raise PartyError(
            f"owners must have {columns} columns of this party, got "
            f"{roles.owners[index]}"
        )
    if roles.fraction != fraction or bool(fraction) != (roles.joint > 1):
        raise PartyError(
            f"fraction must be {fraction}, and joint columns have one alone, got "
            f"{roles.fraction} and {roles.joint}"
        )
    if turn is not None and roles.turn != turn:
        raise PartyError(f"turn must be {turn}, got {roles.turn}")
    if roles.columns > MOST_COLUMNS:
        raise PartyError(
            f"a Gram matrix must have at most {MOST_COLUMNS} columns, got "
            f"{roles.columns}"
        )
    if not 1 <= len(roles.rows) <= MOST_GRAMS or not all(
        1 <= rows <= party.n_rows for rows in roles.rows
    ):
        raise PartyError(
            f"rows must be of 1 to {MOST_GRAMS} Gram matrices, each of 1 to "
            f"{party.n_rows} rows"
        )
    if party.consent is not None:
        names = party.names or [""] * party.n_parties
        dealer = SERVER if roles.dealer is None else names[roles.dealer]
        computing = Computing(dealer, names[roles.second])
        others = {*range(party.n_parties)} - {roles.first, roles.dealer}
        first = roles.second == min(others)
        if lines := party.consent.lacks_names(computing, party.n_parties, first):
            raise PartyError(
                f"this party's consent lacks {', '.join(lines)}: it must name who "
                "deals correlated randomness, and who computes with the party that has "
                "the labels, since any two of the three together read the rows"
            )


def withhold(party: Party, rule: str) -> None:
    """Note at the label holder why it does not use its labels: they break a rule.

    The server chooses the rows. So a refusal would reveal facts about labels, as often
    as it asks: instead zeros take their place, and the protocol ends with the model
    that predicts a constant. `rule` is what the labels must be.

    Raises PartyError if all parties are in one process, whose user may know.
    """
    if party.allow_plain:
        raise PartyError(rule)
    log.error(
        "the labels of this party are not used, and the model will be constant: %s",
        rule,
    )


def check_rows(party: Party, weights: Array | None, rows: int, columns: int) -> None:
    """Refuse a Gram matrix of few rows.

    Each row has one weight, shape (m,); None: all alike. Raises PartyError for fewer
    than four rows a column, than 20, or than this party's consent asks for; of rows
    with weights their effective number counts, (sum w)^2 / sum w^2 (Kish).
    """
    effective = float(rows)
    if weights is not None and rows:
        shares = weights / weights.sum()
        effective = float(1 / (shares**2).sum())
    least = max(LEAST_ROWS, ROWS_PER_COLUMN * columns)
    limit = party.consent.leaves.get("moments") if party.consent is not None else None
    if limit is not None and limit.rows is not None and effective < limit.rows:
        raise PartyError(
            "this party's consent lets moments leave it of at least "
            f"{limit.rows} rows in each Gram matrix: these {rows} rows count as "
            f"{effective:.0f}; raise the setting of their number (size, rows)"
        )
    if effective < least:
        raise PartyError(
            f"a Gram matrix of {columns} columns must be of at least {least} rows, "
            f"{ROWS_PER_COLUMN} a column of all parties and {LEAST_ROWS} in all, and "
            f"one row must not have the weight of many: these {rows} rows count as "
            f"{effective:.0f}; raise the setting of their number (size, rows) or leave "
            "out columns"
        )
