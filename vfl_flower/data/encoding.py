"""The columns of a party as numbers: features, labels and ids, and their encoding.

An *encoding* records how each source column was converted, so that new rows are encoded
like the rows on which a model was trained. It is a dict that JSON can represent::

    {"format": 1, "columns": [{"name": "carrier", "levels": ["AA", "UA"],
                               "fill": [0.25, 0.75], "mean": [], "scale": []}, ...]}

``levels`` is None for numbers. ``fill`` (for a missing value), ``mean`` and ``scale``
have one number for each column that the source column became, in the unit of that
column. They are empty if nothing was filled or scaled; a scale of 0 makes the column 0
in each row. With ``"other": true`` the last level represents all strings that are not
levels; with ``"kind": "date"`` the numbers are days. Strings are compared in their
normal form (NFKC, without blanks at their ends). ``"later"`` is the number of values
missing in training; they stay NaN until the parties know the mean over all parties.
``classes``, beside ``columns``, contains the label strings that became 0, 1 and so on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vfl_flower.data import kinds
from vfl_flower.data.cache import Encoding
from vfl_flower.data.findings import Finding, fault, note, warning
from vfl_flower.data.levels import OTHER
from vfl_flower.data.source import PartySource
from vfl_flower.data.statistics import MOST_DISTINCT, Column, Numbers
from vfl_flower.party.party import PartyError
from vfl_flower.protocol.normal import normal_text, size_fault
from vfl_flower.protocol.terms import LEAST_ROWS
from vfl_flower.typing import Array

MAX_LEVELS = 100
"""Maximum number of levels of a text column by default; with more, some are merged."""

KEPT_LEVELS = 20
"""Number of levels, besides "other", that a text column keeps if it has more than
`MAX_LEVELS`."""

LEAVE_OUT = "leave the column out by setting columns to the other features"
"""Advice for a column that cannot become numbers."""

TEXT = ("text", "levels")
"""Kinds of columns with levels."""

FORMAT = 2
"""Latest format. Encodings with dates or the level "other" have format 2, others 1."""


def fit(
    columns: Mapping[str, Column],
    names: Sequence[str],
    source: PartySource,
    medians: Mapping[str, float],
) -> tuple[Encoding, list[Finding]]:
    """Return the encoding of the features `names`, and the faults found in them.

    `medians` are the medians of numeric columns, if the option ``impute`` needs them.
    """
    entries: list[dict[str, Any]] = []
    faults: list[Finding] = []
    for name in names:
        column, numbers = columns[name], columns[name].numbers
        if column_faults := check_column(column, source):
            faults += column_faults
            continue
        if numbers.gaps and source.filled_later and numbers.known < LEAST_ROWS:
            text = f"column {name!r} of {source.who} must have at least {LEAST_ROWS} "
            text += "values, so that no single row dominates the mean, got "
            faults.append(fault("missing", name, f"{text}{numbers.known}", "columns"))
        entry = _new(name)
        if source.filled_later:
            entry["later"] = numbers.gaps
        if column.kind in TEXT:
            _fit_levels(entry, column, source)
        else:
            if column.kind == "date":
                entry["kind"] = "date"
            fills = {"mean": numbers.mean, "median": medians.get(name)}
            fill = None if source.filled_later else fills.get(source.impute)
            _fit(entry, numbers, fill, source)
        entries.append(entry)
    text = f"{source.who} has missing values, but impute is none, as chosen by the "
    faults += _unfilled(columns, entries, f"{text}party or the strategy")
    later = any("kind" in entry or "other" in entry for entry in entries)
    return {"format": 2 if later else 1, "columns": entries}, faults


def _unfilled(
    columns: Mapping[str, Column], entries: Sequence[dict[str, Any]], text: str
) -> list[Finding]:
    """Return a fault listing the columns with missing values that no option fills."""
    gaps = [
        f"{columns[entry['name']].numbers.gaps} in column {entry['name']!r}"
        for entry in entries
        if columns[entry["name"]].numbers.gaps
        and not entry["fill"]
        and "later" not in entry
    ]
    text += f": {', '.join(gaps)}"
    return [fault("missing", None, text, "impute")] if gaps else []


def check_column(column: Column, source: PartySource) -> list[Finding]:
    """Return the reasons why a column cannot be a feature, possibly none."""
    name, numbers = column.name, column.numbers
    what = f"column {name!r} of {source.who}"

    def refuse(about: str, rule: str, option: str = "columns") -> list[Finding]:
        return [fault(about, name, f"{what} {rule}", option)]

    if column.kind is None:
        return refuse("type", f"must hold numbers or text: {LEAVE_OUT}")
    if column.kind in kinds.REFUSED:
        about = "dates" if column.kind == "otherdate" else "numbers"
        return refuse(about, kinds.REFUSED[column.kind])
    if numbers.infinite:
        return refuse("infinite", _infinite(numbers), "missing")
    if numbers.gaps == numbers.n:
        return refuse("empty", "has no value in any row")
    if numbers.known and (rule := _size_fault(column)):
        return refuse("size", rule)
    fixed = source.levels.get(name)
    if column.kind not in TEXT:
        rule = "must hold text, since levels are set for it"
        return [] if fixed is None else refuse("levels", rule, "levels")
    if fixed is not None:
        return _check_levels(column, fixed, source, what)
    if faults := nearly_numbers(column, what):
        return faults
    distinct, known = len(column.levels), numbers.known
    if column.overflow or (distinct > MAX_LEVELS and 2 * distinct > known):
        got = f"more than {MOST_DISTINCT}" if column.overflow else distinct
        rule = f"must have at most {MAX_LEVELS} distinct strings for one-hot encoding, "
        rule += f"got {got}, which suggests ids or free text: "
        if source.id_column is None and distinct == known:
            rule += f"use the column as id-column, or {LEAVE_OUT}"
            return refuse("levels", rule, "id-column or columns")
        return refuse("levels", f"{rule}{LEAVE_OUT}")
    if not source.one_hot:
        rule = "holds text, but one-hot is off: set levels, write numbers, "
        return refuse("text", f"{rule}or {LEAVE_OUT}", "one-hot")
    return []


def _check_levels(
    column: Column, fixed: Sequence[str], source: PartySource, what: str
) -> list[Finding]:
    """Return the reason why the given levels do not fit a text column, if any."""
    unknown = sorted(column.levels.keys() - set(fixed))
    text, examples = "", list[str]()
    if column.overflow:
        text = f"{what} must have at most {MOST_DISTINCT} distinct strings"
    elif missing := source.markers & set(fixed):
        text = f"the levels of {what} must not mark missing values, but {len(missing)} "
        text, examples = (f"{text}of them do: change missing", sorted(missing))
    elif unknown and OTHER not in fixed:
        rows = sum(column.levels[level] for level in unknown)
        text = f"{what} has {len(unknown)} strings, in {rows} rows, that are not among "
        text += f"its levels: at each party, add them or {OTHER!r} to the levels"
        examples = unknown
    finding = fault("levels", column.name, text, "levels", tuple(examples))
    return [finding] if text else []


def _infinite(numbers: Numbers) -> str:
    return f"must have no infinite value, {numbers.infinite} found"


def _size_fault(column: Column) -> str:
    """Return the reason why a column's numbers are too large or too small, or ""."""
    if column.rounded:
        return "must have no integer above 2^53: its last digits would be lost"
    return size_fault(column.numbers.largest)


