"""The rules for declared values in words, for errors, help and documentation."""

from __future__ import annotations

import os
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt, MaxLen, MinLen, Predicate
from pydantic import ConfigDict, TypeAdapter

_SINGULAR: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    bytes: "bytes",
    types.NoneType: "None",
}
_PLURAL: dict[Any, str] = {int: "whole numbers", float: "numbers", str: "text"}


@cache
def adapter(annotation: Any) -> TypeAdapter[Any]:
    """Return the pydantic adapter that checks values against an annotation."""
    config = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    return TypeAdapter(annotation, config=config)


def describe(annotation: Any) -> str:
    """Describe an annotation by a phrase that completes "the value must be ..".

    >>> describe(Annotated[float, Gt(0)] | Literal["median"])
    "a number above 0 or 'median'"
    >>> describe(Annotated[int, Ge(1), Lt(9)])
    'a whole number of at least 1 and below 9'
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = " and ".join(_bounds(arguments[1:])).replace(" and of ", " and ")
        return f"{describe(arguments[0])} {bounds}".rstrip()
    if origin is Literal:
        choices = ", ".join(map(repr, arguments))
        return choices if len(arguments) == 1 else f"one of {choices}"
    if origin in (Union, types.UnionType):
        parts = list(dict.fromkeys(map(describe, arguments)))
        compound = any(" and " in part for part in parts)
        return (", or " if compound else " or ").join(parts)
    kind = annotation if origin is None else origin
    if kind in _SINGULAR:
        return _SINGULAR[kind]
    if not isinstance(kind, type):
        return f"of type {kind}"
    if issubclass(kind, Sequence):
        item = arguments[0] if arguments else None
        item = get_args(item)[0] if get_origin(item) is Annotated else item
        name = kind.__name__.lower()
        return f"a {name} of {_PLURAL[item]}" if item in _PLURAL else f"a {name}"
    if issubclass(kind, Mapping):
        return "a dictionary"
    if issubclass(kind, os.PathLike):
        return "a path"
    return f"of type {kind.__name__}"


def _bounds(metadata: Iterable[Any]) -> Iterator[str]:
    for constraint in metadata:
        match constraint:
            case GroupedMetadata():
                yield from _bounds(constraint)
            case Ge(ge=bound):
                yield f"of at least {number_text(bound)}"
            case Gt(gt=bound):
                yield f"above {number_text(bound)}"
            case Le(le=bound):
                yield f"of at most {number_text(bound)}"
            case Lt(lt=bound):
                yield f"below {number_text(bound)}"
            case MinLen(min_length=bound):
                yield f"of length {bound} or more"
            case MaxLen(max_length=bound):
                yield f"of length {bound} or less"
            case Predicate(func=str.isprintable):
                yield "of printable characters"


def number_text(bound: Any) -> str:
    """Return a bound as text, with large powers of two written as powers."""
    power = isinstance(bound, int) and bound > 2**16 and bound.bit_count() == 1
    return f"2^{bound.bit_length() - 1}" if power else str(bound)
