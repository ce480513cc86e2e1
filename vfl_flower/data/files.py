"""Party files and folders of them: which file, which columns, read and checked."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vfl_flower.clients.base import Party, PartyError
from vfl_flower.config import PartySource
from vfl_flower.data.cache import CacheEntry, Converted
from vfl_flower.data.encoding import digest, encode, labels
from vfl_flower.typing import Array

logger = logging.getLogger("vfl_flower")

FORMATS = (".arrow", ".csv", ".feather", ".npz", ".parquet")
"""Endings of party files."""

CSV_BLOCK = 2**24
"""Bytes of a CSV parsed at a time; large, as quoted line breaks cost a scan each."""


def from_folder(folder: Path, source: PartySource) -> Party:
    """Return the party of the ``index``-th file."""
    files = sorted(
        (
            path
            for path in folder.iterdir()
            if path.suffix.lower() in FORMATS and not path.name.startswith(".")
        ),
        key=_natural,
    )
    if not files:
        raise PartyError(
            f"the data folder of {who_of(source)} has no file that ends in "
            f"{', '.join(FORMATS)}"
        )
    if source.count not in (None, len(files)):
        raise PartyError(
            f"num-partitions must be the number of party files in the data folder, "
            f"{len(files)}, got {source.count}"
        )
    if source.index is None or not 0 <= source.index < len(files):
        raise PartyError(
            "partition-id must choose one of the party files in the data folder, from "
            f"0 to {len(files) - 1}, got {source.index}"
        )
    return from_file(files[source.index], source, files)


def _natural(path: Path) -> tuple[list[str | int], str]:
    """Return the sort key that takes digits as a number; equal ones go by name."""
    parts = re.split(r"(\d+)", path.stem)
    return [int(part) if part.isdecimal() else part for part in parts], path.name


def from_file(path: Path, source: PartySource, folder: Sequence[Path] = ()) -> Party:
    """Return the party of a file, from the cache where it is there."""
    name = source.name or path.stem
    who = f"party {name!r}"
    try:
        stamp = _stamp(path)
    except FileNotFoundError:
        logger.error("%s: no file %s", who, path)
        raise PartyError(
            f"the data file of {who} does not exist; data must be an absolute path"
        ) from None
    except OSError as error:
        raise _unreadable(path, who, error) from None
    if stamp[0] == 0:
        raise PartyError(f"the data file of {who} is empty")
    entry = CacheEntry.of(path, stamp, source, in_folder=bool(folder))
    converted = entry.load()
    if converted is None:
        converted = _convert(path, source, who, folder)
        if _stamp(path) != stamp:
            raise PartyError(f"the data file of {who} changed while it was read")
        try:
            entry.save(converted)
            converted = entry.load() or converted  # drops the copy in memory
        except OSError as error:
            logger.warning(
                "%s: no cache at %s (%s), so every message converts the file again",
                who,
                entry.folder,
                error.strerror,
            )
    return Party(
        converted.X,
        y=converted.y,
        name=name,
        columns=converted.columns,
        index=source.index,
        ids_digest=converted.ids_digest,
        checked=True,
    )


def _stamp(path: Path) -> tuple[int, int]:
    """Return what changes when a file does: its size and its time of change."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _convert(
    path: Path, source: PartySource, who: str, folder: Sequence[Path]
) -> Converted:
    """Read a party file, check it, and turn it into one float64 matrix."""
    with _reading(path, who):
        names = _header(path, source, who)
    ids, label = source.id_column, source.label_column
    if path.suffix.lower() == ".npz":  # its y and ids need no option
        ids = ids or ("ids" if "ids" in names else None)
        label = label or ("y" if "y" in names else None)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise PartyError(f"{who} has more than one column {repeated[0]!r}")
    if ids is not None and ids == label:
        raise PartyError(f"id-column and label-column of {who} are both {ids!r}")

    if ids is not None and ids not in names:
        raise PartyError(f"{who} has no column {ids!r}, its id-column")
    # In a folder every party is given the same options, so a column may be elsewhere.
    elsewhere: set[str] = set()
    if not {label, *(source.columns or ())} - {None} <= set(names):
        for other in folder:
            if other != path:
                with _reading(other, f"party {other.stem!r}"):
                    elsewhere.update(_header(other, source, f"party {other.stem!r}"))
    if label is not None and label not in names:
        if label not in elsewhere:
            where = "the data folder" if folder else who
            raise PartyError(f"{where} has no column {label!r}, its label-column")
        label = None
    features = choose(
        [name for name in names if name not in (ids, source.label_column, label)],
        source.columns,
        who,
        elsewhere,
    )
    for name in features:
        if name == "" or name.startswith("__index_level_"):
            raise PartyError(
                f"{who} has a column without a name (pandas writes its index as one): "
                "write the file without it, or choose by columns"
            )

    with _reading(path, who):
        wanted = [*features, *(name for name in (ids, label) if name is not None)]
        table = _table(path, source, ids, wanted)
    if table.num_rows == 0:
        raise PartyError(f"the data file of {who} has a header and no rows")
    X, columns = encode(table, features, source, who)
    return Converted(
        X,
        None if label is None else labels(table[label], label, who),
        columns,
        None if ids is None else digest(table[ids], ids, who),
    )


@contextlib.contextmanager
def _reading(path: Path, who: str) -> Iterator[None]:
    """Turn whatever a reader raises on a bad file into one sentence without values."""
    try:
        yield
    except (PartyError, MemoryError):
        raise
    except Exception as error:
        raise _unreadable(path, who, error) from None


