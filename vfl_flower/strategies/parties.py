"""The parties of a run as the server sees them: one call is one round trip."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np
from flwr.serverapp import Grid

from vfl_flower import __version__
from vfl_flower.ledger import Ledger
from vfl_flower.messages import pack
from vfl_flower.secure_aggregation import Group, Tree, group, unmask_sum
from vfl_flower.strategies.exchange import (
    FIRST_POLL,
    LAST_POLL,
    POLL_GROWTH,
    Exchange,
    FederationError,
    PartyFailed,
)
from vfl_flower.strategies.replies import (
    PartyInfo,
    Replies,
    Sealed,
    Sum,
    check_alike,
    order_of,
)
from vfl_flower.typing import Array, Arrays, Values

log = logging.getLogger("vfl_flower")


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
        How many parties to wait for; 0: those that are connected, at least `least`.
    least : int
        The fewest parties that make a run.
    partition : {"vertical", "horizontal"}
        What parties hold: other columns of the same rows, or other rows of the same
        columns.
    without : sequence of int
        Nodes that do not take part, although they are connected.
    frame : Values
        What every message tells the parties besides.

    Attributes
    ----------
    session : int
        Random number of this session, 63 bits: the number of the model it trains.

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
        least: int = 2,
        partition: str = "vertical",
        without: Sequence[int] = (),
        frame: Values | None = None,
    ) -> None:
        self._least, self._partition, self._without = least, partition, set(without)
        self.grid, self.ledger = grid, ledger
        self.timeout, self.masking = timeout, masking
        self._exchange = Exchange(grid, ledger, timeout)
        self.session = secrets.randbits(63)
        self._frame: dict[str, Any] = {
            **(frame or {}),
            "session": self.session,
            "seed": seed,
            "private_draws": private_draws,
            "masking": masking,
        }
        self._round = 0
        self._last: list[int] = []  # round in which each party was last asked
        self._peers = b""
        self._infos: list[PartyInfo] = []
        self._hello(self._wait_for_nodes(max(0, n_parties - len(without))))

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
        """Number of rows, n: the same at all parties, or with split rows their sum."""
        if self._partition == "horizontal":
            return sum(info.n_rows for info in self)
        return self[0].n_rows

    @property
    def label_holders(self) -> list[int]:
        """Indices of the parties that know labels, each of other rows than the others.

        Raises
        ------
        FederationError
            No party holds labels.
        """
        holders = [j for j, info in enumerate(self) if info.n_labels]
        if not holders:
            raise FederationError("a party must hold the labels, but none does")
        return holders

    @property
    def label_holder(self) -> int:
        """Index of the one party that holds the labels of all rows.

        Raises
        ------
        FederationError
            No party holds labels, more than one does, or some are missing.
        """
        holders = [info for info in self if info.n_labels]
        if len(holders) != 1:
            names = ", ".join(info.name for info in holders)
            raise FederationError(
                "exactly one party must hold the labels, but "
                + (f"{names} do" if holders else "none does")
            )
        if holders[0].n_labels < self.n_rows:
            raise FederationError(
                f"{holders[0].name!r} must hold the labels of all {self.n_rows} rows, "
                f"{self.n_rows - holders[0].n_labels} are missing"
            )
        return self.label_holders[0]

    def refuse_two(self, what: str, allowed: bool) -> None:
        """Raise where a sum of two parties would show one of them the other's part.

        Parameters
        ----------
        what : str
            What gives parties such sums, as a subject.
        allowed : bool
            ``allow_two_parties``: warn instead.

        Raises
        ------
        FederationError
            There are two parties, and it is not allowed.
        """
        if len(self) > 2:
            return
        reason = (
            f"{what} gives the parties sums over all, and between two the sum shows "
            "each the other's part"
        )
        if not allowed:
            raise FederationError(
                f"{reason}: it needs at least three parties, or allow_two_parties "
                "(in a run config allow-two-parties=true)"
            )
        log.warning("%s", reason)

    # -- asking ---------------------------------------------------------------------

    def ask(
        self,
        action: str,
        *,
        sums: Mapping[str, float | Sum] | None = None,
        **values: Any,
    ) -> Replies:
        """Ask all parties the same, in one round trip.

        Parameters
        ----------
        action : str
            The step.
        sums : mapping of str to float or Sum, optional
            For each array that the step gives under masks a :class:`Sum`, or only its
            bound on the absolute value of a party's entries.
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
        each: Sequence[Mapping[str, Any]],
        *,
        sums: Mapping[str, float | Sum] | None = None,
        **values: Any,
    ) -> Replies:
        """Ask party j ``values`` and ``each[j]`` in one round trip; see :meth:`ask`."""
        replies = self._ask(action, each, sums or {}, values)
        _warn_of_clipped(action, replies.clipped)
        return replies

    def ask_one(self, party: int, action: str, **values: Any) -> dict[str, Any]:
        """Ask one party in one round trip and return its reply; see :meth:`ask`."""
        return self._round_trip(action, {party: (values, {})})[party]

    def passed_on(
        self, sender: int, action: str, name: str, reply: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Return what each party gets of a secret that one has for all others.

        Parameters
        ----------
        sender : int
            The party, which was asked in the last round trip.
        action, name : str
            The step, and what its reply calls the secret.
        reply : mapping
            Its reply, with the secret encrypted for each.

        Returns
        -------
        list of dict
            For :meth:`ask_each`, in party order; the sender gets nothing.
        """
        seal = f"secret {action} {name} {self._round} - - {sender}"
        return [
            {}
            if j == sender
            else {name: Sealed(j, (np.asarray(reply[f"{name}.{j}"]),), (seal,))}
            for j in range(len(self))
        ]

    def _ask(
        self,
        action: str,
        each: Sequence[Mapping[str, Any]],
        sums: Mapping[str, float | Sum],
        values: Mapping[str, Any],
    ) -> Replies:
        if len(each) != len(self):
            raise ValueError(f"each must have {len(self)} entries, got {len(each)}")
        clipped = self.ledger.clipped
        wanted = {n: s if isinstance(s, Sum) else Sum(s) for n, s in sums.items()}
        frame: dict[str, Any] = {}
        for name, one in wanted.items():
            frame |= self._sum_frame(name, one, self._round + 1)
            frame |= {} if one.to is None else {f"to.{name}": one.to}
        replies = self._round_trip(
            action, {j: ({**values, **own}, frame) for j, own in enumerate(each)}
        )
        result = Replies(list(replies.values()), clipped=self.ledger.clipped - clipped)
        for name, one in wanted.items():
            own = self._group(one)
            addends = [self._addend(action, name, j, replies, own) for j in replies]
            self._check_shapes(action, name, addends)
            if one.to is None:
                try:
                    result.sums[name] = unmask_sum(addends, own)
                except ValueError as error:
                    raise FederationError(
                        f"the sum {name!r} of {action} is damaged: {error}"
                    ) from None
            else:
                seal = f"pad {action} {name} {self._round} {self._seal(one)} 0"
                total = addends[0].copy()
                for addend in addends[1:]:
                    own.add(total, addend, out=total)
                result.sealed[name] = Sealed(one.to, (total,), (seal,))
        return result

    def relay_sums(
        self, action: str, sums: Mapping[str, tuple[Sum, Tree]], **values: Any
    ) -> dict[str, Sealed]:
        """Let sums travel from party to party, encrypted between them.

        One hop of all trees is one round trip, since messages pass through the server.
        The root keeps its own part in a message to itself.

        Parameters
        ----------
        action : str
            The step; it is told in ``send`` which of the arrays to give.
        sums : mapping of str to (Sum, Tree)
            What to add, and along which tree; only parties of the tree take part.
        **values : Array or Scalar
            What the step takes by name.

        Returns
        -------
        dict of Sealed
            For the root of each tree.

        Raises
        ------
        ValueError
            A tree leaves out a party, so that the masks of the others do not cancel.
        PartyFailed
            As in :meth:`ask`.
        """
        for name, (one, tree) in sums.items():
            if self._group(one).protects and len(tree.leaves) < len(self):
                raise ValueError(
                    f"the tree of {name!r} must have all {len(self)} parties, whose "
                    f"masks cancel only together, got {len(tree.leaves)}"
                )
        number, clipped = self._round + 1, self.ledger.clipped
        arrived: dict[tuple[str, int], Sealed] = {}
        for hop in range(max(1, *(len(tree.hops) for _, tree in sums.values()))):
            edges = {
                (name, sender): receiver
                for name, (_, tree) in sums.items()
                for sender, receiver in (
                    *(((tree.root, tree.root),) if hop == 0 else ()),
                    *(tree.hops[hop] if hop < len(tree.hops) else ()),
                )
            }
            contents: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
            for name, sender in sorted(edges, key=lambda edge: edge[1]):
                receiver = edges[name, sender]
                new = {"send": [], **values}
                content, frame = contents.setdefault(sender, (new, {}))
                content["send"].append(name)
                frame |= self._sum_frame(name, sums[name][0], number)
                frame[f"relay.{name}"] = receiver
                if sender != receiver and (name, sender) in arrived:
                    content[name] = arrived.pop((name, sender))
            replies = self._round_trip(action, contents)
            for (name, sender), receiver in edges.items():
                one = sums[name][0]
                part = self._addend(action, name, sender, replies, self._group(one))
                seal = f"relay {action} {name} {self._round} {self._seal(one)} {sender}"
                sealed = Sealed(receiver, (part,), (seal,))
                before = arrived.get((name, receiver))
                arrived[name, receiver] = sealed if before is None else before + sealed
        _warn_of_clipped(action, self.ledger.clipped - clipped)
        return {name: arrived[name, tree.root] for name, (_, tree) in sums.items()}

    def _sum_frame(self, name: str, one: Sum, number: int) -> dict[str, Any]:
        return {
            f"sum.{name}": number,
            f"bound.{name}": float(one.bound),
            f"group.{name}": one.group or self.masking,
        }

    def _group(self, one: Sum) -> Group:
        return group(one.group or self.masking, one.bound, len(self))

    def _seal(self, one: Sum) -> str:
        return f"{one.group or self.masking} {float(one.bound).hex()}"

    def _round_trip(
        self,
        action: str,
        contents: Mapping[int, tuple[Mapping[str, Any], Mapping[str, Any]]],
    ) -> dict[int, dict[str, Any]]:
        """Send parties their values, each with a frame, and return their replies."""
        self._round += 1
        nodes = {self[j].node_id: self[j].name for j in contents}
        messages = {}
        for j, (values, frame) in contents.items():
            own = {**self._frame, **frame}
            own |= {} if self._last[j] else {"peers": self._peers}
            own |= {"round": self._round, "parties": len(self), "index": j}
            own["previous"], self._last[j] = self._last[j], self._round
            found = dict(values)
            for name in [n for n, v in values.items() if isinstance(v, Sealed)]:
                sealed = found.pop(name)
                if sealed.to != j:
                    raise ValueError(f"{name} is sealed for party {sealed.to}, not {j}")
                own[f"sealed.{name}"] = list(sealed.seals)
                found |= {f"{name}.{k}": part for k, part in enumerate(sealed.parts)}
            messages[self[j].node_id] = pack(found, own)
        replies = self._exchange(action, messages, nodes)
        return dict(zip(contents, replies, strict=True))

    def secure_sum(
        self,
        action: str,
        sums: Mapping[str, float],
        each: Sequence[Mapping[str, Any]] | None = None,
        **values: Any,
    ) -> Arrays:
        """Return only the sums over the parties, by name; see :meth:`ask_each`."""
        each = [{}] * len(self) if each is None else each
        return self.ask_each(action, each, sums=sums, **values).sums

    def ask_exactly(
        self,
        action: str,
        sums: Mapping[str, float | Sum],
        each: Sequence[Mapping[str, Any]] | None = None,
        **values: Any,
    ) -> Replies:
        """Ask where no bound is known: `sums` has guesses, made wider on clips.

        A first guess is nearly always right; where it clips a value, the step is asked
        again with bounds 2^20 times as large. See :meth:`ask_each`.
        """
        each = [{}] * len(self) if each is None else each
        sums = dict(sums)
        while (replies := self._ask(action, each, sums, values)).clipped:
            self.ledger.drop_clipped(action)
            sums = {
                name: replace(one, bound=one.bound * 2.0**20)
                if isinstance(one, Sum)
                else one * 2.0**20
                for name, one in sums.items()
            }
        return replies

    def _addend(
        self,
        action: str,
        name: str,
        j: int,
        replies: Mapping[int, dict[str, Any]],
        own: Group,
    ) -> Array:
        addend = replies[j].pop(name, None)
        if not isinstance(addend, np.ndarray) or addend.dtype != own.dtype:
            raise PartyFailed(
                self[j].name,
                action,
                f"its reply lacks the masked array {name!r}",
                {self[j].node_id: self[j].name},
            )
        return addend

    def _check_shapes(self, action: str, name: str, addends: Sequence[Array]) -> None:
        for info, addend in zip(self, addends, strict=True):
            if addend.shape != addends[0].shape:
                raise PartyFailed(
                    info.name,
                    action,
                    f"{name!r} has shape {addend.shape}, that of {self[0].name!r} has "
                    f"{addends[0].shape}",
                    {info.node_id: info.name},
                )

    # -- hello ----------------------------------------------------------------------

    def _wait_for_nodes(self, n_parties: int) -> list[int]:
        wanted = max(self._least, n_parties)
        deadline = time.monotonic() + self.timeout
        poll = FIRST_POLL
        while len(nodes := self._nodes()) < wanted:
            if self._without:  # those that are left have connected before
                raise FederationError(
                    f"the run needs {wanted} parties, {len(nodes)} left"
                )
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

    def _nodes(self) -> list[int]:
        return sorted(set(self.grid.get_node_ids()) - self._without)

    def _hello(self, nodes: list[int]) -> None:
        unnamed = {node: f"node {node}" for node in nodes}
        content = pack({"partition": self._partition}, {"session": self.session})
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
        announced -= len(self._without)
        if announced > len(nodes):  # the others are still to connect
            self._hello(self._wait_for_nodes(announced))
            return
        order = order_of(replies, gaps=bool(self._without))
        names = {
            node: replies[node]["name"] or f"party-{replies[node]['index']}"
            for node in order
        }
        self.ledger.rename({unnamed[node]: name for node, name in names.items()})
        check_alike(order, names, replies, self._partition)
        self._infos = [
            PartyInfo(
                node,
                names[node],
                replies[node]["n_rows"],
                replies[node]["n_columns"],
                replies[node]["n_labels"],
            )
            for node in order
        ]
        shared, digest = "row ids", "ids_digest"
        if self._partition == "horizontal":
            shared, digest = "column names", "columns_digest"
        log.info(
            "%d parties: %s; %s %s",
            len(self),
            ", ".join(info.name for info in self),
            shared,
            "are the same" if replies[order[0]][digest] else "were not compared",
        )
        self._peers = b"".join(replies[node]["public_key"] for node in order)
        self._last = [0] * len(order)


def _warn_of_clipped(action: str, count: int) -> None:
    if count:
        log.warning(
            "%d values of %s were clipped to the bound of their sum, which is not "
            "exact",
            count,
            action,
        )
