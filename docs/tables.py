"""Documentation texts derived from declarations in the code.

``python docs/tables.py settings`` prints docs/settings.md, ``consent`` the tables of
docs/consent.md, ``learned`` the table of docs/security.md, and ``toml`` the sections of
pyproject.toml.
"""

from __future__ import annotations

import argparse
import json
import re
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from vfl_flower.app.config import Key, check_run_config, make_strategy
from vfl_flower.app.deployment.party_folder import consent_text
from vfl_flower.app.plan import learned
from vfl_flower.app.plan.rehearsal import Shape, quietly, rehearse
from vfl_flower.app.settings import sections, toml
from vfl_flower.party import consent
from vfl_flower.protocol.rules import number_text
from vfl_flower.protocol.settings import settings_of
from vfl_flower.protocol.terms import KINDS
from vfl_flower.server.strategy import ProtocolStrategy
from vfl_flower.strategies import ALGORITHMS, algorithms


def values(annotation: Any) -> str:
    """Return the values that a run config can contain, by the type of a setting.

    >>> values(Annotated[float, Gt(0)] | Literal["median"])
    '>0, median'
    >>> values(Annotated[int, Ge(1), Le(2**24)])
    '1 to 2^24'
    """
    return ", ".join(dict.fromkeys(_values(annotation)))


def _values(annotation: Any, bounds: str = "") -> Iterator[str]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _values(arguments[0], _bounds(arguments[1:]))
    elif origin is Literal:
        yield from map(str, arguments)
    elif origin in (Union, types.UnionType):
        for each in arguments:
            yield from _values(each)
    elif annotation is bool:
        yield "bool"
    elif annotation is str:
        yield "text"
    elif annotation in (int, float):
        yield bounds


def _bounds(metadata: tuple[Any, ...]) -> str:
    """Return the constraints of a number: "1 to 9", or ">0"."""
    least, parts = "", []
    for constraint in metadata:
        match constraint:
            case Ge(ge=bound):
                least = number_text(bound)
                parts.append(f"≥{least}")
            case Gt(gt=bound):
                parts.append(f">{number_text(bound)}")
            case Le(le=bound) if least:
                parts = [f"{least} to {number_text(bound)}"]
            case Le(le=bound):
                parts.append(f"≤{number_text(bound)}")
            case Lt(lt=bound):
                parts.append(f"<{number_text(bound)}")
    return ", ".join(parts)


def settings() -> str:
    """Return the page of settings, with a table for each section."""
    lines = [
        "# Settings",
        "",
        "These are the keys of a run config, as in `--set ridge.rows=5000`. In Python,",
        "they are arguments of the strategies, with underscores instead of hyphens.",
    ]
    described: dict[tuple[str, ...], Key] = {}
    for section, keys in sections():
        lines += ["", f"## `{section}`" if section else "## All strategies", ""]
        lines += ["key=default | values | meaning", "---|---|---"]
        alike: dict[str, list[str]] = {}
        for key in keys:
            meaning = key.setting.text.replace("``", "`").replace("|", "\\|")
            hints = get_type_hints(key.setting.strategy, include_extras=True)
            default = "" if key.default == "" else f"={json.dumps(key.default)}"
            cells = f"{default}`", values(hints[key.setting.name]), meaning
            first = described.setdefault((key.setting.key, *cells), key)
            if first is not key:
                alike.setdefault(first.section, []).append(f"`{key.name}`")
                continue
            lines.append(f"`{key.name}{' | '.join(cells)}")
        for other, names in alike.items():
            lines += ["", f"As in `{other}`: {', '.join(names)}."]
    return "\n".join([*lines, ""])


READERS = {
    "in the clear": "server",
    "under a mask": "server (sums)",
    "under a mask and a pad": "one party (sums)",
    "encrypted for one party": "one party",
    "encrypted for each other party": "other parties",
    "encrypted for the next party": "next party",
}
"""Who learns a value, by how it leaves a party."""


