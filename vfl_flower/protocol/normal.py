"""Texts, ids and numbers in one form, whatever a program has them in."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from numbers import Integral
from typing import Any

import numpy as np

from vfl_flower.typing import Array

NO_IDS = ("", "nan", "na", "n/a", "<na>", "nat", "none", "null")
"""Texts, in lower case, that a missing id becomes where programs write it."""


LEAST_SIZE, MOST_SIZE = 1e-150, 1e140
"""Sizes that the largest number of a column may have: sums of its squares are numbers
that are neither 0 nor infinite."""


def normal_text(value: object) -> str:
    """Return a text as all parties write it: form NFKC, without blanks at its ends."""
    return unicodedata.normalize("NFKC", str(value)).strip()


def normal_ids(values: Iterable[Any]) -> tuple[list[bytes], str]:
    """Return ids as all parties write them, in UTF-8, and why they are none, or "".

    Parameters
    ----------
    values : iterable of int or str
        The ids, as :func:`vfl_flower.protocol.row_order.normal_ids` describes them.
    """
    values = values.tolist() if isinstance(values, np.ndarray) else list(values)
    texts = [normal_text(value) for value in values]
    if missing := sum(text.casefold() in NO_IDS for text in texts):
        return [], f"must not be empty or missing, {missing} are"
    wrong = sum(
        isinstance(v, bool | np.bool_) or not isinstance(v, Integral | str)
        for v in values
    )
    if wrong:
        return [], f"must be integers or text, {wrong} are neither"
    if broken := sum(not text.isascii() and _is_broken(text) for text in texts):
        return [], f"must be text of Unicode, {broken} have half of a pair"
    return [text.encode() for text in texts], ""


def _is_broken(text: str) -> bool:
    return any("\ud800" <= sign <= "\udfff" for sign in text)


def size_fault(largest: Any) -> str:
    """Return why the largest absolute values of columns do not do, or ""."""
    largest = np.atleast_1d(largest)
    if (largest > MOST_SIZE).any():
        return f"must have no value above {MOST_SIZE:g}, whose square is too large"
    if ((largest > 0) & (largest < LEAST_SIZE)).any():
        return (
            f"must not have values below {LEAST_SIZE:g} alone, whose squares are too "
            "small: scale them"
        )
    return ""


def check_index(first: Any, second: Any, what: str) -> None:
    """Refuse a pandas index that is not that of `first`, the rows beside it."""
    above: Any = getattr(first, "index", None)
    beside = getattr(second, "index", None)
    pandas = hasattr(above, "equals") and hasattr(beside, "equals")
    if pandas and not above.equals(beside):
        raise ValueError(
            f"{what} must have the index of X, in its order: align them, or give "
            "arrays of the same rows"
        )


def number_array(values: Any, what: str) -> Array:
    """Return values as an array, and refuse what NumPy would turn into numbers.

    Raises
    ------
    ValueError
        Some are masked, or a column of a pandas object holds text or dates.
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        count = int(np.ma.getmaskarray(values).sum())
        raise ValueError(f"{what} must have no masked value, {count} are")
    if hasattr(values, "iloc"):
        frame = values.to_frame() if values.ndim == 1 else values
        kinds = [getattr(kind, "categories", kind) for kind in frame.dtypes]
        kinds = [getattr(getattr(k, "dtype", k), "kind", "O") for k in kinds]
        if wrong := [
            str(frame.columns[j]) for j, k in enumerate(kinds) if k in "OSUMm"
        ]:
            raise ValueError(
                f"{what} must hold real numbers, and the dtype of {wrong[:5]} is text, "
                "dates or object"
            )
        if len(set(map(str, frame.dtypes))) > 1 or not isinstance(
            frame.dtypes.iloc[0], np.dtype
        ):
            columns = [
                frame.iloc[:, j].to_numpy(dtype=np.float64, na_value=np.nan)
                for j in range(len(kinds))
            ]
            return columns[0] if values.ndim == 1 else np.column_stack(columns)
    array = np.asarray(values)
    texts = array.dtype.kind == "O" and any(isinstance(v, str) for v in array.flat)
    if array.dtype.kind in "SUMmV" or texts:
        raise ValueError(
            f"{what} must hold real numbers, got text or dates of dtype {array.dtype}"
        )
    whole = array.dtype.kind in "iu" and array.dtype.itemsize == 8 and array.size
    if whole and max(-int(array.min()), int(array.max())) > 2**53:
        raise ValueError(
            f"{what} must have no integer above 2^53, whose last digits are lost"
        )
    return array
