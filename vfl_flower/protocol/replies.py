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
    """What a party says of itself in ``hello``."""

    node_id: int
    """Flower's number of the node."""
    name: str
    """``party-name``, or ``party-<index>``."""
    n_rows: int
    """The number of its rows."""
    n_columns: int
    """The number of its columns."""
    n_labels: int
    """The number of rows whose label it knows."""
    keeps: bool = False
    """Whether it has a place for its local models."""
    lets: Sequence[Kind] = ()
    """What may leave it of what the run wants without needing it."""


@shapes_only
@dataclass(frozen=True)
class Replies(Sequence[R]):
    """One reply per party, in party order, and the sums over all parties."""

    values: list[R]
    """What each party sent in the clear, as its step declares it."""
    failure: Callable[[int, str], PartyFailed] = field(repr=False)
    """Makes the error that says what is wrong with a party's reply."""
    sums: Arrays = field(default_factory=dict)
    """Sums over parties of what they sent under masks."""
    sealed: dict[str, Sealed] = field(default_factory=dict)
    """Sums over parties that only one party can open."""
    secrets: dict[str, list[Any]] = field(default_factory=dict)
    """What each party has for all others, encrypted for each: an argument of
    :func:`~vfl_flower.protocol.steps.each`. The sender's place has None."""
    clipped: int = 0
    """The number of values that were clipped to the bound of their sum."""

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

        Raises PartyFailed if a party has left it out.
        """
        for j, reply in enumerate(self.values):
            if name not in reply:
                raise self.failure(j, f"its reply lacks {name!r}")
        return [reply[name] for reply in self.values]


def order_of(replies: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Return nodes in the order of their indices, or of names where none has an index.

    `replies` are those to ``hello``, by node. Raises FederationError if the indices, or
    the names, make no order.
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
    """Check that the names of parties differ and that what they share is the same.

    ``"vertical"`` parties share rows; ``"horizontal"`` ones share columns, which
    :func:`~vfl_flower.protocol.columns.agree` compares by name. Raises FederationError,
    which names the party that differs from the first one.
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
