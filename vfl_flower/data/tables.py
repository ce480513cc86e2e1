"""Typed files and queries as tables: named columns, read in batches of rows.

A :class:`Table` can be read several times and never keeps more than a few batches in
memory.
"""

from __future__ import annotations

import functools
import mmap
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vfl_flower.data.arrow_ipc import batches_of, give_back, map_arrow, schema_of
from vfl_flower.data.findings import Finding
from vfl_flower.data.kinds import is_number, is_text, without_markers
from vfl_flower.data.source import PartySource
from vfl_flower.files import check_growth, map_npz
from vfl_flower.party.party import PartyError
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

BATCH = 2**14
"""Number of rows in a batch, unless the format determines this number."""

BATCH_VALUES = 2**20
"""Maximum number of values in a batch: with many columns, a batch has fewer rows."""

MOST_COLUMNS = 2**20
"""Maximum number of columns in an NPZ file, which need not name them."""


@shapes_only
@dataclass
class Table:
    """Named columns, whose rows can be read repeatedly."""

    names: list[str]
    """The names of the columns."""
    read: Callable[[Sequence[str]], Iterator[Any]]
    """Maps column names to an iterator over record batches of these columns."""
    notes: list[Finding] = field(default_factory=list)
    """Notes on options that were inferred from the file."""
    faults: list[Finding] = field(default_factory=list)
    """Faults of the rows or the header; complete once all rows have been read."""
    comma_is_decimal: bool = False
    """Whether a comma within a number can only be a decimal comma."""
    categories: Collection[str] = ()
    """Columns that the file marks as categories."""


