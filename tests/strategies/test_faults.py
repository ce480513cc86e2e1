"""Whatever happens to a message: the unchanged result, or who failed where."""

import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from faults import KINDS, Clock, Fault, FaultyGrid
from variants import LIKE, VARIANTS, parties, parties_of, parts

from vfl_flower import PartyFailed
from vfl_flower.protocol.messages import unpack
from vfl_flower.server.exchange import RETRIES
from vfl_flower.server.strategy import ProtocolResult
from vfl_flower.simulation import InProcessGrid

TIMEOUT = 10.0  # seconds of a clock that only sleeping moves
COUNT, BAD = 3, 1  # the number of parties, and the place of the one that fails


def start(
    variant: str, grid: InProcessGrid, timeout: float = TIMEOUT
) -> tuple[ProtocolResult, Any]:
    """Run a variant; return its result, and what it leaves at the parties."""
    folders = [p.state_dir for p in grid._parties.values() if p.state_dir]
    result = VARIANTS[variant].start(grid, timeout=timeout)
    models = [len(list(folder.glob("*.npz"))) for folder in folders]
    paths = [path for folder in folders for path in folder.glob("predictions-*")]
    return result, (parts(grid), models, [path.read_text() for path in paths])


@cache
def faultless_run(variant: str) -> tuple[ProtocolResult, Any]:
    """Return what no fault may change: the result, and what is left at the parties."""
    return start(variant, InProcessGrid(parties_of(variant, COUNT)))


def faultless(variant: str) -> ProtocolResult:
    return faultless_run(variant)[0]


FEW = ("fdskl", "mufc")
"""For what does not depend on the step: how the server notices a fault, and asks again.

How a party answers again does; that `test_a_request_that_comes_twice` shows of all.
"""
STEPS = [("mufc", action) for action in faultless("mufc").ledger.waits]

HARMLESS = ("duplicate", "reorder", "delay")
"""Kinds that the result survives also where they happen each time."""
SILENT = ("lose request", "lose reply")
"""Kinds after which nobody says that a message was lost."""
FATAL = ("raise", *SILENT)
"""Kinds that end the run at the first time."""
HEALED = tuple(kind for kind in KINDS if kind not in (*FATAL, *HARMLESS))
"""Kinds after which a party is asked once more."""


def run(
    variant: str, faults: Sequence[Fault], clock: Clock
) -> tuple[FaultyGrid, ProtocolResult]:
    """Run a variant with faults: it leaves at the parties what it leaves without."""
    grid = FaultyGrid(parties_of(variant, COUNT), faults, clock)
    result, left = start(variant, grid)
    expected = faultless_run(variant)[1]
    for part, before in zip(left[0], expected[0], strict=True):
        assert_same(variant, part, before)
    assert left[1] == expected[1]
    for text, before in zip(left[2], expected[2], strict=True):
        np.testing.assert_allclose(numbers(text), numbers(before), atol=0.2)
    return grid, result


def numbers(text: str) -> list[list[float]]:
    """Return the rows of a file of predictions."""
    return [list(map(float, line.split(","))) for line in text.split()[1:]]


FITTED = ("coef", "intercept", "regularization", "cv_score", "relevance")
"""What FDSKL fits to features that are rounded with numbers of the dealer."""


