"""Trained models: arrays with a ``predict`` method, saved and loaded without pickle."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord

from vfl_flower.files import DAMAGED, UnpackedSizeError, read_npz, whole_file
from vfl_flower.numerics.kernel_model import answers
from vfl_flower.rows import Rows, check_index, indexed, number_array
from vfl_flower.typing import Array, Arrays

FORMAT = 1

Stored = Mapping[str, tuple[str, Callable[[Array], Any]]]
"""For each array, by name: the attribute that it stores, and a function to read it."""


class Model:
    """Base class of the models of all strategies.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = RemovedModel("1f0c5d2a9b3e4c71").save(f"{folder}/model")
    ...     path.name, RemovedModel.load(path).model_id
    ('model.npz', '1f0c5d2a9b3e4c71')
    """

    kind: ClassVar[str]
    stored: ClassVar[Stored]

    id: str | None = None
    """Id under which parties store local models; None or "" if there are none."""

    @property
    def note(self) -> str:
        """Text about the model in a report, or ""."""
        return ""

    @property
    def clusters(self) -> tuple[Array, Array] | None:
        """Centres, of shape (k, d), and row counts of clusters, of shape (k,), or None.

        The row counts have shape (0,) if they are unknown.
        """
        return None

    def plane(self) -> dict[str, list[float]] | None:
        """Return the positions of the clusters in the plane in which they differ most.

        The keys are ``x``, ``y``, ``rows`` (the row counts of :attr:`clusters`) and
        ``shares`` (the shares of the variance that the two directions explain). Returns
        None without clusters.
        """
        from vfl_flower.numerics.plane import principal_plane

        if self.clusters is None or not len(self.clusters[0]):
            return None
        centers, sizes = self.clusters
        places, shares = principal_plane(centers, sizes)
        named = {"x": places[:, 0], "y": places[:, 1], "rows": sizes, "shares": shares}
        return {name: [float(v) for v in values] for name, values in named.items()}

    def counts(self, names: Sequence[str]) -> dict[str, int]:
        """Return the row counts in the model, by description.

        `names` are the names of the parties, in party order.
        """
        return {}

    def arrays(self) -> Arrays:
        """Return the arrays that define the model, by name."""
        pairs = [(name, attribute) for name, (attribute, _) in self.stored.items()]
        return {name: np.asarray(getattr(self, attribute)) for name, attribute in pairs}

    @classmethod
    def from_arrays(cls, arrays: ArrayRecord | Mapping[str, Array]) -> Self:
        """Return the model that the arrays of a ``Result`` define."""
        named, stored = plain(arrays), cls.stored.items()
        return cls(**{name: read(named[array]) for array, (name, read) in stored})

    @classmethod
    def label_rows(cls, part: Mapping[str, Any], X: Array | Rows) -> Array:
        """Return the labels that one party's local model assigns to rows X, (n, d).

        `part` contains the settings and arrays of the local model; the rows are encoded
        as in training. Raises ValueError if a local model alone cannot label rows.
        """
        raise ValueError("one party alone cannot label new rows with this model")

    def to_record(self) -> ArrayRecord:
        """Return the model as a Flower record, as in ``Result.arrays``."""
        return ArrayRecord({k: FlowerArray(v) for k, v in self.arrays().items()})

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model to one npz file, either completely or not at all.

        Parameters
        ----------
        path : path
            The file; ``.npz`` is added if it has no suffix.

        Returns
        -------
        Path
            The path of the written file.

        Raises
        ------
        ValueError
            `path` is a folder, or its folder does not exist.
        """
        target = Path(path)
        target = target if target.suffix else target.with_suffix(".npz")
        if not target.parent.is_dir() or Path(path).is_dir():
            raise ValueError(
                f"path must be a file in an existing folder, got {os.fspath(path)!r}"
            )
        header = {"kind": np.array(self.kind), "format": np.array(FORMAT)}
        arrays: Any = header | self.arrays()
        # A model with local models can contain secrets of the parties.
        with whole_file(target, private=bool(self.id)) as file:
            np.savez(file, **arrays)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model of this class that :meth:`save` wrote.

        Raises
        ------
        ValueError
            The file contains a different type of model, or was written by a later
            version.
        """
        kind, arrays = _read(path)
        if kind != cls.kind:
            raise ValueError(f"the file must hold a {cls.kind!r} model, got {kind!r}")
        return _made(cls, arrays)


@dataclass
class PartedModel(Model):
    """A random-feature model whose local models are at the parties.

    The model contains the server's data. It contains the local models (`parts`) only if
    all parties are in one process, as after ``simulate``. A file saved with the local
    models contains the secrets of all parties.
    """

    id: str = field()  # required, unlike in the base class
    kernel: str
    bandwidth: float
    n_features: int
    widths: list[int]
    kept: bool = False
    parts: list[Any] | None = field(default=None, repr=False)

    stored: ClassVar[Stored] = {
        "model": ("id", str),
        "kernel": ("kernel", str),
        "bandwidth": ("bandwidth", float),
        "n_features": ("n_features", int),
        "widths": ("widths", lambda widths: [int(width) for width in widths]),
        "kept": ("kept", bool),
    }
    TYPED: ClassVar[set[str]] = set()
    """Names of the array values of a local model, in addition to the names that start
    with ``local_``; all other values are numbers, strings and lists."""

    @property
    def note(self) -> str:
        """Describe the location of the local models."""
        if self.kept:
            return f"model {self.id}: its local models are in the parties' state-dirs"
        return f"model {self.id} cannot predict later: not all parties have a state-dir"

    def complete(self, parts: Sequence[Mapping[str, Any]]) -> None:
        """Add the local models of all parties, in party order, if none is missing."""
        if len(parts) == len(self.widths) and all(parts):
            self.parts = [dict(part) for part in parts]

    def decision_function(self, blocks: Sequence[Array]) -> Array:
        """Return the scores f(x) of new rows.

        Parameters
        ----------
        blocks : sequence of Array, shape (n, d_j)
            One array per party, in party order, encoded as in training.

        Returns
        -------
        Array, shape (n, C)
            Scores of the classes (of the second class if there are two), or predicted
            values.

        Raises
        ------
        ValueError
            The blocks do not match the training parties, or the local models are not in
            this process.
        """
        if self.parts is None:
            raise ValueError(
                f"the local models of model {self.id} are at the parties: to predict, "
                f"run task 'predict' with model '{self.id}'"
                if self.kept
                else f"the local models of model {self.id} are lost: not all parties "
                "had a state-dir"
            )
        return self._scores(self.parts, check_blocks(blocks, self.widths))

    def _scores(self, parts: list[Any], blocks: list[Array]) -> Array:
        """Return f(x), of shape (n, C), from all local models."""
        raise NotImplementedError

    @property
    def holder(self) -> dict[str, Any]:
        """The local model of the first label holder, if it is in this process."""
        part: dict[str, Any] = next(p for p in self.parts or [] if "coef" in p)
        return part

    def predict(self, blocks: Sequence[Array]) -> Array:
        """Return the predicted labels or values of new rows, in an array of shape (n,).

        See :meth:`decision_function`.
        """
        scores = self.decision_function(blocks)
        return answers(scores, self.holder["target"], self.holder["classes"])

    def arrays(self) -> Arrays:
        """Return the settings and any local models, as ``part_<j>.<name>``."""
        return super().arrays() | arrays_of_parts(self.parts)

    @classmethod
    def from_arrays(cls, arrays: ArrayRecord | Mapping[str, Array]) -> Self:
        """Return the model with these arrays; see :meth:`arrays`."""
        stored = plain(arrays)

        def value_of(name: str, array: Array) -> Any:
            typed = name in cls.TYPED or name.startswith("local_")
            return array if typed else array.tolist()

        parts = [
            {name: value_of(name, v) for name, v in part_in(stored, j).items()}
            for j in range(len(stored["widths"]))
        ]
        model = super().from_arrays(stored)
        model.parts = parts if all(parts) else None
        return model


@dataclass
class RemovedModel(Model):
    """The id of a model whose local models the parties have removed."""

    kind: ClassVar[str] = "removed"
    stored: ClassVar[Stored] = {"model": ("model_id", str)}

    model_id: str
    """Id of the model. `id` stays None, since there are no local models."""

    @property
    def note(self) -> str:
        """Report that the parties have removed the model."""
        return f"model {self.model_id} was removed at all parties of the run"


@dataclass
class UsedModel(RemovedModel):
    """The id of a model whose local models the parties have used to predict."""

    kind: ClassVar[str] = "used"

    @property
    def note(self) -> str:
        """Describe the location of the local models."""
        return f"model {self.model_id}: its local models are in the parties' state-dirs"


def arrays_of_parts(parts: Sequence[Mapping[str, Any]] | None) -> Arrays:
    """Return the values of local models under the names ``part_<j>.<name>``."""
    pairs = [(j, part.items()) for j, part in enumerate(parts or [])]
    return {f"part_{j}.{k}": np.array(v) for j, items in pairs for k, v in items}


def part_in(stored: Arrays, j: int) -> Arrays:
    """Return the arrays of party j's local model; see :func:`arrays_of_parts`."""
    head = f"part_{j}."
    return {k[len(head) :]: v for k, v in stored.items() if k.startswith(head)}


