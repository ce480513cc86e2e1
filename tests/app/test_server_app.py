"""From a run config to strategies, and from their results to a report."""

import json
import logging
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from deviating import RealParties
from flwr.app import Context, RecordDict

from vfl_flower import FederationError, Party
from vfl_flower.app.commands.runs import resume_command
from vfl_flower.app.config import check_run_config
from vfl_flower.app.report.figures import last
from vfl_flower.app.server_app import RESUME, RunEnded, main
from vfl_flower.server.checkpoint import FILE
from vfl_flower.simulation import InProcessGrid
from vfl_flower.testing import Recorder


@pytest.fixture(autouse=True)
def quiet():
    """Take off what a run does to the package's log, for the tests that follow."""
    log = logging.getLogger("vfl_flower")
    level, handlers = log.level, list(log.handlers)
    yield
    log.setLevel(level)
    log.handlers[:] = handlers


CENTRAL = {"coreset-vrlr.size": 20, "coreset-vrlr.solver": "central"}


def test_a_run_that_fails_leaves_no_empty_folder(tmp_path):
    X = np.ones((9, 1))
    unlabelled = InProcessGrid([Party(X, name="a"), Party(X, name="b")])
    config = {"coreset-vrlr.size": 5, "output-dir": str(tmp_path)}
    with pytest.raises(FederationError, match="exactly one party must hold"):
        main(unlabelled, context(**config))
    assert list(tmp_path.iterdir()) == []


def parties():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 4))
    return [Party(X[:, :2], name="a"), Party(X[:, 2:], y=X.sum(axis=1), name="b")]


def context(**config):
    return Context(77, 0, {}, RecordDict(), config)


def test_results_without_a_seed_are_of_the_same_rows(tmp_path, capsys):
    """All of a run, each in its report, which is printed too."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 4)), rng.normal(size=80)
    both = [Party(X[:, :2], name="a"), Party(X[:, 2:], y=y, name="b")]
    config = CENTRAL | {"compare": True, "output-dir": str(tmp_path)}
    config |= {"coreset-vrlr.test-fraction": 0.3}
    config |= {"coreset-vrlr.allow-two-parties": True}
    variances = []
    for run in (1, 2):
        main(InProcessGrid(both), Context(run, 0, {}, RecordDict(), config))
        out = capsys.readouterr().out
        (folder,) = tmp_path.glob(f"*-{run}")
        assert f"results in {folder}" in out
        assert re.search(r"coreset +\| +uniform \|(.|\n)*train loss \|", out)
        report = json.loads((folder / "result.json").read_text())
        assert report["run_config"] == check_run_config(config)
        assert list(report["results"]) == ["coreset", "uniform", "full"]
        told = map(last, report["results"].values())
        variances.append([one["test_loss"] / (1 - one["test_r2"]) for one in told])
    first, other = np.array(variances)
    np.testing.assert_allclose(first, first[0], rtol=1e-9)
    np.testing.assert_allclose(other, other[0], rtol=1e-9)
    assert abs(first[0] - other[0]) > 1e-6  # each run has rows of its own


def test_a_run_that_failed_goes_on(tmp_path, capsys, caplog):
    """In the same folder, which has no checkpoint when the run is complete."""

    class Failing(RealParties):
        left = 5

        def _push(self, message):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return super()._push(message)

    def grid(kind):
        folders = [tmp_path / party.name for party in parties()]
        made = zip(parties(), folders, strict=True)
        return kind([replace(party, state_dir=own) for party, own in made])

    config = {"output-dir": str(tmp_path / "runs")} | CENTRAL
    with pytest.raises(KeyboardInterrupt):
        main(grid(Failing), context(**config))
    (folder,) = (tmp_path / "runs").iterdir()
    assert [path.name for path in folder.iterdir()] == [FILE]
    command = caplog.text.partition(RESUME)[2].splitlines()[0].strip()
    assert command == (
        f"vfl-flower run coreset-vrlr --set output-dir={tmp_path}/runs --set "
        f"resume={folder.name} --set coreset-vrlr.size=20 --set "
        "coreset-vrlr.solver=central"
    )
    run_id = folder.name.rpartition("-")[2]
    assert resume_command(config, run_id, None) == f"{RESUME} {command}\n"
    assert resume_command(config, "1" + run_id, None) == ""
    other = config | {"resume": folder.name, "coreset-vrlr.size": 21}
    with pytest.raises(RunEnded, match=r"must have the same coreset-vrlr\.size as"):
        main(grid(RealParties), context(**other))
    assert (folder / FILE).exists()
    main(grid(RealParties), context(**config, resume=folder.name, timeout=60.0))
    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        *("figures", "model-coreset.npz", "report.html", "report.md", "result.json")
    ]
    for name in (folder.name, "../runs", "other"):
        with pytest.raises(RunEnded, match="resume must be the name of an incomplete"):
            main(grid(RealParties), context(**config, resume=name))


def test_a_dry_run_prints_a_plan_and_writes_nothing(tmp_path, capsys, caplog):
    config = CENTRAL | {"dry-run": True, "compare": True}
    config |= {"output-dir": str(tmp_path / "runs")}
    grid = Recorder(parties())
    main(grid, context(**config))
    assert {entry.action for entry in grid.transcript} == {"hello"}
    assert list(tmp_path.iterdir()) == []
    steps = [line for line in caplog.messages if line.startswith("dry run: ")]
    assert steps[0] == "dry run: sending hello to the parties"
    assert "dry run: rehearsing on 80 random rows" in steps
    out = capsys.readouterr().out
    for variant in ("coreset", "uniform", "full"):
        assert f"# Plan: CoresetVRLR, {variant}" in out
    assert "| `coresets_scores` | `X`, `y` | in the clear |" in out
    assert "This was a dry run" in out


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"output-dir": "runs"}, "output-dir must be absolute, got 'runs'"),
        ({"coreset-vrlr.sampling": "x"}, "sampling must be one of"),
        ({"unknown": 1}, "run config has no key 'unknown'"),
        ({"dry-run": True, "output-dir": "runs"}, "output-dir must be absolute"),
        ({"output-dir": f"{__file__}/x"}, f"writable folder, .*{__file__}/x is not"),
    ],
)
def test_a_bad_config_asks_no_party(config, sentence):
    grid = SimpleNamespace()  # has no method at all
    with pytest.raises(RunEnded, match=sentence):
        main(grid, context(**config))
