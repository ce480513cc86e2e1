"""The converted form of a party file, and its entry in the private cache."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from vfl_flower.data.source import PartySource
from vfl_flower.files import check_no_link, whole_file, write_whole
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

CACHE_FORMAT = 6
"""Part of every cache key: increase it when the conversion changes."""

IDS = (".ids.npy", ".at.npy")
"""Extensions of the id files: the bytes of the ids, and their offsets."""

ENDINGS = (".json", ".X.npy", ".y.npy", *IDS)
"""Extensions of all files of an entry."""

_OF_IDS = ("id_column", "missing", "delimiter", "text_encoding", "header")
"""Fields of a source on which its ids depend."""

_ELSEWHERE = (
    *("data", "index", "count", "name", "label_optional"),
    *("consent", "state_dir", "alignment"),
)
"""Source fields that affect an entry only through its path or row order, if at all."""

Encoding = dict[str, Any]
"""The encoding of columns as numbers, see :mod:`vfl_flower.data.encoding`."""

Shape = tuple[str, tuple[int, ...]]
"""Type and shape of an array in a file."""


@shapes_only
@dataclass(frozen=True)
class Converted:
    """A party file after conversion: float64, in the order of the file or alignment.

    X is finite, except for missing values that are filled later; y is NaN where another
    party has the label; :mod:`vfl_flower.data.encoding` describes the encoding.
    """

    X: Array
    y: Array | None
    columns: list[str]
    ids_digest: str | None
    encoding: Encoding


class StoredIds(Sequence[str]):
    """The ids of the rows, memory-mapped from a file of bytes and a file of offsets.

    `data` contains the ids in UTF-8; `at`, shape (n + 1,), contains the start of each
    id and the end of the last id.
    """

    def __init__(self, data: Array, at: Array) -> None:
        self._data, self._at = data, at

    def __len__(self) -> int:
        """Return the number of ids."""
        return len(self._at) - 1

    def __getitem__(self, row: Any) -> Any:
        """Return the id of one row, or the ids of a slice."""
        if isinstance(row, slice):
            return [self[k] for k in range(len(self))[row]]
        row = range(len(self))[row]
        return self._data[self._at[row] : self._at[row + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        """Yield the ids, reading several thousand at a time."""
        for start in range(0, len(self), 2**14):
            at = self._at[start : start + 2**14 + 1]
            block = self._data[at[0] : at[-1]].tobytes()
            for first, last in itertools.pairwise((at - at[0]).tolist()):
                yield block[first:last].decode()


@dataclass(frozen=True)
class CacheEntry:
    """The converted form of one party file under one set of options.

    An entry has the files ``.X.npy``, ``.y.npy`` and ``.json``, which is written last:
    a reader sees a complete entry or none. Several entries share the id files
    ``.ids.npy`` and ``.at.npy``, because the ids depend on fewer options than the
    entries do.
    """

    folder: Path
    file: str
    key: str
    ids_key: str
    stamp: tuple[int, int]

    @classmethod
    def of(
        cls,
        path: Path,
        stamp: tuple[int, int],
        source: PartySource,
        in_folder: bool,
        encoding: Encoding | None,
        order: str = "",
    ) -> CacheEntry:
        """Return the entry, named by a digest of all that determines its content.

        `order` is the key of the row order, if that differs from the file's order.
        """
        root = os.environ.get("VFL_FLOWER_CACHE")
        if not root:
            import platformdirs

            root = platformdirs.user_cache_dir("vfl_flower")
        absolute = os.path.abspath(path)
        options = {k: v for k, v in asdict(source).items() if k not in _ELSEWHERE}
        of_file = [CACHE_FORMAT, absolute, *stamp]
        of_ids = [*of_file, *(options[name] for name in _OF_IDS)]
        parts = [*of_file, options, in_folder, encoding, order]
        return cls(
            folder=Path(root) / "parties",
            file=hashlib.sha256(absolute.encode()).hexdigest()[:16],
            key=_digest(parts),
            ids_key=_digest(of_ids),
            stamp=stamp,
        )

    def drop(self) -> None:
        """Remove all entries of the file, for any of its states and any options."""
        for pattern in (f"{self.file}-*", f".{self.file}-*"):  # unfinished ones too
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)

    def _path(self, ending: str) -> Path:
        key = self.ids_key if ending in IDS else self.key
        return self.folder / f"{self.file}-{key}{ending}"

    def _check_own(self) -> None:
        """Raise ``OSError`` if another user could have written the entry."""
        check_no_link(self.folder)
        about = self.folder.stat()
        if os.name == "posix" and (
            about.st_uid != os.geteuid() or about.st_mode & 0o22
        ):
            raise PermissionError("only this user may own and write to the cache")
        for ending in ENDINGS:
            check_no_link(self._path(ending))

    def load_ids(self) -> StoredIds | None:
        """Map the ids of the rows into memory; return None if there are none."""
        try:
            self._check_own()
            data, at = self.map(IDS)
            if at.ndim != 1 or data.shape != (at[-1],) or at.dtype != np.int64:
                return None
        except (OSError, ValueError, IndexError, EOFError):
            return None
        return StoredIds(data, at)

    def load(self) -> Converted | None:
        """Map a valid entry of this user into memory; otherwise, return None."""
        try:
            self._check_own()
            about = json.loads(self._path(".json").read_text())
            X, *labels = self.map((".X.npy", ".y.npy")[: 1 + about["labels"]])
            y = labels[0] if labels else None
            columns, rows = about["columns"], about["rows"]
            if X.shape != (rows, len(columns)):
                return None
            if y is not None and y.shape != (rows,):
                return None
            return Converted(X, y, columns, about["ids_digest"], about["encoding"])
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            return None

    @contextlib.contextmanager
    def open(self, shapes: Mapping[str, Shape]) -> Iterator[list[IO[bytes]]]:
        """Open files of the entry, which are written either as a whole or not at all.

        `shapes` maps the extension of each file to the type and shape of its array.
        Yields the files in this order, each positioned after its header.
        """
        self._make_folder()
        with contextlib.ExitStack() as stack:
            files = []
            for ending, (descr, shape) in shapes.items():
                path = self._path(ending)
                file = stack.enter_context(whole_file(path, private=True))
                header = {"descr": descr, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                files.append(file)
            yield files

    def _make_folder(self) -> None:
        """Create the folder, and remove entries of an earlier state of the file."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_no_link(self.folder)
        self.folder.chmod(0o700)
        for old in self.folder.glob(f"{self.file}-*.json"):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                if tuple(json.loads(old.read_text())["stamp"]) != self.stamp:
                    for ending in (".json", ".X.npy", ".y.npy"):
                        old.with_name(old.stem + ending).unlink(missing_ok=True)
                    for ending in IDS:  # ids of the current state are written again
                        for ids in self.folder.glob(f"{self.file}-*{ending}"):
                            ids.unlink(missing_ok=True)

    def seal(self, converted: Converted) -> None:
        """Write the last file, which makes the entry complete."""
        about = {
            "rows": len(converted.X),
            "columns": converted.columns,
            "labels": converted.y is not None,
            "ids_digest": converted.ids_digest,
            "encoding": converted.encoding,
            "stamp": self.stamp,
        }
        content = json.dumps(about).encode()
        write_whole(self._path(".json"), content, private=True)

    def map(self, endings: Iterable[str]) -> list[Array]:
        """Map files of the entry into memory."""
        files = (np.load(self._path(end), mmap_mode="r") for end in endings)
        return [np.asarray(file) for file in files]

    def remove(self) -> None:
        """Remove the files of the entry."""
        for ending in ENDINGS:
            self._path(ending).unlink(missing_ok=True)


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
