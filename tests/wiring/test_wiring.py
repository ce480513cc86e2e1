"""The same run in process, in Ray and on SuperNodes gives the same model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vfl_flower.app.config import check_run_config, party_source
from vfl_flower.app.flower_run import RunFailed, run
from vfl_flower.app.server_app import make_strategies
from vfl_flower.data import load_party
from vfl_flower.models.coresets import LinearModel
from vfl_flower.protocol.strategy import ProtocolResult
from vfl_flower.simulation import simulate

CONFIG = {"data": "diabetes", "coreset-vrlr.size": 100, "seed": 7, "n-parties": 3}
RUN_CONFIG = [f"{key}={json.dumps(value)}" for key, value in CONFIG.items()]
NODES = [{"partition-id": index, "num-partitions": 3} for index in range(3)]


@pytest.fixture(scope="module")
def expected() -> ProtocolResult:
    """Return the run in this process."""
    parties = [load_party(party_source(node, CONFIG)) for node in NODES]
    (strategy,) = make_strategies(check_run_config(CONFIG)).values()
    return simulate(strategy, parties)


def check_report(folder: Path, expected: ProtocolResult) -> dict[str, Any]:
    """Compare the only report in `folder`, its model to 1e-10, and return it."""
    (report,) = folder.glob("*/result.json")
    found = json.loads(report.read_text())["results"]["coreset"]
    assert found["metrics"]["1"] == pytest.approx(expected.metrics, rel=1e-10)
    model = LinearModel.load(report.with_name("model-coreset.npz"))
    for name, array in expected.model.arrays().items():
        np.testing.assert_allclose(model.arrays()[name], array, rtol=1e-10, atol=1e-10)
    return found


@pytest.mark.slow
def test_ray(project, tmp_path, expected):
    outcome = run(
        project,
        run_config=[*RUN_CONFIG, f'output-dir="{tmp_path}"'],
        num_supernodes=3,
        timeout=240,
    )
    assert f"results in {tmp_path}" in outcome.output
    assert "HTTP Request" not in outcome.output  # Flower's own chatter stays off
    check_report(tmp_path, expected)


@pytest.mark.slow
def test_supernodes(project, tmp_path, expected, deployment):
    configs = [" ".join(f"{k}={v}" for k, v in node.items()) for node in NODES]
    with deployment(configs) as running:
        running.run(project, [*RUN_CONFIG, f'output-dir="{tmp_path}"'])
        with pytest.raises(RunFailed, match=r"finished:failed.*(?s:.*)size"):
            running.run(project, ["coreset-vrlr.size=-1"])
    found = check_report(tmp_path, expected)
    assert found["ledger"]["round_trips"] == expected.ledger.round_trips == 4
