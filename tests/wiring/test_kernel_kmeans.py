"""Split rows on SuperNodes: parties get the labels of their rows and label new ones."""

import csv
import json

import numpy as np
import pytest

from vfl_flower.app.config import check_run_config, party_source
from vfl_flower.app.label import label
from vfl_flower.app.server_app import make_strategies
from vfl_flower.data import load_party
from vfl_flower.simulation import simulate

CONFIG = {
    "strategy": "fk-kmeans",
    "fk-kmeans.n-clusters": 3,
    "fk-kmeans.n-components": 4,
    "fk-kmeans.n-features": 20,
    "fk-kmeans.iterations": 2,
    "fk-kmeans.standardize": True,
    "seed": 3,
    "n-parties": 3,
    "timeout": 120.0,
}


def nodes(folder):
    """Write one file a party, of unequal sizes; return the node configs."""
    rng, configs = np.random.default_rng(0), []
    for m, n in enumerate((120, 60, 15)):
        group = rng.integers(3, size=n)
        X = np.array([[0, 9e5], [3, 1e5], [9, 5e5]])[group]
        X = X + rng.normal(size=(n, 2)) * [1, 1e5]
        with (folder / f"{m}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["id", "age", "income"])
            rows.writerows((f"{m}-{i}", *row) for i, row in enumerate(X.tolist()))
        configs.append(
            {
                "partition-id": m,
                "data": str(folder / f"{m}.csv"),
                "id-column": "id",
                "state-dir": str(folder / f"state-{m}"),
            }
        )
    return configs


def texts(config):
    return [f"{key}={json.dumps(value)}" for key, value in config.items()]


def read(path):
    with path.open(newline="") as file:
        return {row["id"]: int(row["prediction"]) for row in csv.DictReader(file)}


@pytest.mark.slow
def test_parties_get_their_labels(project, tmp_path, deployment):
    configs, out = nodes(tmp_path), tmp_path / "out"
    node_configs = [" ".join(texts(config)) for config in configs]
    with deployment(node_configs) as running:
        running.run(project, texts(CONFIG | {"output-dir": str(out)}))
    (report,) = out.glob("*/result.json")
    trained = json.loads(report.read_text())["results"]["train"]

    parties = [load_party(party_source(config, CONFIG)) for config in configs]
    (strategy,) = make_strategies(check_run_config(CONFIG)).values()
    expected = simulate(strategy, parties)
    assert trained["metrics"]["3"] == pytest.approx(expected.metrics, rel=1e-9)
    assert trained["ledger"]["round_trips"] == expected.ledger.round_trips == 7
    for m, labels in enumerate(expected.model.labels_):
        kept = read(tmp_path / f"state-{m}" / f"predictions-{trained['model']}.csv")
        assert list(kept) == [f"{m}-{i}" for i in range(len(labels))]
        assert list(kept.values()) == labels.tolist()

    new = tmp_path / "new.csv"  # a party's rows labelled by another's part alone
    label(trained["model"], node_configs[2], new)
    other = node_configs[2].replace("state-2", "state-0")
    again = tmp_path / "again.csv"
    label(trained["model"], other, again)
    assert read(new) == read(again)
    assert list(read(new).values()) == expected.model.labels_[2].tolist()
