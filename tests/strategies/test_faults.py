"""Whatever happens to a message: the unchanged result, or who failed where."""

import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import faults as faulty
import numpy as np
import pytest
from faults import KINDS, Clock, Fault, FaultyGrid

from vfl_flower import Party, PartyFailed
from vfl_flower.messages import unpack
from vfl_flower.model_parts import ModelPart, save_part
from vfl_flower.simulations import InProcessGrid
from vfl_flower.strategies import (
    FDSKL,
    MUFC,
    CoresetVKMC,
    CoresetVRLR,
    FDSKLPrediction,
    FKKMeans,
)
from vfl_flower.strategies.base import ProtocolResult, ProtocolStrategy
from vfl_flower.strategies.exchange import RETRIES

TIMEOUT = 10.0  # seconds of a clock that only sleeping moves
BAD = 1  # the party that fails: the label holder, whose messages carry most

_regression = {"size": 12, "test_fraction": 0.25, "seed": 3}
_two = {"allow_two_parties": True}
_lasso = {"regularizer": "lasso", "alpha": 0.2, "solver": "cg", "max_iter": 2} | _two
_kernel = {"loss": "square", "target": "continuous", "regularization": 0.1, "seed": 3}
_kernel |= {"bandwidth": 2.0} | _two
_four = {"features": 4}
_steps = {"solver": "doubly-stochastic", "iterations": 2, "block": 2}
MODEL = "0123456789abcdef"
_clusters = {"n_clusters": 2, "size": 12, "n_init": 1, "seed": 3}
_embedded = {"n_clusters": 2, "n_components": 2, "n_features": 3, "iterations": 2}
_embedded |= {"threshold": 0.5, "subspace_tol": 0.0, "coreset_size": 5, "n_init": 1}
_embedded |= {"seed": 3} | _two
_one_by_one = _embedded | {"eigensolver": "lanczos"}
_without = _one_by_one | {"iterations": 1, "cem": False, "masking": "plain"}
_columns = {k: v for k, v in _embedded.items() if k not in ("coreset_size", *_two)}
_columns |= {"partition": "vertical", "block_bytes": 96}
VARIANTS: dict[str, ProtocolStrategy] = {
    "fused": CoresetVRLR(**_regression, evaluate="full"),
    "paper": CoresetVRLR(**_regression, protocol="paper"),
    "uniform": CoresetVRLR(**_regression, sampling="uniform"),
    "full": CoresetVRLR(**_regression, sampling="full"),
    "cg": CoresetVRLR(**_regression, solver="cg", max_iter=2, **_two),
    "proximal": CoresetVRLR(**_regression, **_lasso),
    "saga": CoresetVRLR(**_regression, solver="saga", batch_size=6, max_iter=1, **_two),
    "k-means": CoresetVKMC(**_clusters, evaluate="full"),
    "k-means paper": CoresetVKMC(**_clusters, protocol="paper"),
    "k-means full": CoresetVKMC(**_clusters, sampling="full"),
    "distdim": CoresetVKMC(**_clusters, solver="distdim"),
    "distdim full": CoresetVKMC(**_clusters, solver="distdim", sampling="full"),
    "fdskl": FDSKL(
        **_kernel | _four | {"bandwidth": "median"}, block_bytes=96, test_fraction=0.25
    ),
    "fdskl ring": FDSKL(
        **_kernel, **_four, topology="ring", block_bytes=96, test_fraction=0.25
    ),
    "fdskl paper": FDSKL(**_kernel, **_four, masking="paper", topology="tree"),
    "fdskl steps": FDSKL(**_kernel | _steps),
    "fdskl holders": FDSKL(**_kernel | _steps),
    "fdskl predict": FDSKLPrediction(MODEL, block_bytes=96, **_two),
    "fkk rows": FKKMeans(**_embedded),
    "fkk lanczos": FKKMeans(**_one_by_one),
    "fkk without cem": FKKMeans(**_without),
    "fkk columns": FKKMeans(**_columns),
    "mufc": MUFC(2, 0.05, box="-9,9", n_init=1, seed=3),
}


