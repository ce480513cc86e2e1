"""Read and check party files, and choose the file and the columns of a party."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vfl_flower.data.cache import CacheEntry, Converted
from vfl_flower.data.encoding import (
    Encoding,
    check_columns,
    columns_of,
    encode,
    labels,
    row_ids,
    text_columns,
)
from vfl_flower.data.source import PartySource
from vfl_flower.files import UnpackedSizeError, check_growth, read_npz
from vfl_flower.protocol.party import Party, PartyError, digest_ids
from vfl_flower.protocol.row_order import RowOrder, load_order
from vfl_flower.typing import Array

logger = logging.getLogger("vfl_flower")

FORMATS = (".arrow", ".csv", ".feather", ".npz", ".parquet")
"""Endings of party files."""

CSV_BLOCK = 2**24
"""Bytes of a CSV parsed at a time; large, as quoted line breaks cost a scan each."""


MOST_COLUMNS = 2**20
"""Most columns of X in an NPZ file, which has no need to name them."""


def folder_files(folder: Path, source: PartySource) -> list[Path]:
    """Return the party files of a folder; the ``index``-th is that of the party."""
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


def from_file(
    path: Path,
    source: PartySource,
    folder: Sequence[Path] = (),
    encoding: Encoding | None = None,
) -> Party:
    """Return the party of a file, from the cache if it is there."""
    name = source.name or path.stem
    who = f"party {name!r}"
    stamp = _stamp(path, who)
    order = _order(source)
    digest = "" if order is None else order.digest
    entry = CacheEntry.of(path, stamp, source, bool(folder), encoding, digest)
    converted = entry.load()
    if converted is None:
        converted = _convert(path, source, who, folder, encoding, order)
        _check_unchanged(path, who, stamp)
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
    party = Party(
        converted.X,
        y=converted.y,
        name=name,
        columns=converted.columns,
        index=source.index,
        ids_digest=converted.ids_digest,
        checked=True,
    )
    party.encoding = converted.encoding
    return party


def ids_of_file(path: Path, source: PartySource) -> list[str] | None:
    """Return the ids of the rows of a file as text; None without an id column."""
    who = f"party {source.name or path.stem!r}"
    stamp = _stamp(path, who)
    _, ids = _names(path, source, who)
    if ids is None:
        return None
    with _reading(path, who):
        table = _table(path, source, ids, [ids])
    if (order := _order(source)) is not None:
        table = _ordered(table, ids, order, who)
    texts = [str(value) for value in row_ids(table[ids], ids, who)]
    _check_unchanged(path, who, stamp)
    return texts


def _order(source: PartySource) -> RowOrder | None:
    """Return the order that the party's rows have, if it is not that of the file."""
    if source.alignment is None:
        return None
    return load_order(source.state_dir, source.alignment)


def _ordered(table: Any, ids: str | None, order: RowOrder, who: str) -> Any:
    """Return the rows of a table in a common order."""
    rows = order.rows(None if ids is None else row_ids(table[ids], ids, who))
    logger.info(
        "%s: %d of its %d rows, by alignment %r",
        who,
        len(rows),
        table.num_rows,
        order.name,
    )
    return table.take(rows)


