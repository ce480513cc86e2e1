"""Run config and node config: read in one place, wrong values said at once."""

import re
import tomllib
from pathlib import Path

import pytest

from vfl_flower.app.config import (
    check_run_config,
    make_strategy,
    output_dir,
    party_source,
    run_keys,
)
from vfl_flower.app.server_app import make_strategies
from vfl_flower.app.settings import toml
from vfl_flower.data.source import PartySource
from vfl_flower.strategies import ALGORITHMS, algorithms

PROJECT_TEXT = (Path(__file__).parents[2] / "pyproject.toml").read_text()
PROJECT = tomllib.loads(PROJECT_TEXT)
DEFAULTS = {name: key.default for name, key in run_keys().items()}
KINDS = [(name, s.task) for name, own in ALGORITHMS.items() for s in own]
MODEL = "0123456789abcdef"


# -- one declaration, several places ---------------------------------------------------


def test_pyproject_has_what_the_code_declares():
    """``python docs/tables.py toml`` prints it."""
    assert toml() in PROJECT_TEXT
    declared = PROJECT["tool"]["flwr"]["app"]["config"]
    flat = {k: v for k, v in declared.items() if not isinstance(v, dict)}
    for section, own in declared.items():
        if isinstance(own, dict):
            flat |= {f"{section}.{key}": value for key, value in own.items()}
    assert flat == DEFAULTS
    for key, value in flat.items():
        assert type(value) is type(DEFAULTS[key]), key


# -- run config ------------------------------------------------------------------------


def test_defaults_fill_in():
    assert check_run_config({}) == DEFAULTS
    size = {"coreset-vrlr.size": 7}
    assert check_run_config(size) == DEFAULTS | size


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("coreset-vrlr.sise", 1, "; did you mean 'coreset-vrlr.size'?"),
        ("coreset-vkmc.n_clusters", 1, "; did you mean 'coreset-vkmc.n-clusters'?"),
        ("n_parties", 1, "; did you mean 'n-parties'?"),
        ("zzzz", 1, ""),
        ("fdskl.features", "200", "must be a whole number"),
        ("fdskl.features", True, "must be a whole number"),
        ("coreset-vrlr.alpha", "high", "must be a number"),
        ("compare", 1, "must be true or false"),
        ("coreset-vrlr.solver", 3, "must be text"),
        ("fdskl.bandwidth", True, "must be a number or text"),
    ],
)
def test_wrong_key_or_type(key, value, rule):
    expected = f"run config has no key {key!r}{rule}"
    if rule.startswith("must"):
        hint = "; write it in double quotes" if rule.endswith("text") else ""
        expected = f"run config {key!r} {rule}, got {value!r}{hint}"
    with pytest.raises(ValueError, match="run config") as caught:
        check_run_config({key: value})
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("name", "task", "given"),
    [
        ("coreset-vrlr", "train", {"size": 50, "rounds": "paper"}),
        ("fdskl", "train", {"features": 64, "bandwidth": 2}),
        ("ridge", "predict", {"bits": 32, "dealer": "rome"}),
        ("fk-kmeans", "train", {"n_clusters": 4, "gamma": 2, "threshold": 0.5}),
        ("mufc", "train", {"local_clusters": 3, "box": "0,1", "field": "paper"}),
        ("mufc", "unlearn", {"lazy_counts": True}),
        ("mufc", "forget-client", {"clients": "a,b"}),
    ],
)
def test_settings_reach_their_strategy(name, task, given):
    section = {f"{name}.{k.replace('_', '-')}": v for k, v in given.items()}
    config = {"strategy": name, "task": task, "n-parties": 4} | section
    config |= {} if task == "train" else {"model-id": MODEL}
    strategy = make_strategy(check_run_config(config))
    assert {key: getattr(strategy, key) for key in given} == given
    assert strategy.n_parties == 4
    assert task == "train" or strategy.model_id == MODEL


