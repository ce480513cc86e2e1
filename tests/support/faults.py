"""A grid that loses, repeats, delays, reorders or damages chosen messages."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto

from vfl_flower import Party
from vfl_flower.protocol.messages import BUNDLE, bundle, pack, unbundle, unpack
from vfl_flower.simulation import InProcessGrid

UNAVAILABLE, NO_REPLY, RAISED = 5, 4, 2
"""Flower's error codes: no node; no reply; the app raised an exception."""

KINDS = (
    "lose request",  # the party never sees it, and nobody reports the loss
    "lose reply",  # the party has answered, and nobody reports the loss
    "unavailable",  # Flower's code 5 instead of the party's reply
    "reply unavailable",  # Flower's code 4, and later the party's reply
    "raise",  # Flower's code 2 instead of the party's reply
    "duplicate",  # the party is asked twice, the reply comes four times
    "reorder",  # last party first, one per poll, among replies of earlier rounds
    "delay",  # the reply comes after `seconds`
    "overtaken",  # code 5, but the party gets the request after a later round's
    "damage request array",
    "damage reply array",
)


EARLIER = 8
"""Number of last replies that come again if replies are reordered."""


class Clock:
    """A clock that only sleeping advances: minutes of waiting pass at once."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass: some time at least, as on a real clock."""
        self.now += seconds + 1e-6


@dataclass(frozen=True)
class Fault:
    """The messages that fail, and the kind of failure."""

    kind: str
    action: str | None = None
    party: int | None = None
    nth: int | None = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind}")

    def hits(self, *message: object) -> bool:
        wanted = zip((self.action, self.party, self.nth), message, strict=True)
        return all(mine in (None, given) for mine, given in wanted)


