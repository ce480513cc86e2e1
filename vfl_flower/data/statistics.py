"""Statistics of a column of any length, from one pass and with bounded memory."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vfl_flower.data import kinds
from vfl_flower.data.tables import Table
from vfl_flower.party.party import PartyError
from vfl_flower.protocol.normal import normal_text
from vfl_flower.typing import Array

MOST_DISTINCT = 100_000
"""Maximum number of counted strings; more are taken to be ids or free text."""

MOST_TEXT = 2**24
"""Maximum total length, in characters, of the strings that are counted."""

MEDIANS = 16
"""Number of columns whose medians are computed in one pass, each from its own file."""


class Numbers:
    """Moments, extremes and missing-value count of numbers that arrive in blocks.

    n, gaps, infinite: number of values, of missing values and of infinite values.
    mean, squares: mean of the known values, and the sum of squared distances from it.
    least, most, at_least, at_most: the extremes, and how often each occurs.
    whole, rising: whether all are integers, and whether each exceeds its predecessor.
    """

    def __init__(self) -> None:
        self.n = self.gaps = self.infinite = self.at_least = self.at_most = 0
        self.mean = self.squares = 0.0
        self.least, self.most = np.inf, -np.inf
        self.whole = self.rising = True
        self._powers = np.zeros(5)
        self._frame: tuple[float, float] | None = None

    @property
    def known(self) -> int:
        """Number of finite values."""
        return self.n - self.gaps - self.infinite

    @property
    def largest(self) -> float:
        """The largest absolute value."""
        return max(-self.least, self.most)

    @property
    def constant(self) -> bool:
        """Whether all known values are equal."""
        return self.least == self.most

    # Squares of values above about 1e154 are infinite, and the encoding refuses them.
    @np.errstate(over="ignore", invalid="ignore")
    def add(self, values: Array) -> None:
        """Add a block of float64 values, NaN where a value is missing."""
        known = values[np.isfinite(values)]
        gaps = int(np.isnan(values).sum())
        self.n += len(values)
        self.gaps += gaps
        self.infinite += len(values) - gaps - len(known)
        if not len(known):
            return
        before, m = self.known - len(known), len(known)
        mean = float(known.mean())
        squares = float(((known - mean) ** 2).sum())
        if before:
            gap = mean - self.mean
            self.squares += squares + gap * gap * before * m / (before + m)
            self.mean += gap * m / (before + m)
        else:
            self.mean, self.squares = mean, squares
        least = min(float(known.min()), self.least)
        most = max(float(known.max()), self.most)
        if self.rising:
            self.rising = bool((np.diff(known) > 0).all()) and known[0] > self.most
        self.at_least *= least == self.least
        self.at_least += int(np.count_nonzero(known == least))
        self.at_most *= most == self.most
        self.at_most += int(np.count_nonzero(known == most))
        self.least, self.most = least, most
        self.whole = self.whole and bool((known == np.floor(known)).all())
        if self._frame is None:
            self._frame = (mean, float(known.std()) or 1.0)
        z = (known - self._frame[0]) / self._frame[1]
        self._powers += [(z**k).sum() for k in range(5)]

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def kurtosis(self) -> float:
        """Return the fourth moment over the square of the second: 3 for a Gaussian."""
        zeroth, a, b, c, d = self._powers / max(self._powers[0], 1.0)
        if not zeroth or (variance := b - a * a) <= 0:
            return 0.0
        return float((d - 4 * a * c + 6 * a * a * b - 3 * a**4) / variance**2)

    def filled(self, fill: float | None) -> tuple[float, float]:
        """Return the mean and population variance with `fill` for missing values."""
        if fill is None or not self.gaps:
            return self.mean, self.squares / max(self.known, 1)
        n, gap = self.known + self.gaps, fill - self.mean
        squares = self.squares + gap * gap * self.known * self.gaps / n
        return self.mean + gap * self.gaps / n, squares / n


class Column:
    """One column during a pass: its kind, and its numbers or its levels.

    kind: one of :data:`~vfl_flower.data.kinds.KINDS`, or ``levels``; None if the values
        are neither numbers nor text.
    numbers: statistics of the numbers; for text, only the count of missing values.
    spelled: for text, each string and how often it occurs.
    overflow: whether there are too many strings to count.
    failed: whether a block is not of this kind, so that another pass is needed.
    rounded: whether an integer is above 2^53, so that its last digits are lost.
    zeros: whether a whole number, written as text, has a leading zero.
    """

    def __init__(
        self,
        name: str,
        possible: Sequence[str],
        markers: frozenset[str],
        fingerprint: bool,
    ) -> None:
        self.name, self.kinds, self._markers = name, list(possible), markers
        self.kind: str | None = None
        self.numbers, self.spelled = Numbers(), Counter[str]()
        self.overflow = self.failed = self.zeros = self.rounded = False
        self._size = 0
        self._hash = hashlib.blake2b(digest_size=16) if fingerprint else None
        self._coded = _marker_numbers(markers)

    @property
    def fingerprint(self) -> bytes:
        """Digest of the values, equal for equal columns."""
        return self._hash.digest() if self._hash else b""

    @cached_property
    def levels(self) -> Counter[str]:
        """The strings in their normal form, and how often each occurs."""
        counts = Counter[str]()
        for text, count in self.spelled.items():
            counts[normal_text(text)] += count
        return counts

    def add(self, block: Any) -> None:
        """Add a block of the column, an Arrow array."""
        kind = kinds.kind_of_type(block)
        if kind is None:
            self.numbers.n += len(block)
        elif kind == "":
            self._add_text(kinds.without_markers(block, self._markers))
        else:
            self.kind = kind
            if kind == "levels":
                self._add_levels(kinds.decoded(block))
            else:
                self._count(kinds.parse(block, kind), block)

    def _add_text(self, block: Any) -> None:
        """Add a block of text, after dropping the kinds that do not fit it."""
        started, values = self.numbers.n > self.numbers.gaps, None
        while (kind := self.kinds[0]) != "text":
            values = kinds.parse(block, kind)
            if values is not None:
                break
            self.kinds = self.kinds[1:]
            self.failed = self.failed or started
        self.kind = kind
        if self.failed:
            return
        if kind == "text":
            self._add_levels(block)
        else:
            self._count(values, block)
            if kind == "number" and self.numbers.whole and not self.zeros:
                self.zeros = kinds.codes_in(block)

    def _count(self, values: Array | None, block: Any) -> None:
        assert values is not None
        self.numbers.add(self._without_coded(values))
        if self.numbers.known and self.numbers.largest > 2**53:
            self.rounded = self.rounded or kinds.has_long_digits(block)
        if self._hash:
            self._hash.update(values.tobytes())

    def _add_levels(self, block: Any) -> None:
        self.numbers.n += len(block)
        self.numbers.gaps += block.null_count
        if self._hash:
            self._hash.update(
                packed(block.fill_null("") if self.kind == "text" else block)
            )
        if self.overflow:
            return
        for pair in pc.value_counts(block.drop_null()):
            level = pair["values"].as_py()
            if level not in self.spelled:
                self._size += len(level)
            self.spelled[level] += pair["counts"].as_py()
        if len(self.spelled) > MOST_DISTINCT or self._size > MOST_TEXT:
            self.overflow, self.spelled = True, Counter()

    def texts_of(self, block: Any) -> Any:
        """Return a block of a text column, with nulls for missing values."""
        return kinds.decoded(kinds.without_markers(block, self._markers))

    def numbers_of(self, block: Any) -> Array:
        """Return a block of a non-text column as numbers, NaN where missing."""
        if self.numbers.gaps == self.numbers.n:
            return np.full(len(block), np.nan)
        values = kinds.parse(
            kinds.without_markers(block, self._markers), str(self.kind)
        )
        if values is None:
            raise PartyError("the data file changed while it was being read")
        return self._without_coded(values)

    def _without_coded(self, values: Array) -> Array:
        """Return numbers with NaN in place of codes for a missing value."""
        if not len(self._coded):
            return values
        return np.where(np.isin(values, self._coded), np.nan, values)


def _marker_numbers(markers: frozenset[str]) -> Array:
    """Return the numbers, such as -999, among the markers of missing values."""
    numbers = []
    for text in markers:
        with contextlib.suppress(ValueError):
            numbers.append(float(text))
    return np.array([x for x in numbers if np.isfinite(x)])


def packed(texts: Any) -> Any:
    """Return texts, none missing, as bytes: each text is preceded by its length.

    :func:`~vfl_flower.party.party.digest_ids` digests the same bytes.
    """
    texts = texts.cast(pa.string())
    lengths = pc.binary_length(texts).cast(pa.string())
    joined = pc.binary_join_element_wise(lengths, texts.fill_null(""), ":")
    return kinds.text_buffers(joined)[1]


def survey(
    table: Table,
    names: Sequence[str],
    markers: frozenset[str],
    only: Mapping[str, Sequence[str]],
    look: Callable[[Any], None],
    extra: Sequence[str],
    fingerprint: bool,
) -> dict[str, Column]:
    """Return the statistics of the columns `names`, from passes over the rows.

    `only` maps a text column to the kinds that it may have; other columns may have any
    kind. `look` is called with each batch of the first pass, which also has the columns
    `extra`. `fingerprint`: whether to identify equal columns.
    """
    done: dict[str, Column] = {}
    allowed = [k for k in kinds.KINDS if k != "comma" or table.comma_is_decimal]
    waiting = {
        name: [kind for kind in only.get(name, kinds.KINDS) if kind in allowed]
        for name in names
    }
    first = True
    while waiting or first:
        columns = {
            name: Column(name, possible, markers, fingerprint)
            for name, possible in waiting.items()
        }
        wanted = list(dict.fromkeys([*columns, *(extra if first else ())]))
        for batch in table.read(wanted):
            block = dict(zip(wanted, batch.columns, strict=True))
            for name, column in columns.items():
                column.add(block[name])
            if first:
                look(batch)
        for column in columns.values():
            if column.zeros and column.numbers.whole and column.numbers.least >= 0:
                column.failed, column.kinds = True, ["text"]
        waiting = {c.name: c.kinds for c in columns.values() if c.failed}
        done |= {name: c for name, c in columns.items() if not c.failed}
        first = False
    return done


@np.errstate(over="ignore", invalid="ignore")
def medians(table: Table, columns: Sequence[Column]) -> dict[str, float]:
    """Return the medians of numeric columns, each of which has at least one value.

    Memory is bounded: the values are partitioned in unnamed temporary files.
    """
    middles: dict[str, float] = {}
    for start in range(0, len(columns), MEDIANS):
        group = columns[start : start + MEDIANS]
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in group]
            for batch in table.read([column.name for column in group]):
                for column, file in zip(group, files, strict=True):
                    values = column.numbers_of(batch.column(column.name))
                    file.write(values[~np.isnan(values)].tobytes())
            for column, file in zip(group, files, strict=True):
                file.flush()
                values = np.memmap(file, np.float64)
                middle = float(np.median(values, overwrite_input=True))
                middles[column.name] = middle + 0.0  # the median of zeros may be -0
    return middles
