"""The columns of a party as numbers: features, labels and ids, and their encoding.

An *encoding* says for each source column what was done to it, so that new rows are
encoded as those that a model was trained on. It is a dict that JSON can hold::

    {"format": 1, "columns": [{"name": "carrier", "levels": ["AA", "UA"],
                               "fill": [0.25, 0.75], "mean": [], "scale": []}, ...]}

``levels`` is None for numbers. ``fill`` (for a missing value), ``mean`` and ``scale``
have one number, in its unit, for each column that the source column became, and none
where nothing was filled or scaled; a scale of 0 makes the column 0 in each row.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from vfl_flower.data.source import PartySource
from vfl_flower.protocol.party import PartyError
from vfl_flower.typing import Array

logger = logging.getLogger("vfl_flower")

MAX_LEVELS = 100
"""A text column with more levels is refused: it is an id or free text."""

FORMAT = 1
"""Version of the format of an encoding."""

Encoding = dict[str, Any]


def encode(
    table: Any,
    names: Sequence[str],
    source: PartySource,
    who: str,
    encoding: Encoding | None = None,
) -> tuple[Array, Encoding]:
    """Return the features as numbers, none missing, and their encoding.

    If an `encoding` is given, it is used; `names` and `source` are ignored.
    """
    import pyarrow as pa

    fitted = encoding is None
    if encoding is None:
        entries = [
            _new(name, _levels(table[name], name, source.one_hot, who))
            for name in names
        ]
        encoding = {"format": FORMAT, "columns": entries}
    else:
        for entry in encoding["columns"]:
            _check_kind(table[entry["name"]], entry, who)
    X = np.empty((table.num_rows, len(columns_of(encoding))))
    texts: list[str] = []
    filled: list[str] = []
    unfilled: list[str] = []
    unknown_levels: list[str] = []
    fill = f"its {source.impute}" if fitted else "its fill of training"
    k = 0
    for entry in encoding["columns"]:
        name, levels = entry["name"], entry["levels"]
        column = _decoded(table[name])
        if levels is None:
            values = column.cast(pa.float64(), safe=False).to_numpy()
        else:
            values = _codes(column, levels)
            texts.append(
                f"text column {name!r} became {len(levels)} columns of 0 and 1"
            )
        gaps = np.isnan(values)
        missing = int(gaps.sum())
        if fitted and missing == len(values):
            raise PartyError(f"column {name!r} of {who} has no value in any row")
        if np.isinf(values).any():
            raise PartyError(
                f"column {name!r} of {who} must have no infinite value, "
                f"{int(np.isinf(values).sum())} found"
            )
        # A missing text is missing in each of its 0/1 columns.
        for code in range(1 if levels is None else len(levels)):
            numbers = values if levels is None else (values == code).astype(np.float64)
            if fitted:
                _fit(entry, numbers, gaps, source)
            X[:, k] = _applied(entry, code, numbers, gaps, who)
            k += 1
        if missing and entry["fill"]:
            filled.append(f"{missing} missing values of column {name!r} became {fill}")
        elif missing:
            unfilled.append(f"{missing} in column {name!r}")
        if levels is not None and (unknown := int((values == -1).sum())):
            unknown_levels.append(
                f"{unknown} values of column {name!r} were not in training and became "
                "0 in each of its columns"
            )
    if unfilled:
        raise PartyError(
            f"{who} has missing values and impute "
            f"{'is none' if fitted else 'was none in training'}: {', '.join(unfilled)}"
        )
    # A warning, so that it is seen by default.
    if done := [*(texts if fitted else ()), *filled, *unknown_levels]:
        logger.warning("%s: %s", who, "; ".join(done))
    return X, encoding


def encode_arrays(
    X: Array,
    names: Sequence[str],
    source: PartySource,
    who: str,
    encoding: Encoding | None = None,
) -> Encoding:
    """Scale finite numbers in place, and return their encoding.

    If an `encoding` of the columns `names` is given, it is used; `source` is ignored.
    """
    fitted = encoding is None
    if encoding is None:
        encoding = {"format": FORMAT, "columns": [_new(name, None) for name in names]}
    gaps = np.zeros(len(X), dtype=bool)
    for k, entry in enumerate(encoding["columns"]):
        if entry["levels"] is not None:
            raise _other_kind(entry, who)
        if fitted:
            _fit(entry, X[:, k], gaps, source)
        X[:, k] = _applied(entry, 0, X[:, k], gaps, who)
    return encoding


def check_columns(
    names: Sequence[str], encoding: Encoding, who: str
) -> tuple[list[str], list[str]]:
    """Return an encoding's columns, which must be in `names`, and the other names."""
    if encoding["format"] != FORMAT:
        raise PartyError(
            f"the encoding of {who} must be of format {FORMAT}, got "
            f"{encoding['format']}: update vfl-flower"
        )
    features = [entry["name"] for entry in encoding["columns"]]
    for name in features:
        if name not in names:
            raise PartyError(
                f"{who} has no column {name!r}, which its part of the model was "
                "trained on"
            )
    return features, [name for name in names if name not in features]


