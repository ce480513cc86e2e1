"""What a union of levels leaves at the server: how many levels there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.models.base import Model, plain
from vfl_flower.typing import Array, Arrays


@dataclass
class LevelUnionModel(Model):
    """In how many rows each level is, whose text the server does not know.

    Attributes
    ----------
    least_rows : int
        Fewest rows of a level.
    counts_ : Array of int, shape (m,)
        Rows of each level that the parties keep, over all parties, in falling order.
    n_rare_ : int
        How many levels have fewer rows, and became "other".
    levels_ : dict of str to tuple of str
        The levels of each column; after a run in one process only, since elsewhere
        they stay at the parties.
    """

    kind: ClassVar[str] = "levels"

    least_rows: int
    counts_: Array
    n_rare_: int
    levels_: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def counts(self, names: Sequence[str]) -> dict[str, int]:
        """Return the rows of each level, whose text the server does not know."""
        return {
            f"rows with level {k}": int(n) for k, n in enumerate(self.counts_, start=1)
        }

    @property
    def note(self) -> str:
        """What a report says about it."""
        return (
            f"{len(self.counts_)} levels of at least {self.least_rows} rows, which the "
            f'parties keep, and {self.n_rare_} rarer ones, which become "other"'
        )

    def arrays(self) -> Arrays:
        """Return what defines the model, by name."""
        return {
            "least_rows": np.array(self.least_rows),
            "counts": self.counts_,
            "n_rare": np.array(self.n_rare_),
        }

    @classmethod
    def from_arrays(cls, arrays: ArrayRecord | Mapping[str, Array]) -> Self:
        """Return the model with these arrays."""
        named = plain(arrays)
        counts = named["counts"]
        if counts.ndim != 1 or counts.dtype.kind not in "iu":
            raise ValueError("the file is damaged: counts must be whole numbers")
        return cls(int(named["least_rows"]), counts, int(named["n_rare"]))
