"""Names and other external text, made safe for a log or a terminal.

A line break in a string can forge a line of a log, and an escape code can hide a line.
Therefore names are printable by contract, and the package's log escapes all other text.
"""

from __future__ import annotations

import difflib
import logging
import traceback
from collections.abc import Iterable, Mapping
from typing import Annotated

from annotated_types import MaxLen, Predicate

MOST_OF_NAME = 100  # maximum length of a party's name, in characters

Name = Annotated[str, MaxLen(MOST_OF_NAME), Predicate(str.isprintable)]
"""The name of a party in a message; "" if it has none."""

MOST_OF_TEXT = 200
"""Maximum length of a column name or of another short string in a message."""

Text = Annotated[str, MaxLen(MOST_OF_TEXT), Predicate(str.isprintable)]
"""A short string in a message."""


def is_name(name: object) -> bool:
    """Return whether a value is allowed as a party's name."""
    text = name if isinstance(name, str) else ""
    return 0 < len(text) <= MOST_OF_NAME and text.isprintable()


def did_you_mean(name: str, known: Iterable[str] | Mapping[str, str]) -> str:
    """Return a suggestion for an unknown name, to append to an error.

    If the name begins with a known section, only names in that section are suggested.

    >>> did_you_mean("Sise", ["seed", "size"])
    "; did you mean 'size'?"
    >>> did_you_mean("sise", {"size": "example.size"})
    "; did you mean 'example.size'?"
    """
    meant = known if isinstance(known, Mapping) else {text: text for text in known}
    folded = {text.strip().casefold(): meant[text] for text in meant}
    name = name.strip().casefold()
    section = name[: name.rfind(".") + 1]
    cut = len(section)
    inside = {text[cut:]: folded[text] for text in folded if text.startswith(section)}
    if inside:
        name, folded = name[cut:], inside
    near = difflib.get_close_matches(name, folded, n=1, cutoff=0.75)
    return f"; did you mean {folded[near[0]]!r}?" if near else ""


def printable(text: object) -> str:
    r"""Return text as one line without control characters.

    >>> printable("one\nline")
    'one\\nline'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def escape_record(record: logging.LogRecord) -> bool:
    """Escape the text of a record; indent a stack trace, so that it forges no line."""
    record.msg, record.args = printable(record.getMessage()), ()
    if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
        stack = "".join(traceback.format_exception(*record.exc_info))
        lines = stack.rstrip("\n").split("\n")
        record.exc_text = "\n".join(f"  {printable(line)}" for line in lines)
    return True


logging.getLogger("vfl_flower").addFilter(escape_record)
