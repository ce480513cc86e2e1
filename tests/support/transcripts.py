"""A grid that keeps every message, and functions that search the messages."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import Message
from scipy.stats import chisquare
from uniformity import uniform

from vfl_flower import Party
from vfl_flower.protocol.steps import STEPS, Step
from vfl_flower.simulation import InProcessGrid
from vfl_flower.testing import Recorder
from vfl_flower.testing import Sent as Entry
from vfl_flower.typing import Array


class Sent(Recorder):
    """A grid that keeps what the server sent."""

    @property
    def sent(self) -> list[tuple[str, int, dict[str, Any]]]:
        """Action, party and values of each request, in order."""
        return [(e.action, e.party, e.values) for e in self.transcript if not e.up]

    @property
    def actions(self) -> list[str]:
        """The steps that the server asked for, each once, in order."""
        return list(dict.fromkeys(action for action, _, _ in self.sent))


class Listening(InProcessGrid):
    """Keeps the messages that the server sends and receives."""

    def __init__(self, parties: Sequence[Party]) -> None:
        super().__init__(parties)
        self.sent: list[Message] = []
        self.seen: list[Message] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        self.sent += messages
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = super().pull_messages(message_ids)
        self.seen += replies
        return replies


def replies(transcript: Sequence[Entry], action: str, name: str) -> list[Any]:
    """Return the values that parties sent in a step under a name, in party order."""
    sent = [e for e in transcript if e.up and e.action == action]
    return [e.values[name] for e in sorted(sent, key=lambda e: e.party)]


def our_steps(*modules: str) -> dict[str, Step[..., Any]]:
    """Return the steps of the package by action: all, or the steps of some modules.

    Tests and examples declare further steps.
    """
    return {
        action: step
        for action, step in STEPS.items()
        if step.function.__module__.startswith("vfl_flower.")
        and (not modules or step.algorithm in modules)
    }


def leaving(step: Step[..., Any], way: str) -> set[str]:
    """Return the values of a step's reply that leave in one way: "sum", "sealed" .."""
    return {
        name
        for name, declared in step.contract.reply.items()
        if declared.leaves is not None and declared.leaves.how == way
    }


def is_uniform(elements: Array) -> bool:
    """Test top bytes of unsigned elements by chi-square; false-alarm rate 1e-9."""
    top = elements.ravel() >> elements.dtype.type(8 * elements.itemsize - 8)
    return uniform(top.astype(np.uint8), alarm=1e-9)


def assert_hidden(runs: Sequence[Sequence[Array]]) -> None:
    """Raise unless hidden values of two runs on equal data are uniform and differ.

    Small arrays have too few bytes for separate tests, so the halves of all their bytes
    are tested together, at the same rate.
    """
    small = []
    for value, other in zip(*runs, strict=True):
        assert value.dtype == other.dtype == np.uint8
        words, others = (x[: x.size // 8 * 8].view("<u8") for x in (value, other))
        assert value.shape == other.shape
        assert not (words == others).any()
        if value.size > 6000:
            assert is_uniform(value)
        else:
            small += [value, other]
    data = np.concatenate(small)
    counts = np.bincount(np.concatenate([data >> 4, data & 15]), minlength=16)
    assert counts.mean() > 20
    assert chisquare(counts).pvalue > 1e-9


def patterns(values: Array) -> set[bytes]:
    return {value.tobytes() for value in np.asarray(values, dtype="<f8").ravel()}


def actual(patterns: set[bytes], transcript: Sequence[Entry]) -> set[bytes]:
    return {p for p in patterns if any(p in entry.data for entry in transcript)}
