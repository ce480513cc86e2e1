"""Whatever a party is asked, and whatever the server is told: a sentence, or a result.

More than 2,000 requests and replies, over all steps, that are drawn from what the steps
declare and from what is sent in real runs. The seeds are fixed, so that they repeat.
``VFL_FLOWER_EXAMPLES=2000`` tries 2,000 requests of each step, in half an hour.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import LyingGrid
from flwr.app import Context, Message, RecordDict
from flwr.common import serde
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from later_tasks import TASKS, clinics
from malformed import CLASS_NAME, malformed_content
from transcripts import our_steps
from variants import VARIANTS, GivenUp, parties_of

from vfl_flower import FederationError, Party
from vfl_flower.party import answering
from vfl_flower.protocol import messages
from vfl_flower.protocol.contract import structure
from vfl_flower.protocol.messages import CorruptMessage, pack, unpack
from vfl_flower.protocol.steps import Step
from vfl_flower.server.strategy import ProtocolStrategy
from vfl_flower.simulation import InProcessGrid

REQUESTS, REPLIES = int(os.environ.get("VFL_FLOWER_EXAMPLES", "27")), 3
"""Examples of each step."""

STEPS: dict[str, Step[..., Any]] = {"hello": answering.hello, **our_steps()}
EXAMPLES = settings(
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
# Huge numbers overflow in a step, of which NumPy and scikit-learn warn.
OVERFLOWS = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")


# -- real runs -------------------------------------------------------------------------

Case = Callable[[Path], tuple[list[Party], ProtocolStrategy]]
"""Makes the parties and the strategy of a run in a folder of its own."""


def _variant(name: str) -> Case:
    return lambda folder: (parties_of(name), VARIANTS[name])


HOME = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)


def _later(name: str) -> Case:
    def make(folder: Path) -> tuple[list[Party], ProtocolStrategy]:
        strategy, parties = TASKS[name](folder)
        return parties(), strategy

    return make


CASES: dict[str, Case] = {name: _variant(name) for name in VARIANTS}
CASES |= {name: _later(name) for name in TASKS if name.startswith("mufc")}
CASES["mufc given up"] = lambda folder: (clinics(folder), GivenUp(3, seed=3))
"""Runs that together ask for every step."""


@dataclass(frozen=True, eq=False, repr=False)
class Moment:
    """A request in a real run, and what its party had when it came."""

    action: str
    party: Party
    message: Any
    context: Any
    folder: Path | None


class Watched(InProcessGrid):
    def __init__(self, parties: list[Party]) -> None:
        super().__init__(parties)
        self.moments: list[Moment] = []

    def _push(self, message: Message) -> str:
        node, folder = message.metadata.dst_node_id, None
        party = self._parties[node]
        if party.state_dir is not None:
            folder = Path(tempfile.mkdtemp(dir=HOME.name)) / "state"
            if party.state_dir.exists():
                shutil.copytree(party.state_dir, folder)
        context = serde.context_to_proto(self._contexts[node])
        number = super()._push(message)
        action = message.metadata.message_type.partition(".")[2]
        sent = serde.message_to_proto(message)
        self.moments.append(Moment(action, party, sent, context, folder))
        return number


@cache
def faultless(name: str) -> tuple[Any, list[Moment]]:
    """Return the result of a run, and its requests."""
    with tempfile.TemporaryDirectory() as folder:
        members, strategy = CASES[name](Path(folder))
        grid = Watched(members)
        return strategy.start(grid), grid.moments


@cache
def moments() -> dict[str, list[Moment]]:
    kept: dict[str, dict[Any, Moment]] = {action: {} for action in STEPS}
    for name in CASES:
        for moment in faultless(name)[1]:
            values, frame = unpack(serde.message_from_proto(moment.message).content)
            kind = frozenset(values), frozenset(frame), moment.party.y is None
            kept[moment.action].setdefault(kind, moment)
    return {action: list(kinds.values()) for action, kinds in kept.items()}


def test_every_step_is_asked_in_a_real_run():
    assert [action for action, kinds in moments().items() if not kinds] == []


def check_sentence(sentence: str) -> None:
    assert 10 < len(sentence) < 500, sentence
    assert "\n" not in sentence
    assert not CLASS_NAME.search(sentence), sentence


class Raised(logging.Handler):
    """Raises again what a step has raised, so that a test that fails shows it."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            raise record.exc_info[1]


@pytest.fixture
def _raised():
    handler = Raised()
    answering.log.addHandler(handler)
    yield
    answering.log.removeHandler(handler)


# -- requests --------------------------------------------------------------------------


