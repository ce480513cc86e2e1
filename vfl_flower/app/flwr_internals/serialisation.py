"""Objects that Flower sends and stores, to bytes and back."""

from __future__ import annotations

from flwr.app import Array, Context, Message, RecordDict
from flwr.common import serde
from flwr.proto.recorddict_pb2 import Array as ProtoArray
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict


def records_to_bytes(content: RecordDict) -> bytes:
    """Return the bytes of records."""
    data: bytes = serde.recorddict_to_proto(content).SerializeToString()
    return data


def records_from_bytes(data: bytes) -> RecordDict:
    """Return the records of bytes; errors for other bytes vary with the version."""
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
    """Return a message as its receiver gets it, which shares no memory with it."""
    return serde.message_from_proto(serde.message_to_proto(message))


def restored(context: Context) -> Context:
    """Return a context as the next message finds it, which shares no memory with it."""
    return serde.context_from_proto(serde.context_to_proto(context))