class FaultyGrid(InProcessGrid):
    """An in-process grid that makes chosen messages fail."""

    def __init__(
        self, parties: Sequence[Party], faults: Sequence[Fault], clock: Any = time
    ) -> None:
        super().__init__(parties)
        self._faults, self._clock = faults, clock
        self._seen: Counter[tuple[str, int]] = Counter()
        self._delayed: list[tuple[float, Message]] = []
        self._overtaken: list[Message] = []
        self._reordered: set[str] = set()
        self._delivered: list[Message] = []
        self._unasked: list[Message] = []
        self._struck: set[str] = set()  # whose other replies come after the first poll
        self.struck = 0
        self.twins: list[tuple[Message, Message]] = []
        self.late: list[Message] = []

    def asked(self, action: str, party: int) -> int:
        return self._seen[action, party]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._deliver(message) for message in messages]

    def _deliver(self, message: Message) -> str:
        action = message.metadata.message_type.partition(".")[2]
        party = message.metadata.dst_node_id - 1000
        nth = self._seen[action, party]
        self._seen[action, party] += 1
        struck = [f for f in self._faults if f.hits(action, party, nth)]
        if not struck:
            number = self._push(message)
            self._deliver_overtaken(message)
            return number
        self.struck += 1
        (fault,) = struck
        match fault.kind.split():
            case ["lose", "request"]:
                return self._lose(message)
            case ["unavailable"] | ["overtaken"]:
                if fault.kind == "overtaken":
                    self._overtaken.append(_copy(message))
                number = self._lose(message)
                self._fail(message, UNAVAILABLE)
                return number
            case ["damage", "request", _]:
                message = _copy(message)
                damage(message.content)
        number = self._push(message)
        match fault.kind.split():
            case ["lose", "reply"]:
                del self._replies[number]
            case ["raise"]:
                self._fail(message, RAISED)
            case ["reply", "unavailable"]:
                self._struck.add(number)
                self._unasked.append(self._replies[number])
                self._fail(message, NO_REPLY)
            case ["damage", "reply", _]:
                reply = self._replies[number]
                if reply.has_content():
                    damage(reply.content)
            case ["delay"]:
                due = self._clock.monotonic() + fault.seconds
                self._delayed.append((due, self._replies.pop(number)))
            case ["reorder"]:
                self._reordered.add(number)
            case ["duplicate"]:
                twin = self._replies.pop(self._push(_copy(message)))
                twin.metadata.__dict__["_reply_to_message_id"] = number
                self.twins.append((self._replies[number], twin))
                self._struck.add(number)
                self._unasked += [twin, self._replies[number], twin]
        return number

    def _deliver_overtaken(self, message: Message) -> None:
        for late in self._overtaken[:]:
            to_same_node = late.metadata.dst_node_id == message.metadata.dst_node_id
            if to_same_node and _round(late) != _round(message):
                self._overtaken.remove(late)
                self.late.append(self._replies.pop(self._push(late)))
                self._unasked.append(self.late[-1])

    def _lose(self, message: Message) -> str:
        self._pushed += 1
        number = f"message-{self._pushed}"
        message.metadata.__dict__["_message_id"] = number
        return number

    def _fail(self, message: Message, code: int) -> None:
        number = message.metadata.message_id
        self._replies[number] = Message(Error(code, "as planned"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        now = self._clock.monotonic()
        for due, reply in self._delayed[:]:
            if due <= now:
                self._delayed.remove((due, reply))
                self._replies[reply.metadata.reply_to_message_id] = reply
        asked = list(message_ids)
        if not self._reordered.isdisjoint(self._replies):
            asked = [number for number in asked if number == [*self._replies][-1]]
        replies = super().pull_messages(asked)
        self._struck -= set(asked)
        unasked = [m for m in self._unasked if _request(m) not in self._struck]
        self._unasked = [m for m in self._unasked if _request(m) in self._struck]
        earlier = [] if self._reordered.isdisjoint(asked) else self._delivered
        came = [*earlier, *replies, *unasked]
        self._delivered = [*self._delivered, *replies][-EARLIER:]
        return came


class LyingGrid(InProcessGrid):
    """An in-process grid in which one party sends a wrong reply."""

    def __init__(
        self,
        parties: Sequence[Party],
        action: str,
        liar: int,
        lie: Callable[[Message, dict[str, Any], dict[str, Any]], RecordDict],
        place: int = 0,
    ) -> None:
        super().__init__(parties)
        self._where, self._lie, self._left = (f"train.{action}", liar), lie, place

    def _push(self, message: Message) -> str:
        number = super()._push(message)
        reply, metadata = self._replies[number], message.metadata
        where = metadata.message_type, metadata.dst_node_id - 1000
        if where == self._where and reply.has_content():
            if self._left == 0:
                reply.content = self._lie(message, *unpack(reply.content))
            self._left -= 1
        return number


class Changed(InProcessGrid):
    """Changes the replies of all parties in one step, with matching digests.

    `change` takes the values of each reply, in party order, and changes them in place.
    """

    def __init__(
        self,
        parties: Sequence[Party],
        action: str,
        change: Callable[[list[dict[str, Any]]], object],
    ) -> None:
        super().__init__(parties)
        self._action, self._change = action, change
        self._held: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Hold back the replies of the step until all have arrived."""
        messages = list(messages)
        numbers = super().push_messages(messages)
        for message, number in zip(messages, numbers, strict=True):
            reply = self._replies[number]
            asked = message.metadata.message_type == f"train.{self._action}"
            if asked and reply.has_content():
                values, frame = unpack(reply.content)
                del frame["digest"]
                self._held[number] = values, frame
        if len(self._held) == len(self._parties):
            self._change([values for values, _ in self._held.values()])
            for number, content in self._held.items():
                self._replies[number].content = pack(*content)
            self._held = {}
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return no reply of the step before all replies have arrived."""
        return [] if self._held else super().pull_messages(message_ids)


def of_party(place: int, **changes: Any) -> Callable[[list[dict[str, Any]]], None]:
    """Return a change of one party's reply: values by name, or functions of them.

    None leaves a value out.
    """

    def change(replies: list[dict[str, Any]]) -> None:
        values = replies[place]
        for name, value in changes.items():
            if value is None:
                del values[name]
            elif not callable(value):
                values[name] = value
            elif name in values:
                values[name] = value(values[name])

    return change


def of_all(**changes: Any) -> Callable[[list[dict[str, Any]]], object]:
    """Return the same change of each party's reply."""
    return lambda replies: [
        of_party(j, **changes)(replies) for j in range(len(replies))
    ]


def _request(reply: Message) -> str:
    return reply.metadata.reply_to_message_id


def _round(message: Message) -> Any:
    frame: Any = unbundle(message.content)["frame"]
    return frame.get("round", 0)


def _copy(message: Message) -> Message:
    return message_from_proto(message_to_proto(message))


def damage(content: RecordDict) -> None:
    """Flip one bit of the largest array, or of the digest if there is no array."""
    records: Any = unbundle(content) if BUNDLE in content else content
    if arrays := records["arrays"]:
        name = max(arrays, key=lambda name: len(arrays[name].data))
        array = arrays[name]
        data = bytearray(array.data)
        data[-1] ^= 1
        arrays[name] = Array(array.dtype, array.shape, array.stype, bytes(data))
    else:
        digest = records["frame"]["digest"]
        records["frame"]["digest"] = bytes([digest[0] ^ 1]) + digest[1:]
    if BUNDLE in content:
        content[BUNDLE] = bundle(records)[BUNDLE]
