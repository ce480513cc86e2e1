"""An app of the installed package, in a folder of one's own."""

import tomllib

import pytest

from vfl_flower.app.flower_run import run
from vfl_flower.app.template import write_app


def test_a_folder_is_not_written_twice(tmp_path):
    write_app(tmp_path / "app")
    before = (tmp_path / "app" / "pyproject.toml").read_text()
    assert tomllib.loads(before)["project"]["name"] == "app"
    with pytest.raises(ValueError, match="no pyproject"):
        write_app(tmp_path / "app")
    assert (tmp_path / "app" / "pyproject.toml").read_text() == before


@pytest.mark.slow
def test_the_app_runs(tmp_path):
    write_app(tmp_path / "my-app")
    outcome = run(
        tmp_path / "my-app",
        run_config=[f'output-dir="{tmp_path}"', "coreset-vrlr.size=50"],
        timeout=240,
    )
    assert f"results in {tmp_path}" in outcome.output