def batch_rows(columns: int) -> int:
    """Return the number of rows in a batch with this number of columns."""
    return max(64, min(BATCH, BATCH_VALUES // max(columns, 1)))


def empty_rows(batch: Any) -> Any:
    """Return a mask of the rows of a batch that have no value in any column."""
    columns = [without_markers(column, frozenset({""})) for column in batch.columns]
    empty = [pc.is_null(column, nan_is_null=True) for column in columns]
    return functools.reduce(pc.and_, empty)


def parquet_table(files: Sequence[Path], who: str) -> Table:
    """Return the table of Parquet files, whose unpacked size is checked on reading."""
    schema = pq.read_schema(files[0])
    types = list(schema.types)
    for path in files[1:]:
        file_schema = pq.read_schema(path)
        if file_schema.names != schema.names:
            raise PartyError(
                f"the Parquet files of {who} must have the same columns in the same "
                "order"
            )
        for k, (old, new) in enumerate(zip(types, file_schema.types, strict=True)):
            if pa.types.is_null(old):  # a column without a value fits any type
                types[k] = new
            elif not (pa.types.is_null(new) or _alike(old, new)):
                raise PartyError(
                    f"column {schema.names[k]!r} of {who} must have the same type in "
                    "all Parquet files"
                )
    type_of = dict(zip(schema.names, types, strict=True))

    def read(wanted: Sequence[str]) -> Iterator[Any]:
        for path in files:
            # Not read_table, which adds columns for a folder named like "year=2013".
            about, size = pq.read_metadata(path), path.stat().st_size
            check_growth(8 * about.num_rows * len(wanted), size)
            stored = pq.read_schema(path)
            kinds = {name: stored.field(name).type for name in wanted}
            texts = [name for name, kind in kinds.items() if pa.types.is_string(kind)]
            if about.num_columns == len(schema.names):  # none is nested
                texts = [t for t in texts if _sized(about, schema.names.index(t))]
            empty = {name for name, kind in kinds.items() if pa.types.is_null(kind)}
            typed = pa.schema(kinds | {name: type_of[name] for name in empty})
            unpacked = 0
            with pq.ParquetFile(
                path, read_dictionary=texts, pre_buffer=False, buffer_size=2**18
            ) as file:
                for batch in file.iter_batches(
                    batch_rows(len(wanted)), columns=list(wanted), use_threads=False
                ):
                    for part in map(batch.column, texts):
                        if pa.types.is_dictionary(part.type):
                            lengths = pc.binary_length(part.dictionary)
                            unpacked += pc.sum(lengths.take(part.indices)).as_py() or 0
                    check_growth(unpacked, size)
                    yield batch.select(list(wanted)).cast(typed)

    return Table(schema.names, read, categories=_categories(schema))


def _categories(schema: Any) -> set[str]:
    """Return the columns that are categories by Arrow type or by pandas metadata."""
    about = (schema.pandas_metadata or {}).get("columns", ())
    return {
        *(c["field_name"] for c in about if c["pandas_type"] == "categorical"),
        *(field.name for field in schema if pa.types.is_dictionary(field.type)),
    }


def _alike(first: Any, second: Any) -> bool:
    """Return whether columns of two types hold the same kind of values."""
    tests = is_number, is_text, pa.types.is_timestamp
    return first == second or any(test(first) and test(second) for test in tests)


def _sized(metadata: Any, column: int) -> bool:
    """Return whether to read a text column as a dictionary, to measure its strings.

    The result is false if the dictionary would hold too many strings in memory.
    """
    chunks = (
        metadata.row_group(group).column(column)
        for group in range(metadata.num_row_groups)
    )
    return all(c.total_uncompressed_size < max(2**22, 8 * c.num_values) for c in chunks)


def arrow_table(path: Path) -> Table:
    """Return the table of an Arrow IPC file (Feather 2) or stream, memory-mapped."""
    maps: list[mmap.mmap] = []

    def read(wanted: Sequence[str]) -> Iterator[Any]:
        if not maps:  # only when rows are read, since the file may have to be unpacked
            maps.extend(map_arrow(path))
        for batch in batches_of(maps):
            chosen = batch.select(list(wanted))
            for rows in _mapped_rows(batch.num_rows, len(wanted), maps):
                part = chosen.slice(rows.start, rows.stop - rows.start)
                part.validate(full=True)  # a damaged offset would crash the process
                yield part

    schema = schema_of(path)
    return Table(schema.names, read, categories=_categories(schema))


def _mapped_rows(n: int, columns: int, maps: Sequence[mmap.mmap]) -> Iterator[slice]:
    """Yield slices of the rows to read at once; release the memory of earlier rows."""
    step = batch_rows(columns)
    for start in range(0, n, step):
        yield slice(start, start + step)
        if start % (4 * step) == 0:
            give_back(*maps)


def npz_table(path: Path, source: PartySource) -> Table:
    """Return the table of the arrays X, y and ids, memory-mapped."""
    what = f"the data file of {source.who}"
    with path.open("rb") as raw:
        file, maps = map_npz(raw, ("X", "y", "ids", "columns"))
    file = {key: _native(array) for key, array in file.items()}
    X = file["X"]
    if X.ndim != 2 or X.dtype.kind not in "biuf" or X.shape[1] > MOST_COLUMNS:
        raise PartyError(
            f"X in {what} must be a matrix of real numbers with at "
            f"most {MOST_COLUMNS} columns, got shape {X.shape} and dtype {X.dtype}"
        )
    names = [f"x{j}" for j in range(X.shape[1])]
    if "columns" in file:
        names = [str(name) for name in file["columns"].tolist()]
    if len(names) != X.shape[1] or len(set(names)) != len(names):
        raise PartyError(
            f"columns in {what} must be {X.shape[1]} distinct "
            f"names, got {len(names)} names, {len(set(names))} of them distinct"
        )
    arrays = {name: X[:, j] for j, name in enumerate(names)}
    # Each array gets the name that the options use.
    options = {"y": source.label_column or "y", "ids": source.id_column or "ids"}
    for key, name in options.items():
        if key not in file:
            continue
        if name in arrays:
            raise PartyError(f"{what} has both array {key} and column {name!r} in X")
        arrays[name] = file[key]
        if arrays[name].shape != (len(X),):
            raise PartyError(
                f"{key} in {what} must have one value for each of "
                f"the {len(X)} rows of X, got shape {arrays[name].shape}"
            )

    def read(wanted: Sequence[str]) -> Iterator[Any]:
        for rows in _mapped_rows(len(X), len(wanted), maps):
            yield pa.RecordBatch.from_pydict(
                {name: pa.array(arrays[name][rows]) for name in wanted}
            )

    return Table(list(arrays), read)


def _native(array: Array) -> Array:
    """Return an array in this machine's byte order, in a type that Arrow supports."""
    kind = array.dtype.newbyteorder("=")
    if kind.kind == "f" and kind.itemsize not in (4, 8):
        kind = np.dtype(np.float64)
    return array.astype(kind, copy=False)


def query_table(sql: str, who: str) -> Table:
    """Return the table of a DuckDB query, which runs again for each reading."""
    try:
        import duckdb  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise PartyError(
            f"data of {who} is a query and needs DuckDB: pip install duckdb"
        ) from None

    inner = sql.strip().rstrip(";")

    def run(rest: str) -> Any:
        connection = duckdb.connect(config={"threads": 1, "memory_limit": "128MB"})
        # A subquery can only be a SELECT.
        relation = connection.sql(f"SELECT * FROM ({inner}\n) {rest}")
        if hasattr(relation, "to_arrow_reader"):
            return relation.to_arrow_reader(BATCH)
        return relation.fetch_arrow_reader(BATCH)  # before DuckDB 1.5

    def read(wanted: Sequence[str]) -> Iterator[Any]:
        for batch in run(""):
            yield batch.select(list(wanted))

    return Table(list(run("LIMIT 0").schema.names), read)
