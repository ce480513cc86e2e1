"""Arrow files and streams, mapped into memory; what is compressed is unpacked before.

pyarrow unpacks a compressed batch as a whole. Here each of its buffers is unpacked some
megabytes at a time into a file without a name, as a stream of plain buffers, which is
then mapped. The format marks a plain buffer in a compressed batch by length -1.
"""

from __future__ import annotations

import mmap
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from vfl_flower.files import check_growth

LARGE = 2**25
"""Bytes that pyarrow may unpack, batch by batch: its pool keeps several batches."""

BLOCK = 2**22
"""Bytes that are unpacked at a time."""

CODECS = ("lz4", "zstd")
"""What may pack a batch, by its number in the format."""

BATCH, DICTIONARY = "record batch", "dictionary"  # as pyarrow calls these messages
_START = b"ARROW1"  # of a file; a stream has none
_AS_IT_IS = struct.pack("<q", -1)


@dataclass(frozen=True)
class Packing:
    """What the message of a batch says of its buffers."""

    rows: int
    """Rows of the batch, or values of the dictionary."""
    codec: str
    """The compression of the buffers; "" without compression."""
    buffers: list[tuple[int, int]]
    """First byte and number of bytes of each in the body."""
    at_buffers: int
    """Where in the message the buffers are listed."""
    at_body: int
    """Where in the message the length of the body stands."""


def open_arrow(mapped: mmap.mmap) -> Any:
    """Return pyarrow's reader of an Arrow file or stream."""
    import pyarrow as pa

    options = pa.ipc.IpcReadOptions(use_threads=False)
    is_file = mapped[: len(_START)] == _START
    opener = pa.ipc.open_file if is_file else pa.ipc.open_stream
    return opener(pa.BufferReader(pa.py_buffer(mapped)), options=options)


def map_arrow(path: Path) -> mmap.mmap:
    """Map an Arrow file or stream into memory, unpacked where that makes it large.

    Raises UnpackedSizeError if it would be much larger than on the disk, and ValueError
    if it is damaged, as far as that shows without unpacking it all.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    columns, rows, total, packed = len(open_arrow(mapped).schema), 0, 0, False
    for message in _messages(mapped):
        if (packing := _packing(message)) is not None:
            n = sum(_sizes(message, packing))
            rows += packing.rows * (message.type == BATCH)
            total += n
            packed |= packing.codec != ""
    check_growth(max(8 * rows * columns, total), size)
    if not packed or total <= LARGE:
        return mapped
    with tempfile.TemporaryFile() as scratch:
        for message in _messages(mapped):
            _write(message, scratch, mapped)
        scratch.flush()
        return mmap.mmap(scratch.fileno(), 0, access=mmap.ACCESS_READ)


def give_back(*maps: mmap.mmap) -> None:
    """Give back the memory of pages that were read, which can be read again."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for mapped in maps:
            mapped.madvise(mmap.MADV_DONTNEED)


def _messages(mapped: mmap.mmap) -> Iterator[Any]:
    """Yield the messages up to the last batch; their bodies are not read."""
    import pyarrow as pa

    reader = open_arrow(mapped)
    left = getattr(reader, "num_record_batches", -1)  # a stream does not say
    buffer = pa.py_buffer(mapped)
    buffer = buffer.slice(8) if mapped[: len(_START)] == _START else buffer
    messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(buffer))
    while left:
        try:
            message = messages.read_next_message()
        except StopIteration:
            if left > 0:
                raise ValueError("a batch is missing") from None
            return
        left -= message.type == BATCH
        yield message


