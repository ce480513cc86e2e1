"""Read and write a party's local models; no other module does so.

A local model stays in the party's ``state-dir``, and later prediction runs load it.
It can contain the party's secret seeds, so only its model id is ever logged.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vfl_flower.files import check_no_link, read_npz, write_whole
from vfl_flower.protocol.errors import PartyError, refusing_files
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array, Arrays
from vfl_flower.version import __version__

logger = logging.getLogger("vfl_flower")

FORMAT = 1
"""Format number of the file, stored in ``about``; each file ends in its checksum."""

FORMULA = re.compile(r"'*(\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n])")
"""Start of a string that a spreadsheet reads as a formula, perhaps after quotes."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
"""A string that is a plain number, which no spreadsheet reads as a formula."""

CHECKSUM = 64
"""Length of the checksum at the end of a file: a SHA-256 in hexadecimal digits."""


@shapes_only
@dataclass(frozen=True, eq=False)
class ModelPart:
    """The local model that one party stores for a trained model."""

    model: str  # id of the model and its training run, 8 to 32 lower-case hex digits
    strategy: str  # name of the strategy that trained it
    settings: dict[str, Any] = field(default_factory=dict)
    """Any values that JSON can represent: seeds, sizes, the encoding of columns."""
    arrays: Arrays = field(default_factory=dict)  # which NumPy stores without pickle


def save_part(folder: Path, part: ModelPart) -> None:
    """Write a party's local model to ``<model>.npz``, whole or not at all.

    Raises PartyError if the id is invalid or the ``state-dir`` is not writable, and
    TypeError or ValueError if JSON cannot represent the settings or an array needs
    pickle.
    """
    target = _path(folder, part.model)
    write_private(target, _packed(part), f"local model {part.model}")
    logger.info("local model %s written to %s", part.model, target)


