"""The first round trip of a run at the server: the parties and their order."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, cast

from flwr.app import RecordDict

from vfl_flower.party.answering import hello
from vfl_flower.protocol.contract import ContractError, flatten, structure
from vfl_flower.protocol.errors import FederationError, PartyFailed
from vfl_flower.protocol.messages import pack
from vfl_flower.protocol.names import is_name
from vfl_flower.protocol.steps import T
from vfl_flower.protocol.terms import OF_TWO, Terms
from vfl_flower.server.checkpoint import Checkpoint
from vfl_flower.server.exchange import FIRST_POLL, LAST_POLL, POLL_GROWTH, Exchange
from vfl_flower.server.replies import PartyInfo
from vfl_flower.version import __version__

log = logging.getLogger("vfl_flower")

_ALIGN = (
    "; if the files hold different rows, or the same rows in a different order, run "
    "the strategy align first, and set alignment to the name of the new order"
)
"""Advice in errors about different rows."""


class Greeter:
    """Greets the parties; `replies` and `names` are stored by node, in party order."""

    def __init__(
        self, exchange: Exchange, session: int, partition: str, terms: Terms
    ) -> None:
        self._exchange, self._session = exchange, session
        self._partition, self._terms = partition, terms
        self._timeout, self._checkpoint = exchange.timeout, exchange.checkpoint
        self.replies: dict[int, dict[str, Any]] = {}
        self.names: dict[int, str] = {}
        self.from_checkpoint = False

    def greet(self, n_parties: int, source: str = "") -> None:
        """Greet `n_parties` nodes, or all connected nodes if `n_parties` is 0.

        `source` states the origin of the number. Raises FederationError if the parties
        cannot be put in order, refuse the run or use a different version, and
        PartyFailed if a party fails or sends a malformed reply.
        """
        held = self._checkpoint.nodes()
        nodes = held or self._wait_for_nodes(n_parties, source)
        unnamed = self._registered(nodes)
        try:
            arrived = self._ask(nodes, unnamed)
        except PartyFailed as failure:
            raise _named(failure) from None
        replies = {}
        for node, reply in arrived.items():
            name = _name_of(reply) or unnamed[node]
            if (version := reply.get("version")) != __version__:
                raise FederationError(
                    "all parties must run the same version of vfl_flower as the "
                    f"server, {__version__}: {name!r} has {str(version)[:20]!r}"
                )
            try:
                replies[node] = structure(hello.contract.reply, reply, {})
                for each in ("kinds", "widths"):
                    if len(reply[each]) != len(reply["columns"]):
                        rule = f"{each!r} must have one item for each of 'columns'"
                        raise ContractError(rule)
            except ContractError as error:
                reason = f"its reply is malformed: {error}"
                raise PartyFailed(name, hello.action, reason, {node: name}) from None
        largest = max(replies, key=lambda node: replies[node]["n_parties"])
        announced = replies[largest]["n_parties"]
        if announced > len(nodes):  # the other parties have yet to connect
            name = replies[largest]["name"] or unnamed[largest]
            self.greet(announced, f" according to {name!r}")
            return
        self.replies = {node: replies[node] for node in _order_of(replies)}
        self.names = {
            node: reply["name"] or f"party-{reply['index']}"
            for node, reply in self.replies.items()
        }
        self._check_consent()
        renamed = {unnamed[node]: name for node, name in self.names.items()}
        self._exchange.ledger.rename(renamed)
        self.from_checkpoint = bool(held)

    def find_again(self) -> dict[str, int]:
        """Return the nodes of the parties greeted by an earlier process, by name.

        Raises FederationError if different parties are connected or a party has
        changed.
        """
        log.info("the run continues after %d round trips", self._checkpoint.held)
        nodes = self._wait_for_nodes(len(self.names), ", as at its start")
        unnamed = self._registered(nodes)
        before = dict(zip(self.names.values(), self.replies.values(), strict=True))
        where: dict[str, int] = {}
        for node, reply in self._ask(nodes, unnamed, goes_on=True).items():
            name = _name_of(reply) or f"party-{reply.get('index')}"
            if (first := before.get(name)) is None or name in where:
                raise FederationError(
                    "the run must continue with the parties that started it, but "
                    f"{name!r} is not one of them"
                )
            now = {"state_key": first.get("state_key"), **reply}
            if changed := [key for key in first if first[key] != now.get(key)]:
                lost = "public_key" in changed
                what = "lost the state of the run" if lost else f"a new {changed[0]}"
                reason = f"{name!r} has {what}; start a new run"
                raise FederationError(f"the run cannot resume: {reason}")
            where[name] = node
        renamed = {unnamed[node]: name for name, node in where.items()}
        self._exchange.ledger.rename(renamed)
        return where

    def infos(self) -> list[PartyInfo]:
        """Return the server's information about the parties, in party order."""
        return [
            from_reply(PartyInfo, reply | {"node_id": node, "name": self.names[node]})
            for node, reply in self.replies.items()
        ]

    def check_alike(self) -> None:
        """Raise FederationError unless names differ and shared rows or columns agree.

        ``"vertical"`` parties share rows; ``"horizontal"`` parties share columns, which
        :func:`~vfl_flower.server.agreement.agree` compares by name.
        """
        names, replies, partition = self.names, self.replies, self._partition
        for name in names.values():
            if list(names.values()).count(name) > 1:
                raise FederationError(f"party names must differ, but two are {name!r}")
        if partition == "either":
            return
        first, *rest = replies
        amount, size, hint = "number of rows", "n_rows", _ALIGN
        if partition == "horizontal":
            amount, size, hint = "columns", "n_columns", ""
        for node in rest:
            if replies[node][size] != replies[first][size]:
                raise FederationError(
                    f"all parties must hold the same {amount}: {names[first]!r} has "
                    f"{replies[first][size]}, {names[node]!r} has "
                    f"{replies[node][size]}{hint}"
                )
        if partition == "horizontal":
            return
        digests = {node: reply["ids_digest"] for node, reply in replies.items()}
        without = [names[node] for node, digest in digests.items() if not digest]
        if 0 < len(without) < len(digests):
            rule = "give ids to all parties or to none"
            raise FederationError(f"{rule}: {without[0]!r} has no ids")
        for node in rest:
            if digests[node] != digests[first]:
                raise FederationError(
                    "all parties must hold the same row ids in the same order: the ids "
                    f"of {names[node]!r} and {names[first]!r} differ{_ALIGN}"
                )

    def _ask(
        self, nodes: Sequence[int], names: Mapping[int, str], goes_on: bool = False
    ) -> dict[int, dict[str, Any]]:
        """Send ``hello`` to some nodes, and return the values of their replies."""
        contents = dict.fromkeys(nodes, self.message(len(nodes), goes_on))
        past = Checkpoint() if goes_on else None  # stores no greeting
        replies = self._exchange(hello.action, contents, names, past)
        return {node: reply.values for node, reply in zip(nodes, replies, strict=True)}

    def message(self, count: int, goes_on: bool = False) -> RecordDict:
        """Return the first message of the run, sent to each of `count` parties."""
        terms = replace(self._terms, parties=count)
        values = flatten({"partition": self._partition, "terms": terms})
        more = {"goes_on": True} if goes_on else {}
        return pack(values, {"session": self._session, **more})

    def _wait_for_nodes(self, n_parties: int, source: str) -> list[int]:
        wanted = max(self._terms.parties, n_parties)
        deadline = time.monotonic() + self._timeout
        poll, logged = FIRST_POLL, -1
        while len(nodes := sorted(self._exchange.grid.get_node_ids())) < wanted:
            if len(nodes) != logged:
                logged, left = len(nodes), max(0, round(deadline - time.monotonic()))
                known = ", ".join(self._registered(nodes).values())
                here = f"{logged} connected" + (f" ({known})" if nodes else "")
                log.info(
                    "waiting for %d parties, %s; at most %d s more", wanted, here, left
                )
            if time.monotonic() > deadline:
                raise FederationError(
                    f"the run needs {wanted} parties{source}, but {len(nodes)} "
                    f"connected within {self._timeout:g} s"
                )
            time.sleep(poll)
            poll = min(poll * POLL_GROWTH, LAST_POLL)
        if len(nodes) > n_parties > 0:
            raise FederationError(
                f"the run is for {n_parties} parties{source}, but {len(nodes)} are "
                "connected (a stopped SuperNode is still counted for a minute or two)"
            )
        return nodes

    def _registered(self, nodes: Sequence[int]) -> dict[int, str]:
        """Return labels for nodes whose parties have not sent a name.

        A SuperLink knows a name if the SuperNode's key was registered with a name.
        """
        labels = {node: f"node {node}" for node in nodes}
        for info in self._exchange.grid.get_nodes():
            if info.node_id in labels and is_name(info.name):
                labels[info.node_id] = f"{info.name} ({labels[info.node_id]})"
        return labels

    def _check_consent(self) -> None:
        """Raise ``FederationError`` if a party refuses something that the run needs."""
        lacks = {self.names[n]: reply["lacks"] for n, reply in self.replies.items()}
        refusing = {name: lines for name, lines in lacks.items() if lines}
        if refusing:
            which = "; ".join(
                f"the consent.toml of {name!r} would need {', '.join(lines)}"
                for name, lines in refusing.items()
            )
            said = [f"{len(refusing)} of {len(lacks)} parties refuse the run: {which}"]
            if any("[leaves]" in lines for lines in refusing.values()):
                said.append(self._terms.less)
            if len(lacks) == 2 and self._terms.computing is not None:
                said.append(OF_TWO)
            raise FederationError(". ".join(filter(None, said)))


