"""The parties of a run as the server sees them: one call is one round trip."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from flwr.serverapp import Grid

from vfl_flower import __version__
from vfl_flower.ledger import Ledger
from vfl_flower.messages import pack
from vfl_flower.secure_aggregation import group, unmask_sum
from vfl_flower.strategies.exchange import (
    FIRST_POLL,
    LAST_POLL,
    POLL_GROWTH,
    Exchange,
    FederationError,
    PartyFailed,
)
from vfl_flower.typing import Array, Arrays, Scalar, Values

log = logging.getLogger("vfl_flower")


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
    has_labels : bool
        Whether it holds the labels.
    """

    node_id: int
    name: str
    n_rows: int
    n_columns: int
    has_labels: bool


@dataclass(frozen=True)
class Replies(Sequence[dict[str, Any]]):
    """One reply a party, in party order, and the sums that only all of them give.

    Attributes
    ----------
    values : list of dict
        What each party sent in the clear.
    sums : dict of Array
        Sums over parties of what they sent under masks.
    clipped : int
        Values that were clipped to the bound of their sum.
    """

    values: list[dict[str, Any]]
    sums: Arrays = field(default_factory=dict)
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


class Parties(Sequence[PartyInfo]):
    """The parties of one run, in order of their index, and the only way to ask them.

    Making it is the first round trip, ``hello``: each party says its name, index, row
    and column count, whether it holds labels, a digest of its row ids, its version,
    and a fresh public key. The keys of all ride on the next message.

    Parameters
    ----------
    grid : Grid
        Flower's grid: a SuperLink's, the simulation's, or the in-process one.
    ledger : Ledger
        Where every message is counted.
    seed : int
        Seed of the run, from which each party derives its streams.
    private_draws : bool
        Let each party add a secret of its own to its streams.
    timeout : float
        Seconds that one round trip may take.
    masking : str
        ``"ring"``: secure sums under pairwise masks; ``"plain"``: none, for tests.
    n_parties : int
        How many parties to wait for; 0: those that are connected, at least two.

    Raises
    ------
    FederationError
        Fewer than two parties, or parties whose index, rows, ids or version differ.
    PartyFailed
        A party cannot load its data, or does not answer in time.
    """

    def __init__(
        self,
        grid: Grid,
        ledger: Ledger,
        *,
        seed: int,
        private_draws: bool = False,
        timeout: float = 3600.0,
        masking: str = "ring",
        n_parties: int = 0,
    ) -> None:
        self.grid, self.ledger = grid, ledger
        self.timeout, self.masking = timeout, masking
        self._exchange = Exchange(grid, ledger, timeout)
        self._frame: dict[str, Scalar] = {
            "session": secrets.randbits(63),
            "seed": seed,
            "private_draws": private_draws,
            "masking": masking,
        }
        self._round = 0
        self._infos: list[PartyInfo] = []
        self._hello(self._wait_for_nodes(n_parties))

    @overload
    def __getitem__(self, index: int) -> PartyInfo: ...
    @overload
    def __getitem__(self, index: slice) -> list[PartyInfo]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Return party `index`."""
        return self._infos[index]

    def __len__(self) -> int:
        """Return the number of parties, T."""
        return len(self._infos)

    @property
    def n_rows(self) -> int:
        """Number of rows, n, which is the same at all parties."""
        return self[0].n_rows

    @property
    def label_holder(self) -> int:
        """Index of the one party that holds the labels.

        Raises
        ------
        FederationError
            No party holds labels, or more than one does.
        """
        holders = [info.name for info in self if info.has_labels]
        if len(holders) != 1:
            raise FederationError(
                "exactly one party must hold the labels, "
                + (f"but {', '.join(holders)} do" if holders else "but none does")
            )
        return next(j for j, info in enumerate(self) if info.has_labels)

    # -- asking ---------------------------------------------------------------------

    def ask(
        self, action: str, *, sums: Mapping[str, float] | None = None, **values: Any
    ) -> Replies:
        """Ask all parties the same, in one round trip.

        Parameters
        ----------
        action : str
            The step.
        sums : mapping of str to float, optional
            For each array that the step gives under masks, a bound on the absolute
            value of a party's entries: it sets the resolution of the fixed point.
        **values : Array or Scalar
            What the step takes by name.

        Returns
        -------
        Replies
            Exactly one a party, in party order, with the sums.

        Raises
        ------
        PartyFailed
            A party refused, failed, sent something else than asked, or did not
            answer in time.
        """
        return self.ask_each(action, [{}] * len(self), sums=sums, **values)

    def ask_each(
        self,
        action: str,
        each: Sequence[Values],
        *,
        sums: Mapping[str, float] | None = None,
        **values: Any,
    ) -> Replies:
        """Ask party j ``values`` and ``each[j]`` in one round trip; see :meth:`ask`."""
        replies = self._ask(action, each, sums or {}, values)
        if replies.clipped:
            log.warning(
                "%d values of %s were clipped to the bound of their sum, which is not "
                "exact",
                replies.clipped,
                action,
            )
        return replies

    def _ask(
        self,
        action: str,
        each: Sequence[Values],
        sums: Mapping[str, float],
        values: Values,
    ) -> Replies:
        if len(each) != len(self):
            raise ValueError(f"each must have {len(self)} entries, got {len(each)}")
        self._round += 1
        clipped = self.ledger.clipped
        frame = self._frame | {
            "round": self._round,
            "parties": len(self),
            **{f"bound.{name}": float(bound) for name, bound in sums.items()},
        }
        self._frame.pop("peers", None)
        contents = [
            pack({**values, **own}, frame | {"index": index})
            for index, own in enumerate(each)
        ]
        nodes = {info.node_id: info.name for info in self}
        replies = self._exchange(action, dict(zip(nodes, contents, strict=True)), nodes)
        result = Replies(replies, clipped=self.ledger.clipped - clipped)
        for name, bound in sums.items():
            result.sums[name] = self._add(action, name, replies, bound)
        return result

    def secure_sum(
        self,
        action: str,
        sums: Mapping[str, float],
        each: Sequence[Values] | None = None,
        **values: Any,
    ) -> Arrays:
        """Return only the sums over the parties, by name; see :meth:`ask_each`."""
        each = [{}] * len(self) if each is None else each
        return self.ask_each(action, each, sums=sums, **values).sums

    def ask_exactly(
        self,
        action: str,
        sums: Mapping[str, float],
        each: Sequence[Values] | None = None,
        **values: Any,
    ) -> Replies:
        """Ask where no bound is known: `sums` has guesses, made wider on clips.

        A first guess is nearly always right; where it clips a value, the step is asked
        again with bounds 2^20 times as large. See :meth:`ask_each`.
        """
        each = [{}] * len(self) if each is None else each
        while (replies := self._ask(action, each, sums, values)).clipped:
            sums = {name: bound * 2.0**20 for name, bound in sums.items()}
        return replies

    def _add(
        self, action: str, name: str, replies: list[dict[str, Any]], bound: float
    ) -> Array:
        sum_group = group(self.masking, bound, len(self))
        addends: list[Array] = []
        for info, reply in zip(self, replies, strict=True):
            addend = reply.pop(name, None)
            if not isinstance(addend, np.ndarray) or addend.dtype != sum_group.dtype:
                raise PartyFailed(
                    info.name, action, f"its reply lacks the masked array {name!r}"
                )
            if addends and addend.shape != addends[0].shape:
                raise PartyFailed(
                    info.name,
                    action,
                    f"{name!r} has shape {addend.shape}, that of {self[0].name!r} has "
                    f"{addends[0].shape}",
                )
            addends.append(addend)
        return unmask_sum(addends, sum_group)

    # -- hello ----------------------------------------------------------------------

    def _wait_for_nodes(self, n_parties: int) -> list[int]:
        wanted, deadline = max(2, n_parties), time.monotonic() + self.timeout
        poll = FIRST_POLL
        while len(nodes := sorted(self.grid.get_node_ids())) < wanted:
            if poll == FIRST_POLL:
                log.info("waiting for %d parties, %d connected", wanted, len(nodes))
            if time.monotonic() > deadline:
                raise FederationError(
                    f"the run needs {wanted} parties, {len(nodes)} connected within "
                    f"{self.timeout:g} s"
                )
            time.sleep(poll)
            poll = min(poll * POLL_GROWTH, LAST_POLL)
        if len(nodes) > n_parties > 0:
            raise FederationError(
                f"the run is for {n_parties} parties, {len(nodes)} are connected (one "
                "that was stopped counts for a minute or two)"
            )
        return nodes

    def _hello(self, nodes: list[int]) -> None:
        unnamed = {node: f"node {node}" for node in nodes}
        content = pack({}, {"session": self._frame["session"]})
        replies = dict(
            zip(
                nodes,
                self._exchange("hello", dict.fromkeys(nodes, content), unnamed),
                strict=True,
            )
        )
        for node, reply in replies.items():
            if (found := reply.get("version")) != __version__:
                name = reply.get("name") or unnamed[node]
                raise FederationError(
                    "all parties must run the same version of vfl_flower as the "
                    f"server, {__version__}: {name!r} has {found}"
                )
        announced = max(reply["n_parties"] for reply in replies.values())
        if announced > len(nodes):  # the others are still to connect
            self._hello(self._wait_for_nodes(announced))
            return
        order = _order(replies)
        names = {
            node: replies[node]["name"] or f"party-{place}"
            for place, node in enumerate(order)
        }
        self.ledger.rename({unnamed[node]: name for node, name in names.items()})
        _check_alike(order, names, replies)
        self._infos = [
            PartyInfo(
                node,
                names[node],
                replies[node]["n_rows"],
                replies[node]["n_columns"],
                replies[node]["has_labels"],
            )
            for node in order
        ]
        log.info(
            "%d parties: %s; row ids %s",
            len(self),
            ", ".join(info.name for info in self),
            "are the same" if replies[order[0]]["ids_digest"] else "were not compared",
        )
        self._frame["peers"] = b"".join(replies[node]["public_key"] for node in order)


def _order(replies: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Order nodes by the index they gave, or by name where none gave one."""
    given = {node: reply["index"] for node, reply in replies.items()}
    if all(index == -1 for index in given.values()):
        unnamed = sum(not reply["name"] for reply in replies.values())
        if unnamed:
            raise FederationError(
                "each node needs a partition-id or a party-name in its node config, "
                f"{unnamed} have neither"
            )
        return sorted(replies, key=lambda node: str(replies[node]["name"]))
    if sorted(given.values()) != list(range(len(replies))):
        raise FederationError(
            f"the partition-ids of {len(replies)} parties must be 0 to "
            f"{len(replies) - 1}, each once, got {sorted(given.values())}"
        )
    return sorted(replies, key=lambda node: given[node])


def _check_alike(
    order: list[int],
    names: Mapping[int, str],
    replies: Mapping[int, Mapping[str, Any]],
) -> None:
    """Raise unless names differ, and rows and ids are the same at all."""
    first, *others = order
    for name in names.values():
        if list(names.values()).count(name) > 1:
            raise FederationError(f"party names must differ, two are {name!r}")
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
