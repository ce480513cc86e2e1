"""How far a run is, as the server says it and as the command line reads it."""

import logging

import numpy as np
import pytest

from vfl_flower import CoresetVRLR, FKKMeans, Ledger, Party
from vfl_flower.app.plan import progress
from vfl_flower.app.plan.progress import LINE, Reporter, line_of, planned_trips
from vfl_flower.app.plan.rehearsal import Rehearsal, Shape
from vfl_flower.app.report.units import size
from vfl_flower.simulation import InProcessGrid
from vfl_flower.strategies.kernel_kmeans import training as kernel_kmeans

CENTRAL = CoresetVRLR(size=10, solver="central")
SHAPES = [Shape(400, 3, 0, "a"), Shape(400, 2, 400, "b")]


def parties():
    X = np.random.default_rng(0).normal(size=(60, 4))
    return [Party(X[:, :2], name="a"), Party(X[:, 2:], X.sum(axis=1), name="b")]


def test_lines_have_the_same_columns():
    """For a step that was planned, and one that nothing is known of."""
    lines = [line_of("x_y", 3, 4, 1_234_567, 12.0), line_of("hello", 1, 0, 1200, 72.0)]
    shown, steps = zip(*(LINE.fullmatch(line).groups() for line in lines), strict=True)
    assert steps == ("x_y", "hello")
    assert shown == (
        f" 75% x_y{' ' * 21} round trip    3,  1.23 MB, 12 s, 4 s left",
        f"     hello{' ' * 19} round trip    1,   1.2 kB, 1:12",
    )


@pytest.mark.parametrize("line", ["", "progress: x", "INFO : progress: 3", "| 1 |"])
def test_another_line_is_none_of_them(line):
    assert LINE.fullmatch(line) is None


def test_a_run_says_how_far_it_is(monkeypatch):
    monkeypatch.setattr(progress, "planned_trips", planned_trips)
    lines = []
    watched = CENTRAL.watched_by(Reporter(lines.append))
    ledger = watched.start(InProcessGrid(parties())).ledger
    assert [LINE.fullmatch(line)[2] for line in lines] == list(ledger.waits)
    shares, trips = zip(*((line[10:14], line[50:55]) for line in lines), strict=True)
    assert list(map(str.strip, shares)) == ["", "67%", "100%"]
    assert list(map(int, trips)) == [1, 2, 3]
    assert size(ledger.bytes_up + ledger.bytes_down) in lines[-1]
    assert ledger.watch is None


def test_a_step_that_is_asked_often_has_few_lines(monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 1e9)
    lines = []
    options = {"solver": "cg", "max_iter": 9, "tol": 0.0, "allow_two_parties": True}
    strategy = CoresetVRLR(size=10, **options).watched_by(Reporter(lines.append))
    ledger = strategy.start(InProcessGrid(parties())).ledger
    assert len(lines) <= len(ledger.waits) + 1 < ledger.round_trips


def test_round_trips_are_planned_only_where_they_are_known(monkeypatch):
    assert planned_trips(CENTRAL, SHAPES) == 2
    assert planned_trips(CENTRAL, [Shape(400, 3, 0)] * 2) == 0  # it fails
    # Parties that have a place for their parts of the model keep them at the end.
    keeping = [shape._replace(keeps=True) for shape in SHAPES]
    assert planned_trips(CENTRAL, keeping) == 3
    with monkeypatch.context() as patch:
        patch.setattr(progress, "PATIENCE", -1.0)
        assert planned_trips(CENTRAL, SHAPES) == 0

    def rehearse(strategy, shapes, rows, clusters, grid):
        ledger = Ledger(waits={"hello": [0.0], "x": [0.0] * (3 + clusters)})
        return Rehearsal(ledger, 0.0)

    # As of a solver that stops when it has converged.
    monkeypatch.setattr(progress, "rehearse", rehearse)
    assert planned_trips(CENTRAL, SHAPES) == 0


@pytest.mark.parametrize("warns", [True, False])
def test_a_model_that_has_not_converged_says_so(warns, caplog, monkeypatch):
    """A warning only where it matters: nearly no run is at rest when it ends."""
    monkeypatch.setattr(kernel_kmeans, "MOVING", 0.02 if warns else 1e9)
    caplog.set_level(logging.INFO, "vfl_flower")
    X = np.random.default_rng(0).normal(size=(3, 40, 4))
    options = {"n_features": 32, "iterations": 2, "passes": 4, "n_init": 2, "seed": 0}
    result = FKKMeans(2, **options).start(InProcessGrid([Party(own) for own in X]))
    (said,) = (r for r in caplog.records if "still moved" in r.getMessage())
    assert said.levelno == (logging.WARNING if warns else logging.INFO)
    text = said.getMessage()
    assert f"moved by {result.metrics['moved']:.2g} in the last of 2" in text
    assert "subspace-tol is 0.01" in text
    assert [warning in text for warning in result.warnings] == [True] * warns
    caplog.clear()
    options["subspace_tol"] = 0.0
    still = FKKMeans(2, **options).start(InProcessGrid([Party(own) for own in X]))
    assert ["still moved" in warning for warning in still.warnings] == [True] * warns
    assert ("still moved" in caplog.text) == warns


def test_clusters_that_are_found_with_the_defaults_give_no_warning(caplog):
    """A constant column is no reason for one, nor is a subspace that hardly moves."""
    X = np.random.default_rng(0).normal(size=(300, 4)) / 4
    X[:, 3] = 7.0
    X[::2, :2] += 3.0
    parties = [Party(X[m::3]) for m in range(3)]
    result = FKKMeans(2, 4, standardize=True, seed=0).start(InProcessGrid(parties))
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert [text for text in said if "the run has a seed" not in text] == []
    assert result.warnings == ()
