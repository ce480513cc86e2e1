"""What a party does between a message and a step: its order, and why each is needed."""

import subprocess
import sys
from pathlib import Path

from unguarded import ATTACKS

from vfl_flower.party import guards

TESTS = Path(__file__).parents[1]


def names(order):
    return [guard.__name__ for guard in order]


def test_the_order_before_a_step():
    """Given by what a guard reads: see the docstring of each."""
    assert names(guards.BEFORE) == [
        *("check_round", "recall_state", "enter_round", "check_strategy"),
        *("load_releases", "check_peers", "check_signatures", "sign_keys"),
        *("refuse_plain", "arrange_columns", "recall_part", "open_inputs"),
        *("check_arguments", "check_repetition", "count_releases", "check_rows"),
    ]


def test_the_order_after_a_step():
    """It is not the first one reversed: the journal acts twice."""
    assert names(guards.AFTER) == [
        *("hide_sums", "pack_reply", "note_reply", "leave_round", "keep_inputs"),
        *("keep_uses", "keep_part", "keep_state", "keep_predictions"),
    ]


def test_without_a_guard_an_attack_succeeds():
    """The tests of attacks and faults fail, each without the guard that it needs.

    They pass with all guards, as part of the other tests.
    """
    listed = names((*guards.BEFORE, *guards.AFTER))
    assert sorted(ATTACKS) == sorted(listed)
    tests = sorted({test.partition("[")[0] for test in ATTACKS.values()})
    chosen = [sys.executable, "-m", "pytest", "-q", "-p", "unguarded", "--tb=no", "-s"]
    done = subprocess.run(
        [*chosen, *tests], cwd=TESTS, capture_output=True, text=True, check=False
    )
    outcomes = [ln for ln in done.stdout.splitlines() if ln.startswith("without ")]
    passed = [line for line in outcomes if not line.endswith(": failed")]
    assert not passed
    assert {line.split()[1].rstrip(":") for line in outcomes} == set(listed)
