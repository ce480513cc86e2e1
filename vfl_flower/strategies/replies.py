"""What the server knows of the parties, asks of them, and gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from vfl_flower.strategies.exchange import FederationError
from vfl_flower.typing import Array, Arrays


@dataclass(frozen=True)
class PartyInfo:
    """What a party says of itself in ``hello``.

    Attributes
    ----------
    node_id : int
        Flower's number of the node.
    name : str
        ``party-name``, or ``party-<index>``.
    n_rows, n_columns : int
        Size of its data.
    n_labels : int
        Number of rows whose label it knows.
    """

    node_id: int
    name: str
    n_rows: int
    n_columns: int
    n_labels: int


@dataclass(frozen=True)
class Sum:
    """A sum over the parties that the server asks for.

    Attributes
    ----------
    bound : float
        Largest absolute value of a party's entries: it sets the resolution of the
        fixed point. It has no meaning on the circle.
    group : str
        Where to add; default: as the run masks.
    to : int or None
        The party that alone may open the sum; None: the server.
    """

    bound: float = 1.0
    group: str = ""
    to: int | None = None


@dataclass(frozen=True)
class Sealed:
    """A sum that the server passes on and cannot open.

    Give it to :meth:`Parties.ask_each` as a value for party `to`, where the step gets
    the sum itself: real numbers, or on the circle fractions of a turn, shape (size,).

    Attributes
    ----------
    to : int
        The party that can open it.
    parts : tuple of Array
        Elements that add up to the sum when they are opened.
    seals : tuple of str
        What the party needs to know to open each.
    """

    to: int
    parts: tuple[Array, ...] = field(repr=False)
    seals: tuple[str, ...]

    def __add__(self, other: Sealed) -> Sealed:
        """Return the sum of both, for the same party."""
        return Sealed(self.to, self.parts + other.parts, self.seals + other.seals)


@dataclass(frozen=True)
class Replies(Sequence[dict[str, Any]]):
    """One reply a party, in party order, and the sums that only all of them give.

    Attributes
    ----------
    values : list of dict
        What each party sent in the clear.
    sums : dict of Array
        Sums over parties of what they sent under masks.
    sealed : dict of Sealed
        The same, where only a party may learn the sum.
    clipped : int
        Values that were clipped to the bound of their sum.
    """

    values: list[dict[str, Any]]
    sums: Arrays = field(default_factory=dict)
    sealed: dict[str, Sealed] = field(default_factory=dict)
    clipped: int = 0

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Return the reply of party `index`."""
        return self.values[index]

    def __len__(self) -> int:
        """Return the number of parties, T."""
        return len(self.values)

    def each(self, name: str) -> list[Any]:
        """Return the value called `name` of each party, in party order."""
        return [reply[name] for reply in self.values]


def order_of(replies: Mapping[int, Mapping[str, Any]], gaps: bool = False) -> list[int]:
    """Order nodes by the index they gave, or by name where none gave one.

    With `gaps` the indices of others may be missing between theirs.
    """
    given = {node: reply["index"] for node, reply in replies.items()}
    if all(index == -1 for index in given.values()):
        unnamed = sum(not reply["name"] for reply in replies.values())
        if unnamed:
            raise FederationError(
                "each node needs a partition-id or a party-name in its node config, or "
                f"its Party an index or a name: {unnamed} have neither"
            )
        return sorted(replies, key=lambda node: str(replies[node]["name"]))
    if gaps and len(set(given.values()) - {-1}) == len(replies):
        return sorted(replies, key=lambda node: given[node])
    if sorted(given.values()) != list(range(len(replies))):
        raise FederationError(
            f"the partition-ids (or indexes) of {len(replies)} parties must be 0 to "
            f"{len(replies) - 1}, each once, got {sorted(given.values())}"
        )
    return sorted(replies, key=lambda node: given[node])


def check_alike(
    order: list[int],
    names: Mapping[int, str],
    replies: Mapping[int, Mapping[str, Any]],
    partition: str,
) -> None:
    """Raise unless names differ, and what parties share is the same at all."""
    first, *others = order
    for name in names.values():
        if list(names.values()).count(name) > 1:
            raise FederationError(f"party names must differ, two are {name!r}")
    if partition == "horizontal":
        _check_columns(first, others, names, replies)
    else:
        _check_rows(first, others, names, replies)


def _check_columns(
    first: int,
    others: list[int],
    names: Mapping[int, str],
    replies: Mapping[int, Mapping[str, Any]],
) -> None:
    named = [node for node in (first, *others) if replies[node]["columns_digest"]]
    for node in others:
        columns = [replies[n]["n_columns"] for n in (first, node)]
        if columns[0] != columns[1]:
            raise FederationError(
                f"all parties must hold the same columns: {names[first]!r} has "
                f"{columns[0]}, {names[node]!r} has {columns[1]} (a text column "
                "becomes one for each of its levels)"
            )
    for node in named[1:]:
        if replies[node]["columns_digest"] != replies[named[0]]["columns_digest"]:
            raise FederationError(
                "all parties must hold the same columns in the same order: the names "
                f"of {names[node]!r} differ from those of {names[named[0]]!r} (a text "
                "column becomes one for each of its levels)"
            )


def _check_rows(
    first: int,
    others: list[int],
    names: Mapping[int, str],
    replies: Mapping[int, Mapping[str, Any]],
) -> None:
    for node in others:
        rows = [replies[n]["n_rows"] for n in (first, node)]
        if rows[0] != rows[1]:
            raise FederationError(
                f"all parties must hold the same number of rows: {names[first]!r} has "
                f"{rows[0]}, {names[node]!r} has {rows[1]}"
            )
        digests = [replies[n]["ids_digest"] for n in (first, node)]
        if bool(digests[0]) != bool(digests[1]):
            without = names[node] if digests[0] else names[first]
            raise FederationError(
                f"give ids to all parties or to none: {without!r} has none"
            )
        if digests[0] != digests[1]:
            raise FederationError(
                "all parties must hold the same row ids in the same order: those of "
                f"{names[node]!r} differ from those of {names[first]!r}"
            )
