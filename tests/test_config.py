"""Run config and node config: read in one place, wrong values said at once."""

import tomllib
from pathlib import Path

import pytest

import vfl_flower
from vfl_flower.config import (
    RUN_DEFAULTS,
    PartySource,
    check_run_config,
    output_dir,
    party_source,
    rows_split,
    strategy_arguments,
)
from vfl_flower.server_app import make_strategies
from vfl_flower.strategies import (
    FDSKL,
    STRATEGIES,
    CoresetVKMC,
    CoresetVRLR,
    FDSKLPrediction,
    FKKMeans,
)

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())


def test_defaults_are_those_of_pyproject():
    declared = PROJECT["tool"]["flwr"]["app"]["config"]
    assert declared == RUN_DEFAULTS
    assert list(declared) == list(RUN_DEFAULTS)
    for key, value in declared.items():
        assert type(value) is type(RUN_DEFAULTS[key]), key


def test_version_is_that_of_pyproject():
    assert vfl_flower.__version__ == PROJECT["project"]["version"]


# -- run config ------------------------------------------------------------------------


def test_defaults_fill_in():
    assert check_run_config({}) == RUN_DEFAULTS
    assert check_run_config({"size": 7}) == RUN_DEFAULTS | {"size": 7}
    assert RUN_DEFAULTS["size"] == 200


def test_a_whole_number_does_for_a_real_one():
    assert check_run_config({"alpha": 2})["alpha"] == 2


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("sise", "run config has no key 'sise'; did you mean 'size'?"),
        (
            "n_clusters",
            "run config has no key 'n_clusters'; did you mean 'n-clusters'?",
        ),
        ("zzzz", "run config has no key 'zzzz'"),
    ],
)
def test_unknown_key(key, sentence):
    with pytest.raises(ValueError, match="run config has no key") as caught:
        check_run_config({key: 1})
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("size", "200", "int"),
        ("size", 2.5, "int"),
        ("size", True, "int"),
        ("alpha", "high", "float"),
        ("alpha", True, "float"),
        ("compare", 1, "bool"),
        ("compare", "true", "bool"),
        ("solver", 3, "str"),
    ],
)
def test_value_of_another_type(key, value, wanted):
    with pytest.raises(ValueError, match="must be of type") as caught:
        check_run_config({key: value})
    assert str(caught.value) == (
        f"run config {key!r} must be of type {wanted}, got {value!r}"
        + (', write "3" in double quotes' if wanted == "str" else "")
    )


WORDS = ["bandwidth", "regularization", "gamma", "threshold"]


@pytest.mark.parametrize("key", WORDS)
@pytest.mark.parametrize("value", [2, 0.5, "auto", "x"])
def test_number_in_the_place_of_a_word(key, value):
    assert check_run_config({key: value})[key] == value


@pytest.mark.parametrize("key", WORDS)
def test_no_number_in_the_place_of_a_word(key):
    with pytest.raises(ValueError, match=f"{key}' must be of type str, got True"):
        check_run_config({key: True})


KINDS = [(name, task) for name, tasks in STRATEGIES.items() for task in tasks]
MODEL = "0123456789abcdef"


def arguments(name: str, task: str, **config: object) -> dict[str, object]:
    given = {key.replace("_", "-"): value for key, value in config.items()}
    checked = check_run_config({"strategy": name, "task": task} | given)
    return strategy_arguments(checked, STRATEGIES[name][task])


