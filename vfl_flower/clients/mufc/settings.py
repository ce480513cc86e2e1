"""Settings that the server and the parties share to train clusters that can forget."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from vfl_flower.numerics.mufc import Box, Quantizer
from vfl_flower.protocol.contract import ContractError, fields_of, flat, structure
from vfl_flower.protocol.settings import Natural, Positive
from vfl_flower.secure_aggregation.sparse_sum import SparseSum
from vfl_flower.typing import Array

MOST_NUMBERS = 2**20
"""Maximum length of a sparse sum, so that no request exhausts a party's memory."""

MOST_CLUSTERS = 2**12
"""Maximum number of clusters: a party's time grows with rows times clusters."""

LEAST_BIN_ROWS = 5
"""Minimum number of rows per centroid; a mean of fewer rows would reveal a row."""

ClusterCount = Annotated[int, Ge(1), Le(MOST_CLUSTERS)]

ServerPoints = Literal["uniform", "weighted"]

Training = Literal["init", "full"]

Privacy = Literal["scma", "none"]

PointField = Literal["hash", "paper"]


@dataclass(frozen=True, eq=False)
class TrainingSettings:
    """Training settings that the server and the parties share, for all tasks.

    These are the settings of :class:`vfl_flower.strategies.MUFC`, with "auto" and 0
    replaced by values. The bounds of the box, `lower` and `upper`, have shape (d,) or
    () and the unit of the columns. Raises ContractError if bounds or gamma are invalid.
    """

    n_clusters: ClusterCount
    local_clusters: ClusterCount
    gamma: Positive
    lower: Array
    upper: Array
    server_points: ServerPoints
    client_training: Training
    privacy: Privacy
    field: PointField
    n_init: Natural
    min_rows_per_bin: Natural = 1
    """Minimum number of rows of a party's cluster."""
    choose_clusters: bool = False
    """Whether `n_clusters` is only the maximum for each version."""
    columns: list[str] | None = None
    """Digests of the column names, in column order, if the columns have names."""

    def __post_init__(self) -> None:
        """Check the rules that types cannot express."""
        if any(bound.dtype.kind not in "iuf" for bound in (self.lower, self.upper)):
            raise ContractError("'lower' and 'upper' must hold real numbers")
        try:
            _ = self.box, self.quantizer
        except ValueError as error:
            raise ContractError(str(error)) from None

    @property
    def shows_rows(self) -> bool:
        """Whether a centroid can equal or reveal a single row."""
        few = self.client_training == "init" or self.min_rows_per_bin < LEAST_BIN_ROWS
        return few or self.privacy == "none"

    @cached_property
    def box(self) -> Box:
        """The box."""
        return Box(self.lower, self.upper)

    @cached_property
    def quantizer(self) -> Quantizer:
        """The bins."""
        return Quantizer(self.gamma)

    def code(self, n_parties: int, n_columns: int, key: bytes) -> SparseSum:
        """Return the code of Algorithm 2 for the counts of all parties.

        Raises ValueError if the bin numbers do not fit into the field of the paper, or
        if the sum is too large for a message.
        """
        n_bins = self.quantizer.n_bins
        try:
            code = SparseSum(
                self.local_clusters, n_parties, n_columns, n_bins, key, self.field
            )
        except ValueError:
            if self.field == "hash":
                raise
            raise ValueError(
                f"field must be 'hash' for {n_columns} columns of {n_bins} bins each: "
                f"{n_bins}^{n_columns} is above 2^61"
            ) from None
        if code.size > MOST_NUMBERS:
            raise ValueError(
                f"local_clusters must be lower than {self.local_clusters}: with "
                f"{n_parties} parties and {n_columns} columns, a message would have "
                f"{code.size} numbers, but the maximum is {MOST_NUMBERS}"
            )
        return code

    def stored(self) -> dict[str, Any]:
        """Return the settings as values that JSON can hold."""
        bounds = {"lower": self.lower.tolist(), "upper": self.upper.tolist()}
        return flat(self) | bounds

    @classmethod
    def restored(cls, stored: dict[str, Any]) -> TrainingSettings:
        """Return the settings that were :meth:`stored`, or raise ContractError."""
        bounds = {k: np.array(stored.get(k)) for k in ("lower", "upper")}
        return cls(**structure(fields_of(cls), stored | bounds, {}))
