"""How far a run is, in lines that people and programs read: no value of the data.

The server logs a line when the parties have answered a step for the first time, and
then every few seconds; ``vfl-flower run`` reads these lines back.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flwr.app import Message

from vfl_flower.app.plan.rehearsal import Rehearsal, Shape, n_rows_of, quietly, rehearse
from vfl_flower.server.ledger import Ledger
from vfl_flower.server.parties import Parties
from vfl_flower.server.strategy import ProtocolStrategy
from vfl_flower.simulation import InProcessGrid

log = logging.getLogger("vfl_flower")

EVERY = 5.0
"""Seconds between two lines of the same step."""

FEW_ROWS = 300
"""Rows of the rehearsals that count the round trips of a run."""

PATIENCE = 5.0
"""Seconds that the rehearsals may compute: the parties wait meanwhile."""

_LINE = re.compile(
    r"progress: step (\S+), round trip (\d+)(?: of (\d+) \(\d+ %\))?, "
    r"([\d,]+) bytes, (\d+) s(?:, about \d+ s left)?"
)


@dataclass(frozen=True)
class Progress:
    """How far a run is; as text it is the line that the server logs."""

    step: str
    trips: int
    """Round trips so far."""
    planned: int
    """Round trips of the whole run; 0: unknown."""
    n_bytes: int
    """Bytes sent so far, in both directions."""
    seconds: float
    """Time since the run started."""

    @property
    def share(self) -> float | None:
        """Share of the round trips that is done; None: unknown."""
        return self.trips / self.planned if self.planned else None

    @property
    def left(self) -> float | None:
        """Seconds that the other round trips take, if they are as long; or None."""
        if not self.planned:
            return None
        return (self.planned - self.trips) * self.seconds / self.trips

    def __str__(self) -> str:
        """Return the line, which :meth:`parse` reads."""
        trips, left = f"round trip {self.trips}", ""
        if self.share is not None and self.left is not None:
            trips += f" of {self.planned} ({self.share:.0%})".replace("%", " %")
            left = f", about {self.left:.0f} s left"
        return (
            f"progress: step {self.step}, {trips}, {self.n_bytes:,} bytes, "
            f"{self.seconds:.0f} s{left}"
        )

    @classmethod
    def parse(cls, line: str) -> Progress | None:
        """Return what a line of a log says, or None where it is another one."""
        match = _LINE.fullmatch(line.strip())
        if match is None:
            return None
        step, trips, planned, sent, seconds = match.groups(default="0")
        n_bytes = int(sent.replace(",", ""))
        return cls(step, int(trips), int(planned), n_bytes, float(seconds))


class Reporter:
    """Logs how far a run is: a :class:`~vfl_flower.server.strategy.Watch`."""

    def __init__(self, say: Callable[[str], None] = log.info) -> None:
        self._say, self._start = say, time.monotonic()
        self._planned, self._last = 0, -EVERY
        self._seen: set[str] = set()

    def greeted(
        self, strategy: ProtocolStrategy, parties: Parties, ledger: Ledger
    ) -> None:
        """Count the round trips that are to come."""
        shapes = [Shape.of(info) for info in parties]
        trips = planned_trips(strategy, shapes)
        self._planned = ledger.round_trips + trips if trips else 0

    def round_trip(self, ledger: Ledger, action: str) -> None:
        """Log a line where the step is new, or the last line is some seconds old."""
        now, trips = time.monotonic(), ledger.round_trips
        if trips > self._planned:  # the data need more than random rows did
            self._planned = 0
        last = trips == self._planned
        if action in self._seen and now - self._last < EVERY and not last:
            return
        self._seen.add(action)
        self._last = now
        n_bytes = ledger.bytes_up + ledger.bytes_down
        seconds = now - self._start
        self._say(str(Progress(action, trips, self._planned, n_bytes, seconds)))


def planned_trips(strategy: ProtocolStrategy, shapes: Sequence[Shape]) -> int:
    """Return the round trips of a run after ``hello``, or 0 where they are not known.

    They are known where few random rows and few in clusters take as many, and not long.
    """
    if strategy.task != "train":
        return 0
    everything = n_rows_of(strategy, shapes)
    wanted = min(everything, strategy.enough_rows or everything)
    rows = min(wanted, FEW_ROWS)
    deadline = time.thread_time() + PATIENCE

    class Hasty(InProcessGrid):
        """A grid whose run ends when it takes too long."""

        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            if time.thread_time() > deadline:
                raise TimeoutError
            return super().push_messages(messages)

    def trips(clusters: bool) -> int:
        scaled = strategy.scaled(rows / wanted)
        done: Rehearsal = rehearse(scaled, shapes, rows, clusters, grid=Hasty)
        return done.ledger.round_trips - 1

    try:
        with quietly():
            random, clusters = trips(False), trips(True)
    except Exception:  # whatever a strategy raises, the run will say it
        return 0
    return random if random == clusters else 0
