"""The kind of a column's values, and their conversion to numbers.

The kind of a text column is the first in this table that fits all of its values:

==========  ============================================================================
kind        conversion of a value
==========  ============================================================================
number      the number
truth       1 for yes, y, true and t; 0 for no, n, false and f (in any letter case)
comma       the number, with a decimal comma, unless commas separate fields
date        days since 1970-01-01, with the time of day as a fraction: ``2013-01-31``,
            ``31.01.2013``, ``2013-01-31 10:30:00``; a time with ``Z`` or ``+02:00`` is
            converted to UTC; a time of day alone is the fraction of a day
otherdate   refused: ``1/2/2013`` can be in January or February, ``1.2.13`` in either of
            two centuries, and other forms are not read
thousands   refused: ``1,234`` where commas separate fields, ``1.234,5`` and ``1 234``
written     the number, in another notation: a Unicode minus sign or dash, digits of
            another script, ``1_000``, ``1.5D+02``, ``="5"`` or ``'5``
text        the index of the level
==========  ============================================================================

If one of a column's whole numbers has a leading zero (``007``), all are codes and stay
text.
"""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from vfl_flower.typing import Array

KINDS = (
    *("number", "truth", "comma", "date", "otherdate", "thousands", "written"),
    "text",
)
"""The kinds of a column of text, in the order in which they are tried."""

NUMERIC = ("number", "truth", "comma", "written")
"""Kinds whose values are numbers already."""

REFUSED = {
    "otherdate": "holds dates in several forms, or in an ambiguous or unknown form: "
    "write them as 2013-01-31, or set columns to the other features",
    "thousands": "holds numbers with commas, points or blanks, which can separate "
    "decimals or thousands: write plain numbers, or set columns to the other features",
}
"""Kinds that cannot become numbers, with the reason."""

YES, NO = ("yes", "y", "true", "t"), ("no", "n", "false", "f")

DAY = 86_400_000_000
"""Microseconds in a day."""

_MONTH = r"(jan|feb|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])\pL*\.?"
_OTHER_DATE = (
    r"(?i)^\s*(\d{1,2}[/.-]\d{1,2}[/.-](\d{2}|\d{4})|\d{4}[/.-]\d{1,2}[/.-]\d{1,2}"
    rf"|\d{{1,2}}\.?[- ]?{_MONTH}[-, ]*\d{{2,4}}|{_MONTH} ?\d{{1,2}},? \d{{4}})"
    r"([ T].*)?$"
)
_DOTTED = r"^\d{1,2}\.\d{1,2}\.\d{4}$"
_THOUSANDS = (
    r"^\s*[-+]?(\d+(,\d+)*(\.\d+)?|\d{1,3}([. '\x{a0}\x{2007}\x{2009}"
    r"\x{2019}\x{202f}]\d{3})+([.,]\d+)?)\s*$"
)
_ONE_COMMA = r"^\s*[-+]?\d*(,\d+)?([eE][-+]?\d+)?\s*$"
_TIME = r"^\s*\d\d:\d\d(:\d\d(\.\d{1,6})?)?\s*$"

_CODE = re.compile(r"0\d+")
_PLAIN = re.compile(r"[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?")
_WRITTEN = re.compile(
    r"[-+]?((0|[^\D0]\d*|\d{1,3}(_\d{3})+)(\.\d*)?|\.\d+)([eEdD][-+]?\d+)?"
)
_NEAR = re.compile(
    r"(?P<before>[^\w\s.+-]{0,3}\s*((US|CA|AU)?\$|USD|EUR|GBP|CHF|JPY|CNY|INR|SEK|NOK"
    r"|DKK|PLN|AUD|CAD|BRL|Rs\.?|kr\.?|ca\.?)?)\s*[-+]?[^\w\s.]?\s*"
    r"(?P<base>0[xXbBoO][\da-fA-F]+|(\d+([.,'\u2019_ ]\d{2,3})*([.,]\d*)?|[.,]\d+)"
    r"([eEdD][-+]?\d+)?(\s*[x\xd7*\xb7]\s*10\^?[-+]?\d+)?"
    r"(\s*[/:'\u2044]\s*\d[\d.,]*)?)(?P<after>\D{0,12}[23]?)"
)
_SIGNS = str.maketrans("\u2010\u2011\u2012\u2013\u2212\u066b", "-----.")
_RAISED = ("<supe", "<sub>", "<circ")
"""Start of the Unicode decomposition of a digit that is not on the baseline."""

