"""The tables of the doubly stochastic solver, on tiny data."""

import json

import numpy as np
import pytest

from simulations import fdskl_stochastic
from simulations.baselines import central_dsg
from simulations.fdskl import BLOCKS, STEPS, iterations, load, tuned
from simulations.fdskl_stochastic import (
    app,
    blocks,
    blocks_page,
    changes,
    changes_page,
    defaults,
    defaults_page,
    mean_and_std,
    pooled_draws,
    tuned_over_draws,
)

N, BUDGET = 240, 20_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make a data set whose +1 no linear model can find."""
    path = tmp_path_factory.mktemp("data")
    X = np.random.default_rng(0).normal(size=(N, 6))
    np.savez(path / "ijcnn1.npz", X=X, y=np.sign(X[:, 0] * X[:, 3]))
    return path


@pytest.fixture(scope="module")
def data(folder):
    return load("ijcnn1", folder, 0, 180, 60)


def test_the_choice_is_that_of_the_mean_over_draws(data):
    chosen = tuned_over_draws(data, BUDGET, BLOCKS)
    means = {
        (block, step): np.mean(pooled_draws(data, BUDGET, block, step, 5))
        for block in BLOCKS
        for step in STEPS
    }
    assert means[chosen] == min(means.values())


def test_draws_are_those_of_the_pooled_baseline(data):
    T = iterations(BUDGET, 16)
    assert pooled_draws(data, BUDGET, 16, 3.0, 2)[1] == (
        central_dsg(
            data, block=16, step=3.0, iterations=T, regularization=1 / 180, seed=1
        ).error
    )


def test_the_mean_of_the_last_half_of_two_is_the_last(data):
    """With one iteration f_1, and with two f_2, is the whole last half."""
    for T in (1, 2):
        settings = {"block": 16, "step": 3.0, "iterations": T, "seed": 1}
        last, mean = (central_dsg(data, averaged=a, **settings) for a in (False, True))
        assert last.error == mean.error
    settings["iterations"] = 9
    last, mean = (central_dsg(data, averaged=a, **settings) for a in (False, True))
    assert last.error != mean.error


@pytest.mark.parametrize("name", ["breast_cancer", "diabetes"])
def test_defaults_are_compared(name):
    (cell,) = defaults(name, None, budgets=[100_000], rows=10_000, seeds=2)
    errors = {
        form: [run["error"] for run in runs] for form, runs in cell["scores"].items()
    }
    assert list(errors) == ["direct", "implicit", "explicit"]
    assert all(np.mean(runs) < 0.75 * cell["base"] for runs in errors.values())
    trips = [runs[0]["round_trips"] for runs in cell["scores"].values()]
    assert trips[1:] == [7, 37]
    _, table = defaults_page([cell])
    assert len(table.splitlines()) == 3
    assert (
        f"{np.mean(errors['implicit']):.{3 if name == 'diabetes' else 2}f} (" in table
    )


def test_blocks_have_as_many_inner_products(folder):
    measured = blocks("ijcnn1", folder, budgets=[BUDGET], rows=N, seeds=1)
    assert [cell["block"] for cell in measured] == [0, 1, 16, 64]
    trips = [cell["scores"][0]["round_trips"] for cell in measured]
    assert trips[1] > trips[2] > trips[3]
    for cell in measured[1:]:
        (features,) = {run["settings"]["features"] for run in cell["scores"]}
        assert features == cell["block"] * iterations(BUDGET, cell["block"])
    _, table = blocks_page(measured)
    header, _, *lines = table.splitlines()
    assert len(lines) == 4
    place = [cell.strip() for cell in header.split("|")].index("inner products")
    products = [int(line.split("|")[place].replace(",", "")) for line in lines]
    T = iterations(BUDGET, 1)
    assert products[1] == T * (T + 1) / 2
    assert max(products) <= BUDGET / 2


@pytest.fixture
def small_steps(monkeypatch):
    """Leave ten times lambda times the step below 1 on few rows."""
    monkeypatch.setattr(fdskl_stochastic, "STEPS", (1.0, 10.0))


@pytest.mark.usefixtures("small_steps")
def test_changes_are_measured_over_draws(folder):
    measured = changes("ijcnn1", folder, budgets=[BUDGET, 40_000], rows=N, draws=4)
    small = {c["change"]: c["errors"] for c in measured if c["budget"] == BUDGET}
    large = {c["change"]: c["errors"] for c in measured if c["budget"] == 40_000}
    assert {len(errors) for errors in small.values()} == {4}
    assert {len(errors) for errors in large.values()} == {2}
    assert set(large) == {"pooled, the same settings", "in the protocol"}
    # 16 bits cost a row or two of 60.
    protocol, exact = small["in the protocol"], small["angles in float64"]
    assert np.abs(np.subtract(protocol, exact)).max() < 5
    best = small["pooled, the best of ten settings in each draw"]
    data = load("ijcnn1", folder, 0, 180, 60)
    assert best == [tuned(data, BUDGET, seed).error for seed in range(4)]
    for change in ("a third of the step", "three times the step"):
        assert small[change] != protocol
    _, table = changes_page(measured)
    assert len(table.splitlines()) == 2 + len(small) + len(large)


def test_cells_have_a_deviation_where_there_is_one():
    assert mean_and_std([1.0, 3.0]) == "2.00 (1.41)"
    assert mean_and_std([1.0]) == "1.00"


@pytest.mark.usefixtures("small_steps")
def test_command_writes_json_and_tables(folder, tmp_path):
    arguments = ["changes", "--datasets", "ijcnn1", "--datasets", "a9a", "--draws", "4"]
    arguments += ["--rows", "200", "--budgets", "5000", "--data-dir", str(folder)]
    app([*arguments, "--output-dir", str(tmp_path)], standalone_mode=False)
    file = tmp_path / "fdskl_stochastic-changes.json"
    results = json.loads(file.read_text())
    assert {cell["data"] for cell in results["changes"]} == {"ijcnn1"}
    assert list(results["skipped"]) == ["a9a"]
