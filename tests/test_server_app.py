"""From a run config to strategies, and from their results to a report."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from vfl_flower import Party
from vfl_flower.config import RUN_DEFAULTS, check_run_config
from vfl_flower.server_app import main, make_strategies
from vfl_flower.simulations import InProcessGrid
from vfl_flower.strategies import STRATEGIES, CoresetVKMC, CoresetVRLR


def made(**config):
    dashed = {key.replace("_", "-"): value for key, value in config.items()}
    return make_strategies(check_run_config(dashed))


def test_default():
    strategies = made()
    assert list(strategies) == ["coreset"]
    strategy = strategies["coreset"]
    assert type(strategy) is CoresetVRLR
    for name, value in strategy.settings().items():
        expected = RUN_DEFAULTS[name.replace("_", "-")] if name != "masking" else "ring"
        assert value == (None if name == "seed" else expected), name


@pytest.mark.parametrize(("name", "kind"), STRATEGIES.items())
def test_each_strategy_by_its_name(name, kind):
    (strategy,) = made(strategy=name).values()
    assert type(strategy) is kind


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
            "strategy must be one of coreset-vrlr, coreset-vkmc, got 'fedavg'",
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
