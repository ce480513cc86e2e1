"""What MLflow and TensorBoard are handed."""

import sys
from types import ModuleType

import numpy as np
import pytest

from vfl_flower import FKKMeans, Party, log_to_mlflow, log_to_tensorboard, simulate


@pytest.fixture(scope="module")
def result():
    X = np.random.default_rng(0).normal(size=(3, 40, 4))
    strategy = FKKMeans(2, n_components=4, n_features=16, iterations=3)
    return simulate(strategy, [Party(rows) for rows in X], seed=0)


def module(monkeypatch, name, **members):
    """Put a module in the place of a package that the tests do not install."""
    made = ModuleType(name)
    vars(made).update(members)
    monkeypatch.setitem(sys.modules, name, made)
    monkeypatch.setitem(sys.modules, name.split(".")[0], made)


def check(points, result):
    """Compare (name, step, value) with what the result has."""
    told = {(name, step): value for name, step, value in points}
    assert len(told) == len(points)
    assert all(type(value) is float for value in told.values())
    last = max(result.train_metrics_clientapp)
    for name, value in result.metrics.items():
        assert told[name, last] == value
    assert [told["moved", t] for t in (1, 2, 3)] == [
        value for _, _, value in result.traces["moved"]
    ]
    traced = [v for (name, _), v in told.items() if name == "trace/inertia"]
    assert traced == [value for _, _, value in result.traces["inertia"]]
    assert told["cost/bytes_up", 0] == result.ledger.bytes_up
    assert told["cost/round_trips", 0] == result.ledger.round_trips


def test_mlflow_gets_settings_metrics_and_costs(result, monkeypatch):
    points, params = [], {}
    module(
        monkeypatch,
        "mlflow",
        log_params=params.update,
        log_metric=lambda name, value, step: points.append((name, step, value)),
    )
    log_to_mlflow(result)
    check(points, result)
    assert params["strategy"] == "FKKMeans"
    assert (params["n_clusters"], params["seed"]) == (2, 0)
    assert params["command"].startswith("vf.simulate(vf.FKKMeans(n_clusters=2")


def test_tensorboard_gets_metrics_and_costs(result, monkeypatch, tmp_path):
    points, opened, closed = [], [], []

    class Writer:
        def __init__(self, folder):
            opened.append(folder)

        def add_scalar(self, name, value, step):
            points.append((name, step, value))

        def close(self):
            closed.append(True)

    module(monkeypatch, "tensorboard.summary", Writer=Writer)
    log_to_tensorboard(result, tmp_path)
    check(points, result)
    assert (opened, closed) == ([str(tmp_path)], [True])


@pytest.mark.parametrize(
    ("log", "package"),
    [
        (log_to_mlflow, "mlflow"),
        (lambda result: log_to_tensorboard(result, "."), "tensorboard"),
    ],
)
def test_without_the_package_a_sentence_names_it(result, log, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"needs the package {package}$"):
        log(result)
