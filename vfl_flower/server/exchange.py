"""One round trip over Flower's grid: push, poll, retry, count, and report failures."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from threading import Thread
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

from annotated_types import Ge, Len
from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from vfl_flower.protocol import messages
from vfl_flower.protocol.contract import ContractError, fields_of, structure
from vfl_flower.protocol.errors import FederationError, PartyFailed
from vfl_flower.protocol.frame import SIGNATURE_BYTES
from vfl_flower.protocol.names import printable
from vfl_flower.server.checkpoint import Checkpoint, digest_of
from vfl_flower.server.ledger import Ledger
from vfl_flower.shapes import shapes_only

log = logging.getLogger("vfl_flower")

RETRIES = 2  # maximum repeats of a message that failed in transit, not in its step

# Flower's error codes for failures other than a step's refusal (flwr.common.constant.
# ErrorCode: message, reply or node unavailable, app crashed), and our code for damage.
NODE_UNAVAILABLE = 5
_TRANSIENT = frozenset({3, 4, NODE_UNAVAILABLE, 8, messages.DAMAGED})

MOST_OF_REASON = 500  # maximum number of characters in a party's reason

ABSENCE = 40.0
"""Seconds that a round trip waits for a node that is not connected. A SuperNode that
systemd restarts reconnects sooner; a run that has ended can resume."""

PATIENCE = 1.0  # seconds for which one late reply may delay the other replies

FIRST_POLL, LAST_POLL, POLL_GROWTH = 0.01, 0.5, 1.5
"""Seconds before the first poll, maximum seconds between polls, and growth factor."""


Contents = Mapping[int, RecordDict]
"""The message to each node."""
Names = Mapping[int, str]
"""The name of each node in messages."""


class _ReplyFrame(TypedDict):
    """Values of a reply besides the values of its step."""

    seconds: Annotated[float, Ge(0)]
    clipped: NotRequired[Annotated[bytes, Len(8, 8)]]
    signed: NotRequired[Annotated[bytes, Len(SIGNATURE_BYTES, SIGNATURE_BYTES)]]
    digest: bytes


@shapes_only
class Opened(NamedTuple):
    """A reply that arrived undamaged."""

    values: dict[str, Any]  # of the step, by flat names
    clipped: bytes | None  # a masked number, if the party contributes to sums
    signed: bytes | None  # signature on the list of keys, in the first step


def _reason(error: Error) -> str:
    """Return the reason for a node's failure as one line: a party can send any text."""
    reason = printable(" ".join((error.reason or "").split())[:MOST_OF_REASON])
    return reason or f"Flower's error code {error.code}"


def _failure(action: str, nodes: Names, reason: str) -> PartyFailed:
    return PartyFailed(", ".join(nodes.values()), action, reason, nodes)


