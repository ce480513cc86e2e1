"""What a run writes and prints."""

import json
import math
from dataclasses import replace

import pytest
from results import made_result

from vfl_flower import MUFC, CoresetVRLR, SecureRidge
from vfl_flower.app.report.report import changed, page_text, write_report


def result(loss, *, seed=4, **more):
    return made_result(metrics={"train_loss": loss, **more}, seed=seed)


@pytest.fixture
def results():
    return {"coreset": result(1.25, sigma_min=0.5), "full": result(1.0, seed=None)}


SETTINGS = {"strategy": "coreset-vrlr", "size": 200, "compare": True}


def test_json(tmp_path, results):
    write_report(tmp_path, results, SETTINGS)
    actual = json.loads((tmp_path / "result.json").read_text())
    assert actual["run_config"] == SETTINGS
    coreset, full = actual["results"]["coreset"], actual["results"]["full"]
    assert list(actual["results"]) == ["coreset", "full"]
    assert (coreset["seed"], full["seed"]) == (4, None)
    assert coreset["metrics"] == {"1": {"train_loss": 1.25, "sigma_min": 0.5}}
    assert coreset["ledger"]["bytes_up"] == 2310
    assert coreset["ledger"]["round_trips"] == 3
    actions = [entry["action"] for entry in coreset["ledger"]["entries"]]
    assert actions == ["hello", "solve", "test"]


def test_numbers_that_json_does_not_have(tmp_path):
    write_report(tmp_path, {"a": result(math.inf, tau=math.nan)}, SETTINGS)

    def refuse(constant):
        raise AssertionError(constant)

    text = (tmp_path / "result.json").read_text()
    actual = json.loads(text, parse_constant=refuse)
    metrics = actual["results"]["a"]["metrics"]["1"]
    assert metrics == {"train_loss": "inf", "tau": "nan"}
    assert "inf" in (tmp_path / "report.md").read_text()


def printed(tmp_path, results):
    """Return the table that a run prints: the cells of each row by its name."""
    text = write_report(tmp_path, results, SETTINGS).split("\n\n")[0]
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()]
    return {name: cells for name, *cells in rows}


def test_summary(tmp_path, results):
    table = printed(tmp_path, results)
    assert {name: table[name] for name in table if "-:" not in name} == {
        "": ["coreset", "full"],
        "train loss": ["1.25", "1"],
        "sigma min": ["0.5", "-"],
        "round trips": ["3", "3"],
        "bytes from all parties": ["2.31 kB", "2.31 kB"],
        "bytes to all parties": ["4.62 kB", "4.62 kB"],
        "bytes to evaluate": ["300 B", "300 B"],
        "time waited": ["1.50 s", "1.50 s"],
        "computing by all parties": ["0.30 s", "0.30 s"],
        "time in all": ["0.00 s", "0.00 s"],
    }


def test_a_standard_error_stands_beside_its_number(tmp_path):
    given = result(1.0, test_loss=2.0, test_loss_se=0.1234)
    table = printed(tmp_path, {"a": given})
    assert (table["train loss"], table["test loss"]) == (["1"], ["2 ± 0.12"])
    assert not any("se" in name.split() for name in table)


def test_a_ledger_is_no_markup(tmp_path):
    """Whatever the names of parties are: all its lines are indented."""
    write_report(tmp_path, {"a": made_result("``` <b>")}, SETTINGS)
    _, ledger = (tmp_path / "report.md").read_text().split("## Ledger of a\n\n")
    assert "``` <b>" in ledger
    assert all(line.startswith("    ") for line in ledger.splitlines())


def test_settings_are_compared_with_the_defaults():
    assert changed(CoresetVRLR()) == changed(MUFC(server_state="/state")) == {}
    assert changed(CoresetVRLR(test_fraction=0.2)) == {"test_fraction": 0.2}


def test_a_run_that_repeats_nearly_is_not_said_to_repeat_exactly():
    run = result(1.0)
    assert "another run gives exactly the same" in page_text(run)
    nearly = replace(run, strategy=SecureRidge())
    assert "another run gives nearly the same" in page_text(nearly)
