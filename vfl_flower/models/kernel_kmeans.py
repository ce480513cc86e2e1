"""The model of kernel k-means: clusters of an embedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, cast

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.models.base import Model, Stored, arrays_of_parts, part_in, plain
from vfl_flower.numerics.kernel_embedding import EmbeddingPart, embed_rows, label_rows
from vfl_flower.rows import Rows
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array, Arrays


@shapes_only
@dataclass
class KernelKMeansModel(Model):
    """Clusters in a kernel's space; the parties keep the labels and a map for new rows.

    Attributes
    ----------
    id : str
        Id of the run that trained the model, in hexadecimal.
    kernel : str
        ``"gaussian"`` or ``"laplacian"``.
    gamma : float
        Parameter of the kernel.
    n_columns : int
        d, the number of columns of the rows.
    eigenvalues_ : Array, shape (s,)
        Estimates of the largest eigenvalues of the kernel matrix.
    cluster_centers_ : Array, shape (k, s)
        Centres in the embedding space, in which inner products estimate the kernel.
    inertia_ : float
        Sum of the squared distances of the embedded rows to their closest centres.
    kept : bool
        Whether all parties have a ``state-dir`` with their local models.
    parts : list of dict, optional
        Local models, one per party, if all are in one process. Each is an
        :class:`~vfl_flower.numerics.kernel_embedding.EmbeddingPart`, without a map if
        the model was trained without cem.
    sizes_ : Array, shape (k,)
        Number of rows in each cluster; shape (0,) in an incomplete model.

    Examples
    --------
    >>> import numpy as np
    >>> import vfl_flower as vf
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> X[::2] += 20
    >>> parties = [vf.Party(X[:100]), vf.Party(X[100:200]), vf.Party(X[200:])]
    >>> strategy = vf.FKKMeans(n_clusters=2, iterations=2)
    >>> model = vf.simulate(strategy, parties, seed=0).model
    >>> first, second = model.predict(np.array([[0.0, 0.0], [20.0, 20.0]]))
    >>> bool(first != second), len(model.labels_)
    (True, 3)
    """

    kind: ClassVar[str] = "kernel k-means"
    stored: ClassVar[Stored] = {
        "model": ("id", str),
        "kernel": ("kernel", str),
        "gamma": ("gamma", float),
        "n_columns": ("n_columns", int),
        "eigenvalues": ("eigenvalues_", np.asarray),
        "centers": ("cluster_centers_", np.asarray),
        "inertia": ("inertia_", float),
        "kept": ("kept", bool),
        "sizes": ("sizes_", np.asarray),
    }

    id: str = field()  # required, unlike in the base class
    kernel: str
    gamma: float
    n_columns: int
    eigenvalues_: Array
    cluster_centers_: Array
    inertia_: float
    kept: bool = False
    parts: list[dict[str, Any]] | None = field(default=None, repr=False)
    sizes_: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def clusters(self) -> tuple[Array, Array]:
        """Centres in the space of the embedding, and sizes."""
        return self.cluster_centers_, self.sizes_

    @property
    def note(self) -> str:
        """Report the location of the labels."""
        if self.kept:
            return f"model {self.id}: labels and local models are in state-dirs"
        return f"model {self.id}: parties without a state-dir store no labels"

    @property
    def labels_(self) -> list[Array]:
        """Clusters of the training rows, one array of shape (n_m,) per party.

        Raises
        ------
        ValueError
            The labels are at the parties.
        """
        return [np.asarray(part["labels"]) for part in self._parts()]

    def transform(self, X: Array) -> Array:
        """Return the embedding of each row; inner products estimate the kernel.

        The result has shape (n, s).

        Parameters
        ----------
        X : Array, shape (n, d)
            Training rows or new rows, in the unit of the training rows.

        Raises
        ------
        ValueError
            The rows do not have the training columns, or no local model with a map is
            in this process.
        """
        return embed_rows(self._map(X), np.asarray(X))

    def predict(self, X: Array) -> Array:
        """Return the cluster of each row, as an array of shape (n,).

        See :meth:`transform` for `X` and for the errors.
        """
        return label_rows(self._map(X), np.asarray(X))

    @classmethod
    def label_rows(cls, part: Mapping[str, Any], X: Array | Rows) -> Array:
        """Return the clusters, (n,), that one party's local model assigns to rows.

        Raises ValueError if the local model has no map for rows.
        """
        return label_rows(_with_map(part), X)

    def _parts(self) -> list[dict[str, Any]]:
        if self.parts is None:
            raise ValueError(
                f"the labels and local models of model {self.id} are at the parties: "
                "to label new rows, run vfl-flower label at a party"
            )
        return self.parts

    def _map(self, X: Array) -> EmbeddingPart:
        part = _with_map(self._parts()[0])
        shape, kind = np.shape(X), np.asarray(X).dtype.kind
        if len(shape) != 2 or shape[1] != self.n_columns or kind not in "biuf":
            raise ValueError(
                f"X must be a matrix with {self.n_columns} columns of real numbers, "
                f"got shape {shape} and dtype {np.asarray(X).dtype}"
            )
        return part

    def arrays(self) -> Arrays:
        """Return the settings and any local models, as ``part_<m>.<name>``."""
        parties = {"parties": np.array(len(self.parts or []))}
        return super().arrays() | parties | arrays_of_parts(self.parts)

    @classmethod
    def from_arrays(cls, arrays: ArrayRecord | Mapping[str, Array]) -> Self:
        """Return the model with these arrays; see :meth:`arrays`."""
        stored = plain(arrays)
        model = super().from_arrays(stored)
        parts = [
            {k: v if v.ndim else v.item() for k, v in part_in(stored, m).items()}
            for m in range(int(stored["parties"]))
        ]
        model.parts = parts or None
        return model


def _with_map(part: Mapping[str, Any]) -> EmbeddingPart:
    """Return a party's local model; raise ValueError if it cannot map rows."""
    if "P" not in part:
        raise ValueError(
            "only a model trained with cem, on split rows, can label new rows"
        )
    return cast(EmbeddingPart, part)
