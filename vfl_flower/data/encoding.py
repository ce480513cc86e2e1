"""The columns of a party file as numbers: features, labels, and the digest of ids."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from vfl_flower.clients.base import PartyError, digest_ids
from vfl_flower.config import PartySource
from vfl_flower.typing import Array

logger = logging.getLogger("vfl_flower")

MAX_LEVELS = 100
"""A text column with more levels is refused: it is an id or free text."""


def encode(
    table: Any, names: Sequence[str], source: PartySource, who: str
) -> tuple[Array, list[str]]:
    """Return the features as numbers, none missing, and the names of their columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    levels = {name: _levels(table[name], name, source.one_hot, who) for name in names}
    columns: list[str] = []
    for name, own in levels.items():
        columns += [name] if own is None else [f"{name}={level}" for level in own]
    X = np.empty((table.num_rows, len(columns)))
    missing: dict[str, int] = {}
    k = 0
    for name, own in levels.items():
        if own is None:
            values = table[name].cast(pa.float64(), safe=False).to_numpy()
        else:
            text = _decoded(table[name])
            codes = pc.index_in(text, value_set=pa.array(own, text.type))
            values = codes.cast(pa.float64()).to_numpy()
        gaps = np.isnan(values)
        count = int(gaps.sum())
        if count == len(values):
            raise PartyError(f"column {name!r} of {who} has no value in any row")
        if np.isinf(values).any():
            raise PartyError(
                f"column {name!r} of {who} must have no infinite value, "
                f"{int(np.isinf(values).sum())} found"
            )
        if count:
            missing[name] = count
        # A missing text is missing in each of its 0/1 columns.
        for code in range(1 if own is None else len(own)):
            column = values if own is None else (values == code).astype(np.float64)
            if count and source.impute != "none":
                known = column[~gaps]
                fill = known.mean() if source.impute == "mean" else np.median(known)
                column = np.where(gaps, fill, column)
            X[:, k] = standardized(column) if source.standardize else column
            k += 1
    if missing and source.impute == "none":
        raise PartyError(
            f"{who} has missing values and impute is none: "
            + ", ".join(
                f"{count} in column {name!r}" for name, count in missing.items()
            )
        )
    _tell(levels, missing, source.impute, who)
    return X, columns


def _levels(column: Any, name: str, one_hot: bool, who: str) -> list[Any] | None:
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
    found = pc.unique(column).drop_null()
    if len(found) == 0:
        raise PartyError(f"column {name!r} of {who} has no value in any row")
    if len(found) > MAX_LEVELS:
        raise PartyError(
            f"column {name!r} of {who} must have at most {MAX_LEVELS} different texts "
            f"to be one-hot encoded, got {len(found)}"
        )
    return sorted(found.to_pylist())


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


def _tell(
    levels: dict[str, list[Any] | None], missing: dict[str, int], impute: str, who: str
) -> None:
    """Log what was encoded and filled in; a warning, so that it is seen by default."""
    done = [
        f"text column {name!r} became {len(own)} columns of 0 and 1"
        for name, own in levels.items()
        if own is not None
    ] + [
        f"{count} missing values of column {name!r} became its {impute}"
        for name, count in missing.items()
    ]
    if done:
        logger.warning("%s: %s", who, "; ".join(done))


def labels(column: Any, name: str, who: str) -> Array:
    """Return the labels as float64."""
    import pyarrow as pa

    if not _is_number(column):
        raise PartyError(f"label-column {name!r} of {who} must hold numbers")
    y = column.cast(pa.float64(), safe=False).to_numpy()
    bad = int((~np.isfinite(y)).sum())
    if bad:
        raise PartyError(
            f"label-column {name!r} of {who} must have no missing or infinite value, "
            f"{bad} found"
        )
    return np.array(y)


def digest(column: Any, name: str, who: str) -> str:
    """Return the digest of the ids, after checks."""
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
    return digest_ids(np.array(column.to_pylist(), dtype=object))


def standardized(values: Array) -> Array:
    """Return (values - mean) / standard deviation; zeros where values are constant."""
    spread = values.std()
    if values.min() == values.max() or spread == 0:
        return np.zeros(len(values))
    result: Array = (values - values.mean()) / spread
    return result