MOST_UNITS = 4
"""Maximum number of different units in a column whose strings are read as numbers."""

FEWEST_NUMBERS = 10
"""Minimum number of distinct numbers in a column whose strings are read as numbers."""


def kind_of_type(column: Any) -> str | None:
    """Return the kind of an Arrow column; "" if its text must be read; None if unknown.

    A categorical text column has the kind ``levels``, whatever its values; a
    categorical column of numbers or dates has the kind of its values, as in a CSV or
    Parquet file of the same table.
    """
    kind = column.type
    if types.is_dictionary(kind):
        kind = kind.value_type
        if is_text(kind):
            return "levels"
    if is_number(kind) or types.is_null(kind):
        return "number"
    if types.is_temporal(kind):
        return "date"
    return "" if is_text(kind) else None


def is_number(kind: Any) -> bool:
    """Return whether an Arrow type holds numbers or truth values."""
    tests = types.is_integer, types.is_floating, types.is_decimal, types.is_boolean
    return any(test(kind) for test in tests)


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type holds text."""
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def decoded(column: Any) -> Any:
    """Return a categorical column as the column of its values."""
    if types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def without_markers(column: Any, markers: frozenset[str]) -> Any:
    """Return a text column with nulls in place of its markers of missing values."""
    if not is_text(column.type):
        return column
    column = column.cast(pa.string())
    values = pa.array(sorted(markers), column.type)
    gaps = pc.is_in(pc.utf8_trim_whitespace(column), value_set=values)
    if not pc.any(gaps).as_py():
        return column
    return pc.if_else(gaps, pa.scalar(None, column.type), column)


def codes_in(column: Any) -> bool:
    """Return whether a text column has a whole number with a leading zero."""
    codes = pc.match_substring_regex(column, r"^\s*0\d+\s*$")
    return pc.any(codes).as_py() is True


def text_buffers(texts: Any) -> tuple[Array, Array]:
    """Return the offsets of texts, of shape (n + 1,), and the bytes that they span."""
    _, offsets, data = texts.buffers()
    at = np.frombuffer(offsets, dtype=np.int32)[texts.offset :][: len(texts) + 1]
    at = at.astype(np.int64)
    if data is None:
        return at - at[0], np.empty(0, dtype=np.uint8)
    return at, np.frombuffer(data, dtype=np.uint8)[at[0] : at[-1]]


def has_long_digits(column: Any) -> bool:
    """Return whether a column has an integer type, or integers of 16 or more digits.

    Float64 loses the last digits of integers above 2^53.
    """
    column = decoded(column)
    if not is_text(column.type):
        return bool(types.is_integer(column.type))
    digits = pc.match_substring_regex(column, r"^\s*[-+]?\d{16,}\s*$")
    return pc.any(digits).as_py() is True


def are_codes(texts: Mapping[str, int]) -> bool:
    """Return whether all strings are whole numbers and some have a leading zero."""
    plain = [unicodedata.normalize("NFKC", str(text)).strip() for text in texts]
    return all(map(str.isdecimal, plain)) and any(map(_CODE.fullmatch, plain))


def number_texts(texts: Mapping[str, int]) -> tuple[list[str], bool]:
    """Return the numbers in a text column, and whether all are in plain notation.

    Numbers with a unit, a currency sign or a percent sign, in parentheses, in another
    base or as a fraction are not plain. The result is empty if a number has a leading
    zero, or if the numbers have too many different units. `texts` maps each string in
    the column to its count.
    """
    near, beside = [], set[tuple[str, ...]]()
    for text in map(str, texts):
        plain = unicodedata.normalize("NFKC", text).translate(_SIGNS).strip()
        if _CODE.fullmatch(plain):
            return [], True
        if match := _NEAR.fullmatch(plain):
            near.append(text)
            if not _PLAIN.fullmatch(plain):
                around = match["before"], match["after"]
                beside.add(tuple(part.strip().casefold() for part in around))
    return (near if len(beside) <= MOST_UNITS else []), not beside


def parse(column: Any, kind: str) -> Array | None:
    """Return the values of a column as float64, shape (n,), NaN where missing.

    `kind` is any of `KINDS` except ``text``. The result is None if the column is not of
    this kind, and zeros for a kind that is refused.
    """
    if not is_text(column.type):
        return _typed(decoded(column), kind)
    if column.null_count == len(column):
        return np.full(len(column), np.nan)
    match kind:
        case "number":
            return _numbers(column)
        case "comma":
            if not _all(pc.match_substring_regex(column, _ONE_COMMA)):
                return None
            return _numbers(pc.replace_substring(column, ",", "."))
        case "truth":
            lower = pc.utf8_lower(pc.utf8_trim_whitespace(column)).cast(pa.string())
            place = pc.index_in(lower, value_set=pa.array([*YES, *NO]))
            if place.null_count > column.null_count:
                return None
            return as_float(pc.less(place, len(YES)))
        case "date":
            return _dates(column)
        case "written":
            with contextlib.suppress(ValueError):
                return each_text(column, _written)
            return None
    form = _OTHER_DATE if kind == "otherdate" else _THOUSANDS
    fits = _all(pc.match_substring_regex(column, form))
    return np.zeros(len(column)) if fits else None


def _typed(column: Any, kind: str) -> Array | None:
    if types.is_temporal(column.type):
        return _days(column) if kind == "date" else None
    if kind == "date" and not types.is_null(column.type):
        return None
    return as_float(column.cast(pa.float64(), safe=False))


def as_float(column: Any) -> Array:
    """Return an Arrow column as float64, NaN where a value is missing."""
    values: Array = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values


def _all(holds: Any) -> bool:
    """Return whether a condition holds for each value that is not missing."""
    return bool(pc.all(holds).as_py() is not False)


def _numbers(column: Any) -> Array | None:
    for texts in (column, pc.utf8_trim_whitespace(column)):
        try:
            return as_float(texts.cast(pa.float64()))
        except pa.ArrowInvalid:
            # The first value identifies most text columns, without copying all values.
            first = texts.drop_null()[0].as_py().strip()
            if not (first[:1] in "+-." or first[:1].isdigit() or first[:1] in "iInN"):
                return None
    return None


def each_text(column: Any, value: Callable[[str], float]) -> Array:
    """Return the value of each string in a column as float64, NaN where missing.

    `value` is called only once for each distinct string.
    """
    coded = column.dictionary_encode()
    values = [value(text.as_py()) for text in coded.dictionary]
    return as_float(pa.array(values, pa.float64()).take(coded.indices))


def _written(text: str) -> float:
    """Parse a number in another notation; raise ValueError for any other text."""
    plain = unicodedata.normalize("NFKC", text).translate(_SIGNS).strip()
    if plain.startswith('="') and plain.endswith('"'):
        plain = plain[2:-1]
    plain = plain.removeprefix("'")
    raised = any(unicodedata.decomposition(c)[:5] in _RAISED for c in text)
    if raised or not _WRITTEN.fullmatch(plain):  # 5\u00b2 is not 52
        raise ValueError("text is not a number")
    return float(re.sub("[dD]", "e", plain))


def _dates(column: Any) -> Array | None:
    texts = pc.utf8_trim_whitespace(column)
    if not texts.drop_null()[0].as_py()[:1].isdigit():
        return None
    for zone in (None, "UTC"):
        with contextlib.suppress(pa.ArrowInvalid):
            return _days(texts.cast(pa.timestamp("us", zone)))
    micros = pc.replace_substring_regex(texts, r"(:\d\d\.\d{6})\d+", r"\1")
    if not micros.equals(texts):
        return _dates(micros)
    if _all(pc.match_substring_regex(texts, _TIME)):
        return _dates(pc.binary_join_element_wise("1970-01-01", texts, " "))
    if not _all(pc.match_substring_regex(texts, _DOTTED)):
        return None  # %Y reads 13 as the year 13
    days = pc.strptime(texts, format="%d.%m.%Y", unit="us", error_is_null=True)
    return _days(days) if days.null_count == column.null_count else None


def _days(column: Any) -> Array:
    """Return dates and times as days, from 1970-01-01 if they include a date."""
    kind = column.type
    if types.is_time(kind):
        unit = pa.time64("us")
    elif types.is_duration(kind):
        unit = pa.duration("us")
    else:
        unit = pa.timestamp("us", getattr(kind, "tz", None))
    return as_float(column.cast(unit, safe=False).cast(pa.int64())) / DAY
