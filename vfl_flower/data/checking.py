"""Check a party file before a run: all findings at once, without data values."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from vfl_flower.data import encoding, party_file
from vfl_flower.data.conversion import Survey
from vfl_flower.data.findings import Checked, Finding, fault, note, warning
from vfl_flower.data.kinds import NUMERIC, number_texts
from vfl_flower.data.source import PartySource
from vfl_flower.data.statistics import Column
from vfl_flower.party.party import PartyError

HEAVY = 30.0
"""Kurtosis above which a column has heavy tails; a Gaussian has 3, an exponential 9."""

APART = 1000.0
"""Minimum ratio of standard deviations at which columns count as differing in scale."""

FEW_ROWS = 20
"""Minimum number of rows for findings about the distribution of values."""

LEAST_OF_LEVEL = 5
"""If a column's most frequent string occurs in fewer rows than this, its strings are
treated as ids, not as levels to share."""

CODES = frozenset(sign * code for sign in (1, -1) for code in (99, 999, 9999, 99999))
"""Numbers that often mark a missing value if they are extremes of the column."""

_ID = re.compile(
    r"(^|[_\W])(id|key|uuid|no|nr|number|index)$|[a-z]I[dD]$", re.IGNORECASE
)


def check(source: PartySource) -> Checked:
    """Check a party's whole file; report its faults and how columns are converted.

    Only the findings' examples contain values of the data.
    """
    try:
        file = party_file(source)
        unnamed = replace(file.source, name=None, index=None)
        file = replace(file, source=unnamed, folder=())
        stamp = file.stamp()
        survey = Survey(file, checking=True)
        file.check_unchanged(stamp)
    except PartyError as error:
        # A reader's error is reported alone: nothing else is known about the file.
        about = "header" if "header" in str(error) else "file"
        return Checked(0, 0, [fault(about, None, str(error))], source)
    findings = [*survey.faults, *_findings(survey, source)]
    findings.sort(key=lambda finding: ("error", "warning", "note").index(finding.level))
    columns = len(encoding.columns_of(survey.encoding))
    return Checked(survey.rows, columns, findings, source)


def _findings(survey: Survey, source: PartySource) -> Iterator[Finding]:
    """Yield warnings and notes; the faults are known already."""
    features = [survey.columns[name] for name in survey.plan.features]
    yield from survey.table.notes
    entries = {entry["name"]: entry for entry in survey.encoding["columns"]}
    for column in features:
        if column.name in entries:
            yield from _of_column(column, entries[column.name], source)
    if source.rows:
        yield from _to_share(features, source)
    if survey.id_forms is not None:
        yield from survey.id_forms.findings()
    yield from _duplicates(features)
    yield from _scales(features, source)
    if survey.empty:
        text = f"{survey.empty} rows have no value in any feature: remove them"
        yield warning("rows", None, text)
    for name in survey.plan.wanted:
        read = survey.columns.get(name)  # ids have none
        if name in survey.table.categories and read and read.kind != "levels":
            text = f"column {name!r} holds categories that are read as numbers or "
            text += "dates: if they are classes, write them as text"
            yield warning("categories", name, text)
    if survey.labels is not None:
        yield from _of_labels(survey.labels)
    elif source.label_column is None:
        for column in features:
            if column.name.lower() in ("y", "label", "target", "class", "outcome"):
                text = f"column {column.name!r} is a feature, but is named like a label"
                yield warning("label", column.name, text, "label-column")


def _of_column(
    column: Column, entry: dict[str, Any], source: PartySource
) -> Iterator[Finding]:
    name, numbers, what = column.name, column.numbers, f"column {column.name!r}"
    done = list(encoding.done_with(column, entry, source, fitted=True))
    if column.kind in encoding.TEXT:
        doubt = _doubt_levels(column, entry, source)
        of_levels = ("text", "levels")
        yield from (doubt if doubt and f.about in of_levels else f for f in done)
        yield from _of_spelling(column, what)
        return
    yield from done
    if numbers.constant:
        text = f"{what} is constant and adds no information: leave it out"
        yield warning("constant", name, text, "columns", (str(numbers.least),))
        return
    if numbers.known < FEW_ROWS or column.kind == "truth":
        return
    # Dates naturally increase, and only integers number rows.
    steps = numbers.most - numbers.least
    numbered = numbers.rising and steps == numbers.known - 1
    if column.kind == "number" and numbers.whole:
        named = bool(_ID.search(name)) and steps >= numbers.known - 1
        if numbered or named:
            text = f"{what} looks like an id: set it as id-column, or leave it out"
            yield warning("id", name, text, "id-column or columns")
            return
    yield from _of_extremes(column, what)


def _of_extremes(column: Column, what: str) -> Iterator[Finding]:
    """Yield warnings about suspicious extremes, in features and labels."""
    name, numbers = column.name, column.numbers
    ends = [(numbers.least, numbers.at_least), (numbers.most, numbers.at_most)]
    for end, times in ends:
        if end in CODES and times >= 2 and column.kind == "number":
            text = f"{what} has, in {times} rows, an extreme value that often marks "
            text += "a missing value: list this value in missing"
            yield warning("coded", name, text, "missing", (f"{end:g}",))
            return
    if column.kind != "date" and numbers.kurtosis() > HEAVY:
        text = f"{what} has heavy tails (kurtosis above {HEAVY:g}): use its logarithm"
        if numbers.at_least + numbers.at_most == numbers.known:
            rarer = min(numbers.at_least, numbers.at_most)
            text = f"{what} has only two values, and one occurs in {rarer} of "
            text += f"{numbers.known} rows: leave the column out, or add such rows"
        examples = (f"{numbers.least:g}", f"{numbers.most:g}")
        yield warning("tails", name, text, "columns", examples)


def _to_share(features: list[Column], source: PartySource) -> Iterator[Finding]:
    """Yield the text columns on whose levels parties that hold rows must agree."""
    names = [
        column.name
        for column in features
        if column.kind in encoding.TEXT
        and column.name not in source.levels
        and not _like_ids(column)
    ]
    if names:
        text = f"the levels of {', '.join(map(repr, names))} must be the same at all "
        text += "parties that hold rows: list them in a file that all parties share"
        yield note("share", None, text, "levels")


def _like_ids(column: Column) -> bool:
    """Return whether a text column looks like ids or free text, not like levels."""
    known = column.numbers.known
    distinct = len(column.levels)
    if column.overflow or distinct == known > 1:
        return True
    if _ID.search(column.name) and known < FEW_ROWS * distinct:
        return True
    if known < FEW_ROWS:
        return False
    return 2 * distinct > known or max(column.levels.values()) < LEAST_OF_LEVEL


def _doubt_levels(
    column: Column, entry: dict[str, Any], source: PartySource
) -> Finding | None:
    """Return a warning that replaces the usual note if strings should not be levels."""
    name, count, what = column.name, len(column.levels), f"column {column.name!r}"
    examples = tuple(entry["levels"])
    if count == 1:
        text = f"{what} is constant and adds no information: leave it out"
        return warning("constant", name, text, "columns", examples)
    if (numbers := number_texts(column.levels)) and len(numbers[0]) == count:
        text = f"{what} holds {count} different numbers as text: write plain numbers"
        return warning("numbers", name, text, "", examples)
    if name in source.levels or entry.get("other"):
        return None
    if count > FEW_ROWS and 2 * count > column.numbers.known:
        text = f"{what} has {count} strings resembling ids or free text: leave it out"
        return warning("levels", name, text, "columns", examples)
    return None


def _of_spelling(column: Column, what: str) -> Iterator[Finding]:
    """Yield warnings about strings that are probably spellings of the same value."""
    name = column.name
    if count := len(column.spelled) - len(column.levels):
        text = f"{what} has {count} strings that are read as another string: they "
        text += "differ from it only in blanks at the ends or in Unicode form"
        yield warning("spelling", name, text)
    folded: dict[str, list[str]] = defaultdict(list)
    for level in column.levels:
        seen = "".join(s for s in level if unicodedata.category(s) != "Cf")
        folded[" ".join(seen.casefold().split())].append(level)
    alike = sorted(x for group in folded.values() if len(group) > 1 for x in group)
    if alike:
        text = f"{what} has {len(alike)} strings that differ from another one only in "
        text += "case, blanks or invisible characters: write them in the same way"
        yield warning("spelling", name, text, "", tuple(alike))


def _of_labels(labels: encoding.Labels) -> Iterator[Finding]:
    column, classes = labels.column, labels.classes
    name, numbers, what = column.name, column.numbers, f"label-column {column.name!r}"
    yield from labels.notes()
    if classes is not None and 2 <= len(classes) <= encoding.MAX_LEVELS:
        yield from encoding.code_warnings(column, what)
        yield from _of_spelling(column, what)
    if (numbers.known and numbers.constant) or (classes and len(classes) == 1):
        text = f"{what} is constant"
        yield warning("constant", name, text, "label-column")
    if column.kind in NUMERIC:
        yield from encoding.number_notes(column, what)
        enough = numbers.known >= FEW_ROWS and not numbers.constant
        if enough and column.kind != "truth":
            yield from _of_extremes(column, what)


def _duplicates(features: list[Column]) -> Iterator[Finding]:
    groups: dict[tuple[bytes, bool], list[str]] = defaultdict(list)
    for column in features:
        constant = column.numbers.constant or len(column.levels) == 1
        if column.kind and not constant and column.numbers.n > column.numbers.gaps:
            groups[column.fingerprint, column.kind in encoding.TEXT].append(column.name)
    for first, *copies in groups.values():
        for name in copies:
            text = f"column {name!r} equals column {first!r}: leave one of them out"
            yield warning("duplicate", name, text, "columns")


def _scales(features: list[Column], source: PartySource) -> Iterator[Finding]:
    if source.standardize:
        return
    spread = {}
    for column in features:
        numeric = column.kind in (*NUMERIC, "date") and column.kind != "truth"
        if numeric and column.numbers.known > 1:
            scale = float(np.sqrt(column.numbers.filled(None)[1]))
            if 0 < scale < np.inf:
                spread[column.name] = scale
    if len(spread) < 2:
        return
    low, high = min(spread, key=spread.__getitem__), max(spread, key=spread.__getitem__)
    if spread[high] >= APART * spread[low]:
        orders = int(np.log10(spread[high] / spread[low]))
        text = f"the scales of columns differ by {orders} orders of magnitude, from "
        text += f"{low!r} to {high!r}: "
        advice, option = "set standardize=true if parties hold columns", "standardize"
        if source.rows:
            advice = "scale them alike at all parties, with the strategy's settings"
            option = ""
        yield warning("scales", high, text + advice, option)
