"""A ``repr`` with names and shapes only, for classes with data, keys or state."""

from __future__ import annotations

import dataclasses
from collections.abc import Sized
from typing import Any, TypeVar

C = TypeVar("C", bound=type)


def shapes_only(cls: C) -> C:
    """Make the ``repr`` of a dataclass or named tuple omit the values of its fields.

    Tracebacks, debuggers and the last line of a notebook cell show the ``repr``.

    >>> @shapes_only
    ... @dataclasses.dataclass
    ... class State:
    ...     key: bytes
    ...     mean: float
    ...     done: bool
    >>> State(bytes(32), 0.5, False)
    State(key=<bytes of 32>, mean=<float>, done=False)
    """

    def __repr__(self: Any) -> str:
        names = getattr(self, "_fields", None)
        if names is None:
            names = [field.name for field in dataclasses.fields(self)]
        shown = (f"{name}={shape_of(getattr(self, name, None))}" for name in names)
        return f"{type(self).__name__}({', '.join(shown)})"

    type.__setattr__(cls, "__repr__", __repr__)
    return cls


def shape_of(value: object) -> str:
    """Describe a value by its type and size; True, False and None by their names."""
    if value is None or isinstance(value, bool):
        return repr(value)
    kind = type(value).__name__
    if (shape := getattr(value, "shape", None)) is not None:
        return f"<{kind} of {' x '.join(map(str, shape))}>"
    return f"<{kind} of {len(value)}>" if isinstance(value, Sized) else f"<{kind}>"
