"""Conversion of Flower's records and messages into bytes and back."""

from __future__ import annotations

from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, Message, RecordDict
from flwr.common import serde
from flwr.common.constant import SType
from flwr.proto.recorddict_pb2 import Array as ProtoArray
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

NUMBERS = frozenset(str(np.dtype(code)) for code in "?bhilBHILfd")
"""Types of arrays whose values have the same bytes in NumPy's files as in memory."""


@lru_cache(4096)
def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the header of the NumPy file (.npy) of a C-order array."""
    header = BytesIO()
    about = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, about)
    return header.getvalue()


def encode(values: np.ndarray[Any, Any]) -> Array:
    """Return ``Array(values)`` for an array in C order.

    Flower writes and parses a header each time, which takes longer than encoding the
    values of small arrays.
    """
    dtype = str(values.dtype)
    if dtype not in NUMBERS:
        return Array(values)
    data = b"".join((_header(dtype, values.shape), values.data))
    return Array(dtype, values.shape, SType.NUMPY, data)


def decode(array: Array) -> np.ndarray[Any, Any]:
    """Return ``array.numpy()``; errors vary with NumPy's version."""
    # With long shapes, a peer could fill the memory with cached headers.
    known = array.dtype in NUMBERS and len(array.shape) <= 8
    if known and array.stype == SType.NUMPY:
        header = _header(array.dtype, tuple(array.shape))
        if array.data.startswith(header):
            flat = np.frombuffer(array.data, array.dtype, offset=len(header))
            return flat.reshape(array.shape).copy()
    return array.numpy()


def records_to_bytes(content: RecordDict) -> bytes:
    """Return the bytes of records."""
    data: bytes = serde.recorddict_to_proto(content).SerializeToString()
    return data


def records_from_bytes(data: bytes) -> RecordDict:
    """Return the records that bytes encode; errors for other bytes vary by version."""
    return serde.recorddict_from_proto(ProtoRecordDict.FromString(data))


def size_of_records(content: RecordDict) -> int:
    """Return the number of bytes of records."""
    return int(serde.recorddict_to_proto(content).ByteSize())


def size_of_description(array: Array) -> int:
    """Return the number of bytes of an array without its data."""
    empty = ProtoArray(dtype=array.dtype, shape=array.shape, stype=array.stype)
    return int(empty.ByteSize())


def message_to_bytes(message: Message) -> bytes:
    """Return the bytes of a message."""
    data: bytes = serde.message_to_proto(message).SerializeToString()
    return data


def arrived(message: Message) -> Message:
    """Return a copy, with separate memory, of a message as its recipient gets it."""
    return serde.message_from_proto(serde.message_to_proto(message))