def _packing(message: Any) -> Packing | None:
    """Return what the message of a batch says; None for other messages.

    pyarrow reports it only for a batch that it has unpacked. A message is a table of
    FlatBuffers: its field 2 is the batch and its field 3 the length of the body. Of a
    batch, field 0 is the length, field 2 the buffers and field 3 the compression. The
    batch of a dictionary is field 1 of what stands there.
    """
    if message.type not in (BATCH, DICTIONARY):
        return None
    data = bytes(message.metadata)

    def number(form: str, place: int) -> int:
        return int(struct.unpack_from(form, data, place)[0])

    def field(table: int, k: int) -> int:
        """Return where a field of a table stands; 0 where it has its default."""
        about = table - number("<i", table)
        inside = 4 + 2 * k < number("<H", about)
        start = number("<H", about + 4 + 2 * k) if inside else 0
        return table + start if start else 0

    def follow(place: int) -> int:
        return place + number("<I", place)

    try:
        root = follow(0)
        batch = follow(field(root, 2))
        if message.type == DICTIONARY:
            batch = follow(field(batch, 1))
        at_rows, at_buffers, at_packing = (field(batch, k) for k in (0, 2, 3))
        rows = number("<q", at_rows) if at_rows else 0
        buffers, codec = [], ""
        if at_buffers:
            at_buffers = follow(at_buffers) + 4
            count = number("<I", at_buffers - 4)
            numbers = struct.unpack_from(f"<{2 * count}q", data, at_buffers)
            buffers = list(zip(numbers[::2], numbers[1::2], strict=True))
        if at_packing:
            at_codec = field(follow(at_packing), 0)
            codec = CODECS[number("<b", at_codec) if at_codec else 0]
        return Packing(rows, codec, buffers, at_buffers, field(root, 3))
    except (struct.error, IndexError):
        raise ValueError("a batch is damaged") from None


def _sizes(message: Any, packing: Packing) -> Iterator[int]:
    """Yield the bytes of each buffer, unpacked."""
    for start, length in packing.buffers:
        if min(start, length) < 0 or start + length > message.body.size:
            raise ValueError("a buffer must be within its batch")
        if not (packing.codec and length):
            yield length
            continue
        (n,) = struct.unpack("<q", message.body.slice(start, 8))
        if n < -1:
            raise ValueError("a buffer must have no negative length")
        yield n if n >= 0 else length - 8


def _write(message: Any, file: IO[bytes], mapped: mmap.mmap) -> None:
    """Write a message, with its buffers unpacked."""
    packing = _packing(message)
    metadata = bytearray(message.metadata)
    if packing is None or not packing.codec:
        _begin(file, metadata)
        file.write(message.body)
        give_back(mapped)
        return
    sizes, end = list(_sizes(message, packing)), 0
    for k, n in enumerate(sizes):
        length = n + 8 if n else 0
        place = packing.at_buffers + 16 * k
        metadata[place : place + 16] = struct.pack("<qq", end, length)
        end += length + -length % 8
    if end:
        metadata[packing.at_body : packing.at_body + 8] = struct.pack("<q", end)
    _begin(file, metadata)
    for n, (start, length) in zip(sizes, packing.buffers, strict=True):
        if n:
            file.write(_AS_IT_IS)
            _unpack(message.body.slice(start, length), packing.codec, n, file, mapped)
            file.write(bytes(-n % 8))


def _begin(file: IO[bytes], metadata: bytearray) -> None:
    """Write what stands before the body of a message."""
    padding = bytes(-len(metadata) % 8)
    file.write(struct.pack("<iI", -1, len(metadata) + len(padding)))
    file.write(metadata + padding)


def _unpack(part: Any, codec: str, n: int, file: IO[bytes], mapped: mmap.mmap) -> None:
    """Write the n bytes of a buffer."""
    import pyarrow as pa

    if bytes(part.slice(0, 8)) == _AS_IT_IS:
        file.write(part.slice(8))
        return
    packed = pa.BufferReader(part.slice(8))
    with pa.CompressedInputStream(packed, codec) as unpacked:
        while n:
            if not (block := unpacked.read(min(n, BLOCK))):
                raise ValueError("a buffer is shorter than it says")
            file.write(block)
            n -= len(block)
            give_back(mapped)


__all__ = ["give_back", "map_arrow", "open_arrow"]
