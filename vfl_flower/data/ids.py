"""The ids of a file: as text, with checks of their distinctness and form."""

from __future__ import annotations

import hashlib
import os
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vfl_flower.data.cache import IDS, Shape
from vfl_flower.data.findings import Finding, fault, note, warning
from vfl_flower.data.kinds import decoded, is_text, text_buffers, without_markers
from vfl_flower.data.statistics import packed

MOST_SIGNS = 1000
"""Maximum number of different combinations of signs that are counted in ids."""

USUAL = 0.8
"""Minimum share of the ids that have the usual length or combination of signs."""


class Ids:
    """The ids of the rows, added block by block: integers or text.

    Memory is bounded: only a hash of each id is stored, in an unnamed file.
    """

    BLOCK = 2**20
    """Number of hashes that are compared at a time."""

    def __init__(self, name: str, markers: frozenset[str]) -> None:
        self.name, self.n, self.missing, self.bytes = name, 0, 0, 0
        self._markers, self._typed = markers, True
        self._sha = hashlib.sha256()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        weakref.finalize(self, self._file.close)

    @property
    def digest(self) -> str:
        """The digest that :func:`~vfl_flower.party.party.digest_ids` computes."""
        return self._sha.hexdigest()

    def texts(self, array: Any) -> Any:
        """Return a block of ids as text."""
        array = decoded(array)
        return without_markers(array, self._markers).cast(pa.string())

    def add(self, array: Any) -> None:
        """Add a block of ids."""
        self.n += len(array)
        kind = decoded(array).type
        if not (pa.types.is_integer(kind) or is_text(kind) or pa.types.is_null(kind)):
            self._typed = False
        if not self._typed:
            return
        texts = self.texts(array)
        self.missing += texts.null_count
        if texts.null_count:
            return
        self._sha.update(packed(texts))
        self.bytes += len(text_buffers(texts)[1])
        hashes = np.array([hash(text) for text in texts.to_pylist()], np.int64)
        self._file.write(hashes.tobytes())

    def repeated(self) -> int:
        """Return the number of rows that repeat an id, according to the ids' hashes."""
        if not self._file.seek(0, os.SEEK_END):
            return 0
        hashes = np.memmap(self._file, np.int64)
        hashes.sort()
        starts = range(0, len(hashes), self.BLOCK)
        blocks = (hashes[start : start + self.BLOCK + 1] for start in starts)
        return sum(int(np.count_nonzero(b[1:] == b[:-1])) for b in blocks)

    def faults(self, who: str) -> list[Finding]:
        """Return the faults of the ids, once all have been added."""
        if self.missing:
            rule = f"must have no missing value, {self.missing} found"
        elif not self._typed:
            rule = "must hold integers or text"
        elif repeated := self.repeated():
            rule = f"must have distinct values, got {repeated} repeated"
        else:
            return []
        text = f"id-column {self.name!r} of {who} {rule}"
        return [fault("ids", self.name, text, "id-column")]

    @property
    def shapes(self) -> dict[str, Shape]:
        """Types and shapes of the files that an :class:`IdWriter` writes."""
        data, at = IDS
        return {data: ("|u1", (self.bytes,)), at: ("<i8", (self.n + 1,))}


class IdWriter:
    """Writes ids block by block: their bytes, and the end of each id."""

    def __init__(self, ids: Ids, files: Sequence[Any]) -> None:
        self.ids, self.end = ids, 0
        self._data, self._at = files
        self._at.write(np.zeros(1, dtype="<i8"))

    def write(self, array: Any) -> None:
        """Write a block of ids."""
        at, data = text_buffers(self.ids.texts(array))
        self._data.write(data)
        self._at.write((at[1:] - at[0] + self.end).astype("<i8"))
        self.end += len(data)


class IdForms:
    """Case, signs, digits and lengths of ids, which are added block by block."""

    def __init__(self, ids: Ids) -> None:
        self._ids, self._plain = ids, Ids(ids.name, frozenset())
        self._cases, self._lengths = Counter[str](), Counter[int]()
        self._signs, self._digits = Counter[str](), Counter[int]()

    def add(self, array: Any) -> None:
        """Add a block of ids."""
        texts = pc.drop_null(self._ids.texts(array))
        texts = pc.utf8_trim_whitespace(pc.utf8_normalize(texts, "NFKC"))
        large = pc.match_substring_regex(texts, r"\p{Lu}")
        small = pc.match_substring_regex(texts, r"\p{Ll}")
        mixed = pc.if_else(large, "both", "small")
        case = pc.if_else(small, mixed, pc.if_else(large, "capital", "none"))
        for counter, values in (
            (self._cases, case),
            (self._lengths, pc.utf8_length(texts)),
            (self._signs, pc.replace_substring_regex(texts, r"[\p{L}\p{N}]+", "")),
            (self._digits, pc.count_substring_regex(texts, r"\p{Nd}")),
        ):
            if len(counter) <= MOST_SIGNS:
                for entry in pc.value_counts(values).to_pylist():
                    counter[entry["values"]] += entry["counts"]
        plain = pc.replace_substring_regex(
            pc.utf8_lower(texts), r"(^|\P{Nd})0+(\p{Nd})", r"\1\2"
        )
        self._plain.add(pc.replace_substring_regex(plain, r"[^\p{L}\p{N}]", ""))

    def findings(self) -> Iterator[Finding]:
        """Yield findings, without ids, on forms that may differ between parties."""
        n, name = self._lengths.total(), self._ids.name
        if not n or self._ids.repeated():
            return
        what = f"id-column {name!r}"

        def look(text: str) -> Finding:
            advice = "compare with the other parties, which must write ids identically"
            return warning("id-form", name, f"{text}: {advice}", "id-column")

        capital, small = self._cases["capital"], self._cases["small"]
        if capital and small and self._cases["both"] < capital + small:
            yield look(
                f"{what} has {capital} ids with capital letters only and {small} with "
                "small letters only, but ids that differ in case never match"
            )
        usual = max(self._signs.values())
        if USUAL * n <= usual < n and len(self._signs) <= MOST_SIGNS:
            yield look(
                f"{what} has {n - usual} ids whose blanks or signs differ from those "
                f"of the other {usual} ids"
            )
        length, usual = self._lengths.most_common(1)[0]
        counted = 10 ** (max(self._digits) - 1) <= 2 * n  # like numbers from 1 to n
        if USUAL * n <= usual < n and not counted:
            yield look(
                f"{what} has {n - usual} ids that are not {length} characters long, "
                f"unlike the other {usual} ids, perhaps because leading zeros were lost"
            )
        if alike := self._plain.repeated():
            yield look(
                f"{what} has {alike} ids that differ from another id only in case, "
                "blanks, signs or leading zeros"
            )
        kinds = {
            "capital letters": capital or self._cases["both"],
            "small letters": small or self._cases["both"],
            "digits": self._digits.total() > self._digits[0],
            "blanks or signs": self._signs[""] < n,
        }
        listed = ", ".join(kind for kind, there in kinds.items() if there)
        ends = dict.fromkeys((min(self._lengths), max(self._lengths)))
        text = (
            f"{what} holds ids of {' to '.join(map(str, ends))} characters: {listed}; "
            "all parties must write them identically, including case and leading zeros"
        )
        yield note("id-form", name, text, "id-column")