@pytest.mark.parametrize(
    ("name", "task", "given"),
    [
        ("coreset-vrlr", "train", {"size": 50, "seed": 9}),
        ("coreset-vkmc", "train", {"size": 50, "seed": 9}),
        ("fdskl", "train", {"budget": 50, "bandwidth": 2, "seed": 9}),
        ("fdskl", "predict", {"model": MODEL, "bits": 32, "block_bytes": 4096}),
        ("fk-kmeans", "train", {"n_clusters": 4, "gamma": 2, "threshold": 0.5}),
        ("fk-kmeans", "train", {"eigensolver": "block-lanczos", "block_size": 4}),
        ("fk-kmeans", "train", {"kernel": "polynomial", "degree": 2, "offset": 0.0}),
        ("fk-kmeans", "train", {"standardize": True, "allow_missing": True}),
        ("fk-kmeans", "train", {"iterations": 7, "n_init": 2, "subspace_tol": 0.5}),
        ("fk-kmeans", "train", {"partition": "vertical", "bits": 32}),
        ("mufc", "train", {"local_clusters": 3, "box": "0,1", "field": "paper"}),
        (
            "mufc",
            "train",
            {"gamma": 0.5, "privacy": "none", "server_points": "weighted"},
        ),
        ("mufc", "train", {"client_training": "full", "server_state": "/state"}),
        ("mufc", "unlearn", {"model": MODEL, "forget": "a:1", "lazy_counts": True}),
        ("mufc", "forget-client", {"model": MODEL, "clients": "a,b"}),
        ("mufc", "status", {"model": MODEL, "n_parties": 3}),
    ],
)
def test_arguments_of_each_strategy(name, task, given):
    strategy = STRATEGIES[name][task](**arguments(name, task, **given))
    assert {key: getattr(strategy, key) for key in given} == given


def test_each_strategy_and_task_takes_the_defaults():
    assert KINDS == [
        ("coreset-vrlr", "train"),
        ("coreset-vkmc", "train"),
        ("fdskl", "train"),
        ("fdskl", "predict"),
        ("fk-kmeans", "train"),
        ("mufc", "train"),
        ("mufc", "unlearn"),
        ("mufc", "forget-client"),
        ("mufc", "status"),
    ]
    for name, task in KINDS:
        given = {} if task == "train" else {"model": MODEL}
        given |= {"clients": "a"} if task == "forget-client" else {}
        STRATEGIES[name][task](**arguments(name, task, **given))


@pytest.mark.parametrize(
    ("name", "default"),
    [("coreset-vrlr", "central"), ("coreset-vkmc", "central"), ("fdskl", "direct")],
)
def test_solver_that_is_not_named_is_the_strategys_own(name, default):
    assert RUN_DEFAULTS["solver"] == ""
    assert "solver" not in arguments(name, "train")
    (made,) = make_strategies(check_run_config({"strategy": name})).values()
    assert made.solver == default


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("coreset-vrlr", {}),
        ("coreset-vkmc", {"n_init": 10}),
        ("fdskl", {"iterations": 32}),
        (
            "fk-kmeans",
            {"iterations": 20, "n_init": 30, "partition": "horizontal"},
        ),
        ("mufc", {"n_init": 10}),
    ],
)
def test_defaults_that_are_the_strategys_own(name, own):
    """0 and "" are not passed on; another value is."""
    assert not {*own} & {*arguments(name, "train")}
    (made,) = make_strategies(check_run_config({"strategy": name})).values()
    assert {key: getattr(made, key) for key in own} == own
    for key in {*own} - {"partition"}:
        assert arguments(name, "train", **{key: 7})[key] == 7
    others = {"n_init", "iterations", "partition"} - {*own}
    for key in others:
        with pytest.raises(ValueError, match="does not apply to strategy"):
            arguments(name, "train", **{key: "vertical" if key == "partition" else 7})


