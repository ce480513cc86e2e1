"""Text, ids and numbers in a form independent of the program that wrote them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from numbers import Integral
from typing import Any

import numpy as np

NO_IDS = ("", "nan", "na", "n/a", "<na>", "nat", "none", "null")
"""Lower-case strings that programs write for a missing id."""

LEAST_SIZE, MOST_SIZE = 1e-150, 1e140
"""Bounds on the largest absolute value of a column: within them, sums of squares are
neither 0 nor infinite."""


def plain_number(value: Any) -> Any:
    """Return NumPy numbers as Python numbers, and anything else unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def normal_text(value: object) -> str:
    """Return text in Unicode normal form NFKC, stripped of surrounding white space."""
    return unicodedata.normalize("NFKC", str(value)).strip()


def normal_ids(values: Iterable[Any]) -> tuple[list[bytes], str]:
    """Return ids as bytes to compare, and the reason why they are invalid, or ""."""
    values = values.tolist() if isinstance(values, np.ndarray) else list(values)
    texts = [normal_text(value) for value in values]
    if missing := sum(text.casefold() in NO_IDS for text in texts):
        return [], f"must not be empty or missing, but {missing} are"
    wrong = sum(
        isinstance(v, bool | np.bool_) or not isinstance(v, Integral | str)
        for v in values
    )
    if wrong:
        return [], f"must be integers or text, but {wrong} are neither"
    if broken := sum(not text.isascii() and is_broken(text) for text in texts):
        return [], f"must be valid Unicode text, but {broken} have a lone surrogate"
    return [text.encode() for text in texts], ""


def is_broken(text: str) -> bool:
    """Return whether a string has a lone surrogate, which UTF-8 cannot encode."""
    return any("\ud800" <= sign <= "\udfff" for sign in text)


def size_fault(largest: Any) -> str:
    """Return the reason why columns' largest absolute values are invalid, or ""."""
    largest = np.atleast_1d(np.asarray(largest, dtype=np.float64))
    if (largest > MOST_SIZE).any():
        return f"must have no value above {MOST_SIZE:g}: its square is too large"
    if ((largest > 0) & (largest < LEAST_SIZE)).any():
        return (
            f"must not have only values below {LEAST_SIZE:g}, whose squares are too "
            "small: scale the values"
        )
    return ""
