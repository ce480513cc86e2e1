"""A party's side of the protocol that finds the rows that all parties hold.

The ids of a party become points of Curve25519 (:mod:`vfl_flower.secure_aggregation.
points`). The party shuffles its list, encrypts it under a key used only in this run,
and sends it, sealed, to the next party. Each other party in turn encrypts the list once
more without changing its order, and the last such party sends the list to the server.
Each list is then encrypted under the keys of all parties, so equal ids have equal
points in all lists.
"""

from __future__ import annotations

import hashlib
import logging
import stat
from collections.abc import Sequence
from typing import Annotated, TypedDict

import numpy as np
from annotated_types import Len, MaxLen

from vfl_flower.party.parts import read_private
from vfl_flower.party.party import Party, PartyError, stored_as
from vfl_flower.party.row_order import RowOrder, normal_ids
from vfl_flower.protocol.contract import NEXT, OWN, Whole
from vfl_flower.protocol.errors import refusing_files
from vfl_flower.protocol.steps import once, step_of, sums_over
from vfl_flower.protocol.terms import LEAST_ROWS
from vfl_flower.secure_aggregation import labels
from vfl_flower.secure_aggregation.masks import derive_key
from vfl_flower.secure_aggregation.points import (
    POINT_BYTES,
    encrypt,
    hash_ids,
    keyed_hashes,
    permutation,
)
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")
step = step_of("alignment")

MOST_IDS = 2**24
"""Maximum number of ids of one party: 512 MiB of points."""

KEY_FILE = "alignment.key"
"""File in the ``state-dir`` with the secret key that the parties share."""

LEAST_OF_KEY = 32
"""Minimum length of the shared key, in bytes."""

Bytes32 = Annotated[Array, Whole("* 32", 0, 256)]
"""Points or hashes of 32 bytes each."""


@stored_as("vfl_flower.clients.alignment.Passes")
class Passes:
    """A party's state between the steps of a run."""

    sizes: list[int]
    """Number of ids of each party, according to the server, in party order."""
    left: int
    """Number of other parties' lists that this party has not yet encrypted."""
    ids: bytes
    """Digest of the party's ids in the order of its file."""
    rows: Array | None = None
    """Rows that all parties hold, in the common order, of shape (m,), once known."""


class Points(TypedDict):
    """Reply of :func:`encrypt_ids`."""

    points: Annotated[bytes, NEXT]


class MorePoints(TypedDict, total=False):
    """Reply of :func:`encrypt_points`, to the next party or finally to the server."""

    points: Annotated[bytes, NEXT]
    encrypted: Bytes32


class Hashes(TypedDict):
    """Reply of :func:`hash_with_key`."""

    hashes: Bytes32


class KeptOrder(TypedDict):
    """Reply of :func:`keep_order`."""

    kept: bool


@step
@sums_over("none")
@once
def encrypt_ids(party: Party, sizes: list[int]) -> Points:
    """Return the party's ids as points, shuffled and encrypted under its key.

    `sizes` contains the number of ids of each party.
    """
    ids = normal_ids(party.read_ids())
    _check_sizes(party, sizes)
    party.remember(Passes(list(sizes), party.n_parties - 1, _digest(party, ids)))
    hashed = hash_ids(ids)[_shuffle(party)]
    return {"points": encrypt(hashed, _key(party, "points"), hashed=True).tobytes()}


@step
@sums_over("none")
def encrypt_points(party: Party, points: Annotated[bytes, NEXT]) -> MorePoints:
    """Encrypt the list received from the previous party, without changing its order.

    The number of lists that this party has already encrypted shows which party owns
    this list, and so the list's required length. It also determines the recipient: the
    next party or, once the list is encrypted under all keys, the server.
    """
    run = party.recall(Passes)
    if run.left < 1:
        raise PartyError("this party has already encrypted every other party's list")
    owner = ((party.index or 0) + run.left) % party.n_parties
    if len(points) != POINT_BYTES * run.sizes[owner]:
        raise PartyError(
            f"the list of the party at position {owner} must have {run.sizes[owner]} "
            f"points of 32 bytes each, got {len(points)} bytes"
        )
    run.left -= 1
    received = np.frombuffer(points, dtype=np.uint8).reshape(-1, POINT_BYTES)
    try:
        encrypted = encrypt(received, _key(party, "points"))
    except ValueError:
        raise PartyError(
            f"the list of the party at position {owner} must have no small-order points"
        ) from None
    if run.left:
        return {"points": encrypted.tobytes()}
    return {"encrypted": encrypted}


