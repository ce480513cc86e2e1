"""How far a run is, as the server says it and as the command line reads it."""

import numpy as np
import pytest

from vfl_flower import CoresetVRLR, FKKMeans, Ledger, Party
from vfl_flower.app import progress
from vfl_flower.app.progress import Progress, Reporter, planned_trips
from vfl_flower.app.rehearsal import Rehearsal, Shape
from vfl_flower.simulation import InProcessGrid

SHAPES = [Shape(400, 3, 0, "a"), Shape(400, 2, 400, "b")]


def parties():
    X = np.random.default_rng(0).normal(size=(60, 4))
    return [Party(X[:, :2], name="a"), Party(X[:, 2:], X.sum(axis=1), name="b")]


@pytest.mark.parametrize("planned", [0, 4])
def test_a_line_is_read_back(planned):
    line = Progress("coresets_totals", 3, planned, 1_234_567, 12.0)
    assert Progress.parse(f"{line}\n") == line
    assert ("left" in str(line)) == bool(planned)


@pytest.mark.parametrize(
    "line", ["", "progress: step x", "INFO : progress: 3", "| 1 |"]
)
def test_another_line_is_none_of_them(line):
    assert Progress.parse(line) is None


def test_share_and_time_left():
    line = Progress("x", 3, 4, 10, 30.0)
    assert (line.share, line.left) == (0.75, 10.0)
    assert Progress("x", 3, 0, 10, 30.0).left is None


def test_a_run_says_how_far_it_is():
    lines = []
    strategy = CoresetVRLR(size=10, solver="central").watched_by(Reporter(lines.append))
    ledger = strategy.start(InProcessGrid(parties())).ledger
    read = [Progress.parse(line) for line in lines]
    assert [line.step for line in read] == list(ledger.waits)
    assert [line.trips for line in read] == [1, 2, 3]
    assert [line.planned for line in read] == [0, 3, 3]
    assert read[-1].n_bytes == ledger.bytes_up + ledger.bytes_down
    assert ledger.watch is None


def test_a_step_that_is_asked_often_has_few_lines(monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 1e9)
    lines = []
    options = {"solver": "cg", "max_iter": 9, "tol": 0.0, "allow_two_parties": True}
    strategy = CoresetVRLR(size=10, **options).watched_by(Reporter(lines.append))
    ledger = strategy.start(InProcessGrid(parties())).ledger
    assert len(lines) <= len(ledger.waits) + 1 < ledger.round_trips


def test_round_trips_are_planned_only_where_they_are_known(monkeypatch):
    assert planned_trips(CoresetVRLR(size=20, solver="central"), SHAPES) == 2
    assert (
        planned_trips(CoresetVRLR(size=20, solver="central"), [Shape(400, 3, 0)] * 2)
        == 0
    )  # it fails
    # Parties that have a place for their parts of the model keep them at the end.
    keeping = [shape._replace(keeps=True) for shape in SHAPES]
    assert planned_trips(CoresetVRLR(size=20, solver="central"), keeping) == 3
    with monkeypatch.context() as patch:
        patch.setattr(progress, "PATIENCE", -1.0)
        assert planned_trips(CoresetVRLR(size=20, solver="central"), SHAPES) == 0

    def rehearse(strategy, shapes, rows, clusters, grid):
        ledger = Ledger(waits={"hello": [0.0], "x": [0.0] * (3 + clusters)})
        return Rehearsal(ledger, 0.0)

    # As of a solver that stops when it has converged.
    monkeypatch.setattr(progress, "rehearse", rehearse)
    assert planned_trips(CoresetVRLR(size=20, solver="central"), SHAPES) == 0


def test_a_model_that_has_not_converged_says_so(caplog):
    X = np.random.default_rng(0).normal(size=(3, 40, 4))
    strategy = FKKMeans(2, n_features=32, iterations=2)
    result = strategy.start(InProcessGrid([Party(own) for own in X]))
    (warning,) = result.warnings
    assert f"moved by {result.metrics['moved']:.2g} in the last of 2" in warning
    assert "subspace-tol is 0.01" in warning
    assert warning in caplog.text
    still = FKKMeans(2, n_features=32, iterations=2, subspace_tol=0.0)
    assert still.start(InProcessGrid([Party(own) for own in X])).warnings == ()
