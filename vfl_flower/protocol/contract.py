"""The permitted content of messages: the types of a step's parameters and of its reply.

A step declares these types once, as the annotations of its function. The same
declaration checks each request at the party and each reply at the server, and states
how values are sent. Messages support these annotations:

===============================  =====================================================
``bool``, ``int``, ``float``     a number; floats are finite
``str``, ``bytes``               text; ``Literal["a", "b"]`` one of these values
``list[str]``, ``list[int]``     a list of strings or of whole numbers
``Annotated[int, Ge(1)]``        bounds from ``annotated_types``; also ``PositiveInt``
``Annotated[Array, Reals(..)]``  an array of finite real numbers, of a given shape
``Annotated[Array, Whole(..)]``  an array of whole numbers, of a given range and shape;
                                 also with ``MinLen(1)``: of length 1 or more
``dict[int, Array]``             arrays ``name_0``, ``name_1``, ..; annotated like one
a frozen dataclass               its fields, as ``name.field``; each field of a request
                                 may be encrypted, or be a sum that one party opens
``T | None``, ``NotRequired``    may be left out
===============================  =====================================================

A shape is a string with one word for each dimension: a number, ``*`` for any size, or a
name. ``n_rows`` and ``n_columns`` are the party's numbers of rows and columns,
``n_parties`` is the number of parties, and the name of a whole number in the request
stands for this number. Any other name stands for one size throughout the request and
its reply.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import numpy as np
from annotated_types import MaxLen, MinLen
from pydantic import ValidationError

from vfl_flower.protocol.rules import adapter, describe
from vfl_flower.protocol.seals import Sealed, stem

S = TypeVar("S")

Sizes = dict[str, int]
"""Sizes of dimensions, and whole numbers of a request, by name."""

MOST_DIGITS = 6
"""Maximum number of digits in ``name_0``, ``name_1``, .."""


class ContractError(ValueError):
    """A value violates the contract of its step; the error never contains the value."""


@dataclass(frozen=True)
class Reals:
    """An array of finite real numbers."""

    shape: str  # a word for each dimension
    least: float = -math.inf
    most: float = math.inf


@dataclass(frozen=True)
class Whole:
    """An array of whole numbers."""

    shape: str  # a word for each dimension
    least: int = 0
    below: int | str | None = None  # a number or the name of a size: "n_rows"


@dataclass(frozen=True)
class Many:
    """At least `least` distinct rows, or half of all rows if that is fewer."""

    least: int


Length = MinLen | MaxLen | Many
"""Bounds of the first dimension of an array."""


@dataclass(frozen=True)
class Leaves:
    """The way in which a value of a reply leaves the party; default: in the clear.

    A parameter with this mark must come encrypted from a party.
    """

    how: Literal["sum", "sealed", "secret", "next", "private"]
    least: float | str = 0.0
    """Minimum bound of the sum, or the name of a size. With a smaller bound, the number
    of clipped values would reveal how large single addends are."""
    named: bool = False
    """Whether ``name_k`` is for party k alone, in a sum that is not relayed."""


IN_SUM = Leaves("sum")
"""The server may learn the sum over all parties, and nothing else."""
COUNTS = Leaves("sum", least="n_rows")
"""Like :data:`IN_SUM`, for counts of rows."""
SEALED = Leaves("sealed")
"""One party may learn the sum over all parties; the server learns nothing."""
SEALED_FOR = Leaves("sealed", named=True)
"""Only the party whose number is in the name may learn the sum."""
SECRET = Leaves("secret")
"""A value for the other parties; the server passes it on and cannot read it."""
NEXT = Leaves("next")
"""Bytes for the next party of the ring, which accepts only bytes that the party before
it sent in the previous round trip. The server passes them on and can neither read nor
choose them."""
PRIVATE = Leaves("private")
"""Bytes for some parties, possibly including the sender: ``name_k`` of a reply is for
party k, and ``name_k`` of a request comes from party k. The server passes them on; it
can neither read them nor pass them off as another party's bytes. No two steps send such
bytes under the same name."""
ENCRYPTED = (SECRET, NEXT, PRIVATE)
"""The ways in which bytes that are encrypted for parties leave a party."""


@dataclass(frozen=True)
class Sending:
    """The way to send an input to the parties; by default, all get the same value."""

    how: Literal["own", "route"]


OWN = Sending("own")
"""An input that differs between parties, for example a party's block of an array."""
ROUTE = Sending("route")
"""The arrays to send in this message; the choice changes no addend."""


