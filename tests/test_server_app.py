"""From a run config to strategies, and from their results to a report."""

import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from vfl_flower import FederationError, Party
from vfl_flower.config import RUN_DEFAULTS, check_run_config
from vfl_flower.server_app import main, make_strategies
from vfl_flower.simulations import InProcessGrid
from vfl_flower.strategies import FDSKL, STRATEGIES, CoresetVKMC, CoresetVRLR


@pytest.fixture(autouse=True)
def quiet():
    """Take off what a run does to the package's log, for the tests that follow."""
    log = logging.getLogger("vfl_flower")
    level, handlers = log.level, list(log.handlers)
    yield
    log.setLevel(level)
    log.handlers[:] = handlers


def made(**config):
    dashed = {key.replace("_", "-"): value for key, value in config.items()}
    return make_strategies(check_run_config(dashed))


def test_default():
    strategies = made()
    assert list(strategies) == ["coreset"]
    strategy = strategies["coreset"]
    assert type(strategy) is CoresetVRLR
    own = {"masking": "ring", "solver": "central", "seed": None}
    for name, value in strategy.settings().items():
        default = RUN_DEFAULTS.get(name.replace("_", "-"))
        assert value == own.get(name, default), name


def test_default_of_kernel_learning():
    ((name, strategy),) = made(strategy="fdskl").items()
    assert (name, type(strategy)) == ("train", FDSKL)
    own = {"masking": "circle", "solver": "direct", "seed": None, "test_fraction": 0.2}
    own |= {"iterations": 32}
    for name, value in strategy.settings().items():
        default = RUN_DEFAULTS.get(name.replace("_", "-"))
        assert value == own.get(name, default), name


@pytest.mark.parametrize(
    ("name", "task", "kind"),
    [(name, *task) for name, tasks in STRATEGIES.items() for task in tasks.items()],
)
def test_each_strategy_by_its_name_and_task(name, task, kind):
    given = {} if task == "train" else {"model": "0123456789abcdef"}
    given |= {"clients": "a, b"} if task == "forget-client" else {}
    (strategy,) = made(strategy=name, task=task, **given).values()
    assert type(strategy) is kind
    for key, value in given.items():
        assert getattr(strategy, key) == value


@pytest.mark.parametrize("task", ["unlearn", "forget-client", "status"])
def test_tasks_of_a_model_that_can_forget_name_it(task):
    given = {"clients": "a"} if task == "forget-client" else {}
    sentence = "model must be the number of a trained model, got none"
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        made(strategy="mufc", task=task, **given)


def test_a_client_to_forget_is_named():
    with pytest.raises(ValueError, match=r"^clients must name those to forget"):
        made(strategy="mufc", task="forget-client", model="0123456789abcdef")


def test_requests_arrive():
    (strategy,) = made(
        strategy="mufc",
        task="unlearn",
        model="0123456789abcdef",
        forget="a:1,2;b:3",
        lazy_counts=True,
        server_state="/state",
    ).values()
    assert strategy.settings() == {
        **{"model": "0123456789abcdef", "forget": "a:1,2;b:3", "lazy_counts": True},
        **{"server_state": "/state", "masking": "ring", "n_parties": 0, "seed": None},
    }


def test_values_arrive():
    (strategy,) = made(
        strategy="coreset-vkmc", n_clusters=4, size=50, sampling="uniform", seed=7
    ).values()
    assert isinstance(strategy, CoresetVKMC)
    assert (strategy.n_clusters, strategy.size, strategy.seed) == (4, 50, 7)
    assert strategy.sampling == "uniform"
    (strategy,) = made(
        regularizer="ridge", alpha=0.1, solver="cg", fit_intercept=False
    ).values()
    assert (strategy.regularizer, strategy.alpha, strategy.solver) == (
        "ridge",
        0.1,
        "cg",
    )
    assert strategy.fit_intercept is False