@pytest.mark.parametrize(
    ("strategy", "key", "value"),
    [
        ("mufc", "size", 50),
        ("mufc", "kernel", "laplacian"),
        ("mufc", "model", MODEL),
        ("fk-kmeans", "box", "0,1"),
        ("fk-kmeans", "server-state", "/state"),
        ("fk-kmeans", "size", 50),
        ("fk-kmeans", "solver", "gram"),
        ("fk-kmeans", "bandwidth", 2.0),
        ("fdskl", "gamma", 2.0),
        ("fdskl", "partition", "horizontal"),
        ("coreset-vkmc", "coreset-size", 50),
        ("coreset-vkmc", "allow-missing", True),
        ("fdskl", "size", 50),
        ("fdskl", "model", MODEL),
        ("fdskl", "tol", 0.5),
        ("fdskl", "evaluate", "full"),
        ("coreset-vrlr", "bandwidth", 2.0),
        ("coreset-vrlr", "model", MODEL),
        ("coreset-vkmc", "topology", "ring"),
        ("coreset-vrlr", "n-clusters", 3),
        ("coreset-vrlr", "local-clustering", "seeding"),
        ("coreset-vkmc", "alpha", 0.5),
        ("coreset-vkmc", "fit-intercept", False),
        ("coreset-vkmc", "allow-two-parties", True),
        ("coreset-vkmc", "test-fraction", 0.5),
    ],
)
def test_key_that_does_not_apply(strategy, key, value):
    with pytest.raises(ValueError, match="does not apply") as caught:
        arguments(strategy, "train", **{key: value})
    hint = "; it needs another task" if key == "model" else ""
    assert str(caught.value) == (
        f"run config {key!r} does not apply to strategy {strategy!r}, got {value!r}"
        + hint
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [("loss", "square"), ("budget", 9), ("solver", "direct"), ("test-fraction", 0.5)],
)
def test_key_of_training_does_not_apply_to_prediction(key, value):
    with pytest.raises(ValueError, match=f"{key}' does not apply"):
        arguments("fdskl", "predict", **{"model": MODEL, key: value})


def test_every_key_applies_to_some_strategy():
    for key, value in RUN_DEFAULTS.items():
        other = {bool: not value, str: f"{value}x"}.get(type(value), 999)
        accepted = 0
        for name, task in KINDS:
            config = RUN_DEFAULTS | {"strategy": name, "task": task} | {key: other}
            try:
                strategy_arguments(config, STRATEGIES[name][task])
            except ValueError:
                continue
            accepted += 1
        assert accepted, key


def test_strategies_of_a_config():
    (found,) = make_strategies(check_run_config({"size": 30})).items()
    assert found[0] == "coreset"
    assert isinstance(found[1], CoresetVRLR)
    config = check_run_config({"strategy": "coreset-vkmc", "compare": True})
    compared = make_strategies(config)
    assert list(compared) == ["coreset", "uniform", "full"]
    for name, strategy in compared.items():
        assert isinstance(strategy, CoresetVKMC)
        assert strategy.sampling == name


@pytest.mark.parametrize("value", [1723, "clinic-a:1723"])
@pytest.mark.parametrize("strategy", ["mufc", "fdskl"])
def test_ids_to_forget_are_in_no_error(strategy, value):
    """Of another type, or for another task."""
    with pytest.raises(ValueError, match="'forget'") as caught:
        make_strategies(check_run_config({"strategy": strategy, "forget": value}))
    assert "1723" not in str(caught.value)
    assert f"got {type(value).__name__}" in str(caught.value)


