"""Row orders that the parties of a run have agreed on, stored by name at each party.

A later run names the order. Each party then uses the rows of its file in this order.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vfl_flower.files import read_npz
from vfl_flower.party.parts import read_private, write_private
from vfl_flower.protocol import normal
from vfl_flower.protocol.errors import PartyError, refusing_files
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

FORMAT = 1

NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"  # of an order, and so of its files
NAME_RULE = (
    "alignment must be 1 to 64 letters, digits, '.', '_' or '-', and must begin with "
    "a letter or a digit"
)

DIGEST_BYTES = 16
"""Bytes of the digest that represents an id in an order: among 10^9 ids, two digests
are equal with probability 10^-21."""

DISTINCT = (
    "ids must be distinct in Unicode normal form NFKC, ignoring white space at their "
    "ends"
)

BLOCK = 2**14
"""Number of ids digested at a time: not all ids need to fit in memory as text."""


def normal_ids(ids: Iterable[Any] | None) -> list[bytes]:
    """Return ids in UTF-8, in the normal form that all parties use.

    1. An integer becomes its decimal digits: 7 equals the text "7".
    2. Text is put in Unicode normal form NFKC and stripped of surrounding white space.
    3. Nothing else is changed: "A7" and "a7", "7" and "007", "7" and "7.0" differ.

    Raises PartyError if there are no ids, or if an id is neither an integer nor text,
    is empty or missing (like "nan" and "NA"), or is repeated. The error states the
    number of such ids, but names no id.
    """
    if ids is None:
        raise PartyError(
            "an alignment needs an id for each row: set id-column in the node config, "
            "or pass ids to Party"
        )
    texts, fault = normal.normal_ids(ids)
    if fault:
        raise PartyError(f"ids {fault}")
    if repeated := len(texts) - len(set(texts)):
        raise PartyError(f"{DISTINCT}, got {repeated} repeated")
    return texts


@shapes_only
@dataclass(frozen=True, eq=False)
class RowOrder:
    """The rows of one party that all parties hold, in the common order."""

    name: str  # the parties' name for the order
    tag: str
    """A string equal at all parties and unique to this order; it reveals no id."""
    salt: bytes  # of the digests, known only to this party
    ids: Array
    """Digests of the ids, uint8, shape (m, 16), which identify the rows even in a
    changed file."""

    @classmethod
    def of(cls, name: str, tag: str, salt: bytes, ids: Sequence[bytes]) -> RowOrder:
        """Return the order of these ids, as returned by :func:`normal_ids`."""
        return cls(name, tag, salt, _digests(salt, ids))

    @property
    def digest(self) -> str:
        """Name and tag to compare; from a digest of the ids, ids could be guessed."""
        return f"alignment {self.name} {self.tag}"

    @property
    def key(self) -> str:
        """Text that depends on the order itself, unlike the server's name and tag."""
        content = hashlib.sha256(self.salt + self.ids.tobytes())
        return f"{self.digest} {content.hexdigest()}"

    def rows(self, ids: Iterable[Any] | None) -> Array:
        """Return the row numbers, (m,), of the order's ids.

        Raises PartyError if some ids are missing or invalid.
        """
        blocks = [None] if ids is None else _blocks(ids)
        digests = [_digests(self.salt, normal_ids(block)) for block in blocks]
        held = np.concatenate(digests).view(f"S{DIGEST_BYTES}").ravel()
        wanted = self.ids.view(f"S{DIGEST_BYTES}").ravel()
        order = np.argsort(held, kind="stable")
        ranked = held[order]
        if repeated := np.count_nonzero(ranked[1:] == ranked[:-1]):
            raise PartyError(f"{DISTINCT}, got {repeated} repeated")
        places = np.searchsorted(ranked, wanted)
        rows: Array = order[np.minimum(places, len(held) - 1)]
        if missing := np.count_nonzero(held[rows] != wanted):
            raise PartyError(
                f"{missing} of the {len(wanted)} ids of alignment {self.name!r} are "
                "missing from the data: align the parties again"
            )
        return rows


def check_name(name: str) -> None:
    """Raise ``PartyError`` if the name of an order is invalid."""
    if not re.fullmatch(NAME, name):
        raise PartyError(f"{NAME_RULE}, got {name[:70]!r}")