@pytest.mark.parametrize(
    ("sampling", "order"),
    [
        ("coreset", ["coreset", "uniform", "full"]),
        ("full", ["full", "coreset", "uniform"]),
    ],
)
def test_compare(sampling, order):
    strategies = made(compare=True, sampling=sampling, size=60, seed=3)
    assert list(strategies) == order
    for name, strategy in strategies.items():
        assert strategy.sampling == name
        assert (strategy.size, strategy.seed) == (60, 3)


def test_compare_with_a_second_draw():
    """Only a coreset has one; the others run without."""
    strategies = made(compare=True, check_size=30)
    assert {name: s.check_size for name, s in strategies.items()} == {
        "coreset": 30,
        "uniform": 0,
        "full": 0,
    }


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            {"strategy": "fedavg"},
            "strategy must be one of coreset-vrlr, coreset-vkmc, fdskl, fk-kmeans, "
            "mufc, got 'fedavg'",
        ),
        (
            {"sampling": "half"},
            "sampling must be one of coreset, uniform, full, got 'h",
        ),
        ({"solver": "distdim"}, "solver must be one of central, cg, saga, got 'distdi"),
        (
            {"n_clusters": 5},
            "run config 'n-clusters' does not apply to strategy 'coreset-vrlr', got 5",
        ),
        (
            {"strategy": "coreset-vkmc", "alpha": 0.5},
            "run config 'alpha' does not apply to strategy 'coreset-vkmc', got 0.5",
        ),
        ({"size": 0}, "size must be a whole number from 1, got 0"),
        ({"size": 10.0}, "run config 'size' must be of type int, got 10.0"),
        ({"compare": 1}, "run config 'compare' must be of type bool, got 1"),
        ({"sise": 10}, "run config has no key 'sise'; did you mean 'size'"),
        ({"regularizer": "ridge"}, "alpha must be above 0 for ridge, got 0.0"),
        ({"seed": -2}, "seed must be a whole number from 0, got -2"),
    ],
)
@pytest.mark.parametrize("compare", [False, True])
def test_refused(config, sentence, compare):
    with pytest.raises(ValueError, match=sentence):
        made(**{"compare": compare} | config)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"iterations": 5}, "iterations has no effect with solver 'direct', got 5"),
        ({"step": 0.5}, "step has no effect with solver 'direct', got 0.5"),
        (
            {"solver": "doubly-stochastic", "features": 64},
            "features has no effect with solver 'doubly-stochastic', got 64",
        ),
        (
            {"solver": "doubly-stochastic", "budget": 9},
            "budget has no effect with solver 'doubly-stochastic', got 9",
        ),
    ],
)
def test_a_key_of_the_other_solver_is_refused(config, sentence):
    with pytest.raises(ValueError, match="has no effect") as caught:
        made(strategy="fdskl", **config)
    assert str(caught.value) == sentence


def test_a_run_that_fails_leaves_no_empty_folder(tmp_path):
    X = np.ones((9, 1))
    unlabelled = InProcessGrid([Party(X, name="a"), Party(X, name="b")])
    with pytest.raises(FederationError, match="exactly one party must hold"):
        main(unlabelled, context(**{"size": 5, "output-dir": str(tmp_path)}))
    assert list(tmp_path.iterdir()) == []


def parties():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 4))
    return [Party(X[:, :2], name="a"), Party(X[:, 2:], y=X.sum(axis=1), name="b")]


def context(**config):
    return Context(77, 0, {}, RecordDict(), config)


def test_a_run_writes_its_report(tmp_path, capsys):
    config = {"compare": True, "size": 20, "output-dir": str(tmp_path), "seed": 1}
    main(InProcessGrid(parties()), context(**config))
    (folder,) = tmp_path.iterdir()
    assert folder.name.endswith("-77")
    found = json.loads((folder / "result.json").read_text())
    assert list(found["results"]) == ["coreset", "uniform", "full"]
    assert found["run_config"] == RUN_DEFAULTS | config
    out = capsys.readouterr().out
    assert f"results in {folder}" in out
    assert "| coreset |" in out
    assert "test loss" in out


