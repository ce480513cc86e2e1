"""The result of an alignment: the numbers of shared ids, and the name of the order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import ClassVar, Self

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.models.base import Model, Stored
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

FAR_LESS = 0.8
"""A party's ids are doubtful if its largest overlap is below this share of the overlap
of two other parties."""


@shapes_only
@dataclass
class AlignmentModel(Model):
    """The number of ids that each set of parties shares.

    Attributes
    ----------
    alignment : str
        Name under which the parties store the order.
    tag : str
        Tag of the order: the same at all parties, and different for every order.
    held_ : Array of bool, shape (k, T)
        Sets of parties, one per row, whose members share ids that no other party holds.
    counts_ : Array of int, shape (k,)
        Number of these ids for each set.
    rows_ : list of Array of int, shape (m,)
        The common rows of each party, in the common order. They are available only
        after a run in one process; otherwise they stay at the parties.

    Examples
    --------
    >>> import numpy as np
    >>> held = np.array([[True, True], [True, False]])
    >>> model = AlignmentModel("2026-q4", "", held, counts_=np.array([20, 5]))
    >>> model.n_common_, model.n_shared(0)
    (20, 25)
    """

    kind: ClassVar[str] = "alignment"
    stored: ClassVar[Stored] = {
        "alignment": ("alignment", str),
        "tag": ("tag", str),
        "held": ("held_", np.asarray),
        "counts": ("counts_", np.asarray),
    }

    alignment: str
    tag: str
    held_: Array
    counts_: Array
    rows_: list[Array] = field(default_factory=list, repr=False)

    @property
    def n_common_(self) -> int:
        """Number of ids that all parties hold, m."""
        return self.n_shared(*range(self.held_.shape[1]))

    def n_shared(self, *parties: int) -> int:
        """Return the number of ids that all these parties (and perhaps others) hold.

        Parameters
        ----------
        *parties : int
            Positions of the parties, counted from 0.
        """
        return int(self.counts_[self.held_[:, list(parties)].all(axis=1)].sum())

    def outliers(self) -> list[tuple[int, float, float]]:
        """Return parties whose ids overlap far less than the ids of two other parties.

        The overlap of two parties is the share of the smaller party's ids that the
        other party also holds. Each item contains the position of a party, its largest
        overlap, and the largest overlap of two other parties.
        """
        T = self.held_.shape[1]
        overlap = {
            (i, j): self.n_shared(i, j) / min(self.n_shared(i), self.n_shared(j))
            for i, j in combinations(range(T), 2)
        }
        outliers = []
        for party in range(T) if T > 2 else ():
            of_party = max(x for pair, x in overlap.items() if party in pair)
            of_others = max(x for pair, x in overlap.items() if party not in pair)
            if of_party < FAR_LESS * of_others:
                outliers.append((party, of_party, of_others))
        return outliers

    def counts(self, names: Sequence[str]) -> dict[str, int]:
        """Return, for each set, the number of ids held by exactly its parties."""
        counted = {}
        for held, count in zip(self.held_, self.counts_, strict=True):
            holders = [name for name, has in zip(names, held, strict=True) if has]
            who = "all parties" if all(held) else f"only {', '.join(holders)}"
            counted[who] = int(count)
        return counted

    @property
    def note(self) -> str:
        """Text about the alignment in a report."""
        return (
            f"alignment {self.alignment!r}: {self.n_common_} rows that all parties "
            f'hold; later runs use it with alignment="{self.alignment}"'
        )

    @classmethod
    def from_arrays(cls, arrays: ArrayRecord | Mapping[str, Array]) -> Self:
        """Return the model with these arrays; raise ValueError if they do not fit."""
        model = super().from_arrays(arrays)
        held, counts = model.held_, model.counts_
        if held.ndim != 2 or held.dtype != bool or counts.shape != (len(held),):
            raise ValueError("the file is damaged: held and counts do not match")
        return model
