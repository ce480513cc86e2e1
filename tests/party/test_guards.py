"""What a party does between a message and a step: its order, and what needs each."""

import csv
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
from unguarded import ATTACKS, REFUSALS

from vfl_flower.party import guards
from vfl_flower.party.party import Party, PartyError, Predictions
from vfl_flower.protocol.steps import Reveals

TESTS = Path(__file__).parents[1]


def names(order):
    return [guard.__name__ for guard in order]


def test_the_order_before_a_step_and_after_it():
    """Each guard reads what earlier ones have set, as its docstring says.

    The second order is not the reverse of the first: the journal acts twice.
    """
    assert names(guards.BEFORE) == [
        *("recall_state", "enter_round", "check_strategy", "load_releases"),
        *("check_peers", "check_signatures", "sign_keys", "refuse_plain"),
        *("arrange_columns", "recall_part", "open_inputs", "check_arguments"),
        *("check_repetition", "check_kinds", "check_rows"),
    ]
    assert names(guards.AFTER) == [
        *("hide_sums", "pack_reply", "note_reply", "leave_round", "keep_inputs"),
        *("keep_uses", "keep_part", "keep_state", "keep_order", "keep_predictions"),
    ]


@pytest.mark.second
def test_each_guard_has_a_test_that_fails_without_it():
    """Without a guard that refuses, the attack gets an answer.

    All these tests pass with all guards, as part of the other tests.
    """
    assert sorted(ATTACKS) == sorted(names((*guards.BEFORE, *guards.AFTER)))
    tests = sorted({test.partition("[")[0] for test in ATTACKS.values()})
    chosen = [sys.executable, "-m", "pytest", "-q", "-psupport.unguarded", "--tb=short"]
    done = subprocess.run(
        [*chosen, "-s", *tests], cwd=TESTS, capture_output=True, text=True, check=False
    )
    outcomes = [
        line.removeprefix("without ").split(": ")
        for line in done.stdout.splitlines()
        if line.startswith("without ")
    ]
    assert {guard for guard, _ in outcomes} == set(ATTACKS), done.stderr
    for guard, outcome in outcomes:
        if guard in REFUSALS:
            assert outcome == "answered", guard
        assert outcome != "passed", guard


def test_the_signed_list_of_keys_is_checked_once(monkeypatch):
    monkeypatch.setattr(guards, "identity", MagicMock())
    given = {"frame.signed": b"signed", "frame.session": 7, "keys": (b"", [b"a", b"b"])}
    given["memory.credentials.return_value"] = b"listed"
    call = MagicMock(**given | {"memory.lacks_signatures.side_effect": [True, False]})
    for _ in range(2):
        guards.check_signatures(call)
    guards.identity.check_list.assert_called_once_with(b"signed", 7, b"ab", b"listed")
    call.memory.keep_signed.assert_called_once_with()


A, B = (frozenset({(strategy, "train")}) for strategy in "ab")
CURVES, ALWAYS = (Reveals("curves", "drawn", optional=drops) for drops in (True, False))
CALL = {
    **{"keys": (b"", [b"key"]), "asked_by": B, "memory.uses": A, "allow_plain": False},
    **{"frame.masking": "plain", "step.rows": "session", "step.reveals": [CURVES]},
    **{"party.reveal.side_effect": PartyError("no more curves"), "party.new_order": ()},
    **{"load_part.return_value.settings": {}, "load_part.return_value.arrays": {}},
    "party.predictions": Predictions(np.ones(1)),
}
"""A call on which each guard below acts."""

