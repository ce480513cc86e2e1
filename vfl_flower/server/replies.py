"""The server's information about the parties, and their replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, cast, overload

import numpy as np

from vfl_flower.protocol import contract
from vfl_flower.protocol.errors import PartyFailed
from vfl_flower.protocol.frame import SumRequest
from vfl_flower.protocol.seals import Sealed
from vfl_flower.protocol.steps import R, Step
from vfl_flower.protocol.terms import Kind
from vfl_flower.secure_aggregation.groups import Field, Group, group
from vfl_flower.server.exchange import Opened
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array, Arrays


@dataclass(frozen=True)
class PartyInfo:
    """Information that a party sends about itself in ``hello``."""

    node_id: int  # Flower's number
    name: str  # ``party-name``, or ``party-<index>``
    n_rows: int
    n_columns: int
    n_labels: int  # rows whose label it knows
    keeps: bool = False  # whether it stores local models
    lets: Sequence[Kind] = ()  # the optional kinds that it permits


@shapes_only
@dataclass(frozen=True)
class Replies(Sequence[R]):
    """One reply per party, in party order, and the sums over all parties."""

    values: list[R]  # what each party sent in the clear, as its step declares it
    failure: Callable[[int, str], PartyFailed] = field(repr=False)
    """Returns the error that describes the fault in a party's reply."""
    sums: Arrays = field(default_factory=dict)  # of the values sent under masks
    sealed: dict[str, Sealed] = field(default_factory=dict)
    """Sums over the parties that only one party can unmask."""
    secrets: dict[str, list[Any]] = field(default_factory=dict)
    """Values from each party for every other party, encrypted for the recipient: lists
    for :func:`~vfl_flower.protocol.steps.each`, with None for the sender."""
    clipped: int = 0  # number of values clipped to the bound of their sum

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
        """Return `name` from each reply; raise PartyFailed if a reply lacks it."""
        for j, reply in enumerate(self.values):
            if name not in reply:
                raise self.failure(j, f"its reply lacks {name!r}")
        return [reply[name] for reply in self.values]


@shapes_only
@dataclass(frozen=True)
class Reply(Generic[R]):
    """One party's values: in the clear, masked, and encrypted for other parties."""

    values: R
    hidden: Arrays
    secrets: Mapping[str, Mapping[int, Array]]
    clipped: bytes | None


def checked(
    step: Step[Any, R],
    sender: int,
    count: int,
    sizes: contract.Sizes,
    sums: Mapping[str, SumRequest],
    arrived: Opened,
) -> Reply[R]:
    """Check the reply of one of `count` parties, and return it.

    `sums` are the sums that the server requested. Raises ContractError if the reply
    does not match its step's declaration.
    """
    fields, reply = step.contract.reply, arrived.values
    hidden = {name: reply.pop(name, None) for name in sums}
    secrets = {
        name: _for_others(sender, count, name, declared.leaves, reply)
        for name, declared in fields.items()
        if declared.leaves in contract.ENCRYPTED
    }
    clear = {n: field for n, field in fields.items() if not field.leaves}
    values = contract.structure(clear, reply, sizes)
    for name, wanted in sums.items():
        adding, array = group(wanted.group, wanted.bound, count), hidden[name]
        if not isinstance(array, np.ndarray) or array.dtype != adding.dtype:
            raise contract.ContractError(f"it lacks the masked array {name!r}")
        if wanted.relay is None:  # otherwise it is encrypted
            _check_elements(name, array, adding)
            shaped = contract.declared_as(fields, name)
            if shaped is not None and shaped.array is not None:
                contract.check_shape(name, shaped.array.shape, array.shape, sizes)
            if arrived.clipped is None:
                raise contract.ContractError("it lacks the number of clipped values")
    return Reply(cast(R, values), hidden, secrets, arrived.clipped)


def _for_others(
    sender: int,
    count: int,
    name: str,
    leaves: contract.Leaves | None,
    reply: dict[str, Any],
) -> dict[int, Array]:
    """Pop from a reply the values encrypted for other parties, by recipient."""
    if leaves == contract.PRIVATE:
        keys = {to: key for to, key in contract.family(name, reply) if to < count}
    elif leaves == contract.NEXT:
        keys = {(sender + 1) % count: name}
    else:
        keys = {j: f"{name}.{j}" for j in range(count) if j != sender}
    parts = {to: reply.pop(key) for to, key in keys.items() if key in reply}
    if leaves == contract.SECRET and parts and parts.keys() != keys.keys():
        raise contract.ContractError(f"it must have {name!r} for every other party")
    for part in parts.values():
        if not isinstance(part, np.ndarray) or part.dtype != np.uint8:
            raise contract.ContractError(f"{name!r} must be encrypted")
    return parts


def _check_elements(name: str, array: Array, adding: Group) -> None:
    """Raise ContractError unless an array has only elements of its group."""
    if isinstance(adding, Field) and (array >= adding.p).any():
        raise contract.ContractError(f"{name!r} must hold elements below {adding.p}")
    if not adding.protects and not np.isfinite(array).all():
        raise contract.ContractError(f"{name!r} must hold finite numbers")