@pytest.mark.parametrize(
    ("run_config", "sentence"),
    [
        (
            {"strategy": "x"},
            "strategy must be one of coreset-vrlr, coreset-vkmc, fdskl, fk-kmeans, "
            "mufc, got 'x'",
        ),
        ({"task": "x"}, "task must be one of train for strategy 'coreset-vrlr', got"),
        (
            {"task": "predict"},
            "task must be one of train for strategy 'coreset-vrlr', got 'predict'",
        ),
        (
            {"strategy": "fdskl", "task": "x"},
            "task must be one of train, predict for strategy 'fdskl', got 'x'",
        ),
        (
            {"strategy": "fdskl", "compare": True},
            "compare compares samplings of coresets, and must be false for strategy "
            "'fdskl'",
        ),
        (
            {"strategy": "fdskl", "task": "predict"},
            "model must be the number of a trained model, got none",
        ),
        ({"strategy": "fdskl", "bandwidth": 0}, "bandwidth must be 'median' or a num"),
        ({"strategy": "fdskl", "bandwidth": "x"}, "bandwidth must be 'median' or a n"),
        ({"strategy": "fdskl", "bits": 8}, "bits must be 16 or 32, got 8"),
        (
            {"strategy": "fdskl", "solver": "cg"},
            "solver must be one of direct, doubly-stochastic, got 'cg'",
        ),
        ({"sampling": "x"}, "sampling must be one of coreset, uniform, full, got 'x'"),
        ({"solver": "x"}, "solver must be one of central, cg, saga, got 'x'"),
        ({"protocol": "x"}, "protocol must be one of fused, paper, got 'x'"),
        ({"evaluate": "x"}, "evaluate must be one of coreset, full, got 'x'"),
        ({"regularizer": "x"}, "regularizer must be one of none, ridge, lasso, elas"),
        ({"size": 0}, "size must be a whole number from 1, got 0"),
        ({"size": -1}, "size must be a whole number from 1, got -1"),
        ({"max-iter": 0}, "max_iter must be a whole number from 1, got 0"),
        ({"batch-size": 0}, "batch_size must be a whole number from 1, got 0"),
        ({"check-size": -1}, "check_size must be a whole number from 0, got -1"),
        ({"check-size": 1}, "check_size must be 0 or at least 2, got 1"),
        (
            {"check-size": 5, "sampling": "uniform"},
            "check_size must be 0 unless sampling is 'coreset' and solver 'central', "
            "got 5",
        ),
        (
            {"check-size": 5, "solver": "cg"},
            "check_size must be 0 unless sampling is 'coreset' and solver 'central', "
            "got 5",
        ),
        ({"tol": -1.0}, "tol must be at least 0 and finite, got -1.0"),
        ({"tol": float("nan")}, "tol must be at least 0 and finite, got nan"),
        ({"tol": float("inf")}, "tol must be at least 0 and finite, got inf"),
        (
            {"alpha": -1.0, "regularizer": "ridge"},
            "alpha must be at least 0 and finite, got -1.0",
        ),
        (
            {"alpha": float("inf"), "regularizer": "ridge"},
            "alpha must be at least 0 and finite, got inf",
        ),
        ({"alpha": 1.0}, "alpha must be 0 without a regularizer, got 1.0"),
        ({"regularizer": "ridge"}, "alpha must be above 0 for ridge, got 0.0"),
        ({"l1-ratio": 1.5}, r"l1_ratio must be in \[0, 1\], got 1.5"),
        ({"test-fraction": 1.0}, r"test_fraction must be in \[0, 1\), got 1.0"),
        ({"n-parties": -1}, "n_parties must be a whole number from 0, got -1"),
        ({"n-parties": 1}, "n_parties must be 0 or at least 2, got 1"),
        ({"seed": -2}, "seed must be a whole number from 0, got -2"),
        ({"seed": 2**63}, r"seed must be below 2\^63, got 9223372036854775808"),
        (
            {"strategy": "coreset-vkmc", "n-clusters": 0},
            "n_clusters must be a whole number from 1, got 0",
        ),
        (
            {"strategy": "coreset-vkmc", "n-clusters": 300},
            "n_clusters must be at most size, got 300 for 200 rows",
        ),
        (
            {"strategy": "coreset-vkmc", "local-clustering": "x"},
            "local_clustering must be one of lloyd, seeding, got 'x'",
        ),
        (
            {"strategy": "coreset-vkmc", "approximation": 0.5},
            "approximation must be at least 1 and finite, got 0.5",
        ),
        (
            {"strategy": "coreset-vkmc", "n-init": -1},
            "n_init must be a whole number from 1, got -1",
        ),
        (
            {"strategy": "coreset-vkmc", "solver": "cg"},
            "solver must be one of central, distdim, got 'cg'",
        ),
        (
            {"strategy": "fk-kmeans", "task": "predict"},
            "task must be one of train for strategy 'fk-kmeans', got 'predict'",
        ),
        (
            {"strategy": "fk-kmeans", "partition": "x"},
            "partition must be one of horizontal, vertical, got 'x'",
        ),
        (
            {"strategy": "fk-kmeans", "eigensolver": "x"},
            "eigensolver must be one of gram, lanczos, block-lanczos, got 'x'",
        ),
        (
            {"strategy": "fk-kmeans", "kernel": "x"},
            "kernel must be one of gaussian, laplacian, polynomial, got 'x'",
        ),
        ({"strategy": "fk-kmeans", "gamma": 0}, "gamma must be 'auto' or a number ab"),
        ({"strategy": "fk-kmeans", "gamma": "x"}, "gamma must be 'auto' or a number a"),
        (
            {"strategy": "fk-kmeans", "threshold": -1},
            "threshold must be 'auto' or a number above 0, got -1",
        ),
        (
            {"strategy": "fk-kmeans", "n-components": 9},
            "n_components must be at least n_clusters = 10, got 9",
        ),
        (
            {"strategy": "fk-kmeans", "n-features": 0},
            "n_features must be a whole number from 1, got 0",
        ),
        (
            {"strategy": "fk-kmeans", "iterations": -1},
            "iterations must be a whole number from 1, got -1",
        ),
        (
            {
                "strategy": "fk-kmeans",
                "partition": "vertical",
                "eigensolver": "lanczos",
            },
            "eigensolver has no effect with partition 'vertical', got 'lanczos'",
        ),
        (
            {"strategy": "fk-kmeans", "bits": 32},
            "bits has no effect with partition 'horizontal', got 32",
        ),
        (
            {"strategy": "fk-kmeans", "compare": True},
            "compare compares samplings of coresets, and must be false for strategy "
            "'fk-kmeans'",
        ),
        (
            {"strategy": "fk-kmeans", "n-parties": 1},
            "n_parties must be 0 or at least 2, got 1",
        ),
    ],
)
def test_wrong_value_of_a_strategy(run_config, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_strategies(check_run_config(run_config))


@pytest.mark.parametrize(
    ("strategy", "name", "least"),
    [
        (CoresetVRLR, "size", 1),
        (CoresetVRLR, "max_iter", 1),
        (CoresetVRLR, "batch_size", 1),
        (CoresetVRLR, "check_size", 0),
        (CoresetVRLR, "n_parties", 0),
        (CoresetVRLR, "seed", 0),
        (CoresetVKMC, "n_clusters", 1),
        (CoresetVKMC, "n_init", 1),
        (CoresetVKMC, "check_size", 0),
    ],
)
@pytest.mark.parametrize("value", [2.0, 2.5, "2", -1])
def test_whole_numbers_of_a_strategy(strategy, name, least, value):
    with pytest.raises(ValueError, match="must be") as caught:
        strategy(**{name: value})
    assert str(caught.value) == (
        f"{name} must be a whole number from {least}, got {value!r}"
    )
    assert getattr(strategy(**{name: 2}), name) == 2


def test_strategies_of_kernel_learning():
    config = check_run_config({"strategy": "fdskl", "bandwidth": 2})
    ((name, made),) = make_strategies(config).items()
    assert (name, type(made), made.bandwidth) == ("train", FDSKL, 2)
    config = check_run_config({"strategy": "fdskl", "task": "predict", "model": MODEL})
    ((name, made),) = make_strategies(config).items()
    assert (name, type(made), made.model) == ("predict", FDSKLPrediction, MODEL)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_seed_of_minus_one_is_none(strategy):
    assert RUN_DEFAULTS["seed"] == -1
    for given, seed in (({}, None), ({"seed": -1}, None), ({"seed": 0}, 0)):
        config = check_run_config({"strategy": strategy} | given)
        (made,) = make_strategies(config).values()
        assert made.seed == seed


def test_new_keys_reach_the_strategies():
    config = check_run_config({"check-size": 40, "allow-two-parties": True})
    (made,) = make_strategies(config).values()
    assert (made.check_size, made.allow_two_parties) == (40, True)
    (made,) = make_strategies(check_run_config({})).values()
    assert (made.check_size, made.allow_two_parties) == (0, False)


def test_only_the_coreset_is_checked_where_samplings_are_compared():
    config = check_run_config({"check-size": 40, "compare": True})
    sizes = {name: made.check_size for name, made in make_strategies(config).items()}
    assert sizes == {"coreset": 40, "uniform": 0, "full": 0}


# -- data that are split by rows -------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "rows"),
    [
        ({}, False),
        ({"strategy": "coreset-vkmc"}, False),
        ({"strategy": "fdskl"}, False),
        ({"strategy": "fk-kmeans"}, True),
        ({"strategy": "fk-kmeans", "partition": "horizontal"}, True),
        ({"strategy": "fk-kmeans", "partition": "vertical"}, False),
    ],
)
def test_which_runs_split_rows(run, rows):
    assert rows_split(run) is rows
    assert rows_split(RUN_DEFAULTS | run) is rows
    assert party_source(SIMULATED, RUN_DEFAULTS | run).rows is rows
    assert party_source({"data": "/a.csv"}, RUN_DEFAULTS | run).rows is rows


