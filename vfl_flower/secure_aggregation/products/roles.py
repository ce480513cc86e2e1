"""The parties that compute a Gram matrix on shares, and the encoding of its columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from vfl_flower.secure_aggregation import fixed_point
from vfl_flower.secure_aggregation.products.shares import Deal

BITS = 63
"""Width of the ring: 8 bytes per element."""

NORM = 0.99
"""Length of a column, close to 1, so that the Gram matrix has 31 fraction bits."""

MOST_MEAN_SQUARE = 1.02
"""Maximum mean square of a column whose fraction bits are given."""

LARGEST = 64.0
"""Maximum absolute value in a column whose fraction bits are given."""

MOST_NUMBERS = 2**26
"""Maximum total number of values in all columns, so that no message exceeds about 500
MB. With 41 million values, the two computing parties need 1.4 GB of memory, and a
server that is the dealer needs 1.9 GB."""

Place = Annotated[int, Ge(0), Le(2**20)]
Count = Annotated[int, Ge(0)]


@dataclass(frozen=True)
class Roles:
    """The roles of the parties for one Gram matrix."""

    first: Place
    """Index of the party that computes and opens the Gram matrix."""
    second: Place
    """Index of the other computing party."""
    owners: list[int]
    """The number of columns of each party, in party order."""
    rows: Count
    """The number of rows."""
    dealer: Place | None = None
    """Index of the party that is the dealer; None: the server."""
    joint: Count = 0
    """The number of joint columns, which come last."""
    fraction: Count = 0
    """Fraction bits of a column whose mean square is at most `MOST_MEAN_SQUARE`. If 0,
    columns have a length of at most `NORM`, and their number of fraction bits is the
    maximum that fits."""
    turn: Count = 0
    """The sequence number of this Gram matrix in the run."""

    @property
    def served(self) -> bool:
        """Whether the server is the dealer."""
        return self.dealer is None

    def deals(self, index: int | None) -> bool:
        """Return whether a party, given by its index, is the dealer."""
        return index is not None and index == self.dealer

    @property
    def columns(self) -> int:
        """Number of columns of the Gram matrix."""
        return sum(self.owners) + self.joint

    @property
    def numbers(self) -> fixed_point.FixedPoint:
        """The encoding of the columns."""
        if not self.fraction:
            return fixed_point.finest_gram_fixed_point(
                self.rows, 1.0, BITS, square_sum=1.01 * NORM**2
            )
        largest = MOST_MEAN_SQUARE * self.rows
        return fixed_point.gram_fixed_point(
            self.rows, LARGEST, self.fraction, square_sum=largest
        )

    def deal(self, session: int) -> Deal:
        """Return the use of the triple; each encoding of columns has a separate use."""
        owners = (*self.owners, *(self.joint,) * bool(self.joint))
        shape, bits = (self.rows, self.columns), self.numbers.bits
        action = f"gram of {self.fraction} bits"
        return Deal(session, action, self.turn, 0, shape, bits, owners)
