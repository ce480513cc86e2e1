"""The common inputs of a step: masks cancel only if all parties get the same inputs.

If a server could send different requests to the parties in one step, it could know in
advance the addends of all parties but one, and so read the remaining addend from the
"sum". Therefore each party derives its masks from a digest of the step's inputs, the
seed, the model and the keys of all parties. The bytes that the party seals are bound to
this digest.

For inputs that differ between parties (``OWN``), the server sends all parties a list of
digests, from which the masks are derived too; each party checks its own digest. A
digest is salted, so that no party can guess another party's inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vfl_flower.protocol.contract import OWN, Field, Fields, declared_as, leaves_of
from vfl_flower.protocol.errors import PartyError
from vfl_flower.protocol.frame import DIGEST_BYTES, Frame
from vfl_flower.protocol.normal import plain_number


def has_own(fields: Fields) -> bool:
    """Return whether a step has inputs that differ between parties."""
    return any(field.sending == OWN for field in fields.values())


def own_digest(fields: Fields, values: Mapping[str, Any], salt: bytes) -> bytes:
    """Return the 32-byte digest of the inputs that only one party gets.

    `values` contains the inputs by flat names. The server and this party know the
    random `salt`.
    """
    sha = hashlib.sha256(salt)
    for name, field, value in _declared(fields, values):
        if field.sending == OWN:
            _update(sha, name, value)
    return sha.digest()


def common_digest(
    fields: Fields,
    values: Mapping[str, Any],
    digests: Mapping[str, bytes],
    frame: Frame,
    public_keys: list[bytes],
) -> bytes:
    """Return the 32-byte digest of the inputs that all parties of a step must share.

    `values` are the inputs by flat names, and `digests` are the digests of the arrays
    among the inputs. Raises PartyError if this party's inputs do not have the announced
    digest.
    """
    sha = hashlib.sha256()
    run = frame.seed, frame.private_draws, frame.masking, frame.model, frame.columns
    sha.update(repr((*run, public_keys)).encode())
    if has_own(fields):
        blocks, salt = frame.blocks or b"", frame.salt or b""
        if len(blocks) != DIGEST_BYTES * frame.parties:
            raise PartyError("'blocks' must hold a digest of each party's inputs")
        place = frame.index * DIGEST_BYTES
        if own_digest(fields, values, salt) != blocks[place : place + DIGEST_BYTES]:
            raise PartyError(
                "'blocks' must hold the digest of this party's inputs at its index"
            )
        sha.update(blocks)
    for name, field, value in _declared(fields, values):
        if field.sending is None:
            _update(sha, name, digests.get(name, value))
    return sha.digest()


def _declared(
    fields: Fields, values: Mapping[str, Any]
) -> Iterator[tuple[str, Field, Any]]:
    """Yield the values that the server itself sends, in the order of their names.

    All values of a structure share the structure's field. Sealed values are left out,
    since a message contains only their parts, ``name.0``, ``name.1``, ..
    """
    for name in sorted(values):
        field = declared_as(fields, name.partition(".")[0])
        names = name, name.rpartition(".")[0]
        if field is not None and not any(leaves_of(fields, n) for n in names):
            yield name, field, values[name]


def _update(sha: Any, name: str, value: Any) -> None:
    if isinstance(value, np.ndarray):
        sha.update(repr((name, value.dtype.str, value.shape)).encode())
        sha.update(value.tobytes())
    else:
        sha.update(repr((name, plain_number(value))).encode())
