"""The only loader and partitioner of party data.

A party's data come from one of these sources, chosen by :class:`PartySource`:

========================  ==========================================================
``data``                  the party
========================  ==========================================================
``diabetes`` and others   a bundled set; party j of ``count`` has the j-th group of
                          consecutive columns; the last party also has the labels
``synthetic:n=..,d=..``   a generated regression of any size, split in the same way
``/abs/airline.parquet``  a party file: CSV, Parquet, Feather/Arrow IPC, NPZ
``/abs/rows/*.parquet``   several Parquet files, read in the order of their names
``duckdb:SELECT ..``      the result of a query, if DuckDB is installed
``/abs/folder``           the ``index``-th of its party files, in natural order
========================  ==========================================================

In natural order, the digits in a name are read as a number: ``2_y.csv`` comes before
``10_x.csv``. A party file is converted to float64 once and then memory-mapped from a
private cache, since a SuperNode starts a process for every message. Loading from the
cache imports neither pandas nor pyarrow.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from vfl_flower.data import files
from vfl_flower.data.cache import CacheEntry, Encoding
from vfl_flower.data.source import BUNDLED, QUERY, PartySource
from vfl_flower.party.party import Party, PartyError

SHEETS = (".xls", ".xlsx", ".xlsm", ".ods")
"""Extensions of spreadsheet files, which are not supported."""


def load_party(
    source: PartySource, seed: int = 0, encoding: Encoding | None = None
) -> Party:
    """Return the data of one party.

    X of shape (n, d) and y of shape (n,) are float64 and keep the order of the rows; a
    missing label, which another party has, is NaN. docs/party-files.md describes how
    columns are converted. The `seed` affects only a ``synthetic`` data set.
    With the `encoding` of a model's training rows (``Party.encoding``), nothing is
    computed from the new rows: levels, fills, means and scales are taken from training,
    and a party file needs no label column.

    Raises PartyError if the data are missing or unreadable, or break a rule. The error
    names the party, the column and the rule, never a path or a value.
    """
    if is_file(source):
        file = party_file(source)
        return files.from_file(file.path, source, file.folder, encoding)
    if source.alignment:
        raise PartyError("alignment needs a party file, since this data set has no ids")
    from vfl_flower.data import bundled  # which imports pyarrow

    if source.data in BUNDLED:
        return bundled.from_bundled(source, encoding)
    return bundled.from_synthetic(source, seed, encoding)


def read_ids(source: PartySource) -> Sequence[str] | None:
    """Return the ids of a party's rows as text, or None if there is no id column.

    For a bundled or generated set whose rows are split, the ids are the row numbers in
    the set. Raises PartyError for a fault of the file or its ids, like
    :func:`load_party`.
    """
    if is_file(source):
        return files.ids_of_file(party_file(source))
    from vfl_flower.data import bundled  # which imports pyarrow

    return bundled.ids_of_bundled(source)


class StoredRows:
    """A party's stored rows, from which its steps can read the ids."""

    def __init__(self, source: PartySource) -> None:
        self._source = source

    def read_ids(self) -> Sequence[str] | None:
        """Return the ids of the rows; see :func:`read_ids`."""
        return read_ids(self._source)

    def drop_cache(self) -> None:
        """Remove the cached copies of the party's file, if the data are a file."""
        if is_file(self._source):
            path = party_file(self._source).path
            CacheEntry.of(path, (0, 0), self._source, False, None).drop()


def is_file(source: PartySource) -> bool:
    """Return whether the data are a file or a folder, not bundled or generated."""
    return source.data not in BUNDLED and source.data.partition(":")[0] != "synthetic"


def party_file(source: PartySource) -> files.PartyFile:
    """Return the file of the party; raise PartyError if there is none."""
    if source.data.startswith(QUERY):
        digest = hashlib.sha256(source.data.encode()).hexdigest()
        return files.PartyFile.of(Path(f"query-{digest[:8]}"), source)
    path, ending = Path(source.data).expanduser(), Path(source.data).suffix.lower()
    try:
        if ending != ".parquet" and path.is_dir():
            folder = files.folder_files(path, source)
            return files.PartyFile.of(folder[source.index or 0], source, folder)
        if ending in files.FORMATS:
            return files.PartyFile.of(path, source)
        there = path.exists()
    except OSError as error:
        raise PartyError(
            f"data of {source.who} cannot be opened: {error.strerror}"
        ) from None
    if path.is_absolute() and not ending and not there:
        raise PartyError(
            f"data of {source.who} must be an existing folder or file, but nothing "
            "exists at this path"
        )
    # A plain word is not a path, so the error may quote it.
    word = re.fullmatch(r"\w*", source.data)
    raise PartyError(
        f"data of {source.who} must be one of {', '.join(sorted(BUNDLED))}, "
        "synthetic[:n=..,d=..,noise=..,correlation=..], or the absolute path of a "
        f"folder or of a file whose name ends in {', '.join(files.FORMATS)}"
        + (f", got {source.data!r}" if word else "")
        + ("; save a spreadsheet as CSV" if ending in SHEETS else "")
    )