def load_one_of(kinds: Iterable[type[Model]], path: str | os.PathLike[str]) -> Model:
    """Return the model in a file, as an instance of the type that the file names.

    Raises ValueError in the same cases as :func:`vfl_flower.load_model`.
    """
    name, arrays = _read(path)
    for kind in kinds:
        if kind.kind == name:
            return _made(kind, arrays)
    raise ValueError(f"the file holds a {name!r} model, whose package is not installed")


M = TypeVar("M", bound=Model)


def _made(kind: type[M], arrays: Arrays) -> M:
    """Return the model that saved arrays define.

    Raises ValueError if an array is missing or holds invalid numbers.
    """
    for name, array in arrays.items():
        if array.dtype.kind == "f" and np.isnan(array).any() and name != "inertia":
            raise ValueError(f"the file is damaged: {name!r} contains a NaN")
    try:
        return kind.from_arrays(arrays)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"the file is damaged: it lacks values that a {kind.kind!r} model needs "
            f"({str(error)[:60]})"
        ) from None


def _read(path: str | os.PathLike[str]) -> tuple[str, Arrays]:
    """Return the kind and the arrays of a saved model."""
    path = Path(path)  # rejects file descriptors
    try:
        with open(path, "rb") as file:
            arrays = read_npz(file, compressed=False)
        kind, version = str(arrays.pop("kind", "")), int(arrays.pop("format", 0))
    except UnpackedSizeError as error:
        raise ValueError(f"the file is not a saved model: {error}") from None
    except (*DAMAGED, TypeError):
        raise ValueError("the file is damaged, or is not a saved model") from None
    if version != FORMAT:
        raise ValueError(
            f"the file must hold a model in format {FORMAT}, got format {version}"
        )
    return kind, arrays