@pytest.mark.parametrize(("name", "task"), KINDS)
def test_each_strategy_and_task_takes_the_defaults(name, task):
    config = {"strategy": name, "task": task}
    config |= {} if task == "train" else {"model-id": MODEL}
    config |= {"mufc.clients": "a"} if task == "forget-client" else {}
    strategy = make_strategy(check_run_config(config))
    assert type(strategy) in algorithms()[name]
    assert strategy.task == task


@pytest.mark.parametrize(
    ("config", "key", "value"),
    [
        ({"strategy": "mufc"}, "coreset-vrlr.size", "auto1"),
        ({"strategy": "fdskl"}, "fk-kmeans.gamma", 2.0),
        ({"strategy": "fdskl"}, "model-id", "1"),
        (
            {"strategy": "fdskl", "task": "predict", "model-id": MODEL},
            "fdskl.budget",
            7,
        ),
        ({"strategy": "mufc"}, "mufc.lazy-counts", True),
    ],
)
def test_key_that_does_not_apply(config, key, value):
    with pytest.raises(ValueError, match=f"{key!r} does not apply to strategy"):
        make_strategy(check_run_config(config | {key: value}))


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({"strategy": "x"}, "strategy must be one of coreset-vrlr, .*, got 'x'"),
        (
            {"task": "x"},
            "one of train, predict, evaluate, remove for strategy 'coreset-vrlr'",
        ),
        ({"strategy": "fdskl", "compare": True}, "compare must be false"),
        ({"strategy": "fdskl", "task": "predict"}, "model_id must be the id"),
        ({"coreset-vrlr.solver": "x"}, "solver must be one of .*'saga', got 'x'"),
        ({"n-parties": 1}, "n_parties must be 0 or at least 2, got 1"),
        ({"strategy": "mufc", "standardize": True}, "standardize must be false"),
        ({"strategy": "fk-kmeans", "standardize": True}, r"set fk-kmeans\.standardize"),
    ],
)
def test_wrong_value(config, rule):
    with pytest.raises(ValueError, match=rule):
        make_strategies(check_run_config(config))


@pytest.mark.parametrize(
    ("given", "seed"), [({}, None), ({"seed": -1}, None), ({"seed": 0}, 0)]
)
def test_seed_of_minus_one_is_none(given, seed):
    assert make_strategy(check_run_config(given)).seed == seed


def test_the_servers_state_is_in_the_output_dir_by_default(tmp_path):
    config = {"strategy": "mufc", "output-dir": str(tmp_path)}
    strategy = make_strategy(check_run_config(config))
    assert strategy.server_state == str(tmp_path / "state")


def test_strategies_that_are_compared():
    config = {"compare": True, "coreset-vrlr.check-size": 40}
    config["coreset-vrlr.solver"] = "central"
    compared = make_strategies(check_run_config(config))
    assert {name: s.sampling for name, s in compared.items()} == {
        name: name for name in ("coreset", "uniform", "full")
    }
    sizes = {name: strategy.check_size for name, strategy in compared.items()}
    assert sizes == {"coreset": 40, "uniform": 0, "full": 0}


# -- data that are split by rows -------------------------------------------------------

SPLIT = DEFAULTS | {"strategy": "fk-kmeans"}


@pytest.mark.parametrize(
    ("run", "rows"),
    [
        ({}, False),
        ({"strategy": "fdskl"}, False),
        ({"strategy": "of another app"}, False),
        ({"strategy": "mufc"}, True),
        ({"strategy": "fk-kmeans"}, True),
    ],
)
def test_which_runs_split_rows(run, rows):
    assert party_source(SIMULATED, run).rows is rows
    assert party_source(SIMULATED, DEFAULTS | run).rows is rows
    assert party_source({"data": "/a.csv"}, DEFAULTS | run).rows is rows


@pytest.mark.parametrize(
    ("run", "optional"),
    [
        ({"strategy": "align", "alignment": "rows"}, True),
        ({"strategy": "fdskl"}, False),
        ({"strategy": "fdskl", "task": "predict"}, False),  # the encoding says it
        ({"strategy": "somebody-else's"}, False),
    ],
)
def test_which_runs_need_no_labels(run, optional):
    assert party_source({"data": "/a.csv"}, DEFAULTS | run).label_optional is optional


