"""The membership attack on MUFC and its table, on tiny data."""

import json

import numpy as np
import pytest

from simulations.mufc_data import mixture
from simulations.mufc_privacy import (
    DATASETS,
    OPTIONS,
    apart,
    app,
    distances_to_bins,
    measure,
    privacy,
    privacy_page,
    success,
)
from vfl_flower.numerics.mufc import Quantizer


@pytest.fixture(scope="module")
def candidates():
    """Return three clusters of 200 rows at two parties, of which 150 take no part."""
    X = mixture([200] * 3, 4, np.random.default_rng(5))
    return apart("tiny", X / (2 * np.abs(X).max()), 3, n_parties=2)


def test_rows_apart_take_no_part(candidates):
    rows = np.concatenate([*candidates.data.rows, candidates.others])
    assert len(candidates.others) == 150
    assert [len(X) for X in candidates.data.rows] == [225, 225]
    assert len(np.unique(rows, axis=0)) == 600


def test_parties_of_a_given_split_keep_their_rows():
    X = np.arange(40.0)[:, None] / 100
    split = apart("given", X, 2, group=np.arange(40) % 4)
    for j, rows in enumerate(split.data.rows):
        assert (np.rint(rows[:, 0] * 100) % 4 == j).all()


def test_rows_in_a_bin_are_at_most_half_a_side_away():
    quantizer = Quantizer(0.2)
    rows = np.array([[0.0, 0.09], [0.0, 0.3], [0.5, 0.5]])
    distances = distances_to_bins(rows, np.array([[2, 2], [2, 4]]), quantizer)
    np.testing.assert_allclose(distances, [0.45, 0.5, 2.5])


def test_success_counts_false_alarms():
    """By hand: members at 1 and 3, others at 2, 3, 4, 5."""
    others = np.array([5.0, 4, 3, 2])
    assert success(np.array([1.0, 3.0]), others, 0) == (0.5, 0.8125)
    assert success(np.array([1.0, 3.0]), others, 0.5) == (1.0, 0.8125)
    assert success(others, others, 0)[1] == 0.5


def test_drawn_rows_are_found_and_means_are_not(candidates):
    drawn = measure(candidates, OPTIONS["init"], 0, 20)
    means = measure(candidates, OPTIONS["full, 20 rows"], 0, 20)
    assert (drawn["members"], drawn["tpr"]) == (1.0, 1.0)
    assert means["members"] < 0.4
    assert means["tpr"] < 0.4
    assert (means["small"], means["bins"] <= 6) == (0, True)
    assert 1 <= means["induced"] < drawn["induced"]
    assert drawn["redrawn"] == 6 / 450
    assert means["moved"] > drawn["moved"]


def test_a_table_has_a_line_for_each_option(candidates):
    measured = privacy(candidates, 1, 2)
    title, short, name, sizes, lines = privacy_page([measured])
    assert (title, name) == ("## Membership", "### tiny")
    assert len(short.split("\n")) == 2 + 4
    assert sizes == "n = 450, d = 4, K = 3, parties = 2, others = 150."
    assert [line.split("|")[1].strip() for line in lines.split("\n")[2:]] == [*OPTIONS]


def test_the_command_skips_what_it_does_not_find(tmp_path, monkeypatch, candidates):
    monkeypatch.setitem(DATASETS, "digits", lambda folder: candidates)
    words = ["--datasets", "digits", "--datasets", "pol", "--seeds", "1"]
    words += ["--requests", "1", "--data-dir", tmp_path, "--output-dir", tmp_path]
    app([str(word) for word in words], standalone_mode=False)
    results = json.loads((tmp_path / "mufc_privacy.json").read_text())
    assert [entry["name"] for entry in results["experiments"]] == ["tiny"]
    assert list(results["skipped"]) == ["pol"]
    assert "**pol** was skipped" in (tmp_path / "mufc_privacy.md").read_text()


@pytest.mark.parametrize("name", ["digits", "postures", "small"])
def test_some_sets_need_no_file(name):
    made = DATASETS[name](None)
    rows = np.concatenate(made.data.rows)
    assert made.data.k == {"digits": 10, "postures": 5, "small": 4}[name]
    assert np.abs(rows).max() <= 0.5
    assert made.data.best > 0
