"""How parties that hold different rows agree on their columns: by name and by type.

Each sends in ``hello`` digests of the name and kind of each column, and of the levels
of text columns; the names themselves only if its consent says so. If the order differs,
the server sends all parties that of the first one, which each checks and takes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal, TypedDict

import numpy as np

from vfl_flower.protocol.errors import FederationError, PartyError
from vfl_flower.protocol.names import MOST_OF_TEXT, Text, printable
from vfl_flower.protocol.party import Party, digest_ids
from vfl_flower.protocol.settings import Natural
from vfl_flower.rows import Rows

ColumnKind = Literal["number", "date", "text"]
"""What a column holds: yes and no are numbers."""

OTHER_PLACES = 1000
"""Columns of a file that a party at most leaves out and that still count as places."""

SHOWN = 5  # names of columns that an error lists


class Declared(TypedDict):
    """What a party says of its columns."""

    columns: list[Text]  # digests of names, in the order of its file; empty without
    names: list[Text]  # if the party's consent allows them to leave it; otherwise empty
    kinds: list[ColumnKind]
    widths: list[Natural]  # columns of X that each becomes: text, one for each level
    levels_digest: Text  # SHA-256 of the levels of its text columns; "" without any
    gaps: bool  # whether a value is missing


NO_COLUMNS: Declared = {
    "columns": [],
    "names": [],
    "kinds": [],
    "widths": [],
    "levels_digest": "",
    "gaps": False,
}
"""What a party says where parties hold columns."""


def declared(party: Party) -> Declared:
    """Return what a party says of its columns where parties hold rows."""
    entries = _entries(party)
    names = [entry["name"] for entry in entries]
    levels = {entry["name"]: entry["levels"] for entry in entries if entry["levels"]}
    texts = [text for name in sorted(levels) for text in ("", name, *levels[name])]
    told = party.consent is None or party.consent.column_names
    return {
        "columns": list(map(column_digest, names)),
        "names": [printable(name)[:MOST_OF_TEXT] for name in names if told],
        "kinds": list(map(_kind, entries)),
        "widths": list(map(_width, entries)),
        "levels_digest": digest_ids(np.array(texts)) if texts else "",
        "gaps": party.gaps,
    }


def column_digest(name: str) -> str:
    """Return what stands for the name of a column in messages."""
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


def how_matched(names: Sequence[str], told: Sequence[Declared]) -> str:
    """Say how columns match; names x0, x1, .. are of a file without a header."""
    most = max(len(said["columns"]) for said in told) + OTHER_PLACES
    places = {column_digest(f"x{place}") for place in range(most)}
    pairs = zip(names, told, strict=True)
    nameless = [name for name, said in pairs if places.issuperset(said["columns"])]
    if nameless and len(names) > 1:
        return (
            "columns are matched by position, and nobody can tell whether they are the "
            f"same, since they have no names at {', '.join(nameless)}"
        )
    return "column names are the same"


def arrange(party: Party, order: Sequence[str]) -> None:
    """Put the columns of a party, in place, in the order that the parties agree on.

    Columns without names stay. Raises PartyError if `order` has other digests of names.
    """
    columns = _entries(party)
    entries = {column_digest(entry["name"]): entry for entry in columns}
    if not entries or list(entries) == list(order):
        return
    if sorted(order) != sorted(entries) or len(entries) != len(columns):
        raise PartyError(
            f"columns must name each of the {len(columns)} columns of this party once, "
            f"and no other, got {len(order)} names"
        )
    if isinstance(party.X, Rows):
        raise PartyError(
            "columns of a party whose rows are no array must stand in the order of "
            "the first party's: name them in this order"
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


def agree(
    names: Sequence[str], told: Sequence[Declared], wanted: Sequence[str] = ()
) -> list[str] | None:
    """Return the order of columns that all parties must take; None if they have it.

    The order is `wanted`, that of a trained model, or by default that of the first
    party. A party without column names is taken to have those of the others, in this
    order. Raises FederationError if columns differ in name, kind or levels; the error
    names the parties, and the columns by names that a party has sent, or by positions.
    """
    named: list[tuple[str, Declared, dict[str, ColumnKind]]] = []
    shown: dict[str, str] = {}
    for name, said in zip(names, told, strict=True):
        if columns := said["columns"]:
            named.append((name, said, dict(zip(columns, said["kinds"], strict=True))))
            shown |= dict(zip(columns, map(repr, said["names"]), strict=False))
    if not named:
        return None

    def listed(name: str, said: Declared, columns: Sequence[str]) -> str:
        place = said["columns"].index
        texts = [shown.get(c, f"column {place(c)} of {name!r}") for c in columns]
        more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
        return ", ".join(texts[:SHOWN]) + more

    (first, before, kinds), *rest = named
    for name, said, held in named:
        if len(held) < len(said["columns"]):
            raise FederationError(
                f"the columns of a party must have distinct names: {name!r} has "
                f"{len(said['columns'])} of {len(held)} names"
            )
    for name, said, held in rest:
        lacks = [column for column in kinds if column not in held]
        more = [column for column in held if column not in kinds]
        parts = [f"has no {listed(first, before, lacks)}"] if lacks else []
        parts += [f"has {listed(name, said, more)} besides"] if more else []
        if parts:
            raise FederationError(
                f"all parties must hold the same columns: {name!r} "
                f"{' and '.join(parts)}, unlike {first!r}{_counted(shown)}"
            )
        if differing := [column for column in kinds if held[column] != kinds[column]]:
            kind, wanted_kind = held[differing[0]], kinds[differing[0]]
            # A party whose rows have "f" alone reads it as "false", and so a number.
            hint = ": give 'levels' for it" if "text" in (kind, wanted_kind) else ""
            raise FederationError(
                f"a column must be of one kind at all parties: "
                f"{listed(first, before, differing)} is of kind {kind} at {name!r} and "
                f"{wanted_kind} at {first!r}{hint}{_counted(shown)}"
            )
        if said["levels_digest"] != before["levels_digest"]:
            texts = [column for column in kinds if kinds[column] == "text"]
            raise FederationError(
                "text columns must have the same levels at all parties: those of "
                f"{listed(first, before, texts)} differ between {first!r} and "
                f"{name!r}: name the same levels in a file for 'levels' in each node "
                f"config{_counted(shown)}"
            )
    order = list(wanted) or before["columns"]
    if set(order) != kinds.keys():
        raise FederationError(
            f"the data must have the {len(order)} columns of training: {first!r} has "
            f"{len(kinds)}, or others"
        )
    alike = all(said["columns"] == order for _, said, _ in named)
    return None if alike else order


def _counted(shown: Mapping[str, str]) -> str:
    """Say how columns without a name are meant."""
    if shown:
        return ""
    return (
        " (column 0 is the first of a party's data, without ids and labels; "
        "'column-names = true' in each consent.toml lets names be shown instead)"
    )
