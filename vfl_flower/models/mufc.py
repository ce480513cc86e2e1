"""The model of MUFC: clusters that can forget rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from vfl_flower.models.base import Model, Stored
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array


@shapes_only
@dataclass
class MUFCModel(Model):
    """Global clusters of a model that can forget rows.

    Attributes
    ----------
    id : str
        Id of the run that trained the model, in hexadecimal.
    version : int
        The version is 1 after training, and increases by 1 with each completed request.
    cluster_centers_ : Array, shape (K, d)
        C_s, in the unit of the columns.
    inertia_ : float
        Sum of the squared distances of the rows to the centres assigned to their local
        centroids, where each side of the box has length 1; NaN if not requested from
        the parties.
    sizes_ : Array of int, shape (K,)
        Number of rows in each cluster; empty if not requested from the parties.
    kept : bool
        Whether the parties and the server have stored the data needed to forget rows.
    lower, upper : Array, shape (d,) or ()
        Bounds of the box by which the columns are scaled.
    labels_ : list of Array, optional
        Clusters of the rows that were not forgotten, one array per party, if all
        parties are in one process.

    Examples
    --------
    >>> import numpy as np
    >>> model = MUFCModel("1f0c5d2a9b3e4c71", 1, np.array([[-0.4], [0.4]]))
    >>> model.predict(np.array([[-0.3], [0.2]])).tolist()
    [0, 1]
    """

    kind: ClassVar[str] = "mufc"
    stored: ClassVar[Stored] = {
        "model": ("id", str),
        "version": ("version", int),
        "centers": ("cluster_centers_", np.asarray),
        "inertia": ("inertia_", float),
        "sizes": ("sizes_", np.asarray),
        "kept": ("kept", bool),
        "lower": ("lower", np.asarray),
        "upper": ("upper", np.asarray),
    }

    id: str = field()  # required, unlike in the base class
    version: int
    cluster_centers_: Array
    inertia_: float = math.nan
    sizes_: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    kept: bool = False
    lower: Array = field(default_factory=lambda: np.array(-0.5))
    upper: Array = field(default_factory=lambda: np.array(0.5))
    labels_: list[Array] | None = field(default=None, repr=False)

    @property
    def note(self) -> str:
        """Report whether the model can forget rows."""
        ability = (
            "can forget" if self.kept else "cannot forget: a state folder was missing"
        )
        return f"model {self.id}, version {self.version}, {ability}"

    @property
    def clusters(self) -> tuple[Array, Array]:
        """Centres in units of the box's sides, and the sizes of the clusters."""
        from vfl_flower.numerics.mufc import Box

        return Box(self.lower, self.upper).scale(self.cluster_centers_), self.sizes_

    def predict(self, X: Array) -> Array:
        """Return the number of each row's nearest centre, in an array of shape (n,).

        Distances are measured in sides of the box.

        Parameters
        ----------
        X : Array, shape (n, d)
            Rows in the unit of the training rows; they can be outside the box.

        Raises
        ------
        ValueError
            The rows have a different number of columns, or values that are not finite.
        """
        from vfl_flower.numerics.kmeans import assign
        from vfl_flower.numerics.mufc import Box

        rows, box = np.asarray(X), Box(self.lower, self.upper)
        d = self.cluster_centers_.shape[1]
        if rows.ndim != 2 or rows.shape[1] != d:
            raise ValueError(
                f"X must be a matrix with {d} columns, got shape {rows.shape}"
            )
        if rows.dtype.kind not in "biuf" or not np.isfinite(rows).all():
            raise ValueError("X must hold finite numbers")
        rows = rows.astype(np.float64)
        return assign(box.scale(rows), box.scale(self.cluster_centers_))[0]