@dataclass(frozen=True)
class Field:
    """One declared value of a request, a reply or a state."""

    kind: Any
    """``np.ndarray``, ``dict`` of arrays, a dataclass, or ``object`` for a value that
    `annotation` checks."""
    annotation: Any = None
    array: Reals | Whole | None = None  # also of each array of a dictionary
    lengths: tuple[Length, ...] = ()
    leaves: Leaves | None = None
    sending: Sending | None = None
    required: bool = True
    default: int | None = None  # of an omitted whole number


Fields = Mapping[str, Field]
"""Declared values by their names."""


def parse(annotation: Any) -> Field:
    """Return the field that an annotation declares, or raise TypeError."""
    metadata: list[Any] = []
    required = True
    bare = annotation
    while True:
        origin, arguments = get_origin(bare), get_args(bare)
        if origin in (NotRequired, Required):
            required &= origin is Required
            bare = arguments[0]
        elif origin is Annotated:
            metadata += arguments[1:]
            bare = arguments[0]
        elif origin in (Union, types.UnionType) and types.NoneType in arguments:
            required = False
            bare = Union[tuple(a for a in arguments if a is not types.NoneType)]  # noqa: UP007
        elif hasattr(origin or bare, "__value__"):
            bare = (origin or bare).__value__  # a type statement: NumPy's NDArray
        else:
            break
    leaves = next((m for m in metadata if isinstance(m, Leaves)), None)
    sending = next((m for m in metadata if isinstance(m, Sending)), None)
    rules = [m for m in metadata if not isinstance(m, Leaves | Sending)]
    declared = Field(object, leaves=leaves, sending=sending, required=required)
    if origin is np.ndarray or bare is np.ndarray:
        array, lengths = _array_rules(rules)
        return replace(declared, kind=np.ndarray, array=array, lengths=lengths)
    if origin is dict and arguments[0] is int:
        item = parse(Annotated[(arguments[1], *metadata)] if metadata else arguments[1])
        if item.kind is np.ndarray:
            return replace(item, kind=dict, required=required)
    if isinstance(bare, type) and dataclasses.is_dataclass(bare) and not rules:
        return replace(declared, kind=bare)
    if not _is_plain(bare):
        raise TypeError(f"a message field must not be of type {annotation!r}")
    return replace(declared, annotation=Annotated[(bare, *rules)] if rules else bare)


def _array_rules(rules: list[Any]) -> tuple[Reals | Whole | None, tuple[Length, ...]]:
    """Split the rules of an array into its kind of numbers and its bounds on length."""
    array = next((rule for rule in rules if isinstance(rule, Reals | Whole)), None)
    lengths = tuple(rule for rule in rules if isinstance(rule, Length))
    for rule in rules:
        if rule not in (array, *lengths):
            raise TypeError(f"{rule!r} is not a rule for an array in a message")
    return array, lengths


def _is_plain(annotation: Any) -> bool:
    """Return whether messages can carry this type and pydantic can check it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Annotated, list, Sequence):
        return _is_plain(arguments[0])
    if origin in (Union, types.UnionType):
        return all(map(_is_plain, arguments))
    return origin is Literal or annotation in (bool, int, float, str, bytes)


def _fields_of(declaration: Any) -> Fields:
    """Return the fields of a dataclass or TypedDict; otherwise raise TypeError."""
    hints = get_type_hints(declaration, include_extras=True)
    if is_typeddict(declaration):
        needed = declaration.__required_keys__  # covers only ``total=False``
        return {n: _with_default(parse(h), None, n in needed) for n, h in hints.items()}
    declared = {}
    for f in dataclasses.fields(declaration):
        needed = f.default is f.default_factory is dataclasses.MISSING
        declared[f.name] = _with_default(parse(hints[f.name]), f.default, needed)
    return declared


# Typed, since mypy does not treat arbitrary classes as hashable.
fields_of: Callable[[Any], Fields] = cache(_fields_of)


def _with_default(declared: Field, default: object, needed: bool) -> Field:
    number = default if type(default) is int else None
    return replace(declared, required=declared.required and needed, default=number)


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as sent: arrays and scalars under flat names.

    None is left out, a dataclass becomes ``name.field``, and a dictionary becomes
    ``name_k``.
    """
    flattened: dict[str, Any] = {}
    for name, value in values.items():
        if _has_fields(value):
            flattened |= {f"{name}.{key}": part for key, part in flat(value).items()}
        elif isinstance(value, dict):
            flattened |= {f"{name}_{key}": part for key, part in value.items()}
        elif value is not None:
            flattened[name] = list(value) if isinstance(value, tuple) else value
    return flattened


