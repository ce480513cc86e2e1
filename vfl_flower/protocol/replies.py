"""What the server knows of the parties, and what they reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from vfl_flower.protocol.consent import Kind
from vfl_flower.protocol.exchange import FederationError, PartyFailed
from vfl_flower.protocol.seals import Sealed
from vfl_flower.protocol.steps import R
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Arrays

_ALIGN = (
    "; where files have other rows, or the same ones in another order, run the "
    "strategy align first, and name its order by alignment"
)
"""What helps where rows are not the same."""


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
    keeps : bool
        Whether it has a place for its parts of models.
    lets : tuple of str
        What may leave it of what the run wants and does not need.
    """

    node_id: int
    name: str
    n_rows: int
    n_columns: int
    n_labels: int
    keeps: bool = False
    lets: tuple[Kind, ...] = ()


@shapes_only
@dataclass(frozen=True)
class Replies(Sequence[R]):
    """One reply per party, in party order, and the sums over all parties.

    Attributes
    ----------
    values : list of dict
        What each party sent in the clear, as its step declares it.
    sums : dict of Array
        Sums over parties of what they sent under masks.
    sealed : dict of Sealed
        Sums over parties that only one party can open.
    secrets : dict of list
        What one party has for all others, encrypted for each: an argument of
        :func:`~vfl_flower.protocol.steps.each`. The sender's place has None.
    clipped : int
        Values that were clipped to the bound of their sum.
    failure : callable
        Makes the error that says what is wrong with a party's reply.
    """

    values: list[R]
    failure: Callable[[int, str], PartyFailed] = field(repr=False)
    sums: Arrays = field(default_factory=dict)
    sealed: dict[str, Sealed] = field(default_factory=dict)
    secrets: dict[str, list[Any]] = field(default_factory=dict)
    clipped: int = 0

    @overload
    def __getitem__(self, index: int) -> R: ...
    @overload
    def __getitem__(self, index: slice) -> list[R]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Return the reply of party `index`."""
        return self.values[index]

    def __len__(self) -> int:
        """Return the number of parties, T."""
        return len(self.values)

    def each(self, name: str) -> list[Any]:
        """Return the value called `name` of each party, in party order.

        Raises
        ------
        PartyFailed
            A party has left it out.
        """
        for j, reply in enumerate(self.values):
            if name not in reply:
                raise self.failure(j, f"its reply lacks {name!r}")
        return [reply[name] for reply in self.values]


def order_of(replies: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Return nodes in the order of their indices, or of names where none has an index.

    Parameters
    ----------
    replies : mapping of int to mapping
        What each node said in ``hello``.

    Raises
    ------
    FederationError
        The indices, or the names, make no order.
    """
    indices = {node: reply["index"] for node, reply in replies.items()}
    if all(index == -1 for index in indices.values()):
        unnamed = [f"node {n}" for n, reply in replies.items() if not reply["name"]]
        if unnamed:
            raise FederationError(
                "each node needs a partition-id or a party-name in its node config, or "
                f"its Party an index or a name, but {', '.join(unnamed)} lacks both"
            )
        return sorted(replies, key=lambda node: str(replies[node]["name"]))
    distinct = len(set(indices.values()) - {-1}) == len(replies)
    if not distinct or max(indices.values()) >= len(replies):
        listed = ", ".join(
            f"{replies[node]['name'] or f'node {node}'!r} has "
            + ("none" if index == -1 else str(index))
            for node, index in sorted(indices.items(), key=lambda item: item[1])
        )
        raise FederationError(
            f"the partition-ids (or indexes) of {len(replies)} parties must be 0 to "
            f"{len(replies) - 1}, each once, but {listed}"
        )
    return sorted(replies, key=lambda node: indices[node])


def check_alike(
    order: list[int],
    names: Mapping[int, str],
    replies: Mapping[int, Mapping[str, Any]],
    partition: str,
) -> None:
    """Raise unless the names of parties differ and what they share is the same.

    Parameters
    ----------
    order : list of int
        Nodes in the order of the run.
    names : mapping of int to str
        What each is called.
    replies : mapping of int to mapping
        What each said in ``hello``.
    partition : {"vertical", "horizontal", "either"}
        Whether parties share rows; or columns, which
        :func:`~vfl_flower.protocol.columns.agree` compares by name; or anything.

    Raises
    ------
    FederationError
        The text names the party that differs from the first one.
    """
    first, *rest = order
    for name in names.values():
        if list(names.values()).count(name) > 1:
            raise FederationError(f"party names must differ, two are {name!r}")
    if partition == "either":
        return
    horizontal = partition == "horizontal"
    amount, size, hint = "number of rows", "n_rows", _ALIGN
    if horizontal:
        amount, size, hint = "columns", "n_columns", ""
    for node in rest:
        if replies[node][size] != replies[first][size]:
            raise FederationError(
                f"all parties must hold the same {amount}: {names[first]!r} has "
                f"{replies[first][size]}, {names[node]!r} has {replies[node][size]}"
                f"{hint}"
            )
    if horizontal:
        return
    with_ids = [node for node in order if replies[node]["ids_digest"]]
    without = [node for node in order if node not in with_ids]
    if with_ids and without:
        raise FederationError(
            f"give ids to all parties or to none: {names[without[0]]!r} has none"
        )
    for node in with_ids[1:]:
        if replies[node]["ids_digest"] != replies[first]["ids_digest"]:
            raise FederationError(
                "all parties must hold the same row ids in the same order: those of "
                f"{names[node]!r} differ from those of {names[first]!r}{_ALIGN}"
            )