class Exchange:
    """Sends messages and waits for one reply to each, polling often at first.

    Flower's own ``send_and_receive`` looks for replies every 3 s. If Flower reports
    that a message, its reply or its node was lost, or if the message arrived damaged,
    the message is sent again: a step that is requested twice returns the same reply. A
    missing reply is no reason to ask again, since the party may be busy, and a second
    process for the same step would delay the next step.

    If a SuperNode is killed after it has announced a reply, Flower's grid waits three
    minutes for the rest of the reply. Therefore a thread fetches each reply, and a
    delayed reply is ignored if its node is not connected.
    """

    def __init__(
        self,
        grid: Grid,
        ledger: Ledger | None = None,
        timeout: float = 3600.0,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.grid, self.ledger, self.timeout = grid, ledger or Ledger(), timeout
        self.checkpoint = checkpoint or Checkpoint()
        self._refused: set[tuple[str, int]] = set()
        # Messages of failed round trips, whose replies nobody has read.
        self._unread: dict[str, tuple[str, int]] = {}
        # Replies that the grid is still fetching, by the numbers of the messages.
        self._held: dict[str, Future[list[Message]]] = {}

    def __call__(
        self,
        action: str,
        contents: Contents,
        names: Names,
        checkpoint: Checkpoint | None = None,
    ) -> list[Opened]:
        """Send each node one message; return exactly one reply from each, in order.

        If given, `checkpoint` replaces the usual checkpoint. Raises PartyFailed if a
        node refused, failed too often, was silent or disconnected, and FederationError
        if the checkpoint holds a different round trip at this place.
        """
        checkpoint = checkpoint or self.checkpoint
        digest = digest_of(action, list(contents.values()))
        if (past := checkpoint.replay(action, digest)) is not None:
            replies, (seconds, stored) = [], past
            for node, reply in zip(contents, stored, strict=True):
                self._count(action, names[node], contents[node])
                self.ledger.entry(action, names[node]).seconds_answered += seconds
                replies.append(self._read(action, names[node], reply))
            self.ledger.round_trip(action, seconds)
            # This reply was read when it arrived.
            return [reply for reply in replies if not isinstance(reply, Error)]
        start = time.monotonic()
        try:
            opened = self._live(action, contents, names, checkpoint)
            seconds = time.monotonic() - start
            checkpoint.commit(action, digest, seconds, list(contents))
        finally:
            checkpoint.drop()
        self.ledger.round_trip(action, seconds)
        return opened

    def _live(
        self, action: str, contents: Contents, names: Names, checkpoint: Checkpoint
    ) -> list[Opened]:
        """Send the requests to the nodes, and store their replies."""
        deadline = time.monotonic() + self.timeout
        places = list(contents)
        replies: dict[int, Opened] = {}
        attempts = dict.fromkeys(contents, 0)
        absent: dict[int, float] = {}
        pending = self._push(action, contents, names, contents)
        sent = time.monotonic()
        poll = FIRST_POLL
        while True:
            arrived = self._pull(list(pending))
            lost: list[int] = []
            for message in arrived:
                node = pending.pop(message.metadata.reply_to_message_id, None)
                if node is None:
                    continue
                if message.has_error():
                    reply: Opened | Error = message.error
                else:
                    reply = self._read(action, names[node], message.content)
                if not isinstance(reply, Error):
                    checkpoint.add(places.index(node), message.content)
                    replies[node] = reply
                    entry = self.ledger.entry(action, names[node])
                    entry.seconds_answered += time.monotonic() - sent
                elif reply.code == NODE_UNAVAILABLE and not self._connected(node):
                    lost.append(node)
                elif reply.code in _TRANSIENT and attempts[node] < RETRIES:
                    attempts[node] += 1
                    log.warning("asking %s again: %s", names[node], _reason(reply))
                    pending |= self._push(action, [node], names, contents)
                else:
                    if reply.code == messages.REFUSED and not attempts[node]:
                        self._refused.add((action, node))
                    once = {m: n for m, n in pending.items() if not attempts[n]}
                    self._unread |= {number: (action, n) for number, n in once.items()}
                    self._note(arrived)
                    raise _failure(action, {node: names[node]}, _reason(reply))
            if len(replies) == len(contents):
                return [replies[node] for node in contents]
            for number in self._held.keys() & pending.keys():
                if not self._connected(pending[number]):
                    lost.append(pending.pop(number))
                    del self._held[number]
            for node in lost:
                log.warning("waiting for %s, which is not connected", names[node])
                absent[node] = time.monotonic()
            for node in filter(self._connected, list(absent)):
                log.warning("%s is connected again: repeating the request", names[node])
                del absent[node]
                pending |= self._push(action, [node], names, contents)
            now = time.monotonic()
            gone = {n: names[n] for n, since in absent.items() if now > since + ABSENCE}
            if gone:
                raise _failure(action, gone, f"no connection for {ABSENCE:g} s")
            if now > deadline:
                silent = {node: names[node] for node in contents if node not in replies}
                away = "".join(f"; {names[node]!r} is not connected" for node in absent)
                reason = f"no reply within {self.timeout:g} s{away}"
                raise _failure(action, silent, reason)
            time.sleep(min(poll, max(0.0, deadline - now)))
            poll = min(poll * POLL_GROWTH, LAST_POLL)

    def refused(self, action: str, node: int) -> bool:
        """Return whether a node refused a step that was requested only once.

        A round trip ends when one party fails; other parties may have refused too.
        """
        self._note(self._pull(list(self._unread)))
        return (action, node) in self._refused

    def _pull(self, numbers: Iterable[str]) -> Iterator[Message]:
        """Fetch the replies to some messages; yield the replies that have arrived."""
        for number in numbers:
            patience = 0.0 if number in self._held else PATIENCE
            call = self._held.pop(number, None) or self._fetch(number)
            if wait([call], patience).done:
                yield from call.result()
            else:
                self._held[number] = call

    def _fetch(self, number: str) -> Future[list[Message]]:
        """Fetch one reply in a thread that ends no later than the process."""
        call: Future[list[Message]] = Future()

        def work() -> None:
            try:
                call.set_result(list(self.grid.pull_messages([number])))
            except BaseException as error:  # raised in the waiting thread
                call.set_exception(error)

        if getattr(self.grid, "in_process", False):  # replies are there at once
            work()
        else:
            Thread(target=work, daemon=True).start()
        return call

    def _note(self, arrived: Iterable[Message]) -> None:
        """Record which of these replies, from failed round trips, are refusals."""
        for message in arrived:
            asked = self._unread.pop(message.metadata.reply_to_message_id, None)
            if asked and message.has_error() and message.error.code == messages.REFUSED:
                self._refused.add(asked)

    def _connected(self, node: int) -> bool:
        return node in self.grid.get_node_ids()

    def _push(
        self, action: str, nodes: Iterable[int], names: Names, contents: Contents
    ) -> dict[str, int]:
        pushed: dict[str, int] = {}
        for node in nodes:
            kind, life = f"train.{action}", self.timeout
            sent = self._count(action, names[node], contents[node])
            message = Message(sent, node, kind, ttl=life, group_id=action)
            begun = time.monotonic()
            # One at a time: for a message that is not accepted, some grids return None
            # and some return nothing, so its place in the answer would be unknown.
            number = next(iter(self.grid.push_messages([message])), None)
            if number is None:
                reason = "the SuperLink did not accept the message"
                raise _failure(action, {node: names[node]}, reason)
            entry = self.ledger.entry(action, names[node])
            entry.seconds_answered += time.monotonic() - begun
            pushed[number] = node
        return pushed

    def _count(self, action: str, name: str, content: RecordDict) -> RecordDict:
        """Count a message to a party, and return the serialised message."""
        entry, sent = self.ledger.entry(action, name), messages.bundle(content)
        entry.messages += 1
        entry.bytes_down += messages.n_bytes(sent)
        entry.units_down += messages.n_units(content)
        return sent

    def _read(self, action: str, name: str, content: RecordDict) -> Opened | Error:
        entry = self.ledger.entry(action, name)
        entry.bytes_up += messages.n_bytes(content)
        try:
            reply, frame = messages.unpack(content)
        except messages.CorruptMessage as error:
            return Error(messages.DAMAGED, str(error))
        try:
            values = structure(fields_of(_ReplyFrame), frame, {})
        except ContractError as error:
            return Error(messages.MALFORMED, f"its reply is malformed: {error}")
        entry.units_up += sum(v.size for v in reply.values() if hasattr(v, "size"))
        entry.seconds_computed += values["seconds"]
        return Opened(reply, values.get("clipped"), values.get("signed"))


__all__ = ["Exchange", "FederationError", "Opened", "PartyFailed"]
