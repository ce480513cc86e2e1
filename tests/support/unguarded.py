"""A pytest plugin, ``support.unguarded``, that tests attacks without a guard."""

import pytest

from vfl_flower.party import guards

ANSWERING = "party/test_answering.py::"
CONSENT = "party/test_consent.py::"
PEERS = "strategies/test_forged_peers.py::"
RESUMED = "strategies/test_resume_attacks.py::"
ROWS = "strategies/test_row_guards.py::"

REFUSALS = {
    "enter_round": f"{ANSWERING}test_round_that_does_not_follow",
    "load_releases": "party/test_journal.py::test_rows_count_in_all_sessions_of_a_run",
    "check_strategy": f"{CONSENT}test_rules_of_a_run[rules0-",
    "check_peers": f"{PEERS}test_it_has_nothing_where_peers_are_pinned",
    "check_signatures": (
        f"{PEERS}test_a_hello_that_is_replayed_ends_at_the_second_message"
    ),
    "refuse_plain": f"{ANSWERING}test_plain_sums_are_refused[counter-",
    "check_arguments": f"{ANSWERING}test_wrong_arguments_are_refused_by_name",
    "check_repetition": f"{RESUMED}test_what_is_answered_once_is_not_answered_again",
    "check_kinds": f"{CONSENT}test_what_is_not_of_rows_is_counted_by_times",
    "check_rows": f"{ROWS}test_two_orders_that_differ_by_a_row_do_not_reveal_it",
    "note_reply": f"{CONSENT}test_rules_of_a_run[rules4-",
    "leave_round": f"{ANSWERING}test_same_round_with_another_reply_is_refused",
    "keep_uses": f"{ROWS}test_steps_of_two_strategies_do_not_mix_in_a_session",
}
"""For each refusing guard, the start of the id of an attack's test: without the guard,
the party answers."""

RESULTS = {
    "recall_state": f"{RESUMED}test_rows_are_counted_on",
    "sign_keys": f"{PEERS}test_pinned_peers_are_accepted",
    "arrange_columns": (
        "party/test_columns.py::"
        "test_columns_in_another_order_give_the_same_clusters[False"
    ),
    "recall_part": f"{ANSWERING}test_new_rows_of_another_encoding_are_refused",
    "open_inputs": (
        "strategies/test_deviating_server.py::"
        "test_a_sum_of_different_questions_is_noise[as_told"
    ),
    "hide_sums": f"{ANSWERING}test_masks_hide_each_and_cancel_in_the_sum",
    "pack_reply": f"{ANSWERING}test_memory_goes_from_round_to_round",
    "keep_inputs": (
        "strategies/test_deviating_server.py::"
        "test_what_is_sealed_opens_only_under_the_same_question"
    ),
    "keep_part": f"{ANSWERING}test_a_new_part_is_kept_in_the_run_and_on_disk",
    "keep_state": (
        f"{RESUMED}test_a_supernode_that_is_started_again_takes_the_key_of_a_message"
    ),
    "keep_order": f"{ROWS}test_a_refused_order_is_not_kept[4",
    "keep_predictions": f"{ANSWERING}test_predictions_of_rows_without_ids",
}
"""For each other guard, a test that needs its effect: the guard hides an addend, stores
a state, or returns values that the step or a later guard reads."""

ATTACKS = REFUSALS | RESULTS


def guard_of(nodeid):
    """Return the guard that a test runs without; "" for other tests."""
    known = (n for n, test in ATTACKS.items() if nodeid.startswith(f"tests/{test}"))
    return next(known, "")


def pytest_collection_modifyitems(items):
    """Run only these tests."""
    items[:] = [item for item in items if guard_of(item.nodeid)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Remove the guard while a test and its fixtures run."""
    removed, orders = guard_of(item.nodeid), (guards.BEFORE, guards.AFTER)
    guards.BEFORE, guards.AFTER = (
        tuple(guard for guard in order if guard.__name__ != removed) for order in orders
    )
    try:
        return (yield)
    finally:
        guards.BEFORE, guards.AFTER = orders


def pytest_runtest_logreport(report):
    """Print the guard and the outcome of its test: whether a party has answered."""
    if report.when == "call":
        text = str(report.longrepr)
        answered = "DID NOT RAISE" in text or "Message error is None" in text
        outcome = "answered" if answered else report.outcome
        print(f"\nwithout {guard_of(report.nodeid)}: {outcome}")
