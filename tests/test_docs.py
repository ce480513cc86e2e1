"""What the documents say is so."""

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vfl_flower import Party
from vfl_flower.config import RUN_DEFAULTS, party_source
from vfl_flower.simulations import InProcessGrid
from vfl_flower.strategies import CoresetVRLR

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def table(header: str) -> list[str]:
    """Return the keys in the first column of the table under `header`."""
    rows = README.split(header, 1)[1].split("\n\n", 1)[0].splitlines()
    cells = [row.split("|")[1] for row in rows if row.startswith("| `")]
    return [key for cell in cells for key in re.findall(r"`([^`]+)`", cell)]


def test_notebook_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = README.split("```python\n", 1)[1].split("```", 1)[0]
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["result"].ledger.round_trips == 3  # as its comment says
    assert (tmp_path / "model.npz").exists()
    assert "coresets_totals" in capsys.readouterr().out


def test_other_examples_of_the_notebook_run(tmp_path, monkeypatch):
    """One after the other, as one would type them."""
    monkeypatch.chdir(tmp_path)
    notebook = README.split("## In a notebook", 1)[1].split("\n## ", 1)[0]
    names: dict[str, Any] = {}
    for block in notebook.split("```python\n")[1:]:
        code = block.split("```", 1)[0].replace('"/tmp/', f'"{tmp_path}/')
        code = code.replace('f"/tmp/', f'f"{tmp_path}/')
        exec(compile(code, "README.md", "exec"), names)
    result = names["result"]
    assert (result.model.version, result.metrics["removed"]) == (2, 2)


def test_own_apps_run(tmp_path):
    """The ServerApp's strategy on the ClientApp with a loader of one's own."""
    server, client = README.split("## In your own ServerApp", 1)[1].split(
        "```python\n"
    )[1:3]
    names: dict[str, Any] = {}
    for block in (server, client):
        exec(compile(block.split("```", 1)[0], "README.md", "exec"), names)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 6))
    blocks = [{"X": X[:, :2]}, {"X": X[:, 2:4]}, {"X": X[:, 4:], "y": X.sum(axis=1)}]
    grid = InProcessGrid([Party(X)] * 3)
    for context, block, owner in zip(
        grid._contexts.values(), blocks, "cab", strict=True
    ):
        context.node_config = {"table": str(tmp_path / f"{owner}.npz"), "owner": owner}
        np.savez(context.node_config["table"], **block)
    grid._app = names["app"]
    result = CoresetVRLR(size=2000).start(grid)
    assert {entry.party for entry in result.ledger.entries.values()} == set("abc")
    np.testing.assert_allclose(np.concatenate(result.model.coef_), np.ones(6))


def test_run_config_keys_exist():
    keys = table("| key | |")
    assert len(keys) >= 10
    assert set(keys) <= set(RUN_DEFAULTS)


def test_node_config_keys_are_read():
    keys = table("| key of the node config | meaning |")
    text = {"data": "/a.csv", "party-name": "a", "columns": "a,b", "impute": "mean"}
    numbers = {"partition-id": 1, "standardize": True, "one-hot": False}
    columns = {"id-column": "i", "label-column": "l", "share-rows": 9}
    given = text | numbers | columns | {"state-dir": "/var/a"}
    assert set(keys) == set(given)
    source = party_source(given, {})
    assert (source.data, source.name, source.index) == ("/a.csv", "a", 1)
    assert (source.columns, source.id_column) == (("a", "b"), "i")
    assert source.share_rows == 9
    assert source.state_dir == Path("/var/a")
    assert (source.standardize, source.one_hot) == (True, False)


def test_files_that_documents_name_exist():
    for document in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


@pytest.mark.parametrize("algorithm", ["coresets", "fdskl", "kernel_kmeans", "mufc"])
def test_functions_that_the_paper_page_names_exist(algorithm):
    page = (ROOT / f"docs/papers/{algorithm}.md").read_text()
    layers = "numerics|clients|strategies|secure_aggregation"
    named = re.findall(rf"`((?:{layers})/\w+\.py): ([^`]+)`", page)
    assert len(named) >= 8
    for file, functions in named:
        source = (ROOT / "vfl_flower" / file).read_text()
        for name in functions.split(", "):
            last = name.split(".")[-1]
            assert re.search(rf"(def|class) {last}\b", source), f"{file}: {name}"


def test_demo_config_has_known_keys():
    config = tomllib.loads((ROOT / "simulations/flights.toml").read_text())
    assert set(config) <= set(RUN_DEFAULTS)
