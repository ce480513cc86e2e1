"""What is found in a party file: what must be fixed, and what will be done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from vfl_flower.data.source import PartySource
from vfl_flower.party.party import PartyError

MOST_FAULTS = 20
"""Faults that one error names."""


@dataclass(frozen=True)
class Finding:
    """A single finding in a party file."""

    level: Literal["error", "warning", "note"]
    """``error``: it must be fixed before a run; ``warning``: it needs a look; ``note``:
    what is done with it."""
    about: str
    """What it is about, in one word, such as ``dates``."""
    column: str | None
    """The column; None: the file."""
    text: str
    """What is wrong or what will be done, without a value of the data."""
    option: str = ""
    """The key of the node config that changes it, or what else does."""
    examples: tuple[str, ...] = ()
    """Values of the data, for the party's own eyes."""


@dataclass(frozen=True)
class Checked:
    """What a check of a party file has found."""

    rows: int
    """Rows of the file, as far as they could be read."""
    columns: int
    """Columns of X that its features become."""
    findings: list[Finding]
    """Errors first, then warnings, then notes."""
    source: PartySource = field(compare=False)
    """How the file was read; not compared, as two ways may find the same."""

    @property
    def sound(self) -> bool:
        """Whether nothing must be fixed."""
        return all(finding.level != "error" for finding in self.findings)


fault, warning = partial(Finding, "error"), partial(Finding, "warning")
note = partial(Finding, "note")


def refuse(faults: Sequence[Finding], who: str) -> None:
    """Raise a single PartyError for all faults, if there are any."""
    texts = list(dict.fromkeys(finding.text for finding in faults))
    if len(texts) == 1:
        raise PartyError(texts[0])
    if texts:
        more = len(texts) - MOST_FAULTS
        listed = [f"({k}) {text}" for k, text in enumerate(texts[:MOST_FAULTS], 1)]
        listed += [f"and {more} more, which vfl-flower check lists"] * (more > 0)
        raise PartyError(f"{who} has {len(texts)} faults: {'; '.join(listed)}")