SPLIT = RUN_DEFAULTS | {"strategy": "fk-kmeans"}


def test_rows_that_are_split_are_standardized_by_the_strategy():
    """From sums over all parties, not by each of them alone."""
    run = SPLIT | {"standardize": True}
    assert party_source(SIMULATED, run).standardize is False
    assert strategy_arguments(run, FKKMeans)["standardize"] is True
    assert strategy_arguments(SPLIT, FKKMeans)["standardize"] is False


def test_columns_that_are_split_are_standardized_by_their_parties():
    for run in (SPLIT | {"partition": "vertical"}, RUN_DEFAULTS):
        given = run | {"standardize": True}
        assert party_source(SIMULATED, given).standardize is True
        node = {"data": "/a.csv", "standardize": True}
        assert party_source(node, run).standardize is True
    given = SPLIT | {"partition": "vertical", "standardize": True}
    assert strategy_arguments(given, FKKMeans)["standardize"] is False


def test_a_node_cannot_standardize_split_rows():
    node = {"data": "/a.csv", "standardize": True}
    with pytest.raises(ValueError, match="standardize") as caught:
        party_source(node, SPLIT)
    assert str(caught.value) == (
        "standardize must be in the run config where rows are split: a party knows "
        "mean and deviation of its own rows alone"
    )
    assert party_source(node | {"standardize": False}, SPLIT).rows
    # Data of its own are not what the run config says of data.
    run = SPLIT | {"standardize": True}
    assert party_source({"data": "/a.csv"}, run).standardize is False


