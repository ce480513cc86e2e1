"""Split rows on SuperNodes: users get the labels of their rows and label new ones."""

import csv
import json

import numpy as np
import pytest

from vfl_flower.config import check_run_config, party_source
from vfl_flower.data import load_party
from vfl_flower.label import main as label
from vfl_flower.server_app import make_strategies
from vfl_flower.simulations import simulate

CONFIG = {
    "strategy": "fk-kmeans",
    "n-clusters": 3,
    "n-components": 4,
    "n-features": 20,
    "iterations": 2,
    "standardize": True,
    "seed": 3,
    "n-parties": 3,
    "timeout": 120.0,
}


def nodes(folder):
    """Write one file a user, of unequal sizes; return the node configs."""
    rng, found = np.random.default_rng(0), []
    for m, n in enumerate((120, 60, 15)):
        group = rng.integers(3, size=n)
        X = np.array([[0, 9e5], [3, 1e5], [9, 5e5]])[group]
        X = X + rng.normal(size=(n, 2)) * [1, 1e5]
        with (folder / f"{m}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["id", "age", "income"])
            rows.writerows((f"{m}-{i}", *row) for i, row in enumerate(X.tolist()))
        found.append(
            {
                "partition-id": m,
                "data": str(folder / f"{m}.csv"),
                "id-column": "id",
                "state-dir": str(folder / f"state-{m}"),
            }
        )
    return found


def read(path):
    with path.open(newline="") as file:
        return {row["id"]: int(row["prediction"]) for row in csv.DictReader(file)}


@pytest.mark.slow
def test_users_get_their_labels(project, tmp_path, deployment):
    configs, out = nodes(tmp_path), tmp_path / "out"
    texts = [" ".join(f"{k}={json.dumps(v)}" for k, v in c.items()) for c in configs]
    run_config = [f"{key}={json.dumps(value)}" for key, value in CONFIG.items()]
    with deployment(texts) as running:
        running.run(project, [*run_config, f'output-dir="{out}"'])
    (report,) = out.glob("*/result.json")
    found = json.loads(report.read_text())["results"]["train"]

    users = [load_party(party_source(config, CONFIG)) for config in configs]
    (strategy,) = make_strategies(check_run_config(CONFIG)).values()
    expected = simulate(strategy, users)
    assert found["metrics"]["3"] == pytest.approx(expected.metrics, rel=1e-9)
    assert found["ledger"]["round_trips"] == expected.ledger.round_trips == 7
    for m, labels in enumerate(expected.model.labels_):
        kept = read(tmp_path / f"state-{m}" / f"predictions-{found['model']}.csv")
        assert list(kept) == [f"{m}-{i}" for i in range(len(labels))]
        assert list(kept.values()) == labels.tolist()

    new = tmp_path / "new.csv"  # a user's rows for another one, by its part alone
    label([found["model"], "--node-config", texts[2], "--output", str(new)])
    other = texts[2].replace("state-2", "state-0")
    again = tmp_path / "again.csv"
    label([found["model"], "--node-config", other, "--output", str(again)])
    assert read(new) == read(again)
    assert list(read(new).values()) == expected.model.labels_[2].tolist()
