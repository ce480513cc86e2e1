"""Trained models: arrays with a ``predict``, saved and loaded without pickle."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

    @property
    def number(self) -> str | None:
        """Number under which parties keep their parts of the model; None: no parts."""
        return None

    @property
    def note(self) -> str:
        """What a report should say of the model besides, or nothing."""
        return ""

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
        part.unlink(missing_ok=True)  # its mode would stay
        with open(part, "wb", opener=self._opener) as file:
            np.savez(file, **header, **self.arrays())  # type: ignore[arg-type]
        os.replace(part, target)
        return target

    def _opener(self, path: str, flags: int) -> int:
        """Open a file; one with the secrets of parties for its owner alone."""
        return os.open(path, flags, 0o666 if self.number is None else 0o600)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that :meth:`save` wrote.

        Raises
        ------
        ValueError
            The file holds another kind of model, or is of a later version.
        """
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as found:
                arrays = {name: found[name] for name in found.files}
        except FileNotFoundError:
            raise
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, TypeError):
            raise ValueError("the file is damaged, or no saved model") from None
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
    for place, block in enumerate(found):
        if block.dtype.kind not in "biuf" or not np.isfinite(block).all():
            raise ValueError(
                "predict takes finite numbers, the matrix of the party at place "
                f"{place}, from 0, has others"
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


@dataclass
class KernelModel(Model):
    """A kernel model whose parts lie at the parties.

    What the server knows of it, and the parts themselves only where all of them are in
    one process, as after ``simulate``. Saved with its parts, the file holds the
    secrets of all parties.

    Attributes
    ----------
    model : str
        Number of the model: the run that trained it, hexadecimal.
    kernel : str
        ``"gaussian"`` or ``"laplacian"``.
    bandwidth : float
        In the unit of the columns.
    n_features : int
        M.
    widths : list of int
        Number of columns of each party.
    kept : bool
        Whether all parties have a ``state-dir`` and have kept their parts in it.
    parts : list of dict, optional
        One a party; see ``numerics/kernel_model.py``.
    """

    kind: ClassVar[str] = "kernel"

    model: str
    kernel: str
    bandwidth: float
    n_features: int
    widths: list[int]
    kept: bool = False
    parts: list[dict[str, Any]] | None = field(default=None, repr=False)

    @property
    def number(self) -> str:
        """Number under which parties keep their parts of the model."""
        return self.model

    @property
    def note(self) -> str:
        """Say where the model is."""
        if self.kept:
            return f"model {self.model}: its parts are in the parties' state-dirs"
        return (
            f"model {self.model} cannot predict later: not all parties have a state-dir"
        )

    def decision_function(self, blocks: Sequence[Array]) -> Array:
        """Return the scores f(x) of new rows.

        Parameters
        ----------
        blocks : sequence of Array, shape (n, d_j)
            One array a party, in party order, encoded as in training.

        Returns
        -------
        Array, shape (n, C)
            Of each class (binary: of the second), or the predicted value.

        Raises
        ------
        ValueError
            The blocks are not those of the training parties, or the parts are not here.
        """
        from vfl_flower.numerics.kernel_model import decision_function

        if self.parts is None:
            raise ValueError(
                f"the parts of model {self.model} lie at the parties: predict with a "
                f"run of task 'predict' and model '{self.model}'"
                if self.kept
                else f"the parts of model {self.model} are gone with its run: not all "
                "parties had a state-dir"
            )
        return decision_function(self.parts, _check_blocks(blocks, self.widths))

    def predict(self, blocks: Sequence[Array]) -> Array:
        """Return the predicted labels or values of new rows, shape (n,).

        See :meth:`decision_function`.
        """
        from vfl_flower.numerics.kernel_model import answers

        scores = self.decision_function(blocks)
        holder = next(part for part in self.parts or [] if "coef" in part)
        return answers(scores, holder["target"], holder["classes"])

    def arrays(self) -> Arrays:
        """Return the settings and, where they are here, ``part_<j>.<name>``."""
        named = {
            "model": np.array(self.model),
            "kernel": np.array(self.kernel),
            "bandwidth": np.array(self.bandwidth),
            "n_features": np.array(self.n_features),
            "widths": np.array(self.widths),
            "kept": np.array(self.kept),
        }
        for j, part in enumerate(self.parts or []):
            named |= {f"part_{j}.{name}": np.array(v) for name, v in part.items()}
        return named

    @classmethod
    def from_arrays(cls, arrays: ArrayRecord | Mapping[str, Array]) -> Self:
        """Return the model with these arrays; see :meth:`arrays`."""
        found = _plain(arrays)
        parts: list[dict[str, Any]] = []
        for j in range(len(found["widths"])):
            head = f"part_{j}."
            part = {k[len(head) :]: v for k, v in found.items() if k.startswith(head)}
            array = ("coef", "intercept", "classes")
            parts += [{k: v if k in array else v.tolist() for k, v in part.items()}]
        return cls(
            str(found["model"]),
            str(found["kernel"]),
            float(found["bandwidth"]),
            int(found["n_features"]),
            [int(width) for width in found["widths"]],
            bool(found["kept"]),
            parts if all(parts) else None,
        )


@dataclass
class KernelKMeansModel(Model):
    """Clusters of a kernel, whose labels and whose map of rows lie at the parties.

    Attributes
    ----------
    model : str
        Number of the model: the run that trained it, hexadecimal.
    kernel : str
        ``"gaussian"``, ``"laplacian"`` or ``"polynomial"``.
    gamma : float
        Of the kernel.
    n_columns : int
        d, of the rows that it takes.
    eigenvalues_ : Array, shape (s,)
        Estimates of the largest eigenvalues of the kernel matrix.
    cluster_centers_ : Array, shape (k, s)
        In the space of the embedding, whose squared unit is the kernel's.
    inertia_ : float
        Sum of the squared distances to the closest centre there.
    kept : bool
        Whether all parties have a ``state-dir`` and have kept their parts in it.
    missing : list of str
        Parties that failed, without which it was trained.
    parts : list of dict, optional
        One a party, where all are in one process; see ``numerics/kernel_embedding.py``.
    """

    kind: ClassVar[str] = "kernel k-means"

    model: str
    kernel: str
    gamma: float
    n_columns: int
    eigenvalues_: Array
    cluster_centers_: Array
    inertia_: float
    kept: bool = False
    missing: list[str] = field(default_factory=list)
    parts: list[dict[str, Any]] | None = field(default=None, repr=False)

    @property
    def number(self) -> str:
        """Number under which parties keep their parts of the model."""
        return self.model

    @property
    def note(self) -> str:
        """Say where the labels are, and who is missing."""
        where = (
            f"model {self.model}: labels and parts are in the parties' state-dirs"
            if self.kept
            else f"model {self.model}: parties without a state-dir keep no labels"
        )
        without = f"; without {', '.join(self.missing)}" if self.missing else ""
        return where + without

    @property
    def labels_(self) -> list[Array]:
        """Clusters of the rows of training, an array of shape (n_m,) a party.

        Only of those that took part: not of `missing` ones.

        Raises
        ------
        ValueError
            They are at the parties.
        """
        return [np.asarray(part["labels"]) for part in self._parts()]

    def transform(self, X: Array) -> Array:
        """Return the embedding of rows, shape (n, s): products estimate the kernel's.

        Parameters
        ----------
        X : Array, shape (n, d)
            Rows, of training or new ones; in the unit of those of training.

        Raises
        ------
        ValueError
            The rows have other columns, the parts are not here, or they hold no map.
        """
        from vfl_flower.numerics.kernel_embedding import embed_rows

        return embed_rows(self._map(X), np.asarray(X))

    def predict(self, X: Array) -> Array:
        """Return the clusters of rows, shape (n,); see :meth:`transform`."""
        from vfl_flower.numerics.kernel_embedding import label_rows

        return label_rows(self._map(X), np.asarray(X))

    def _parts(self) -> list[dict[str, Any]]:
        if self.parts is None:
            raise ValueError(
                f"the labels and parts of model {self.model} lie at the parties, where "
                "python -m vfl_flower.label labels new rows"
            )
        return self.parts

    def _map(self, X: Array) -> dict[str, Any]:
        part = self._parts()[0]
        if "P" not in part:
            raise ValueError(
                "only a model of split rows, trained with cem, labels new rows"
            )
        shape, kind = np.shape(X), np.asarray(X).dtype.kind
        if len(shape) != 2 or shape[1] != self.n_columns or kind not in "biuf":
            raise ValueError(
                f"X must be a matrix of {self.n_columns} columns of real numbers, got "
                f"shape {shape} and dtype {np.asarray(X).dtype}"
            )
        return part

    def arrays(self) -> Arrays:
        """Return the settings and, where they are here, ``part_<m>.<name>``."""
        named = {
            "model": np.array(self.model),
            "kernel": np.array(self.kernel),
            "gamma": np.array(self.gamma),
            "n_columns": np.array(self.n_columns),
            "eigenvalues": self.eigenvalues_,
            "centers": self.cluster_centers_,
            "inertia": np.array(self.inertia_),
            "kept": np.array(self.kept),
            "missing": np.array(self.missing, dtype=str),
            "parties": np.array(len(self.parts or [])),
        }
        for m, part in enumerate(self.parts or []):
            named |= {f"part_{m}.{name}": np.array(v) for name, v in part.items()}
        return named

    @classmethod
    def from_arrays(cls, arrays: ArrayRecord | Mapping[str, Array]) -> Self:
        """Return the model with these arrays; see :meth:`arrays`."""
        found = _plain(arrays)
        parts = []
        for m in range(int(found["parties"])):
            head = f"part_{m}."
            part = {k[len(head) :]: v for k, v in found.items() if k.startswith(head)}
            parts.append({k: v if v.ndim else v.item() for k, v in part.items()})
        return cls(
            str(found["model"]),
            str(found["kernel"]),
            float(found["gamma"]),
            int(found["n_columns"]),
            found["eigenvalues"],
            found["centers"],
            float(found["inertia"]),
            bool(found["kept"]),
            found["missing"].tolist(),
            parts or None,
        )


@dataclass
class MUFCModel(Model):
    """Global clusters of a model that can forget.

    Attributes
    ----------
    model : str
        Number of the model: the run that trained it, hexadecimal.
    version : int
        1 after training, and one more after each request.
    cluster_centers_ : Array, shape (K, d)
        C_s, in the unit of the columns.
    inertia_ : float
        Sum of the squared distances of the rows to the centres of their clusters, those
        of their local centroids, in sides of the box squared; NaN where no client has
        been asked.
    sizes_ : Array of int, shape (K,)
        Rows in each cluster; none where no client has been asked.
    kept : bool
        Whether clients and server have kept what they need to forget.
    missing : list of str
        Clients that failed, without which it was trained.
    lower, upper : Array, shape (d,) or ()
        The box that columns are scaled by.
    labels_ : list of Array, optional
        Clusters of the rows that were not forgotten, an array a client, where all are
        in one process.
    """

    kind: ClassVar[str] = "mufc"

    model: str
    version: int
    cluster_centers_: Array
    inertia_: float = math.nan
    sizes_: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    kept: bool = False
    missing: list[str] = field(default_factory=list)
    lower: Array = field(default_factory=lambda: np.array(-0.5))
    upper: Array = field(default_factory=lambda: np.array(0.5))
    labels_: list[Array] | None = field(default=None, repr=False)

    @property
    def number(self) -> str:
        """Number under which clients and server keep their state of the model."""
        return self.model

    @property
    def note(self) -> str:
        """Say whether it can forget, and who is missing."""
        can = (
            "can forget" if self.kept else "cannot forget: not all have a state folder"
        )
        without = f"; without {', '.join(self.missing)}" if self.missing else ""
        return f"model {self.model}, version {self.version}, {can}{without}"

    def predict(self, X: Array) -> Array:
        """Return the nearest centre of rows, shape (n,), in sides of the box.

        Parameters
        ----------
        X : Array, shape (n, d)
            Rows in the unit of those of training; they may be outside the box.

        Raises
        ------
        ValueError
            The rows have other columns, or values that are no finite numbers.
        """
        from vfl_flower.numerics.kmeans import assign
        from vfl_flower.numerics.mufc import Box

        rows, box = np.asarray(X), Box(self.lower, self.upper)
        d = self.cluster_centers_.shape[1]
        if rows.ndim != 2 or rows.shape[1] != d:
            raise ValueError(
                f"X must be a matrix of {d} columns, got shape {rows.shape}"
            )
        if rows.dtype.kind not in "biuf" or not np.isfinite(rows).all():
            raise ValueError("X must hold finite numbers")
        rows = rows.astype(np.float64)
        return assign(box.scale(rows), box.scale(self.cluster_centers_))[0]

    def arrays(self) -> Arrays:
        """Return the centres, sizes and settings; labels stay where they are."""
        return {
            "model": np.array(self.model),
            "version": np.array(self.version),
            "centers": self.cluster_centers_,
            "inertia": np.array(self.inertia_),
            "sizes": self.sizes_,
            "kept": np.array(self.kept),
            "missing": np.array(self.missing, dtype=str),
            "lower": np.asarray(self.lower),
            "upper": np.asarray(self.upper),
        }

    @classmethod
    def from_arrays(cls, arrays: ArrayRecord | Mapping[str, Array]) -> Self:
        """Return the model with these arrays; see :meth:`arrays`."""
        found = _plain(arrays)
        return cls(
            str(found["model"]),
            int(found["version"]),
            found["centers"],
            float(found["inertia"]),
            found["sizes"],
            bool(found["kept"]),
            found["missing"].tolist(),
            found["lower"],
            found["upper"],
        )
