"""Three organisations whose SuperNodes run the installed package, and fork it.

The SuperLink has TLS and takes registered SuperNodes only, as in test_supernodes.py.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vfl_flower.app.config import check_run_config, make_strategy, party_source
from vfl_flower.data import load_party
from vfl_flower.simulation import simulate
from wiring.deployment import NAMES, Organisations
from wiring.leaks import key_texts, nothing_leaks

pytestmark = pytest.mark.second

CONFIG = {"strategy": "fdskl-direct", "fdskl-direct.features": 64}
CONFIG |= {"fdskl-direct.bandwidth": 2.0, "seed": 3}
CONFIG |= {"fdskl-direct.test-fraction": 0.0, "n-parties": 3, "timeout": 240.0}


def write_ball(organisations: Organisations) -> None:
    """Write columns of the same rows, of which those in a ball have another class."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = ((X**2).sum(axis=1) > 2.4).astype(int)
    for j in range(len(NAMES)):
        columns = {"id": [f"row{i}" for i in range(300)], f"x{j}": X[:, j].tolist()}
        organisations.write(j, columns | ({"y": y.tolist()} if j == 2 else {}))


def write_clusters(organisations: Organisations) -> pd.DataFrame:
    """Write other rows at each party, 200 in four clusters, and return them all."""
    rng = np.random.default_rng(0)
    centres = np.array([[0.1, 0.1], [0.1, 0.9], [0.9, 0.1], [0.9, 0.9]])
    points = centres[rng.integers(4, size=600)] + 0.03 * rng.normal(size=(600, 2))
    table = pd.DataFrame(points.clip(0, 1).round(6), columns=["severity", "recovery"])
    table.insert(0, "id", [f"VIS-{k:06}" for k in 900_000 + rng.permutation(600)])
    for j in range(len(NAMES)):
        rows = table[200 * j :][:200].reset_index(drop=True)
        # This party has a label column, which clusters have no use for.
        labels = {"y": [0, 1] * 100} if j == len(NAMES) - 1 else {}
        organisations.write(j, {**rows, **labels})
    return table.set_index("id")


def test_a_run_is_that_of_one_process(organisations, app, tmp_path):
    write_ball(organisations)
    organisations.consent("angles", allow_seed=True)
    config = CONFIG | {"output-dir": str(tmp_path / "out")}
    sources = [party_source(node, config) for node in organisations.configs]
    strategy = make_strategy(check_run_config(config))
    expected = simulate(strategy, [load_party(source) for source in sources])

    run = organisations.deployment.run(app, config)
    assert run.completed, run
    (report,) = tmp_path.glob("out/*/result.json")
    trained = json.loads(report.read_text())["results"]["train"]
    assert trained["metrics"]["1"] == pytest.approx(expected.metrics, rel=1e-10)
    assert trained["ledger"]["round_trips"] == expected.ledger.round_trips
    for name in NAMES:
        assert "Receiving: train.fdskl_fit" in run.party_logs[name]


def test_clusters_are_found_and_their_rows_forgotten(organisations, app, tmp_path):
    """No log has a value or an id of the rows, a key, or a path of another party."""
    table = write_clusters(organisations)
    config = {"strategy": "mufc", "mufc.n-clusters": 4, "mufc.box": "0,1"}
    organisations.consent(*make_strategy(check_run_config(config)).terms.needs)
    states = [Path(node["state-dir"]) for node in organisations.configs]

    runs = [organisations.run(app, tmp_path, config)]
    (results,) = tmp_path.glob("*/result.json")
    trained = json.loads(results.read_text())["results"]["train"]
    model = {"strategy": "mufc", "model-id": trained["model_id"]}
    assert all(list(state.rglob(f"*{model['model-id']}*")) for state in states)
    for state, visit in zip(states, table.index[[3, 250]], strict=False):
        (state / "forget.txt").write_text(f"{visit}\n")
    runs.append(organisations.run(app, tmp_path, model | {"task": "unlearn"}))
    assert all(run.completed for run in runs), runs
    assert "2 forgotten rows are still in the parties' files" in runs[1].log

    deployment = organisations.deployment
    logs = {"superlink": deployment.processes.log("superlink", 1_000_000)}
    logs["coordinator"] = "".join(run.log for run in runs)
    for name in NAMES:
        logs[name] = "".join(run.party_logs[name] for run in runs)
        assert logs[name]
    keys = key_texts(
        *(deployment.key(name) for name in NAMES),
        *(state / "identity.pem" for state in states),
    )
    private = {
        node[key]: name
        for name, node in organisations.named.items()
        for key in ("data", "state-dir")
    }
    nothing_leaks(logs, private, keys, table)
