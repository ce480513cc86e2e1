"""The needs of a run, and the kinds of values that may leave the parties."""

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
    "rows": "rows in the clear, or sums that reveal rows",
    "embedded-rows": "rows of an embedding, which reveal distances between rows",
    "angles": "sums that reveal columns to label holders, up to a linear map",
    "centroids": "rounded means of several rows, used as cluster centres",
    "predictions": "this party's contribution to the prediction of a row",
    "row-sums": "sums, over the parties, of numbers for single rows or of functions "
    "that the server chooses",
    "totals": "totals of scores, and row numbers drawn according to the scores",
    "coefficients": "this party's coefficients of a linear model",
    "moments": "means, and sums of products of columns, mostly for label holders",
    "curves": "means of labels and predictions, each over 20 rows or more, or counts "
    "of rows by true and predicted class, sent to the server",
}
"""Descriptions of the kinds."""

LEAST_ROWS = 20  # minimum number of rows behind a value that reveals little about each
SERVER = "server"  # means the server in the list of dealers in a ``consent.toml``
LEAST_PARTIES = 3  # minimum number of parties in a sum, without consent to two parties


@dataclass(frozen=True)
class Computing:
    """The dealer, and the party that computes with the label holder.

    Any two of these three can together read rows.
    """

    dealer: Name = SERVER  # of correlated randomness: "server" or a party
    computes: Name | None = None  # None: the first other than holder and dealer


OF_TWO = (
    "With two parties, the dealer and one party can together compute the other "
    "party's columns: neither party may operate the dealer (the server); a third "
    "organisation must do so"
)
"""The warning for two computing parties."""


@dataclass(frozen=True)
class Terms:
    """The needs of a run, declared by a strategy and compared with parties' consents.

    A server can declare false needs, so a party enforces its rules at each step.
    """

    needs: Sequence[Kind] = ()  # kinds that must leave the parties beyond sums
    wants: Sequence[Kind] = ()
    """Further kinds, used if consents permit them; without them, the run does less."""
    less: Text = ""  # a sentence that suggests a setting that reveals less, if any
    computing: Computing | None = None  # who computes products on secret shares
    seeded: bool = False  # whether the run has a seed, as ``hello`` reports it
    parties: Natural = 2  # the minimum number; in ``hello`` the actual number


def in_order(kinds: Iterable[Kind]) -> tuple[Kind, ...]:
    """Return kinds in the order of :data:`KINDS`."""
    return tuple(sorted(set(kinds), key=list(KINDS).index))