def from_reply(kind: type[T], reply: Mapping[str, Any]) -> T:
    """Return a dataclass filled with the values of a reply that match its fields."""
    names = {field.name for field in fields(cast(Any, kind))}
    return kind(**{name: value for name, value in reply.items() if name in names})


def _order_of(replies: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Return nodes in index or name order; raise FederationError if neither exists."""
    indices = {node: reply["index"] for node, reply in replies.items()}
    if all(index == -1 for index in indices.values()):
        unnamed = [f"node {n}" for n, reply in replies.items() if not reply["name"]]
        if unnamed:
            raise FederationError(
                "each node needs a partition-id or party-name in its node config (or "
                "an index or name in its Party), but neither is set at "
                f"{', '.join(unnamed)}"
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
            f"the partition-ids (or indexes) of {len(replies)} parties must be the "
            f"numbers 0 to {len(replies) - 1}, without duplicates, but {listed}"
        )
    return sorted(replies, key=lambda node: indices[node])


def _named(failure: PartyFailed) -> PartyFailed:
    """Return a failure of ``hello`` with the party's name, if the reason states it."""
    match = re.search(r"\bparty '([^']+)'", failure.reason)
    if match is None or not is_name(match[1]):
        away = failure.reason.startswith(("no connection", "no reply"))
        if not away or all(name != f"node {n}" for n, name in failure.nodes.items()):
            return failure
        reason = f"{failure.reason} (flwr supernode list shows whose node it is)"
        return PartyFailed(failure.party, failure.action, reason, failure.nodes)
    name, reason = match[1], failure.reason.removeprefix(f"{match[0]}: ")
    return PartyFailed(name, failure.action, reason, dict.fromkeys(failure.nodes, name))


def _name_of(reply: Mapping[str, Any]) -> str:
    """Return the name that a party sent, if a log or an error can show it, or ""."""
    name = reply.get("name")
    return str(name) if is_name(name) else ""
