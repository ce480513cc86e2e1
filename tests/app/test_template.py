"""An app of the installed package, in a folder of one's own."""

import json
import tomllib

import pytest

from vfl_flower.app.config import check_run_config, make_strategy, party_source
from vfl_flower.app.flower_run import run
from vfl_flower.app.template import write_app
from vfl_flower.data import load_party
from vfl_flower.simulation import simulate


def test_a_folder_is_not_written_twice(tmp_path):
    write_app(tmp_path / "app")
    before = (tmp_path / "app" / "pyproject.toml").read_text()
    assert tomllib.loads(before)["project"]["name"] == "app"
    with pytest.raises(ValueError, match="no pyproject"):
        write_app(tmp_path / "app")
    assert (tmp_path / "app" / "pyproject.toml").read_text() == before


@pytest.mark.slow
def test_the_app_runs(tmp_path):
    """Here rows are split, and the result is that of a run in process."""
    config = {"strategy": "fk-kmeans", "data": "iris", "n-parties": 3, "seed": 5}
    config |= {"fk-kmeans.n-clusters": 3, "fk-kmeans.iterations": 2}
    nodes = [{"partition-id": index, "num-partitions": 3} for index in range(3)]
    parties = [load_party(party_source(node, config)) for node in nodes]
    expected = simulate(make_strategy(check_run_config(config)), parties)

    write_app(tmp_path / "my-app")
    pairs = [f"{key}={json.dumps(value)}" for key, value in config.items()]
    outcome = run(
        tmp_path / "my-app",
        run_config=[*pairs, f'output-dir="{tmp_path}"'],
        num_supernodes=3,
        timeout=240,
    )
    assert f"results in {tmp_path}" in outcome.output
    (report,) = tmp_path.glob("*/result.json")
    result = json.loads(report.read_text())["results"]["train"]
    assert list(result["metrics"].values())[-1] == pytest.approx(expected.metrics)
