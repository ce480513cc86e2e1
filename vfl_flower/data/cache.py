"""The converted form of a party file, and its entry in the private cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from vfl_flower.data.source import PartySource
from vfl_flower.files import check_no_link, write_whole
from vfl_flower.typing import Array

CACHE_FORMAT = 3
"""Part of every cache key: raise it when the conversion changes."""


@dataclass(frozen=True)
class Converted:
    """A party file after conversion: float64, rows in the file's order.

    X is finite; y is NaN where another party has the label; the encoding says how X
    was made, see :mod:`vfl_flower.data.encoding`.
    """

    X: Array
    y: Array | None
    columns: list[str]
    ids_digest: str | None
    encoding: dict[str, Any]


@dataclass(frozen=True)
class CacheEntry:
    """The converted form of one party file under one set of options.

    An entry has three files, ``.X.npy``, ``.y.npy`` and ``.json``, which is written
    last: a reader sees a complete entry or none.
    """

    folder: Path
    file: str
    key: str
    stamp: tuple[int, int]

    @classmethod
    def of(
        cls,
        path: Path,
        stamp: tuple[int, int],
        source: PartySource,
        in_folder: bool,
        encoding: dict[str, Any] | None,
        order: str = "",
    ) -> CacheEntry:
        """Return the entry, named by all that its content depends on.

        `order` is the digest of the order of its rows, where that is not the file's.
        """
        root = os.environ.get("VFL_FLOWER_CACHE")
        if not root:
            import platformdirs

            root = platformdirs.user_cache_dir("vfl_flower")
        absolute = os.path.abspath(path)
        parts = [
            CACHE_FORMAT,
            absolute,
            *stamp,
            source.id_column,
            source.label_column,
            source.columns,
            source.standardize,
            source.one_hot,
            source.impute,
            in_folder,
            encoding,
            order,
        ]
        return cls(
            folder=Path(root) / "parties",
            file=hashlib.sha256(absolute.encode()).hexdigest()[:16],
            key=hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest(),
            stamp=stamp,
        )

    def drop(self) -> None:
        """Remove all entries of the file, whatever its state and the options."""
        for pattern in (f"{self.file}-*", f".{self.file}-*"):  # unfinished ones too
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)

    def _path(self, ending: str) -> Path:
        return self.folder / f"{self.file}-{self.key}{ending}"

    def _check_own(self) -> None:
        """Raise ``OSError`` where another user could have written the entry."""
        check_no_link(self.folder)
        about = self.folder.stat()
        if os.name == "posix" and (
            about.st_uid != os.geteuid() or about.st_mode & 0o22
        ):
            raise PermissionError("the cache must be of this user alone")
        for ending in (".json", ".X.npy", ".y.npy"):
            check_no_link(self._path(ending))

    def load(self) -> Converted | None:
        """Map the entry into memory; None where there is none or it is damaged.

        One that another user could have written, or a symbolic link, counts as none.
        """
        try:
            self._check_own()
            about = json.loads(self._path(".json").read_text())
            X = np.load(self._path(".X.npy"), mmap_mode="r")
            y = (
                np.load(self._path(".y.npy"), mmap_mode="r")
                if about["labels"]
                else None
            )
            entry = Converted(
                np.asarray(X),
                None if y is None else np.asarray(y),
                about["columns"],
                about["ids_digest"],
                about["encoding"],
            )
            sound = X.shape == (about["rows"], len(entry.columns)) and (
                y is None or y.shape == (about["rows"],)
            )
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            return None
        return entry if sound else None

    def save(self, converted: Converted) -> None:
        """Write the entry, and remove those of an earlier state of the same file."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_no_link(self.folder)
        self.folder.chmod(0o700)
        for old in self.folder.glob(f"{self.file}-*.json"):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                if tuple(json.loads(old.read_text())["stamp"]) != self.stamp:
                    for ending in (".json", ".X.npy", ".y.npy"):
                        old.with_name(old.stem + ending).unlink(missing_ok=True)
        about = {
            "rows": len(converted.X),
            "columns": converted.columns,
            "labels": converted.y is not None,
            "ids_digest": converted.ids_digest,
            "encoding": converted.encoding,
            "stamp": self.stamp,
        }
        self._write(".X.npy", lambda file: np.save(file, converted.X))
        if (y := converted.y) is not None:
            self._write(".y.npy", lambda file: np.save(file, y))
        self._write(".json", json.dumps(about).encode())

    def _write(self, ending: str, content: bytes | Callable[[IO[bytes]], None]) -> None:
        write_whole(self._path(ending), content, private=True)