def _stamp(path: Path, who: str) -> tuple[int, int]:
    """Return what changes with a file: its size and its modification time."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        logger.error("%s: no file %s", who, path)
        raise PartyError(
            f"the data file of {who} does not exist; data must be an absolute path"
        ) from None
    except OSError as error:
        raise _unreadable(path, who, error) from None
    if stat.st_size == 0:
        raise PartyError(f"the data file of {who} is empty")
    return stat.st_size, stat.st_mtime_ns


def _check_unchanged(path: Path, who: str, stamp: tuple[int, int]) -> None:
    if _stamp(path, who) != stamp:
        raise PartyError(f"the data file of {who} changed while it was read")


def _convert(
    path: Path,
    source: PartySource,
    who: str,
    folder: Sequence[Path],
    encoding: Encoding | None,
    order: RowOrder | None,
) -> Converted:
    """Read a party file, check it, and turn it into one float64 matrix."""
    names, ids = _names(path, source, who)
    label = source.label_column
    if path.suffix.lower() == ".npz":  # its y needs no option
        label = label or ("y" if "y" in names else None)
    if ids is not None and ids == label:
        raise PartyError(f"id-column and label-column of {who} are both {ids!r}")
    label = label if label in names else None
    not_features = {ids, label}
    if encoding is None:
        features = _features(path, names, not_features, source, who, folder)
    else:
        candidates = [name for name in names if name not in not_features]
        features, ignored = check_columns(candidates, encoding, who)
        if ignored:
            logger.warning(
                "%s: its part of the model was not trained on these columns, which "
                "are left out: %s",
                who,
                ", ".join(map(repr, ignored)),
            )
    texts = [] if encoding is None else text_columns(encoding)
    with _reading(path, who):
        wanted = [*features, *(name for name in (ids, label) if name is not None)]
        table = _table(path, source, ids, wanted, texts)
    if table.num_rows == 0:
        raise PartyError(f"the data file of {who} has a header and no rows")
    if order is not None:
        table = _ordered(table, ids, order, who)
    X, used = encode(table, features, source, who, encoding)
    y = None if label is None else labels(table[label], label, who)
    if label is not None and y is None and encoding is None:
        raise PartyError(f"label-column {label!r} of {who} has no value in any row")
    digest = None
    if order is not None:
        digest = order.digest
    elif ids is not None:
        digest = digest_ids(np.array(row_ids(table[ids], ids, who), dtype=object))
    return Converted(X, y, columns_of(used), digest, used)


def _names(path: Path, source: PartySource, who: str) -> tuple[list[str], str | None]:
    """Return the names of a file's columns, and which of them holds the ids."""
    with _reading(path, who):
        names = _header(path, source, who)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise PartyError(f"{who} has more than one column {repeated[0]!r}")
    ids = source.id_column
    if path.suffix.lower() == ".npz":  # its ids need no option
        ids = ids or ("ids" if "ids" in names else None)
    if ids is not None and ids not in names:
        raise PartyError(f"{who} has no column {ids!r}, its id-column")
    return names, ids


def _features(
    path: Path,
    names: Sequence[str],
    not_features: set[str | None],
    source: PartySource,
    who: str,
    folder: Sequence[Path],
) -> list[str]:
    """Return the feature columns to read from a party file.

    In a folder every party has the same options, so a column that the options name may
    be in another file. `not_features` are the columns of ids and labels.
    """
    elsewhere: set[str] = set()
    if not {source.label_column, *(source.columns or ())} - {None} <= set(names):
        for file in folder:
            if file != path:
                owner = f"party {file.stem!r}"
                with _reading(file, owner):
                    elsewhere.update(_header(file, source, owner))
    if source.label_column not in (None, *names, *elsewhere):
        where = "the data folder" if folder else who
        raise PartyError(
            f"{where} has no column {source.label_column!r}, its label-column"
        )
    candidates = [name for name in names if name not in not_features]
    features = choose(candidates, source.columns, who, elsewhere - set(names))
    for name in features:
        if name == "" or name.startswith("__index_level_"):
            raise PartyError(
                f"{who} has a column without a name (pandas writes its index as one): "
                "write the file without it, or choose by columns"
            )
    return features


