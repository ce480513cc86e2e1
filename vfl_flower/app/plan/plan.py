"""The costs of a run, and who will learn what, before any row leaves a party."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from flwr.serverapp import Grid

from vfl_flower.app.plan.learned import Learned, table_of, who_learns
from vfl_flower.app.plan.rehearsal import Rehearsal, Shape, n_rows_of, quietly, rehearse
from vfl_flower.app.report.report import markdown_table
from vfl_flower.app.report.units import duration
from vfl_flower.party.answering import hello
from vfl_flower.protocol.terms import KINDS
from vfl_flower.server.exchange import Exchange
from vfl_flower.server.ledger import COUNTS, Entry, Ledger
from vfl_flower.server.strategy import ProtocolStrategy

log = logging.getLogger("vfl_flower")

MOST_ROWS = 20_000
"""Maximum number of rows in a rehearsal, in total if parties hold different rows."""
MOST_NUMBERS = 8_000_000
"""Maximum number of values in a rehearsal's rows, over all parties: 64 MB."""
FEW_ROWS = 1_000
"""Maximum number of rows in rehearsals that show which costs depend on the data."""
MESSAGE_BYTES = 2**25
"""Maximum number of bytes in a reply of a step that sends all rows in several messages;
a rehearsal on fewer rows can need only one message."""


@dataclass(frozen=True)
class RunPlan:
    """The costs of a run, and who will learn what."""

    strategy: ProtocolStrategy
    shapes: tuple[Shape, ...]
    learned: list[Learned]
    ledger: Ledger | None = None
    """Round trips, bytes and seconds by step and party; None without a rehearsal."""
    reason: str = ""
    """The reason why there is no ledger."""
    rows: int = 0
    """Number of rows in the largest rehearsal."""
    extended: bool = False
    """Whether the figures for all rows are extrapolated from fewer rows."""
    varying: dict[str, tuple[int, int]] | None = None
    """Steps whose costs depend on the data, with their round trips on few random rows
    and on few rows in clusters; None: unknown."""
    server_seconds: float = 0.0
    """Seconds that the server spends computing."""
    round_trip: float | None = None
    """Seconds of a round trip without computing, measured by ``hello``; None:
    ``hello`` was not sent."""

    @property
    def seconds(self) -> float | None:
        """Expected seconds of the run without the time to send bytes; None: unknown."""
        if self.ledger is None or self.round_trip is None:
            return None
        return self.ledger.round_trips * self.round_trip + self.computing

    @property
    def computing(self) -> float:
        """Seconds of computing by each step's slowest party and by the server."""
        slowest: dict[str, float] = {}
        for entry in self.ledger.entries.values() if self.ledger else ():
            before = slowest.get(entry.action, 0.0)
            slowest[entry.action] = max(before, entry.seconds_computed)
        return sum(slowest.values()) + self.server_seconds

    def __str__(self) -> str:
        """Return the plan as Markdown text."""
        sizes = [
            f"{shape.name or f'party-{j}'} ({shape.n_rows:,} rows, "
            f"{shape.n_columns:,} columns"
            f"{f', {shape.n_labels:,} labels' if shape.n_labels else ''})"
            for j, shape in enumerate(self.shapes)
        ]
        title = f"# Plan: {type(self.strategy).__name__}, {self.strategy.variant}"
        parts = [title, f"{len(sizes)} parties: {'; '.join(sizes)}.", "## Costs"]
        parts += [self.reason] if self.ledger is None else self._costs(self.ledger)
        parts += ["## Who learns what", table_of(self.learned)]
        parts += self._consent()
        return "\n\n".join(parts)

    def _costs(self, ledger: Ledger) -> list[str]:
        rows = [self._row(action, ledger.of(action)) for action in ledger.waits]
        header = [
            *("step", "round trips", "bytes to a party", "bytes from a party"),
            "bytes of all parties",
        ]
        return [
            markdown_table(header, [*rows, self._row("all", ledger)]),
            "Bytes to and from a party are the maximum over the parties.",
            self._time(ledger),
            self._basis(),
            *filter(None, [self.strategy.trade(n_rows_of(self.strategy, self.shapes))]),
        ]

    def _row(self, action: str, ledger: Ledger) -> list[str]:
        varies = self.varying is not None and action in self.varying
        down: Counter[str] = Counter()
        up: Counter[str] = Counter()
        for entry in ledger.entries.values():
            down[entry.party] += entry.bytes_down
            up[entry.party] += entry.bytes_up
        total = ledger.bytes_down + ledger.bytes_up
        figures = ledger.round_trips, max(down.values()), max(up.values()), total
        return [f"{action} *" if varies else action, *(f"{n:,}" for n in figures)]

    def _time(self, ledger: Ledger) -> str:
        total, each = "", "a few seconds each (on SuperNodes)"
        if self.seconds is not None and self.round_trip is not None:
            total = f"{duration(self.seconds)}, for "
            each = f"{duration(self.round_trip)}, as measured by `hello`,"
        return (
            f"Expected time: {total}{ledger.round_trips} round trips of {each} and "
            f"{duration(self.computing)} of computing at this machine's speed, without "
            "the time to send the bytes."
        )

    def _basis(self) -> str:
        all_rows = n_rows_of(self.strategy, self.shapes)
        rows = f"{self.rows:,} random rows"
        text = f"The figures come from a rehearsal in this process on {rows}"
        if self.extended:
            text += f", and on half of them; figures for all {all_rows:,} rows are "
            text += "extrapolated"
        elif self.rows < all_rows:
            text += f"; all {all_rows:,} rows need no more round trips or bytes"
        if self.varying is None:
            return f"{text}. It is unknown which figures depend on the data."
        if not self.varying:
            return (
                f"{text}. Other rows cost the same, but a solver that stops on "
                "convergence can take longer on real rows."
            )
        differ = "; ".join(
            f"`{action}` takes {random} and {clusters} round trips"
            for action, (random, clusters) in self.varying.items()
            if random != clusters
        )
        example = f". On few random rows and on few rows in clusters, {differ}"
        return (
            f"{text}. Figures of steps with * depend on the data, as a solver's "
            "iterations do. They are typical of random rows; the run can cost more or "
            f"less, within its settings{example if differ else ''}."
        )

    def _consent(self) -> list[str]:
        terms = self.strategy.terms
        kinds = "; ".join(f"`{kind}`: {KINDS[kind]}" for kind in terms.needs)
        text = "The consent of a party needs no line in `[leaves]`."
        if terms.needs:
            text = f"Each party's consent must permit these kinds: {kinds}."
            text += f" {terms.less}." if terms.less else ""
        for kind in terms.wants:
            text += (
                f" If a consent also permits `{kind}` ({KINDS[kind]}), the run uses "
                "this kind, but does not need it."
            )
        if len(self.shapes) == 2:
            text += " With two parties, a sum reveals the other party's contribution."
        if self.strategy.masking == "plain":
            text += " With masking 'plain' the server learns all contributions to sums."
        return [text]


