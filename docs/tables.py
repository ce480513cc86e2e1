"""Texts that follow from what the code declares.

``python docs/tables.py settings`` prints docs/settings.md, ``learned`` the table of
docs/security.md, and ``toml`` the sections of pyproject.toml.
"""

from __future__ import annotations

import argparse
import json

from vfl_flower.app.config import Key, check_run_config, make_strategy
from vfl_flower.app.plan import learned
from vfl_flower.app.plan.rehearsal import Shape, quietly, rehearse
from vfl_flower.app.settings import sections, toml
from vfl_flower.strategies import ALGORITHMS


def settings() -> str:
    """Return the page of the documentation: a table for each section."""
    lines = [
        "# Settings",
        "",
        "Every key of a run config, with its default. The keys of a section have the",
        "name of the section in front, as in `--run-config 'section.key=value'`. In",
        "Python the same settings, with underscores, are the strategies' arguments.",
    ]
    described: dict[tuple[str, str, str], Key] = {}
    for section, keys in sections():
        lines += ["", f"## `{section}`" if section else "## All strategies", ""]
        lines += ["| key | default | meaning |", "|---|---|---|"]
        alike: dict[str, list[str]] = {}
        for key in keys:
            meaning = key.setting.meaning.replace("``", "`").replace("|", "\\|")
            default = json.dumps(key.default)
            first = described.setdefault((key.setting.key, default, meaning), key)
            if first is not key:
                alike.setdefault(first.section, []).append(f"`{key.name}`")
                continue
            lines.append(f"| `{key.name}` | `{default}` | {meaning} |")
        for other, names in alike.items():
            lines += ["", f"As in `{other}`: {', '.join(names)}."]
    return "\n".join([*lines, ""])


def learned_at_defaults() -> str:
    """Return what leaves the parties at the defaults of a run config."""
    rows = []
    for name, (strategy, *_) in ALGORITHMS.items():
        config = check_run_config({"strategy": name, "seed": 0, "alignment": "rows"})
        n = 3000  # enough for curves, and more than a coreset has
        shapes = [Shape(n, 3), Shape(n, 3), Shape(n, 3, n)]
        with quietly():
            seen = rehearse(make_strategy(config), shapes).ledger.seen
        for row in learned.who_learns(strategy.steps, seen):
            if row.how != learned.BY_SERVER:
                rows.append([f"`{name}`", *learned.cells(row)])
    return learned.table(("strategy", *learned.HEADER), rows)


TEXTS = {"settings": settings, "learned": learned_at_defaults, "toml": toml}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", choices=TEXTS)
    print(TEXTS[parser.parse_args().text]().rstrip())
