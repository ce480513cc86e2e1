"""The step that a party answers with an empty message."""

from typing import TypedDict

from vfl_flower import Party
from vfl_flower.protocol.steps import step_of

step = step_of("empty")


class Nothing(TypedDict):
    """Reply of :func:`nothing`."""


@step
def nothing(party: Party) -> Nothing:
    """Answer the server's `Parties`."""
    return {}
