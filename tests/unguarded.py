"""A plugin of pytest, ``-p unguarded``: tests of attacks run without a guard."""

import pytest

from vfl_flower.party import guards

ATTACKS = {
    "check_round": (
        "party/test_journal.py::test_a_second_message_from_one_saved_state"
    ),
    "recall_state": "strategies/test_resume_attacks.py::test_rows_are_counted_on",
    "enter_round": "party/test_answering.py::test_other_step_in_the_same_round",
    "check_strategy": "party/test_consent.py::test_rules_of_a_run[rules0-",
    "load_releases": (
        "party/test_consent.py::test_a_limit_for_life_holds_over_twenty_runs"
    ),
    "check_peers": (
        "strategies/test_forged_peers.py::test_it_has_nothing_where_peers_are_pinned"
    ),
    "check_signatures": (
        "strategies/test_forged_peers.py::"
        "test_a_hello_that_is_replayed_ends_at_the_second_message"
    ),
    "sign_keys": "strategies/test_forged_peers.py::test_pinned_peers_are_accepted",
    "refuse_plain": "party/test_answering.py::test_plain_sums_are_refused[counter-",
    "arrange_columns": (
        "strategies/test_columns.py::"
        "test_columns_in_another_order_give_the_same_clusters[False"
    ),
    "recall_part": (
        "party/test_answering.py::test_new_rows_of_another_encoding_are_refused"
    ),
    "open_inputs": (
        "party/test_answering.py::test_masks_hide_each_and_cancel_in_the_sum"
    ),
    "check_arguments": (
        "party/test_answering.py::test_wrong_arguments_are_refused_by_name"
    ),
    "check_repetition": (
        "strategies/test_resume_attacks.py::"
        "test_what_is_answered_once_is_not_answered_again"
    ),
    "count_releases": (
        "party/test_consent.py::test_nothing_is_computed_for_a_step_that_is_refused"
    ),
    "check_rows": (
        "strategies/test_row_guards.py::"
        "test_two_orders_that_differ_by_a_row_do_not_reveal_it"
    ),
    "hide_sums": (
        "party/test_answering.py::test_clipped_values_are_counted_under_a_mask"
    ),
    "pack_reply": "party/test_answering.py::test_memory_goes_from_round_to_round",
    "note_reply": "party/test_consent.py::test_rules_of_a_run[rules4-",
    "leave_round": (
        "party/test_answering.py::test_same_round_with_another_reply_is_refused"
    ),
    "keep_inputs": (
        "strategies/test_deviating_server.py::"
        "test_what_is_sealed_opens_only_under_the_same_question"
    ),
    "keep_uses": (
        "strategies/test_row_guards.py::"
        "test_steps_of_two_strategies_do_not_mix_in_a_session"
    ),
    "keep_part": (
        "party/test_answering.py::test_a_new_part_is_kept_in_the_run_and_on_disk"
    ),
    "keep_state": (
        "strategies/test_resume_attacks.py::"
        "test_a_supernode_that_is_started_again_takes_the_key_of_a_message"
    ),
    "keep_predictions": (
        "party/test_answering.py::test_predictions_of_rows_without_ids"
    ),
}
"""For each guard, the start of the id of a test of an attack or a fault."""


def guard_of(nodeid):
    """Return the guard that a test runs without; "": it is none of these tests."""
    known = (n for n, test in ATTACKS.items() if nodeid.startswith(f"tests/{test}"))
    return next(known, "")


def pytest_collection_modifyitems(items):
    """Run only these tests."""
    items[:] = [item for item in items if guard_of(item.nodeid)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Remove the guard while a test runs, with its fixtures."""
    removed, orders = guard_of(item.nodeid), (guards.BEFORE, guards.AFTER)
    guards.BEFORE, guards.AFTER = (
        tuple(guard for guard in order if guard.__name__ != removed) for order in orders
    )
    try:
        return (yield)
    finally:
        guards.BEFORE, guards.AFTER = orders


def pytest_runtest_logreport(report):
    """Print the outcome of a test beside the guard."""
    if report.when == "call":
        print(f"\nwithout {guard_of(report.nodeid)}: {report.outcome}")
