"""What an alignment leaves: how many ids the parties share, and its name."""

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
"""Overlap of a party beside that of two others, below which its ids are doubtful."""


@shapes_only
@dataclass
class AlignmentModel(Model):
    """How many ids each set of parties shares.

    Attributes
    ----------
    alignment : str
        Name under which the parties keep the order.
    tag : str
        The same at all parties, and of no other order.
    held_ : Array of bool, shape (k, T)
        Sets of parties, one in each row: those that hold an id that no other holds.
    counts_ : Array of int, shape (k,)
        How many ids there are of each set.
    rows_ : list of Array of int, shape (m,)
        The common rows of each party, in the common order; after a run in one process
        only, since elsewhere they stay at their parties.

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
        """How many ids all parties hold, m."""
        return self.n_shared(*range(self.held_.shape[1]))

    def n_shared(self, *parties: int) -> int:
        """Return how many ids these parties hold, whoever else holds them.

        Parameters
        ----------
        *parties : int
            Places of parties, from 0.
        """
        return int(self.counts_[self.held_[:, list(parties)].all(axis=1)].sum())

    def outliers(self) -> list[tuple[int, float, float]]:
        """Return parties whose ids overlap far less than those of two others do.

        The overlap of two parties is the share of the ids of the smaller one that the
        other holds too. Each item is the place of a party, its largest overlap, and
        that of two others.
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
        """Return how many ids each set of parties holds that no other party holds."""
        counted = {}
        for held, count in zip(self.held_, self.counts_, strict=True):
            holders = [name for name, has in zip(names, held, strict=True) if has]
            who = "all parties" if all(held) else f"only {', '.join(holders)}"
            counted[who] = int(count)
        return counted

    @property
    def note(self) -> str:
        """What a report says about it."""
        return (
            f"alignment {self.alignment!r}: {self.n_common_} rows that all parties "
            f'hold; later runs use it by alignment="{self.alignment}"'
        )

    @classmethod
    def from_arrays(cls, arrays: ArrayRecord | Mapping[str, Array]) -> Self:
        """Return the model with these arrays; raise ValueError if they do not fit."""
        model = super().from_arrays(arrays)
        held, counts = model.held_, model.counts_
        if held.ndim != 2 or held.dtype != bool or counts.shape != (len(held),):
            raise ValueError("the file is damaged: held and counts do not fit")
        return model