def plain(arrays: ArrayRecord | Mapping[str, Any]) -> Arrays:
    """Return the arrays of a record or mapping as NumPy arrays."""
    return {
        name: value.numpy() if isinstance(value, FlowerArray) else value
        for name, value in arrays.items()
    }


def check_blocks(blocks: Sequence[Array], widths: Sequence[int]) -> list[Array]:
    """Return one matrix per party, as arrays.

    Raises ValueError unless the matrices have equal row counts, the given `widths` and
    finite values.
    """
    if isinstance(blocks, np.ndarray) or not isinstance(blocks, Sequence):
        raise ValueError(
            "predict needs a list of matrices, one for each party in party order, got "
            f"{type(blocks).__name__}"
        )
    for block in blocks:
        check_index(indexed(blocks), block, "each matrix of predict")
    arrays = [
        number_array(block, f"matrix {place} (counted from 0) of predict")
        for place, block in enumerate(blocks)
    ]
    shapes = [array.shape for array in arrays]
    rows = shapes[0][:1] if shapes else ()
    if shapes != [(*rows, width) for width in widths]:
        raise ValueError(
            "predict needs one matrix for each party, in party order, with equal "
            f"numbers of rows and, respectively, {list(widths)} columns, got "
            f"{len(shapes)} arrays of shapes {shapes[:5]}"
        )
    for place, array in enumerate(arrays):
        real = array.dtype.kind in "biuf"
        if bad := array.size - (np.count_nonzero(np.isfinite(array)) if real else 0):
            raise ValueError(
                f"predict needs finite real numbers, but matrix {place} (counted from "
                f"0) has {bad} other values"
            )
    return arrays
