"""What works without Ray and without Matplotlib, which are extras."""

import json
import subprocess
import sys

HIDDEN = """
import sys

sys.modules |= {"ray": None, "matplotlib": None}  # as if neither were installed
"""

PARTY = f"""{HIDDEN}
import json
from typer.testing import CliRunner
import vfl_flower
import vfl_flower.app.client_app
import vfl_flower.app.deployment.executor
import vfl_flower.app.deployment.node
from vfl_flower.app.commands.cli import app

results = []
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, words)
    results.append((done.exit_code, done.output))
print(json.dumps(results))
"""

RUN = f"""{HIDDEN}
from vfl_flower.app.deployment.flower_run import run

try:
    run("missing", {{}})
except ValueError as error:
    print(error)
"""

NOTEBOOK = f"""{HIDDEN}
from pathlib import Path
import numpy as np
import vfl_flower as vf

X = np.random.default_rng(0).normal(size=(60, 6))
parties = [vf.Party(X[:, :2]), vf.Party(X[:, 2:4]), vf.Party(X[:, 4:], y=X.sum(axis=1))]
result = vf.simulate(vf.CoresetVRLR(sampling="full"), parties, seed=0)
print(result.report("report").read_text())
assert not any(Path("report", "figures").iterdir())
assert "Matplotlib" in result._repr_html_()
"""


def printed(code, folder, *words):
    """Run Python code in a new process, in a folder, and return what it prints."""
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_party_needs_no_extra(tmp_path):
    rows = "".join(f"{k},{k % 50},{k % 7}\n" for k in range(60))
    (tmp_path / "clinic.csv").write_text(f"id,age,dose\n{rows}")
    file = ["clinic.csv", "--id-column", "id"]
    commands = [["--help"], ["check", *file], ["init", "clinic", "--data", *file]]
    more = ("party", "label", "journal", "align")
    commands += [[command, "--help"] for command in more]
    results = json.loads(printed(PARTY, tmp_path, json.dumps(commands)))
    assert [code for code, _ in results] == [0] * len(commands), results
    assert (tmp_path / "clinic" / "consent.toml").is_file()


def test_a_command_that_needs_one_says_so_before_any_work(tmp_path):
    commands = json.dumps([["report", "--rebuild"]])
    ((code, text),) = json.loads(printed(PARTY, tmp_path, commands))
    assert code == 1
    assert "need Matplotlib: pip install matplotlib" in text
    assert 'need Ray: pip install "flwr[simulation]"' in printed(RUN, tmp_path)


def test_a_run_in_one_process_needs_none_and_its_page_says_what_it_lacks(tmp_path):
    page = printed(NOTEBOOK, tmp_path)
    assert "There are no figures, since figures need Matplotlib: pip install" in page
    assert "pip install matplotlib; then run <code>vfl-flower report RUN" in page
