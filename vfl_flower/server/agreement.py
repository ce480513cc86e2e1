"""Check that parties with different rows have the same columns, by name and kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vfl_flower.party.columns import ColumnKind, Declared, column_digest
from vfl_flower.protocol.errors import FederationError

OTHER_PLACES = 1000
"""Maximum number of columns that a party can exclude from a file without a header."""

SHOWN = 5  # maximum number of column names that an error lists


def how_matched(names: Sequence[str], statements: Sequence[Declared]) -> str:
    """Describe how columns were matched; without a header, the names are x0, x1, ..."""
    most = max(len(said["columns"]) for said in statements) + OTHER_PLACES
    places = {column_digest(f"x{place}") for place in range(most)}
    pairs = zip(names, statements, strict=True)
    nameless = [name for name, said in pairs if places.issuperset(said["columns"])]
    if nameless and len(names) > 1:
        return (
            "columns are matched by position, which nobody can verify, because the "
            f"columns have no names at {', '.join(nameless)}"
        )
    return "column names are the same"


def agree(
    names: Sequence[str], statements: Sequence[Declared], wanted: Sequence[str] = ()
) -> list[str] | None:
    """Return the column order that all must use, or None if all use it already.

    The order is `wanted`, the order of a trained model, or by default the first party's
    order. A party without column names is assumed to have the same columns in this
    order. Raises FederationError if columns differ in name, kind or levels. The error
    names the parties, and refers to columns by a name that a party has sent or by
    position.
    """
    named: list[tuple[str, Declared, dict[str, ColumnKind]]] = []
    shown: dict[str, str] = {}
    for name, said in zip(names, statements, strict=True):
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
                f"{len(said['columns'])} columns but {len(held)} different names"
            )
    for name, said, held in rest:
        lacks = [column for column in kinds if column not in held]
        more = [column for column in held if column not in kinds]
        parts = [f"lacks {listed(first, before, lacks)}"] if lacks else []
        parts += [f"also has {listed(name, said, more)}"] if more else []
        if parts:
            raise FederationError(
                f"all parties must hold the same columns: {name!r} "
                f"{' and '.join(parts)}, unlike {first!r}{_counted(shown)}"
            )
        if differing := [column for column in kinds if held[column] != kinds[column]]:
            kind, wanted_kind = held[differing[0]], kinds[differing[0]]
            # A party whose only value is "f" reads it as "false", and so as a number.
            hint = ": set 'levels' for it" if "text" in (kind, wanted_kind) else ""
            raise FederationError(
                "a column must be of the same kind at all parties: "
                f"{listed(first, before, differing)} is of kind {kind} at {name!r} and "
                f"{wanted_kind} at {first!r}{hint}{_counted(shown)}"
            )
        if said["levels_digest"] != before["levels_digest"]:
            texts = [column for column in kinds if kinds[column] == "text"]
            raise FederationError(
                "text columns must have the same levels at all parties: levels of "
                f"{listed(first, before, texts)} differ between {first!r} and {name!r};"
                " list the same levels in a file, and set 'levels' to this file in "
                f"each node config{_counted(shown)}"
            )
    order = list(wanted) or before["columns"]
    if set(order) != kinds.keys():
        raise FederationError(
            f"the data must have the {len(order)} training columns, but {first!r} has "
            f"{len(kinds)} columns, or columns with different names"
        )
    alike = all(said["columns"] == order for _, said, _ in named)
    return None if alike else order


def _counted(shown: Mapping[str, str]) -> str:
    """Explain how the message refers to columns without names."""
    if shown:
        return ""
    return (
        " (column 0 is the first column, not counting a party's ids and labels; "
        "'column-names = true' in each consent.toml shows names instead)"
    )