def learned_at_defaults() -> str:
    """Return the values that leave the parties with default settings, as a table."""
    rows: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, (strategy, *_) in ALGORITHMS.items():
        config = check_run_config({"strategy": name, "seed": 0, "alignment": "rows"})
        n = 3000  # enough for curves, and more rows than a coreset has
        shapes = [Shape(n, 3), Shape(n, 3), Shape(n, 3, n)]
        with quietly():
            seen = rehearse(make_strategy(config), shapes).ledger.seen
        for row in learned.who_learns(strategy.steps, seen):
            if row.how != learned.BY_SERVER:
                _, values, how, _, kinds = learned.cells(row)
                by_kinds = rows.setdefault((name, READERS[how]), {})
                by_kinds.setdefault(kinds or "none", []).extend(values.split(", "))
    lines = ["strategy | who learns it | kinds: values", "---|---|---"]
    for (name, reader), by_kinds in rows.items():
        cells = [f"*{k}*: {', '.join(dict.fromkeys(v))}" for k, v in by_kinds.items()]
        lines.append(f"`{name}` | {reader} | {'; '.join(cells)}")
    return "\n".join(lines)


def _table(header: str, rows: Iterable[Iterable[str]]) -> str:
    return "\n".join([header, re.sub("[^|]+", "---", header), *map(" | ".join, rows)])


def consent_keys() -> str:
    """Return the top keys of a ``consent.toml``, as ``init`` writes them."""
    rules, _ = consent_text().split("[leaves]")
    lines = re.findall(r"(?m)^((?:# )?[a-z-]+ = .+?) +# (.+(?:\n +# .+)*)", rules)
    rows = [[f"`{line}`", re.sub(r"\n +#", "", words)] for line, words in lines]
    return _table("line | meaning", rows)


def consent_kinds() -> str:
    """Return the kinds of values that leave a party, and what each limit counts."""
    counted = dict.fromkeys(KINDS, "rows")
    counted |= dict.fromkeys(consent._WITHOUT_ROWS, "disclosures")
    counted["moments"] = "columns"
    rows = [[f"`{kind}`", words, counted[kind]] for kind, words in KINDS.items()]
    return _table("kind | what leaves the party | a limit counts", rows)


def _variants(name: str, strategy: type[ProtocolStrategy]) -> Iterator[dict[str, Any]]:
    """Yield changes to a task's run config: first none, then the main settings."""
    yield {}
    for setting in settings_of(strategy):
        if setting.name in ("client_training", "clustering", "solver"):
            yield from ({f"{name}.{setting.key}": value} for value in setting.choices)
        elif setting.name == "test_fraction":
            yield {f"{name}.{setting.key}": 0.2}


def consent_needs() -> str:
    """Return the kinds that each task needs, and the settings that change them."""
    required = {"model_id": {"model-id": "0" * 16}, "clients": {"mufc.clients": "a"}}
    strategies: dict[tuple[str, str], list[str]] = {}  # by task and kinds
    for name, tasks in algorithms().items():
        for strategy in tasks:
            given: dict[str, Any] = {"strategy": name, "task": strategy.task}
            for setting in settings_of(strategy):
                given |= required.get(setting.name, {})
            changes: dict[str, list[str]] = {}  # by kinds; the first change is none
            for more in _variants(name, strategy):
                terms = make_strategy(check_run_config(given | more)).terms
                kinds = ", ".join(f"`{kind}`" for kind in terms.needs)
                if kinds != next(iter(changes), None):
                    changes[kinds] = changes.get(kinds, []) + [
                        f"`{key.removeprefix(f'{name}.')}={json.dumps(value)}`"
                        for key, value in more.items()
                    ]
            for kinds, words in changes.items():
                task = f"`{strategy.task}`" + " with " * bool(words)
                task += " or ".join(words)
                strategies.setdefault((task, kinds), []).append(f"`{name}`")
    rows: dict[tuple[str, str], list[str]] = {}
    for (task, kinds), names in strategies.items():
        if kinds:
            rows.setdefault((", ".join(names), kinds), []).append(task)
    cells = [(names, ", ".join(tasks), kinds) for (names, kinds), tasks in rows.items()]
    return _table("strategy | task | kinds", cells)


def consent_tables() -> str:
    """Return the tables of the page on the ``consent.toml``."""
    return "\n\n".join([consent_keys(), consent_kinds(), consent_needs()])


TEXTS = {
    "settings": settings,
    "consent": consent_tables,
    "learned": learned_at_defaults,
    "toml": toml,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", choices=TEXTS)
    print(TEXTS[parser.parse_args().text]().rstrip())
