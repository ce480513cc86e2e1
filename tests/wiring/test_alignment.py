"""Three organisations with other rows each: align them, then train on what overlaps."""

import json
from pathlib import Path

import numpy as np
import pytest
from wiring.deployment import (
    NAMES,
    deploy,
    node_configs,
    write_consents,
    write_party,
)

from vfl_flower.models import load_model
from vfl_flower.protocol.row_order import load_order
from vfl_flower.secure_aggregation.points import LEAST_OF_A_PROCESS

pytestmark = pytest.mark.slow

N = 2 * LEAST_OF_A_PROCESS + 2000
"""Ids in all: enough for two processes at each party."""


def test_align_and_train_on_supernodes(project, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3))
    y = X @ [1.0, 2.0, 3.0] + 4
    named = node_configs(tmp_path)
    lists = []
    for j, name in enumerate(NAMES):
        lists.append(rng.permutation(N)[: N - 500 * (j + 1)])
        rows = lists[-1]
        columns = {"id": [f"r{k}" for k in rows], f"x{j}": X[rows, j].tolist()}
        columns |= {"y": y[rows].tolist()} if name == NAMES[-1] else {}
        write_party(named[name], columns)
    common = set.intersection(*(set(rows.tolist()) for rows in lists))
    base = {"n-parties": 3, "timeout": 120.0, "alignment": "2026-q4"}

    with deploy(tmp_path / "deployment", named) as deployment:
        write_consents(named)
        out = {"output-dir": str(tmp_path / "align")}
        run = deployment.run(project, base | out | {"strategy": "align"})
        assert run.completed, run
        (report,) = tmp_path.glob("align/*/result.json")
        aligned = json.loads(report.read_text())["results"]["train"]
        assert aligned["metrics"]["1"] == {"common": len(common)}
        assert aligned["ledger"]["round_trips"] == 5
        folders = [Path(config["state-dir"]) for config in named.values()]
        orders = [load_order(folder, "2026-q4") for folder in folders]
        assert len({order.tag for order in orders}) == 1

        write_consents(named, "rows", "totals")
        out = {"output-dir": str(tmp_path / "train")}
        out |= {"strategy": "coreset-vrlr", "coreset-vrlr.size": 60}
        run = deployment.run(project, base | out)
        assert run.completed, run
    (file,) = tmp_path.glob("train/*/model-*.npz")
    model = load_model(file)
    np.testing.assert_allclose(np.concatenate(model.coef_), [1, 2, 3], atol=1e-6)
    assert model.intercept_ == pytest.approx(4)
