"""Columns that a party declares if parties hold different rows, and their order.

In ``hello``, the party sends the digest of each column's name, the column's kind, and a
digest of the levels of text columns. It sends the names only if its consent allows it.
If the column order differs between parties, the server sends all parties the first
party's order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal, TypedDict

import numpy as np

from vfl_flower.party.party import Party, digest_ids
from vfl_flower.protocol.errors import PartyError
from vfl_flower.protocol.names import MOST_OF_TEXT, Text, printable
from vfl_flower.protocol.settings import Natural
from vfl_flower.rows import Rows

ColumnKind = Literal["number", "date", "text"]
"""Kind of a column; yes/no columns count as numbers."""


class Declared(TypedDict):
    """A party's declaration of its columns."""

    columns: list[Text]  # digests of the names, in file order; empty without names
    names: list[Text]  # if the party's consent allows names to leave; otherwise empty
    kinds: list[ColumnKind]
    widths: list[Natural]  # columns of X per file column: one, or one per text level
    levels_digest: Text  # SHA-256 of the text columns' levels; "" without any
    gaps: bool  # whether a value is missing


def declared(party: Party, of_rows: bool = True) -> Declared:
    """Return a party's declaration of its columns; empty unless rows are split."""
    entries = _entries(party) if of_rows else []
    names = [entry["name"] for entry in entries]
    levels = {entry["name"]: entry["levels"] for entry in entries if entry["levels"]}
    texts = [text for name in sorted(levels) for text in ("", name, *levels[name])]
    named = party.consent is None or party.consent.column_names
    return {
        "columns": list(map(column_digest, names)),
        "names": [printable(name)[:MOST_OF_TEXT] for name in names if named],
        "kinds": list(map(_kind, entries)),
        "widths": list(map(_width, entries)),
        "levels_digest": digest_ids(np.array(texts)) if texts else "",
        "gaps": of_rows and party.gaps,
    }


def column_digest(name: str) -> str:
    """Return the digest that represents a column name in messages."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _entries(party: Party) -> list[dict[str, Any]]:
    """Return the columns of a party's file, each with its kind and levels."""
    if party.encoding is not None:
        return list(party.encoding["columns"])
    return [{"name": name, "levels": None} for name in party.columns or ()]


def _width(entry: Mapping[str, Any]) -> int:
    return len(entry["levels"] or [0])


def _kind(entry: Mapping[str, Any]) -> ColumnKind:
    if entry["levels"] is not None:
        return "text"
    return "date" if entry.get("kind") == "date" else "number"


def arrange(party: Party, order: Sequence[str]) -> None:
    """Arrange a party's columns, in place, in the order of the run.

    Columns without names are unchanged. Raises PartyError unless `order` contains
    exactly the digests of the party's column names.
    """
    columns = _entries(party)
    entries = {column_digest(entry["name"]): entry for entry in columns}
    if not entries or list(entries) == list(order):
        return
    if sorted(order) != sorted(entries) or len(entries) != len(columns):
        raise PartyError(
            f"columns must name exactly this party's {len(columns)} columns, each "
            f"once, got {len(order)} names"
        )
    if isinstance(party.X, Rows):
        raise PartyError(
            "this party's rows are not in an array, so its columns must be listed in "
            "the same order as the columns of the first party"
        )
    ends = pairwise(accumulate(map(_width, columns), initial=0))
    ranges = dict(zip(entries, (range(*pair) for pair in ends), strict=True))
    places = [place for column in order for place in ranges[column]]
    known = party.cache.get("arranged")
    if known is None or known[0] is not party.X or known[1] != places:
        known = party.cache["arranged"] = party.X, places, party.X[:, places]
    party.X = known[2]
    if party.columns is not None:
        party.columns = [party.columns[place] for place in places]
    if party.encoding is not None:
        ordered = [entries[column] for column in order]
        party.encoding = party.encoding | {"columns": ordered}
