"""What a run needs of the parties, and the kinds of values that may leave them."""

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
"""A kind of value that leaves a party, beyond sums over the rows of all parties."""

KINDS: dict[Kind, str] = {
    "rows": "rows in the clear, or sums that reveal them",
    "embedded-rows": "rows of an embedding, which reveal distances between rows",
    "angles": "sums over parties that reveal columns to a party, up to a linear map",
    "centroids": "rounded means of several rows, used as cluster centres",
    "predictions": "this party's contribution to the prediction of a row",
    "row-sums": "sums over the parties for single rows, or of functions chosen by the "
    "server",
    "totals": "totals of scores, and the rows that were drawn by score",
    "coefficients": "this party's coefficients of a linear model",
    "moments": "means, and sums of products of columns, to the label holder",
    "curves": "means of labels and predictions, each over 20 rows or more, or counts "
    "of rows by true and predicted class, to the server",
}
"""The kinds in words."""

LEAST_ROWS = 20  # minimum number of rows over which one number reveals little of each
SERVER = "server"  # the server, among the dealers of a ``consent.toml``
LEAST_PARTIES = 3  # minimum parties of a sum, unless the party consents to two


@dataclass(frozen=True)
class Computing:
    """Dealer, and who computes with the label holder: any two of three read rows."""

    dealer: Name = SERVER  # of correlated randomness: "server" or a party
    computes: Name | None = None  # None: the first of those without labels


OF_TWO = (
    "With two parties, the dealer and one party can together compute the other's "
    "columns: neither party may operate the dealer (the server), a third organisation "
    "must"
)
"""The warning for two computing parties."""


@dataclass(frozen=True)
class Terms:
    """What a run needs of the parties: declared by a strategy, compared with consents.

    A server may lie here: a party enforces its rules at each step.
    """

    needs: Sequence[Kind] = ()  # kinds that must leave the parties beyond sums
    wants: Sequence[Kind] = ()
    """Further kinds that may leave them; the run does less without these."""
    less: Text = ""  # a sentence that suggests a setting that reveals less, if any
    computing: Computing | None = None  # who computes products under shares
    seeded: bool = False  # whether the run has a seed, as ``hello`` reports it
    parties: Natural = 2  # the minimum; in ``hello`` their number


def in_order(kinds: Iterable[Kind]) -> tuple[Kind, ...]:
    """Return kinds in the order of :data:`KINDS`."""
    return tuple(sorted(set(kinds), key=list(KINDS).index))
