"""The same run in process and in Flower's simulation gives the same model.

The app is one of a user, which the template has written: it runs the installed package.
"""

import json

import numpy as np
import pytest

from vfl_flower.app.commands.template import write_app
from vfl_flower.app.config import check_run_config, party_source
from vfl_flower.app.deployment.flower_run import read_run_config, run
from vfl_flower.app.server_app import make_strategies
from vfl_flower.data import load_party
from vfl_flower.models.coresets import LinearModel
from vfl_flower.simulation import simulate

CONFIG = {"data": "diabetes", "coreset-vrlr.size": 100, "seed": 7, "n-parties": 3}


@pytest.mark.second
def test_three_supernodes(tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("RAY_OVERRIDE_RESOURCES")  # several workers, as users have
    nodes = [{"partition-id": index, "num-partitions": 3} for index in range(3)]
    parties = [load_party(party_source(node, CONFIG)) for node in nodes]
    (strategy,) = make_strategies(check_run_config(CONFIG)).values()
    expected = simulate(strategy, parties)

    project = write_app(tmp_path / "my-app").parent
    settings = tmp_path / "run.toml"
    settings.write_text('data = "diabetes"\nseed = 6\n[coreset-vrlr]\nsize = 100\n')
    pairs = ["seed=7 n-parties=3", f'output-dir="{tmp_path}"']
    config = read_run_config(project, [str(settings), *pairs])
    outcome = run(project, config, num_supernodes=3, timeout=240)
    assert outcome.status == "finished:completed"
    assert outcome.output in capfd.readouterr().out
    assert f"results in {tmp_path}" in outcome.output
    assert "HTTP Request" not in outcome.output  # Flower's own chatter stays off

    (report,) = tmp_path.glob("*/result.json")
    result = json.loads(report.read_text())["results"]["coreset"]
    assert result["metrics"]["1"] == pytest.approx(expected.metrics, rel=1e-10)
    assert result["ledger"]["round_trips"] == expected.ledger.round_trips == 6
    model = LinearModel.load(report.with_name("model-coreset.npz"))
    for name, array in expected.model.arrays().items():
        np.testing.assert_allclose(model.arrays()[name], array, rtol=1e-10, atol=1e-10)
