"""Coresets of twelve months, on a small set."""

import json

import numpy as np
import pytest

from simulations import coreset_months
from simulations.coreset_months import best, loss, measure, months_of, trained
from simulations.experiments import Columns
from simulations.tables import Experiment
from vfl_flower.simulation import simulate


def experiment(task="regression", n=600):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4))
    y = X.sum(axis=1) + rng.normal(size=n) if task == "regression" else None
    data = Columns(X, (2, 2), y)
    arguments = {} if y is not None else {"n_clusters": 2}
    return Experiment("tiny", "", task, data, arguments, {})


def test_losses_are_those_of_all_rows():
    """The best model has the least loss, and a model is not judged by the coreset."""
    tiny = experiment()
    rows = np.concatenate(months_of(tiny))
    np.testing.assert_array_equal(rows, np.arange(600))
    result = simulate(trained(tiny, 100), tiny.data.parties(), 0)
    A, y = np.column_stack([tiny.data.X, np.ones(600)]), tiny.data.y
    least = float(np.linalg.lstsq(A, y, rcond=None)[1][0]) / 600
    assert best(tiny, rows) == pytest.approx(least)
    errors = result.model.predict(tiny.data.split(tiny.data.X)) - y
    assert loss(tiny, result.model, rows) == pytest.approx((errors**2).mean())


def test_rows_are_read_once_in_a_stream():
    """And 100 to 200 kept ones again each month."""
    figures = measure(experiment("k-means"), 100, 1)
    read = figures["cost"]["streamed"]["rows read"]
    assert 600 + 11 * 30 < read <= 600 + 11 * 300
    assert figures["kept most"] <= 300
    assert set(figures["by month"]) == {"1", "2", "3", "4", "7", "8", "11", "12"}


def test_command_writes_json_and_tables(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(700, 18)).astype(np.float32)
    np.savez(tmp_path / "kc_house.npz", X=X, y=X.sum(axis=1) + rng.normal(size=700))
    words = ["--datasets", "kc_house", "--sizes", "100", "--repeats", "1"]
    words += ["--data-dir", str(tmp_path), "--output-dir", str(tmp_path / "out")]
    coreset_months.app(words, standalone_mode=False)
    results = json.loads((tmp_path / "out" / "coreset_months.json").read_text())
    ways = [one["ways"] for one in results["experiments"]]
    assert len(ways) == 2
    assert ways[0]["streamed"][0] > 1
    text = (tmp_path / "out" / "coreset_months.md").read_text()
    assert text.count("last month alone") == 2
