"""Levels of text columns that the parties of a run have united, stored at each party.

Parties whose files hold different rows agree once which texts of a column have a level
of their own. Each stores the levels in its ``state-dir``; later runs encode by them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from vfl_flower.protocol.parts import read_private, write_private
from vfl_flower.protocol.party import PartyError

log = logging.getLogger("vfl_flower")

FORMAT = 1

FILE = "levels.json"
"""File in a party's ``state-dir`` with the levels."""

OTHER = "other"
"""The level that stands for all texts that have none of their own."""

Levels = dict[str, tuple[str, ...]]
"""The levels of columns by their names."""


def save_levels(
    folder: Path, levels: Mapping[str, tuple[str, ...]], salt: str = ""
) -> None:
    """Store the levels of columns in a ``state-dir``; replace those of an earlier run.

    `salt` is a secret of the parties, for digests of the levels that the server
    compares. Raises PartyError if the folder cannot be written to.
    """
    content = {"format": FORMAT, "salt": salt, "levels": dict(levels)}
    data = json.dumps(content, ensure_ascii=False, indent=1).encode()
    write_private(folder / FILE, data, "the united levels")
    log.warning("united levels of %d columns written to %s", len(levels), folder / FILE)


def load_levels(folder: Path | None) -> tuple[Levels, str]:
    """Read the levels and the salt that :func:`save_levels` has written.

    Raises PartyError if there is no folder or no such file, or if it is damaged.
    """
    if folder is None:
        raise PartyError("united levels need a state-dir, in which they are kept")
    try:
        content = json.loads(read_private(folder / FILE))
        levels = {name: tuple(listed) for name, listed in content["levels"].items()}
        salt = str(content["salt"])
        fits = content["format"] == FORMAT and all(
            isinstance(level, str) for listed in levels.values() for level in listed
        )
    except FileNotFoundError:
        raise PartyError(
            "this party's state-dir has no united levels: run the strategy that makes "
            "them first"
        ) from None
    except OSError as error:
        log.error("cannot read %s: %s", folder / FILE, error.strerror)
        raise PartyError(f"united levels cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        fits = False
    if not fits:
        raise PartyError("united levels are damaged, or of another version")
    return levels, salt
