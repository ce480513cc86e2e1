"""Writing files atomically, and checking their size before they are loaded."""

from __future__ import annotations

import contextlib
import errno
import glob
import math
import mmap
import os
import secrets
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from struct import unpack
from typing import IO, Any, Literal

import numpy as np

from vfl_flower.typing import Array, Arrays

MOST_GROWTH = 100
"""Maximum ratio of a file's unpacked size to its size on disk, beyond `SMALL`."""

SMALL = 2**26
"""Unpacked size, in bytes, that is allowed for any file: 64 MiB."""


DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError)
"""Exceptions that NumPy raises for a damaged NPZ file, besides OSError."""


class UnpackedSizeError(ValueError):
    """A file would be much larger in memory than on disk."""


def check_no_link(path: Path) -> None:
    """Raise OSError for a symbolic link, whose creator chooses the target file."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed")


def make_private(path: Path) -> None:
    """Create an empty file that only the user may read, unless it exists.

    Raises OSError if the file cannot be opened for writing or is a symbolic link.
    """
    check_no_link(path)  # for its message; O_NOFOLLOW covers a link made meanwhile
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))


def check_growth(unpacked: int, size: int) -> None:
    """Raise UnpackedSizeError if a file of `size` bytes unpacks to far more bytes."""
    if unpacked > (most := MOST_GROWTH * size + SMALL):
        raise UnpackedSizeError(
            f"it unpacks to at least {unpacked} bytes; the limit is {most} "
            f"({MOST_GROWTH} times its {size} bytes plus {SMALL}): do not compress it"
        )


def read_npz(
    file: IO[bytes], names: Collection[str] | None = None, *, compressed: bool = True
) -> Arrays:
    """Read all arrays of an NPZ file, or only the arrays in `names` that it contains.

    Nothing is unpickled. Raises UnpackedSizeError if the arrays would be too large (see
    :func:`check_growth`), and OSError or one of `DAMAGED` if the file is damaged.
    """
    _check_npz(file, names, compressed)
    file.seek(0)
    with np.load(file, allow_pickle=False) as stored:
        wanted = [name for name in stored.files if names is None or name in names]
        return {name: _array(stored[name]) for name in wanted}


def map_npz(file: IO[bytes], names: Collection[str]) -> tuple[Arrays, list[mmap.mmap]]:
    """Memory-map, read-only, the arrays in `names` that an NPZ file contains.

    Compressed arrays are unpacked into an unnamed temporary file. The caller may
    release pages of the maps that it has read. Raises the errors of :func:`read_npz`.
    """
    arrays: Arrays = {}
    maps = []
    with zipfile.ZipFile(file) as archive:
        for entry in _check_npz(file, names):
            with archive.open(entry) as member:
                shape, fortran, dtype = _header(member)
                begin = member.tell()
            if dtype.hasobject:
                raise ValueError("the file must not contain pickled objects")
            with tempfile.TemporaryFile() as scratch, archive.open(entry) as member:
                stored = entry.compress_type == zipfile.ZIP_STORED
                # Read in either case, since the checksum is verified at the end.
                while block := member.read(2**20):
                    if not stored:
                        scratch.write(block)
                scratch.flush()
                where = file if stored else scratch
                mapped = mmap.mmap(where.fileno(), 0, access=mmap.ACCESS_READ)
            if stored:
                file.seek(entry.header_offset + 26)
                begin += entry.header_offset + 30 + sum(unpack("<HH", file.read(4)))
            if begin + math.prod(shape) * dtype.itemsize > len(mapped):
                raise ValueError("an array has fewer bytes than its header states")
            order: Literal["F", "C"] = "F" if fortran else "C"
            array: Array = np.ndarray(shape, dtype, mapped, begin, order=order)
            arrays[entry.filename.removesuffix(".npy")] = array
            maps.append(mapped)
    return arrays, maps


def _check_npz(
    file: IO[bytes], names: Collection[str] | None, compressed: bool = True
) -> list[zipfile.ZipInfo]:
    """Return the entries of an NPZ file; raise an error if they would be too large."""
    size = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        entries = [
            entry
            for entry in archive.infolist()
            if names is None or entry.filename.removesuffix(".npy") in names
        ]
        kinds = {entry.compress_type for entry in entries}
        # NumPy uses only these methods, and zipfile unpacks only these in pieces.
        if kinds - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise ValueError("the file may use only deflate compression")
        if not compressed and kinds - {zipfile.ZIP_STORED}:
            raise ValueError("the file must not be compressed")
        # Check the sizes in the archive first, since a header may have any length.
        check_growth(sum(entry.file_size for entry in entries), size)
        check_growth(sum(_bytes_of(archive, entry) for entry in entries), size)
    return entries


def _bytes_of(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
    """Return an array's size in bytes, as float64 or, if larger, in its own type."""
    with archive.open(entry) as file:
        shape, _, dtype = _header(file)
    # An empty array may still have any number of columns.
    return math.prod(max(abs(n), 1) for n in shape) * max(dtype.itemsize, 8)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the shape of an array, whether it is column-major, and its type."""
    match np.lib.format.read_magic(file):
        case (1, 0):
            return np.lib.format.read_array_header_1_0(file)
        case (2, 0):
            return np.lib.format.read_array_header_2_0(file)
        case version:
            raise ValueError(f"an array must be in format 1 or 2, got format {version}")


def _array(value: object) -> Array:
    if not isinstance(value, np.ndarray):
        raise ValueError("the file must contain only arrays")
    return value


@contextlib.contextmanager
def whole_file(path: Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Open a binary file that is written whole or not at all, replacing an old file.

    A reader sees either the old file or the new file, even during the write. If two
    processes write the same file at once, one write can fail. The folder must exist. A
    `private` file is readable only by its user, and is flushed to disk. Raises OSError
    if the file cannot be written; after any error, an old file is unchanged.
    """
    for orphan in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        orphan.unlink(missing_ok=True)  # left by a killed process, perhaps with secrets
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    mode = 0o600 if private else 0o666
    try:
        with open(part, "xb", opener=lambda p, flags: os.open(p, flags, mode)) as file:
            yield file
            if private:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file whole or not at all; see :func:`whole_file`."""
    with whole_file(path, private=private) as file:
        file.write(content)
