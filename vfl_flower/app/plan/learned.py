"""The values that each side learns, from the declarations of the steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from vfl_flower.party.answering import hello
from vfl_flower.protocol.contract import Field
from vfl_flower.protocol.steps import Step
from vfl_flower.protocol.terms import Kind, in_order
from vfl_flower.server.ledger import Seen
from vfl_flower.strategies import ALGORITHMS


class Learned(NamedTuple):
    """Values of a step, and the parties that learn them, in words."""

    step: str
    values: tuple[str, ...]
    """Names of the values, all of which travel in the same way."""
    how: str
    who: str
    kinds: tuple[str, ...] = ()
    """The kinds that the step reveals beyond sums, as named in a party's consent."""


_LEAVES = {
    "clear": ("in the clear", "the server, for each party"),
    "sum": ("under a mask", "the server, but only the sum over all parties"),
    "sealed": (
        "under a mask and a pad",
        "the addressed party, but only the sum over all parties; not the server",
    ),
    "secret": ("encrypted for each other party", "the other parties; not the server"),
    "next": ("encrypted for the next party", "the next party; not the server"),
    "private": ("encrypted for one party", "the addressed party; not the server"),
}
BY_SERVER = "sent by the server"
HEADER = ("step", "what", "how", "who learns it", "kinds of consent")
_SENT = {
    "common": (BY_SERVER, "the parties"),
    "own": (BY_SERVER, "each party, but only its own values"),
}


def who_learns(
    steps: Iterable[Step[..., Any]], seen: Mapping[str, Seen] | None = None
) -> list[Learned]:
    """Return the values that steps reveal, and to whom, as declared by the steps.

    Values that the server forwards between parties are left out. `seen` contains the
    values that a run has sent, by action; if `seen` is given, only these values are
    returned.
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
            (step.contract.request, _SENT, of_step.request, ()),
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
    """Return the way in which a value travels; "" for an input from other parties."""
    if ways is _LEAVES:
        return declared.leaves.how if declared.leaves else "clear"
    if declared.leaves:
        return ""
    return declared.sending.how if declared.sending else "common"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table of words."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(row: Learned) -> list[str]:
    """Return the cells of a table row, in the order of :data:`HEADER`."""
    values = ", ".join(f"`{value}`" for value in row.values)
    return [f"`{row.step}`", values, row.how, row.who, ", ".join(row.kinds)]


def table_of(rows: Iterable[Learned]) -> str:
    """Return who learns what as a Markdown table."""
    return table(HEADER, map(cells, rows))


def who_learns_what() -> None:
    """Print who learns what from every task of every strategy, as Markdown."""
    parts = ["Every run:", table_of(who_learns([hello]))]
    for name, tasks in ALGORITHMS.items():
        for strategy in tasks:
            title = f"`{name}`, task `{strategy.task}`:"
            parts += [title, table_of(who_learns(strategy.steps))]
    print("\n\n".join(parts))
