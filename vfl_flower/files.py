"""The only writer of files: each is written whole, or not at all."""

from __future__ import annotations

import glob
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO


def write_whole(
    path: Path, content: bytes | Callable[[IO[bytes]], object], *, private: bool = False
) -> None:
    """Write a file whole or not at all; replace an earlier one.

    A reader sees the earlier file or the new one, even while the new one is written. If
    two processes write the same file at once, one may fail.

    Parameters
    ----------
    path : Path
        The file; its folder must exist.
    content : bytes or callable
        What to write, or a function that writes to the binary file that it is given.
    private : bool
        Only the user of this process may read the file, and it is on the disk when the
        function returns.

    Raises
    ------
    OSError
        The file cannot be written. An earlier one stays as it was.
    """
    for orphan in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        orphan.unlink(missing_ok=True)  # of a killed process, perhaps with secrets
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    mode = 0o600 if private else 0o666
    try:
        with open(part, "xb", opener=lambda p, flags: os.open(p, flags, mode)) as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            if private:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
