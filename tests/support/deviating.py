"""A server that deviates: it sends the parties of one step different requests."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from vfl_flower.app.register import make_client_app
from vfl_flower.clients.fdskl import angle_sums
from vfl_flower.clients.fdskl import training as fdskl
from vfl_flower.clients.fdskl.state import AngleRequest, Problem, Setup
from vfl_flower.party.consent import ALLOW_ALL
from vfl_flower.party.party import Party
from vfl_flower.protocol.steps import Sum, each, opened
from vfl_flower.secure_aggregation.masks import unmask_sum
from vfl_flower.server import strategy as frame
from vfl_flower.server.parties import Parties
from vfl_flower.server.strategy import ProtocolStrategy
from vfl_flower.simulation import InProcessGrid
from vfl_flower.typing import Arrays

Tamper = Callable[[str, int, dict[str, Any]], dict[str, Any]]
"""A function from the action, the party and its values to the values sent."""


class RealParties(InProcessGrid):
    """Parties as on SuperNodes: they insist on masks, and on their consents."""

    def __init__(self, parties: Sequence[Party]) -> None:
        super().__init__(parties)
        for party in self._parties.values():
            party.consent = party.consent or ALLOW_ALL
        self._app = make_client_app(lambda context: self._parties[context.node_id])


def sums_of(
    strategy: ProtocolStrategy,
    parties: Sequence[Party],
    action: str,
    tamper: Tamper,
    *,
    real: bool = True,
) -> Arrays:
    """Return the values that a deviating server reads from the first sums of a step."""

    class Done(Exception):
        pass

    class Deviating(Parties):
        def _round_trip(self, step, requests, sums, *blocks):
            told = {j: tamper(step.action, j, dict(v)) for j, v in requests.items()}
            if (
                sums or step.contract.seals
            ) and blocks:  # digests that fit the requests
                blocks = (self._blocks(step, list(told.values())),)
            return super()._round_trip(step, told, sums, *blocks)

        def _clipped(self, step, replies):
            return 0  # it does not mind that the masks do not cancel

        def _sum_of(self, step, addends, adding):
            return unmask_sum(addends, adding)  # nor that this is no sum

        def _ask(self, step, *args):
            replies = super()._ask(step, *args)
            if step.action == action:
                raise Done(replies.sums)
            return replies

    grid = RealParties(parties) if real else InProcessGrid(parties)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame, "Parties", Deviating)
        with pytest.raises(Done) as caught:
            strategy.start(grid)
    sums: Arrays = caught.value.args[0]
    return sums


def angles_of(asked: Parties, step: Any, rows: Iterable[int], **values: Any) -> Any:
    """Return the angles of rows, of four features, sealed for party 2."""
    request = AngleRequest(np.array([*rows], dtype=np.uint32), 4, 16)
    question = step.summing(angles_2=Sum(1.0, "circle16", to=2))
    return asked.ask(question, request=request, **values).sealed["angles_2"]


def fitted(asked: Parties, rows: Iterable[int], of: Iterable[int] = ()) -> Any:
    """Let party 2 fit rows, by angles of these or of other rows; return its reply."""
    setup = Setup("binary", "gaussian", 1.0, 4, [2], 4)
    rows = [*rows]
    sealed = angles_of(asked, angle_sums.angles, [*of] or rows, setup=setup)
    problem = Problem(np.array(rows, dtype=np.uint32), "square", 0.1)
    return asked.ask(
        fdskl.fit,
        problem=each([None, None, problem]),
        angles=each([None, None, {0: opened(sealed)}]),
    )[2]
