"""One round trip over Flower's grid: push, poll, retry, count, or say who failed."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

from annotated_types import Ge, Len
from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from vfl_flower.protocol.contract import ContractError, fields_of, structure
from vfl_flower.protocol.ledger import Ledger
from vfl_flower.protocol.messages import (
    DAMAGED,
    MALFORMED,
    CorruptMessage,
    n_bytes,
    n_units,
    unpack,
)

log = logging.getLogger("vfl_flower")

RETRIES = 2
"""How often a message that failed on its way, not in its step, is sent again."""

# Flower's error codes for messages that no step has refused (flwr.common.constant.
# ErrorCode: message, reply or node unavailable, app crashed), and our own for damage.
_TRANSIENT = frozenset({3, 4, 5, 8, DAMAGED})

MOST_OF_REASON = 500
"""Most characters of a party's reason."""

FIRST_POLL, LAST_POLL, POLL_GROWTH = 0.01, 0.5, 1.5
"""Seconds before the first look for replies, most seconds between two, and growth."""


class _ReplyFrame(TypedDict):
    """What a reply tells besides the values of its step."""

    seconds: Annotated[float, Ge(0)]
    clipped: NotRequired[Annotated[bytes, Len(8, 8)]]
    digest: bytes


class Opened(NamedTuple):
    """A reply that arrived whole.

    Attributes
    ----------
    values : dict
        Values of the step, by flat names.
    clipped : bytes or None
        How many values the party clipped, under a mask; where it sends into sums.
    """

    values: dict[str, Any]
    clipped: bytes | None


class FederationError(RuntimeError):
    """The parties do not fit together, or cannot do what the strategy needs."""


class PartyFailed(FederationError):
    """One party did not answer a step.

    Attributes
    ----------
    party, action, reason : str
        Which party, in which step, and why.
    nodes : dict of int to str
        Names of the nodes that failed, by Flower's numbers.
    """

    def __init__(
        self,
        party: str,
        action: str,
        reason: str,
        nodes: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(f"party {party!r} failed in {action!r}: {reason}")
        self.party, self.action, self.reason = party, action, reason
        self.nodes = dict(nodes or {})


def _reason(error: Error) -> str:
    """Return why a node failed, in a line: a party may send any text."""
    reason = " ".join((error.reason or "").split())[:MOST_OF_REASON]
    return reason or f"Flower's error code {error.code}"


class Exchange:
    """Sends messages and waits for one reply each, polling often at first.

    Flower's own ``send_and_receive`` looks for replies every 3 s; this one looks after
    10 ms, and then less and less often, down to every 0.5 s. If Flower says that a
    message, its reply or its node was lost, or if the message arrived damaged, it is
    sent again: steps give the same reply when they are asked twice. Silence is no
    reason to ask again: the party may be at work, and a second process for the same
    step would hold up the next.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    ledger : Ledger
        Where every message is counted: nowhere else.
    timeout : float
        Seconds that one round trip may take.
    """

    def __init__(self, grid: Grid, ledger: Ledger, timeout: float) -> None:
        self.grid, self.ledger, self.timeout = grid, ledger, timeout

    def __call__(
        self, action: str, contents: Mapping[int, RecordDict], names: Mapping[int, str]
    ) -> list[Opened]:
        """Send each node one message and return exactly one reply from each.

        Parameters
        ----------
        action : str
            The step; the type of the messages is ``train.<action>``.
        contents : mapping of int to RecordDict
            What to send, by node id.
        names : mapping of int to str
            What errors and the ledger call a node.

        Returns
        -------
        list of Opened
            The replies, in the order of `contents`.

        Raises
        ------
        PartyFailed
            A node refused, failed more often than :data:`RETRIES`, or was silent.
        """
        start = time.monotonic()
        deadline = start + self.timeout
        replies: dict[int, Opened] = {}
        attempts = dict.fromkeys(contents, 0)
        pending = self._push(action, contents, names, contents)
        poll = FIRST_POLL
        while True:
            for message in self.grid.pull_messages(list(pending)):
                node = pending.pop(message.metadata.reply_to_message_id, None)
                if node is None:
                    continue
                reply = self._open(action, names[node], message)
                if not isinstance(reply, Error):
                    replies[node] = reply
                elif reply.code in _TRANSIENT and attempts[node] < RETRIES:
                    attempts[node] += 1
                    log.warning("asking %s again: %s", names[node], _reason(reply))
                    pending |= self._push(action, [node], names, contents)
                else:
                    failed = {node: names[node]}
                    raise PartyFailed(names[node], action, _reason(reply), failed)
            if len(replies) == len(contents):
                break
            now = time.monotonic()
            if now > deadline:
                silent = {node: names[node] for node in contents if node not in replies}
                raise PartyFailed(
                    ", ".join(silent.values()),
                    action,
                    f"no reply within {self.timeout:g} s",
                    silent,
                )
            time.sleep(min(poll, max(0.0, deadline - now)))
            poll = min(poll * POLL_GROWTH, LAST_POLL)
        self.ledger.round_trip(action, time.monotonic() - start)
        return [replies[node] for node in contents]

    def _push(
        self,
        action: str,
        nodes: Iterable[int],
        names: Mapping[int, str],
        contents: Mapping[int, RecordDict],
    ) -> dict[str, int]:
        pushed: dict[str, int] = {}
        for node in nodes:
            message = Message(
                contents[node],
                node,
                f"train.{action}",
                ttl=self.timeout,
                group_id=action,
            )
            entry = self.ledger.entry(action, names[node])
            entry.messages += 1
            entry.bytes_down += n_bytes(contents[node])
            entry.units_down += n_units(contents[node])
            # One at a time: for a message that is not taken some grids give None and
            # some give nothing, so that its place in the answer would be unknown.
            number = next(iter(self.grid.push_messages([message])), None)
            if number is None:
                raise PartyFailed(
                    names[node],
                    action,
                    "the SuperLink did not take the message",
                    {node: names[node]},
                )
            pushed[number] = node
        return pushed

    def _open(self, action: str, name: str, message: Message) -> Opened | Error:
        if message.has_error():
            return message.error
        entry = self.ledger.entry(action, name)
        entry.bytes_up += n_bytes(message.content)
        try:
            reply, frame = unpack(message.content)
        except CorruptMessage as error:
            return Error(DAMAGED, str(error))
        try:
            told = structure(fields_of(_ReplyFrame), frame, {})
        except ContractError as error:
            return Error(MALFORMED, f"its reply is malformed: {error}")
        entry.units_up += n_units(message.content)
        entry.seconds_computed += told["seconds"]
        return Opened(reply, told.get("clipped"))