@OVERFLOWS
@pytest.mark.usefixtures("_raised")
@pytest.mark.parametrize("action", STEPS)
@settings(EXAMPLES, max_examples=REQUESTS)
@given(data=st.data())
def test_a_request_is_answered_or_refused_with_a_sentence(action, data):
    moment = data.draw(st.sampled_from(moments()[action]))
    values, frame = unpack(serde.message_from_proto(moment.message).content)
    in_order = data.draw(st.sampled_from([True, True, True, False]))
    if not in_order:
        moment, frame = elsewhere(data.draw, moment, frame)
    if in_order or data.draw(st.booleans()):
        n_rows, n_columns = moment.party.X.shape
        sizes = {"n_rows": n_rows, "n_columns": n_columns}
        sizes["n_parties"] = frame.get("parties", 2)
        request = STEPS[action].contract.request
        content = malformed_content(data.draw, values, frame, request, sizes)
    else:
        content = pack(values, {k: v for k, v in frame.items() if k != "digest"})
    check_answer(action, ask(moment, action, content))


def elsewhere(
    draw: Any, moment: Moment, frame: dict[str, Any]
) -> tuple[Moment, dict[str, Any]]:
    """Draw a moment at which the party expects another step, and the frame there."""
    other = draw(st.sampled_from([m for kinds in moments().values() for m in kinds]))
    there = unpack(serde.message_from_proto(other.message).content)[1]
    if "round" not in there:  # of the first step
        return other, frame
    hidden = {key: value for key, value in frame.items() if "." in key}
    number = {key: there["round"] for key in hidden if key.startswith("sum.")}
    return other, {k: v for k, v in there.items() if "." not in k} | hidden | number


def ask(moment: Moment, action: str, content: Any) -> Message:
    message = serde.message_from_proto(moment.message)
    message.content = content
    context: Context = serde.context_from_proto(moment.context)
    party = moment.party
    with tempfile.TemporaryDirectory() as folder:
        if moment.folder is not None:
            state_dir = Path(folder) / "state"
            if moment.folder.exists():
                shutil.copytree(moment.folder, state_dir)
            party = Party(party.X, party.y, party.ids, party.name, state_dir=state_dir)
        return answering.answer(STEPS[action], message, context, lambda _: party, True)


def check_answer(action: str, reply: Message) -> None:
    if reply.has_error():
        codes = messages.REFUSED, messages.MALFORMED, messages.DAMAGED
        assert reply.error.code in codes, reply.error
        check_sentence(reply.error.reason)
        return
    values, frame = unpack(reply.content)
    assert set(frame) - {"clipped"} == {"digest", "seconds"}
    fields = STEPS[action].contract.reply
    hidden = tuple(name for name, declared in fields.items() if declared.leaves)
    structure(
        {name: declared for name, declared in fields.items() if name not in hidden},
        {k: v for k, v in values.items() if not (hidden and k.startswith(hidden))},
    )


# -- replies ---------------------------------------------------------------------------


@dataclass
class Lie:
    """Draws what comes to the server in the place of a reply."""

    action: str
    liar: Party
    draw: Any
    n_parties: int
    damaged: bool = False
    name: str = ""

    def __call__(self, request: Message, values: Any, frame: Any) -> RecordDict:
        n_rows, n_columns = self.liar.X.shape
        sizes = {"n_rows": n_rows, "n_columns": n_columns, "n_parties": self.n_parties}
        sizes |= {k: v for k, v in unpack(request.content)[0].items() if type(v) is int}
        fields = STEPS[self.action].contract.reply
        content = malformed_content(self.draw, values, frame, fields, sizes)
        self.name = str(self.liar.name)
        try:
            self.name = str(unpack(content)[0].get("name") or self.name)[:100]
        except CorruptMessage:
            self.damaged = True
        return content


@cache
def cases_of(action: str) -> list[str]:
    """Return the three shortest runs that ask for a step."""
    asking = [name for name in CASES if action in faultless(name)[0].ledger.waits]
    return sorted(asking, key=lambda name: len(faultless(name)[1]))[:3]


@OVERFLOWS
@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("action", STEPS)
@settings(EXAMPLES, max_examples=REPLIES)
@given(data=st.data())
def test_a_reply_gives_a_result_or_a_sentence_that_names_a_party(action, data):
    case = data.draw(st.sampled_from(cases_of(action)))
    with tempfile.TemporaryDirectory() as folder:
        members, strategy = CASES[case](Path(folder))
        liar = data.draw(st.integers(0, len(members) - 1))
        place = data.draw(st.sampled_from([0, 0, 1]))
        lie = Lie(action, members[liar], data.draw, len(members))
        grid = LyingGrid(members, action, liar, lie, place)
        try:
            result, sentence = strategy.start(grid, timeout=10), ""
        except FederationError as error:
            sentence = str(error)
    if sentence:
        check_sentence(sentence)
        names = {lie.name, *(str(party.name) for party in members)}
        names |= {f"node {node}" for node in grid.get_node_ids()}
        # A count under a mask says only in the sum that one of them is wrong.
        named = any(name in sentence for name in names)
        assert named or "masks of" in sentence, sentence
        return
    if lie.damaged:  # it was asked again
        arrays, expected = (r.model.arrays() for r in (result, faultless(case)[0]))
        for number in {"model", "version", "tag"} & set(arrays):
            del arrays[number], expected[number]
        np.testing.assert_equal(arrays, expected)
