"""What goes into a message comes out of it, or the damage is noticed."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Array as FlowerArray
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from malformed import LARGE

from vfl_flower.app.flwr_internals import serialisation
from vfl_flower.protocol import messages
from vfl_flower.protocol.messages import BUNDLE, CorruptMessage, bundle, pack, unpack


def travel(content: RecordDict) -> RecordDict:
    return recorddict_from_proto(recorddict_to_proto(content))


ARRAYS = st.one_of(
    arrays(dtype, st.sampled_from([(), (0,), (3,), (2, 0), (2, 3)]))
    for dtype in (np.float64, np.float32, np.uint8, np.uint32, np.int64, np.bool_)
)
SETTINGS = st.one_of(
    *(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats()),
    *(st.text(max_size=5), st.binary(max_size=5)),
)


@settings(max_examples=50)
@given(
    values=st.dictionaries(st.text(min_size=1, max_size=3), ARRAYS | SETTINGS),
    frame=st.dictionaries(st.text(min_size=1, max_size=3), SETTINGS),
)
def test_round_trip(values, frame):
    content = pack(values, frame)
    arrived, arrived_frame = unpack(travel(content))
    bundled = travel(bundle(content))
    assert list(bundled) == [BUNDLE]
    np.testing.assert_equal(unpack(bundled), (arrived, arrived_frame))
    assert set(arrived) == set(values)
    for name, value in values.items():
        np.testing.assert_equal(arrived[name], value)
        if isinstance(value, np.ndarray):
            assert arrived[name].dtype == value.dtype
            assert content["arrays"][name] == FlowerArray(value)  # to the bit
        else:
            assert type(arrived[name]) is type(value)
    assert len(arrived_frame.pop("digest")) == 32
    np.testing.assert_equal(arrived_frame, frame)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.arange(12.0)[::-2],
        np.asfortranarray(np.eye(3)),
        np.array(2.5),
        np.broadcast_to(1.0, (3, 2)),
    ],
    ids=["transposed", "stepped", "Fortran order", "0-d", "broadcast"],
)
def test_any_memory_layout(array):
    as_flower_writes_it = message_with(FlowerArray(array))
    for content in (pack({"x": array}), as_flower_writes_it):
        arrived = unpack(travel(content))[0]["x"]
        np.testing.assert_array_equal(arrived, array)
        assert arrived.shape == array.shape


def test_numbers_of_numpy_come_back_as_those_of_python():
    values = {"f": np.float64(0.1), "i": np.int32(3), "b": np.bool_(True)}
    arrived = unpack(travel(pack(values)))[0]
    assert arrived == {"f": 0.1, "i": 3, "b": True}
    assert [type(v) for v in arrived.values()] == [float, int, bool]
    for value in ({"a": 1}, None, object()):  # what no message can carry
        with pytest.raises(TypeError):
            pack({"x": value})


def flip_bit(arrays, *_):
    array = arrays["x"]
    data = bytes([*array.data[:-1], array.data[-1] ^ 1])
    arrays["x"] = FlowerArray(array.dtype, array.shape, array.stype, data)


DAMAGES = {
    "array lost": lambda arrays, *_: arrays.pop("x"),
    "array renamed": lambda arrays, *_: arrays.update(z=arrays.pop("x")),
    "arrays swapped": lambda arrays, *_: arrays.update(x=arrays["y"], y=arrays["x"]),
    "bit flipped": flip_bit,
    "setting of another type": lambda _, settings, __: settings.update(size=5.0),
    "setting added": lambda _, settings, __: settings.update(more=True),
    "frame changed": lambda *records: records[-1].update(round=2),
    "digest changed": lambda *records: records[-1].update(digest=bytes(32)),
    "digest of another type": lambda *records: records[-1].update(digest=5),
    "digest lost": lambda *records: records[-1].pop("digest"),
}


def message() -> RecordDict:
    return pack({"x": np.arange(3.0), "y": np.ones(3), "size": 5}, {"round": 1})


@pytest.mark.parametrize("harm", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_noticed(harm):
    content = travel(message())
    harm(*(content[record] for record in ("arrays", "settings", "frame")))
    with pytest.raises(CorruptMessage, match="damaged"):
        unpack(content)


@pytest.mark.parametrize("record", ["arrays", "settings", "frame"])
@pytest.mark.parametrize("instead", [None, MetricRecord({"x": 1.0})])
def test_a_lost_record_is_noticed(record, instead):
    content = travel(message())
    del content[record]
    if instead is not None:
        content[record] = instead
    with pytest.raises(CorruptMessage, match=f"lacks its record '{record}'"):
        unpack(content)


def message_with(array: FlowerArray) -> RecordDict:
    """Return a message with another array `x`, whose digest fits."""
    content = message()
    content["arrays"]["x"] = array
    messages.address(content, {}, messages.digest_of_values(content))
    return content


PICKLE = np.array([{"a": 1}], dtype=object).dumps()
HEADER = b"\x93NUMPY\x01\x00\x05\x00{'a'}"


@pytest.mark.parametrize(
    "data",
    [b"", b"no array", HEADER, PICKLE, LARGE[0], LARGE[3]],
    ids=["empty", "text", "header", "pickle", "8 TB", "archive"],
)
@pytest.mark.parametrize("kind", ["numpy.ndarray", "tensor"])
def test_what_is_no_array_is_noticed(data, kind):
    content = message_with(FlowerArray("float64", (3,), kind, data))
    with pytest.raises(CorruptMessage, match="'x' is not a NumPy array"):
        unpack(travel(content))


@pytest.mark.parametrize("shape", [(), (2,), (1, 3), (2**31 - 1,) * 3, (1,) * 10_000])
def test_an_array_of_another_shape_than_its_record_says_is_noticed(shape):
    """The ledger counted 4.6e18 numbers for one of them."""
    sent = message()["arrays"]["x"]
    content = message_with(FlowerArray(sent.dtype, shape, sent.stype, sent.data))
    before = serialisation._header.cache_info().currsize
    with pytest.raises(CorruptMessage, match="'x' must have the shape stated in its"):
        unpack(bundle(travel(content)))
    grown = serialisation._header.cache_info().currsize - before
    assert grown <= (len(shape) < 10)  # a long shape is not kept


def test_order_of_names_does_not_matter():
    one = pack({"a": 1, "b": 2.0, "x": np.ones(1), "y": np.zeros(1)}, {"r": 1, "s": 2})
    two = pack({"y": np.zeros(1), "x": np.ones(1), "b": 2.0, "a": 1}, {"s": 2, "r": 1})
    assert unpack(one)[1]["digest"] == unpack(two)[1]["digest"]


def test_units_are_the_numbers_in_arrays():
    values = {"x": np.ones((3, 4)), "y": np.ones(0), "z": np.array(1.0), "size": 7}
    assert messages.n_units(pack(values, {"round": 3})) == 12 + 0 + 1


@pytest.mark.parametrize("sizes", [(), (0,), (1, 127, 128), (16300, 16400, 2**21)])
def test_bytes_are_those_of_the_serialised_message(sizes):
    """Around the sizes at which a length takes a byte more."""
    values = {"n" * (1 + 40 * k): np.zeros(m, "u1") for k, m in enumerate(sizes)}
    contents = [pack(values), pack({"a": 1, "b": [1.5], **values}, {"round": 3})]
    contents += [pack({"x" * length: np.zeros(0)}) for length in range(60, 140)]
    for content in contents:
        data = recorddict_to_proto(content).SerializeToString()
        assert messages.n_bytes(content) == len(data)


# -- small messages as one record ------------------------------------------------------


@pytest.mark.parametrize("more", [0, 1])
def test_a_large_message_travels_as_it_is(more):
    size = messages.MOST_BUNDLED - len(FlowerArray(np.zeros(0, "u1")).data) + more
    content = pack({"x": np.zeros(size, "u1")})
    assert (bundle(content) is content) == (BUNDLE not in bundle(content)) == bool(more)


@pytest.mark.parametrize("instead", [b"no message", 5, None, b"\n", "text"])
def test_a_damaged_bundle_is_noticed(instead):
    content = travel(bundle(message()))
    record: Any = content[BUNDLE]
    del record[BUNDLE]
    if instead is not None:
        record[BUNDLE] = instead
    with pytest.raises(CorruptMessage, match="cannot be read"):
        unpack(content)


@given(st.integers(0), st.integers(0, 255))
def test_a_bundle_with_another_byte_is_damaged_or_the_same(place, byte):
    content = bundle(message())
    record: Any = content[BUNDLE]
    data = bytearray(record[BUNDLE])
    data[place % len(data)] = byte
    changed = RecordDict({BUNDLE: ConfigRecord({BUNDLE: bytes(data)})})
    try:
        arrived = unpack(changed)
    except CorruptMessage:
        return
    np.testing.assert_equal(arrived, unpack(message()))