@pytest.fixture(autouse=True)
def _lists_are_damaged_too(monkeypatch):
    """Damage a list too, as ``send`` is where sums are relayed."""
    scalars = faulty.damage

    def damage(content, what):
        name, value = next(iter(content["settings"].items()), ("", 0))
        if isinstance(value, list) and (what == "setting" or not content["arrays"]):
            content["settings"][name] = [*value, value[0]]
        else:
            scalars(content, what)

    monkeypatch.setattr(faulty, "damage", damage)


@cache
def parties(count: int = 2) -> list[Party]:
    """Return parties with as few rows as the solvers can do with."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(24, 6))
    y = X @ np.arange(6.0) + 3 + rng.normal(size=24)
    names = ["airline", "weather", "registry"][:count]
    blocks = zip(names, np.split(X, count, axis=1), strict=True)
    return [
        Party(block, y if name == names[-1] else None, name=name)
        for name, block in blocks
    ]


@cache
def new_parties(count: int = 2) -> list[Party]:
    """Return the parties with their parts of a model, and without labels."""
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    FOLDERS.append(folder)
    grid = InProcessGrid(parties(count))
    VARIANTS["fdskl ring"].start(grid)
    found = []
    for party, part in zip(parties(count), grid.parts(), strict=True):
        own = Path(folder.name) / str(party.name)
        arrays = {k: v for k, v in part.items() if isinstance(v, np.ndarray)}
        settings = {k: v for k, v in part.items() if k not in arrays}
        settings["encoding"] = party.encoding
        save_part(own, ModelPart(MODEL, "fdskl", settings, arrays))
        found.append(Party(party.X, name=party.name, state_dir=own))
    return found


FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


@cache
def holders(count: int = 2) -> list[Party]:
    """Return the parties, each with all labels: they add up their scores."""
    y = parties(count)[-1].y
    return [Party(party.X, y, name=party.name) for party in parties(count)]


@cache
def users(count: int = 2) -> list[Party]:
    """Return parties with other rows of the same columns."""
    X = np.hstack([party.X for party in parties(3)])[:12, :2]
    blocks = zip(parties(count), np.split(X, [5, 9][: count - 1]), strict=True)
    return [Party(block, name=party.name) for party, block in blocks]


def parties_of(variant: str, count: int = 2) -> list[Party]:
    """Return the parties of a variant."""
    made = {"fdskl predict": new_parties, "fdskl holders": holders}
    made |= {v: users for v in VARIANTS if v.startswith("fkk") and v != "fkk columns"}
    made["mufc"] = users
    return made.get(variant, parties)(count)


def start(
    variant: str, grid: InProcessGrid, timeout: float = TIMEOUT
) -> tuple[ProtocolResult, Any]:
    """Run a variant; return its result, and what it leaves at the parties."""
    folders = [own for party in grid._parties.values() if (own := party.state_dir)]
    for path in _predictions(folders):
        path.unlink()
    result = VARIANTS[variant].start(grid, timeout=timeout)
    return result, (grid.parts(), [path.read_text() for path in _predictions(folders)])


def _predictions(folders: Sequence[Path]) -> list[Path]:
    return [path for folder in folders for path in folder.glob("predictions-*")]


@cache
def faultless_run(variant: str, count: int = 2) -> tuple[ProtocolResult, Any]:
    """Return the result that no fault may change, and what is left at the parties."""
    return start(variant, InProcessGrid(parties_of(variant, count)))


def faultless(variant: str, count: int = 2) -> ProtocolResult:
    """Return the result that no fault may change."""
    return faultless_run(variant, count)[0]


FIRST = {a: v for v in reversed(VARIANTS) for a in faultless(v).ledger.waits}
"""The first variant that asks for a step; the same at the steps of kernel k-means."""

# No list of steps that one could forget to add to. The greeting is the same message in
# all variants: it fails in one, and in `test_once_in_every_step_at_every_party`.
STEPS = [
    (variant, action)
    for variant in VARIANTS
    for action in faultless(variant).ledger.waits
    if action != "hello" or variant == "fused"
    if not variant.startswith("fkk") or variant == FIRST[action]
]
OFTEN = [(v, a) for v, a in STEPS if not v.startswith("fkk")]
"""For what does not depend on the step: enough of them."""
REPEATED = [(v, a) for v, a in STEPS if len(faultless(v).ledger.waits[a]) > 1]

HARMLESS = ("duplicate", "reorder", "delay")
"""Kinds that the result survives also where they happen each time."""
SILENT = ("lose request", "lose reply")
"""Kinds after which nobody says that a message was lost."""
FATAL = ("raise", *SILENT)
"""Kinds that end the run at the first time."""


def run(
    variant: str, fault: Fault, clock: Clock, count: int = 2
) -> tuple[FaultyGrid, ProtocolResult]:
    """Run a variant with one fault: it leaves at the parties what it leaves without."""
    grid = FaultyGrid(parties_of(variant, count), [fault], clock)
    result, left = start(variant, grid)
    np.testing.assert_equal(left, faultless_run(variant, count)[1])
    return grid, result


def assert_unchanged(variant: str, result: ProtocolResult, count: int = 2) -> None:
    """Raise unless the result has the bits, and the round trips, of the faultless."""
    clean = faultless(variant, count)
    own, expected = result.model.arrays(), clean.model.arrays()
    # The number of the run is another each time.
    if variant.startswith(("fdskl", "fkk", "mufc")):
        del own["model"], expected["model"]
    np.testing.assert_equal(own, expected)
    assert result.metrics == clean.metrics
    trips = {action: len(waits) for action, waits in clean.ledger.waits.items()}
    assert {a: len(waits) for a, waits in result.ledger.waits.items()} == trips


def assert_failed(variant: str, fault: Fault, clock: Clock) -> PartyFailed:
    """Run, and raise unless it says who failed and where, after as many messages."""
    grid = FaultyGrid(parties_of(variant), [fault], clock)
    with pytest.raises(PartyFailed) as caught:
        VARIANTS[variant].start(grid, timeout=TIMEOUT)
    again = 0 if fault.kind in (*FATAL, *HARMLESS) else RETRIES
    assert grid.asked(fault.action, BAD) == 1 + again
    # Before its first reply the server knows a party by Flower's number only.
    name = "node 1001" if fault.action == "hello" else parties()[BAD].name
    assert (caught.value.party, caught.value.action) == (name, fault.action)
    assert str(caught.value).startswith(f"party {name!r} failed in {fault.action!r}: ")
    assert clock.now <= TIMEOUT + 0.1
    if fault.kind in (*SILENT, "delay"):  # silence ends the run at the time-out only
        assert caught.value.reason == "no reply within 10 s"
        assert clock.now > TIMEOUT
    else:
        assert clock.now < TIMEOUT / 10
    return caught.value


def test_every_step_of_the_clients_is_run():
    from vfl_flower.clients.base import STEPS as registered

    # These need a state on disk: see test_mufc_faults.py and test_mufc_crashes.py.
    others = {"mufc_forget", "mufc_status"}
    assert {action for _, action in STEPS} >= {"hello", *registered} - others


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("variant", "action"), STEPS)
def test_once(variant, action, kind, clock):
    fault = Fault(kind, action, BAD, nth=0, seconds=TIMEOUT / 4)
    if kind in FATAL:
        assert_failed(variant, fault, clock)
        return
    grid, result = run(variant, fault, clock)
    assert grid.struck == 1
    assert_unchanged(variant, result)
    sent = result.ledger.messages - faultless(variant).ledger.messages
    assert sent == (0 if kind in HARMLESS else 1)
    for first, second in grid.twins:  # asked twice, a party says the same
        (values, frame), (again, frame_again) = map(
            unpack, (first.content, second.content)
        )
        np.testing.assert_equal(values, again)
        assert frame["clipped"] == frame_again["clipped"]
    # The last step of a run, or a greeting, is overtaken by no round or harmlessly.
    for late in grid.late if action != "hello" else []:
        assert "is over, the last one was" in late.error.reason


def test_requests_are_overtaken(clock):
    """Or the kind would show nothing."""
    fault = Fault("overtaken", "coresets_totals", BAD)
    grid, _ = run("paper", fault, clock)
    (late,) = grid.late
    assert late.error.reason == "round 1 is over, the last one was 2"


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in FATAL])
@pytest.mark.parametrize(("variant", "action"), REPEATED)
def test_once_in_a_later_round(variant, action, kind, clock):
    fault = Fault(kind, action, BAD, nth=1, seconds=TIMEOUT / 4)
    grid, result = run(variant, fault, clock)
    assert grid.struck == 1
    assert_unchanged(variant, result)


@pytest.mark.parametrize("kind", SILENT)
@pytest.mark.parametrize(("variant", "action"), REPEATED)
def test_silence_in_a_later_round(variant, action, kind, clock):
    faults = [Fault(kind, action, BAD, nth=1)]
    grid = FaultyGrid(parties_of(variant), faults, clock)
    with pytest.raises(PartyFailed, match=r"'weather'.*no reply within 10 s") as caught:
        VARIANTS[variant].start(grid, timeout=TIMEOUT)
    assert caught.value.action == action
    assert grid.asked(action, BAD) == 2
    assert TIMEOUT < clock.now <= TIMEOUT + 0.1


@pytest.mark.parametrize("kind", HARMLESS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_always_in_every_step_at_every_party(variant, kind, clock):
    fault = Fault(kind, nth=None, seconds=TIMEOUT / 4)
    grid, result = run(variant, fault, clock, count=3)
    assert grid.struck == result.ledger.messages
    assert_unchanged(variant, result, count=3)


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in (*FATAL, *HARMLESS)])
@pytest.mark.parametrize(("variant", "action"), OFTEN)
def test_always(variant, action, kind, clock):
    fault = Fault(kind, action, BAD, nth=None)
    reason = assert_failed(variant, fault, clock).reason
    if kind in ("unavailable", "reply unavailable", "overtaken"):
        assert reason == "as planned"
    else:
        assert reason == "the message was damaged on its way"


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in FATAL])
@pytest.mark.parametrize("variant", VARIANTS)
def test_once_in_every_step_at_every_party(variant, kind, clock):
    fault = Fault(kind, nth=0, seconds=TIMEOUT / 4)
    grid, result = run(variant, fault, clock, count=3)
    assert grid.struck == len(result.ledger.entries)
    assert_unchanged(variant, result, count=3)


@pytest.mark.parametrize(("variant", "action"), OFTEN)
def test_reply_after_most_of_the_time(variant, action, clock):
    fault = Fault("delay", action, BAD, nth=0, seconds=TIMEOUT * 0.75)
    grid, result = run(variant, fault, clock)
    assert_unchanged(variant, result)
    assert result.ledger.messages == faultless(variant).ledger.messages
    # A party may be at work: it is waited for and not asked again.
    assert grid.asked(action, BAD) == len(result.ledger.waits[action])
    assert TIMEOUT * 0.75 < clock.now < TIMEOUT


@pytest.mark.parametrize(("variant", "action"), OFTEN)
def test_reply_too_late(variant, action, clock):
    fault = Fault("delay", action, BAD, nth=None, seconds=TIMEOUT + 1)
    assert_failed(variant, fault, clock)


def test_silent_party_ends_the_run_in_time_by_a_real_clock():
    faults = [Fault("lose reply", "coresets_scores", BAD, nth=None)]
    grid = FaultyGrid(parties(), faults)
    start = time.monotonic()
    with pytest.raises(PartyFailed, match=r"'weather'.*no reply within 0\.5 s"):
        VARIANTS["fused"].start(grid, timeout=0.5)
    assert 0.5 < time.monotonic() - start < 1.5


def test_all_silent_parties_are_named(clock):
    faults = [Fault("lose reply", "coresets_scores", party=None, nth=None)]
    grid = FaultyGrid(parties(3), faults)
    with pytest.raises(PartyFailed) as caught:
        VARIANTS["fused"].start(grid, timeout=TIMEOUT)
    assert caught.value.party == "airline, weather, registry"


@pytest.mark.parametrize("answer", [[], [None]], ids=["the simulation", "a SuperLink"])
def test_message_that_is_not_taken(answer, clock):
    class Full(InProcessGrid):
        def push_messages(self, messages):
            (message,) = messages
            kind, node = message.metadata.message_type, message.metadata.dst_node_id
            refused = (kind, node) == ("train.coresets_totals", 1001)
            return answer if refused else super().push_messages([message])

    with pytest.raises(PartyFailed, match="the SuperLink did not take") as caught:
        VARIANTS["fused"].start(Full(parties(3)), timeout=TIMEOUT)
    assert (caught.value.party, caught.value.action) == ("weather", "coresets_totals")
    assert clock.now == 0.0