def nearly_numbers(
    column: Column, what: str, fewest: int = kinds.FEWEST_NUMBERS
) -> list[Finding]:
    """Return a fault if a text column holds numbers rather than levels.

    This is the case if at least four rows in five contain numbers, and at least
    `FEWEST_NUMBERS` of these numbers are distinct (at least `fewest`, if no number has
    a unit or other text beside it).
    """
    if column.kind != "text":
        return []
    name, (numbers, plain) = column.name, kinds.number_texts(column.levels)
    rows = sum(column.levels[level] for level in numbers)
    least = fewest if plain else kinds.FEWEST_NUMBERS
    if len(numbers) < least or 5 * rows < 4 * sum(column.levels.values()):
        return []
    mixed = sorted(column.levels.keys() - set(numbers))
    if plain:
        rest = sum(column.levels[level] for level in mixed)
        text = f"{what} holds numbers, except for text in {rest} rows ({len(mixed)} "
        text += "distinct strings): list them in missing, or write numbers"
        return [fault("markers", name, text, "missing", tuple(mixed))]
    text = f"{what} holds numbers in {rows} rows, some with a unit, a currency sign "
    text += "or the like: write plain numbers in one unit, or set levels"
    return [fault("numbers", name, text, "levels", tuple(numbers))]


def fit_new(
    columns: Mapping[str, Column], encoding: Encoding, who: str
) -> list[Finding]:
    """Return the faults of new rows, which must be encoded like the training rows."""
    faults: list[Finding] = []
    for entry in encoding["columns"]:
        name = entry["name"]
        kind, numbers = columns[name].kind, columns[name].numbers
        text = _kind_fault(kind, entry, who)
        if text and (numbers.gaps < numbers.n or kind is None):
            faults.append(fault("kind", name, text))
        if numbers.infinite:
            text = f"column {name!r} of {who} {_infinite(numbers)}"
            faults.append(fault("infinite", name, text))
    text = f"{who} has missing values, but impute was none in training"
    return faults + _unfilled(columns, encoding["columns"], text)


