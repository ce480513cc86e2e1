"""What a party does between a message and a step: its order, and what needs each."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from unguarded import ATTACKS, REFUSALS

from vfl_flower.party import guards

TESTS = Path(__file__).parents[1]


def names(order):
    return [guard.__name__ for guard in order]


def test_the_order_before_a_step():
    """Each guard reads what earlier ones have set, as its docstring says."""
    assert names(guards.BEFORE) == [
        *("recall_state", "enter_round", "check_strategy", "load_releases"),
        *("check_peers", "check_signatures", "sign_keys", "refuse_plain"),
        *("arrange_columns", "recall_part", "open_inputs", "check_arguments"),
        *("check_repetition", "check_kinds", "check_rows"),
    ]


def test_the_order_after_a_step():
    """It is not the reverse of the other one: the journal acts twice."""
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
    checked, kept = [], []
    monkeypatch.setattr(guards.identity, "check_list", lambda *of: checked.append(of))
    memory = SimpleNamespace(
        lacks_signatures=lambda frame: not kept,
        credentials=lambda frame: b"listed",
        keep_signed=lambda: kept.append(True),
    )
    call = SimpleNamespace(
        frame=SimpleNamespace(signed=b"signed", session=7),
        memory=memory,
        party=SimpleNamespace(consent=SimpleNamespace(peers={})),
        step=SimpleNamespace(contract=SimpleNamespace(reply={"rows": None})),
        keys=(b"", [b"a", b"b"]),
    )
    for _ in range(2):
        guards.check_signatures(call)
    assert checked == [(b"signed", 7, b"ab", b"listed")]
