"""Requests and replies of any kind, drawn from a step's declaration.

Some are as declared, some nearly so, and some not at all. Each has the right digest, so
that its reader gets to the values, unless the digest itself is wrong.
"""

import dataclasses
import io
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.common.serde import recorddict_to_proto
from hypothesis import strategies as st

from vfl_flower.protocol.contract import Field, Whole, fields_of
from vfl_flower.protocol.messages import BUNDLE, address, digest_of_values, pack
from vfl_flower.typing import Array

Draw = Callable[[st.SearchStrategy[Any]], Any]
Sizes = Mapping[str, int]

SCALARS = [
    *(True, False, 0, 1, -1, 2, 7, 2**31, 2**53, 2**63 - 1, -(2**63)),
    *(0.0, 0.5, 1.5, -1.0, 5e-324, 1e160, 1.7e308, np.nan, np.inf, -np.inf),
    *("", "x", "ring", "plain", "a b c", "../..", "0" * 16, "é" * 100),
    *(b"", b"x", bytes(16), bytes(range(32)), bytes(64)),
    *([], [1], [0, 2**40], [1.5, -1e308], ["x"], ["x", "x"], [b"x"], [True]),
]
"""Values of every type that a setting of a message may have."""

NUMBERS = [0, 1, -1, 0.5, 3, 200, 2**31, 2**62, 1e-300, 1e60, 1e160, 1.7e308]
NUMBERS += [np.nan, np.inf, -np.inf]
DTYPES = [
    *("<f8", "<f8", ">f8", "<f4", "<f2", "g", "?", "|i1", "<i8", ">i4", "|u1", "<u4"),
    *("<u8", "<u2", "<c16", "S3", "<U2", "<M8[s]", "V4"),
]
SHAPES = [(), (0,), (1,), (2,), (3,), (12,), (40,), (0, 2), (1, 1), (2, 3), (12, 3)]
SHAPES += [(3, 0), (2, 2, 2), (1,) * 9]

MOST = 60
"""Largest whole number that is drawn as declared: larger numbers take long."""

CLASS_NAME = re.compile(r"\b[A-Z]?\w*(Error|Exception|Warning|Traceback)\b")
"""Texts that no sentence to the other side may contain."""


def filled(shape: tuple[int, ...], dtype: str, number: float) -> Array:
    """Return an array filled with one number, converted to its type."""
    kind = np.dtype(dtype)
    if kind.kind not in "biuf":
        return np.zeros(shape, dtype=kind)
    if kind.kind not in "iu":
        with np.errstate(over="ignore"):
            return np.full(shape, float(number)).astype(kind)
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    whole = int(number) if np.isfinite(number) else 1
    return np.full(shape, min(max(whole, least), most), dtype=kind)


def any_array(draw: Draw) -> Array:
    shape, dtype = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(DTYPES))
    return filled(shape, dtype, draw(st.sampled_from(NUMBERS)))


def any_value(draw: Draw) -> Any:
    return any_array(draw) if draw(st.booleans()) else draw(st.sampled_from(SCALARS))


# -- values as they are declared -------------------------------------------------------


def declared_values(
    draw: Draw, fields: Mapping[str, Field], sizes: Sizes
) -> dict[str, Any]:
    """Draw values that a declaration allows, by the names under which they are sent."""
    known = dict(sizes)
    values: dict[str, Any] = {}
    for name, declared in fields.items():
        if declared.leaves or (not declared.required and draw(st.booleans())):
            continue
        values |= _declared(draw, name, declared, known)
    return values


def _declared(
    draw: Draw, name: str, declared: Field, sizes: dict[str, int]
) -> dict[str, Any]:
    if declared.kind is np.ndarray:
        return {name: declared_array(draw, declared, sizes)}
    if declared.kind is dict:
        numbers = draw(st.lists(st.integers(0, 3), max_size=3, unique=True))
        return {f"{name}_{k}": declared_array(draw, declared, sizes) for k in numbers}
    if dataclasses.is_dataclass(declared.kind):
        inside = declared_values(draw, fields_of(declared.kind), sizes)
        return {f"{name}.{key}": value for key, value in inside.items()}
    value = draw(of_type(declared.annotation))
    if type(value) is int:
        sizes[name] = value = min(value, MOST)
    return {name: value}