def _has_fields(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type | Sealed)


def structure(
    fields: Fields, values: Mapping[str, Any], sizes: Sizes | None = None
) -> dict[str, Any]:
    """Return the values that flat values represent, each with its declared type.

    Adds the sizes of the values to `sizes`. If `sizes` is None, the values never left
    the machine and are not checked. Raises ContractError if a value is missing,
    undeclared, or not as declared.
    """
    left = dict(values)
    structured = {}
    for name, declared in _numbers_first(fields):
        value = _take(name, declared, left, sizes)
        if value is not None:
            structured[name] = value
        elif declared.required:
            raise ContractError(f"{name!r} is missing")
    if left:
        raise ContractError(f"{min(left)[:60]!r} is not allowed here")
    return structured


def _numbers_first(fields: Fields) -> list[tuple[str, Field]]:
    """Return the fields with arrays last, since numbers can determine their sizes."""
    kinds = {object: 0, np.ndarray: 2, dict: 2}
    return sorted(fields.items(), key=lambda item: kinds.get(item[1].kind, 1))


def _take(name: str, declared: Field, left: dict[str, Any], sizes: Sizes | None) -> Any:
    """Remove and return one of the remaining values; return None if it is absent."""
    kind: Any = declared.kind
    if kind is dict:
        arrays = {number: left.pop(key) for number, key in family(name, left)}
        if sizes is not None:
            for number, array in arrays.items():
                _check_array(f"{name}_{number}", declared, array, sizes)
        return arrays or ({} if declared.required else None)
    if dataclasses.is_dataclass(declared.kind):
        head = f"{name}."
        keys = [key for key in left if key.startswith(head)]
        inside = {key.removeprefix(head): left.pop(key) for key in keys}
        if not inside and not declared.required:
            return None
        return restore(kind, inside, sizes, f"{name}: ")
    value: Any = left.pop(name, None)
    if sizes is None:
        return value
    if value is not None:
        if kind is np.ndarray:
            _check_array(name, declared, value, sizes)
            return value
        value = _checked(name, declared, value)
    size = declared.default if value is None else value
    if type(size) is int:
        sizes[name] = size
    return value


def family(name: str, names: Iterable[str]) -> list[tuple[int, str]]:
    """Return the names ``name_0``, ``name_1``, .. with their numbers, in order."""
    members = []
    for key in names:
        head, _, number = key.rpartition("_")
        if head == name and number.isdecimal() and len(number) <= MOST_DIGITS:
            # Not ``name_00``, which would be a second name for the same array.
            members += [(int(number), key)] if str(int(number)) == number else []
    return sorted(members)


def flat(value: Any) -> dict[str, Any]:
    """Return a dataclass as arrays and scalars under flat names."""
    return flatten(_values_of(value))