NO_JOURNAL, NO_CONSENT = {"journal": None}, {"party.consent": None}
NO_PEERS, NO_FOLDER = {"party.consent.peers": None}, {"party.state_dir": None}
ACTS = {
    "recall_state": ("journal.recall", NO_JOURNAL),
    "check_strategy": (
        *("refused", NO_CONSENT, NO_PEERS, {"memory.uses": None}, {"asked_by": A | B}),
        {"memory.uses": frozenset(), "asked_by": frozenset()},
    ),
    "load_releases": ("journal.enter", NO_JOURNAL),
    "check_peers": ("identity.check_run", NO_CONSENT),
    "check_signatures": (
        *("identity.check_list", NO_CONSENT, NO_PEERS, {"step.contract.reply": {}}),
    ),
    "sign_keys": (
        *("identity.sign_list", NO_JOURNAL, {"frame.peers": None}),
        {"memory.credentials.return_value": None},
    ),
    "refuse_plain": ("refused", {"frame.masking": "ring"}, {"allow_plain": True}),
    "arrange_columns": ("arrange", {"replace.return_value.columns": None}),
    "recall_part": ("refused", {"frame.model": None}, {"party.encoding": None}),
    "open_inputs": ("PartySums().open",),
    "check_kinds": (
        *("log.warning", {"party.reveal.side_effect": None}),
        *({"party.lets.return_value": False}, {"step.reveals": [ALWAYS]}),
    ),
    "check_rows": ("party.sum_over", {"step.rows": "none"}),
    "hide_sums": ("frame_of_reply.__setitem__", {"sums.hide.return_value": None}),
    "note_reply": ("journal.leave", NO_JOURNAL),
    "leave_round": ("memory.leave",),
    "keep_inputs": ("memory.keep_inputs", {"step.contract.seals": ()}),
    "keep_uses": ("memory.keep_uses",),
    "keep_part": ("memory.keep_part", {"part": None, "party.part": None}),
    "keep_state": ("journal.keep", NO_JOURNAL),
    "keep_order": ("save_order", {"party.new_order": None}, NO_FOLDER),
    "keep_predictions": ("write_predictions", NO_FOLDER, {"party.predictions": None}),
}
"""The effect of each guard, and the changes of the call under which it has none."""


def effects(guard, monkeypatch, **fields):
    """Return the names of the functions that a guard calls, and "refused"."""
    call = MagicMock(**CALL | {"arguments": {"drawn": True}} | fields)
    for name in ("PartySums", "arrange", "bytes_of_arrays", "identity", "load_part",
                 "log", "replace", "save_order", "write_predictions"):  # fmt: skip
        monkeypatch.setattr(guards, name, getattr(call, name))
    refused = []
    try:
        getattr(guards, guard)(call)
    except PartyError:
        refused = ["refused"]
    return [name for name, *_ in call.mock_calls] + refused


@pytest.mark.parametrize("guard", ACTS)
def test_a_guard_acts_where_it_applies_and_only_there(guard, monkeypatch):
    effect, *changes = ACTS[guard]
    assert effect in effects(guard, monkeypatch)
    for fields in changes:
        assert effect not in effects(guard, monkeypatch, **fields), fields


def test_what_guards_refuse_besides(monkeypatch):
    stays_out = {"asked_by": A, "party.consent.takes_part": lambda *use: use not in A}
    alike = NO_FOLDER | {"party.encoding": None}
    for guard, fields in (("check_strategy", stays_out), ("recall_part", alike)):
        assert "refused" in effects(guard, monkeypatch, **fields)


@pytest.mark.parametrize("ids", [None, ["b, c", 'd "e"', "f"], [7, 5, 6]])
@pytest.mark.parametrize("places", [None, [0, 1, 2], [2, 0]])
def test_predictions_are_under_their_rows_and_their_model(ids, places, tmp_path):
    """A run trains a model of its id, and may work with an earlier one."""
    party = Party(np.ones((3, 1)), state_dir=tmp_path)
    party.source = MagicMock(**{"read_ids.return_value": ids})
    rows = np.arange(3) if places is None else np.array(places)
    cells = [[str(ids[row] if ids else row), f"{row + 5}.5"] for row in rows]
    for asked, model, name in (
        *(("m", "", "m-run"), ("m", "old", "m-run")),
        *((None, "old", "old"), (None, "", "run")),
    ):
        party.predictions = Predictions(rows + 5.5, places and rows, model)
        fields = {"party": party, "frame.model": asked, "memory.run": "run"}
        guards.keep_predictions(MagicMock(**fields))
        (path,) = tmp_path.iterdir()
        assert path.name == f"predictions-{name}.csv"
        with path.open(newline="") as file:
            head = ["id" if ids else "row", "prediction"]
            assert list(csv.reader(file)) == [head, *cells]
        path.unlink()
