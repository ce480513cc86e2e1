"""What a run will cost, and who will learn what, before any row leaves a party.

A plan rehearses a strategy in this process on random rows of the parties' shapes, and
reads who learns what from the declarations of the steps. So it needs nothing from the
strategy, whichever package that comes from. Without parties, this prints for every
strategy who learns what, as Markdown::

    python -m vfl_flower.app.plan
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from vfl_flower.app.config import check_run_config, make_strategy
from vfl_flower.app.report import markdown_table
from vfl_flower.protocol.answering import hello
from vfl_flower.protocol.consent import KINDS, Kind, in_order
from vfl_flower.protocol.contract import Field
from vfl_flower.protocol.ledger import COUNTS, Entry, Ledger
from vfl_flower.protocol.party import Party
from vfl_flower.protocol.steps import STEPS, Step
from vfl_flower.protocol.strategy import ProtocolStrategy
from vfl_flower.simulation import InProcessGrid, apart
from vfl_flower.strategies import ALGORITHMS
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

MOST_ROWS = 20_000
"""Most rows of a rehearsal, of all parties where they hold different rows."""
MOST_NUMBERS = 8_000_000
"""Most numbers in the rows of a rehearsal, at all parties together: 64 MB."""
FEW_ROWS = 1_000
"""Most rows of the rehearsals that look for what depends on the data."""
MESSAGE_BYTES = 2**25
"""Most bytes of one reply where a step sends all rows, in as many messages as it takes:
a rehearsal on fewer rows may need only one of them."""
LINEAR = 1.8
"""Growth from one doubling of the rows to the next that counts as proportional to the
rows: the next doubling then adds twice as much."""


class Shape(NamedTuple):
    """The size of a party's data.

    Attributes
    ----------
    n_rows, n_columns, n_labels : int
        Numbers of rows and columns, and of rows whose label the party knows.
    name : str
        Default: ``party-<index>``.
    """

    n_rows: int
    n_columns: int
    n_labels: int = 0
    name: str = ""


# -- who learns what -------------------------------------------------------------------


class Learned(NamedTuple):
    """What somebody learns from a step, in words.

    Attributes
    ----------
    step : str
        Action of the step.
    values : tuple of str
        Names of the values, all of which travel in the same way.
    how : str
        How they travel.
    who : str
        Who learns them.
    kinds : tuple of str
        What the step reveals beyond sums, as a party's consent calls it.
    """

    step: str
    values: tuple[str, ...]
    how: str
    who: str
    kinds: tuple[str, ...] = ()


_LEAVES = {
    "clear": ("in the clear", "the server, of each party"),
    "sum": ("under a mask", "the server, only the sum over all parties"),
    "sealed": (
        "under a mask and a pad",
        "the party that the sum is for, only the sum over all parties; not the server",
    ),
    "secret": ("encrypted for each other party", "the other parties; not the server"),
    "next": ("encrypted for the next party", "the next party; not the server"),
}
_BY_SERVER = "told by the server"
_TOLD = {
    "common": (_BY_SERVER, "the parties"),
    "own": (_BY_SERVER, "each party its own"),
}


@dataclass
class Seen:
    """What a rehearsal has seen of a step.

    Attributes
    ----------
    request, reply : set of str
        Values that were sent.
    kinds : set of str
        What the requests made it reveal.
    """

    request: set[str] = field(default_factory=set)
    reply: set[str] = field(default_factory=set)
    kinds: set[Kind] = field(default_factory=set)


def who_learns(
    steps: Iterable[Step[..., Any]], seen: Mapping[str, Seen] | None = None
) -> list[Learned]:
    """Return who learns what from steps, by their declarations.

    Parameters
    ----------
    steps : iterable of Step
        The steps, such as those of a strategy.
    seen : mapping of str to Seen, optional
        What a rehearsal has seen, by action: only that is returned.

    Returns
    -------
    list of Learned
        For each step what leaves a party, by the way in which it leaves, and then what
        the server tells the parties; not what it only passes on to them.
    """
    rows = []
    for step in steps:
        if seen is not None and step.action not in seen:
            continue
        of_step = Seen() if seen is None else seen[step.action]
        if seen is None:
            kinds = tuple(_conditional(r.kind, r.when) for r in step.reveals)
        else:
            kinds = in_order(of_step.kinds)
        for fields, ways, sent, what in (
            (step.contract.reply, _LEAVES, of_step.reply, kinds),
            (step.contract.request, _TOLD, of_step.request, ()),
        ):
            groups: dict[str, list[str]] = {}
            for name, declared in fields.items():
                if seen is None or name in sent:
                    groups.setdefault(_way(declared, ways), []).append(name)
            rows += [
                Learned(step.action, tuple(groups[way]), *words, what)
                for way, words in ways.items()
                if way in groups
            ]
    return rows


def _conditional(kind: Kind, when: str) -> str:
    if not when:
        return kind
    name = when.removeprefix("not ")
    return f"{kind} ({'without' if name != when else 'with'} {name})"


def _way(declared: Field, ways: Mapping[str, Any]) -> str:
    """Return how a value travels; for an input that others have sent, nothing."""
    if ways is _LEAVES:
        return declared.leaves.how if declared.leaves else "clear"
    if declared.leaves:
        return ""
    return declared.told.how if declared.told else "common"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table of words."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(row: Learned) -> list[str]:
    values = ", ".join(f"`{value}`" for value in row.values)
    return [f"`{row.step}`", values, row.how, row.who, ", ".join(row.kinds)]


# -- rehearsals ------------------------------------------------------------------------


class Watched(InProcessGrid):
    """A grid that notes which values are sent.

    Attributes
    ----------
    seen : dict of str to Seen
        By the action of a step.
    """

    def __init__(self, parties: Sequence[Party]) -> None:
        super().__init__(parties)
        self.seen: dict[str, Seen] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Note what the server sends."""
        messages = list(messages)
        for message in messages:
            step, seen = self._of(message)
            values = _values(message.content, step.contract.request)
            seen.request |= values.keys()
            seen.kinds |= {r.kind for r in step.reveals if r.applies(values)}
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Note what the parties send."""
        replies = super().pull_messages(message_ids)
        for message in replies:
            if message.has_content():
                step, seen = self._of(message)
                seen.reply |= _values(message.content, step.contract.reply).keys()
        return replies

    def _of(self, message: Message) -> tuple[Step[..., Any], Seen]:
        action = message.metadata.message_type.partition(".")[2]
        step = hello if action == hello.action else STEPS[action]
        return step, self.seen.setdefault(action, Seen())


def _values(content: RecordDict, fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return the declared values that a message has; True for one of several parts."""
    settings, arrays = content["settings"], content["arrays"]
    values: dict[str, Any] = {}
    for name in [*settings, *arrays]:
        head = name.partition(".")[0]
        if head not in fields:
            head = head.rpartition("_")[0]
        values[head] = settings[name] if head == name in settings else True
    return values


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal has cost and shown.

    Attributes
    ----------
    ledger : Ledger
        Its costs.
    seen : dict of str to Seen
        What was sent.
    seconds : float
        Time that the server computed.
    """

    ledger: Ledger
    seen: dict[str, Seen]
    seconds: float

    def sizes(self, action: str) -> tuple[int, int]:
        """Return the round trips of a step, and its bytes."""
        ledger = self.ledger.of(action)
        return ledger.round_trips, ledger.bytes_up + ledger.bytes_down


_LABELS: tuple[Callable[[np.random.Generator, int], Array], ...] = (
    lambda rng, n: rng.normal(size=n),
    lambda rng, n: rng.integers(10, size=n).astype(np.float64),
    lambda rng, n: rng.integers(2, size=n).astype(np.float64),
)
"""Labels to try, one after the other: numbers, ten classes, two classes."""


def rehearse(
    strategy: ProtocolStrategy,
    shapes: Sequence[Shape],
    rows: int | None = None,
    clusters: bool = False,
    grid: Callable[[Sequence[Party]], Watched] = Watched,
) -> Rehearsal:
    """Run a strategy on random rows: so many of them; None: as many as there are.

    With `clusters` the rows are five points with little noise. `grid` carries the
    messages.
    """
    share = 1.0 if rows is None else rows / _n_rows(strategy, shapes)
    labelled = any(shape.n_labels for shape in shapes)
    draws = _LABELS if labelled else _LABELS[:1]
    for last, draw in enumerate(draws, start=1 - len(draws)):
        rng = np.random.default_rng(0)
        parties, known = [], 0
        for shape in shapes:
            n = max(1, round(shape.n_rows * share))
            X = strategy.random_rows(rng, n, shape.n_columns)
            if clusters:
                # A row is in the same cluster at all parties, which makes them alike.
                which = np.random.default_rng(1).integers(min(5, n), size=n)
                X = 0.99 * X[which] + 0.01 * X
            y = None
            if shape.n_labels:
                # Label holders know labels of different rows, where they can.
                count = min(n, max(1, round(shape.n_labels * share)))
                y = np.full(n, np.nan)
                y[np.arange(known, known + count) % n] = draw(rng, count)
                known += count
            ids = np.arange(n) if strategy.partition == "either" else None
            parties.append(Party(X, y, ids, shape.name or None))
            if strategy.unites:
                levels = min(n, 10)
                rows_of = {f"level {k}": n // levels for k in range(levels)}
                parties[-1].texts = {"text": rows_of}
        with apart():
            watched = grid(parties)
            start = time.perf_counter()
            try:
                # Nobody watches a rehearsal.
                ledger = strategy.replace().start(watched).ledger
            except Exception:
                if last == 0:
                    raise
                continue
            seconds = time.perf_counter() - start - ledger.seconds_waited
            return Rehearsal(ledger, watched.seen, max(0.0, seconds))
    raise AssertionError  # the last labels return or raise


def _n_rows(strategy: ProtocolStrategy, shapes: Sequence[Shape]) -> int:
    """Return the number of rows of a run."""
    counts = [shape.n_rows for shape in shapes]
    return sum(counts) if strategy.partition == "horizontal" else max(counts)


@contextmanager
def quietly() -> Iterator[None]:
    """Keep what a rehearsal says from the log of the run."""
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


# -- plans -----------------------------------------------------------------------------


@dataclass(frozen=True)
class RunPlan:
    """What a run will cost, and who will learn what.

    Attributes
    ----------
    strategy : ProtocolStrategy
        What is to run.
    shapes : tuple of Shape
        The parties.
    learned : list of Learned
        Who learns what.
    ledger : Ledger or None
        Round trips, bytes and seconds of computing, by step and party; None: the
        strategy was not rehearsed.
    reason : str
        Why it was not.
    rows : int
        Rows of the largest rehearsal.
    extended : bool
        Whether the figures of all rows were computed from those of fewer.
    varying : dict of str to (int, int), or None
        Steps whose costs depend on the values of the data, and their round trips on few
        rows without a pattern, and on few in clusters; None: that is not known.
    server_seconds : float
        Time that the server computes.
    round_trip : float or None
        Seconds of one round trip besides computing, as ``hello`` took them; None:
        nobody was greeted.
    """

    strategy: ProtocolStrategy
    shapes: tuple[Shape, ...]
    learned: list[Learned]
    ledger: Ledger | None = None
    reason: str = ""
    rows: int = 0
    extended: bool = False
    varying: dict[str, tuple[int, int]] | None = None
    server_seconds: float = 0.0
    round_trip: float | None = None

    @property
    def seconds(self) -> float | None:
        """Seconds that the run takes, without the time for the bytes; None: unknown."""
        if self.ledger is None or self.round_trip is None:
            return None
        return self.ledger.round_trips * self.round_trip + self.computing

    @property
    def computing(self) -> float:
        """Seconds of computing: of each step's slowest party, and of the server."""
        slowest: dict[str, float] = {}
        for entry in self.ledger.entries.values() if self.ledger else ():
            before = slowest.get(entry.action, 0.0)
            slowest[entry.action] = max(before, entry.seconds_computed)
        return sum(slowest.values()) + self.server_seconds

    def __str__(self) -> str:
        """Return the plan as text, which is Markdown."""
        return self.to_markdown()

    def to_markdown(self) -> str:
        """Return the plan as Markdown."""
        names = [s.name or f"party-{j}" for j, s in enumerate(self.shapes)]
        sizes = [
            f"{name} ({shape.n_rows:,} rows, {shape.n_columns:,} columns"
            f"{f', {shape.n_labels:,} labels' if shape.n_labels else ''})"
            for name, shape in zip(names, self.shapes, strict=True)
        ]
        title = f"# Plan: {type(self.strategy).__name__}, {self.strategy.variant}"
        parts = [title, f"{len(sizes)} parties: {'; '.join(sizes)}.", "## Costs"]
        parts += [self.reason] if self.ledger is None else self._costs(self.ledger)
        parts += ["## Who learns what", _table(_HEADER, map(_cells, self.learned))]
        parts += self._consent()
        return "\n\n".join(parts)

    def _costs(self, ledger: Ledger) -> list[str]:
        """Return the table of costs, and what to know of it."""
        actions = list(ledger.waits)
        rows = [self._row(action, ledger.of(action)) for action in actions]
        header = [
            *("step", "round trips", "bytes to a party", "bytes from a party"),
            "bytes of all parties",
        ]
        table = markdown_table(header, [*rows, self._row("all", ledger)])
        return [
            table,
            "Bytes to and from a party are those of the party that has most of them.",
            self._time(ledger),
            self._basis(),
            *filter(None, [self.strategy.trade(_n_rows(self.strategy, self.shapes))]),
        ]

    def _row(self, action: str, ledger: Ledger) -> list[str]:
        varies = self.varying is not None and action in self.varying
        down: dict[str, int] = {}
        up: dict[str, int] = {}
        for entry in ledger.entries.values():
            down[entry.party] = down.get(entry.party, 0) + entry.bytes_down
            up[entry.party] = up.get(entry.party, 0) + entry.bytes_up
        total = ledger.bytes_down + ledger.bytes_up
        figures = ledger.round_trips, max(down.values()), max(up.values()), total
        return [f"{action} *" if varies else action, *(f"{n:,}" for n in figures)]

    def _time(self, ledger: Ledger) -> str:
        computing = f"{_duration(self.computing)} of computing, by this machine's speed"
        network = "the time that the network takes for the bytes comes on top"
        if self.seconds is None:
            return (
                f"Expected time: {ledger.round_trips} round trips (on SuperNodes a few "
                f"seconds each) and {computing}; {network}."
            )
        return (
            f"Expected time: {_duration(self.seconds)}, which is {ledger.round_trips} "
            f"round trips of {_duration(self.round_trip or 0.0)}, as `hello` took, and "
            f"{computing}; {network}."
        )

    def _basis(self) -> str:
        """Say what the figures come from."""
        all_rows = _n_rows(self.strategy, self.shapes)
        text = (
            "The figures come from a rehearsal in this process on "
            f"{self.rows:,} random rows"
        )
        if self.extended:
            text += (
                ", and on a half and a quarter of them: those of all "
                f"{all_rows:,} rows follow from how they grow, and are estimates"
            )
        elif self.rows < all_rows:
            text += (
                f": all {all_rows:,} rows take no more round trips and no more bytes"
            )
        if self.varying is None:
            return f"{text}. Which figures depend on the values is not known."
        if not self.varying:
            return (
                f"{text}. Rows of another kind cost the same; a solver that stops when "
                "it has converged can still take longer on the real ones."
            )
        differ = "; ".join(
            f"`{action}` {random} and {clusters} round trips"
            for action, (random, clusters) in self.varying.items()
            if random != clusters
        )
        example = f". On few rows without a pattern and in clusters: {differ}"
        return (
            f"{text}. Those of the steps with * depend on the values, such as on how "
            "many iterations a solver takes: they are typical of random rows, and the "
            "run can cost more or less, up to what its settings allow"
            f"{example if differ else ''}."
        )

    def _consent(self) -> list[str]:
        """Return what a party's consent must allow."""
        needs = self.strategy.needs
        kinds = "; ".join(f"`{kind}`: {KINDS[kind]}" for kind in needs)
        text = "The consent of a party needs no line in `[leaves]`."
        if needs:
            text = f"The consent of each party must let these leave it: {kinds}."
            less = self.strategy.needs_less
            text += f" {less[0].upper()}{less[1:]}." if less else ""
        if len(self.shapes) == 2:
            text += " Of two parties, one that learns a sum knows the other's part."
        if self.strategy.masking == "plain":
            text += " With masking 'plain' the server learns each addend of all sums."
        return [text]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.{1 if seconds >= 10 else 2}f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def plan(
    strategy: ProtocolStrategy,
    shapes: Sequence[Shape],
    greeted: Ledger | None = None,
) -> RunPlan:
    """Return what a run will cost and show, without any data.

    Parameters
    ----------
    strategy : ProtocolStrategy
        The strategy to run; it is not changed.
    shapes : sequence of Shape
        The size of each party's data, in party order.
    greeted : Ledger, optional
        The costs of ``hello`` with the real parties.

    Returns
    -------
    RunPlan
        Without costs where the strategy cannot be rehearsed; it then says why.

    Raises
    ------
    ValueError
        The run needs another number of parties.
    """
    shapes = tuple(shapes)
    fits = strategy.n_parties in (0, len(shapes))
    if not fits or len(shapes) < strategy.least_parties:
        raise ValueError(
            f"shapes must be of the {strategy.n_parties or strategy.least_parties} "
            f"parties that the run needs{' at least' * (not strategy.n_parties)}, got "
            f"{len(shapes)}"
        )
    declared = RunPlan(strategy, shapes, who_learns([hello, *strategy.steps]))
    if strategy.task != "train":
        reason = (
            f"A plan has the costs of training only: the task {strategy.task!r} works "
            "on what the parties keep of a trained model. The table has all that its "
            "steps may show."
        )
        return replace(declared, reason=reason)
    everything = _n_rows(strategy, shapes)
    wanted = min(everything, strategy.enough_rows or everything)
    widths = [shape.n_columns for shape in shapes]
    width = max(widths) if strategy.partition == "horizontal" else sum(widths)
    rows = min(wanted, MOST_ROWS, max(1, MOST_NUMBERS // width))
    counts = [rows] if rows == wanted else [rows // 4, rows // 2, rows]
    doublings = math.log2(wanted / rows)
    with quietly():
        # First, since the first rehearsal also waits for imports.
        varying = _varying(strategy, shapes, min(rows, FEW_ROWS))
        try:
            rehearsals = [
                rehearse(strategy.scaled(count / wanted), shapes, count)
                for count in counts
            ]
        except Exception as error:  # whatever a strategy raises is what there is to say
            few = f"{counts[0]:,} to " if len(counts) > 1 else ""
            reason = (
                f"The run was not rehearsed, since it failed on {few}{rows:,} random "
                f"rows: {error or type(error).__name__}. The table has all that its "
                "steps may show."
            )
            return replace(declared, reason=reason)
    last = rehearsals[-1]
    ledger, seconds = last.ledger, last.seconds
    if len(rehearsals) > 1:
        ledger = _extended_ledger(
            [r.ledger for r in rehearsals], doublings, varying or ()
        )
        seconds = extended([r.seconds for r in rehearsals], doublings)
    round_trip = None
    if greeted is not None:
        ledger = Ledger(
            greeted.entries | _without_hello(ledger.entries),
            greeted.waits | _without_hello(ledger.waits),
        )
        computed = max(e.seconds_computed for e in greeted.entries.values())
        waited = greeted.seconds_waited - computed
        round_trip = max(0.0, waited) / greeted.round_trips
    return RunPlan(
        strategy,
        shapes,
        # Real parties send more in ``hello`` than rehearsed ones, such as signatures.
        [*who_learns([hello]), *who_learns(strategy.steps, last.seen)],
        ledger,
        rows=rows,
        extended=len(rehearsals) > 1,
        varying=varying,
        server_seconds=seconds,
        round_trip=round_trip,
    )


def _without_hello(kept: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return what is kept by action, or by action and party, but for ``hello``."""
    return {key: v for key, v in kept.items() if hello.action not in (key, key[0])}


def _varying(
    strategy: ProtocolStrategy, shapes: Sequence[Shape], rows: int
) -> dict[str, tuple[int, int]] | None:
    """Return the steps that cost something else on random rows than on clusters.

    With their round trips on both.
    """
    try:
        random = rehearse(strategy, shapes, rows)
        clusters = rehearse(strategy, shapes, rows, clusters=True)
    except Exception:
        return None
    varying = {}
    for action in random.ledger.waits | clusters.ledger.waits:
        (trips, size), (others, other) = random.sizes(action), clusters.sizes(action)
        if trips != others or abs(size - other) > 0.01 * max(size, other):
            varying[action] = trips, others
    return varying


def extended(values: Sequence[float], doublings: float) -> float:
    """Return what a cost will be after further doublings of the rows.

    Parameters
    ----------
    values : sequence of float
        What n / 4, n / 2 and n rows cost.
    doublings : float
        log2 of the number of rows that is meant, over n.

    Returns
    -------
    float
        a + b n^p through the three values, where p is at most 1: from one doubling to
        the next the growth is multiplied by 2^p. A cost that has not grown stays.
    """
    first, last = values[1] - values[0], values[2] - values[1]
    if last <= 0:
        return values[2]
    ratio = last / first if first > 0 else 2.0
    if ratio > LINEAR:
        ratio = 2.0
    if math.isclose(ratio, 1):
        return values[2] + last * doublings
    return values[2] + last * ratio * float(ratio**doublings - 1) / (ratio - 1)


def _extended_ledger(
    ledgers: Sequence[Ledger], doublings: float, varying: Collection[str]
) -> Ledger:
    """Return the ledger of more rows from those of n / 4, n / 2 and n.

    A step that varies with the values is asked as often as in one of them, since how
    many iterations a solver takes does not follow from the number of rows.
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
            counts[name] = round(times * extended(each, doublings))
        # Seconds vary too much for a curve: they count as proportional to the rows.
        counts["seconds_computed"] = entry.seconds_computed * 2**doublings
        result.entries[action, party] = Entry(action, party, **counts)
    for action, waits in ledgers[-1].waits.items():
        of_step = (e for e in result.entries.values() if e.action == action)
        least = math.ceil(max(e.bytes_up for e in of_step) / MESSAGE_BYTES)
        count = math.ceil(extended(trips[action], doublings))
        if action in varying:
            count, least = max(trips[action]), 0
        result.waits[action] = [sum(waits) / len(waits)] * max(least, count)
    return result


def dry_run(
    grid: Grid, strategies: Mapping[str, ProtocolStrategy], timeout: float
) -> str:
    """Greet the parties for each strategy, and return the plans as text.

    Raises
    ------
    FederationError, PartyFailed, ValueError
        As a run would before its first step: a party refuses it, say.
    """
    met = []
    for strategy in strategies.values():
        strategy.check()
        ledger = Ledger()
        parties = strategy.greet(grid, ledger, seed=strategy.seed or 0, timeout=timeout)
        shapes = [Shape(p.n_rows, p.n_columns, p.n_labels, p.name) for p in parties]
        met.append((strategy, shapes, ledger))
    plans = [str(plan(*greeting)) for greeting in met]
    sent = "This was a dry run: `hello` was sent to the parties, and nothing else."
    return "\n\n".join([*plans, sent])


# -- the table of all strategies -------------------------------------------------------


_HEADER = ("step", "what", "how", "who learns it", "kinds of consent")


def table_of_all() -> str:
    """Return who learns what in the package's strategies, as Markdown.

    A rehearsal tells what is sent at the defaults of a run config.
    """
    greeting = [_cells(row) for row in who_learns([hello])]
    parts = ["Every run:", _table(_HEADER, greeting)]
    for name, tasks in ALGORITHMS.items():
        for strategy in tasks:
            learned = who_learns(strategy.steps)
            header, rows = list(_HEADER), list(map(_cells, learned))
            if strategy.task == "train":
                seen = _seen_at_defaults(name)
                header.append("at the defaults")
                rows = [[*_cells(row), _sent(row, seen)] for row in learned]
            title = f"`{name}`, task `{strategy.task}`:"
            parts += [title, _table(header, rows)]
    return "\n\n".join(parts)


def table_at_defaults() -> str:
    """Return what leaves the parties at the defaults of a run config, as Markdown."""
    rows = []
    for name, (strategy, *_) in ALGORITHMS.items():
        for row in who_learns(strategy.steps, _seen_at_defaults(name)):
            if row.how != _BY_SERVER:
                rows.append([f"`{name}`", *_cells(row)])
    return _table(("strategy", *_HEADER), rows)


def _sent(row: Learned, seen: Mapping[str, Seen]) -> str:
    """Return which of the values of a row a rehearsal has seen."""
    of_step = seen.get(row.step, Seen())
    sent = of_step.request if row.how == _BY_SERVER else of_step.reply
    values = [value for value in row.values if value in sent]
    if len(values) == len(row.values):
        return "yes"
    return f"only {', '.join(f'`{value}`' for value in values)}" if values else "no"


def _seen_at_defaults(name: str) -> dict[str, Seen]:
    """Return what training sends at the defaults of a run config."""
    config = check_run_config({"strategy": name, "seed": 0, "alignment": "rows"})
    strategy = make_strategy(config)
    shapes = [Shape(400, 3), Shape(400, 3), Shape(400, 3, 400)]
    with quietly():
        return rehearse(strategy, shapes).seen


def main(
    defaults: Annotated[
        bool, typer.Option(help="Only what leaves the parties at the defaults.")
    ] = False,
) -> None:
    """Print who learns what in each strategy, as Markdown."""
    print(table_at_defaults() if defaults else table_of_all())


if __name__ == "__main__":
    typer.run(main)
