"""Conversion of named arrays and settings to the content of a message, and back."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from vfl_flower.app.flwr_internals import serialisation
from vfl_flower.protocol.normal import plain_number
from vfl_flower.typing import Values

FRAME = "frame"
"""Record of the frame's own values: round, seed, digest and the like."""

RECORDS = {"arrays": ArrayRecord, "settings": ConfigRecord, FRAME: ConfigRecord}
"""Records of a message and their types."""

BUNDLE = "bundle"  # name of the record, and of its key, of a message sent as one record
MOST_BUNDLED = 64 * 1024  # maximum bytes of arrays in a message sent as one record

# Error codes of replies.
REFUSED = 1001  # the party refuses, with its reason
FAILED = 1002  # the step failed unexpectedly; see the party's log
DAMAGED = 1003  # the message arrived damaged and may be sent again
MALFORMED = 1004  # the message is undamaged, but violates the contract of its step


class CorruptMessage(ValueError):
    """The content of a message does not match its digest."""


def pack(values: Values, frame: Values | None = None) -> RecordDict:
    """Turn named arrays and settings into the content of one message.

    A SHA-256 hash of the whole content reveals damage in transit.
    """
    content = to_records(values)
    address(content, frame or {}, digest_of_values(content))
    return content


def to_records(values: Values) -> RecordDict:
    """Return the content of a message before :func:`address` completes its frame."""
    arrays, settings = ArrayRecord(), ConfigRecord()
    # One by one: a record made from a dictionary copies each of its arrays.
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            arrays[name] = serialisation.encode(np.asarray(value, order="C"))
        else:
            settings[name] = plain_number(value)
    return RecordDict({"arrays": arrays, "settings": settings, FRAME: ConfigRecord()})


def address(content: RecordDict, frame: Values, values: bytes) -> None:
    """Put the frame's settings into a message whose values have the digest `values`."""
    record = _records(content)[FRAME]
    record.update({k: plain_number(v) for k, v in frame.items()})
    record["digest"] = _digest(record, values)


def bundle(content: RecordDict) -> RecordDict:
    """Return the content to send: small messages as one record, large ones unchanged.

    Flower sends each record and each array in a separate call; for a small message,
    these calls cost a SuperLink more than the bytes do.
    """
    if bytes_of_arrays(content) > MOST_BUNDLED:
        return content
    return RecordDict(
        {BUNDLE: ConfigRecord({BUNDLE: serialisation.records_to_bytes(content)})}
    )


def unbundle(content: RecordDict) -> RecordDict:
    """Return the records of a received message; raise CorruptMessage if damaged."""
    bundled = _records(content).get(BUNDLE)
    if bundled is None:
        return content
    try:
        return serialisation.records_from_bytes(bundled[BUNDLE])
    except Exception:  # Protocol Buffers and Flower raise many kinds of errors
        raise CorruptMessage("the message cannot be read") from None


def unpack(content: RecordDict) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values and the frame's settings, or raise CorruptMessage."""
    return unpack_whole(content)[:2]


def unpack_whole(
    content: RecordDict,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, bytes]]:
    """Return values and settings, and the SHA-256 of each array as received."""
    content = unbundle(content)
    records = _records(content)
    for name, kind in RECORDS.items():
        if not isinstance(records.get(name), kind):
            raise CorruptMessage(f"the message lacks its record {name!r}")
    frame: dict[str, Any] = dict(records[FRAME])
    arrays = _array_digests(content)
    if frame.get("digest") != _digest(frame, _values_digest(content, arrays)):
        raise CorruptMessage("the message was damaged in transit")
    values: dict[str, Any] = dict(records["settings"])
    for name, array in records["arrays"].items():
        try:
            values[name] = serialisation.decode(array)
            fits = values[name].shape == tuple(array.shape)
        except Exception:  # NumPy raises many kinds of errors for non-arrays
            raise CorruptMessage(f"{name!r} is not a NumPy array") from None
        if not fits:  # the ledger counts numbers by this shape
            raise CorruptMessage(f"{name!r} must have the shape stated in its record")
    return values, frame, arrays


def digest_of_values(content: RecordDict) -> bytes:
    """Return the SHA-256 of a message without its frame."""
    return _values_digest(content, _array_digests(content))


def _array_digests(content: RecordDict) -> dict[str, bytes]:
    arrays = _records(content)["arrays"].items()
    return {name: hashlib.sha256(array.data).digest() for name, array in arrays}


def _values_digest(content: RecordDict, arrays: Mapping[str, bytes]) -> bytes:
    settings = sorted(_records(content)["settings"].items())
    sha = hashlib.sha256(repr(settings).encode())
    for name, array in sorted(_records(content)["arrays"].items()):
        kind = name, array.dtype, array.shape, len(array.data), arrays[name]
        sha.update(repr(kind).encode())
    return sha.digest()


def _digest(frame: Mapping[str, Any], values: bytes) -> bytes:
    """Return the SHA-256 of a whole message except the digest itself."""
    items = sorted((k, v) for k, v in frame.items() if k != "digest")
    return hashlib.sha256(repr(items).encode() + values).digest()


def _records(content: RecordDict) -> Mapping[str, Any]:
    """Return the records without a copy: Flower's views by kind copy all records."""
    return content


def n_bytes(content: RecordDict) -> int:
    """Return the number of bytes of a message as Flower serialises it.

    The size of an array is computed, since serialising copies the array three times.
    """
    total = 0
    for name, record in _records(content).items():
        if isinstance(record, ArrayRecord):
            size = sum(
                _field(_field(len(key.encode())) + _field(_array_size(array)))
                for key, array in record.items()
            )
            total += _field(_field(len(name.encode())) + _field(size))
        else:
            total += serialisation.size_of_records(RecordDict({name: record}))
    return total


def _array_size(array: FlowerArray) -> int:
    data = _field(len(array.data)) if array.data else 0
    return serialisation.size_of_description(array) + data


def _field(size: int) -> int:
    """Return the size of a field in Protocol Buffers: tag, length, data."""
    return 1 + max(1, -(-size.bit_length() // 7)) + size


def bytes_of_arrays(content: RecordDict) -> int:
    """Return the number of bytes of a message's arrays, without serialising them."""
    return sum(len(array.data) for array in _records(content)["arrays"].values())


def n_units(content: RecordDict) -> int:
    """Return the number of scalars in the arrays: the papers' unit of communication."""
    arrays = _records(content)["arrays"].values()
    return sum(math.prod(array.shape) for array in arrays)