@step
@sums_over("none")
@once
def hash_with_key(
    party: Party, salt: Annotated[bytes, Len(16, 16)], sizes: list[int]
) -> Hashes:
    """Return keyed hashes of the party's ids, shuffled; all parties share the `salt`.

    Since the server chooses the salt, the hashes also depend on the parties' session
    keys, so that no hash occurs in two sessions.
    """
    ids = normal_ids(party.read_ids())
    _check_sizes(party, sizes)
    party.remember(Passes(list(sizes), 0, _digest(party, ids)))
    key = derive_key(_shared_key(party), [labels.KEYED_IDS, salt, party.keys_digest])
    return {"hashes": keyed_hashes(ids, key)[_shuffle(party)]}


@step
@sums_over("request")
@once
def keep_order(
    party: Party,
    alignment: Annotated[str, MaxLen(64)],
    positions: Annotated[Array, Whole("m", 0, "n_rows"), OWN],
    tag: Annotated[bytes, Len(32, 32)],
) -> KeptOrder:
    """Store the common order under the name `alignment`.

    `positions` are places in the party's shuffled list, and `tag`, the same for all
    parties, is a digest of the common points.
    """
    run = party.recall(Passes)
    if run.left:
        raise PartyError("not all parties have encrypted the lists yet")
    least = 1 if party.allow_plain else LEAST_ROWS
    if len(np.unique(positions)) < len(positions):
        raise PartyError("positions must not contain a row twice")
    if len(positions) < least:
        raise PartyError(
            f"the parties must have at least {least} rows in common, got "
            f"{len(positions)}"
        )
    ids = normal_ids(party.read_ids())
    if _digest(party, ids) != run.ids:
        raise PartyError("the ids in this party's data changed during the alignment")
    rows = _shuffle(party)[positions]
    run.rows = rows
    if party.state_dir is None:
        return {"kept": False}
    salt = _key(party, "order")
    order = RowOrder.of(alignment, tag.hex(), salt, [ids[k] for k in rows.tolist()])
    consent = party.consent
    accepted = consent is None or consent.peers is None or consent.accept_alignments
    if accepted:  # even the first reply of a run with this order depends on its rows
        party.sum_over(rows)
    party.new_order = order, bool(accepted)
    return {"kept": True}


def _check_sizes(party: Party, sizes: list[int]) -> None:
    """Raise unless all sizes are valid and this party's size is correct."""
    fits = len(sizes) == party.n_parties and sizes[party.index or 0] == party.n_rows
    if not fits or not all(0 < size <= MOST_IDS for size in sizes):
        raise PartyError(
            f"sizes must list each party's number of ids, from 1 to {MOST_IDS}; for "
            f"this party, the number must be {party.n_rows}"
        )
    log.warning("numbers of ids in the lists to align: %s", ", ".join(map(str, sizes)))


def _key(party: Party, purpose: str) -> bytes:
    """Return a key for this party and run, from the operating system's randomness."""
    return derive_key(party.run_secret, [labels.ALIGNMENT, purpose.encode()])


def _digest(party: Party, ids: Sequence[bytes]) -> bytes:
    """Return a digest of ordered ids, under a key specific to this party and run."""
    digest = hashlib.blake2b(key=_key(party, "ids"), digest_size=32)
    for id_ in ids:
        digest.update(b"%d:%b" % (len(id_), id_))
    return digest.digest()


def _shuffle(party: Party) -> Array:
    return permutation(party.n_rows, _key(party, "shuffle"))


def _shared_key(party: Party) -> bytes:
    """Return the secret key that the parties share, from the party's ``state-dir``."""
    if party.state_dir is None:
        raise PartyError(f"keyed hashes need a state-dir with a file {KEY_FILE!r}")
    path = party.state_dir / KEY_FILE
    needs = (
        f"keyed hashes need a file {KEY_FILE!r} in this party's state-dir, with the "
        "secret key that the parties share"
    )
    with refusing_files(needs, path):
        mode = stat.S_IMODE(path.stat().st_mode)
        key = read_private(path)
    if mode & 0o077:
        raise PartyError(
            f"{KEY_FILE!r} must be readable by its owner alone (mode 600), got mode "
            f"{mode:o}"
        )
    if len(key) < LEAST_OF_KEY:
        raise PartyError(
            f"{KEY_FILE!r} must have at least {LEAST_OF_KEY} random bytes, got "
            f"{len(key)}"
        )
    return key
