"""The file of a party: its path, its state, and its converted form in the cache.

This module does not import pyarrow: :mod:`vfl_flower.data.conversion` does, and is
imported only if the cache has no entry.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import stat
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vfl_flower.data.cache import CacheEntry, Encoding
from vfl_flower.data.source import QUERY, PartySource
from vfl_flower.files import UnpackedSizeError
from vfl_flower.party.party import Party, PartyError
from vfl_flower.party.row_order import RowOrder, load_order
from vfl_flower.shapes import shapes_only

logger = logging.getLogger("vfl_flower")

TEXTS = {".csv": "", ".tsv": "\t"}
"""Extensions of delimited text files, with the delimiter that each one implies."""

PACKED = (".gz", ".zip")
"""Extensions of compressed text files; a zip file contains one file."""

FORMATS = (*(".arrow", ".csv", ".feather", *PACKED), *(".npz", ".parquet", ".tsv"))
"""Extensions of party files."""

CSV_BLOCK = 2**20
"""Bytes of a CSV that are parsed at a time, and the maximum length of a row."""

FORMS = {
    **dict.fromkeys(
        TEXTS,
        "CSV, which must be text in one encoding, with one delimiter, one header line "
        f"and rows shorter than {CSV_BLOCK >> 20} MiB",
    ),
    ".npz": "NPZ with a matrix X and optional y, ids and columns (no pickled data)",
    "": "the result of a query: fix the query",
}
"""Expected form of a file that cannot be read, by its extension."""


def name_of(path: Path) -> str:
    """Return the name of a file without its extensions: ``a`` for ``a.csv.gz``."""
    plain = Path(path.stem) if path.suffix.lower() in PACKED else path
    name = plain.stem if plain.suffix.lower() in FORMATS else plain.name
    return name.strip("*") or path.parent.name


def files_of(path: Path) -> list[Path]:
    """Return a path's files: one file, or all files of a pattern or Parquet folder."""
    if "*" in path.name:
        return sorted(path.parent.glob(path.name))
    if path.suffix.lower() == ".parquet" and path.is_dir():
        return sorted(path.glob("*.parquet"))
    return [path]


def ending(path: Path) -> str:
    """Return the extension that determines the format: ``.csv`` for ``a.csv.gz``."""
    last = path.suffix.lower()
    if last not in PACKED:
        return last
    inner = path.stem
    if last == ".zip":
        with zipfile.ZipFile(path) as archive:
            inner = member_of(archive).filename
    inner = Path(inner).suffix.lower()
    return inner if inner in TEXTS else ".csv"