def plan(
    strategy: ProtocolStrategy, shapes: Sequence[Shape], greeted: Ledger | None = None
) -> RunPlan:
    """Return the expected costs and disclosures of a run, without any data.

    `greeted` contains the costs of ``hello`` with the real parties. If there was no
    rehearsal, the plan states the reason, and contains no costs.
    """
    shapes = tuple(shapes)
    declared = RunPlan(strategy, shapes, who_learns([hello, *strategy.steps]))
    if strategy.task != "train":
        reason = (
            f"A plan has costs for training only: the task {strategy.task!r} uses "
            "local models that the parties store. The table lists everything that "
            "its steps can reveal."
        )
        return replace(declared, reason=reason)
    everything = n_rows_of(strategy, shapes)
    wanted = min(everything, strategy.enough_rows or everything)
    widths = [shape.n_columns for shape in shapes]
    width = max(widths) if strategy.partition == "horizontal" else sum(widths)
    rows = min(wanted, MOST_ROWS, max(1, MOST_NUMBERS // width))
    counts = [rows] if rows == wanted else [rows // 2, rows]
    growth = wanted / rows
    few_rows = min(rows, FEW_ROWS)
    varying: dict[str, tuple[int, int]] | None = None
    rehearsals: list[Rehearsal] = []
    with suppress(Exception), _rehearsing(few_rows):
        # These come first, since the very first rehearsal also waits for imports.
        clusters = rehearse(strategy, shapes, few_rows, clusters=True)
        random = rehearse(strategy, shapes, few_rows)
        varying = _varying(random, clusters)
        rehearsals += [random] if few_rows == wanted else []
    for count in counts[len(rehearsals) :]:
        try:
            with _rehearsing(count):
                part = strategy.scaled(count / wanted)
                rehearsals.append(rehearse(part, shapes, count))
        except Exception as error:  # strategies can raise any error
            few = f"{counts[0]:,} to " if len(counts) > 1 else ""
            reason = (
                f"There are no costs, since the rehearsal on {few}{rows:,} random rows "
                f"failed: {error or type(error).__name__}. The table lists "
                "everything that the steps can reveal."
            )
            return replace(declared, reason=reason)
    last = rehearsals[-1]
    ledger, seconds = last.ledger, last.seconds
    if len(rehearsals) > 1:
        ledger = _extended_ledger([r.ledger for r in rehearsals], growth, varying or ())
        seconds = extended([r.seconds for r in rehearsals], growth)
    round_trip = None
    if greeted is not None:
        ledger = Ledger(
            greeted.entries | _without_hello(ledger.entries),
            greeted.waits | _without_hello(ledger.waits),
        )
        computed = max(e.seconds_computed for e in greeted.entries.values())
        waited = greeted.seconds_waited - computed
        round_trip = max(0.0, waited) / greeted.round_trips
    # Real parties send more values in ``hello`` than rehearsals do, such as signatures.
    learned = [*who_learns([hello]), *who_learns(strategy.steps, last.ledger.seen)]
    return replace(
        declared,
        learned=learned,
        ledger=ledger,
        rows=rows,
        extended=len(rehearsals) > 1,
        varying=varying,
        server_seconds=seconds,
        round_trip=round_trip,
    )


def _without_hello(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return values by action, or by action and party, without ``hello``."""
    return {key: v for key, v in values.items() if hello.action not in (key, key[0])}


def _varying(random: Rehearsal, clusters: Rehearsal) -> dict[str, tuple[int, int]]:
    """Return the round trips of steps whose costs differ between the two rehearsals."""
    varying = {}
    for action in random.ledger.waits | clusters.ledger.waits:
        costs = random.ledger.of(action), clusters.ledger.of(action)
        trips, other_trips = (cost.round_trips for cost in costs)
        sizes = (cost.bytes_up + cost.bytes_down for cost in costs)
        if trips != other_trips or not math.isclose(*sizes, rel_tol=0.01):
            varying[action] = trips, other_trips
    return varying


def extended(values: Sequence[float], growth: float) -> float:
    """Extrapolate a cost to `growth` times the rows, on a line that does not fall.

    The line a + b n goes through `values`, which are the costs for n / 2 and n rows.
    """
    half, full = values
    return full + max(0.0, full - half) * 2 * (growth - 1)


def _extended_ledger(
    ledgers: Sequence[Ledger], growth: float, varying: Collection[str]
) -> Ledger:
    """Extrapolate ledgers for n / 2 and n rows to `growth` times n rows.

    A step whose costs depend on the data gets the larger of the two numbers of round
    trips, since a solver's iterations do not follow from the number of rows.
    """
    result = Ledger()
    trips = {
        action: [len(ledger.waits.get(action, ())) for ledger in ledgers]
        for action in ledgers[-1].waits
    }
    for (action, party), entry in ledgers[-1].entries.items():
        entries = [x.entries.get((action, party), Entry("", "")) for x in ledgers]
        times, shares = 1, [1] * len(ledgers)
        if action in varying:
            times, shares = max(trips[action]), [max(1, n) for n in trips[action]]
        counts: dict[str, Any] = {}
        for name in COUNTS:
            pairs = zip(entries, shares, strict=True)
            each = [getattr(e, name) / share for e, share in pairs]
            counts[name] = round(times * extended(each, growth))
        # Seconds vary too much for a line: assume them proportional to the rows.
        for name in ("seconds_computed", "seconds_answered"):
            counts[name] = getattr(entry, name) * growth
        result.entries[action, party] = Entry(action, party, **counts)
    for action, waits in ledgers[-1].waits.items():
        of_step = (e for e in result.entries.values() if e.action == action)
        least = math.ceil(max(e.bytes_up for e in of_step) / MESSAGE_BYTES)
        count = math.ceil(extended(trips[action], growth))
        if action in varying:
            count, least = max(trips[action]), 0
        result.waits[action] = [sum(waits) / len(waits)] * max(least, count)
    return result


@contextmanager
def _rehearsing(rows: int) -> Iterator[None]:
    """Log that a rehearsal starts, and hide the rehearsal's own log."""
    log.info("dry run: rehearsing on %s random rows", f"{rows:,}")
    with quietly():
        yield


def dry_run(
    grid: Grid, strategies: Mapping[str, ProtocolStrategy], timeout: float
) -> str:
    """Send ``hello`` to the parties for each strategy, and return the plans as text.

    Raises the errors of a run before its first step, such as a party's refusal.
    """
    met = []
    for strategy in strategies.values():
        strategy.check()
        log.info("dry run: sending hello to the parties")
        ledger = Ledger()
        parties = strategy.greet(Exchange(grid, ledger, timeout))
        shapes = [Shape.of(info) for info in parties]
        met.append((strategy, shapes, ledger))
    plans = [str(plan(*greeting)) for greeting in met]
    sent = "This was a dry run: `hello` was sent to the parties, and nothing else."
    return "\n\n".join([*plans, sent])
