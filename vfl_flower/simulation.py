"""A Flower run in one process: no Ray, no network, milliseconds per round trip.

All messages between the server and the parties still pass through Flower's own
serialisation, so the two sides share no data in memory.
"""

from __future__ import annotations

import copy
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from vfl_flower.app.flwr_internals.runs import Run, TaskIdentity
from vfl_flower.app.flwr_internals.serialisation import arrived
from vfl_flower.party.answering import serve
from vfl_flower.party.memory import Memory
from vfl_flower.party.party import Party
from vfl_flower.protocol.steps import STEPS
from vfl_flower.server.strategy import ProtocolResult, ProtocolStrategy
from vfl_flower.strategies import uses_of_steps


class SimulatedResult(ProtocolResult):
    """The result of a run in this process, with methods for a report.

    A run itself needs no report, so :mod:`vfl_flower.app.report.result_page` adds both
    methods.
    """

    report: ClassVar[Callable[[ProtocolResult, str | os.PathLike[str]], Path]]
    """Write the report into a folder, and return the path of its page."""
    _repr_html_: ClassVar[Callable[[ProtocolResult], str]]
    """Return the report's page in an HTML frame, for a notebook."""


@contextmanager
def apart() -> Iterator[None]:
    """Restore the identity of a surrounding ServerApp after a run in this process.

    Without a surrounding ServerApp, the identity of the run is not removed, since a run
    in another thread may need it.
    """
    names = ("_run_id", "_node_id", "_task_id")
    identity = {name: getattr(TaskIdentity, name) for name in names}
    try:
        yield
    finally:
        for name, value in identity.items():
            if value is not None:
                setattr(TaskIdentity, name, value)


class InProcessGrid(Grid):
    """A Flower grid whose nodes are parties in this process.

    A party's position in the list becomes its index. Raises ValueError if the list is
    empty or an item is not a `Party`.
    """

    in_process = True
    """Whether replies arrive at once, so that no thread needs to wait for them."""

    def __init__(self, parties: Sequence[Party]) -> None:
        if not parties:
            raise ValueError("a run needs at least one party, got none")
        for party in parties:
            if not isinstance(party, Party):
                raise ValueError(
                    f"parties must be of class Party, got {type(party).__name__}"
                )
        self.run_id = TaskIdentity.run_id = run_id = secrets.randbits(62)
        TaskIdentity.node_id = TaskIdentity.task_id = 1
        self._parties: dict[int, Party] = {}
        self._contexts: dict[int, Context] = {}
        for index, party in enumerate(parties):
            node_id = 1000 + index
            self._parties[node_id] = copy.copy(party)
            self._parties[node_id].index = index
            self._contexts[node_id] = Context(run_id, node_id, {}, RecordDict(), {})
        self._app = ClientApp()
        serve(
            self._app,
            lambda context: self._parties[context.node_id],
            STEPS.values(),
            uses=uses_of_steps(),
            allow_plain=True,
        )
        self._replies: dict[str, Message] = {}
        self._pushed = 0

    def memories(self) -> list[Memory]:
        """Return each participating party's memory of its last run."""
        memories = [Memory(context.state) for context in self._contexts.values()]
        return [memory for memory in memories if memory.run]

    def set_run(self, run: Run) -> None:
        """Do nothing: there is only one run."""

    @property
    def run(self) -> Run:
        """Raise NotImplementedError: no SuperLink keeps a record of the run."""
        raise NotImplementedError("a run in one process has no record at a SuperLink")

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message; Flower's ``Message(...)`` does the same."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the parties' node ids."""
        return list(self._parties)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Have the parties reply at once; return the ids of the messages."""
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        self._pushed += 1
        message.metadata.__dict__["_message_id"] = f"message-{self._pushed}"
        request = arrived(message)
        reply = self._app(request, self._contexts[request.metadata.dst_node_id])
        reply.metadata.__dict__["_message_id"] = f"reply-{self._pushed}"
        number = request.metadata.message_id
        self._replies[number] = arrived(reply)
        return number

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have arrived; each is returned only once."""
        return [
            self._replies.pop(number)
            for number in message_ids
            if number in self._replies
        ]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push the messages, and pull the replies at once."""
        return self.pull_messages(self.push_messages(messages))


def _check_order(tables: Sequence[Any]) -> None:
    """Refuse parties whose tables have the same row labels in different orders."""
    for table in tables[1:]:
        first = tables[0]
        if not first.equals(table) and set(first) == set(table):
            raise ValueError(
                "parties must have their rows in the same order, but the pandas "
                "indexes of X differ in order: align the rows, or pass arrays with the "
                "same rows"
            )


def check_members(strategy: ProtocolStrategy, parties: Sequence[Party]) -> None:
    """Raise ValueError if the strategy or the list of its parties is invalid."""
    if not isinstance(strategy, ProtocolStrategy):
        hint = ": call the class with settings" if isinstance(strategy, type) else ""
        raise ValueError(
            f"strategy must be an instance of a strategy class, got {strategy!r}{hint}"
        )
    if isinstance(parties, Party) or not isinstance(parties, Sequence):
        raise ValueError(
            f"parties must be a list of parties, got {type(parties).__name__}"
        )
    strategy.check_count(len(parties))


def simulate(
    strategy: ProtocolStrategy,
    parties: Sequence[Party],
    seed: int | None = None,
    *,
    timeout: float = 3600,
) -> SimulatedResult:
    """Run a strategy on parties in this process.

    Parameters
    ----------
    strategy : ProtocolStrategy
        The strategy to run; it is not changed.
    parties : sequence of Party
        The parties, in order; nearly all strategies need at least two parties.
    seed : int, optional
        Seed of the run; default: the strategy's seed.
    timeout : float
        Maximum seconds for one round trip.

    Returns
    -------
    SimulatedResult
        The same result as on SuperNodes with the same seed. Its method ``report``
        writes a report into a folder; a notebook shows the result as the report's page.

    Raises
    ------
    ValueError
        `strategy` is not a strategy, there are fewer parties than it needs, or the
        number of parties differs from its ``n_parties``; also as in
        :meth:`ProtocolStrategy.start`.
    FederationError, PartyFailed
        As in :meth:`ProtocolStrategy.start`.

    Examples
    --------
    >>> import numpy as np
    >>> import vfl_flower as vf
    >>> ids = np.arange(30)
    >>> parties = [vf.Party(np.zeros((25, 1)), ids=ids[j : j + 25]) for j in (0, 5)]
    >>> result = simulate(vf.Alignment("rows"), parties)
    >>> result.model.n_common_, result.ledger.round_trips
    (20, 4)
    """
    check_members(strategy, parties)
    if seed is not None:
        strategy = strategy.replace(seed=seed)
    with apart():
        grid = InProcessGrid(parties)
        if strategy.partition == "vertical":
            _check_order([p.row_labels for p in parties if p.row_labels is not None])
        result = SimulatedResult(**vars(strategy.start(grid, timeout=timeout)))
        strategy.complete(result.model, grid.memories())
    return result
