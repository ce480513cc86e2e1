"""An algorithm of another package: installed, found, run in process and by Flower."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import hatchling.build
import numpy as np
import pytest
from sklearn.decomposition import PCA

from vfl_flower.app.deployment.flower_run import run

EXAMPLE = Path(__file__).parents[2] / "examples" / "fifth_algorithm"

IN_PROCESS = """
import sys
import numpy as np
from fifth_algorithm.pca import FederatedPCA, PCAModel
from vfl_flower import Party, load_model, simulate
from vfl_flower.app.config import check_run_config, make_strategy
from vfl_flower.strategies import algorithms
from vfl_flower.testing import check_strategy

assert algorithms()["pca"] == (FederatedPCA,)
strategy = make_strategy(check_run_config({"strategy": "pca", "pca.n-components": 3}))
X = np.load(sys.argv[1])
parties = [Party(X[j::3]) for j in range(3)]
check_strategy(strategy.replace(seed=1), parties)
result = simulate(strategy, parties, seed=0)
result.model.save(sys.argv[2])
assert isinstance(load_model(sys.argv[2]), PCAModel)
print(result.ledger.round_trips)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> dict[str, str]:
    """Unpack the example's wheel; return the environment that has it installed."""
    site = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(EXAMPLE)
        wheel = hatchling.build.build_wheel(str(site))
    shutil.unpack_archive(site / wheel, site, "zip")
    return os.environ | {"PYTHONPATH": str(site)}


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(300, 5)) * [1, 2, 3, 4, 5] + 7


def test_it_is_small():
    """Less than 150 lines, and nothing in vfl_flower knows of it."""
    lines = [f.read_text().splitlines() for f in EXAMPLE.rglob("*.py")]
    assert sum(map(len, lines)) < 150


@pytest.mark.second
def test_in_process(installed, rows, tmp_path):
    np.save(tmp_path / "rows.npy", rows)
    paths = [str(tmp_path / "rows.npy"), str(tmp_path / "model.npz")]
    ran = subprocess.run(
        [sys.executable, "-c", IN_PROCESS, *paths],
        env=installed,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["2"]
    with np.load(paths[1]) as model:
        pooled = PCA(3).fit(rows)
        np.testing.assert_allclose(model["mean"], pooled.mean_)
        np.testing.assert_allclose(
            model["explained_variance"], pooled.explained_variance_, rtol=1e-8
        )
        cosines = (model["components"] * pooled.components_).sum(axis=1)
        np.testing.assert_allclose(np.abs(cosines), 1, rtol=1e-8)


@pytest.mark.second
def test_by_flower(tmp_path):
    """Its own bundle, in which there are no entry points."""
    run(
        EXAMPLE,
        {"output-dir": str(tmp_path), "pca.n-components": 3, "seed": 1},
        num_supernodes=3,
        timeout=240,
    )
    (report,) = tmp_path.glob("*/result.json")
    result = json.loads(report.read_text())["results"]["train"]
    assert result["ledger"]["round_trips"] == 2
    assert result["metrics"]["1"]["variance"] > 0
