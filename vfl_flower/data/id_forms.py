"""How the ids of a file are written, which other parties must write alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from vfl_flower.data.encoding import Ids
from vfl_flower.data.findings import Finding

MOST_SIGNS = 1000
"""Different signs of ids beyond which they are no form."""

USUAL = 0.8
"""Share of ids from which a length or signs are the usual ones."""


class IdForms:
    """Case, signs, digits and lengths of ids, which come block by block."""

    def __init__(self, ids: Ids) -> None:
        self._ids, self._plain = ids, Ids(ids.name, frozenset())
        self._cases, self._lengths = Counter[str](), Counter[int]()
        self._signs, self._digits = Counter[str](), Counter[int]()

    def add(self, array: Any) -> None:
        """Take in a block of ids."""
        import pyarrow.compute as pc

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
        """Yield what other parties may write differently, without an id."""
        n, name = self._lengths.total(), self._ids.name
        if not n or self._ids.repeated():
            return
        what = f"id-column {name!r}"

        def look(text: str) -> Finding:
            advice = "compare with the other parties, whose ids must be written alike"
            return Finding("warning", "id-form", name, f"{text}: {advice}", "id-column")

        capital, small = self._cases["capital"], self._cases["small"]
        if capital and small and self._cases["both"] < capital + small:
            yield look(
                f"{what} has {capital} ids with capital letters alone and {small} with "
                "small ones, which count as different"
            )
        usual = max(self._signs.values())
        if USUAL * n <= usual < n and len(self._signs) <= MOST_SIGNS:
            yield look(
                f"{what} has {n - usual} ids with other blanks or signs than the other "
                f"{usual} have"
            )
        length, usual = self._lengths.most_common(1)[0]
        counted = 10 ** (max(self._digits) - 1) <= 2 * n  # as numbers from 1 to n are
        if USUAL * n <= usual < n and not counted:
            yield look(
                f"{what} has {n - usual} ids that have not {length} characters, as the "
                f"other {usual} have, which happens where leading zeros were lost"
            )
        if alike := self._plain.repeated():
            yield look(
                f"{what} has {alike} ids that differ from another one in case, blanks, "
                "signs or leading zeros alone"
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
            "they must be written alike at all parties, case and leading zeros included"
        )
        yield Finding("note", "id-form", name, text, "id-column")