def test_a_party_cannot_standardize_split_rows():
    node = {"data": "/a.csv", "standardize": True}
    with pytest.raises(ValueError, match=r"standardize must be .*fk-kmeans\.standard"):
        party_source(node, SPLIT)
    assert party_source(node | {"standardize": False}, SPLIT).rows
    # What the run config says of data is for nodes without data of their own.
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


# -- where a party's data come from ----------------------------------------------------

SIMULATED = {"partition-id": 1, "num-partitions": 3}


def test_simulated_node_takes_the_data_of_the_run():
    run = DEFAULTS | {"label-column": "y", "standardize": True, "impute": "none"}
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
    """What its own keys mean: tests/test_docs.py."""
    node = {"data": "/data/a.parquet", "columns": "dep, arr ,carrier", "one-hot": False}
    run = {"label-column": "delay", "standardize": True, "columns": "x"}
    assert party_source(node, DEFAULTS | run | {"id-column": "id"}) == PartySource(
        data="/data/a.parquet", columns=("dep", "arr", "carrier"), one_hot=False
    )


def test_state_dir_belongs_to_the_node():
    source = party_source(SIMULATED | {"state-dir": "/var/airline"}, DEFAULTS)
    assert source.state_dir == Path("/var/airline")
    assert party_source(SIMULATED, {"state-dir": "/var/run"}).state_dir is None
    assert party_source({"data": "/a.csv", "state-dir": ""}, {}).state_dir is None


def test_a_name_of_digits_is_text():
    node = {"data": "/a.csv", "party-name": 7, "id-column": 1, "columns": 3}
    source = party_source(node, {})
    assert (source.name, source.id_column, source.columns) == ("7", "1", ("3",))


WHOLE = "must be a whole number of at least 0"


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        ({"partition-id": -1}, f"partition-id {WHOLE}, got -1"),
        ({"partition-id": True}, f"partition-id {WHOLE}, got True"),
        ({"num-partitions": "3"}, f"num-partitions {WHOLE}, got '3'"),
        ({"data": "a", "standardize": 1}, "standardize must be true or false, got 1"),
        ({"data": "a", "one-hot": "no"}, "one-hot must be true or false, got 'no'"),
        # The sentences go to the server: they have no path.
        (
            {"data": "/a", "data-path": "/b"},
            "'data-path' and 'data' of the node config must be equal",
        ),
        ({"data": "a", "state-dir": "rome"}, "state-dir must be an absolute path"),
        *(
            ({key: "x"}, f"node config has no key {key!r}; did you mean {near!r}?")
            for key, near in (
                ("partition_id", "partition-id"),
                ("label_column", "label-column"),
                ("column", "columns"),
                ("state_dir", "state-dir"),
                ("data_path", "data-path"),
            )
        ),
        *(
            ({key: DEFAULTS[key]}, f"node config key {key!r} requires 'data'")
            for key in ("id-column", "columns", "standardize", "impute")
        ),
    ],
)
def test_wrong_key_or_value_of_a_node(node, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        party_source(node, DEFAULTS)


def test_other_keys_of_a_node_are_not_ours():
    node = {"data": "/a.csv", "region": "north", "gpu": 1}
    assert party_source(node, {}) == PartySource(data="/a.csv")


def test_what_must_be_forgotten_is_in_no_mean_and_no_level():
    """A filled value or a column of a level is made of all rows of a party."""
    node = {"data": "/abs/a.csv", "impute": "median", "one-hot": True}
    source = party_source(node, {"strategy": "mufc"})
    assert (source.impute, source.one_hot) == ("none", False)
    source = party_source(node, {"strategy": "coreset-vkmc"})
    assert (source.impute, source.one_hot) == ("median", True)
    source = party_source(node | {"impute": "mean"}, {"strategy": "fk-kmeans"})
    assert (source.impute, source.filled_later) == ("mean", True)
