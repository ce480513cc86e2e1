"""The same run in process, in Ray and on SuperNodes gives the same numbers."""

import json
from pathlib import Path
from typing import Any

import pytest

from vfl_flower.config import check_run_config, party_source
from vfl_flower.data import load_party
from vfl_flower.server_app import make_strategies
from vfl_flower.simulations import simulate
from vfl_flower.simulations.flower_run import RunFailed, run

CONFIG = {"data": "diabetes", "size": 100, "seed": 7, "n-parties": 3}
RUN_CONFIG = [f"{key}={json.dumps(value)}" for key, value in CONFIG.items()]
NODES = [{"partition-id": index, "num-partitions": 3} for index in range(3)]


@pytest.fixture(scope="module")
def metrics() -> dict[str, Any]:
    """Return the metrics of the run in this process, as JSON gives them back."""
    parties = [load_party(party_source(node, CONFIG)) for node in NODES]
    (strategy,) = make_strategies(check_run_config(CONFIG)).values()
    result = simulate(strategy, parties)
    found = {t: dict(record) for t, record in result.train_metrics_clientapp.items()}
    return json.loads(json.dumps(found))


def reported(folder: Path) -> dict[str, Any]:
    """Return what the only run that reported to `folder` has found."""
    (report,) = folder.glob("*/result.json")
    return json.loads(report.read_text())["results"]["coreset"]


@pytest.mark.slow
def test_ray(project, tmp_path, metrics):
    outcome = run(
        project,
        run_config=[*RUN_CONFIG, f'output-dir="{tmp_path}"'],
        num_supernodes=3,
        timeout=240,
    )
    assert f"results in {tmp_path}" in outcome.output
    assert "HTTP Request" not in outcome.output  # Flower's own chatter stays off
    assert reported(tmp_path)["metrics"] == metrics


@pytest.mark.slow
def test_supernodes(project, tmp_path, metrics, deployment):
    configs = [" ".join(f"{k}={v}" for k, v in node.items()) for node in NODES]
    with deployment(configs) as running:
        running.run(project, [*RUN_CONFIG, f'output-dir="{tmp_path}"'])
        with pytest.raises(RunFailed, match=r"finished:failed.*(?s:.*)size"):
            running.run(project, ["size=-1"])
    result = reported(tmp_path)
    assert result["metrics"] == metrics
    assert result["ledger"]["round_trips"] == 4
