"""Kernel learning on SuperNodes: train, then predict new rows by the parts kept."""

import csv
import json

import numpy as np
import pytest

from vfl_flower.app.config import check_run_config, party_source
from vfl_flower.app.server_app import make_strategies
from vfl_flower.data import load_party
from vfl_flower.protocol.parts import load_part
from vfl_flower.simulation import simulate

NAMES = ("airline", "weather", "registry")
CONFIG = {
    "strategy": "fdskl",
    "fdskl.features": 64,
    "seed": 3,
    "n-parties": 3,
    "fdskl.test-fraction": 0.2,
    "timeout": 120.0,
}


def write(folder, n, seed, labels):
    """Write one file a party: numbers, a text column, ids, and labels at the last."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    text = rng.choice(["sun", "rain", "snow"], size=n)
    y = ((X**2).sum(axis=1) + (text == "snow") > 2.4).astype(int)
    for j, name in enumerate(NAMES):
        columns = {"id": [f"row{i}" for i in range(n)], f"x{j}": X[:, j].tolist()}
        columns |= {"sky": text.tolist()} if name == "weather" else {}
        columns |= {"y": y.tolist()} if labels and name == NAMES[-1] else {}
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(columns)
            rows.writerows(zip(*columns.values(), strict=True))
    return y


def nodes(folder, state, **more):
    """Return the node config of each party."""
    return [
        {
            "partition-id": j,
            "data": str(folder / f"{name}.csv"),
            "party-name": name,
            "id-column": "id",
            "standardize": True,
            "state-dir": str(state / name),
            **({"label-column": "y"} if name == NAMES[-1] else {}),
        }
        for j, name in enumerate(NAMES)
    ]


def texts(configs):
    return [" ".join(f"{k}={json.dumps(v)}" for k, v in c.items()) for c in configs]


@pytest.mark.slow
def test_train_and_predict(project, tmp_path, deployment):
    write(tmp_path / "old", 300, 0, labels=True)
    answer = write(tmp_path / "new", 90, 1, labels=False)
    state, out = tmp_path / "state", tmp_path / "out"
    training = nodes(tmp_path / "old", state)
    run_config = [f"{key}={json.dumps(value)}" for key, value in CONFIG.items()]
    run_config.append(f'output-dir="{out}"')
    with deployment(texts(training)) as running:
        running.run(project, run_config)
    (report,) = out.glob("*/result.json")
    found = json.loads(report.read_text())["results"]["train"]

    parties = [load_party(party_source(node, CONFIG)) for node in training]
    (strategy,) = make_strategies(check_run_config(CONFIG)).values()
    expected = simulate(strategy, parties)
    assert found["metrics"]["1"] == pytest.approx(expected.metrics, rel=1e-10)
    assert found["ledger"]["round_trips"] == expected.ledger.round_trips

    with deployment(texts(nodes(tmp_path / "new", state))) as running:
        task = ['strategy="fdskl"', 'task="predict"', "n-parties=3"]
        running.run(project, [*task, f'model="{found["model"]}"', run_config[-1]])
    assert [path.parent.name for path in state.rglob("*.csv")] == [NAMES[-1]]
    (written,) = state.rglob("predictions-*.csv")
    with written.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [f"row{i}" for i in range(90)]
    predicted = np.array([float(row["prediction"]) for row in rows])
    assert (predicted == answer).mean() > 0.8

    blocks = []
    for node in nodes(tmp_path / "new", state):
        part = load_part(state / node["party-name"], found["model"])
        encoding = part.settings["encoding"]
        blocks.append(load_party(party_source(node, CONFIG), encoding=encoding).X)
    assert (predicted == expected.model.predict(blocks)).mean() > 0.98