def _unreadable(path: Path, who: str, error: Exception) -> PartyError:
    logger.error("%s: %s on reading %s", who, type(error).__name__, path)
    if isinstance(error, PermissionError):
        return PartyError(f"the data file of {who} may not be read by this process")
    rule = {
        ".csv": "CSV: UTF-8, separated by commas, one header line, equal fields a row",
        ".npz": "NPZ with a matrix X and optional y, ids, columns (no pickled objects)",
    }.get(path.suffix.lower(), path.suffix.lower()[1:].capitalize())
    return PartyError(f"the data file of {who} cannot be read as {rule}")


def _header(path: Path, source: PartySource, who: str) -> list[str]:
    """Return the names of a file's columns without reading the rows."""
    match path.suffix.lower():
        case ".csv":
            import csv

            with path.open(newline="", encoding="utf-8-sig") as file:
                lines = filter(None, csv.reader(file))
                names = next(lines, [])
                if next(lines, None) is None:
                    raise PartyError(
                        f"the data file of {who} "
                        + ("has a header and no rows" if names else "is empty")
                    )
                return names
        case ".parquet":
            import pyarrow.parquet

            return list(pyarrow.parquet.read_schema(path).names)
        case ".npz":
            return list(_npz(path, source, who))
    with _open_arrow(path) as reader:
        return list(reader.schema.names)


def _table(
    path: Path, source: PartySource, ids: str | None, wanted: Sequence[str]
) -> Any:
    """Return the wanted columns of a file as a pyarrow Table."""
    import pyarrow as pa

    match path.suffix.lower():
        case ".csv":
            one_column = len(_header(path, source, "")) == 1
            return _read_csv(path, ids, wanted, one_column)
        case ".parquet":
            import pyarrow.parquet

            # Not read_table: it adds columns for a folder that is called "year=2013".
            with pyarrow.parquet.ParquetFile(path) as file:
                return file.read(columns=list(wanted))
        case ".npz":
            arrays = _npz(path, source, "")
            return pa.table({name: pa.array(arrays[name]) for name in wanted})
    with _open_arrow(path) as reader:
        return reader.read_all().select(list(wanted))


def _read_csv(
    path: Path, ids: str | None, wanted: Sequence[str], one_column: bool
) -> Any:
    """Read a CSV; ids as text, so that "007" stays what it is."""
    import pyarrow as pa
    import pyarrow.csv as pacsv

    convert = pacsv.ConvertOptions(
        include_columns=list(wanted),
        column_types={} if ids is None else {ids: pa.string()},
        strings_can_be_null=True,
    )
    parse = pacsv.ParseOptions(
        newlines_in_values=True,
        # In a file of one column an empty line is a missing value.
        ignore_empty_lines=not one_column,
    )
    # read_csv, unlike open_csv, widens a type when a later block needs it.
    return pacsv.read_csv(path, pacsv.ReadOptions(block_size=CSV_BLOCK), parse, convert)


@contextlib.contextmanager
def _open_arrow(path: Path) -> Iterator[Any]:
    """Open an Arrow IPC file (Feather version 2) or stream."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        try:
            reader = pa.ipc.open_file(source)
        except pa.ArrowInvalid:
            source.seek(0)
            reader = pa.ipc.open_stream(source)
        yield reader


def _npz(path: Path, source: PartySource, who: str) -> dict[str, Array]:
    """Return the columns of X, y and ids by name."""
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        X = file["X"]
        if X.ndim != 2 or X.dtype.kind not in "biuf":
            raise PartyError(
                f"X in the data file of {who} must be a matrix of real numbers, got "
                f"shape {X.shape} and dtype {X.dtype}"
            )
        names = [f"x{j}" for j in range(X.shape[1])]
        if "columns" in file:
            names = [str(name) for name in file["columns"].tolist()]
        if len(names) != X.shape[1] or len(set(names)) != len(names):
            raise PartyError(
                f"columns in the data file of {who} must be {X.shape[1]} distinct "
                f"names, got {len(names)} with {len(set(names))} distinct"
            )
        arrays = {name: X[:, j] for j, name in enumerate(names)}
        # One name for each array, the one the options use.
        for key, name in (
            ("y", source.label_column or "y"),
            ("ids", source.id_column or "ids"),
        ):
            if key not in file:
                continue
            if name in arrays:
                raise PartyError(
                    f"the data file of {who} has an array {key} and a column {name!r} "
                    "in X for the same thing"
                )
            arrays[name] = file[key]
            if arrays[name].shape != (len(X),):
                raise PartyError(
                    f"{key} in the data file of {who} must have one value for each of "
                    f"the {len(X)} rows of X, got shape {arrays[name].shape}"
                )
    return arrays


def choose(
    names: Sequence[str],
    wanted: Sequence[str] | None,
    who: str,
    elsewhere: set[str] | None = None,
) -> list[str]:
    """Return the feature columns in the order that the option gives them."""
    if wanted is None:
        features = list(names)
    else:
        for name in wanted:
            if name not in names and name not in (elsewhere or ()):
                raise PartyError(
                    f"columns of {who} must be columns of its data other than ids and "
                    f"labels, got {name!r}"
                )
        if len(set(wanted)) != len(wanted):
            raise PartyError(f"columns of {who} must be distinct")
        features = [name for name in wanted if name in names]
    if not features:
        raise PartyError(f"{who} has no feature column")
    return features


def who_of(source: PartySource) -> str:
    """Return what an error calls the party."""
    if source.name:
        return f"party {source.name!r}"
    return "the party" if source.index is None else f"party-{source.index}"
