"""Findings in a party file: faults to fix, warnings, and notes on the conversion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from vfl_flower.data.source import PartySource
from vfl_flower.party.party import PartyError

MOST_FAULTS = 20
"""Maximum number of faults that one error lists."""


@dataclass(frozen=True)
class Finding:
    """A single finding in a party file."""

    level: Literal["error", "warning", "note"]
    """``error``: must be fixed before a run; ``warning``: should be checked; ``note``:
    how the data will be converted."""
    about: str
    """The subject in one word, such as ``dates``."""
    column: str | None
    """The column, or None if the finding is about the file."""
    text: str
    """The fault or the conversion, without a value of the data."""
    option: str = ""
    """The key of the node config, or another option, to change."""
    examples: tuple[str, ...] = ()
    """Values of the data, to be shown only to the party."""


@dataclass(frozen=True)
class Checked:
    """The result of checking a party file."""

    rows: int
    """Number of rows of the file that could be read."""
    columns: int
    """Number of columns of X, after the features are encoded."""
    findings: list[Finding]
    """Errors first, then warnings, then notes."""
    source: PartySource = field(compare=False)
    """The source and its options; ignored when results are compared."""

    @property
    def sound(self) -> bool:
        """Whether there is no fault to fix."""
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