def member_of(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """Return an archive's only file; raise PartyError if it has none or several."""
    entries = [
        entry
        for entry in archive.infolist()
        if not entry.is_dir() and not entry.filename.startswith("__MACOSX/")
    ]
    if len(entries) != 1:
        raise PartyError(
            f"a zip file must contain exactly one file, got {len(entries)}: unpack it"
        )
    return entries[0]


@shapes_only
@dataclass(frozen=True)
class PartyFile:
    """A party's file, with the options for reading it."""

    path: Path
    source: PartySource
    folder: Sequence[Path] = ()
    """All party files of its folder, if the data are a folder."""

    @classmethod
    def of(
        cls, path: Path, source: PartySource, folder: Sequence[Path] = ()
    ) -> PartyFile:
        """Return the file; a party without a name gets the name of the file."""
        return cls(path, replace(source, name=source.name or name_of(path)), folder)

    @property
    def who(self) -> str:
        """The name of the party in errors."""
        return self.source.who

    @property
    def what(self) -> str:
        """The description of the file in errors."""
        return f"the data file of {self.who}"

    def stamp(self) -> tuple[int, int]:
        """Return the size and modification time of the file, to detect a change.

        No file is opened: reading a pipe would block, and reading a device may never
        end. The stamp of a query is the stamp of the files that it names in single
        quotes; if it names no file, the stamp is new each time, so that the query runs
        for each message. Raises PartyError if the file does not exist or is empty.
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
                f"{self.what} must be a file, not a folder, a pipe or a device"
            )
        if any(about.st_size == 0 for about in stats):
            raise PartyError(f"{self.what} is empty")
        if len(stats) == 1:
            return stats[0].st_size, stats[0].st_mtime_ns
        pairs = zip(files, stats, strict=True)
        about = repr([(file.name, s.st_size, s.st_mtime_ns) for file, s in pairs])
        digest = hashlib.sha256(about.encode()).digest()[:8]
        return sum(s.st_size for s in stats), int.from_bytes(digest, "big")

    def check_unchanged(self, stamp: tuple[int, int]) -> None:
        """Raise PartyError unless the file still has this stamp."""
        if stamp[0] and self.stamp() != stamp:
            raise self.changed()

    def changed(self) -> PartyError:
        """Return the error for a file that has changed."""
        return PartyError(f"{self.what} changed while it was being read")

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Turn any error of a reader into a PartyError that contains no data values."""
        try:
            yield
        except (PartyError, MemoryError):
            raise
        except UnpackedSizeError as error:
            raise PartyError(f"{self.what} was not read: {error}") from None
        except Exception as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> PartyError:
        logger.error("%s: %s on reading %s", self.who, type(error).__name__, self.path)
        if isinstance(error, PermissionError):
            return PartyError(f"this process has no permission to read {self.what}")
        form = FORMS.get(self.ending, self.ending[1:].capitalize())
        return PartyError(f"{self.what} cannot be read as {form}")

    @property
    def ending(self) -> str:
        """The file extension that determines the format, even of a damaged file."""
        try:
            return ending(files_of(self.path)[0])
        except Exception:
            return self.path.suffix.lower()


def folder_files(folder: Path, source: PartySource) -> list[Path]:
    """Return the party files of a folder; the ``index``-th is the party's file.

    Raises PartyError if there are no files, or if their number differs from the number
    of parties.
    """
    visible = (path for path in folder.iterdir() if not path.name.startswith("."))
    files = sorted((p for p in visible if p.suffix.lower() in FORMATS), key=_natural)
    if not files:
        raise PartyError(
            f"the data folder of {source.who} has no file whose name ends in "
            f"{', '.join(FORMATS)}"
        )
    if source.count not in (None, len(files)):
        raise PartyError(
            "num-partitions (num-supernodes of a simulation) must be the number of "
            f"party files in the data folder, {len(files)}, got {source.count}"
        )
    if source.index is None or not 0 <= source.index < len(files):
        raise PartyError(
            "partition-id must be the number of a party file in the data folder, from "
            f"0 to {len(files) - 1}, got {source.index}"
        )
    return files


def _natural(path: Path) -> tuple[list[str | int], str]:
    """Return a sort key that reads digits as a number; ties are sorted by name."""
    parts = re.split(r"(\d+)", path.stem)
    return [int(part) if part.isdecimal() else part for part in parts], path.name


def from_file(
    path: Path,
    source: PartySource,
    folder: Sequence[Path] = (),
    encoding: Encoding | None = None,
) -> Party:
    """Return the party of a file, from the cache if possible."""
    file, order = PartyFile.of(path, source, folder), _order(source)
    key = "" if order is None else order.key
    entry = CacheEntry.of(path, file.stamp(), source, bool(folder), encoding, key)
    converted = entry.load()
    if converted is None:
        from vfl_flower.data import conversion

        ids = None if order is None else _ids_in_file(file)
        converted = conversion.convert(file, encoding, entry, order, ids)
    party = Party(
        converted.X,
        y=converted.y,
        name=file.source.name,
        columns=converted.columns,
        index=source.index,
        ids_digest=converted.ids_digest,
        checked=True,
    )
    party.encoding, party.order_key = converted.encoding, key or None
    return party


def ids_of_file(file: PartyFile) -> Sequence[str] | None:
    """Return the ids of a file's rows as text, or None if there is no id column."""
    ids, order = _ids_in_file(file), _order(file.source)
    if order is None:
        return ids
    rows = order.rows(ids).tolist()  # refuses a file without ids
    return [ids[row] for row in rows] if ids is not None else None


def _ids_in_file(file: PartyFile) -> Sequence[str] | None:
    """Return the ids in file order, or None if there is no id column."""
    source = file.source
    entry = CacheEntry.of(file.path, file.stamp(), source, False, None)
    if source.id_column and (stored := entry.load_ids()) is not None:
        return stored
    from vfl_flower.data import conversion

    return conversion.convert_ids(file, entry)


def _order(source: PartySource) -> RowOrder | None:
    """Return the row order of the party, or None for the order of the file."""
    if source.alignment is None:
        return None
    return load_order(source.state_dir, source.alignment)