def encode(
    block: Mapping[str, Any],
    columns: Mapping[str, Column],
    encoding: Encoding,
    who: str,
) -> Array:
    """Encode a block of Arrow columns, given by name, as features of shape (b, d)."""
    features: list[Array] = []
    for entry in encoding["columns"]:
        levels, column = entry["levels"], columns[entry["name"]]
        if levels is None:
            values = column.numbers_of(block[column.name])
        else:
            values = _codes(column.texts_of(block[column.name]), entry)
        gaps = np.isnan(values)
        # A missing text is missing in each of its 0/1 columns.
        for code in range(1 if levels is None else len(levels)):
            numbers = values if levels is None else (values == code).astype(np.float64)
            features.append(_applied(entry, code, numbers, gaps, who))
    return np.column_stack(features)


def done_with(
    column: Column, entry: dict[str, Any], source: PartySource, fitted: bool
) -> Iterator[Finding]:
    """Yield notes on the encoding of a feature, in training (`fitted`) or later."""
    name, numbers, what = column.name, column.numbers, f"column {column.name!r}"
    if numbers.gaps and (entry["fill"] or "later" in entry):
        fill = f"its {source.impute}" if fitted else "the fill value from training"
        if "later" in entry:
            fill = "the mean over all parties"
        text = f"{what} lacks {numbers.gaps} of {numbers.n} values, which are set to "
        yield note("missing", name, text + fill, "impute")
    if not fitted:
        place = set(map(normal_text, entry["levels"] or ()))
        new = sum(n for level, n in column.levels.items() if level not in place)
        if new and not entry.get("other"):
            text = f"{what} has {new} values that did not occur in training: they "
            yield note("levels", name, f"{text}become 0 in each of its columns")
    elif column.kind in TEXT:
        yield level_note(column, entry, source)
        yield from code_warnings(column, what)
    else:
        if column.kind == "date":
            text = f"{what} holds dates or times, which become days since 1970-01-01"
            yield note("dates", name, text, "columns")
        yield from number_notes(column, what)


def level_note(column: Column, entry: dict[str, Any], source: PartySource) -> Finding:
    """Return a note on the columns of 0 and 1 that a text column becomes."""
    name, count, levels = column.name, len(column.levels), tuple(entry["levels"])
    what = f"column {name!r}"
    if name in source.levels:
        text = f"{what} becomes {len(levels)} columns, one for each of its levels"
        return note("text", name, text, "levels", levels)
    if entry.get("other"):
        text = f"{what} has {count} distinct strings: the {len(levels) - 1} most "
        text += "frequent become columns of 0 and 1, and all others become one column"
        return warning("levels", name, text, "max-levels", levels)
    text = f"{what} holds {count} distinct strings, which become {count} columns "
    return note("text", name, f"{text}of 0 and 1", "one-hot", levels)


def code_warnings(column: Column, what: str) -> Iterator[Finding]:
    """Yield a warning if strings are whole numbers with leading zeros."""
    if kinds.are_codes(column.levels):
        text = f"{what} holds whole numbers with leading zeros, which are read as "
        text += "codes: if they are numbers, write them without these zeros"
        yield warning("codes", column.name, text)


def number_notes(column: Column, what: str) -> Iterator[Finding]:
    """Yield notes on the notation of numbers, in features and labels."""
    name = column.name
    if column.kind == "truth":
        text = f"{what} holds yes and no, or true and false, which become 1 and 0"
        yield note("yes-no", name, text, "", kinds.YES[:1])
    if column.kind == "comma":
        text = f"{what} holds values with decimal commas, which are read as numbers"
        yield note("decimal", name, text, "delimiter")
    if column.kind == "written":
        text = f"{what} holds {column.numbers.known} values in an unusual notation, "
        text += "such as 1_000, 1.5D+02 or a dash for minus, which are read as numbers"
        yield warning("notation", name, text)


