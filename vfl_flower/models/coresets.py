"""Models of the coreset strategies: a linear model and cluster centres."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from flwr.app import ArrayRecord

from vfl_flower.models.base import Model, check_blocks, plain
from vfl_flower.numerics.row_clip import clipped
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array, Arrays


class _InBlocks(Model):
    """A model whose blocks the parties can store for later predictions."""

    @property
    def note(self) -> str:
        """Report the locations of the blocks."""
        if not self.id:
            return ""
        return f"model {self.id}: its local models are in the parties' state-dirs"

    def _named(self) -> Arrays:
        return {"model": np.array(self.id)} if self.id else {}


@dataclass
class LinearModel(_InBlocks):
    """A linear model of columns that are split across parties.

    Attributes
    ----------
    coef_ : list of Array, shape (d_j,)
        Coefficients of the columns of party j, in the unit of y per unit of the
        column.
    intercept_ : float
        Prediction at the origin, in the unit of y.
    id : str
        Id under which the parties store their blocks; "" if they store none.
    clips : dict of str to Array
        The clipping of outlying rows at each party, if all parties are in one process.

    Examples
    --------
    >>> import numpy as np
    >>> model = LinearModel([np.array([1.0, 2.0]), np.array([3.0])], intercept_=5.0)
    >>> model.predict([[[1, 1], [0, 0]], [[1], [0]]])
    array([11.,  5.])
    """

    kind: ClassVar[str] = "linear"

    coef_: list[Array]
    intercept_: float = 0.0
    id: str = ""
    clips: Arrays = field(default_factory=dict, repr=False)

    def predict(self, blocks: Sequence[Array]) -> Array:
        """Return the predictions for new rows.

        Parameters
        ----------
        blocks : sequence of Array, shape (n, d_j)
            One array per party, in party order.

        Returns
        -------
        Array, shape (n,)
            sum_j X^(j) theta^(j) + intercept.

        Raises
        ------
        ValueError
            The blocks do not match the training parties.
        """
        X = check_blocks(blocks, [len(coef) for coef in self.coef_])
        rows = [clipped(self.clips.get(f"clip_{j}"), X_j) for j, X_j in enumerate(X)]
        partial = (X_j @ coef for X_j, coef in zip(rows, self.coef_, strict=True))
        return np.asarray(sum(partial) + self.intercept_)

    def arrays(self) -> Arrays:
        """Return ``coef_0 .. coef_<T-1>``, ``intercept`` and ``clip_<j>``."""
        named = {f"coef_{j}": coef for j, coef in enumerate(self.coef_)}
        named |= {"intercept": np.array(self.intercept_, dtype=np.float64)}
        return named | self.clips | self._named()

    @classmethod
    def from_arrays(cls, arrays: ArrayRecord | Mapping[str, Array]) -> Self:
        """Return the model with these arrays; see :meth:`arrays`."""
        named = plain(arrays)
        model_id = str(named.pop("model", ""))
        intercept = float(named.pop("intercept"))
        clips = {k: named.pop(k) for k in list(named) if k.startswith("clip_")}
        coef = [named[f"coef_{j}"] for j in range(len(named))]
        return cls(coef, intercept, model_id, clips)


@shapes_only
@dataclass
class KMeansModel(_InBlocks):
    """Cluster centres whose columns are split across parties.

    Attributes
    ----------
    cluster_centers_ : list of Array, shape (k, d_j)
        Party j's columns of the k centres, in the unit of the columns.
    id : str
        Id under which the parties store their blocks; "" if they store none.
    sizes_ : Array, shape (k,)
        Number of rows in each cluster, computed from the weights of the coreset; shape
        (0,) if the server does not know the numbers.

    Examples
    --------
    >>> import numpy as np
    >>> model = KMeansModel([np.array([[0.0], [9.0]]), np.array([[1.0], [9.0]])])
    >>> model.predict([[[0], [8]], [[2], [7]]]).tolist()
    [0, 1]
    """

    kind: ClassVar[str] = "k-means"

    cluster_centers_: list[Array]
    id: str = ""
    sizes_: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def clusters(self) -> tuple[Array, Array]:
        """Centres and sizes."""
        return np.hstack(self.cluster_centers_), self.sizes_

    def predict(self, blocks: Sequence[Array]) -> Array:
        """Return the number of the centre nearest to each new row.

        Parameters
        ----------
        blocks : sequence of Array, shape (n, d_j)
            One array per party, in party order.

        Returns
        -------
        Array, shape (n,)
            Cluster numbers, from 0.

        Raises
        ------
        ValueError
            The blocks do not match the training parties.
        """
        from vfl_flower.numerics.kmeans import assign

        X = check_blocks(blocks, [c.shape[1] for c in self.cluster_centers_])
        labels, _ = assign(np.hstack(X), np.hstack(self.cluster_centers_))
        return labels

    def arrays(self) -> Arrays:
        """Return ``centers_0 .. centers_<T-1>``, and ``sizes`` if they are known."""
        named = {f"centers_{j}": c for j, c in enumerate(self.cluster_centers_)}
        sizes = {"sizes": self.sizes_} if len(self.sizes_) else {}
        return named | sizes | self._named()

    @classmethod
    def from_arrays(cls, arrays: ArrayRecord | Mapping[str, Array]) -> Self:
        """Return the model with these arrays; see :meth:`arrays`."""
        named = plain(arrays)
        model_id = str(named.pop("model", ""))
        sizes = named.pop("sizes", np.zeros(0))
        return cls([named[f"centers_{j}"] for j in range(len(named))], model_id, sizes)
