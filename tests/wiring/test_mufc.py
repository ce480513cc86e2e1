"""Clusters on SuperNodes that forget in a later run, with the state of the first."""

import csv
import json

import numpy as np
import pytest

from vfl_flower.clients.mufc_state import ClientState, ServerState, list_models
from vfl_flower.models.mufc import MUFCModel

CONFIG = {"strategy": "mufc", "n-parties": 3, "timeout": 120.0}
TRAINING = {"mufc.n-clusters": 3, "mufc.box": "0,10;0,1000000"}


def write(path, rows):
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "age", "income"])
        table.writerows(rows)


def parties(folder):
    """Write a file for each party; return the rows of each and the node configs."""
    rng, written = np.random.default_rng(0), []
    for m, n in enumerate((60, 40, 5)):
        centers = np.array([[1, 9e5], [5, 1e5], [9, 5e5]])
        X = centers[rng.integers(3, size=n)] + rng.uniform(-1, 1, (n, 2)) * [1, 9e4]
        rows = [[f"{m}-{i}", *row] for i, row in enumerate(X.tolist())]
        write(folder / f"{m}.csv", rows)
        config = {
            "partition-id": m,
            "data": str(folder / f"{m}.csv"),
            "party-name": f"clinic-{m}",
            "id-column": "id",
            "state-dir": str(folder / f"state-{m}"),
        }
        written.append((rows, config))
    return written


def texts(config):
    return [f"{key}={json.dumps(value)}" for key, value in config.items()]


@pytest.mark.slow
def test_a_later_run_forgets(project, tmp_path, deployment):
    written, out = parties(tmp_path), tmp_path / "out"
    run_config = texts(CONFIG | {"output-dir": str(out)})
    with deployment([" ".join(texts(config)) for _, config in written]) as running:
        running.run(project, [*run_config, *texts(TRAINING)])
        (number,) = list_models(out / "state")
        server = ServerState(out / "state", number)
        assert server.load().counts.sum() == 105

        rows, _ = written[0]  # forgotten, and taken out of the file
        state = ClientState(tmp_path / "state-0", number)
        centroids = state.current().centroids
        tags = state.tag([row[0] for row in rows])
        gone = [rows[tags.index(centroids[0])][0]]
        write(tmp_path / "0.csv", [row for row in rows if row[0] not in gone])
        (tmp_path / "state-0" / "forget.txt").write_text("\n".join(gone))
        task = {"task": "unlearn", "model": number, "mufc.forget": "clinic-1:1-3,1-7"}
        outcome = running.run(project, [*run_config, *texts(task)])
    assert "removed" in outcome.output

    now = server.load()
    assert (now.version, now.counts.sum()) == (2, 102)
    for m, n in enumerate((59, 38, 5)):
        state = ClientState(tmp_path / f"state-{m}", number)
        assert (state.version, state.current().sizes.sum()) == (2, n)
        with (tmp_path / f"state-{m}" / f"predictions-{number}.csv").open() as file:
            assert sum(1 for _ in csv.DictReader(file)) == n
    assert not (tmp_path / "state-0" / "forget.txt").exists()
    reports = sorted(out.glob("*/result.json"))
    model = MUFCModel.load(reports[-1].with_name("model-unlearn.npz"))
    np.testing.assert_array_equal(model.cluster_centers_, now.centers)
    groups = model.predict([[1, 9e5], [5, 1e5], [9, 5e5]])
    assert len(set(groups.tolist())) == 3
