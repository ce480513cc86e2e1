"""The file of a party: where it is, its state, and what an error says of it."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vfl_flower.data import tables
from vfl_flower.data.csv_tables import CSV_BLOCK, csv_table, layout_of
from vfl_flower.data.source import QUERY, PartySource
from vfl_flower.data.tables import FORMATS, TEXTS, Table, ending, files_of, name_of
from vfl_flower.files import UnpackedSizeError
from vfl_flower.party.party import PartyError
from vfl_flower.shapes import shapes_only

logger = logging.getLogger("vfl_flower")

FORMS = {
    **dict.fromkeys(
        TEXTS,
        "CSV: text in one encoding, one delimiter, one header line, rows of less than "
        f"{CSV_BLOCK >> 20} MiB",
    ),
    ".npz": "NPZ with a matrix X and optional y, ids, columns (no pickled objects)",
    "": "the result of a query: fix the query",
}
"""What a file that cannot be read should be, by its ending."""


@shapes_only
@dataclass(frozen=True)
class PartyFile:
    """A party's file and how it is read."""

    path: Path
    source: PartySource
    folder: Sequence[Path] = ()
    """All party files of its folder, if the data are a folder."""

    @classmethod
    def of(
        cls, path: Path, source: PartySource, folder: Sequence[Path] = ()
    ) -> PartyFile:
        """Return the file, whose name is the party's if the party has no other."""
        return cls(path, replace(source, name=source.name or name_of(path)), folder)

    @property
    def who(self) -> str:
        """How an error names the party."""
        return self.source.who

    @property
    def what(self) -> str:
        """How an error names the file."""
        return f"the data file of {self.who}"

    def stamp(self) -> tuple[int, int]:
        """Return what changes with a file: its size and its modification time.

        Nothing is opened: a pipe would wait, and a device may never end. Of a query it
        is that of the files named in it, in single quotes; where there are none, it is
        new each time, so that the query runs for each message. Raises PartyError if
        there is no such file, or none with content.
        """
        if self.source.data.startswith(QUERY):
            quoted = re.findall("'([^']+)'", self.source.data)
            named = (file for name in quoted for file in files_of(Path(name)))
            files = list(filter(Path.exists, named))
            if not files:
                return 0, time.time_ns()
        else:
            files = files_of(self.path)
        try:
            stats = [file.stat() for file in files]
            if not stats:
                raise FileNotFoundError
        except FileNotFoundError:
            logger.error("%s: no file %s", self.who, self.path)
            hint = "" if self.path.is_absolute() else "; data must be an absolute path"
            raise PartyError(f"{self.what} does not exist{hint}") from None
        except OSError as error:
            raise self._unreadable(error) from None
        if not all(stat.S_ISREG(about.st_mode) for about in stats):
            raise PartyError(
                f"{self.what} must be a file, and no folder, pipe or device"
            )
        if any(about.st_size == 0 for about in stats):
            raise PartyError(f"{self.what} is empty")
        if len(stats) == 1:
            return stats[0].st_size, stats[0].st_mtime_ns
        pairs = zip(files, stats, strict=True)
        about = repr([(file.name, s.st_size, s.st_mtime_ns) for file, s in pairs])
        digest = hashlib.sha256(about.encode()).digest()[:8]
        return sum(s.st_size for s in stats), int.from_bytes(digest, "big")

    def table(self) -> Table:
        """Return the columns of the file or the query; no row is read yet."""
        if self.source.data.startswith(QUERY):
            return tables.query_table(self.source.data[len(QUERY) :], self.who)
        files = files_of(self.path)
        match ending(files[0]):
            case ".parquet":
                return tables.parquet_table(files, self.who)
            case ".arrow" | ".feather":
                return tables.arrow_table(files[0])
            case ".npz":
                return tables.npz_table(files[0], self.source)
        return csv_table(files[0], self.source)

    def header(self) -> list[str]:
        """Return the names of the columns without reading the rows."""
        if self.ending in TEXTS:
            layout = layout_of(self.path, self.source)
            return [] if layout.headerless else layout.names
        return self.table().names

    def check_unchanged(self, stamp: tuple[int, int]) -> None:
        """Raise PartyError unless the file still has this stamp."""
        if stamp[0] and self.stamp() != stamp:
            raise self.changed()

    def changed(self) -> PartyError:
        """Return the error of a file that is not as it was."""
        return PartyError(f"{self.what} changed while it was read")

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Turn what a reader raises on a bad file into one sentence without values."""
        try:
            yield
        except (PartyError, MemoryError):
            raise
        except UnpackedSizeError as error:
            raise PartyError(f"{self.what} is not read: {error}") from None
        except Exception as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> PartyError:
        logger.error("%s: %s on reading %s", self.who, type(error).__name__, self.path)
        if isinstance(error, PermissionError):
            return PartyError(f"{self.what} may not be read by this process")
        form = FORMS.get(self.ending, self.ending[1:].capitalize())
        return PartyError(f"{self.what} cannot be read as {form}")

    @property
    def ending(self) -> str:
        """The ending that tells the format, of a file that may be damaged."""
        try:
            return ending(files_of(self.path)[0])
        except Exception:
            return self.path.suffix.lower()


def folder_files(folder: Path, source: PartySource) -> list[Path]:
    """Return the party files of a folder; the ``index``-th is that of the party.

    Raises PartyError if there are none, or not one for each party.
    """
    visible = (path for path in folder.iterdir() if not path.name.startswith("."))
    files = sorted((p for p in visible if p.suffix.lower() in FORMATS), key=_natural)
    if not files:
        raise PartyError(
            f"the data folder of {source.who} has no file that ends in "
            f"{', '.join(FORMATS)}"
        )
    if source.count not in (None, len(files)):
        raise PartyError(
            "num-partitions (num-supernodes of a simulation) must be the number of "
            f"party files in the data folder, {len(files)}, got {source.count}"
        )
    if source.index is None or not 0 <= source.index < len(files):
        raise PartyError(
            "partition-id must choose one of the party files in the data folder, from "
            f"0 to {len(files) - 1}, got {source.index}"
        )
    return files


def _natural(path: Path) -> tuple[list[str | int], str]:
    """Return the sort key that takes digits as a number; equal ones go by name."""
    parts = re.split(r"(\d+)", path.stem)
    return [int(part) if part.isdecimal() else part for part in parts], path.name
