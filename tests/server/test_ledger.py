"""The ledger adds up what it is told."""

import json

import pytest

from vfl_flower import Ledger


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    for action, party, count in (
        ("hello", "node 2", 1),
        ("hello", "node 1", 2),
        ("totals", "node 1", 3),
    ):
        entry = ledger.entry(action, party)
        entry.messages += count
        entry.bytes_up += 10 * count
        entry.bytes_down += 100 * count
        entry.units_up += 1000 * count
        entry.units_down += 10_000 * count
        entry.seconds_computed += 0.5 * count
        ledger.clips[action] = ledger.clips.get(action, 0) + count
    ledger.round_trip("hello", 0.25)
    ledger.round_trip("totals", 0.5)
    ledger.round_trip("totals", 1.0)
    return ledger


def test_totals(ledger):
    assert ledger.round_trips == 3
    assert ledger.messages == 6
    assert ledger.bytes_up == 60
    assert ledger.bytes_down == 600
    assert ledger.units == 66_000
    assert ledger.clipped == 6
    assert ledger.seconds_waited == 1.75
    assert ledger.seconds_computed == 3.0
    assert ledger.waits == {"hello": [0.25], "totals": [0.5, 1.0]}


def test_rename_gives_names_and_their_order(ledger):
    ledger.rename({"node 1": "airline", "node 2": "weather"})
    assert list(ledger.entries) == [
        ("hello", "airline"),
        ("totals", "airline"),
        ("hello", "weather"),
    ]
    assert all(key == (e.action, e.party) for key, e in ledger.entries.items())
    assert ledger.entry("hello", "weather").messages == 1
    assert ledger.messages == 6


def test_to_dict_is_json(ledger):
    loaded = json.loads(json.dumps(ledger.to_dict()))
    assert loaded["units"] == 66_000
    assert loaded["round_trips"] == 3
    assert loaded["waits"]["totals"] == [0.5, 1.0]
    names = [entry["party"] for entry in loaded["entries"]]
    assert names == ["node 2", "node 1", "node 1"]
    assert loaded["entries"][2]["units_up"] == 3000
    assert Ledger().to_dict()["seconds_waited"] == 0


def test_costs_of_some_actions(ledger):
    greeting = ledger.of("hello")
    assert (greeting.messages, greeting.round_trips) == (3, 1)
    assert ledger.of("hello", "totals").to_dict() == ledger.to_dict()
    assert ledger.of().messages == 0


def test_a_run_that_is_resumed_adds_to_what_its_parties_have(ledger):
    """Nodes are greeted without a name, and then named."""
    ledger.rename({"node 1": "airline", "node 2": "weather"})
    ledger.entry("hello", "node 1").messages += 5
    ledger.rename({"node 1": "airline"})
    assert ledger.entry("hello", "airline").messages == 7
    assert ledger.messages == 11


def test_table_is_aligned(ledger):
    header, *rows = ledger.table().splitlines()
    assert header.split()[:3] == ["action", "party", "messages"]
    assert len(rows) == 3
    assert len({len(line) for line in (header, *rows)}) == 1
    assert "30,000" in rows[2]  # units down
    assert "1.500" in rows[2]  # seconds computed
    assert Ledger().table().startswith("action")