# -- where results go ------------------------------------------------------------------


def test_output_dir(tmp_path, monkeypatch):
    assert output_dir({"output-dir": str(tmp_path)}) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert output_dir({"output-dir": "~/runs"}) == tmp_path / "runs"
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    default = output_dir({"output-dir": ""})
    assert default.is_absolute()
    assert default.parts[-2:] == ("vfl_flower", "runs")


def test_output_dir_that_is_relative():
    with pytest.raises(ValueError, match="output-dir must be absolute, got 'runs'"):
        output_dir({"output-dir": "runs"})


# -- where a party's data come from ----------------------------------------------------

SIMULATED = {"partition-id": 1, "num-partitions": 3}


def test_simulated_node_takes_the_data_of_the_run():
    run = RUN_DEFAULTS | {"label-column": "y", "standardize": True, "impute": "none"}
    assert party_source(SIMULATED, run) == PartySource(
        data="diabetes",
        index=1,
        count=3,
        label_column="y",
        standardize=True,
        impute="none",
    )
    assert party_source(SIMULATED, {}).data == "diabetes"


def test_node_with_data_decides_for_itself():
    node = {
        "data": "/data/a.parquet",
        "party-name": "airline",
        "id-column": "flight",
        "columns": "dep, arr ,carrier",
        "one-hot": False,
        "impute": "median",
    }
    run = RUN_DEFAULTS | {
        "label-column": "delay",
        "standardize": True,
        "columns": "x",
        "id-column": "id",
    }
    assert party_source(node, run) == PartySource(
        data="/data/a.parquet",
        name="airline",
        id_column="flight",
        columns=("dep", "arr", "carrier"),
        one_hot=False,
        impute="median",
    )


