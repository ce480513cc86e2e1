"""The run config's keys as TOML, generated from the declarations of the settings.

``python docs/tables.py`` prints this TOML, and the page of settings, from the same
declarations.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator

from vfl_flower.app.config import Key, run_keys
from vfl_flower.strategies import ALGORITHMS


def sections() -> Iterator[tuple[str, list[Key]]]:
    """Yield the run config's sections ("" for the common keys), each with its keys."""
    for section in ["", *ALGORITHMS]:
        yield section, [key for key in run_keys().values() if key.section == section]


def toml() -> str:
    """Return the sections of a ``pyproject.toml`` with a comment for each key."""
    lines = []
    for section, keys in sections():
        lines.append(f"[tool.flwr.app.config{section and f'.{section}'}]")
        for key in keys:
            lines += [f"# {line}" for line in textwrap.wrap(key.setting.meaning, 86)]
            lines.append(f"{key.setting.key} = {json.dumps(key.default)}")
        lines.append("")
    return "\n".join(lines)
