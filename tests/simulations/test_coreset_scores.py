"""The experiments of ridge scores and of logistic regression on coresets."""

import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from simulations import coreset_scores
from simulations.coreset_scores import (
    Problem,
    in_short,
    measure,
    problems,
    rare_readings,
    table_of,
)
from simulations.experiments import Columns


def rows(classes, n=300):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5))
    y = X @ np.arange(5.0) + rng.logistic(size=n)
    return Columns(X, (2, 1, 2), (y > 0).astype(float) if classes else y)


@pytest.mark.parametrize("classes", [False, True])
def test_excess_is_over_the_lowest_objective(classes):
    """Which is that of scikit-learn's model; all excesses are above 0."""
    data = rows(classes)
    problem = Problem("tiny", "", data, 0.1, classes)
    result = measure(problem, [40, 80], 3, 0)
    X, y = data.X, data.y
    if classes:
        model = LogisticRegression(C=1 / 60, tol=1e-10).fit(X, y)
        losses = -np.log(model.predict_proba(X)[np.arange(300), y.astype(int)])
    else:
        model = Ridge(alpha=30).fit(X, y)
        losses = (model.predict(X) - y) ** 2
    lowest = losses.mean() + 0.1 * (model.coef_**2).sum()
    assert result["full"] == pytest.approx(lowest, rel=1e-6)
    assert {cell["method"] for cell in result["cells"]} == set(problem.methods)
    for cell in result["cells"]:
        assert min(cell["excesses"]) > 0
        assert cell["excess"] == pytest.approx(np.mean(cell["excesses"]))
    lines = table_of(result).splitlines()
    assert len(lines) == 2 + 2
    first, last = (
        sum(c["excess"] for c in result["cells"] if c["size"] == m) for m in (40, 80)
    )
    assert first > last


def test_effective_columns_are_those_of_the_blocks():
    data = rows(False)
    problem = Problem("tiny", "", data, 0.5, False)
    expected = 0.0
    for block in data.split(data.X):
        eigenvalues = np.linalg.eigvalsh(block.T @ block)
        expected += (eigenvalues / (eigenvalues + 150)).sum()
    assert problem.effective_columns() == pytest.approx(expected)


def test_what_the_comparison_says():
    def cells(method, *excesses):
        sizes = (200, 400, 800)
        return [
            {"method": method, "size": m, "excess": e, "error": 0.1}
            for m, e in zip(sizes, excesses, strict=True)
        ]

    result = {
        "name": "tiny",
        "alpha": 1.0,
        "widths": [2, 2],
        "effective_columns": 3.0,
        "cells": cells("coreset", 2.0, 2.0, 1.0) + cells("uniform", 4.0, 2.1, 0.5),
    }
    last = [cell.strip() for cell in in_short([result]).splitlines()[-1].split("|")]
    assert last[1:5] == ["tiny", "1", "4", "3.0"]
    assert last[5:9] == ["uniform / coreset", "1.05", "1 of 3", "1 of 3"]


def test_rare_readings_are_as_rare_as_said():
    X, y = rare_readings(40_000, seed=0)
    assert X.shape == (40_000, 24)
    share = (np.abs(X[:, 12:]) > 0.1).mean(axis=0)
    expected = np.geomspace(0.0005, 0.005, 12)
    assert (np.abs(share - expected) < 6 * np.sqrt(expected / 40_000)).all()
    assert set(y) == {0.0, 1.0}
    assert [p.alpha for p in problems("rare readings", None, True)] == [1e-4, 1e-2]


def test_command_writes_json_and_tables(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(700, 18)).astype(np.float32)
    np.savez(tmp_path / "kc_house.npz", X=X, y=X.sum(axis=1) + rng.normal(size=700))
    words = ["--datasets", "kc_house", "--datasets", "ijcnn1", "--sizes", "50"]
    words += ["--repeats", "2", "--data-dir", str(tmp_path)]
    words += ["--output-dir", str(tmp_path / "out")]
    coreset_scores.app(words, standalone_mode=False)
    results = json.loads((tmp_path / "out" / "coreset_scores.json").read_text())
    assert [one["alpha"] for one in results["experiments"]] == [0.1, 1.0, 10.0]
    assert results["skipped"].keys() == {"ijcnn1"}
    text = (tmp_path / "out" / "coreset_scores.md").read_text()
    assert "--repeats 2 --data-dir FOLDER" in text
    assert text.count("### kc_house, ridge regression") == 3
