"""Costs of a run: round trips, messages, bytes, scalars and seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, field, fields
from typing import Any

from vfl_flower.protocol.terms import Kind


@dataclass
class Entry:
    """Costs of one action with one party."""

    action: str
    party: str
    messages: int = 0  # sent to the party, including repeated ones
    bytes_down: int = 0  # serialised content from the server
    bytes_up: int = 0
    units_down: int = 0  # scalars in the arrays from the server, the papers' unit
    units_up: int = 0
    seconds_computed: float = 0.0  # in the step, by the party's own clock
    seconds_answered: float = 0.0
    """Time until the party's replies arrived, by the server's clock: the time to send
    its requests, plus the time since the requests to all parties were sent."""


COUNTS = tuple(field.name for field in fields(Entry))[2:]  # what an entry counts


@dataclass
class Seen:
    """The declared values of a step that were sent in any of its messages."""

    request: set[str] = field(default_factory=set)
    reply: set[str] = field(default_factory=set)
    kinds: set[Kind] = field(default_factory=set)
    """Kinds of data that the step revealed in answer to its requests."""


@dataclass
class Ledger:
    """Costs of one run.

    ``round_trips``, ``messages``, ``bytes_up``, ``bytes_down``, ``units``,
    ``seconds_waited`` and ``seconds_computed`` are totals; ``entries`` lists them by
    action and party.

    Attributes
    ----------
    entries : dict
        One :class:`Entry` for each (action, party), in the order of the first message.
    waits : dict
        For each action, the seconds that the server waited in each round trip.
    clips : dict
        For each action, the total number of values that the parties clipped to the
        bound of a fixed-point sum, not counting requests that were repeated with a
        wider bound.
    seen : dict
        One :class:`Seen` for each action except ``hello``.
    watch : callable or None
        Called with the ledger and the action after each round trip, for instance to
        show progress.

    Examples
    --------
    >>> ledger = Ledger()
    >>> ledger.entry("hello", "clinic").bytes_up += 300
    >>> ledger.round_trip("hello", seconds=0.5)
    >>> ledger.round_trips, ledger.bytes_up
    (1, 300)
    """

    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)
    waits: dict[str, list[float]] = field(default_factory=dict)
    clips: dict[str, int] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)
    watch: Callable[[Ledger, str], None] | None = field(
        default=None, repr=False, compare=False
    )

    def entry(self, action: str, party: str) -> Entry:
        """Return the entry of an action and a party; create it if it is missing."""
        return self.entries.setdefault((action, party), Entry(action, party))

    def rename(self, names: dict[str, str]) -> None:
        """Rename parties by the mapping `names`, and put them in its order."""
        place = {party: order for order, party in enumerate(names, start=1)}
        before = sorted(self.entries.values(), key=lambda e: place.get(e.party, 0))
        self.entries = {}
        for entry in before:
            renamed = self.entry(entry.action, names.get(entry.party, entry.party))
            for name in COUNTS:  # after a resume a party may have entries already
                setattr(renamed, name, getattr(renamed, name) + getattr(entry, name))

    def round_trip(self, action: str, seconds: float) -> None:
        """Count one round trip and the time that the server waited for it."""
        self.waits.setdefault(action, []).append(seconds)
        if self.watch is not None:
            self.watch(self, action)

    def of(self, *actions: str) -> Ledger:
        """Return only the costs of some actions."""
        return Ledger(
            {key: entry for key, entry in self.entries.items() if key[0] in actions},
            {name: waits for name, waits in self.waits.items() if name in actions},
            {name: count for name, count in self.clips.items() if name in actions},
            {name: seen for name, seen in self.seen.items() if name in actions},
        )

    def _sum(self, name: str) -> Any:
        return sum(getattr(entry, name) for entry in self.entries.values())

    @property
    def round_trips(self) -> int:
        """Number of round trips, including ``hello``."""
        return sum(len(seconds) for seconds in self.waits.values())

    @property
    def messages(self) -> int:
        """Number of messages sent by the server."""
        return int(self._sum("messages"))

    @property
    def bytes_up(self) -> int:
        """Number of bytes that the parties sent."""
        return int(self._sum("bytes_up"))

    @property
    def bytes_down(self) -> int:
        """Number of bytes that the server sent."""
        return int(self._sum("bytes_down"))

    @property
    def units(self) -> int:
        """Number of scalars sent in both directions, for comparison with a paper."""
        return int(self._sum("units_up") + self._sum("units_down"))

    @property
    def clipped(self) -> int:
        """Number of values clipped in fixed-point sums, which are then not exact."""
        return sum(self.clips.values())

    @property
    def seconds_waited(self) -> float:
        """Seconds that the server waited for replies."""
        return sum(sum(seconds) for seconds in self.waits.values())

    @property
    def seconds_computed(self) -> float:
        """Seconds that all parties together spent computing."""
        return float(self._sum("seconds_computed"))

    def to_dict(self) -> dict[str, Any]:
        """Return totals and entries as plain numbers and strings, for JSON."""
        totals = (name for name, kind in vars(Ledger).items() if type(kind) is property)
        return {name: getattr(self, name) for name in totals} | {
            "waits": self.waits,
            "entries": [asdict(entry) for entry in self.entries.values()],
        }

    def table(self) -> str:
        """Return the entries as an aligned table of text."""
        formats = {str: "", int: ",", float: ".3f"}
        entries = map(astuple, self.entries.values())
        rows = [[f.name.replace("_", " ") for f in fields(Entry)]]
        rows += [[format(v, formats[type(v)]) for v in values] for values in entries]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        # Text is left-aligned, and numbers are right-aligned.
        line = "  ".join(f"{{:{'<>'[i > 1]}{width}}}" for i, width in enumerate(widths))
        return "\n".join(line.format(*row).rstrip() for row in rows)