def assert_same(variant: str, values: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raise unless parts, or metrics, are equal.

    The numbers of a dealer differ in each run, so that a fit to rounded features has
    only its first digits in common, and of small weights not even these.
    """
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        fitted = name in FITTED or (name.startswith("test_") and name != "test_rows")
        if not (fitted and variant.startswith("ridge")):
            np.testing.assert_equal(values[name], value, err_msg=name)
        else:
            small = 1e-3 * np.abs(value).max()
            np.testing.assert_allclose(values[name], value, 0.02, small, err_msg=name)


def assert_unchanged(variant: str, result: ProtocolResult) -> None:
    """Raise unless the result has the bits, and the round trips, of the faultless."""
    clean = faultless(variant)
    arrays, expected = result.model.arrays(), clean.model.arrays()
    # The number of the run is another each time.
    if "model" in arrays:
        del arrays["model"], expected["model"]
    if variant.startswith("align"):  # its keys are new in each run
        del arrays["tag"], expected["tag"]
    np.testing.assert_equal(arrays, expected)
    assert_same(variant, dict(result.metrics), dict(clean.metrics))
    trips = {action: len(waits) for action, waits in clean.ledger.waits.items()}
    assert {a: len(waits) for a, waits in result.ledger.waits.items()} == trips


def assert_failed(variant: str, fault: Fault, clock: Clock) -> PartyFailed:
    """Run, and raise unless it says who failed and where, after as many messages."""
    grid = FaultyGrid(parties_of(variant, COUNT), [fault], clock)
    with pytest.raises(PartyFailed) as caught:
        VARIANTS[variant].start(grid, timeout=TIMEOUT)
    again = 0 if fault.kind in (*FATAL, *HARMLESS) else RETRIES
    assert grid.asked(fault.action, BAD) == 1 + again
    # Before its first reply the server knows a party by Flower's number only.
    name = "node 1001" if fault.action == "hello" else parties(COUNT)[BAD].name
    assert (caught.value.party, caught.value.action) == (name, fault.action)
    assert str(caught.value).startswith(f"party {name!r} failed in {fault.action!r}: ")
    assert clock.now <= TIMEOUT + 0.1
    if fault.kind in (*SILENT, "delay"):  # silence ends the run at the time-out only
        hint = " (flwr supernode list shows whose node it is)"
        hint = hint if fault.action == "hello" else ""
        assert caught.value.reason == f"no reply within 10 s{hint}"
        assert clock.now > TIMEOUT
    else:
        assert clock.now < TIMEOUT / 10
    return caught.value


def assert_twins_are_equal(grid: FaultyGrid) -> None:
    """Raise unless a party that was asked twice has said the same."""
    for first, second in grid.twins:
        (values, frame), (again, frame_again) = map(
            unpack, (first.content, second.content)
        )
        np.testing.assert_equal(values, again)
        assert frame.get("clipped") == frame_again.get("clipped")


def assert_late_are_refused(grid: FaultyGrid) -> None:
    """Raise unless a party has refused each request that a later round overtook.

    The last step of a run, or a greeting, is overtaken by no round or harmlessly.
    """
    for late in grid.late:
        if late.metadata.message_type != "train.hello":
            assert "is over: the last round was" in late.error.reason


@pytest.mark.parametrize("kind", [*FATAL, "delay"])
@pytest.mark.parametrize(("variant", "action"), STEPS)
def test_once_and_the_run_ends(variant, action, kind, clock):
    """As `check_faults` of :mod:`vfl_flower.testing` shows of every step."""
    assert_failed(variant, Fault(kind, action, BAD, nth=0, seconds=TIMEOUT + 1), clock)


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("variant", FEW)
def test_kinds_in_turn_in_every_step_at_every_party(variant, turn, clock):
    """Over the turns each step of a variant has each kind, and each party three.

    In a step of one run each of the three parties has another kind, or none: over the
    turns these are the kinds 0 to 2, 3 to 5, and 0 to 2 again, from another first one
    in each step.
    """
    kinds, clean = (*HEALED, None), faultless(variant).ledger
    assert len(kinds) <= 3 * 3
    steps, names = list(clean.waits), [p.name for p in parties_of(variant, COUNT)]
    faults = [
        Fault(kind, action, party, nth=0)
        for action, name in clean.entries
        for party in [names.index(name)]
        if (kind := kinds[(steps.index(action) + 3 * party + turn) % len(kinds)])
    ]
    grid, result = run(variant, faults, clock)
    assert_unchanged(variant, result)
    assert grid.struck == len(faults) == result.ledger.messages - clean.messages
    assert_late_are_refused(grid)


def test_requests_are_overtaken(clock):
    """Or the kind would show nothing."""
    grid, _ = run("paper", [Fault("overtaken", "coresets_totals", BAD)], clock)
    (late,) = grid.late
    assert late.error.reason == "round 1 is over: the last round was 2"


@pytest.mark.parametrize(
    ("variant", "kind"),
    [
        *((variant, "duplicate") for variant in VARIANTS if variant not in LIKE),
        *((variant, kind) for variant in FEW for kind in HARMLESS[1:]),
    ],
)
def test_a_request_that_comes_twice(variant, kind, clock):
    """In every step, at every party; or a reply that comes late, or not in order."""
    grid, result = run(variant, [Fault(kind, nth=None, seconds=TIMEOUT / 4)], clock)
    assert grid.struck == result.ledger.messages
    assert_unchanged(variant, result)
    assert_twins_are_equal(grid)


@pytest.mark.parametrize("kind", HEALED)
@pytest.mark.parametrize("action", ["hello", "mufc_train"])
def test_always(action, kind, clock):
    reason = assert_failed("mufc", Fault(kind, action, BAD, nth=None), clock).reason
    if kind in ("unavailable", "reply unavailable", "overtaken"):
        assert reason == "as planned"
    else:
        assert reason == "the message was damaged in transit"


@pytest.mark.parametrize("kind", HEALED)
def test_all_parties_at_once(kind, clock):
    """All have the same fault in every step: nobody's reply is there to go on with."""
    grid, result = run("mufc", [Fault(kind)], clock)
    assert grid.struck == len(result.ledger.entries)
    assert_unchanged("mufc", result)


def test_silent_party_ends_the_run_in_time_by_a_real_clock():
    faults = [Fault("lose reply", "coresets_scores", BAD, nth=None)]
    grid = FaultyGrid(parties(), faults)
    start = time.monotonic()
    with pytest.raises(PartyFailed, match=r"'weather'.*no reply within 0\.5 s"):
        VARIANTS["fused"].start(grid, timeout=0.5)
    assert 0.5 < time.monotonic() - start < 60  # the usual time-out is an hour


def test_all_silent_parties_are_named(clock):
    faults = [Fault("lose reply", "coresets_scores", party=None, nth=None)]
    with pytest.raises(PartyFailed) as caught:
        VARIANTS["fused"].start(FaultyGrid(parties(3), faults), timeout=TIMEOUT)
    assert caught.value.party == "airline, weather, registry"


@pytest.mark.parametrize("answer", [[], [None]], ids=["the simulation", "a SuperLink"])
def test_message_that_is_not_taken(answer, clock):
    class Full(InProcessGrid):
        def push_messages(self, messages):
            (message,) = messages
            kind, node = message.metadata.message_type, message.metadata.dst_node_id
            refused = (kind, node) == ("train.coresets_totals", 1001)
            return answer if refused else super().push_messages([message])

    with pytest.raises(PartyFailed, match="the SuperLink did not accept") as caught:
        VARIANTS["fused"].start(Full(parties(3)), timeout=TIMEOUT)
    assert (caught.value.party, caught.value.action) == ("weather", "coresets_totals")
    assert clock.now == 0.0