def test_state_dir_belongs_to_the_node():
    found = party_source(SIMULATED | {"state-dir": "/var/airline"}, RUN_DEFAULTS)
    assert found.state_dir == Path("/var/airline")
    assert party_source(SIMULATED, {"state-dir": "/var/run"}).state_dir is None
    assert party_source({"data": "/a.csv", "state-dir": ""}, {}).state_dir is None


def test_state_dir_that_is_relative():
    """The sentence goes to the server: it has no path."""
    with pytest.raises(ValueError, match="state-dir") as caught:
        party_source({"data": "/a.csv", "state-dir": "airline"}, {})
    assert str(caught.value) == "state-dir must be an absolute path"


def test_name_belongs_to_the_node():
    assert party_source(SIMULATED | {"party-name": "x"}, RUN_DEFAULTS).name == "x"
    assert party_source({}, RUN_DEFAULTS).name is None
    assert party_source({}, RUN_DEFAULTS).index is None


def test_a_name_of_digits_is_text():
    node = {"data": "/a.csv", "party-name": 7, "id-column": 1, "columns": 3}
    source = party_source(node, {})
    assert (source.name, source.id_column, source.columns) == ("7", "1", ("3",))


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        ({"partition-id": -1}, "partition-id must be a whole number from 0, got -1"),
        ({"partition-id": 1.0}, "partition-id must be a whole number from 0, got 1.0"),
        ({"partition-id": True}, "partition-id must be a whole number from 0, got Tr"),
        ({"num-partitions": "3"}, "num-partitions must be a whole number from 0, got"),
        ({"data": "a", "standardize": 1}, "standardize must be true or false, got 1"),
        ({"data": "a", "one-hot": "no"}, "one-hot must be true or false, got 'no'"),
        ({"partition_id": 1}, "node config has no key 'partition_id'; did you mean 'p"),
    ],
)
def test_wrong_value_of_a_node(node, sentence):
    with pytest.raises(ValueError, match=sentence):
        party_source(node, RUN_DEFAULTS)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("label_column", "label-column"),
        ("label-colum", "label-column"),
        ("column", "columns"),
        ("id-columns", "id-column"),
        ("standardise", "standardize"),
        ("onehot", "one-hot"),
        ("num-partition", "num-partitions"),
        ("partyname", "party-name"),
        ("dat", "data"),
        ("state_dir", "state-dir"),
    ],
)
def test_key_of_a_node_that_is_nearly_one_of_ours(key, near):
    with pytest.raises(ValueError, match="node config has no key") as caught:
        party_source({"data": "/a.csv", key: "x"}, {})
    assert str(caught.value) == (
        f"node config has no key {key!r}; did you mean {near!r}?"
    )


def test_other_keys_of_a_node_are_not_ours():
    node = {"data": "/a.csv", "region": "north", "gpu": 1}
    assert party_source(node, {}) == PartySource(data="/a.csv")


@pytest.mark.parametrize(
    "key", ["id-column", "label-column", "columns", "standardize", "one-hot", "impute"]
)
def test_option_of_data_at_a_node_without_data(key):
    with pytest.raises(ValueError, match="must then have") as caught:
        party_source(SIMULATED | {key: RUN_DEFAULTS[key]}, RUN_DEFAULTS)
    assert str(caught.value) == f"node config has {key!r} and must then have 'data'"


def test_what_must_be_forgotten_is_in_no_mean_and_no_level():
    """A filled value or a column of a level is made of all rows of a party."""
    node = {"data": "/abs/a.csv", "impute": "median", "one-hot": True}
    source = party_source(node, {"strategy": "mufc"})
    assert (source.impute, source.one_hot) == ("none", False)
    source = party_source(node, {"strategy": "fk-kmeans"})
    assert (source.impute, source.one_hot) == ("median", True)
