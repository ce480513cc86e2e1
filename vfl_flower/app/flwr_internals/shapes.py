"""Check that the installed flwr has the internal functions that this package calls."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def check_shapes(shapes: Mapping[Callable[..., Any], str]) -> None:
    """Raise ImportError if a function's parameters differ from `shapes`."""
    for function, shape in shapes.items():
        names = list(inspect.signature(function).parameters)
        first, _, named = shape.partition("*")
        begins = names[: len(first.split())] == first.split()
        if not begins or not set(named.split()) <= set(names):
            raise ImportError(f"flwr's {function.__name__} has unexpected parameters")