@cache
def of_type(annotation: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values that can be sent; making it takes long."""
    return st.from_type(annotation).filter(_travels)


def flat_fields(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return the declared fields by the names that are sent, without dictionaries."""
    flat: dict[str, Field] = {}
    for name, declared in fields.items():
        if dataclasses.is_dataclass(declared.kind):
            inside = flat_fields(fields_of(declared.kind))
            flat |= {f"{name}.{key}": field for key, field in inside.items()}
        else:
            flat[name] = declared
    return flat


def _travels(value: Any) -> bool:
    items = value if isinstance(value, list) else [value]
    return all(type(i) is not int or -(2**63) <= i < 2**63 for i in items)


def declared_array(draw: Draw, declared: Field, sizes: dict[str, int]) -> Array:
    rule = declared.array
    if rule is None:
        return any_array(draw)
    shape = []
    for word in rule.shape.split():
        size = int(word) if word.isdecimal() else sizes.get(word)
        if size is None or not 0 <= size <= 1000:
            size = draw(st.integers(1 if declared.lengths else 0, 6))
            if word != "*":
                sizes[word] = size
        shape.append(size)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    if isinstance(rule, Whole):
        below = sizes.get(rule.below) if isinstance(rule.below, str) else rule.below
        most = max(rule.least + 1, MOST if below is None else min(below, MOST))
        return rng.integers(rule.least, most, size=shape)
    scale = draw(st.sampled_from([1.0, 1.0, 0.0, 1e-8, 1e8, 1e60, 1e160, 1e307]))
    return scale * rng.uniform(-1, 1, size=shape)


# -- messages --------------------------------------------------------------------------


def changed(draw: Draw, array: Array) -> Array:
    kind = draw(st.sampled_from(["shape", "dtype", "entry", "entry", "fill", "order"]))
    if kind == "shape":
        flat = array.ravel()
        shapes = [flat[:0], array[None], flat, np.append(flat, flat), array.T]
        shapes += [flat[: flat.size // 2], flat[:1].reshape(()) if flat.size else flat]
        return shapes[draw(st.integers(0, len(shapes) - 1))]
    if kind == "dtype":
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        if dtype.kind in "biufc" and array.dtype.kind in "biuf":
            with np.errstate(all="ignore"):
                return array.astype(dtype)
        return np.zeros(array.shape, dtype=dtype)
    if kind == "order":
        return array[::-1].copy() if array.ndim else array
    entry = filled((), array.dtype.str, draw(st.sampled_from(NUMBERS)))
    if kind == "fill":
        return np.full_like(array, entry)
    copy = array.copy()
    if copy.size:
        copy.flat[draw(st.integers(0, copy.size - 1))] = entry
    return copy


def changed_values(
    draw: Draw, values: Mapping[str, Any], fields: Mapping[str, Field], sizes: Sizes
) -> dict[str, Any]:
    """Draw values that differ from the sent values: one to three are changed.

    A value is left out, gets a different name, type, shape or size, or becomes a
    different value that the declaration allows.
    """
    left, flat = dict(values), flat_fields(fields)
    for _ in range(draw(st.integers(1, 3))):
        kinds = ["add"]
        if left:
            kinds += ["drop", "any", "any", "rename", "change", "change", "change"]
        kind = draw(st.sampled_from(kinds))
        if kind == "add":
            names = ["x", "rows", "", "X.0", "a b", *fields]
            names += [f"{name}{end}" for name in fields for end in (".0", "_0", ".x")]
            left[draw(st.sampled_from(names))] = any_value(draw)
            continue
        name = draw(st.sampled_from(sorted(left)))
        if kind == "drop":
            del left[name]
        elif kind == "any":
            left[name] = any_value(draw)
        elif kind == "rename":
            other = draw(st.sampled_from([f"{name}_0", f"{name}.0", name[:-1]]))
            left[other] = left.pop(name)
        elif isinstance(left[name], np.ndarray):
            left[name] = changed(draw, left[name])
        elif name in flat:
            left |= _declared(draw, name, flat[name], dict(sizes))
        else:
            left[name] = draw(st.sampled_from(SCALARS))
    return left


def changed_frame(draw: Draw, frame: Mapping[str, Any]) -> dict[str, Any]:
    left = {name: value for name, value in frame.items() if name != "digest"}
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(left) or ["round"]))
        value = left.get(name)
        kind = draw(st.sampled_from(["drop", "any", "near", "near", "near", "add"]))
        if kind == "drop":
            left.pop(name, None)
        elif kind == "any":
            left[name] = draw(st.sampled_from(SCALARS))
        elif kind == "add":
            name = draw(st.sampled_from(_FRAME_NAMES))
            left[name] = draw(st.sampled_from([*SCALARS, *_SEALS]))
        elif isinstance(value, bool):
            left[name] = not value
        elif isinstance(value, int | float):
            left[name] = value + draw(st.sampled_from([-1, 1, 2]))
        elif isinstance(value, list) and value:
            left[name] = _changed_seals(draw, value)
        elif isinstance(value, str | bytes):
            left[name] = draw(st.sampled_from([value[:-1], value + value, value[::-1]]))
    return left


_FRAME_NAMES = ["peers", "model", "sum.x", "bound.x", "group.x", "to.x", "relay.x", "."]
_FRAME_NAMES += ["sealed.x", "sealed.", "x.y.z", "sum.", "digest.x", "x"]
_SEALS = [["pad a x 1 ring 0x1.0p+0 0"], ["secret a x 1 - - 9"], ["relay a x -1 - - 0"]]


def _changed_seals(draw: Draw, seals: list[Any]) -> list[Any]:
    kind = draw(st.sampled_from(["word", "word", "word", "more", "none", "any"]))
    if kind == "more":
        return [*seals, seals[0]]
    if kind == "none":
        return seals[1:]
    if kind == "any":
        return draw(st.sampled_from([[1], [b"x"], ["x"], [""], [1.5], *_SEALS]))
    words = str(seals[0]).split()
    place = draw(st.integers(0, len(words) - 1))
    other = ["", "-", "pad", "relay", "secret", "0", "1", "-1", "99", "ring", "plain"]
    other += ["circle16", "circle32", "field", "0x1.0p+0", "0x0p+0", "0x1p+2000", "nan"]
    words[place] = draw(st.sampled_from(other))
    return [" ".join(words), *map(str, seals[1:])]


def damaged(draw: Draw, content: RecordDict) -> RecordDict:
    records: Any = content
    kind = draw(st.sampled_from(["record", "type", "digest", "array", "array", "more"]))
    if kind == "record":
        del records[draw(st.sampled_from(sorted(records)))]
        return content
    if kind == "type":
        name = draw(st.sampled_from(sorted(records)))
        del records[name]
        records[name] = ArrayRecord() if name != "arrays" else ConfigRecord()
        return content
    if kind == "digest":
        records["frame"]["digest"] = draw(st.sampled_from(SCALARS))
        return content
    if kind == "more":
        records["more"] = ConfigRecord({"x": 1})
    elif records["arrays"]:
        name = draw(st.sampled_from(sorted(records["arrays"])))
        sent = records["arrays"][name]
        pickled = np.array([None, "x"], dtype=object).dumps()
        objects = b"\x93NUMPY\x01\x00" + sent.data[8:].replace(b"<f8", b"|O ")
        kinds = [b"", sent.data[:-1], sent.data[:40], sent.data * 2, pickled, objects]
        data = draw(st.sampled_from([*kinds, *LARGE]))
        shape = draw(st.sampled_from([sent.shape, (), (2**31 - 1,) * 3, (-1,)]))
        dtype = draw(st.sampled_from([sent.dtype, "float64", "object", ""]))
        stype = draw(st.sampled_from([sent.stype, "numpy.ndarray", "torch", ""]))
        records["arrays"][name] = FlowerArray(dtype, shape, stype, data)
    address(content, {}, digest_of_values(content))
    return content


def declares(shape: tuple[int, ...], dtype: str = "<f8") -> bytes:
    """Return the first bytes of an array, which give its shape but no entry."""
    file = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def archive() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, x=np.zeros(500_000))
    return file.getvalue()


