"""Arrow files and streams, mapped into memory, and unpacked first if compressed.

pyarrow unpacks a compressed batch as a whole. This module unpacks a few columns at a
time into an unnamed file, as a stream of uncompressed batches, and then maps the file.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from vfl_flower.files import check_growth

VALUES = 2**21
"""Maximum number of values to unpack at a time, unless a single column has more."""


def schema_of(path: Path) -> Any:
    """Return the schema of an Arrow file or stream."""
    return _open(_mapped(path)).schema


def map_arrow(path: Path) -> list[mmap.mmap]:
    """Map the columns of an Arrow file or stream into memory, unpacked.

    Each map contains some of the columns, in order. Raises UnpackedSizeError if the
    unpacked columns would be much larger than the file.
    """
    mapped, size = _mapped(path), path.stat().st_size
    width = len(_open(mapped).schema)
    rows = most = 0
    for batch in _batches(mapped, [0]):
        rows, most = rows + batch.num_rows, max(most, batch.num_rows)
        check_growth(8 * rows * width, size)
    step, total = max(1, VALUES // max(most, 1)), 0
    parts = [range(k, min(k + step, width)) for k in range(0, width, step)]
    if not any(_is_unpacked(mapped, part) for part in parts):
        return [mapped]
    maps = []
    for part in parts:
        schema = pa.schema([_open(mapped).schema.field(k) for k in part])
        with tempfile.TemporaryFile() as scratch:
            with pa.ipc.new_stream(scratch, schema) as writer:
                for batch in _batches(mapped, part):
                    batch.validate(full=True)  # a damaged batch could crash the process
                    check_growth(total := total + batch.nbytes, size)
                    writer.write_batch(batch)
                    give_back(mapped)
            scratch.flush()
            maps.append(mmap.mmap(scratch.fileno(), 0, access=mmap.ACCESS_READ))
    return maps


def batches_of(maps: Sequence[mmap.mmap]) -> Iterator[Any]:
    """Yield the batches of the columns of all maps."""
    for parts in zip(*map(_batches, maps), strict=True):
        columns = [column for part in parts for column in part.columns]
        schema = pa.schema([field for part in parts for field in part.schema])
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def give_back(*maps: mmap.mmap) -> None:
    """Release the memory of pages that were read; they can be read again."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for mapped in maps:
            mapped.madvise(mmap.MADV_DONTNEED)


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _open(mapped: mmap.mmap, columns: Sequence[int] = ()) -> Any:
    """Return pyarrow's reader of some of the columns; by default, of all columns."""
    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=list(columns))
    buffer = pa.py_buffer(mapped)
    if mapped[:6] == b"ARROW1":
        if not columns:
            return pa.ipc.open_file(pa.BufferReader(buffer), options=options)
        buffer = buffer.slice(8)  # a file reader would copy the other columns
    return pa.ipc.open_stream(pa.BufferReader(buffer), options=options)


def _batches(mapped: mmap.mmap, columns: Sequence[int] = ()) -> Iterator[Any]:
    reader = _open(mapped, columns)
    try:
        if hasattr(reader, "num_record_batches"):  # a file, not a stream
            yield from map(reader.get_batch, range(reader.num_record_batches))
        else:
            yield from reader
    except pa.ArrowMemoryError:  # a damaged length may be any number
        raise ValueError("a buffer is too large") from None


def _is_unpacked(mapped: mmap.mmap, columns: Sequence[int]) -> bool:
    """Return whether pyarrow unpacks the first batch into memory outside the map."""
    whole = pa.py_buffer(mapped)
    batch = next(_batches(mapped, columns), None)
    buffers = [] if batch is None else [b for c in batch.columns for b in c.buffers()]
    places = [b.address for b in buffers if b is not None and b.size]
    return any(not 0 <= place - whole.address < whole.size for place in places)