def encode_arrays(
    X: Array,
    names: Sequence[str],
    source: PartySource,
    encoding: Encoding | None = None,
) -> Encoding:
    """Scale finite numbers in place, with `encoding` if given; return the encoding."""
    fitted = encoding is None
    if encoding is None:
        encoding = {"format": 1, "columns": [_new(name) for name in names]}
    for entry, column in zip(encoding["columns"], X.T, strict=True):
        if text := _kind_fault("number", entry, source.who):
            raise PartyError(text)
        if fitted:
            numbers = Numbers()
            numbers.add(column)
            fill = numbers.mean if source.impute == "mean" else None
            if source.impute == "median":
                fill = float(np.median(column))
            _fit(entry, numbers, fill, source)
        column[:] = _applied(entry, 0, column, np.isnan(column), source.who)
    return encoding


def check_columns(
    names: Sequence[str], encoding: Encoding, who: str
) -> tuple[list[str], list[str]]:
    """Return an encoding's columns, which must be in `names`, and the other names."""
    if encoding["format"] not in range(1, FORMAT + 1):
        raise PartyError(
            f"the encoding of {who} must have format 1 to {FORMAT}, got "
            f"{encoding['format']}: update vfl-flower"
        )
    features = [entry["name"] for entry in encoding["columns"]]
    for name in features:
        if name not in names:
            raise PartyError(
                f"{who} has no column {name!r}, on which its local model was trained"
            )
    return features, [name for name in names if name not in features]


def columns_of(encoding: Encoding) -> list[str]:
    """Return the names of the encoded columns, such as ``carrier=AA`` for a level."""
    return [
        entry["name"] if level is None else f"{entry['name']}={level}"
        for entry in encoding["columns"]
        for level in ([None] if entry["levels"] is None else entry["levels"])
    ]


def text_kinds(encoding: Encoding) -> dict[str, list[str]]:
    """Return the kinds that each column with levels may have in a file of new rows.

    In the new rows, a column whose levels look like numbers or dates must be text;
    other columns need not contain any of their levels.
    """
    not_text = re.compile(r"\s*([-+.,]*\d|(inf|infinity)\s*$)", re.IGNORECASE)
    rest = [kind for kind in kinds.KINDS if kind != "truth"]
    return {
        entry["name"]: ["text"] if any(map(not_text.match, entry["levels"])) else rest
        for entry in encoding["columns"]
        if entry["levels"] is not None
    }


def _new(name: str) -> dict[str, Any]:
    return {"name": name, "levels": None, "fill": [], "mean": [], "scale": []}


@np.errstate(over="ignore", invalid="ignore")
def _applied(
    entry: dict[str, Any], code: int, numbers: Array, gaps: Array, who: str
) -> Array:
    """Return one column, filled and scaled; zeros if it was constant in training."""
    figures = [entry[key][code] for key in ("fill", "mean", "scale") if entry[key]]
    if "later" in entry:
        numbers = np.where(gaps, np.nan, numbers)
    if entry["fill"]:
        numbers = np.where(gaps, entry["fill"][code], numbers)
    if entry["scale"] and entry["scale"][code] == 0:
        numbers = np.zeros(len(numbers))
    elif entry["scale"]:
        numbers = (numbers - entry["mean"][code]) / entry["scale"][code]
    unfilled = gaps.any() and not entry["fill"]  # refused by the caller
    if not (unfilled or (np.isfinite(figures).all() and np.isfinite(numbers).all())):
        raise PartyError(
            f"column {entry['name']!r} of {who} has values too large to be filled or "
            "scaled"
        )
    return numbers


def _levels(column: Column, source: PartySource) -> tuple[list[str], bool]:
    """Return the sorted levels of a text column, and whether the last is "other"."""
    fixed = source.levels.get(column.name)
    levels = sorted(column.levels if fixed is None else fixed)
    most = source.max_levels or MAX_LEVELS
    if not (len(levels) > most if fixed is None else OTHER in fixed):
        return levels, False
    named = [level for level in levels if level != OTHER]
    if fixed is None:
        named.sort(key=lambda level: -column.levels[level])  # stable: ties stay sorted
        named = sorted(named[: source.max_levels or KEPT_LEVELS])
    return [*named, OTHER], True


def _fit(
    entry: dict[str, Any], numbers: Numbers, fill: float | None, source: PartySource
) -> None:
    """Add an encoded column's fill, mean and scale to its source column's entry."""
    if fill is not None:
        entry["fill"].append(fill)
    if source.standardize:
        mean, variance = numbers.filled(fill)
        entry["mean"].append(mean)
        entry["scale"].append(0.0 if numbers.constant else float(np.sqrt(variance)))


