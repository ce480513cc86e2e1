"""What one pass over a column tells of it, in memory that does not grow with rows."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from vfl_flower.data.kinds import (
    KINDS,
    codes_in,
    decoded,
    has_long_digits,
    kind_of_type,
    parse,
    text_buffers,
    without_markers,
)
from vfl_flower.data.tables import Table
from vfl_flower.protocol.normal import normal_text
from vfl_flower.typing import Array

MOST_DISTINCT = 100_000
"""Different texts that are counted; a column of more is an id or free text."""

MOST_TEXT = 2**24
"""Characters of different texts that are counted."""


class Numbers:
    """Moments, extremes and gaps of numbers that come block by block.

    n, gaps, infinite: how many values there are, are missing and are infinite.
    mean, squares: mean of the known values, and the sum of squared distances from it.
    least, most, at_least, at_most: the extremes, and how many values are there.
    whole, rising: whether all are integers, and whether each exceeds the one before.
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
        """Take in a block of float64, NaN where a value is missing."""
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
        """Return mean and population variance where gaps have the value `fill`."""
        if fill is None or not self.gaps:
            return self.mean, self.squares / max(self.known, 1)
        n, gap = self.known + self.gaps, fill - self.mean
        squares = self.squares + gap * gap * self.known * self.gaps / n
        return self.mean + gap * self.gaps / n, squares / n


class Column:
    """One column in a pass: its kind, its numbers or its levels.

    kind: one of :data:`~vfl_flower.data.kinds.KINDS`, or ``levels``; None: no numbers
        and no text.
    numbers: the numbers among its values; for text, its gaps alone.
    spelled: the texts and how often each occurs, for text.
    overflow: whether there are too many texts to count.
    failed: whether a block did not hold the kind, so that another pass is needed.
    rounded: whether an integer is above 2^53, so that its last digits are lost.
    zeros: whether a whole number as text has a leading zero.
    """

    def __init__(
        self,
        name: str,
        kinds: Sequence[str],
        markers: frozenset[str],
        fingerprint: bool,
    ) -> None:
        self.name, self.kinds, self._markers = name, list(kinds), markers
        self.kind: str | None = None
        self.numbers, self.spelled = Numbers(), Counter[str]()
        self.overflow = self.failed = self.zeros = self.rounded = False
        self._size, self._typed, self._first = 0, False, True
        self._hash = hashlib.blake2b(digest_size=16) if fingerprint else None
        self._coded = marker_numbers(markers)

    @property
    def fingerprint(self) -> bytes:
        """Digest of the values, equal for equal columns."""
        return self._hash.digest() if self._hash else b""

    @cached_property
    def levels(self) -> Counter[str]:
        """The texts in their normal form and how often they stand there."""
        counts = Counter[str]()
        for text, count in self.spelled.items():
            counts[normal_text(text)] += count
        return counts

    def add(self, block: Any) -> None:
        """Take in a block of the column, an Arrow array."""
        if self._first:
            self.kind, self._first = kind_of_type(block), False
            self._typed = self.kind != ""
            self.kind = self.kind if self._typed else self.kinds[0]
        if self.kind is None:
            self.numbers.n += len(block)
            return
        block = without_markers(block, self._markers)
        if self.kind == "levels":
            self._add_levels(decoded(block))
        elif self._typed:
            self._count(parse(block, self.kind), block)
        else:
            self._add_text(block)

    def _add_text(self, block: Any) -> None:
        """Take in a block of text as its kind, or drop the kinds that it is not."""
        started = self.numbers.n > self.numbers.gaps
        while self.kind != "text":
            values = parse(block, str(self.kind))
            if values is not None and not self.failed:
                self._count(values, block)
                if self.kind == "number" and self.numbers.whole and not self.zeros:
                    self.zeros = codes_in(block)
            if values is not None:
                return
            self.kinds = self.kinds[1:]
            self.kind = self.kinds[0]
            self.failed = self.failed or started
        if not self.failed:
            self._add_levels(block)

    def _count(self, values: Array | None, block: Any) -> None:
        assert values is not None
        self.numbers.add(without_coded(values, self._coded))
        if self.numbers.known and self.numbers.largest > 2**53:
            self.rounded = self.rounded or has_long_digits(block)
        if self._hash:
            self._hash.update(values.tobytes())

    def _add_levels(self, block: Any) -> None:
        import pyarrow.compute as pc

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