def check_folder(folder: Path) -> None:
    """Create a missing ``state-dir``; raise PartyError unless it is private."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
        mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError:
        writable, mode = False, 0o700
    if not writable:
        logger.error("cannot write to %s", folder)
        raise PartyError("this party's state-dir cannot be written to")
    if mode & 0o077:
        logger.error("other users can access %s: chmod 700 prevents this", folder)
        raise PartyError(
            "this party's state-dir must be accessible only to its owner (mode 700), "
            f"got mode {mode:o}"
        )


def write_private(
    target: Path, data: bytes, what: str, where: str = "this party's state-dir"
) -> None:
    """Write a file that only the party's user may read, whole or not at all.

    Errors name the file and its folder as `what` and `where`. Raises PartyError if the
    folder cannot be written to, or if the file is a symbolic link.
    """
    with refusing_files(f"{what} cannot be written to {where}", target):
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_no_link(target)
        write_whole(target, data, private=True)


def read_private(target: Path) -> bytes:
    """Read a file in a ``state-dir``; raise OSError, without the path, for a link."""
    check_no_link(target)
    return target.read_bytes()


def in_csv(value: object) -> object:
    """Escape a value for a CSV cell, so that no spreadsheet runs it as a formula.

    A string that starts like a formula gets a leading single quote, as OWASP advises. A
    string that is a plain number is unchanged, and so is any other value.

    >>> [in_csv(value) for value in ("r7", "-5", "=1+1", "'=1+1", -5)]
    ['r7', '-5', "'=1+1", "''=1+1", -5]
    """
    if not isinstance(value, str) or NUMBER.fullmatch(value):
        return value
    return f"'{value}" if FORMULA.match(value) else value


def write_predictions(
    target: Path,
    ids: Iterable[Any] | None,
    predictions: Array,
    what: str,
    more: Mapping[str, Array] | None = None,
    head: str = "",
    **where: str,
) -> None:
    """Write predictions, of shape (n,), to a CSV file; see :func:`in_csv`.

    Without ids, row numbers from 0 are written. `more` contains further values of each
    row, shape (n,), by name; `head` is the header of the ids, by default "id" or "row";
    `where` is as in :func:`write_private`.
    """
    text, columns = io.StringIO(), {"prediction": predictions, **(more or {})}
    plain, quoted = csv.writer(text), csv.writer(text, quoting=csv.QUOTE_NONNUMERIC)
    plain.writerow([head or ("row" if ids is None else "id"), *columns])
    names = range(len(predictions)) if ids is None else ids
    values = [column.tolist() for column in columns.values()]
    for cells in zip(names, *values, strict=True):
        # Many spreadsheets also split cells at these characters.
        apart = any(isinstance(cell, str) and set(";\t") & set(cell) for cell in cells)
        (quoted if apart else plain).writerow(map(in_csv, cells))
    write_private(target, text.getvalue().encode(), what, **where)
    logger.warning("%d predictions are in %s", len(predictions), target)


def load_part(folder: Path, model: str, strategy: str | None = None) -> ModelPart:
    """Read a party's local model; `strategy`, if given, must have trained the model.

    Raises PartyError if no model has this id, or if its file cannot be read, is
    damaged, has an unknown format, or belongs to a different model or strategy.
    """
    path, what = _path(folder, model), f"this party's local model {model}"
    with refusing_files(f"{what} cannot be read", path):
        try:
            data = read_private(path)
        except FileNotFoundError:
            logger.error("no file %s", path)
            raise PartyError(
                f"this party has no local model {model}; number of local models in "
                f"its state-dir: {len(list_parts(folder))}"
            ) from None
    if data[-CHECKSUM:] != _checksum(data[:-CHECKSUM]):
        logger.error("wrong checksum: %s", path)
        raise PartyError(f"{what} is damaged: its checksum is wrong")
    try:
        part = _unpacked(data)
    except Exception as error:  # a correct checksum proves nothing about the content
        logger.error("%s on reading %s", type(error).__name__, path)
        reason = f"is not a local model in format {FORMAT}"
        raise PartyError(f"{what} {reason}") from None
    if part.model != model:
        logger.error("local model %s in %s", part.model, path)
        raise PartyError(
            f"{what} was written for model {part.model}: the file was renamed or copied"
        )
    if strategy not in (None, part.strategy):
        raise PartyError(
            f"{what} must belong to strategy {strategy!r}, got {part.strategy!r}"
        )
    return part


def list_parts(folder: Path) -> list[str]:
    """Return the sorted ids of the local models; raise PartyError if reading fails."""
    names: list[str] = []
    what = "the state-dir of this party cannot be read"
    with refusing_files(what, folder), suppress(FileNotFoundError):
        names = [path.stem for path in folder.iterdir() if path.suffix == ".npz"]
    return sorted(filter(is_model_id, names))


def is_model_id(model: object) -> bool:
    """Return whether a value is a valid model id, which is used in file names."""
    return isinstance(model, str) and bool(re.fullmatch("[0-9a-f]{8,32}", model))


def check_model(model: str) -> None:
    """Raise ``ValueError`` unless a strategy's `model_id` is a valid model id."""
    if not model:
        raise ValueError(
            "model_id must be the id of a trained model, printed by the training run "
            "and listed by vfl-flower models (--set model-id=ID), got none"
        )
    if not is_model_id(model):
        raise ValueError(
            "model_id must be 8 to 32 lower-case hexadecimal digits, as printed by the "
            f"training run (result.model.id), got {model[:40]!r}"
        )


def _path(folder: Path, model: str) -> Path:
    # The id comes from the server: it must not point outside the folder.
    if not is_model_id(model):
        raise PartyError(
            "a model id must be 8 to 32 lower-case hexadecimal digits, got "
            f"{str(model)[:40]!r}"
        )
    return folder / f"{model}.npz"


def _packed(part: ModelPart) -> bytes:
    """Return the bytes of the file: an npz whose archive comment is the checksum."""
    about = {"format": FORMAT, "version": __version__} | vars(part)
    about["arrays"] = list(part.arrays)
    # Arrays are numbered in the archive: NumPy mishandles names like "file" or "a.npy".
    arrays: Arrays = {"about": np.array(json.dumps(about))}
    for k, (name, array) in enumerate(part.arrays.items()):
        if np.asarray(array).dtype.hasobject:
            raise ValueError(f"array {name!r} must not hold objects, got {array.dtype}")
        arrays[f"array_{k}"] = array
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    # A zip file ends in the length of its comment, 0 so far, and the comment. The
    # checksum in the comment covers every byte, even bytes that no reader looks at.
    content = file.getvalue()[:-2] + CHECKSUM.to_bytes(2, "little")
    return content + _checksum(content)


def _unpacked(data: bytes) -> ModelPart:
    stored = read_npz(io.BytesIO(data), compressed=False)
    about = json.loads(str(stored["about"]))
    arrays = {name: stored[f"array_{k}"] for k, name in enumerate(about["arrays"])}
    part = ModelPart(about["model"], about["strategy"], about["settings"], arrays)
    typed = isinstance(part.strategy, str) and isinstance(part.settings, dict)
    if about["format"] != FORMAT or not typed:
        raise TypeError("the file has an unknown format or unexpected types")
    return part


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