def columns_of(encoding: Encoding) -> list[str]:
    """Return the names of the encoded columns, ``carrier=AA`` for a level."""
    return [
        name
        for entry in encoding["columns"]
        for name in (
            [entry["name"]]
            if entry["levels"] is None
            else [f"{entry['name']}={level}" for level in entry["levels"]]
        )
    ]


def text_columns(encoding: Encoding) -> list[str]:
    """Return the columns that few rows of a CSV may show as numbers or dates.

    They hold text, but a column of one of their levels alone would be misread.
    """
    not_text = re.compile(r"\s*[-+.]?\d|(true|false|inf|infinity)$", re.IGNORECASE)
    return [
        entry["name"]
        for entry in encoding["columns"]
        if any(not_text.match(level) for level in entry["levels"] or ())
    ]


def _new(name: str, levels: list[str] | None) -> dict[str, Any]:
    return {"name": name, "levels": levels, "fill": [], "mean": [], "scale": []}


# Squares of values above about 1e154 are infinite, and `_applied` refuses them.
@np.errstate(over="ignore", invalid="ignore")
def _fit(
    entry: dict[str, Any], numbers: Array, gaps: Array, source: PartySource
) -> None:
    """Add the fill, mean and scale of one encoded column to its source's entry."""
    if source.impute != "none":
        known = numbers[~gaps]
        fill = known.mean() if source.impute == "mean" else np.median(known)
        entry["fill"].append(float(fill))
        numbers = np.where(gaps, fill, numbers)
    if source.standardize:
        constant = numbers.min() == numbers.max()
        entry["mean"].append(float(numbers.mean()))
        entry["scale"].append(0.0 if constant else float(numbers.std()))


@np.errstate(over="ignore", invalid="ignore")
def _applied(
    entry: dict[str, Any], code: int, numbers: Array, gaps: Array, who: str
) -> Array:
    """Return one column with its gaps filled and scaled; zeros where it is constant."""
    figures = [entry[key][code] for key in ("fill", "mean", "scale") if entry[key]]
    if entry["fill"]:
        numbers = np.where(gaps, entry["fill"][code], numbers)
    if entry["scale"] and entry["scale"][code] == 0:
        numbers = np.zeros(len(numbers))
    elif entry["scale"]:
        numbers = (numbers - entry["mean"][code]) / entry["scale"][code]
    unfilled = gaps.any() and not entry["fill"]  # which the caller refuses
    if not (unfilled or (np.isfinite(figures).all() and np.isfinite(numbers).all())):
        raise PartyError(
            f"column {entry['name']!r} of {who} has values too large to be filled or "
            "scaled"
        )
    return numbers


def _codes(column: Any, levels: Sequence[str]) -> Array:
    """Return the place of each value in `levels`; NaN: missing, -1: not a level."""
    import pyarrow as pa
    import pyarrow.compute as pc

    codes = np.full(len(column), np.nan)
    if pa.types.is_null(column.type):
        return codes
    distinct = pc.unique(column).drop_null()
    # As text, since JSON has fewer types than Arrow: 9 and "9" are one level.
    place = {level: float(code) for code, level in enumerate(levels)}
    texts = map(str, distinct.to_pylist())
    code_of = np.array([place.get(text, -1.0) for text in texts])
    index = pc.index_in(column, value_set=distinct).cast(pa.float64()).to_numpy()
    known = ~np.isnan(index)
    codes[known] = code_of[index[known].astype(np.intp)]
    return codes


