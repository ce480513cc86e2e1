"""Docstrings of the package as Markdown, for the page of its interface."""

import inspect
import re
from typing import Any

from griffe import Extension, Object, dynamic_import

ROLE = re.compile(r":\w+:`~?([^`]+)`")
TABLE = re.compile(r"(?ms)^(=+ [= ]+)\n.*^\1$")


class Markdown(Extension):
    """Take docstrings of classes as they are at run time, and their reST as Markdown.

    When strategies are imported they write their settings, which they declare as
    fields, into their docstrings.
    """

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Replace the docstring of a module, a class, a function or an attribute."""
        if obj.docstring is None:
            return
        text = obj.docstring.value
        if obj.is_class:
            text = inspect.cleandoc(dynamic_import(obj.path).__doc__ or text)
        # A type that reads as an expression would be shown as one.
        text = ROLE.sub(r"`\1`", text).replace(", shape (", " of shape (")
        obj.docstring.value = TABLE.sub(r"```text\n\g<0>\n```", text)