def save_order(folder: Path, order: RowOrder, accepted: bool = False) -> None:
    """Store an order in a party's ``state-dir``, under an unused name.

    Unless it is `accepted` at once, runs may not use it before :func:`accept_order`.
    Raises PartyError if the name is invalid or in use, or if the folder is not
    writable.
    """
    target = _path(folder, order.name)
    if target.exists():
        if read_order(folder, order.name).key != order.key:  # not a repeated request
            raise PartyError(
                f"alignment {order.name!r} already exists at this party and cannot be "
                "replaced: choose a new name"
            )
    else:
        about = {"format": FORMAT, "name": order.name, "tag": order.tag}
        file = io.BytesIO()
        salt = np.frombuffer(order.salt, dtype=np.uint8)
        np.savez(file, about=np.array(json.dumps(about)), salt=salt, ids=order.ids)
        write_private(target, file.getvalue(), f"alignment {order.name!r}")
        log.warning(
            "alignment %r (%d rows) is stored in %s", order.name, len(order.ids), target
        )
    if accepted:
        accept_order(folder, order.name)
        return
    log.warning(
        "alignment %r must be accepted before a run can use it: vfl-flower align "
        "FOLDER --accept %s",
        *(order.name, order.name),
    )


def accept_order(folder: Path, name: str) -> RowOrder:
    """Allow runs to use an order, and return it; see :func:`read_order`."""
    order = read_order(folder, name)
    write_private(_accepted(folder, name), order.key.encode(), f"alignment {name!r}")
    return order


def is_accepted(folder: Path, order: RowOrder) -> bool:
    """Return whether runs may use an order."""
    path = _accepted(folder, order.name)
    return path.exists() and read_private(path) == order.key.encode()


def list_orders(folder: Path) -> list[str]:
    """Return the names of the orders in a ``state-dir``."""
    paths = folder.glob("alignment-*.npz")
    return sorted(path.stem.removeprefix("alignment-") for path in paths)


def load_order(folder: Path | None, name: str) -> RowOrder:
    """Return an order; raise PartyError unless the operator has accepted it."""
    order = read_order(folder, name)
    assert folder is not None
    if not is_accepted(folder, order):
        raise PartyError(
            f"alignment {name!r} with {len(order.ids)} rows must be accepted by this "
            f"party's operator: vfl-flower align FOLDER --accept {name}"
        )
    return order


def read_order(folder: Path | None, name: str) -> RowOrder:
    """Read an order; raise PartyError if there is none, or if its file is damaged."""
    if folder is None:
        raise PartyError("alignment needs a state-dir, where the order is stored")
    what, path = f"alignment {name!r} of this party", _path(folder, name)
    with refusing_files(f"{what} cannot be read", path):
        try:
            data = read_private(path)
        except FileNotFoundError:
            raise PartyError(
                f"this party's state-dir has no alignment {name!r}: use an existing "
                "alignment, or first run align with this name"
            ) from None
    try:
        stored = read_npz(io.BytesIO(data), compressed=False)
        about = json.loads(str(stored["about"]))
        fits = about["format"] == FORMAT and about["name"] == name
        salt, ids = stored["salt"].tobytes(), stored["ids"]
        order = RowOrder(name, str(about["tag"]), salt, ids)
        fits &= order.ids.dtype == np.uint8 and order.ids.shape[1:] == (DIGEST_BYTES,)
    except Exception as error:
        log.error("%s on reading %s", type(error).__name__, path)
        fits = False
    if not fits:
        raise PartyError(f"{what} is damaged or renamed, or has an unknown format")
    return order


def _path(folder: Path, name: str) -> Path:
    check_name(name)  # from the server: it must not point outside the folder
    return folder / f"alignment-{name}.npz"


def _accepted(folder: Path, name: str) -> Path:
    return _path(folder, name).with_suffix(".accepted")


def _blocks(ids: Iterable[Any]) -> Iterator[Sequence[Any]]:
    remaining = iter(ids.tolist() if isinstance(ids, np.ndarray) else ids)
    while block := tuple(itertools.islice(remaining, BLOCK)):
        yield block


def _digests(salt: bytes, ids: Iterable[bytes]) -> Array:
    hashes = (hashlib.blake2b(i, digest_size=DIGEST_BYTES, key=salt) for i in ids)
    digests = b"".join(sha.digest() for sha in hashes)
    return np.frombuffer(digests, dtype=np.uint8).reshape(-1, DIGEST_BYTES)
