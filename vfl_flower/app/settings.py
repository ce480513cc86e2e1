"""The run config's keys as text, from the declarations of the settings.

``python -m vfl_flower.app.settings`` prints docs/settings.md, and with ``--toml`` the
sections of pyproject.toml.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Annotated

import typer

from vfl_flower.app.config import Key, run_keys
from vfl_flower.strategies import ALGORITHMS

SECTION = "tool.flwr.app.config"


def _sections() -> Iterator[tuple[str, list[Key]]]:
    """Yield the package's sections and their keys; section "" has the common keys."""
    keys = list(run_keys().values())
    for section in ["", *ALGORITHMS]:
        yield section, [key for key in keys if key.section == section]


def toml() -> str:
    """Return the sections of ``pyproject.toml`` with a comment for each key."""
    lines = []
    for section, keys in _sections():
        lines.append(f"[{SECTION}.{section}]" if section else f"[{SECTION}]")
        for key in keys:
            lines += [f"# {line}" for line in textwrap.wrap(key.setting.meaning, 86)]
            lines.append(f"{key.setting.key} = {json.dumps(key.default)}")
        lines.append("")
    return "\n".join(lines)


def markdown() -> str:
    """Return the page of the documentation: a table for each section."""
    lines = [
        "# Settings",
        "",
        "Every key of a run config, with its default. The keys of a section have the",
        "name of the section in front, as in `--run-config 'section.key=value'`. In",
        "Python the same settings, with underscores, are the strategies' arguments.",
    ]
    described: dict[tuple[str, str, str], Key] = {}
    for section, keys in _sections():
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


def main(
    as_toml: Annotated[
        bool, typer.Option("--toml", help="The sections of pyproject.toml.")
    ] = False,
) -> None:
    """Print every key of the run config with its default and meaning."""
    print(toml() if as_toml else markdown(), end="")


if __name__ == "__main__":
    typer.run(main)
