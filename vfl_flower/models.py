"""Trained models: arrays with a ``predict``, saved and loaded without pickle."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord

from vfl_flower.typing import Array, Arrays

FORMAT = 1


class Model:
    """Base of the models of all strategies."""

    kind: ClassVar[str]

    def arrays(self) -> Arrays:
        """Return what defines the model, by name."""
        raise NotImplementedError

    @classmethod
    def from_arrays(cls, arrays: ArrayRecord | Mapping[str, Array]) -> Self:
        """Return the model that the arrays of a ``Result`` define."""
        raise NotImplementedError

    def to_record(self) -> ArrayRecord:
        """Return the model as Flower carries it: ``Result.arrays``."""
        return ArrayRecord({k: FlowerArray(v) for k, v in self.arrays().items()})

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model to one npz file, whole or not at all.

        Parameters
        ----------
        path : path
            The file; ``.npz`` is added where it lacks an ending.

        Returns
        -------
        Path
            The file written.
        """
        target = Path(path)
        target = target if target.suffix else target.with_suffix(".npz")
        header = {"kind": np.array(self.kind), "format": np.array(FORMAT)}
        part = target.with_name(f"{target.name}.part")
        with part.open("wb") as file:
            np.savez(file, **header, **self.arrays())  # type: ignore[arg-type]
        os.replace(part, target)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that :meth:`save` wrote.

        Raises
        ------
        ValueError
            The file holds another kind of model, or is of a later version.
        """
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        kind, version = str(arrays.pop("kind", "")), int(arrays.pop("format", 0))
        if (kind, version) != (cls.kind, FORMAT):
            raise ValueError(
                f"the file must hold a {cls.kind!r} model of format {FORMAT}, got "
                f"{kind!r} of format {version}"
            )
        return cls.from_arrays(arrays)


def _plain(arrays: ArrayRecord | Mapping[str, Any]) -> Arrays:
    return {
        name: value.numpy() if isinstance(value, FlowerArray) else value
        for name, value in arrays.items()
    }


def _check_blocks(blocks: Sequence[Array], widths: Sequence[int]) -> list[Array]:
    found = [np.asarray(block) for block in blocks]
    shapes = [block.shape for block in found]
    if len(found) != len(widths) or any(
        len(shape) != 2 or shape[1] != width or shape[0] != shapes[0][0]
        for shape, width in zip(shapes, widths, strict=True)
    ):
        raise ValueError(
            "predict takes one matrix a party, in party order, with the same rows and "
            f"{list(widths)} columns, got {len(shapes)} arrays of shapes {shapes[:5]}"
        )
    return found


@dataclass
class LinearModel(Model):
    """A linear model whose columns are split over parties.

    Attributes
    ----------
    coef_ : list of Array, shape (d_j,)
        Coefficients of the columns of party j, in the unit of y per unit of the
        column.
    intercept_ : float
        Prediction at the origin, in the unit of y.
    """

    kind: ClassVar[str] = "linear"

    coef_: list[Array]
    intercept_: float = 0.0

    def predict(self, blocks: Sequence[Array]) -> Array:
        """Return the predictions for new rows.

        Parameters
        ----------
        blocks : sequence of Array, shape (n, d_j)
            One array a party, in party order.

        Returns
        -------
        Array, shape (n,)
            sum_j X^(j) theta^(j) + intercept.

        Raises
        ------
        ValueError
            The blocks are not those of the training parties.
        """
        found = _check_blocks(blocks, [len(coef) for coef in self.coef_])
        partial = (X @ coef for X, coef in zip(found, self.coef_, strict=True))
        return np.asarray(sum(partial) + self.intercept_)

    def arrays(self) -> Arrays:
        """Return ``coef_0 .. coef_<T-1>`` and ``intercept``."""
        named = {f"coef_{j}": coef for j, coef in enumerate(self.coef_)}
        return named | {"intercept": np.array(self.intercept_, dtype=np.float64)}

    @classmethod
    def from_arrays(cls, arrays: ArrayRecord | Mapping[str, Array]) -> Self:
        """Return the model with these arrays; see :meth:`arrays`."""
        found = _plain(arrays)
        intercept = float(found.pop("intercept"))
        return cls([found[f"coef_{j}"] for j in range(len(found))], intercept)


@dataclass
class KMeansModel(Model):
    """Cluster centres whose columns are split over parties.

    Attributes
    ----------
    cluster_centers_ : list of Array, shape (k, d_j)
        The columns of party j of the k centres, in the unit of the columns.
    """

    kind: ClassVar[str] = "k-means"

    cluster_centers_: list[Array]

    def predict(self, blocks: Sequence[Array]) -> Array:
        """Return the nearest centre of each new row.

        Parameters
        ----------
        blocks : sequence of Array, shape (n, d_j)
            One array a party, in party order.

        Returns
        -------
        Array, shape (n,)
            Numbers of clusters, from 0.

        Raises
        ------
        ValueError
            The blocks are not those of the training parties.
        """
        from vfl_flower.numerics.kmeans import assign

        found = _check_blocks(blocks, [c.shape[1] for c in self.cluster_centers_])
        labels, _ = assign(np.hstack(found), np.hstack(self.cluster_centers_))
        return labels

    def arrays(self) -> Arrays:
        """Return ``centers_0 .. centers_<T-1>``."""
        return {f"centers_{j}": c for j, c in enumerate(self.cluster_centers_)}

    @classmethod
    def from_arrays(cls, arrays: ArrayRecord | Mapping[str, Array]) -> Self:
        """Return the model with these arrays; see :meth:`arrays`."""
        found = _plain(arrays)
        return cls([found[f"centers_{j}"] for j in range(len(found))])
