"""A party's columns in a Parquet or Arrow file, read in batches without conversion.

Reading is slower than from a converted file (:func:`vfl_flower.data.load_party`), but
needs no second copy on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vfl_flower.data.files import files_of
from vfl_flower.data.tables import batch_rows
from vfl_flower.party.party import PartyError
from vfl_flower.rows import WINDOW_BYTES, Rows
from vfl_flower.typing import Array


class ArrowRows(Rows):
    """The rows of Arrow record batches, which are read again for each pass.

    Memory holds one batch, and the most recently taken rows if they occupy at most 16
    MiB, so a small coreset is read once. Rows in order need one pass over the pieces
    that contain them; scattered rows need one pass for each 16 MiB.

    pieces: functions that return an iterator over the record batches of consecutive
        rows, the same at each call. A piece without a wanted row is skipped.
    columns: the columns to use: real numbers or truth values, none of them missing.
    counts: number of rows in each piece; by default a pass counts them.

    Raises ValueError if `columns` is empty and, when a column is read (for example, by
    a new `Party`), if the column does not exist, has an unsupported type or lacks a
    value. Raises PartyError if a piece has fewer rows than before.

    >>> import pyarrow as pa
    >>> batch = pa.RecordBatch.from_pydict({"a": [1, 2, 3], "b": [0.5, 1.5, 2.5]})
    >>> rows = ArrowRows([lambda: [batch], lambda: [batch]], ["a", "b"])
    >>> rows.shape
    (6, 2)
    >>> rows.take(np.array([4, 0]))
    array([[2. , 1.5],
           [1. , 0.5]])
    """

    def __init__(
        self,
        pieces: Sequence[Callable[[], Iterable[Any]]],
        columns: Sequence[str],
        counts: Sequence[int] | None = None,
    ) -> None:
        if not columns:
            raise ValueError("columns must name at least one column, got none")
        self.columns = list(columns)
        self._pieces = list(pieces)
        if counts is None:
            counts = [sum(b.num_rows for b in piece()) for piece in self._pieces]
        self._ends = np.array([0, *accumulate(counts)])
        self.shape = (int(self._ends[-1]), len(self.columns))
        self._last: tuple[Array, Array] | None = None
        self._batches: Iterator[Any] = iter(())
        self._batch: Any = None
        self._piece, self._start, self._stop = -1, 0, 0  # the rows of the batch

    def take(self, rows: Array) -> Array:
        """Return some rows; see :meth:`Rows.take`."""
        if self._last is not None and np.array_equal(self._last[0], rows):
            return self._last[1]
        self._last = None  # so that the two are never in memory together
        order = np.argsort(rows, kind="stable")
        wanted = rows[order]
        if len(rows) and not 0 <= wanted[0] <= wanted[-1] < len(self):
            raise ValueError(f"rows must be row numbers from 0 to {len(self) - 1}")
        X, done = np.empty((len(rows), self.shape[1])), 0
        while done < len(rows):
            self._seek(int(wanted[done]))
            end = done + int(np.searchsorted(wanted[done:], self._stop))
            X[order[done:end]] = self._read(wanted[done:end] - self._start)
            done = end
        X.flags.writeable = False
        if X.nbytes <= WINDOW_BYTES:
            self._last = rows.copy(), X
        return X

    def _seek(self, row: int) -> None:
        """Advance to the batch that contains a row."""
        piece = int(np.searchsorted(self._ends, row, side="right")) - 1
        if piece != self._piece or row < self._start:
            self._piece, self._start = piece, int(self._ends[piece])
            self._stop = self._start
            self._batches = iter(self._pieces[piece]())
        while self._stop <= row:
            self._batch = next(self._batches, None)
            if self._batch is None:
                raise PartyError("the file of this party's rows changed during the run")
            self._start, self._stop = self._stop, self._stop + self._batch.num_rows

    def _read(self, places: Array) -> Array:
        """Return the batch's rows at positions given in ascending order."""
        low = int(places[0])
        batch = self._batch.slice(low, int(places[-1]) + 1 - low)
        X = np.empty((len(places), self.shape[1]))
        dense = len(places) == batch.num_rows and np.array_equal(
            places, np.arange(low, low + batch.num_rows)
        )
        for j, name in enumerate(self.columns):
            values = _numbers(batch, name)
            X[:, j] = values if dense else values[places - low]
        return X


def _numbers(batch: Any, name: str) -> Array:
    """Return a column of a record batch."""
    place = batch.schema.get_field_index(name)
    if place < 0:
        raise ValueError(f"this party's rows must have exactly one column {name!r}")
    array = batch.column(place)
    kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        if not pa.types.is_boolean(kind):
            raise ValueError(
                f"column {name!r} must hold real numbers or truth values, got {kind}: "
                "convert the file"
            )
        array = array.cast(pa.uint8())
    if array.null_count:
        raise ValueError(
            f"column {name!r} must have no missing value, {array.null_count} found in "
            "a batch: convert the file, or fill the missing values"
        )
    return np.asarray(array.to_numpy(zero_copy_only=False))


def arrow_rows(path: Path | str, columns: Sequence[str] | None = None) -> ArrowRows:
    """Return the rows of a Parquet or Arrow IPC file, which must not change.

    The path can also be a pattern of Parquet files, or a folder of such files whose
    name ends in ``.parquet``. By default, all columns are used. For a Parquet file,
    memory holds a batch of 16,384 rows and the pages that contain these rows; for an
    Arrow file, memory holds a whole batch if the file is compressed.

    Raises ValueError if the file does not exist, and the errors of :class:`ArrowRows`.
    """
    path = Path(path)
    files = files_of(path)
    if not files or not all(file.is_file() for file in files):
        raise ValueError(
            "path must be a file, a pattern or a folder of Parquet files, got "
            f"{str(path)!r}"
        )
    pieces: list[Callable[[], Iterable[Any]]] = []
    counts: list[int] = []
    if files[0].suffix.lower() != ".parquet":
        reader = pa.ipc.open_file(pa.memory_map(str(files[0])))
        names = list(columns or reader.schema.names)
        pieces = [partial(_batch, reader, k) for k in range(reader.num_record_batches)]
        return ArrowRows(pieces, names)
    names = list(columns or pq.read_schema(files[0]).names)
    for file in files:
        about = pq.read_metadata(file)
        for k in range(about.num_row_groups):
            pieces.append(partial(_row_group, file, k, names))
            counts.append(about.row_group(k).num_rows)
    return ArrowRows(pieces, names, counts)


def _batch(reader: Any, k: int) -> list[Any]:
    return [reader.get_batch(k)]


def _row_group(path: Path, k: int, columns: Sequence[str]) -> Iterator[Any]:
    size = batch_rows(len(columns))
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=2**18) as file:
        yield from file.iter_batches(size, [k], list(columns), use_threads=False)


__all__ = ["ArrowRows", "arrow_rows"]