def _check_kind(column: Any, entry: dict[str, Any], who: str) -> None:
    """Refuse numbers in place of text and the reverse; a column may have no values."""
    from pyarrow import types

    if types.is_null(column.type):
        return
    categorical = types.is_dictionary(column.type)
    column = _decoded(column)
    text = not types.is_temporal(column.type) and (categorical or _is_text(column))
    if not (_is_number(column) if entry["levels"] is None else text):
        raise _other_kind(entry, who)


def _other_kind(entry: dict[str, Any], who: str) -> PartyError:
    kind = "numbers" if entry["levels"] is None else "text"
    return PartyError(
        f"column {entry['name']!r} of {who} must hold {kind}, as its part of the model "
        "was trained on"
    )


def _levels(column: Any, name: str, one_hot: bool, who: str) -> list[str] | None:
    """Return the sorted levels of a text column, None for a column of numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_a = pa.types
    categorical = is_a.is_dictionary(column.type)
    column = _decoded(column)
    if is_a.is_temporal(column.type):
        raise PartyError(
            f"column {name!r} of {who} holds dates or times: turn them into numbers, "
            "or leave it out by columns"
        )
    if not categorical and (_is_number(column) or is_a.is_null(column.type)):
        return None
    if not categorical and not _is_text(column):
        raise PartyError(
            f"column {name!r} of {who} must hold numbers or text: leave it out by "
            "columns"
        )
    if not one_hot:
        raise PartyError(
            f"column {name!r} of {who} holds text and one-hot is off: turn it into "
            "numbers, or leave it out by columns"
        )
    distinct = pc.unique(column).drop_null()
    if len(distinct) == 0:
        raise PartyError(f"column {name!r} of {who} has no value in any row")
    if len(distinct) > MAX_LEVELS:
        raise PartyError(
            f"column {name!r} of {who} must have at most {MAX_LEVELS} different texts "
            f"to be one-hot encoded, got {len(distinct)}"
        )
    return [str(level) for level in sorted(distinct.to_pylist())]


def _is_number(column: Any) -> bool:
    from pyarrow import types

    return bool(
        types.is_integer(column.type)
        or types.is_floating(column.type)
        or types.is_decimal(column.type)
        or types.is_boolean(column.type)
    )


def _is_text(column: Any) -> bool:
    from pyarrow import types

    return bool(
        types.is_string(column.type)
        or types.is_large_string(column.type)
        or types.is_string_view(column.type)
    )


def _decoded(column: Any) -> Any:
    """Return a categorical column as the column of its values."""
    from pyarrow import types

    if types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def labels(column: Any, name: str, who: str) -> Array | None:
    """Return the labels as float64, NaN where one is missing; None if all are."""
    import pyarrow as pa

    if pa.types.is_null(column.type):
        return None
    if not _is_number(column):
        raise PartyError(
            f"label-column {name!r} of {who} must hold numbers: code classes as 0, 1"
        )
    y = column.cast(pa.float64(), safe=False).to_numpy()
    infinite, missing = int(np.isinf(y).sum()), int(np.isnan(y).sum())
    if infinite:
        raise PartyError(
            f"label-column {name!r} of {who} must have no infinite value, "
            f"{infinite} found"
        )
    if missing == len(y):
        return None
    if missing:
        logger.warning(
            "%s: %d of %d labels are missing, so they are another party's",
            who,
            missing,
            len(y),
        )
    return np.array(y)


def row_ids(column: Any, name: str, who: str) -> list[int] | list[str]:
    """Return the ids of the rows: integers or text, none missing, all distinct."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _decoded(column)
    if column.null_count:
        raise PartyError(
            f"id-column {name!r} of {who} must have no missing value, "
            f"{column.null_count} found"
        )
    if not (pa.types.is_integer(column.type) or _is_text(column)):
        raise PartyError(f"id-column {name!r} of {who} must hold integers or text")
    repeated = len(column) - pc.count_distinct(column).as_py()
    if repeated:
        raise PartyError(
            f"id-column {name!r} of {who} must have distinct values, {repeated} rows "
            "repeat an id"
        )
    ids: list[int] | list[str] = column.to_pylist()
    return ids
