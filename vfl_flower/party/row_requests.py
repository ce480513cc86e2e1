"""A party's requests to its models: rows to forget, rows to add, models to leave.

Each kind of request has a file in the party's ``state-dir``, with one request on each
line. No message can write to these files: the server decides when rows are added or
forgotten, and the party decides which rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from vfl_flower.party.parts import is_model_id, read_private, write_private
from vfl_flower.party.party import Party, PartyError
from vfl_flower.protocol.errors import refusing_files
from vfl_flower.protocol.normal import is_broken
from vfl_flower.typing import Array

FORGET, ADD, LEAVE = "forget.txt", "add.txt", "leave.txt"
"""Files with the ids of rows to forget, of rows to add, and of models to leave."""


def request_changes(
    party: Party,
    *,
    forget: Iterable[Any] = (),
    add: Iterable[Any] = (),
    leave: Iterable[str] = (),
) -> None:
    """Write change requests, which later runs apply to models that can forget rows.

    The requests are added to the pending requests in ``forget.txt``, ``add.txt`` and
    ``leave.txt`` in the party's ``state_dir``. Runs of the tasks ``unlearn``, ``add``
    and ``forget-client`` serve each request once. An operator can also write these
    files with an editor, one request on each line.

    Parameters
    ----------
    party : Party
        The party, with a `state_dir`.
    forget : iterable of str or int
        Ids of rows to forget, which were used in training or added later.
    add : iterable of str or int
        Ids of rows in the party's data that the model does not contain.
    leave : iterable of str
        Ids of models that the party leaves.

    Raises
    ------
    ValueError
        The party has no `state_dir`, or a request is not a row id (in `leave`, a model
        id). Nothing is written in that case.
    PartyError
        A file cannot be read or written.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> with TemporaryDirectory() as folder:
    ...     clinic = Party(np.zeros((3, 1)), ids=[4, 7, 9], state_dir=folder)
    ...     request_changes(clinic, forget=[4, 9])
    ...     (clinic.state_dir / "forget.txt").read_text().split()
    ['4', '9']
    """
    folder = party.state_dir
    if folder is None:
        raise ValueError("party must have a state_dir to store its requests, got None")
    requests = {FORGET: _lines("forget", forget), ADD: _lines("add", add)}
    requests[LEAVE] = _lines("leave", leave)
    if not all(is_model_id(model) for model in requests[LEAVE]):
        rule = "ids of models, each 8 to 32 lower-case hexadecimal digits"
        raise ValueError(f"leave must hold {rule}")
    waiting = {name: read_requests(folder, name).values() for name in requests}
    for name, lines in requests.items():
        if lines:
            _write(folder / name, list(dict.fromkeys([*waiting[name], *lines])))


def _lines(name: str, requests: Iterable[Any]) -> list[str]:
    """Return requests as lines of a file; errors name no id."""
    wrong_type = isinstance(requests, str | bytes | Mapping)
    one_dimensional = getattr(requests, "ndim", 1) == 1
    if wrong_type or not one_dimensional or not isinstance(requests, Iterable):
        raise ValueError(f"{name} must be a list, got {type(requests).__name__}")
    values = list(requests)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | Integral):
            rule = "ids, as strings or whole numbers"
            raise ValueError(f"{name} must hold {rule}, got {type(value).__name__}")
    lines = [str(value) for value in values]
    for line in lines:
        if line.strip().splitlines() != [line] or "\0" in line or is_broken(line):
            rule = "single lines of UTF-8 text without spaces at the ends"
            raise ValueError(f"{name} must hold {rule}")
    return lines


def read_requests(folder: Path | None, name: str) -> dict[int, str]:
    """Return a file's requests by line number; raise PartyError unless it is text."""
    path = None if folder is None else folder / name
    if path is None or not path.exists():
        return {}
    try:
        text = read_private(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        rule = "must be a UTF-8 text file with a request on each line, not a link"
        raise PartyError(f"{name} {rule}") from None
    lines = enumerate(text.splitlines(), start=1)
    return {number: line.strip() for number, line in lines if line.strip()}


def finish_requests(
    folder: Path, name: str, served: Callable[[list[str]], Array | list[bool]]
) -> None:
    """Remove from one of the party's files the requests that were served."""
    lines = list(read_requests(folder, name).values())
    if lines:
        done = served(lines)
        more = [line for line, is_done in zip(lines, done, strict=True) if not is_done]
        if len(more) < len(lines):
            _write(folder / name, more)


def files_naming(folder: Path, ids: Sequence[str]) -> list[str]:
    """Return the files in a folder that contain one of the ids as a line or a cell."""
    cells = {text.encode() for text in ids}
    names = []
    for path in sorted(folder.rglob("*")) if ids else ():
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as lines:
                texts = (re.split(rb"[,;\t\"\r\n\0]", line) for line in lines)
                if any(cells & {*map(bytes.strip, parts)} for parts in texts):
                    names.append(str(path.relative_to(folder)))
    return names


def _write(path: Path, lines: Sequence[str]) -> None:
    """Write a file of requests, or remove it if no request is left."""
    if lines:
        write_private(path, "\n".join([*lines, ""]).encode(), "the requests")
        return
    with refusing_files(f"{path.name} cannot be removed", path):
        path.unlink(missing_ok=True)
