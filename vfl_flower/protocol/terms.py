"""What a run asks of the parties, and the kinds of what may leave them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from vfl_flower.protocol.names import Name, Text
from vfl_flower.protocol.settings import Natural

Kind = Literal[
    "rows",
    "embedded-rows",
    "angles",
    "centroids",
    "predictions",
    "row-sums",
    "totals",
    "coefficients",
    "moments",
    "curves",
]
"""What leaves a party beyond sums over the rows of all parties."""

KINDS: dict[Kind, str] = {
    "rows": "rows in the clear, or sums from which they follow",
    "embedded-rows": "rows of an embedding, which reveal the distances between rows",
    "angles": "sums over parties from which a party learns columns up to a linear map",
    "centroids": "rounded means of several rows, as centres of clusters",
    "predictions": "this party's contribution to the prediction of a row",
    "row-sums": "numbers for single rows, or functions that the server chooses, "
    "summed over the parties",
    "totals": "totals of scores, and row numbers of the draws",
    "coefficients": "this party's coefficients of a linear model",
    "moments": "means, and sums of products of columns, to the party with the labels",
    "curves": "means of labels and predictions, each of 20 rows or more, and counts of "
    "true and predicted classes, to the server",
}
"""The kinds in words, as documents and refusals say them."""

LEAST_ROWS = 20  # fewest rows of which one number says little of each
SERVER = "server"  # what a ``consent.toml`` calls the server among those who may deal
LEAST_PARTIES = 3  # fewest parties of a sum, unless the party consents to two


@dataclass(frozen=True)
class Computing:
    """Who computes products under shares with the label holder: any two read rows."""

    dealer: Name = SERVER  # of correlated randomness: "server" or a party
    computes: Name | None = None  # None: the first of those without labels


OF_TWO = (
    "With two parties, who deals and one party together compute the other's columns: "
    "neither party may operate the dealer (the server), a third organisation must"
)
"""What two parties that compute must know."""


@dataclass(frozen=True)
class Terms:
    """What a run asks of the parties: a strategy declares it, and a consent answers.

    A server may say anything here: a party enforces its rules at each step.
    """

    needs: Sequence[Kind] = ()  # what must leave the parties beyond sums
    wants: Sequence[Kind] = ()
    """What else may leave them, and without which the run does less."""
    less: Text = ""  # which setting needs less, as a sentence; or nothing
    computing: Computing | None = None  # who computes products under shares
    seeded: bool = False  # whether the run has a seed; the greeting says it
    parties: Natural = 2  # the fewest; in the greeting their number


def in_order(kinds: Iterable[Kind]) -> tuple[Kind, ...]:
    """Return kinds in the order of :data:`KINDS`."""
    return tuple(sorted(set(kinds), key=list(KINDS).index))