LARGE = [declares((2**40,)), declares((2**40,), "|S0"), declares((2**40, 0)), archive()]
"""Small data that claim to be large arrays."""


def in_bundle(content: RecordDict) -> RecordDict:
    """Return a message as one record, even if it is large or already one record."""
    data = recorddict_to_proto(content).SerializeToString()
    return RecordDict({BUNDLE: ConfigRecord({BUNDLE: data})})


def malformed_content(
    draw: Draw,
    values: Mapping[str, Any],
    frame: Mapping[str, Any],
    fields: Mapping[str, Field],
    sizes: Sizes,
) -> RecordDict:
    """Draw the content of a message to replace a message that was sent."""
    kind = draw(st.sampled_from(["declared", "changed", "changed", "frame", "damage"]))
    given = {name: value for name, value in frame.items() if name != "digest"}
    if kind == "damage":
        content = damaged(draw, pack(values, given))
    elif kind == "frame":
        content = pack(values, changed_frame(draw, frame))
    elif kind == "changed":
        content = pack(changed_values(draw, values, fields, sizes), given)
    else:
        hidden = [k.removeprefix("sealed.") for k in given if k.startswith("sealed.")]
        kept = {k: v for k, v in values.items() if k.rpartition(".")[0] in hidden}
        content = pack(declared_values(draw, fields, sizes) | kept, given)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 0]))):
        content = in_bundle(content)
    return content
