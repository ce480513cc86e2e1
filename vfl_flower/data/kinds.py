"""What a column holds, and its values as numbers.

A column of text holds the first of these kinds that each of its values is:

==========  ============================================================================
kind        what becomes of a value
==========  ============================================================================
number      the number
truth       1 for yes, y, true and t, 0 for no, n, false and f, in any case
comma       the number, with a decimal comma, where commas do not separate fields
date        days since 1970-01-01, with the time of day as a fraction: ``2013-01-31``,
            ``2013-01-31 10:30:00``, with ``Z`` or ``+02:00`` as UTC, ``31.01.2013``;
            a time of day alone is the fraction of a day
otherdate   refused: ``1/2/2013`` is a day in January or February, ``1.2.13`` of one of
            two centuries, and other forms are not read
thousands   refused: ``1,234`` where commas separate fields, ``1.234,5`` and ``1 234``
text        the place of the level
==========  ============================================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vfl_flower.typing import Array

KINDS = ("number", "truth", "comma", "date", "otherdate", "thousands", "text")
"""The kinds of a column of text, in the order in which they are tried."""

REFUSED = {
    "otherdate": "holds dates in several forms, or in one that is not read, such as "
    "with slashes, where nobody knows the month, or as 1.2.13: write them as "
    "2013-01-31, or leave the column out: columns lists those to use",
    "thousands": "holds numbers with commas, points or blanks in them, which may be "
    "decimal or for thousands: write them with one point and nothing else, or leave "
    "the column out: columns lists those to use",
}
"""Kinds that cannot become numbers, and why."""

YES, NO = ("yes", "y", "true", "t"), ("no", "n", "false", "f")

DAY = 86_400_000_000
"""Microseconds of a day."""

_MONTH = r"(jan|feb|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])\pL*\.?"
_OTHER_DATE = (
    r"(?i)^\s*(\d{1,2}[/.-]\d{1,2}[/.-](\d{2}|\d{4})|\d{4}[/.-]\d{1,2}[/.-]\d{1,2}"
    rf"|\d{{1,2}}\.?[- ]?{_MONTH}[-, ]*\d{{2,4}}|{_MONTH} ?\d{{1,2}},? \d{{4}})"
    r"([ T].*)?$"
)
_DOTTED = r"^\d{1,2}\.\d{1,2}\.\d{4}$"
_THOUSANDS = (
    r"^\s*[-+]?(\d+(,\d+)*(\.\d+)?|\d{1,3}([. '\x{a0}\x{202f}]\d{3})+(,\d+)?)\s*$"
)
_ONE_COMMA = r"^\s*[-+]?\d*(,\d+)?([eE][-+]?\d+)?\s*$"
_TIME = r"^\s*\d\d:\d\d(:\d\d(\.\d{1,6})?)?\s*$"


def kind_of_type(column: Any) -> str | None:
    """Return the kind of an Arrow column; "" for text to be looked at, None for none.

    A categorical column is ``levels``: text by its type, whatever its values.
    """
    from pyarrow import types

    kind = column.type
    if types.is_dictionary(kind):
        return "levels"
    if is_number(kind) or types.is_null(kind):
        return "number"
    if types.is_temporal(kind):
        return "date"
    return "" if is_text(kind) else None


def is_number(kind: Any) -> bool:
    """Return whether an Arrow type is that of numbers or of truth values."""
    from pyarrow import types

    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_boolean(kind)
    )


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type is that of text."""
    from pyarrow import types

    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
    )


def decoded(column: Any) -> Any:
    """Return a categorical column as the column of its values."""
    from pyarrow import types

    if types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def without_markers(column: Any, markers: frozenset[str]) -> Any:
    """Return a column of text in which the texts for a missing value are missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_text(column.type):
        return column
    column = column.cast(pa.string())
    values = pa.array(sorted(markers), column.type)
    gaps = pc.is_in(pc.utf8_trim_whitespace(column), value_set=values)
    if not pc.any(gaps).as_py():
        return column
    return pc.if_else(gaps, pa.scalar(None, column.type), column)


def parse(column: Any, kind: str) -> Array | None:
    """Return the values of a column as numbers, NaN where missing.

    Parameters
    ----------
    column : pyarrow.Array, length n
        Text, or what its type makes numbers or dates.
    kind : str
        One of `KINDS` but ``text``.

    Returns
    -------
    Array of float64, shape (n,), or None
        None: it holds something else. For a kind that is refused, zeros.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_text(column.type):
        return _typed(column, kind)
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
            yes = pc.is_in(lower, value_set=pa.array(YES))
            no = pc.is_in(lower, value_set=pa.array(NO))
            if not _all(pc.or_(pc.or_(yes, no), pc.is_null(column))):
                return None
            return _as_float(pc.if_else(pc.is_null(column), None, yes))
        case "date":
            return _dates(column)
        case "otherdate":
            fits = _all(pc.match_substring_regex(column, _OTHER_DATE))
        case _:
            fits = _all(pc.match_substring_regex(column, _THOUSANDS))
    return np.zeros(len(column)) if fits else None


def _typed(column: Any, kind: str) -> Array | None:
    import pyarrow as pa
    from pyarrow import types

    if types.is_temporal(column.type):
        return _days(column) if kind == "date" else None
    if kind == "date" and not types.is_null(column.type):
        return None
    return _as_float(column.cast(pa.float64(), safe=False))


def _as_float(column: Any) -> Array:
    import pyarrow as pa

    values: Array = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values


def _all(holds: Any) -> bool:
    """Return whether something holds for each value that is not missing."""
    import pyarrow.compute as pc

    return bool(pc.all(holds).as_py() is not False)


def _numbers(column: Any) -> Array | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    for texts in (column, pc.utf8_trim_whitespace(column)):
        try:
            return _as_float(texts.cast(pa.float64()))
        except pa.ArrowInvalid:
            # The first value tells most columns of text, without a copy of them all.
            first = texts.drop_null()[0].as_py().strip()
            if not (first[:1] in "+-." or first[:1].isdigit() or first[:1] in "iInN"):
                return None
    return None


def _dates(column: Any) -> Array | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pc.utf8_trim_whitespace(column)
    if not texts.drop_null()[0].as_py()[:1].isdigit():
        return None
    for unit in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return _days(texts.cast(unit))
        except pa.ArrowInvalid:
            pass
    if _all(pc.match_substring_regex(texts, _TIME)):
        texts = pc.binary_join_element_wise("1970-01-01", texts, " ")
        try:
            return _days(texts.cast(pa.timestamp("us")))
        except pa.ArrowInvalid:
            return None
    if not _all(pc.match_substring_regex(texts, _DOTTED)):
        return None  # %Y takes 13 for the year 13
    days = pc.strptime(texts, format="%d.%m.%Y", unit="us", error_is_null=True)
    return _days(days) if days.null_count == column.null_count else None


def _days(column: Any) -> Array:
    """Return dates and times as days, since 1970-01-01 where they have a date."""
    import pyarrow as pa
    from pyarrow import types

    kind = column.type
    if types.is_date(kind):
        column = column.cast(pa.timestamp("us"), safe=False)
    elif types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz), safe=False)
    elif types.is_time(kind):
        column = column.cast(pa.time64("us"), safe=False)
    elif types.is_duration(kind):
        column = column.cast(pa.duration("us"), safe=False)
    return _as_float(column.cast(pa.int64())) / DAY