@contextlib.contextmanager
def _reading(path: Path, who: str) -> Iterator[None]:
    """Turn whatever a reader raises on a bad file into one sentence without values."""
    try:
        yield
    except (PartyError, MemoryError):
        raise
    except UnpackedSizeError as error:
        raise PartyError(f"the data file of {who} is not read: {error}") from None
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
    path: Path,
    source: PartySource,
    ids: str | None,
    wanted: Sequence[str],
    texts: Sequence[str] = (),
) -> Any:
    """Return wanted columns of a file as a pyarrow Table; in a CSV, `texts` as text."""
    import pyarrow as pa

    match path.suffix.lower():
        case ".csv":
            one_column = len(_header(path, source, "")) == 1
            known = texts if ids is None else [*texts, ids]
            return _read_csv(path, known, wanted, one_column)
        case ".parquet":
            return _read_parquet(path, wanted)
        case ".npz":
            arrays = _npz(path, source, "")
            return pa.table({name: pa.array(arrays[name]) for name in wanted})
    with _open_arrow(path) as reader:
        return _read_arrow(path, reader, wanted)


def _read_csv(
    path: Path, texts: Sequence[str], wanted: Sequence[str], one_column: bool
) -> Any:
    """Read a CSV; columns in `texts` are text, so that the id "007" stays "007"."""
    import pyarrow as pa
    import pyarrow.csv as pacsv

    convert = pacsv.ConvertOptions(
        include_columns=list(wanted),
        column_types={name: pa.string() for name in texts},
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


def _read_parquet(path: Path, wanted: Sequence[str]) -> Any:
    """Read a Parquet file, after a look at its rows and at the length of its texts."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet

    # Not read_table: it adds columns for a folder that is called "year=2013".
    with pyarrow.parquet.ParquetFile(path) as file:
        _check_rows(path, file.metadata.num_rows, len(wanted))
        schema = pa.schema([file.schema_arrow.field(name) for name in wanted])
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    with pyarrow.parquet.ParquetFile(path, read_dictionary=texts) as file:
        table, size = file.read(columns=list(wanted)), 0
    for column in table.columns:
        for part in column.chunks if pa.types.is_dictionary(column.type) else ():
            if pa.types.is_string(part.type.value_type):
                lengths = pc.binary_length(part.dictionary).take(part.indices)
                size += pc.sum(lengths).as_py() or 0
    check_growth(size, path.stat().st_size)
    return table.cast(schema)


def _read_arrow(path: Path, reader: Any, wanted: Sequence[str]) -> Any:
    """Read an Arrow file or stream batch by batch, as long as it keeps to its size."""
    import pyarrow as pa

    if hasattr(reader, "num_record_batches"):  # a file, which knows its rows unread
        import pyarrow.dataset

        rows = pyarrow.dataset.dataset(path, format="ipc").count_rows()
        _check_rows(path, rows, len(reader.schema))
        batches = map(reader.get_batch, range(reader.num_record_batches))
    else:
        batches = iter(reader)
    kept, size = [], 0
    for batch in batches:
        size += batch.nbytes
        check_growth(size, path.stat().st_size)
        kept.append(batch.select(list(wanted)))
    schema = pa.schema([reader.schema.field(name) for name in wanted])
    return pa.Table.from_batches(kept, schema)


def _check_rows(path: Path, rows: int, columns: int) -> None:
    """Refuse a table that is small on the disk alone, before it is read."""
    check_growth(8 * rows * columns, path.stat().st_size)


def _npz(path: Path, source: PartySource, who: str) -> dict[str, Array]:
    """Return the columns of X, y and ids by name."""
    with path.open("rb") as raw:
        file = read_npz(raw, ("X", "y", "ids", "columns"))
    X = file["X"]
    if X.ndim != 2 or X.dtype.kind not in "biuf":
        raise PartyError(
            f"X in the data file of {who} must be a matrix of real numbers, got "
            f"shape {X.shape} and dtype {X.dtype}"
        )
    if X.shape[1] > MOST_COLUMNS:
        raise PartyError(
            f"X in the data file of {who} must have at most {MOST_COLUMNS} columns, "
            f"got {X.shape[1]}"
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
    # Each array has the name that the options use.
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
    """Return how an error names the party."""
    if source.name:
        return f"party {source.name!r}"
    return "the party" if source.index is None else f"party-{source.index}"