def test_a_model_is_trained_and_predicts_in_a_later_run(tmp_path, capsys):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(180, 3))
    names, labels = ["a", "b", "c"], np.sign(X[:, 0])
    places = [tmp_path / name for name in names]
    fdskl = {"strategy": "fdskl", "output-dir": str(tmp_path / "runs")}

    def grid(rows, y=None):
        blocks = zip(np.hsplit(X[rows], 3), names, places, [None, None, y], strict=True)
        return InProcessGrid(
            [Party(B, y, name=name, state_dir=place) for B, name, place, y in blocks]
        )

    settings = {"features": 64, "bandwidth": 2.0, "regularization": 0.01, "seed": 3}
    main(grid(slice(150), labels[:150]), context(**fdskl, **settings))
    (report,) = (tmp_path / "runs").glob("*/result.json")
    found = json.loads(report.read_text())["results"]
    assert list(found) == ["train"]
    number = found["train"]["model"]
    assert all((place / f"{number}.npz").exists() for place in places)
    assert number in capsys.readouterr().out
    main(grid(slice(150, 180)), context(**fdskl, task="predict", model=number))
    assert list(tmp_path.glob("[ab]/*.csv")) == []
    (file,) = tmp_path.glob("c/*.csv")
    rows = [line.split(",") for line in file.read_text().split()]
    assert rows[0] == ["row", "prediction"]
    predicted = np.array([float(value) for _, value in rows[1:]])
    assert len(predicted) == 30
    assert np.mean(predicted == labels[150:]) > 0.8


def test_rows_and_clients_are_forgotten_in_later_runs(tmp_path, capsys):
    """By the model's number, which the report of the training gives."""
    X = np.random.default_rng(0).uniform(-0.5, 0.5, size=(3, 12, 2))
    mufc = {"strategy": "mufc", "server-state": str(tmp_path / "server")}

    def run(**config):
        clients = [
            Party(own, ids=np.arange(12), name=name, state_dir=tmp_path / name)
            for own, name in zip(X, "abc", strict=True)
        ]
        output = tmp_path / f"runs-{config['task']}"
        config |= mufc | {"output-dir": str(output)}
        main(InProcessGrid(clients), context(**config))
        (report,) = output.glob("*/result.json")
        ((name, found),) = json.loads(report.read_text())["results"].items()
        assert name == config["task"]
        # The ids that are asked for would stay.
        text = "".join(path.read_text() for path in report.parent.glob("*.[jm]*"))
        assert "a:1,2" not in text
        return found

    number = run(task="train")["model"]
    assert f"model {number}, version 1, can forget" in capsys.readouterr().out
    for task, more, rows in (
        ("unlearn", {"forget": "a:1,2;b:3"}, 33),
        ("forget-client", {"clients": "c"}, 21),
    ):
        found = run(task=task, model=number, **more)
        assert found["model"] == number
        assert found["metrics"]["1"]["rows"] == rows
    assert f"model {number}, version 3, can forget" in capsys.readouterr().out
    kept = (tmp_path / "a" / f"predictions-{number}.csv").read_text().split()
    assert [line.split(",")[0] for line in kept[1:]] == ["0", *map(str, range(3, 12))]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"output-dir": "runs"}, "output-dir must be absolute, got 'runs'"),
        ({"sampling": "x"}, "sampling must be one of"),
        ({"unknown": 1}, "run config has no key 'unknown'"),
    ],
)
def test_a_bad_config_asks_no_party(config, sentence):
    grid = SimpleNamespace()  # has no method at all
    with pytest.raises(ValueError, match=sentence):
        main(grid, context(**config))


def test_a_folder_that_cannot_be_made_asks_no_party(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        main(SimpleNamespace(), context(**{"output-dir": str(tmp_path / "file" / "x")}))
