"""The progress of a run, as log lines that contain no value of the data.

The server logs a line when the parties have answered a step for the first time, and
then every few seconds; ``vfl-flower run`` shows the text after ``progress:``.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence

from flwr.app import Message

from vfl_flower.app.plan.rehearsal import Rehearsal, Shape, n_rows_of, quietly, rehearse
from vfl_flower.app.report.units import clock, size
from vfl_flower.server.ledger import Ledger
from vfl_flower.server.parties import Parties
from vfl_flower.server.strategy import ProtocolStrategy
from vfl_flower.simulation import InProcessGrid

log = logging.getLogger("vfl_flower")

EVERY = 5.0
"""Seconds between two lines of the same step."""

FEW_ROWS = 300
"""Number of rows in the rehearsals that count the round trips of a run."""

PATIENCE = 5.0
"""Maximum seconds of computing in rehearsals, during which the parties wait."""

LINE = re.compile(r"progress: ((?: {5}|[ \d]{3}% )(\S+) +round trip .*)")
"""Matches a line of :func:`line_of`, with groups for the shown text and the step."""


def line_of(step: str, trips: int, planned: int, n_bytes: int, seconds: float) -> str:
    """Return a line of progress, in columns of the same widths for all steps.

    `trips` is the number of round trips so far, `planned` the number in the whole run
    (0: unknown), and `n_bytes` the number of bytes sent in both directions.
    """
    share = f"{trips / planned:4.0%} " if planned else " " * 5
    left = f", {clock((planned - trips) * seconds / trips)} left" if planned else ""
    return (
        f"progress: {share}{step:<24} round trip {trips:>4}, {size(n_bytes):>8}, "
        f"{clock(seconds)}{left}"
    )


class Reporter:
    """Logs the progress of a run: a :class:`~vfl_flower.server.strategy.Watch`."""

    def __init__(self, say: Callable[[str], None] = log.info) -> None:
        self._say, self._start = say, time.monotonic()
        self._planned, self._last = 0, -EVERY
        self._seen: set[str] = set()

    def greeted(
        self, strategy: ProtocolStrategy, parties: Parties, ledger: Ledger
    ) -> None:
        """Estimate the number of round trips of the run."""
        shapes = [Shape.of(info) for info in parties]
        trips = planned_trips(strategy, shapes)
        self._planned = ledger.round_trips + trips if trips else 0

    def round_trip(self, ledger: Ledger, action: str) -> None:
        """Log a line if the step is new, or the last line is some seconds old."""
        now, trips = time.monotonic(), ledger.round_trips
        if trips > self._planned:  # the data need more round trips than random rows
            self._planned = 0
        last = trips == self._planned
        if action in self._seen and now - self._last < EVERY and not last:
            return
        self._seen.add(action)
        self._last = now
        n_bytes = ledger.bytes_up + ledger.bytes_down
        seconds = now - self._start
        self._say(line_of(action, trips, self._planned, n_bytes, seconds))


def planned_trips(strategy: ProtocolStrategy, shapes: Sequence[Shape]) -> int:
    """Return the number of round trips that follow ``hello`` in a run; 0 if unknown.

    The number is known if two rehearsals, on few random rows and on few rows in
    clusters, finish soon and take the same number of round trips.
    """
    if strategy.task != "train":
        return 0
    everything = n_rows_of(strategy, shapes)
    wanted = min(everything, strategy.enough_rows or everything)
    rows = min(wanted, FEW_ROWS)
    deadline = time.thread_time() + PATIENCE

    class Hasty(InProcessGrid):
        """A grid whose run fails when it takes too long."""

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
    except Exception:  # the run will raise the same error
        return 0
    return random if random == clusters else 0
