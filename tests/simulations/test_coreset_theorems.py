"""The sizes that theorems ask for beside those that are enough, on tiny data."""

import json

import numpy as np
import pytest

from simulations import coreset_theorems
from simulations.coreset_theorems import (
    asked,
    basis_blocks,
    drawn,
    enough,
    measured_eps,
    paper_s_set,
    regression,
)
from simulations.experiments import Columns
from simulations.tables import Experiment

N = 600


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 5)) + 7
    return Columns(X, (2, 3), X.sum(axis=1) + rng.normal(size=N))


@pytest.fixture(scope="module")
def basis(data):
    return np.linalg.qr(np.hstack(basis_blocks(data))).Q


def test_all_rows_are_a_coreset_without_error(basis):
    every = np.arange(N)
    assert measured_eps(basis, every, np.ones(N)) == pytest.approx(0, abs=1e-12)
    assert measured_eps(basis, every, np.full(N, 1.5)) == pytest.approx(0.5)


def test_epsilon_is_the_largest_error_over_all_models(data, basis):
    """No model has a larger one, and that of the eigenvector has it."""
    rng = np.random.default_rng(1)
    rows, weights = rng.integers(N, size=90), rng.uniform(0, 2 * N / 90, 90)
    eps = measured_eps(basis, rows, weights)
    columns = np.column_stack([data.X, np.ones(N), data.y])
    costs = (columns @ rng.normal(size=(7, 20_000))) ** 2
    errors = np.abs(weights @ costs[rows] / costs.sum(axis=0) - 1)
    assert 0.3 * eps < errors.max() <= eps * (1 + 1e-9)
    part = np.sqrt(weights)[:, None] * basis[rows]
    values, vectors = np.linalg.eigh(part.T @ part - np.eye(7))
    cost = (basis @ vectors[:, np.abs(values).argmax()]) ** 2
    assert abs(weights @ cost[rows] / cost.sum() - 1) == pytest.approx(eps)


def test_less_error_takes_more_rows(basis):
    scores = (basis**2).sum(axis=1) + 2 / N
    sizes = [enough(basis, scores, eps, np.random.default_rng(0)) for eps in (0.9, 0.4)]
    assert sizes[0] < sizes[1]
    assert enough(basis, scores, 1e-3, np.random.default_rng(0)) is None
    assert enough(basis, None, 1e-3, np.random.default_rng(0)) is None


def test_measured_zeta_is_below_the_bound_of_lemma_e2(data):
    tiny = Experiment("tiny", "", "regression", data, {}, {})
    figures = regression(tiny, 0)
    assert figures["zeta"] <= 1 / figures["gamma"] ** 2
    assert figures["G"] == pytest.approx(6 + 1 + 2)  # columns, ones; y; T
    assert figures["measured zeta G"] < figures["proof"]
    assert figures["theorem"] < figures["proof"]


def test_the_set_of_the_paper_has_fewer_rows_than_its_theorems_ask_for():
    best = paper_s_set()
    assert 700 < best["regression"]["theorem"] / best["regression"]["n"] < 750
    assert 40 < best["k-means"]["theorem"] / best["k-means"]["n"] < 45


def test_how_sizes_are_written():
    assert asked({"n": 1000, "a": 2_500_000.0}, "a") == "2.5e+06 (2,500 n)"
    assert asked({"n": 1000, "a": np.inf}, "a") == "none"
    assert asked({"n": 1000}, "a") == ""
    assert [drawn(8000), drawn(None)] == ["8,000", "n or more"]


def test_command_writes_json_and_tables(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(700, 18)).astype(np.float32)
    np.savez(tmp_path / "kc_house.npz", X=X, y=X.sum(axis=1) + rng.normal(size=700))
    words = ["--datasets", "kc_house", "--pairs", "500", "--data-dir", str(tmp_path)]
    words += ["--output-dir", str(tmp_path / "out")]
    coreset_theorems.app(words, standalone_mode=False)
    results = json.loads((tmp_path / "out" / "coreset_theorems.json").read_text())
    figures = results["experiments"]
    assert [one["name"] for one in figures["regression"]] == [
        "YearPredictionMSD, at best",
        "kc_house, plain regression",
    ]
    assert figures["k-means"][1]["tau"] > 1
    text = (tmp_path / "out" / "coreset_theorems.md").read_text()
    assert "--pairs 500 --data-dir FOLDER" in text
    assert text.count("kc_house, ") == 2
    assert "707 n" in text
