"""The runner of the FDSKL experiments, on tiny data."""

import json

import numpy as np
import pytest
from measured import cells_of, run

from simulations import baselines, fdskl
from simulations.baselines import central_dsg, svm
from simulations.experiments import load_npz
from vfl_flower import SecureRidge, simulate

N, D, BUDGETS = 240, 7, (20_000, 40_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make a folder of two data sets, whose +1 no linear model can find."""
    path = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for name, labels in (("ijcnn1", (-1, 1)), ("covtype", (5, 2))):
        X = rng.normal(3, 2, size=(N, D)).astype(np.float32)
        y = np.where(np.prod(X[:, [0, 3]] - 3, axis=1) > 0, labels[1], labels[0])
        np.savez(path / f"{name}.npz", X=X, y=y)
    return path


@pytest.fixture(scope="module")
def data(folder):
    return fdskl.load("ijcnn1", folder, 0, 180, 60)


@pytest.fixture(scope="module")
def scores(folder):
    return fdskl.errors("ijcnn1", folder, rows=N, seeds=2, budgets=BUDGETS)["scores"]


def test_rows_are_drawn_split_and_standardised(folder):
    data = fdskl.load("covtype", folder, 1, 180, 60)
    assert data.widths == (3, 2, 2)
    np.testing.assert_allclose(data.X.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(data.X.std(axis=0), 1)
    X_test, y_test = data.test
    assert X_test.shape == (60, D)
    assert np.abs(X_test.mean(axis=0)).max() > 1e-3  # by the training rows
    raw, labels = load_npz(folder, "covtype")
    both = np.vstack([data.X, X_test])
    order = np.random.default_rng(1).permutation(N)
    slopes = raw[order].std(axis=0) / both.std(axis=0)
    np.testing.assert_allclose(
        np.diff(raw[order], axis=0), np.diff(both, axis=0) * slopes
    )
    expected = np.where(labels[order] == 2, 1, -1)
    np.testing.assert_array_equal(np.append(data.y, y_test), expected)
    assert [party.y is None for party in data.parties()] == [True, True, False]


@pytest.mark.parametrize("block", [1, 16, 64])
@pytest.mark.parametrize("budget", [100_000, 64_000_000])
def test_iterations_are_what_the_budget_pays_for(budget, block):
    """Two bytes an angle, of B rows with t B features in iteration t."""

    def cost(T):
        return sum(2 * block * t * block for t in range(1, T + 1))

    T = fdskl.iterations(budget, block)
    assert cost(T) <= budget < cost(T + 1)


def test_both_solvers_send_what_the_budget_says(data):
    """A party sends so many bytes up, besides the frames of its messages."""
    for arguments in (
        {"budget": 200_000},
        fdskl.published(200_000, block=16, step=3.0),
    ):
        made = fdskl.score("x", data, 1, **arguments)
        # Three parties up, one sum down: angles, and five limbs of 1,000 distances;
        # what else there is depends on the round trips.
        angles = made.bytes - 4 * 5 * 8 * 1000
        assert 0.75 < angles / (4 * 200_000) < 1.25, arguments
        assert made.error < 40


def test_tuning_takes_the_best_pair(data):
    best = fdskl.tuned(data, BUDGETS[0], 0)
    again = [
        central_dsg(
            data,
            block=block,
            step=step,
            iterations=fdskl.iterations(BUDGETS[0], block),
            regularization=1 / 180,
        ).error
        for block in fdskl.BLOCKS
        for step in fdskl.STEPS
    ]
    assert best.error == min(again)
    assert best.settings["iterations"] == fdskl.iterations(
        BUDGETS[0], best.settings["block"]
    )


def test_the_methods_are_compared_on_equal_terms(scores):
    methods = {figures["name"]: figures for figures in scores if figures["seed"] == 1}
    name = "FDSKL direct, square loss, 0.04 MB"
    coarse, exact = methods[name], methods[f"{name} x 4 in float64"]
    assert coarse["settings"] == exact["settings"]
    assert exact["bytes"] > 2 * coarse["bytes"]
    assert abs(coarse["error"] - exact["error"]) <= 100 / 60  # one row
    tuned = methods["FDSKL doubly stochastic, 0.04 MB"]["settings"]
    pooled = methods["DSG, pooled"]["settings"]
    assert (tuned["block"], tuned["step"]) == (pooled["block"], pooled["step"])
    assert tuned["features"] == pooled["block"] * pooled["iterations"]
    direct, linear = (methods[n] for n in ("FDSKL direct, 0.04 MB", "linear, pooled"))
    assert direct["error"] < linear["error"]


def test_pp_svmv_beyond_its_memory_is_left_out(data):
    chosen = {20_000: {"block": 16, "step": 1.0}}
    names = [
        figures.name
        for figures in fdskl.scores(data, 0, [20_000], chosen, 8 * 180**2 - 1)
    ]
    assert "SVC, pooled" in names
    assert "PP-SVMV" not in names


def test_splits_are_those_of_the_errors(folder, scores):
    entry = fdskl.splits("ijcnn1", folder, rows=N, seeds=2, budgets=BUDGETS)
    measured = {(run["name"], run["seed"]): run["error"] for run in entry["scores"]}
    for name, of_errors in (
        ("direct, 0.04 MB", "FDSKL direct, 0.04 MB"),
        ("doubly stochastic, 0.04 MB", "FDSKL doubly stochastic, 0.04 MB"),
        ("FD-SVRG", "FD-SVRG"),
        ("boosting", "gradient boosting, pooled"),
    ):
        for figures in scores:
            if figures["name"] == of_errors:
                assert measured[name, figures["seed"]] == figures["error"]
    data = fdskl.load("ijcnn1", folder, 1, 180, 60)
    model = simulate(SecureRidge(), data.parties(), seed=1).model
    _, _, X, y = data.train_and_test()
    error = baselines.test_error(model.predict(data.split(X)), y)
    assert measured["SecureRidge", 1] == pytest.approx(error, abs=100 / 60)
    _, cells = cells_of(*fdskl.splits_page({"ijcnn1": entry}))
    assert cells[:3] == ["ijcnn1", "180, 60", "2"]
    values = [measured["FD-SVRG", seed] for seed in range(2)]
    assert f"{np.mean(values):.2f} ({np.std(values, ddof=1):.2f})" in cells


def test_all_rows_are_split_and_a_machine_has_those_of_training(folder):
    n = len(np.load(folder / "ijcnn1.npz")["y"])
    entry = fdskl.splits(
        "ijcnn1", folder, rows=8, seeds=2, budgets=BUDGETS[:1], whole=True
    )
    assert (entry["n"], entry["n_test"]) == (n * 3 // 4, n - n * 3 // 4)
    (machine,) = (run for run in entry["scores"] if run["name"] == "SVC")
    assert machine["settings"]["rows"] == n * 3 // 4
    best = svm(fdskl.load("ijcnn1", folder, 0, n, n)).settings
    assert machine["settings"]["C"] == best["C"]
    _, table = fdskl.splits_page({"ijcnn1": entry}, "All rows")
    assert f"{machine['error']:.2f} |" in table


def test_forms_with_fewer_bytes(folder):
    measured = fdskl.forms("ijcnn1", folder, rows=N)
    assert measured["8 bits"]["settings"] == measured["default"]["settings"]
    assert measured["8 bits"]["bytes"] < 0.6 * measured["default"]["bytes"]
    header, *rows = cells_of(*fdskl.forms_page({"ijcnn1": measured}))
    assert header[-1] == "predict 10,000 rows, MB"
    megabytes = [float(row[-1]) for row in rows]
    assert megabytes[0] == round(measured["default"]["settings"]["features"] * 0.08)
    assert megabytes[1] == round(megabytes[0] / 2)


@pytest.mark.parametrize(("name", "seeds"), [("breast_cancer", 1), ("diabetes", 2)])
def test_defaults_are_compared(name, seeds):
    cell = fdskl.defaults(name, None, budgets=[100_000], rows=10_000, seeds=seeds)
    errors = {
        form: [run["error"] for run in runs] for form, runs in cell["scores"].items()
    }
    assert list(errors) == ["direct", "implicit", "explicit"]
    assert all(np.mean(runs) < 0.75 * cell["base"] for runs in errors.values())
    trips = [runs[0]["round_trips"] for runs in cell["scores"].values()]
    assert trips[1:] == [7, 37]
    _, table = fdskl.defaults_page({name: cell})
    assert (
        f"{np.mean(errors['implicit']):.{3 if name == 'diabetes' else 2}f} (" in table
    )


def test_topologies_have_the_hops_of_their_shape():
    """A chain of T parties has T - 1 hops, a binary tree ceil(log2 T), a star one."""
    measured = fdskl.topologies((3, 5), rows=32, features=16)
    hops = {(run["parties"], run["topology"]): run["round_trips"] for run in measured}
    assert hops == {
        **{(3, "star"): 1, (3, "ring"): 2, (3, "tree"): 2},
        **{(5, "star"): 1, (5, "ring"): 4, (5, "tree"): 3},
    }
    for costs in measured:
        # Each party sends its block once; a star adds at the server, others pass on.
        size = 32 * 16 * 2
        assert costs["bytes_up"] >= costs["parties"] * size
        down = 1 if costs["topology"] == "star" else costs["parties"]
        assert costs["bytes_down"] >= down * size
    errors = {run["error"] for run in measured if run["parties"] == 5}
    assert len(errors) == 1  # the sums are the same


def test_scaling_shows_where_pp_svmv_ends(folder):
    limit = 8 * 50**2
    sizes = (50, 100, 1000)  # there are no 1000 rows
    measured = fdskl.scaling(
        "covtype", folder, sizes=sizes, test=60, memory_limit=limit
    )
    assert [run["n"] for run in measured] == [50, 100]
    assert measured[0]["pp_svmv"]["settings"]["rows"] == 50
    assert "must fit in memory_limit" in measured[1]["pp_svmv"]
    *_, table = fdskl.scaling_page({"covtype": measured})
    assert table.count("out of memory") == 1


def test_command_sorts_budgets_and_prints_its_page(folder, tmp_path, capsys):
    arguments = ["errors", "--datasets", "ijcnn1"]
    arguments += ["--seeds", "1", "--budgets", "40000", "--budgets", "20000"]
    arguments += ["--rows", "100", "--data-dir", folder]
    run(fdskl.app, *arguments, "--output-dir", tmp_path)
    results = json.loads((tmp_path / "fdskl-errors.json").read_text())
    scores = results["errors"]["ijcnn1"]["scores"]
    names = [figures["name"] for figures in scores[:2]]
    assert names == ["FDSKL direct, 0.02 MB", "FDSKL direct, 0.04 MB"]
    assert results["errors"]["ijcnn1"]["n"] == 75
    out = capsys.readouterr().out
    assert (tmp_path / "fdskl-errors.md").read_text() in out
    assert f"results in {tmp_path}" in out
