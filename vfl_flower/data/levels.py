"""The levels of text columns in a config, the same at all parties."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vfl_flower.protocol.normal import normal_text

MOST_BYTES = 2**20
"""Maximum size of a file of levels, in bytes."""

MOST_LEVELS = 1000
"""Maximum number of levels that can be listed for a column."""

OTHER = "other"
"""The level that represents all strings that are not levels."""


def parse_levels(text: str, files: bool) -> dict[str, tuple[str, ...]]:
    """Return the levels of columns by column name.

    The text is ``sex=f|m;region=north|south`` or, with `files`, the absolute path of a
    TOML file that maps column names to lists of levels. Raises ValueError for any other
    text, or if a column has a repeated level, fewer than two levels or too many. The
    error contains no level.
    """
    if not text.startswith("/"):
        return _checked(_listed(text))
    if not files:
        raise ValueError("levels can be a file only in a node config")
    try:
        with Path(text).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"the file of levels must have at most {MOST_BYTES} bytes")
        return _checked(tomllib.loads(content.decode("utf-8-sig")))
    except OSError as error:
        raise ValueError(f"levels cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise ValueError(
            "levels must be a TOML file with lines such as sex = ['f', 'm']"
        ) from None


def _listed(text: str) -> dict[str, list[str]]:
    levels: dict[str, list[str]] = {}
    for part in filter(str.strip, text.split(";")):
        name, equals, listed = part.partition("=")
        if not equals or name.strip() in levels:
            raise ValueError(
                "levels must be 'column=a|b', with ';' between columns and each column "
                "named once, or the absolute path of a TOML file"
            )
        levels[name.strip()] = [level.strip() for level in listed.split("|")]
    return levels


def _checked(levels: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    for name, listed in levels.items():
        texts = isinstance(listed, list) and all(
            isinstance(level, str) and level for level in listed
        )
        if not texts or len(set(map(normal_text, listed))) != len(listed):
            raise ValueError(f"levels of {name!r} must be distinct, non-empty strings")
        if not 2 <= len(listed) <= MOST_LEVELS:
            raise ValueError(
                f"{name!r} must have 2 to {MOST_LEVELS} levels, got {len(listed)}"
            )
    return {name: tuple(map(normal_text, listed)) for name, listed in levels.items()}
