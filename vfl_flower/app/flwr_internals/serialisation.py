"""What Flower sends and stores, as bytes and back from them."""

from __future__ import annotations

from flwr.app import Array, Context, Message, RecordDict
from flwr.common.serde import (
    context_from_proto,
    context_to_proto,
    message_from_proto,
    message_to_proto,
    recorddict_from_proto,
    recorddict_to_proto,
)
from flwr.proto.recorddict_pb2 import Array as ProtoArray
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict


def records_to_bytes(content: RecordDict) -> bytes:
    """Return the bytes of records."""
    data: bytes = recorddict_to_proto(content).SerializeToString()
    return data


def records_from_bytes(data: bytes) -> RecordDict:
    """Return the records of bytes; what it raises for others differs by version."""
    return recorddict_from_proto(ProtoRecordDict.FromString(data))


def size_of_records(content: RecordDict) -> int:
    """Return the number of bytes of records."""
    return int(recorddict_to_proto(content).ByteSize())


def size_of_description(array: Array) -> int:
    """Return the number of bytes of an array without its data."""
    empty = ProtoArray(dtype=array.dtype, shape=array.shape, stype=array.stype)
    return int(empty.ByteSize())


def message_to_bytes(message: Message) -> bytes:
    """Return the bytes of a message."""
    data: bytes = message_to_proto(message).SerializeToString()
    return data


def arrived(message: Message) -> Message:
    """Return a message as its receiver gets it, which shares no memory with it."""
    return message_from_proto(message_to_proto(message))


def restored(context: Context) -> Context:
    """Return a context as the next message finds it, which shares no memory with it."""
    return context_from_proto(context_to_proto(context))