def marker_numbers(markers: frozenset[str]) -> Array:
    """Return the numbers among the texts for a missing value, such as -999."""
    numbers = []
    for text in markers:
        with contextlib.suppress(ValueError):
            numbers.append(float(text))
    return np.array([x for x in numbers if np.isfinite(x)])


def without_coded(values: Array, coded: Array) -> Array:
    """Return numbers with NaN where they stand for a missing value."""
    if not len(coded):
        return values
    return np.where(np.isin(values, coded), np.nan, values)


def packed(texts: Any) -> Any:
    """Return texts, none missing, as the bytes of their lengths and of themselves.

    It is what :func:`~vfl_flower.party.party.digest_ids` digests.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = texts.cast(pa.string())
    lengths = pc.binary_length(texts).cast(pa.string())
    joined = pc.binary_join_element_wise(lengths, texts.fill_null(""), ":")
    return text_buffers(joined)[1]


def survey(
    table: Table,
    names: Sequence[str],
    markers: frozenset[str],
    only: Mapping[str, Sequence[str]],
    look: Callable[[Any], None],
    extra: Sequence[str],
    fingerprint: bool,
) -> dict[str, Column]:
    """Return what passes over the rows reveal of the columns `names`.

    `only` has the kinds that a column of text may be; one not in it may be any. `look`
    gets each batch of the first pass, which also has the columns `extra`.
    `fingerprint`: whether to identify equal columns.
    """
    done: dict[str, Column] = {}
    allowed = [k for k in KINDS if k != "comma" or table.comma_is_decimal]
    waiting = {
        name: [kind for kind in only.get(name, KINDS) if kind in allowed]
        for name in names
    }
    first = True
    while waiting or first:
        columns = {
            name: Column(name, kinds, markers, fingerprint)
            for name, kinds in waiting.items()
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


def medians(blocks: Callable[[], Iterator[Array]], known: Sequence[int]) -> list[float]:
    """Return the medians of columns, exactly, in four passes and little memory.

    A pass counts 16 bits of the numbers' order-preserving codes, those of the two
    middle values alone from the second pass. `blocks` are (b, d), NaN where missing;
    `known` counts the other values of each column.
    """
    d = len(known)
    ranks = np.array([[(n - 1) // 2, n // 2] for n in known])
    prefix = np.zeros((d, 2), dtype=np.uint64)
    for shift in (48, 32, 16, 0):
        counts = np.zeros((d, 2, 2**16), dtype=np.int64)
        for block in blocks():
            for j in range(d):
                bits = np.ascontiguousarray(block[:, j])
                bits = (bits[~np.isnan(bits)] + 0.0).view(np.uint64)
                sign = bits >> np.uint64(63) == 1
                keys = np.where(sign, ~bits, bits | np.uint64(1 << 63))
                digits = (keys >> np.uint64(shift) & np.uint64(0xFFFF)).astype(np.intp)
                for side in (0, 1):
                    # In the first pass, a shift by all 64 bits leaves 0.
                    chosen = keys >> np.uint64(shift + 16) == prefix[j, side]
                    counts[j, side] += np.bincount(digits[chosen], minlength=2**16)
        for j in range(d):
            for side in (0, 1):
                total = np.cumsum(counts[j, side])
                digit = int(np.searchsorted(total, ranks[j, side], side="right"))
                ranks[j, side] -= total[digit - 1] if digit else 0
                prefix[j, side] = prefix[j, side] << np.uint64(16) | np.uint64(digit)
    sign = prefix >> np.uint64(63) == 0
    bits = np.where(sign, ~prefix, prefix & np.uint64(2**63 - 1))
    with np.errstate(over="ignore"):
        return [float(pair.mean()) for pair in bits.view(np.float64)]