def _values_of(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


def restore(
    kind: type[S], values: Mapping[str, Any], sizes: Sizes | None = None, what: str = ""
) -> S:
    """Rebuild the dataclass that :func:`flat` flattened; errors begin with `what`."""
    try:
        return kind(**structure(fields_of(kind), values, sizes))
    except ContractError as error:
        raise ContractError(f"{what}{error}") from None


def _checked(name: str, declared: Field, value: object) -> Any:
    """Convert a non-array value to its declared type, for example int to float."""
    try:
        return adapter(declared.annotation).validate_python(value)
    except ValidationError:
        rule = describe(declared.annotation)
    raise ContractError(f"{name!r} must be {rule}")


def _check_array(name: str, declared: Field, array: object, sizes: Sizes) -> None:
    """Raise ContractError unless an array matches its field; record its sizes."""
    if not isinstance(array, np.ndarray):
        raise ContractError(f"{name!r} must be an array")
    rule = declared.array
    if rule is None:
        return
    whole = isinstance(rule, Whole)
    if array.dtype.kind not in ("iu" if whole else "biuf"):
        numbers = "whole" if whole else "real"
        raise ContractError(f"{name!r} must hold {numbers} numbers, got {array.dtype}")
    check_shape(name, rule.shape, array.shape, sizes)
    for length in declared.lengths:
        match length:
            case MinLen(min_length=least) if len(array) < least:
                raise ContractError(f"{name!r} must have length {least} or more")
            case MaxLen(max_length=most) if len(array) > most:
                raise ContractError(f"{name!r} must have length {most} or less")
            case Many(least=least):
                least, count = min(least, sizes["n_rows"] // 2), len(np.unique(array))
                if count < max(least, len(array)):
                    raise ContractError(
                        f"{name!r} must hold at least {least} rows, all distinct, "
                        f"got {len(array)} rows, of which {count} are distinct"
                    )
    if not array.size:
        return
    if isinstance(rule, Reals):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ContractError(f"{name!r} must hold finite numbers")
        if array.min() < rule.least or array.max() > rule.most:
            allowed = f"from {rule.least:g} to {rule.most:g}"
            raise ContractError(f"{name!r} must hold numbers {allowed}")
        return
    below = sizes.get(rule.below) if isinstance(rule.below, str) else rule.below
    if array.min() < rule.least:
        raise ContractError(f"{name!r} must hold numbers of at least {rule.least}")
    if below is not None and array.max() >= below:
        raise ContractError(f"{name!r} must hold numbers below {below}")


def check_shape(name: str, shape: str, actual: tuple[int, ...], sizes: Sizes) -> None:
    """Raise ContractError unless a shape matches its field; record its sizes."""
    words = shape.split()
    fits = len(words) == len(actual)
    for word, size in zip(words, actual, strict=False):
        if word.isdecimal():
            fits &= size == int(word)
        elif word != "*":
            fits &= size == sizes.setdefault(word, size)
    if not fits:
        wanted = ", ".join(str(sizes.get(word, word)) for word in words)
        got = ", ".join(map(str, actual))
        raise ContractError(f"{name!r} must have shape ({wanted}), got ({got})")


def learn_sizes(fields: Fields, values: Mapping[str, Any], sizes: Sizes) -> None:
    """Record the sizes of a request's values, except values sealed for a party.

    Raises ContractError if two values disagree about a size.
    """
    for name, declared in _numbers_first(fields):
        value = values.get(name, declared.default)
        if _has_fields(value):
            inside = _values_of(value)
            learn_sizes(fields_of(type(value)), inside, sizes)
        elif isinstance(value, int | np.integer) and not isinstance(value, bool):
            sizes[name] = int(value)
        elif declared.array is not None:
            for array in value.values() if isinstance(value, dict) else [value]:
                if isinstance(array, np.ndarray):
                    check_shape(name, declared.array.shape, array.shape, sizes)


def declared_as(fields: Fields, name: str) -> Field | None:
    """Return the field that a flat name belongs to, if any."""
    if name in fields:
        return fields[name]
    outer, dot, inside = name.partition(".")
    if dot:
        kind: Any = fields[outer].kind if outer in fields else None
        known = dataclasses.is_dataclass(kind)
        return declared_as(fields_of(kind), inside) if known else None
    head, _, number = name.rpartition("_")
    arrays = fields.get(head) if number.isdecimal() else None
    return arrays if arrays is not None and arrays.kind is dict else None


def leaves_of(fields: Fields, name: str) -> Leaves | None:
    """Return the way in which a named value leaves the party; None: in the clear."""
    declared = declared_as(fields, name)
    return None if declared is None else declared.leaves


@dataclass(frozen=True)
class Contract:
    """The declared values of one step."""

    request: Fields
    reply: Fields = field(default_factory=dict)

    @property
    def seals(self) -> bool:
        """Whether a reply contains bytes that are encrypted for other parties."""
        return any(field.leaves in ENCRYPTED for field in self.reply.values())

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Contract:
        """Return the contract that annotations declare, or raise TypeError."""
        hints = get_type_hints(function, include_extras=True)
        _, *parameters = inspect.signature(function).parameters.values()
        request = {}
        for p in parameters:
            declared, needed = parse(hints[p.name]), p.default is p.empty
            request[p.name] = _with_default(declared, p.default, needed)
        contract = cls(request, fields_of(hints["return"]))
        _check_structures(contract)
        return contract


def _check_structures(contract: Contract) -> None:
    """Raise TypeError if a structure has fields that seals cannot distinguish.

    A seal contains only the stem of a field's name, so the server could exchange two
    values with the same stem.
    """
    inner = [name for f in contract.reply.values() for name in _sealed_fields(f)]
    sealed = [name for name, f in contract.request.items() if f.leaves is not None]
    sealed += [name for f in contract.request.values() for name in _sealed_fields(f)]
    if inner or len(set(map(stem, sealed))) < len(sealed):
        raise TypeError(
            "encrypted fields of structures must belong to a request and have "
            f"distinct names, got {', '.join(inner or sealed)}"
        )


def _sealed_fields(outer: Field) -> list[str]:
    inside = fields_of(outer.kind) if dataclasses.is_dataclass(outer.kind) else {}
    names: list[str] = []
    for name, f in inside.items():
        names += _sealed_fields(f) if f.leaves is None else [name]
    return names
