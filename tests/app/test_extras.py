"""What works without Ray and without Matplotlib, which are extras."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.second

COMMANDS = [
    ["--help"],
    ["check", "clinic.csv", "--id-column", "id"],
    ["init", "clinic", "--data", "clinic.csv", "--id-column", "id"],
    *([command, "--help"] for command in ("party", "label", "journal", "align")),
    *([command, "--help"] for command in ("supernode", "gate", "who-learns-what")),
    ["report", "--rebuild"],
]

WITHOUT = """
import json, sys
sys.modules |= {"ray": None, "matplotlib": None}  # as if neither were installed

from pathlib import Path
import numpy as np
from typer.testing import CliRunner
import vfl_flower as vf
assert vf.files.__name__ == "vfl_flower.files"  # at the first access
assert "__version__" in vf.__all__
import vfl_flower.app.client_app
import vfl_flower.app.deployment.node
from vfl_flower.app.commands.cli import app
from vfl_flower.app.deployment.flower_run import run

results = {}
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, words)
    results[" ".join(words)] = done.exit_code, done.output
assert Path("clinic", "consent.toml").is_file()
try:
    run("missing", {})
except ValueError as error:
    results["run"] = 1, str(error)

X = np.random.default_rng(0).normal(size=(60, 6))
parties = [vf.Party(X[:, :2]), vf.Party(X[:, 2:4]), vf.Party(X[:, 4:], y=X.sum(axis=1))]
result = vf.simulate(vf.CoresetVRLR(sampling="full"), parties, seed=0)
results["page"] = 0, result.report("report").read_text()
assert not any(Path("report", "figures").iterdir())
assert "Matplotlib" in result._repr_html_()
Path("results.json").write_text(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return what commands and a run say in a process without the extras."""
    folder = tmp_path_factory.mktemp("extras")
    rows = "".join(f"{k},{k % 50},{k % 7}\n" for k in range(60))
    (folder / "clinic.csv").write_text(f"id,age,dose\n{rows}")
    command = [sys.executable, "-c", WITHOUT, json.dumps(COMMANDS)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "results.json").read_text())


def test_a_party_needs_no_extra(results):
    codes = [results[" ".join(words)][0] for words in COMMANDS[:-1]]
    assert codes == [0] * len(codes), results


def test_a_command_that_needs_one_says_so_before_any_work(results):
    code, text = results["report --rebuild"]
    assert code == 1
    assert "need Matplotlib: pip install matplotlib" in text
    assert 'need Ray: pip install "flwr[simulation]"' in results["run"][1]


def test_a_run_in_one_process_needs_none_and_its_page_says_what_it_lacks(results):
    page = results["page"][1]
    assert "There are no figures, since figures need Matplotlib: pip install" in page
    assert "pip install matplotlib; then run <code>vfl-flower report RUN" in page
