"""FedAvg of an app that knows nothing of vfl_flower, and a strategy beside it."""

import json
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.common.config import parse_config_args
from flwr.serverapp.strategy import FedAvg
from pages import PAGES, commands, options
from sklearn.datasets import load_breast_cancer

import vfl_flower as vf
from vfl_flower.app.commands.identity import line_for_peers
from vfl_flower.app.deployment.flower_run import run
from vfl_flower.simulation import InProcessGrid

EXAMPLE = Path(__file__).parents[2] / "examples" / "existing_app"


@pytest.fixture
def grid(monkeypatch):
    """Return a grid of three simulated nodes that answer with the example's app."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setitem(sys.modules, "ray", None)  # as in Flower's simulation
    from existing_app.client_app import app

    grid = InProcessGrid([vf.Party(np.zeros((1, 1)))] * 3)
    for place, context in enumerate(grid._contexts.values()):
        context.node_config = {"partition-id": place, "num-partitions": 3}
        context.run_config = {"learning-rate": 1.0, "local-steps": 20}
    grid._app = app
    yield grid
    for name in [name for name in sys.modules if name.startswith("existing_app")]:
        del sys.modules[name]


def rows():
    X = load_breast_cancer().data
    return (X - X.mean(axis=0)) / X.std(axis=0)


def fed_avg(grid):
    start = ArrayRecord([np.zeros(30), np.zeros(1)])
    strategy = FedAvg(min_available_nodes=3, min_train_nodes=3)
    return strategy.start(grid, start, num_rounds=2)


def test_fed_avg_is_what_it_was(grid):
    """Two rounds are the weighted means of twenty steps at each hospital."""
    from existing_app.task import descend, load_data

    model = np.zeros(30), np.zeros(1)
    data = [load_data(context) for context in grid._contexts.values()]
    sizes = [len(y) for _, y in data]
    for _ in range(2):
        local = [descend(X, y, *model, 1.0, 20) for X, y in data]
        model = tuple(
            np.average([one[part] for one in local], axis=0, weights=sizes)
            for part in (0, 1)
        )
    result = fed_avg(grid)
    for actual, expected in zip(result.arrays.to_numpy_ndarrays(), model, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-9)
    assert result.evaluate_metrics_clientapp[2]["accuracy"] > 0.95


def test_a_strategy_beside_it(grid):
    """It finds the segments that it finds without FedAvg on the same rows."""
    fed_avg(grid)
    strategy = vf.FKKMeans(n_clusters=3, n_init=3, iterations=4, passes=4, seed=1)
    beside = strategy.start(grid)
    dealt = np.random.default_rng(0).permutation(len(rows()))
    parties = [vf.Party(rows()[dealt[place::3]]) for place in range(3)]
    alone = vf.simulate(strategy, parties)
    assert beside.metrics["inertia"] == alone.metrics["inertia"]
    assert fed_avg(grid).evaluate_metrics_clientapp[2]["accuracy"] > 0.95


def test_hospitals_with_files_and_consents_of_their_own(grid, tmp_path):
    """As the tutorial has it: file, consent, node config, keys that are pinned."""
    from existing_app import task

    page = "docs/tutorials/existing-app.md"
    (text,) = re.findall(r"(?s)```toml\n(.*?)```", PAGES[page])
    (words,) = [w for k, w in commands("vfl-flower supernode").items() if page in k]
    (config,) = options(words, "--node-config")
    names = [f"hospital-{letter}" for letter in "abc"]
    for name in names:
        (tmp_path / name).mkdir(mode=0o700)
    pins = {name: line_for_peers(tmp_path / name, name) for name in names}
    assert set(tomllib.loads(text)["peers"]) == set(names[1:])
    for place, context in enumerate(grid._contexts.values()):
        name = names[place]
        X, y = task.load_data(context)
        table, head = np.column_stack([X, y]), ",".join(f"c{j}" for j in range(31))
        np.savetxt(tmp_path / f"{name}.csv", table, delimiter=",", header=head)
        peers = [pin for other, pin in pins.items() if other != name]
        consent = tmp_path / f"{name}.toml"
        consent.touch(mode=0o600)
        head = text.partition("[peers]\n")[0]
        consent.write_text("\n".join([head, "[peers]", *peers]))
        given = config.replace("/data/consent.toml", f"{consent}")
        given = given.replace("/data/rows.csv", f"{tmp_path}/{name}.csv")
        given = given.replace("/data/state", f"{tmp_path}/{name}")
        given = given.replace('"hospital-a', f'"{name}')
        context.node_config = parse_config_args([given]) | {"partition-id": place}
    result = vf.FKKMeans(n_clusters=3, n_parties=3, iterations=3, passes=3).start(grid)
    assert {entry.party for entry in result.ledger.entries.values()} == set(names)
    assert result.metrics["inertia"] > 0


def test_a_supernode_without_a_consent_is_refused(grid):
    """Also if its node config is as in a simulation: it has no Ray."""
    keys = {"party-name": "a", "consent": "/c", "state-dir": "/s", "data-path": ""}
    for count, missing in reversed([*enumerate(keys)]):
        given = dict([*keys.items()][:count])
        for place, context in enumerate(grid._contexts.values()):
            context.node_config = {"partition-id": place, "num-partitions": 3} | given
        with pytest.raises(vf.PartyFailed, match=f"needs '{missing}' in its node conf"):
            vf.FKKMeans(n_clusters=3, iterations=3, passes=3).start(grid)
        sys.modules.pop("ray", None)  # which the fixture brings back


@pytest.mark.second
def test_by_flower(tmp_path):
    report = tmp_path / "report.json"
    config = {"output": str(report), "num-server-rounds": 2}
    run(EXAMPLE, config, num_supernodes=3, timeout=240)
    result = json.loads(report.read_text())
    assert result["accuracy"] > 0.95
    assert result["inertia"] > 0
    assert result["round_trips"] > 1