def _fit_levels(entry: dict[str, Any], column: Column, source: PartySource) -> None:
    known = column.numbers.known
    counts = column.levels.copy()
    entry["levels"], other = _levels(column, source)
    if other:
        entry["other"] = True
        named = entry["levels"][:-1]
        counts[OTHER] = known - sum(counts.get(level, 0) for level in named)
    for level in entry["levels"]:
        ones, fill = counts.get(level, 0), None
        if source.impute == "mean" and not source.filled_later:
            fill = ones / known
        elif source.impute == "median":
            fill = 0.5 * ((2 * ones > known) + (2 * ones >= known))
        numbers = Numbers()
        numbers.n, numbers.gaps = column.numbers.n, column.numbers.gaps
        numbers.mean = ones / known
        numbers.squares = ones * (known - ones) / known
        _fit(entry, numbers, fill, source)


def _codes(texts: Any, entry: Mapping[str, Any]) -> Array:
    """Return the index of each string's level; NaN if missing, -1 if not a level."""
    levels = entry["levels"]
    place = {normal_text(level): float(code) for code, level in enumerate(levels)}
    unknown = len(levels) - 1.0 if entry.get("other") else -1.0
    return kinds.each_text(texts, lambda text: place.get(normal_text(text), unknown))


def _kind_fault(kind: str | None, entry: dict[str, Any], who: str) -> str:
    """Return the reason why a column's kind differs from training, or ""."""
    if entry["levels"] is not None:
        rule, fits = "text", kind in TEXT
    elif entry.get("kind") == "date":
        rule, fits = "dates", kind == "date"
    else:
        rule, fits = "numbers", kind in kinds.NUMERIC
    if fits:
        return ""
    return (
        f"column {entry['name']!r} of {who} must hold {rule}, as in the training of "
        "its local model"
    )


class Labels:
    """A column of labels, whose `classes` become 0, 1 and so on.

    `classes` is None if the labels are numbers.

    For new rows, the classes are the training classes in the encoding.
    """

    def __init__(self, column: Column, encoding: Encoding, fitted: bool) -> None:
        self.column, self._fitted = column, fitted
        self.empty = column.kind is not None and column.numbers.gaps == column.numbers.n
        self.classes: list[str] | None = None
        if not fitted:
            self.classes = encoding.get("classes")
        elif column.kind in TEXT and not self.empty:
            self.classes = sorted(column.levels)

    def faults(self, who: str) -> list[Finding]:
        """Return the faults of the labels."""
        column, numbers, fitted = self.column, self.column.numbers, self._fitted
        what = f"label-column {column.name!r} of {who}"
        about, rule = "labels", ""
        if self.empty:
            rule = "has no value in any row" if fitted else ""
        elif column.kind in TEXT and not fitted:
            rule = "must hold numbers, as in training" if self.classes is None else ""
        elif column.kind in TEXT:
            if nearly := nearly_numbers(column, what, fewest=2):
                return nearly
            if column.overflow or not 2 <= len(column.levels) <= MAX_LEVELS:
                got = "more" if column.overflow else len(column.levels)
                rule = f"must hold numbers or 2 to {MAX_LEVELS} classes, got {got}"
            elif numbers.gaps:
                rule = "must hold numbers if labels are missing, since each party "
                rule += "could number classes differently: write classes as numbers"
        elif column.kind not in kinds.NUMERIC:
            rule = "must hold numbers or classes"
        elif self.classes is not None:
            rule = "must hold class names as text, as in training"
        elif numbers.infinite:
            rule = _infinite(numbers)
        elif rule := _size_fault(column):
            about = "size"
        finding = fault(about, column.name, f"{what} {rule}", "label-column")
        return [finding] if rule else []

    def notes(self) -> Iterator[Finding]:
        """Yield notes on missing labels and on the numbers that classes become."""
        numbers, classes = self.column.numbers, self.classes
        name, what = self.column.name, f"label-column {self.column.name!r}"
        if numbers.gaps and numbers.known:
            text = f"{what} lacks {numbers.gaps} of {numbers.n} labels: another party "
            text += "must have these labels, or their rows must be removed"
            yield warning("labels", name, text, "label-column")
        if classes is not None and 2 <= len(classes) <= MAX_LEVELS:
            become = f"0 to {len(classes) - 1} in sorted order"
            if len(classes) == 2:
                become = "0 and 1 in sorted order; the second is the positive class"
            text = f"{what} holds {len(classes)} classes, which become {become}"
            yield note("classes", name, text, "", tuple(classes))

    def numbers(self, array: Any) -> Array:
        """Return a block of labels as float64, NaN where a label is missing."""
        if self.column.kind not in TEXT:
            return self.column.numbers_of(array)
        codes = _codes(self.column.texts_of(array), {"levels": self.classes or []})
        return np.where(codes < 0, np.nan, codes)
